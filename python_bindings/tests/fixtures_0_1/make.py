"""Wrote the files in this folder, with Ingot 0.1.0 at f5f3807c and no GPU: `python make.py <program ingot> <folder>`.

They are what programs of that version leave on disk, and what it computed from them. test_files_of_0_1.py reads them.
Never write them anew with another version: they would no longer show that its files can be read.
"""

import gzip
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd

import ingot
import ingot.float8 as float8
import ingot.nn
from ingot.float8 import CastConfig, DelayedScalingConfig, Float8LinearConfig, LinearMMConfig, ScalingType
from ingot.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from ingot.float8.float8_training_tensor import GemmInputRole

K, N, HIDDEN, TOKENS = 16, 24, 20, 6
DELAYED = {"recipe": "delayed", "history_length": 3}


def random(seed, *shape, size=1.0):
    return (size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(torch.bfloat16)


def bits(tensors):
    """Names, dtypes and shapes, and the bytes of all in one tensor: each tensor adds a few hundred bytes to a file."""
    tensors = [(name, tensor.detach().contiguous().cpu()) for name, tensor in tensors]
    return {
        "tensors": [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors],
        "bytes": torch.cat([tensor.reshape(-1).view(torch.uint8) for _, tensor in tensors]),
    }


def step(module, x):
    """The outputs of a call, and all gradients of the outputs' squares."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    outputs = module(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(y.float().square().sum() for y in outputs).backward()
    return [
        *((f"output {at}", y) for at, y in enumerate(outputs)),
        ("grad of input", x.grad),
        *((f"grad of {name}", parameter.grad) for name, parameter in module.named_parameters()),
    ]


def training_case(make, sync):
    """A module's state after a few steps, if its scales are delayed, and what the step after them computes."""
    torch.manual_seed(0)
    module = make()
    for at in range(4 if sync else 0):  # longer than the histories
        step(module, random(10 + at, TOKENS, K, size=1 + at))
        sync(module)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    found = step(module, random(1, TOKENS, K, size=2))
    if sync:
        sync(module)
        found += [(f"{name} then", value) for name, value in module.named_buffers()]
    return {"state": state, "found": bits(found)}


def modules_of_nn():
    cases = {}
    states = {}

    def add(name, *sizes, **options):
        kind = getattr(ingot.nn, name)
        sync = ingot.nn.sync_amax_history if options["recipe"] == "delayed" else None
        made = training_case(lambda: kind(*sizes, dtype=torch.bfloat16, **options), sync)
        if sync is None:  # recipes without a state share one
            made["state"] = states.setdefault((name, str(sizes)), made["state"])
        cases[" ".join([name, *(f"{key}={value}" for key, value in options.items())])] = {
            "class": name,
            "sizes": sizes,
            "options": options,
            **made,
        }

    for recipe in ingot.torch.RECIPES:
        add("Float8Linear", K, N, recipe=recipe)
    add("Float8Linear", K, N, **DELAYED)
    add("Float8Linear", K, N, activation="gelu", **DELAYED)
    shared = {"q": N, "k": 8, "v": 8}
    for options in (DELAYED, {"recipe": "rowwise"}):
        add("LayerNormLinear", K, N, **options)
        add("RMSNormLinear", K, N, activation="silu", **options)
        add("Mlp", K, HIDDEN, norm="layer", **options)
        add("SharedInputLinears", K, shared, norm="rms", **options)
    for options in (DELAYED, {"recipe": "blockwise"}):
        add("GatedMlp", K, HIDDEN, norm="rms", **options)
    return cases


def layers_of_float8():
    delayed = CastConfig(scaling_type=ScalingType.DELAYED)
    static = CastConfig(scaling_type=ScalingType.STATIC, static_scale=torch.tensor(2.0))
    history = DelayedScalingConfig(history_len=3)
    named = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    configs = {name: Float8LinearConfig.from_recipe_name(name) for name in named}
    configs["delayed"] = Float8LinearConfig(delayed, None, delayed, None, delayed, delayed_scaling_config=history)
    configs["static input"] = Float8LinearConfig(static, None, delayed, None, delayed, delayed_scaling_config=history)

    def make(config):
        layer = torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16)
        return float8.convert_to_float8_training(torch.nn.Sequential(layer), config=config)

    cases = {}
    for name, config in configs.items():
        stateful = name in ("delayed", "static input")
        sync = float8.sync_float8_amax_and_scale_history if stateful else None
        cases[name] = training_case(lambda config=config: make(config), sync)
    return cases


def quantized_layers():
    """State dicts of layers with quantized weights."""
    cases = {}

    def add(name, config):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, N, dtype=torch.bfloat16))
        ingot.nn.quantize_(model, config)
        with torch.no_grad():
            found = [("output", model(random(1, TOKENS, 64)))]
        state = {key: value.clone() for key, value in model.state_dict().items()}
        cases[name] = {"state": state, "found": bits(found)}

    add("e4m3fn row", ingot.nn.Float8WeightOnlyConfig("e4m3fn", "row"))
    add("e5m2 1x32", ingot.nn.Float8WeightOnlyConfig("e5m2", "1x32", layout="row_major"))
    add("e2m1fn", ingot.nn.MXWeightOnlyConfig("e2m1fn"))
    add("e2m3fn", ingot.nn.MXWeightOnlyConfig("e2m3fn"))
    add("frozen tensor", ingot.nn.FrozenFloat8Config(scale="tensor"))
    add("frozen 128x128", ingot.nn.FrozenFloat8Config(scale="128x128"))
    return cases


def float8_tensors():
    w, x = random(2, N, K).float(), random(3, TOKENS, K).float()
    config = LinearMMConfig()
    cast = hp_tensor_to_float8_dynamic
    tensors = {
        "tensor": cast(x, torch.float8_e4m3fn, config),
        "e5m2": cast(x, torch.float8_e5m2, config, gemm_input_role=GemmInputRole.GRAD_OUTPUT),
        "weight": cast(w, torch.float8_e4m3fn, config, gemm_input_role=GemmInputRole.WEIGHT),
        "rows": cast(
            x.bfloat16(),
            torch.float8_e4m3fn,
            config,
            scaling_granularity=float8.ScalingGranularity.AXISWISE,
            axiswise_dim=-1,
            round_scales_to_power_of_2=True,
        ),
        "gathered": float8.WeightWithDynamicFloat8CastTensor(w, config, torch.float8_e4m3fn),
        "gathered, with a scale": float8.WeightWithDynamicFloat8CastTensor(
            w.bfloat16(), config, torch.float8_e4m3fn, torch.tensor(3.0), True
        ),
    }
    values = []
    for name, tensor in tensors.items():
        plain = isinstance(tensor, float8.WeightWithDynamicFloat8CastTensor)
        values.append((name, tensor._tensor if plain else tensor.to_original_precision()))
    values.append(("product", tensors["tensor"] @ tensors["weight"].t()))
    return {"tensors": tensors, "found": bits(values)}


def save(file, value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    file.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


class Net(torch.nn.Module):
    """Tensors of all kinds: a linear layer with a bias, one without, a norm."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(K, 136, dtype=torch.bfloat16)
        self.norm = torch.nn.LayerNorm(136, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(136, 8, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.down(self.norm(self.up(x)))


def checkpoints(folder):
    """FP8 checkpoints of each layout, and what layers of both kinds compute from them."""
    found = []
    for scale in ("tensor", "row", "128x128"):
        torch.manual_seed(0)
        net = Net()
        ingot.nn.quantize_(net, ingot.nn.FrozenFloat8Config(scale=scale))
        file = folder / f"checkpoint_{scale}.safetensors"
        ingot.nn.save_float8_checkpoint(net, file)
        for layers in ("weight_only", "frozen"):
            loaded = Net()
            ingot.nn.load_float8_checkpoint(loaded, file, layers=layers)
            with torch.no_grad():
                found.append((f"{scale} {layers}", loaded(random(1, TOKENS, K))))
    return bits(found)


def weight_only_files(folder):
    """Files of ingot.WeightOnlyLinear, which needs no PyTorch."""
    w, x = random(2, N, 64).float().numpy(), random(1, TOKENS, 64).float().numpy().astype(np.float16)
    found = {}
    kinds = (("e4m3fn", "row", "packed_f16"), ("e2m1fn", "mx", "packed"), ("e3m2fn", "mx", "row_major"))
    for dtype, scale, layout in kinds:
        layer = ingot.WeightOnlyLinear.quantize(w, dtype, scale=scale, layout=layout)
        layer.save(folder / f"weight_only_{dtype}.safetensors", "layers.0.wq.")
        found[dtype] = torch.from_numpy(np.asarray(layer(x, out_dtype="f32")))
    return bits(found.items())


def numbers_in_graphs():
    """The numbers of plans in compiled graphs, which compilers keep on disk."""
    numbers = set()

    def note(graph, _):
        for node in graph.graph.nodes:
            if str(node.target).startswith("ingot."):
                numbers.update(each for each in node.args if isinstance(each, int) and abs(each) > 1 << 20)
        return graph.forward

    backend = aot_autograd(fw_compiler=note)
    for kind, sizes in ((ingot.nn.Float8Linear, (K, N)), (ingot.nn.Mlp, (K, HIDDEN))):
        for recipe in ("rowwise", "tensorwise"):
            module = kind(*sizes, dtype=torch.bfloat16, recipe=recipe)
            torch.compile(module, backend=backend, fullgraph=True)(random(1, TOKENS, K).requires_grad_())
            torch.compiler.reset()
    return sorted(numbers)


def files_of_the_program(program, folder):
    """A recording and a manifest of a small step, a store with a kernel and a tuning record, and its bundle."""
    store = folder / "store"
    run = (
        "import torch, ingot.nn\n"
        "torch.manual_seed(0)\n"
        f"layer = ingot.nn.Float8Linear({K}, {N}, dtype=torch.bfloat16, recipe='rowwise')\n"
        f"layer(torch.randn({TOKENS}, {K}, dtype=torch.bfloat16)).float().sum().backward()\n"
    )
    noted = {"INGOT_RECORD": folder / "recording.ingot", "INGOT_GEMM_MANIFEST": folder / "manifest.gemms"}
    subprocess.run([sys.executable, "-c", run], check=True, env={**os.environ, **noted, "INGOT_CACHE_DIR": store})
    few = folder / "few.ingot"
    few.write_text("# Ingot recording\npack_weight e4m3fn\n")
    env = {**os.environ, "INGOT_CACHE_DIR": store}
    (folder / "records.json").write_text(RECORD)

    def ingot_program(*arguments):
        subprocess.run([program, *arguments], check=True, env=env)

    ingot_program("warm", "--recording", few)
    ingot_program("tune", "--import", folder / "records.json")
    bundle = folder / "store.bundle"
    ingot_program("cache", "export", bundle)
    (folder / "store.bundle.gz").write_bytes(gzip.compress(bundle.read_bytes(), 9, mtime=0))
    bundle.unlink()
    few.unlink()
    with tarfile.open(folder / "store.tar.gz", "w:gz") as archive:
        archive.add(store, "store")
    shutil.rmtree(store)


# What print(TuningRecord) of this version gives, with its kernel_identity(); measuring one would need a GPU.
RECORD = (
    '{"ingot_tuning":1,"spec":"gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast","m":16,"n":24,"k":16,"kernel":'
    '"gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast kernel=simt","us":4.5,"cublaslt_us":5.5,"bf16_us":6.5,"d'
    'ate":"2026-11-28","device":"NVIDIA H200","target":"sm_90a","multiprocessors":132,"driver":"13.0","compil'
    'er":"ingot 0.1.0; templates 3300a21e1fde0935aa2813b7d2ff4047; options --std=c++20 --fmad=false --ptxas-o'
    'ptions=-v --ptxas-options=--warn-on-spills --ptxas-options=--warn-on-local-memory-usage --no-cache --no-'
    'source-include --modify-stack-limit=false --frandom-seed=","cublaslt":"13.1.0","checksum":"8891a70e597b8'
    '4da8e42756709229654"}'
    "\n"
)


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    assert ingot.info("cpu")["version"] == "0.1.0"
    save(folder / "modules.pt.gz", modules_of_nn())
    save(folder / "float8_layers.pt.gz", layers_of_float8())
    save(folder / "quantized_layers.pt.gz", quantized_layers())
    save(folder / "float8_tensors.pt.gz", float8_tensors())
    save(folder / "expected.pt.gz", {"checkpoints": checkpoints(folder), "weight only": weight_only_files(folder)})
    (folder / "numbers_in_graphs.json").write_text(json.dumps(numbers_in_graphs()) + "\n")
    files_of_the_program(program, folder)


if __name__ == "__main__":
    main()

"""Files that Ingot 0.1.0 wrote (fixtures_0_1/make.py): they load, and give the same numbers to the bit. What its store
and bundles have is of another version: it is listed, and never used."""

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
import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.backends.common import aot_autograd

import ingot
import ingot.float8 as float8
import ingot.nn
from ingot.float8 import CastConfig, DelayedScalingConfig, Float8LinearConfig, ScalingType

FOLDER = pathlib.Path(__file__).parent / "fixtures_0_1"
K, N, TOKENS = 16, 24, 6


def load(name):
    return torch.load(io.BytesIO(gzip.decompress((FOLDER / f"{name}.pt.gz").read_bytes())), weights_only=True)


def random(seed, *shape, size=1.0):
    return (size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(torch.bfloat16)


def assert_same(stored, found, rounded=()):
    """All bits, by name; of those in `rounded` all but the last. What is found may have more tensors than the version that stored
    them."""
    found, at, raw = dict(found), 0, stored["bytes"]
    for name, dtype, shape in stored["tensors"]:
        size = torch.empty(0, dtype=dtype).element_size() * torch.Size(shape).numel()
        expected = raw[at : at + size]
        at += size
        tensor = found[name].detach().contiguous()
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape), name
        if torch.equal(tensor.reshape(-1).view(torch.uint8), expected):
            continue
        was = expected.clone().view(dtype).reshape(shape)
        distance = (tensor.double() - was.double()).norm() / was.double().norm()
        assert name in rounded and distance < 2.0**-7, f"{name}: is {tensor}, was {was}"
    assert at == raw.numel() > 0


def check_step(module, case, sync):
    """make.py's training_case() from the stored state on."""
    module.load_state_dict(case["state"], strict=True)
    for name, value in module.state_dict().items():
        assert torch.equal(value, case["state"][name]), name
    x = random(1, TOKENS, K, size=2).requires_grad_()
    outputs = module(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(y.float().square().sum() for y in outputs).backward()
    found = {f"output {at}": y for at, y in enumerate(outputs)}
    found["grad of input"] = x.grad
    found.update((f"grad of {name}", parameter.grad) for name, parameter in module.named_parameters())
    if sync:
        sync(module)
        found.update((f"{name} then", value.clone()) for name, value in module.named_buffers())
    # 0.1.0 rounded the sum of the layers' gradients once, and their products before.
    shared = ("grad of input", "grad of norm.weight") if case.get("class") == "SharedInputLinears" else ()
    assert_same(case["found"], found, shared)


def test_modules():
    cases = load("modules")
    assert len(cases) == 18
    for case in cases.values():
        module = getattr(ingot.nn, case["class"])(*case["sizes"], dtype=torch.bfloat16, **case["options"])
        check_step(module, case, ingot.nn.sync_amax_history if case["options"]["recipe"] == "delayed" else None)


def float8_configs():
    delayed = CastConfig(scaling_type=ScalingType.DELAYED)
    static = CastConfig(scaling_type=ScalingType.STATIC, static_scale=torch.tensor(2.0))
    history = DelayedScalingConfig(history_len=3)
    named = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    return {
        **{name: Float8LinearConfig.from_recipe_name(name) for name in named},
        "delayed": Float8LinearConfig(delayed, None, delayed, None, delayed, delayed_scaling_config=history),
        "static input": Float8LinearConfig(static, None, delayed, None, delayed, delayed_scaling_config=history),
    }


def test_layers_of_float8():
    cases = load("float8_layers")
    for name, config in float8_configs().items():
        model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False, dtype=torch.bfloat16))
        float8.convert_to_float8_training(model, config=config)
        stateful = name in ("delayed", "static input")
        check_step(model, cases.pop(name), float8.sync_float8_amax_and_scale_history if stateful else None)
    assert not cases


def test_quantized_layers():
    cases = load("quantized_layers")
    configs = {
        "e4m3fn row": ingot.nn.Float8WeightOnlyConfig("e4m3fn", "row"),
        "e5m2 1x32": ingot.nn.Float8WeightOnlyConfig("e5m2", "1x32", layout="row_major"),
        "e2m1fn": ingot.nn.MXWeightOnlyConfig("e2m1fn"),
        "e2m3fn": ingot.nn.MXWeightOnlyConfig("e2m3fn"),
        "frozen tensor": ingot.nn.FrozenFloat8Config(scale="tensor"),
        "frozen 128x128": ingot.nn.FrozenFloat8Config(scale="128x128"),
    }
    assert cases.keys() == configs.keys()
    for name, config in configs.items():
        model = torch.nn.Sequential(torch.nn.Linear(64, N, dtype=torch.bfloat16))
        ingot.nn.quantize_(model, config)
        model.load_state_dict(cases[name]["state"], strict=True)
        with torch.no_grad():
            assert_same(cases[name]["found"], [("output", model(random(1, TOKENS, 64)))])


def test_float8_tensors():
    stored = load("float8_tensors")
    tensors = stored["tensors"]
    found = [("product", tensors["tensor"] @ tensors["weight"].t())]
    for name, tensor in tensors.items():
        gathered = isinstance(tensor, float8.WeightWithDynamicFloat8CastTensor)
        assert gathered or isinstance(tensor, float8.Float8TrainingTensor)
        found.append((name, tensor._tensor if gathered else tensor.to_original_precision()))
    assert_same(stored["found"], found)
    assert tensors["e5m2"]._gemm_input_role is float8.GemmInputRole.GRAD_OUTPUT
    assert tensors["rows"]._axiswise_dim == -1
    assert tensors["gathered"]._precomputed_scale is None
    scaled = tensors["gathered, with a scale"]
    assert scaled._precomputed_scale == 3 and scaled._round_scales_to_power_of_2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(K, 136, dtype=torch.bfloat16)
        self.norm = torch.nn.LayerNorm(136, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(136, 8, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.down(self.norm(self.up(x)))


def test_checkpoints():
    found = []
    for scale in ("tensor", "row", "128x128"):
        for layers in ("weight_only", "frozen"):
            net = Net()
            ingot.nn.load_float8_checkpoint(net, FOLDER / f"checkpoint_{scale}.safetensors", layers=layers)
            with torch.no_grad():
                found.append((f"{scale} {layers}", net(random(1, TOKENS, K))))
    assert_same(load("expected")["checkpoints"], found)


def test_weight_only_files():
    x = random(1, TOKENS, 64).float().numpy().astype(np.float16)
    found = []
    for dtype in ("e4m3fn", "e2m1fn", "e3m2fn"):
        layer = ingot.WeightOnlyLinear.load(FOLDER / f"weight_only_{dtype}.safetensors", "layers.0.wq.", device="cpu")
        found.append((dtype, torch.from_numpy(np.asarray(layer(x, out_dtype="f32")))))
    assert_same(load("expected")["weight only"], found)


def test_graphs_of_compilers():
    """Compilers keep graphs on disk by their text, in which a plan's number stands for the version too: no graph of now
    has the text of one from then."""
    then = set(json.loads((FOLDER / "numbers_in_graphs.json").read_text()))
    now = set()

    def note(graph, _):
        for node in graph.graph.nodes:
            if str(node.target).startswith("ingot."):
                now.update(each for each in node.args if isinstance(each, int) and abs(each) > 1 << 20)
        return graph.forward

    for kind, sizes in ((ingot.nn.Float8Linear, (K, N)), (ingot.nn.Mlp, (K, 20))):
        module = kind(*sizes, dtype=torch.bfloat16, recipe="rowwise")
        call = torch.compile(module, backend=aot_autograd(fw_compiler=note), fullgraph=True)
        call(random(1, TOKENS, K).requires_grad_())
        torch.compiler.reset()
    assert len(now) >= 2 and not now & then


# ---- what the program reads ----------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path):
    """Runs the program `ingot` of the same build on a store that 0.1.0 wrote; returns exit code, stdout and stderr."""
    of_build = pathlib.Path(ingot._core.__file__).parents[2] / "bin" / "ingot"
    file = of_build if of_build.exists() else shutil.which("ingot", path=pathlib.Path(sys.executable).parent)
    if file is None:
        pytest.skip("the program ingot is not built")
    with tarfile.open(FOLDER / "store.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("*"):  # only its owner may write it
        path.chmod(0o700 if path.is_dir() else 0o600)
    env = {key: value for key, value in os.environ.items() if not key.startswith("INGOT_") or key == "INGOT_CUDA_ROOT"}
    env.update(INGOT_CACHE_DIR=str(tmp_path / "store"), INGOT_DEVICE="cpu")

    def run(*arguments):
        ran = subprocess.run([file, *arguments], env=env, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    return run


def test_store(program, tmp_path):
    """Its kernel is whole, and of another version: it is asked for again. Its tuning record is another machine's."""

    def kernels():
        listed = json.loads(program("cache", "list", "--json")[1])["kernels"]
        return [(each["kernel"], each["current"]) for each in listed]

    (tmp_path / "one.ingot").write_text("# Ingot recording\npack_weight e4m3fn\n")
    warm = ("warm", "--recording", str(tmp_path / "one.ingot"))
    assert kernels() == [("pack_weight e4m3fn", False)]
    assert program("cache", "verify")[:2] == (0, "1 kernel and 1 tuning record checked: 0 damaged\n")
    status, missing, _ = program(*warm, "--check")
    assert status == 1 and "pack_weight e4m3fn" in missing
    info = json.loads(program("info", "--json")[1])
    tuning = info["tuning"]
    assert (tuning["this_machine"], tuning["other_machines"], tuning["damaged"]) == (0, 1, 0)
    if not any(library["name"] == "NVRTC" and library["found"] for library in info["libraries"]):
        return
    assert program(*warm)[0] == 0
    assert sorted(kernels()) == [("pack_weight e4m3fn", False), ("pack_weight e4m3fn", True)]
    assert program(*warm, "--check")[0] == 0


def test_bundle_and_records(program, tmp_path):
    bundle = tmp_path / "store.bundle"
    bundle.write_bytes(gzip.decompress((FOLDER / "store.bundle.gz").read_bytes()))
    bundle.chmod(0o600)
    listed = json.loads(program("cache", "list", "--json", "--tier", str(bundle))[1])["kernels"]
    assert [(each["kernel"], each["current"]) for each in listed] == [("pack_weight e4m3fn", False)]
    assert program("cache", "verify", "--tier", str(bundle))[0] == 0
    status, told, _ = program("cache", "import", str(bundle))
    assert status == 1 and "another version of Ingot" in told
    status, _, told = program("tune", "--import", str(FOLDER / "records.json"))
    assert status == 0 and told.endswith(f"1 record imported from {FOLDER / 'records.json'}\n")


def test_recording_and_manifest(program):
    status, listed, _ = program("warm", "--recording", str(FOLDER / "recording.ingot"), "--list")
    assert status == 0
    for spec in (FOLDER / "recording.ingot").read_text().splitlines()[1:]:
        if spec.startswith("cast"):
            assert spec in listed
    assert "gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias fast kernel=sm90" in listed
    status, listed, _ = program("tune", "--recording", str(FOLDER / "manifest.gemms"), "--list")
    assert status == 0 and listed.count("\n") == 4
    for call in (FOLDER / "manifest.gemms").read_text().splitlines():
        assert call in listed

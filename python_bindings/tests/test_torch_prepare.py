"""ingot.torch.prepare: what a dry run of a model's layers asks for, and that their first step then compiles nothing."""

import json
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import two_processes

import ingot
import ingot.float8 as float8
import ingot.nn
import ingot.torch
from ingot.torch import LinearError
from ingot.torch._prepare import recording_of



def with_activations(fast_math):
    """A module of each kind with an activation, each way to make it."""
    torch.manual_seed(1)
    part = lambda k, n: torch.nn.Linear(k, n, dtype=torch.bfloat16)
    norm = torch.nn.RMSNorm(96, dtype=torch.bfloat16)
    made = {"recipe": "rowwise", "activation": "silu", "fast_math": fast_math}
    new = {"dtype": torch.bfloat16, **made}
    return {
        "Float8Linear": ingot.nn.Float8Linear(96, 80, **new),
        "Float8Linear.from_float": ingot.nn.Float8Linear.from_float(part(96, 80), **made),
        "RMSNormLinear": ingot.nn.RMSNormLinear(96, 80, **new),
        "RMSNormLinear.from_parts": ingot.nn.RMSNormLinear.from_parts(norm, part(96, 80), **made),
        "Mlp": ingot.nn.Mlp(96, 80, **new),
        "Mlp.from_parts": ingot.nn.Mlp.from_parts(part(96, 80), part(80, 96), **made),
        "GatedMlp": ingot.nn.GatedMlp(96, 80, **new),
        "GatedMlp.from_parts": ingot.nn.GatedMlp.from_parts(part(96, 160), part(80, 96), **made),
        "GatedMlp of gate and up": ingot.nn.GatedMlp.from_parts((part(96, 80), part(96, 80)), part(80, 96), **made),
    }


def test_fast_math_asks_for_fast_kernels():
    for fast_math in (False, True):
        for name, module in with_activations(fast_math).items():
            asked = lines(recording_of(torch.nn.ModuleList([pickle.loads(pickle.dumps(module))]), 200, "h200")[0])
            computing = [line for line in asked if "sigmoid" in line and not line.startswith("gemm")]
            assert computing, name
            assert all(line.split()[-1] == "fast" for line in computing) == fast_math, (name, computing)
            assert any(line.split()[-1] == "fast" for line in computing) == fast_math, (name, computing)
            assert ("fast_math=True" in repr(module)) == fast_math, name


def test_what_is_printed(monkeypatch):
    monkeypatch.setattr(ingot.torch._prepare._core, "prepare", lambda context, recording, gpu, note: note(1, 1, "cast bf16->e4m3fn scale=row"))
    prepared = ingot.torch.prepare(blocks(), 16, gpu="h200")
    found = ingot.torch.Prepared("h200", prepared.layers, (("head", "PyTorch's operations emulate it"),), prepared.kernels, 1, 0.25)
    assert str(found).splitlines() == [
        "2 layers are prepared for h200: 1 kernel, 1 compiled and 0 in the store, in 0.2 s",
        "  head: left out: PyTorch's operations emulate it",
    ]
    assert str(prepared).startswith("2 layers are prepared for h200: 1 kernel, 0 compiled and 1 in the store, in ") and "\n" not in str(prepared)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def blocks(device="cpu", dtype=torch.bfloat16, recipes=("tensorwise", "rowwise"), features=(96, 80)):
    torch.manual_seed(1)
    layers = [ingot.nn.Float8Linear(*features, device=device, dtype=dtype, recipe=recipe) for recipe in recipes]
    return torch.nn.ModuleList(layers)


def lines(text):
    return {line for line in text.splitlines() if line and not line.startswith("#")}


def asked_for(code):
    """What layers ask for on the CPU, where they really run, in a separate process."""
    prelude = "import torch, ingot, ingot.nn, ingot.torch\n"
    result = two_processes.in_process(prelude + code + "\nprint(ingot.recording('cpu'))", INGOT_DEVICE="cpu")
    assert result.returncode == 0, result.stderr
    return lines(result.stdout)


def test_a_dry_run_asks_for_what_a_step_asks_for():
    step = """
for at, recipe in enumerate(ingot.torch.RECIPES):
    layer = ingot.nn.Float8Linear(96, 80 + at, dtype=torch.bfloat16, recipe=recipe)
    x = torch.randn(2, 100, 96, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    y = layer(x)
    y.backward(torch.randn_like(y))
    layer(x.detach()).sum().backward()
    with torch.no_grad():
        layer(x)
"""
    of_step = {line for line in asked_for(step) if not line.startswith("elementwise f32")}
    each = [blocks(recipes=[recipe], features=(96, 80 + at)) for at, recipe in enumerate(ingot.torch.RECIPES)]
    text, layers, left_out = recording_of(torch.nn.ModuleList(each), 200, "h200")
    # The dry run also notes which of the GPU's kernels a GEMM takes; the CPU's has none.
    of_dry_run = {line for line in lines(text) if "kernel=" not in line}
    assert of_dry_run == of_step
    assert (len(layers), left_out) == (len(each), [])


def test_modules_of_several_parts_are_prepared():
    """Each kind adds its own kernels; a module's name is its path in the model."""
    nn = ingot.nn
    parts = {
        "norm": nn.LayerNormLinear(64, 96),
        "active": nn.Float8Linear(64, 64, activation="silu"),
        "mlp": nn.Mlp(64, 128, norm="layer"),
        "gated": nn.GatedMlp(64, 128, norm="rms"),
        "shared": nn.SharedInputLinears(64, {"q": 32, "k": 32, "v": 32}, norm="rms"),
        "delayed": nn.Float8Linear(64, 64, recipe="delayed"),
        "packed": nn.WeightOnlyLinear.from_float(torch.nn.Linear(64, 64)),
        "frozen": nn.FrozenFloat8Linear.from_float(torch.nn.Linear(64, 64)),
    }
    model = torch.nn.ModuleDict(parts).bfloat16()
    text, layers, left_out = recording_of(model, 32, "h200")
    assert ([name for name, _ in layers], left_out) == (list(parts), [])
    assert model["shared"].options.names == ("shared.q", "shared.k", "shared.v")
    everything = set(lines(text))
    for name in ("norm", "active", "mlp", "gated", "shared", "packed", "frozen"):
        others = torch.nn.ModuleDict({other: parts[other] for other in parts if other != name})
        assert set(lines(recording_of(others, 32, "h200")[0])) < everything, name


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_gradients_of_gate_and_up_are_one_pass(recipe):
    """In a layer with one weight of both, and in one with a weight of each. With one scale for both gradients, that pass
    finds their amax."""
    part = lambda k, n: torch.nn.Linear(k, n, dtype=torch.bfloat16)
    joined = ingot.nn.GatedMlp(96, 80, dtype=torch.bfloat16, recipe=recipe)
    apart = ingot.nn.GatedMlp.from_parts((part(96, 80), part(96, 80)), part(80, 96), recipe=recipe)
    for module in (joined, apart):
        asked = lines(recording_of(torch.nn.ModuleList([module]), 200, "h200")[0])
        elementwise = [line for line in asked if line.startswith("elementwise") and "sigmoid" in line]
        assert len(elementwise) == 1 and " second=" in elementwise[0], elementwise
        assert (" amax" in elementwise[0]) == (module is joined and recipe == "tensorwise"), elementwise


def test_a_dry_run_leaves_no_trace_in_delayed_scales():
    """Nor in gradients and random numbers; and it prepares the steps after the first ones, too."""
    cast = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    of_float8 = float8.Float8LinearConfig(cast_config_input=cast, cast_config_weight=cast, cast_config_grad_output=cast)
    layers = [ingot.nn.Mlp(64, 96, norm="rms", recipe="delayed"), ingot.nn.Float8Linear(64, 64, recipe="delayed")]
    layers.append(float8.StatefulFloat8Linear.from_float(torch.nn.Linear(64, 80), of_float8))
    model = torch.nn.ModuleList(layers).bfloat16()
    for parameter in model.parameters():
        parameter.main_grad = torch.full_like(parameter, 3.0)

    def state():
        tensors = [*model.state_dict().values(), *(each.main_grad for each in model.parameters()), torch.get_rng_state()]
        names = ("_has_run", "_syncs", "_starts", "scales_started", "is_amax_initialized")
        flags = [getattr(each, name, None) for each in model.modules() for name in names]
        return [each.clone() for each in tensors], flags, [each.grad for each in model.parameters()]

    def same(before, after):
        assert all(map(torch.equal, before[0], after[0])) and before[2] == after[2]
        assert all(a is b or a == b for a, b in zip(before[1], after[1], strict=True))

    texts = []
    for _ in range(2):
        before = state()
        texts.append(set(lines(recording_of(model, 32, "h200")[0])))
        same(before, state())
        for layer in model:
            layer(torch.randn(32, 64).bfloat16()).float().square().sum().backward()
        ingot.nn.sync_amax_history(model)
        assert model[0].scales_started and model[2].is_amax_initialized
        model.zero_grad()
    assert texts[0] == texts[1] and "amax_history reduce=max" in {line.split(" 1 1")[0] for line in texts[1]}


def test_a_dry_run_changes_nothing():
    model = blocks()
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    before = [each.detach().clone() for each in model.parameters()]
    recorded = ingot.recording("cpu")
    recording_of(model, 48, "h200")
    assert calls == []
    assert all(each.grad is None for each in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert ingot.recording("cpu") == recorded
    x = torch.randn(48, 96, dtype=torch.bfloat16)
    y = model[0](x)  # and computes afterwards
    assert torch.nn.functional.mse_loss(y, torch.nn.functional.linear(x, *model[0].parameters())) < 0.01
    assert ingot.recording("cpu") != recorded


def test_numbers_of_tokens_dtypes_and_gradients():
    model = blocks(dtype=torch.float32, recipes=["rowwise"])
    text = lines(recording_of(model, (64, 256), "h200", torch.bfloat16)[0])
    assert any(line.endswith(" 64 80 96") and line.startswith("gemm e4m3fn*e4m3fn->bf16") for line in text)
    assert any(line.endswith(" 256 80 96") for line in text)
    assert any(line.startswith("cast f32->e4m3fn") for line in text)  # the weight
    assert any(line.startswith("gemm e4m3fn*e4m3fn->f32 ") and line.endswith(" 80 96 256") for line in text)
    with torch.no_grad():
        text = lines(recording_of(model, 64, "h200", torch.bfloat16)[0])
    gemms = {line.split(" bias")[0] for line in text if line.startswith("gemm")}
    assert len(gemms) == 1
    model.requires_grad_(False)  # frozen: the gradient of the input alone
    text = lines(recording_of(model, 64, "h200", torch.bfloat16)[0])
    assert not any(line.endswith(" 80 96 64") for line in text)
    assert any(line.endswith(" 64 96 80") for line in text)


def test_layers_on_meta_and_large_ones_take_no_memory():
    model = torch.nn.Sequential(
        *[ingot.nn.Float8Linear(65536, 65536, device="meta", dtype=torch.bfloat16, recipe="rowwise") for _ in range(80)]
    )
    text, layers, _ = recording_of(model, 16384, "h200")
    assert len(layers) == 80
    assert any(line.endswith(" 16384 65536 65536") for line in lines(text))


def test_layers_that_pytorch_computes_are_left_out():
    from ingot import float8

    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 32)).to(torch.bfloat16)
    float8.convert_to_float8_training(model)
    emulated = torch.nn.Sequential(torch.nn.Linear(64, 96)).to(torch.bfloat16)
    float8.convert_to_float8_training(emulated, config=float8.Float8LinearConfig(emulate=True))
    both = torch.nn.ModuleDict({"fast": model, "emulated": emulated})
    _, layers, left_out = recording_of(both, 64, "h200")
    assert [name for name, _ in layers] == ["0", "1"]
    assert left_out == [("0", "PyTorch's operations emulate it")]


@pytest.mark.nightly
def test_kernels_are_compiled_for_a_gpu_that_is_not_here(tmp_path):
    """Once: the second time they are in the store."""
    code = """
import json, torch, ingot, ingot.nn, ingot.torch
model = torch.nn.Sequential(ingot.nn.Float8Linear(64, 128, bias=False, dtype=torch.bfloat16))
seen = []
with torch.no_grad():
    done = ingot.torch.prepare(model, 128, gpu="h200", progress=lambda *now: seen.append(now))
print(json.dumps([done.gpu, done.layers, done.kernels, done.compiled, seen, ingot.stats("cpu")["compiled"]]))
"""
    if ingot.info("cpu")["libraries"]["NVRTC"]["problem"]:
        pytest.skip("NVRTC is not installed")
    outcomes = []
    for _ in range(2):
        environment = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path), "INGOT_CACHE_MODE": "auto"}
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        outcomes.append(json.loads(result.stdout))
    gpu, layers, kernels, compiled, seen, counted = outcomes[0]
    assert (gpu, layers) == ("h200", ["0"])
    assert compiled == counted == len(kernels) > 4
    assert "cast bf16->e4m3fn scale=tensor out=codes" in kernels
    assert any(kernel.startswith("gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast kernel=sm90") for kernel in kernels)
    assert [done for done, _, _ in seen] == list(range(1, len(kernels) + 1))
    assert {total for _, total, _ in seen} == {len(kernels)}
    assert outcomes[1][2] == kernels
    assert outcomes[1][3] == 0


def test_progress_may_end_the_preparation():
    class Enough(Exception):
        pass

    def stop(done, total, kernel):
        raise Enough(kernel)

    if ingot.info("cpu")["libraries"]["NVRTC"]["problem"]:
        pytest.skip("NVRTC is not installed")
    with torch.no_grad(), pytest.raises(Enough, match="^cast bf16"):
        ingot.torch.prepare(blocks(recipes=["tensorwise"]), 128, gpu="h200", progress=stop)


def test_messages():
    model = blocks()
    for tokens in (0, (), (4, -1), 2.5, "64"):
        with pytest.raises(LinearError, match="^ingot.torch.prepare: tokens is .*, expected a number of tokens above 0"):
            ingot.torch.prepare(model, tokens, gpu="h200")
    with pytest.raises(ingot.Error, match='"h900"'):
        ingot.torch.prepare(model, 64, gpu="h900")
    if not torch.cuda.is_available():
        with pytest.raises(LinearError, match="there is no GPU here to load kernels on: name the GPU to compile them for"):
            ingot.torch.prepare(model, 64)


@needs_gpu
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_the_first_step_compiles_nothing(recipe):
    features = (1088, 832)  # of no other test
    model = blocks("cuda", recipes=[recipe], features=features)
    before = ingot.stats("cuda:0")
    done = ingot.torch.prepare(model, 384)
    assert done.layers == ("0",) and done.kernels
    prepared = ingot.stats("cuda:0")
    assert prepared["compiled"] + prepared["loaded"] >= before["compiled"] + before["loaded"]
    x = torch.randn(3, 128, features[0], dtype=torch.bfloat16, device="cuda", requires_grad=True)
    model[0](x).sum().backward()
    y = model[0](x)
    y.backward(torch.randn_like(y))
    with torch.no_grad():
        model[0](x)
    torch.cuda.synchronize()
    after = ingot.stats("cuda:0")
    assert after["launched"] > prepared["launched"]
    assert (after["compiled"], after["loaded"]) == (prepared["compiled"], prepared["loaded"])
    assert all(each.grad is not None for each in model.parameters())

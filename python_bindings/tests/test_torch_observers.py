"""ingot.torch's monitor, NVTX ranges and traces: numbers against PyTorch's, names, threads, and nothing when off."""

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
import two_processes

import ingot
import ingot.nn
import ingot.torch
from ingot import _core
from ingot.torch import LinearError

FAKE_NVTX = Path(_core.__file__).parents[2] / "tests" / "fake_nvtx"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def two_layers(device="cpu", recipe="tensorwise"):
    torch.manual_seed(3)
    return torch.nn.ModuleDict(
        {
            "up": ingot.nn.Float8Linear(64, 96, recipe=recipe, device=device, dtype=torch.bfloat16),
            "down": ingot.nn.Float8Linear(96, 48, recipe=recipe, device=device, dtype=torch.bfloat16, bias=False),
        }
    )


def run(model, x):
    return model["down"](torch.relu(model["up"](x)))


def step(model, x):
    run(model, x).float().pow(2).mean().backward()


def random_input(device="cpu", rows=40):
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(4)).to(device, torch.bfloat16)


def find(records, layer, tensor, kind="cast", transposed=False):
    (found,) = [
        each
        for each in records
        if (each["layer"], each["tensor"], each["kind"]) == (layer, tensor, kind)
        and each.get("transposed", False) == transposed
    ]
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_monitors_numbers_are_pytorchs(device):
    model = two_layers(device)
    x = random_input(device)
    x[0, 0] = 300.0  # much is small compared with it
    x[1] *= 2.0**-20
    with ingot.torch.monitor(model) as monitor:
        output = run(model, x)
        output.float().pow(2).mean().backward()
    records = monitor.records()
    cast = find(records, "up", "input")
    values = x.double()
    scale = (448.0 / values.abs().max()).float()
    codes = (x.float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    restored = codes.double() / scale.double()
    assert cast["amax"] == values.abs().max().item() == 300.0
    assert cast["elements"] == x.numel()
    assert (cast["dtype"], cast["codes"], cast["scale"], cast["gemms"]) == ("bf16", "e4m3fn", "tensor", "output")
    assert cast["smallest"] == values[values != 0].abs().min().item()
    assert cast["largest_scale_inv"] == pytest.approx(1 / scale.item(), rel=1e-6)
    flushed = ((codes.float() == 0) & (x != 0)).double().mean().item()
    assert flushed > 0.02
    assert cast["flushed_fraction"] == pytest.approx(flushed, abs=1e-9)
    assert cast["saturated_fraction"] == 0
    expected = 10 * torch.log10((values**2).sum() / ((values - restored) ** 2).sum()).item()
    assert cast["sqnr_db"] == pytest.approx(expected, abs=0.01)
    assert find(records, "down", "output", "gemm")["amax"] == output.abs().max().item()
    weight = find(records, "down", "weight")
    assert weight["amax"] == model["down"].weight.abs().max().item()
    grad_weight = find(records, "down", "grad_weight", "gemm")
    assert grad_weight["amax"] == model["down"].weight.grad.abs().max().item()


def test_all_casts_and_gemms_are_reported():
    model = two_layers()
    with ingot.torch.monitor(model) as monitor:
        step(model, random_input().requires_grad_())
    gemms = {(each["layer"], each["tensor"]) for each in monitor.records() if each["kind"] == "gemm"}
    roles = ("output", "grad_input", "grad_weight")
    assert gemms == {(layer, role) for layer in ("up", "down") for role in roles}
    casts = {(each["layer"], each["tensor"]) for each in monitor.records() if each["kind"] == "cast"}
    assert casts == {(layer, tensor) for layer in ("up", "down") for tensor in ("input", "weight", "grad_output")}
    table = monitor.table()
    assert "SQNR dB" in table and "grad_output" in table and "down" in table
    lines = [json.loads(line) for line in monitor.json_lines().splitlines()]
    assert len(lines) == len(monitor.records())


def test_values_are_the_same_with_a_monitor():
    model, x = two_layers(recipe="rowwise"), random_input()
    expected = run(model, x)
    with ingot.torch.monitor(model):
        assert torch.equal(run(model, x), expected)


def test_one_step_of_several_is_observed():
    model, x = two_layers(), random_input()
    with ingot.torch.monitor(model, every=2, history=3) as monitor:
        for _ in range(5):
            step(model, x)
            monitor.step()
    assert sorted({each["step"] for each in monitor.records()}) == [0, 2, 4]


def test_only_the_models_layers_are_observed():
    model, other = two_layers(), two_layers()
    for name, layer in other.items():
        layer.layer_name = f"other.{name}"
    with ingot.torch.monitor(model) as monitor, ingot.torch.monitor(device="cpu") as all_layers:
        step(model, random_input())
        step(other, random_input())
    assert {each["layer"] for each in monitor.records()} == {"up", "down"}
    assert {each["layer"] for each in all_layers.records()} >= {"up", "down", "other.up", "other.down"}


def test_nothing_is_observed_outside():
    model, x = two_layers(), random_input()
    with ingot.torch.monitor(model) as monitor:
        pass
    step(model, x)
    monitor.step()
    assert monitor.records() == []
    assert monitor.table() == "no step has been observed\n"
    with monitor:
        with pytest.raises(LinearError, match="this monitor observes already: leave its `with` block first"):
            monitor.__enter__()
        step(model, x)
    seen = len(monitor.records())
    step(model, x)
    monitor.step()
    assert seen and len(monitor.records()) == seen


def test_a_nan_is_a_warning_that_names_the_tensor():
    model, x = two_layers(), random_input()
    x[3, 5] = float("nan")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ingot.torch.monitor(model):
            run(model, x)
    texts = [str(each.message) for each in seen]
    assert texts[0].startswith("ingot: step 0: tensor input of up has 1 NaN and 0 Inf among its 2560 elements")


def test_float8_layers_are_observed():
    from ingot import float8

    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 32)).to(torch.bfloat16)
    float8.convert_to_float8_training(model)
    with ingot.torch.monitor(model) as monitor:
        model(random_input()).sum().backward()
    assert {each["layer"] for each in monitor.records()} == {"0", "1"}


@pytest.mark.parametrize("recipe", in_ci(lambda recipe: recipe.startswith("rowwise"), ingot.torch.RECIPES))
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_layers_are_observed(recipe, device):
    """Everything that eager layers report: codes and transposed codes of all three tensors, and all GEMMs."""
    torch._dynamo.reset()
    model, x = two_layers(device, recipe), random_input(device).requires_grad_()
    with ingot.torch.monitor(model) as eager:
        step(model, x)
    with ingot.torch.monitor(model) as compiled:
        torch.compile(lambda x: run(model, x), backend="aot_eager", fullgraph=True)(x).float().pow(2).mean().backward()
    key = lambda each: (each["layer"], each["tensor"], each["kind"], each.get("transposed", False))
    found, expected = (sorted(monitor.records(), key=key) for monitor in (compiled, eager))
    sums = [[each.pop("sqnr_db", 0.0) for each in records] for records in (found, expected)]  # in any order on a GPU
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)
    assert found == expected
    if recipe == "rowwise":
        casts = {(each["tensor"], each["transposed"]) for each in compiled.records() if each["kind"] == "cast"}
        assert casts == {(tensor, way) for tensor in ("input", "weight", "grad_output") for way in (False, True)}


def test_compiled_layers_that_share_a_cast_both_report_it():
    torch._dynamo.reset()
    torch.manual_seed(5)
    make = lambda name: ingot.nn.Float8Linear(64, 32, recipe="rowwise", layer_name=name, dtype=torch.bfloat16)
    model = torch.nn.ModuleList([make("q"), make("k")])
    x = random_input().requires_grad_()
    with ingot.torch.monitor(model) as monitor:
        compiled = torch.compile(lambda x: model[0](x) + model[1](x), backend="aot_eager", fullgraph=True)
        compiled(x).sum().backward()
    of_input = [each for each in monitor.records() if each["tensor"] == "input"]
    assert {(each["layer"], each["gemms"]) for each in of_input} == {
        (layer, gemm) for layer in ("q", "k") for gemm in ("output", "grad_weight")
    }
    for gemm in ("output", "grad_weight"):
        q, k = (dict(each, layer="") for each in of_input if each["gemms"] == gemm)
        assert q == k


def test_a_layer_that_is_taken_apart_hides_no_other():
    torch._dynamo.reset()
    apart = [ingot.nn.Float8Linear(64, 64), ingot.nn.Mlp(64, 64)]
    del apart[0].weight, apart[1].up_proj
    model = two_layers()
    compiled = torch.compile(model["up"], backend="eager")
    with ingot.torch.monitor(model) as monitor:
        compiled(torch.randn(8, 64).bfloat16())
    assert {record["layer"] for record in monitor.records()} == {"up"}


def test_names_that_were_given_stay():
    model = two_layers()
    model["up"].layer_name = "mine"
    with ingot.torch.monitor(model) as monitor:
        run(model, random_input())
    assert {each["layer"] for each in monitor.records()} == {"mine", "down"}
    with pytest.raises(ingot.Error, match='^linear "down" input: has shape'):
        model["down"](random_input())


def test_modules_of_several_parts_are_observed():
    """Every GEMM of each module, forward and backward, by the name of its layer."""
    nn = ingot.nn
    model = torch.nn.ModuleDict(
        {
            "norm": nn.RMSNormLinear(64, 64, activation="silu"),
            "mlp": nn.GatedMlp(64, 128, norm="rms"),
            "shared": nn.SharedInputLinears(64, {"q": 32, "k": 48}),
        }
    )
    x = torch.randn(32, 64, requires_grad=True)
    with ingot.torch.monitor(model) as monitor:
        q, k = model["shared"](model["mlp"](model["norm"](x)))
        (q.square().mean() + k.square().mean()).backward()
    gemms = {(each["layer"], each["tensor"]) for each in monitor.records() if each["kind"] == "gemm"}
    layers = ("norm", "mlp.gate_up", "mlp.down", "shared.q", "shared.k")
    roles = ("output", "grad_input", "grad_weight")
    assert gemms >= {(layer, role) for layer in layers for role in roles}, gemms


@pytest.mark.parametrize("device", DEVICES)
def test_a_dump_holds_the_values_and_their_codes(tmp_path, device):
    model, x = two_layers(device), random_input(device)
    with ingot.torch.monitor(model) as monitor:
        monitor.dump("up", "input", tmp_path)
        step(model, x)
    values = np.load(tmp_path / "up.input.step0.values.npy")
    codes = torch.from_numpy(np.load(tmp_path / "up.input.step0.codes.npy")).view(torch.float8_e4m3fn)
    scale_inv = np.load(tmp_path / "up.input.step0.scale_inv.npy")
    assert np.array_equal(values, x.float().cpu().numpy())
    assert np.abs(codes.float().numpy() * scale_inv - values).max() <= np.abs(values).max() / 28


@pytest.mark.parametrize("device", DEVICES)
def test_backward_in_another_thread_is_observed(device):
    """On a GPU autograd has its own thread; on the CPU one is made here."""
    model, x = two_layers(device), random_input(device)
    with ingot.torch.monitor(model) as monitor:
        loss = run(model, x).float().sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert find(monitor.records(), "up", "grad_weight", "gemm")["amax"] == model["up"].weight.grad.abs().max().item()


class Written:
    """A SummaryWriter."""

    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value


def test_numbers_and_pictures_of_steps(tmp_path):
    model = torch.nn.Sequential(ingot.nn.Float8Linear(32, 48, layer_name="a"), ingot.nn.Float8Linear(48, 16, layer_name="b"))
    writer = Written()
    with ingot.torch.monitor(model, history=3) as seen:
        for _ in range(3):
            model(torch.randn(8, 32)).square().sum().backward()
            seen.step()
        records = [each for each in seen.records() if each["kind"] == "cast"]
        assert seen.write_scalars(writer) == len(writer.scalars) == 4 * len(records)
        assert {step for _, step in writer.scalars} == {each["step"] for each in records} and len(records) > 3 * 6
        for each in records:
            for value in ("sqnr_db", "amax", "saturated_fraction", "flushed_fraction"):
                assert writer.scalars[f"ingot/{value}/{each['layer']}/{each['tensor']}/{each['gemms'].replace(', ', '_and_')}", each["step"]] == each[value]
        for value in ("sqnr_db", "flushed_fraction"):
            pytest.importorskip("matplotlib")
            seen.heat_map(tmp_path / f"{value}.png", value)
            assert (tmp_path / f"{value}.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(ingot.Error, match="monitor.heat_map value: 'noise' is not one of sqnr_db, saturated_fraction"):
            seen.heat_map(tmp_path / "a.png", "noise")
        with pytest.raises(ingot.Error, match="none/a.png: cannot be written: "):
            seen.heat_map(tmp_path / "none" / "a.png")
        with pytest.raises(ingot.Error, match="a.wrong: cannot be written: "):
            seen.heat_map(tmp_path / "a.wrong")
    with ingot.torch.monitor(model) as nothing:
        with pytest.raises(ingot.Error, match="no cast was observed yet"):
            nothing.heat_map(tmp_path / "a.png")


@pytest.mark.nightly
def test_tensorboard_reads_it_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model = ingot.nn.Float8Linear(32, 48, layer_name="a")
    with ingot.torch.monitor(model) as seen, SummaryWriter(str(tmp_path)) as writer:
        for _ in range(2):
            model(torch.randn(8, 32)).sum().backward()
            seen.step()
            seen.write_scalars(writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert len(events.Scalars("ingot/sqnr_db/a/input/output")) == 2


def test_messages_of_monitors(tmp_path):
    with pytest.raises(LinearError, match="^ingot.torch.monitor: the model has no layers of ingot.nn or ingot.float8"):
        ingot.torch.monitor(torch.nn.Linear(4, 4))
    with pytest.raises(ingot.Error, match="^Monitor every: is 0, but must be 1 or more steps"):
        ingot.torch.monitor(two_layers(), every=0)
    with pytest.raises(LinearError, match="nowhere is no folder: make it first"):
        ingot.torch.monitor(two_layers()).dump("up", "input", tmp_path / "nowhere")


# ---- traces --------------------------------------------------------------------------------------------------------


def events(file, category):
    return [each for each in json.loads(file.read_text())["traceEvents"] if each.get("cat") == category]


@pytest.mark.parametrize("device", DEVICES)
def test_a_trace_has_launches_and_ranges_of_all_threads(tmp_path, device):
    model, x, file = two_layers(device), random_input(device), tmp_path / "step.json"
    step(model, x)
    with ingot.torch.trace(file, model):
        loss = run(model, x).float().pow(2).mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    step(model, x)  # not recorded
    ranges = events(file, "range")
    names = {each["name"] for each in ranges}
    assert {"up forward", "up output", "down backward", "down grad_input", "up grad_weight"} <= names
    host = [each for each in ranges if each["pid"] == 0]
    tracks = {what: {each["tid"] for each in host if each["args"]["role"] == what} for what in ("forward", "backward")}
    assert len(tracks["forward"]) == len(tracks["backward"]) == 1
    assert tracks["forward"] != tracks["backward"]
    assert len([each for each in host if each["name"] == "up forward"]) == 1
    launches = events(file, "launch")
    assert any(each["name"].startswith("gemm e5m2*e4m3fn") for each in launches)
    assert all(each["dur"] >= 0 for each in launches)
    if device == "cuda":  # one stream of PyTorch's, though each thread has an object for it
        assert len({each["tid"] for each in launches}) == 1


def test_messages_of_traces(tmp_path):
    model = two_layers()
    with ingot.torch.trace(tmp_path / "a.json", device="cpu"):
        with pytest.raises(LinearError, match="^ingot.torch.trace: cpu is traced already: leave that `with` block first"):
            with ingot.torch.trace(tmp_path / "b.json", device="cpu"):
                pass
        run(model, random_input())
    assert events(tmp_path / "a.json", "launch")
    with pytest.raises(ingot.Error, match="nowhere"):
        with ingot.torch.trace(tmp_path / "nowhere" / "a.json", device="cpu"):
            run(model, random_input())
    with ingot.torch.trace(tmp_path / "c.json", device="cpu"):  # a failure leaves nothing behind
        pass


# ---- NVTX ----------------------------------------------------------------------------------------------------------


def in_process(code, cuda_root, **more):
    environment = {**os.environ, "INGOT_CUDA_ROOT": str(cuda_root), **more}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_nvtx_ranges_of_forward_and_backward():
    library = FAKE_NVTX / "lib" / "libnvtx3interop.so"
    if not library.exists():
        pytest.skip("the fake NVTX library is of the build tree's tests")
    code = f"""
import ctypes, threading, time, torch, ingot.nn, ingot.torch
model = torch.nn.Sequential(ingot.nn.Float8Linear(32, 16, bias=False))
log = ctypes.CDLL({str(library)!r}).fake_nvtx_log
log.restype = ctypes.c_char_p
x = torch.randn(4, 32)
model(x).sum().backward()
with ingot.torch.nvtx_ranges(model):
    model(x).sum().backward()
model(x)
print(log().decode())
large, y = ingot.nn.Float8Linear(512, 512), torch.randn(512, 512)
for _ in range(20):
    thread = threading.Thread(target=lambda: large(y))
    with ingot.torch.nvtx_ranges():
        thread.start()
        time.sleep(0.004)
    outlasted = thread.is_alive()  # then it closes its range in a library that nobody else holds
    thread.join()
    if outlasted:
        break
"""
    overwrite_freed = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_PERTURB_": "85"}
    result = in_process(code, FAKE_NVTX, **overwrite_freed)
    assert result.returncode == 0, result.stderr
    forward = "+0 forward;+0 output;-;-;"
    assert result.stdout.strip() == forward + "+0 backward;+0 grad_weight;-;-;"


@pytest.mark.nightly
def test_nvtx_ranges_of_a_compiled_layer():
    """A forward is three operators; a cast of an input belongs to no layer, because several may share it."""
    if not (FAKE_NVTX / "lib" / "libnvtx3interop.so").exists():
        pytest.skip("the fake NVTX library is of the build tree's tests")
    code = f"""
import ctypes, torch, ingot.nn, ingot.torch
layer = ingot.nn.Float8Linear(32, 16, bias=False, layer_name="wq")
log = ctypes.CDLL({str(FAKE_NVTX / "lib" / "libnvtx3interop.so")!r}).fake_nvtx_log
log.restype = ctypes.c_char_p
x = torch.randn(4, 32, requires_grad=True)
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
compiled(x).sum().backward()
with ingot.torch.nvtx_ranges(layer):
    compiled(x).sum().backward()
compiled(x)
print(log().decode())
"""
    result = in_process(code, FAKE_NVTX)
    assert result.returncode == 0, result.stderr
    casts = ["+input cast;-;", "+wq forward;-;"]
    gemm = "+wq forward;+wq output;-;-;"
    backward = "+wq backward;+wq grad_input;-;+wq grad_weight;-;-;"
    assert result.stdout.strip() in {first + second + gemm + backward for first, second in (casts, casts[::-1])}


def test_without_nvtx_there_is_a_message():
    code = "import ingot.torch\nwith ingot.torch.nvtx_ranges(): pass"
    result = two_processes.in_process(code, INGOT_CUDA_ROOT="none")
    assert result.returncode == 1
    assert "Error: NVTX: libnvtx3interop.so or" in result.stderr

"""ingot.nn's layers with quantized weights on a GPU: the CPU's values, graphs, moves, compilers and main_grad."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from gpu_memory import check_memory_is_pytorchs

import ingot
from ingot.nn import (
    Float8Linear,
    FrozenFloat8Linear,
    GatedMlp,
    WeightOnlyLinear,
    load_float8_checkpoint,
    save_float8_checkpoint,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

K, N = 512, 384
FORMATS = [
    ("e4m3fn", "row"), ("e4m3fn", "tensor"), ("e4m3fn", "128x128"), ("e5m2", "1x128"), ("e4m3fnuz", "row"),
    ("e5m2fnuz", "1x32"), ("e3m2fn", "mx"), ("e2m3fn", "mx"), ("e2m1fn", "mx"),
]  # fmt: skip


def plain(dtype=torch.bfloat16, k=K, n=N):
    torch.manual_seed(0)
    return torch.nn.Linear(k, n, dtype=dtype)


def inputs(rows=16, dtype=torch.bfloat16, k=K):
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(1)).to(dtype)


def close(actual, expected, bound):
    """No NaN passes."""
    expected = expected.double()
    return bool((actual.double().cpu() - expected).norm() <= bound * expected.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", FORMATS, ids="-".join)
def test_weight_only_is_the_cpus(case, dtype):
    """The cast's bits, made on the GPU, and moved there and back; products except for the order of sums."""
    on_cpu = WeightOnlyLinear.from_float(plain(dtype), *case)
    on_gpu = WeightOnlyLinear.from_float(plain(dtype).cuda(), *case)
    assert torch.equal(on_gpu.weight.codes.cpu(), on_cpu.weight.codes)
    assert torch.equal(on_gpu.weight_scale.cpu(), on_cpu.weight_scale)
    moved = copy.deepcopy(on_cpu).cuda()
    for rows in (1, 16, 300):
        x = inputs(rows, dtype)
        expected = x.double() @ on_cpu.dequantize().double().t() + on_cpu.bias.double()
        for layer in (on_gpu, moved):
            assert close(layer(x.cuda()), expected, 0.004)
    other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
    assert torch.equal(moved.to(other).codes().cpu(), on_cpu.codes())
    assert close(moved(inputs(4, other).cuda()), inputs(4, other).double() @ on_cpu.dequantize().double().t()
                 + on_cpu.bias.double(), 0.01)  # fmt: skip
    assert torch.equal(moved.cpu().codes(), on_cpu.codes())


def test_a_weight_that_was_just_written():
    """Loading, moving and writing by hand are followed by forwards that see the new weight."""
    layer = WeightOnlyLinear.from_float(plain().cuda())
    other = WeightOnlyLinear.from_float(torch.nn.Linear(K, N, dtype=torch.bfloat16).cuda())
    x = inputs(1).cuda()
    expected = other(x)
    for _ in range(20):
        layer.load_state_dict(WeightOnlyLinear.from_float(plain().cuda()).state_dict())
        layer(x)
        layer.weight.codes.copy_(other.weight.codes)
        layer.weight_scale.copy_(other.weight_scale)
        layer.bias.data.copy_(other.bias)
        assert torch.equal(layer(x), expected)


def test_scale_inv_that_were_just_written():
    """Alone, by a kernel that takes longer than a launch: the next forward reads the new ones."""
    layer = WeightOnlyLinear.from_float(plain().cuda())
    x = inputs(1).cuda()
    expected, scale_inv = 2 * layer(x), layer.weight_scale.clone()
    layer.bias.data.mul_(2)
    busy = torch.ones(1 << 26, device="cuda")
    for new, right in ((2 * scale_inv, True), (scale_inv, False)) * 10:
        busy.mul_(1.0)
        layer.weight_scale.copy_(new)
        assert torch.equal(layer(x), expected) == right


def test_inference_tensors_that_were_just_written():
    with torch.inference_mode():
        layer = WeightOnlyLinear.from_float(plain().cuda())
        assert layer._is_settled()
        x, expected = inputs(1).cuda(), None
        layer.weight_scale = layer.weight_scale.clone()
        busy = torch.ones(1 << 26, device="cuda")
        scale_inv = layer.weight_scale.clone()
        expected = layer(x) - layer.bias
        for _ in range(10):
            busy.mul_(1.0)
            layer.weight_scale.copy_(2 * scale_inv)
            assert not layer._is_settled() and close(layer(x) - layer.bias, (2 * expected).cpu(), 0.01)
            layer.weight_scale.copy_(scale_inv)
            layer(x)


def test_a_layer_settles_while_another_thread_captures():
    """Under the capture mode that forbids a wait for the device in all threads."""
    x = torch.ones(4, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    found = []

    def load():
        torch.cuda.set_stream(torch.cuda.Stream())
        layer = WeightOnlyLinear.from_float(plain())
        found.append(layer.cuda()._is_settled())

    WeightOnlyLinear.from_float(plain()).cuda()(inputs(1).cuda())  # kernels are loaded, which a capture forbids too
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        y = x * 2
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    assert found == [True] and torch.equal(y, 2 * x)


def test_memory_is_pytorchs():
    layer = WeightOnlyLinear.from_float(plain().cuda())
    frozen = FrozenFloat8Linear.from_float(plain().cuda())
    x = inputs(64).cuda()

    def steps():
        for _ in range(50):
            layer(x)
            frozen(x.detach().requires_grad_()).sum().backward()

    steps()
    check_memory_is_pytorchs(steps)


@pytest.mark.parametrize("rows", [1, 16])
def test_graph(rows):
    """A captured model of two layers, replayed 50 times with new inputs, on a side stream."""
    model = torch.nn.Sequential(
        WeightOnlyLinear.from_float(plain().cuda()), WeightOnlyLinear.from_float(plain(k=N).cuda(), "e2m1fn", "mx")
    )
    x = inputs(rows).cuda()
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        for seed in range(50):
            torch.manual_seed(seed)
            x.copy_(torch.randn(rows, K))
            graph.replay()
            assert torch.equal(y, model(x))


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode):
    torch._dynamo.reset()
    model = torch.nn.Sequential(WeightOnlyLinear.from_float(plain().cuda()), torch.nn.SiLU())
    compiled = torch.compile(model, mode=mode, fullgraph=True)
    with torch.no_grad():
        for seed in range(4):
            torch.manual_seed(seed)
            x = torch.randn(1, K, device="cuda", dtype=torch.bfloat16)
            assert torch.allclose(compiled(x).clone(), model(x), rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("scale", ["tensor", "row", "128x128"])
def test_frozen_is_the_cpus(scale):
    on_cpu = FrozenFloat8Linear.from_float(plain(), scale=scale)
    on_gpu = FrozenFloat8Linear.from_float(plain().cuda(), scale=scale)
    assert torch.equal(on_gpu.codes().view(torch.uint8).cpu(), on_cpu.codes().view(torch.uint8))
    assert torch.equal(on_gpu.weight_scale.cpu(), on_cpu.weight_scale)
    x = inputs(40).requires_grad_()
    grad_output = torch.randn(40, N, dtype=torch.bfloat16)
    y = on_cpu(x)
    y.backward(grad_output)
    x_gpu = x.detach().cuda().requires_grad_()
    y_gpu = on_gpu(x_gpu)
    y_gpu.backward(grad_output.cuda())
    assert close(y_gpu.detach(), y.detach(), 0.01) and close(x_gpu.grad, x.grad, 0.01)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "blockwise"])
def test_main_grad(recipe):
    torch.manual_seed(0)
    plain_layer = Float8Linear(K, N, dtype=torch.bfloat16, device="cuda", recipe=recipe)
    fused = copy.deepcopy(plain_layer)
    fused.weight.main_grad = torch.ones(N, K, device="cuda")
    grad_output = torch.randn(64, N, device="cuda", dtype=torch.bfloat16)
    for layer in (plain_layer, fused):
        layer(inputs(64).cuda()).backward(grad_output)
    assert fused.weight.grad is None
    assert close(fused.weight.main_grad - 1, plain_layer.weight.grad.cpu(), 0.01)


@pytest.mark.parametrize("kind", ["weight_only", "frozen"])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "blockwise"])
def test_checkpoints_of_the_gpu(tmp_path, recipe, kind):
    """Written from the GPU they are the file of the CPU; loads put values there, and one that fails changes nothing."""

    def made(linear, device):
        mlp = GatedMlp(K, N, recipe=recipe, dtype=torch.bfloat16, device=device)
        return torch.nn.Sequential(linear(K, K, dtype=torch.bfloat16, device=device), mlp)

    torch.manual_seed(0)
    trained = made(lambda *sizes, **more: Float8Linear(*sizes, recipe=recipe, **more), "cpu")
    save_float8_checkpoint(trained, tmp_path / "cpu.safetensors")
    save_float8_checkpoint(copy.deepcopy(trained).cuda(), tmp_path / "gpu.safetensors")
    assert (tmp_path / "gpu.safetensors").read_bytes() == (tmp_path / "cpu.safetensors").read_bytes()
    on_cpu = made(torch.nn.Linear, "cpu")
    load_float8_checkpoint(on_cpu, tmp_path / "cpu.safetensors", layers=kind)
    x = inputs()
    expected = on_cpu(x)
    for device in ("cuda", "meta"):
        loaded = made(torch.nn.Linear, device)
        report = load_float8_checkpoint(loaded, tmp_path / "cpu.safetensors", layers=kind, device="cuda")
        assert report.layers == ("0",) and all(each.is_cuda for each in loaded.state_dict().values())
        assert torch.equal(loaded[0].dequantize().cpu(), on_cpu[0].dequantize())
        for name, tensor in loaded[1].named_parameters():
            assert torch.equal(tensor.cpu(), on_cpu[1].get_parameter(name))
        assert close(loaded(x.cuda()), expected, 0.06)
    other = made(torch.nn.Linear, "cuda")
    other.register_buffer("missing", torch.ones(1, device="cuda"))
    before = {name: (id(each), each.clone()) for name, each in other.state_dict(keep_vars=True).items()}
    with pytest.raises(ingot.Error, match="lacks missing"):
        load_float8_checkpoint(other, tmp_path / "cpu.safetensors", layers=kind)
    after = other.state_dict(keep_vars=True)
    assert all(id(after[name]) == at and torch.equal(after[name], value) for name, (at, value) in before.items())

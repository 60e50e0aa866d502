"""ingot.torch on a GPU: the CPU's values, PyTorch's streams, memory and graphs."""

import gc
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import torch._inductor.config
from gpu_memory import check_memory_is_pytorchs

import ingot.nn
import ingot.torch
from ingot.torch import LinearOptions, linear
from torch_module_cases import sqnr

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SIZES = [(64, 96, 80), (3000, 512, 1024), (17, 33, 49), (256, 256, 256)]


def tensors(m, k, n, dtype=torch.bfloat16, device="cpu"):
    generator = torch.Generator().manual_seed(m)
    make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype).to(device).requires_grad_()
    return make(m, k), make(n, k), make(n)


def step(x, w, b, options, grad_output):
    y = linear(x, w, b, options)
    return [y.detach(), *torch.autograd.grad(y, (x, w, b), grad_output)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_values_are_the_cpus(recipe, size, dtype):
    """Codes have the same bits, so only sums differ, in their order and, with fast accumulation, in their bits."""
    on_cpu = tensors(*size, dtype)
    on_gpu = [t.detach().cuda().requires_grad_() for t in on_cpu]
    grad_output = torch.randn(size[0], size[2], generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = step(*on_cpu, LinearOptions(recipe), grad_output)
    got = step(*on_gpu, LinearOptions(recipe), grad_output.cuda())
    assert all(sqnr(e, g) > 45 for e, g in zip(expected, got, strict=True)), [
        sqnr(e, g) for e, g in zip(expected, got, strict=True)
    ]


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_gradient_of_a_sum(recipe):
    x, w, b = tensors(130, 96, 80, device="cuda")
    y = linear(x, w, b, LinearOptions(recipe))
    dense = torch.autograd.grad(y, (x, w, b), torch.ones_like(y))
    of_sum = torch.autograd.grad(linear(x, w, b, LinearOptions(recipe)).sum(), (x, w, b))
    assert all(torch.equal(a, e) for a, e in zip(of_sum, dense, strict=True))


def test_streams_and_threads():
    x, w, b = tensors(512, 256, 384, device="cuda")
    grad_output = torch.randn(512, 384, device="cuda", dtype=torch.bfloat16)
    options = LinearOptions("rowwise")
    expected = step(x, w, b, options, grad_output)
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                got = step(x, w, b, options, grad_output)
                torch.cuda.current_stream().synchronize()
                if not all(torch.equal(a, e) for a, e in zip(got, expected, strict=True)):
                    wrong.append(threading.current_thread().name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_is_pytorchs():
    """After warm steps of varying size nothing is allocated outside of PyTorch, and nothing of it is kept."""
    _, w, b = tensors(1, 1024, 1024, device="cuda")
    options = LinearOptions("rowwise")

    def steps():
        for at in range(200):
            x = torch.randn(512 + 16 * (at % 40), 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            linear(x, w, b, options).square().mean().backward()
            w.grad = b.grad = None

    steps()
    check_memory_is_pytorchs(steps)


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_graphs_of_two_streams(recipe):
    """Two captured steps, replayed at once on two streams, give what eager steps give."""
    options = LinearOptions(recipe)
    cases = [tensors(256, 512, 384, device="cuda"), tensors(192, 512, 384, device="cuda")]
    grads = [torch.randn(x.shape[0], 384, device="cuda", dtype=torch.bfloat16) for x, _, _ in cases]
    expected = [step(*case, options, grad) for case, grad in zip(cases, grads)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for case, grad in zip(cases, grads):
            step(*case, options, grad)
    torch.cuda.current_stream().wait_stream(side)
    graphs, results = [], []
    for case, grad in zip(cases, grads):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(step(*case, options, grad))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(100):
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for got, eager in zip(results, expected):
        assert all(torch.equal(a, e) for a, e in zip(got, eager, strict=True))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_folded"])
def test_a_captured_step_clears_nothing(recipe):
    """Its graph has kernels alone: what a replay needs zeros or constants for is there already. (cuBLASLt's kernels,
    which other recipes run, may have memory cleared by themselves.)"""
    x, w, b = tensors(256, 512, 384, device="cuda")
    grad = torch.randn(256, 384, device="cuda", dtype=torch.bfloat16)
    layer = ingot.nn.LayerNormLinear(512, 384, device="cuda", dtype=torch.bfloat16, recipe=recipe, activation="gelu")
    expected = gradients_of(layer, x, grad)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients_of(layer, x, grad)
    graph.replay()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert any("gemm" in name or "nvjet" in name for name in names), names
    assert not any("memset" in name.lower() or "memcpy" in name.lower() for name in names), names
    assert all(torch.equal(a, e) for a, e in zip(captured, expected, strict=True))


def gradients_of(layer, x, grad):
    return [*torch.autograd.grad(layer(x), (x, *layer.parameters()), grad)]


def test_graphs_that_come_and_go():
    """Regions of zeros of graphs that are gone serve new ones; those of live graphs are theirs alone."""
    x, w, b = tensors(256, 512, 384, device="cuda")
    grad = torch.randn(256, 384, device="cuda", dtype=torch.bfloat16)
    options = LinearOptions("tensorwise")
    expected = step(x, w, b, options, grad)

    def captured():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step(x, w, b, options, grad)
        return graph, results

    live = [captured() for _ in range(12)]
    for round in range(40):
        live[round % len(live)] = captured()
        streams = [torch.cuda.Stream() for _ in live]
        for stream, (graph, _) in zip(streams, live):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for at, (_, results) in enumerate(live):
            assert_same(results, expected, f"round {round}, graph {at}")


def test_graphs_that_are_gone_leave_no_memory():
    """Their regions of zeros, 64 KiB for each stream of a graph, are given back when the driver destroys them."""
    x, w, b = tensors(64, 256, 128, device="cuda")
    grad = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    options = LinearOptions("tensorwise")
    step(x, w, b, options, grad)

    def steps():
        for _ in range(100):  # with 6.4 MB of regions, more than the driver's unit
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(x, w, b, options, grad)
            graph.replay()
            torch.cuda.synchronize()
            del graph
        gc.collect()
        torch.cuda.empty_cache()

    steps()
    check_memory_is_pytorchs(steps)


def assert_same(got, expected, where):
    """Says which tensor differs, in how many elements and by how much."""
    for name, a, e in zip(("y", "grad x", "grad w", "grad b"), got, expected, strict=True):
        if torch.equal(a, e):
            continue
        apart = (a.float() - e.float()).abs()
        raise AssertionError(
            f"{where}: {name} {tuple(a.shape)} {a.dtype} differs in {int((a != e).sum())} of {a.numel()} elements, by "
            f"{float(apart.max())} at most; it has {int(a.isnan().sum())} NaN and {int((a == 0).sum())} zeros"
        )


@pytest.mark.parametrize("steps", [1, 6, 100])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "high_precision"])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_compiled(mode, recipe, steps):
    """With "reduce-overhead" a first call warms up, a second captures, and the others replay the graph."""
    torch._dynamo.reset()
    x, w, b = tensors(256, 512, 384, device="cuda")
    options = LinearOptions(recipe)
    compiled = torch.compile(lambda x: linear(x, w, b, options), mode=mode, fullgraph=True)
    grad_output = torch.randn(256, 384, device="cuda", dtype=torch.bfloat16)
    expected = step(x, w, b, options, grad_output)
    # If PyTorch finds memory in a graph's pool that it does not know, its message then says who allocated it.
    with torch._inductor.config.patch({"triton.cudagraph_trees_history_recording": True}):
        for at in range(steps):
            torch.compiler.cudagraph_mark_step_begin()
            y = compiled(x)
            got = [y.detach().clone(), *(each.clone() for each in torch.autograd.grad(y, (x, w, b), grad_output))]
            del y
            assert_same(got, expected, f"{mode} {recipe}, step {at} of {steps}")


def test_side_streams_keep_no_memory():
    """What a call on another stream than the default one takes goes back with it: it may be of a graph's pool."""
    x, w, b = tensors(256, 512, 384, device="cuda")
    grad_output = torch.randn(256, 384, device="cuda", dtype=torch.bfloat16)
    options = LinearOptions("rowwise")
    expected = step(x, w, b, options, grad_output)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()):
            got = step(x, w, b, options, grad_output)
            torch.cuda.current_stream().synchronize()
            assert_same(got, expected, "side stream")
            del got
            # Autograd's thread lets go of the gradients after backward() has returned, on a busy machine later.
            until = time.monotonic() + 5
            while torch.cuda.memory_allocated() != allocated and time.monotonic() < until:
                time.sleep(0.01)
            assert torch.cuda.memory_allocated() == allocated


def test_messages():
    x, w, b = tensors(16, 32, 48, device="cuda")
    with pytest.raises(ingot.Error, match='linear "wq" weight: is on cpu and the input on cuda:0: move one with .to()'):
        linear(x, w.cpu(), b, LinearOptions(name="wq"))

"""ingot.torch.norm_linear, mlp and shared_linear on a GPU: the CPU's values, PyTorch's memory and graphs."""

import pytest

torch = pytest.importorskip("torch")
from gpu_memory import check_memory_is_pytorchs
from torch_module_cases import CASES, FEW, K, equal, sqnr, step

import ingot.torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def on_gpu(tensors):
    return {name: t if t is None else t.detach().cuda().requires_grad_() for name, t in tensors.items()}


@pytest.mark.parametrize(
    "recipe, case",
    [(recipe, case) for recipe in ingot.torch.RECIPES for case in CASES if case in FEW or recipe == "rowwise"],
)
def test_values_are_the_cpus(recipe, case):
    """Sums differ, in their order and, with fast accumulation, in their bits. Results of GEMMs and norms are
    cast again, where a code may differ: then by about FP8's own rounding."""
    _, ours, tensors = CASES[case](recipe, rows=(3, 50))
    expected, grad_outputs = step(ours, tensors)
    got, _ = step(ours, on_gpu(tensors), [grad.cuda() for grad in grad_outputs])
    assert all(t.is_cuda for t in got)
    decibels = [sqnr(e.double(), g.cpu()) for e, g in zip(expected, got, strict=True)]
    assert all(each > 24 for each in decibels), decibels


@pytest.mark.parametrize("case", [*FEW, "rms_norm_gate_and_up"])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "blockwise"])
def test_graph(recipe, case):
    """A captured step, replayed with other values, gives what an eager step gives."""
    _, ours, tensors = CASES[case](recipe, rows=(256,))
    tensors = on_gpu(tensors)
    _, grad_outputs = step(ours, tensors)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(ours, tensors, grad_outputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results, _ = step(ours, tensors, grad_outputs)
    with torch.no_grad():
        tensors["x"].mul_(0.7).add_(0.1)
    for _ in range(20):
        graph.replay()
    expected, _ = step(ours, tensors, grad_outputs)
    torch.cuda.synchronize()
    assert equal(results, expected)


@pytest.mark.parametrize("case", FEW)
def test_memory_is_pytorchs(case):
    """After warm steps of varying size nothing is allocated outside of PyTorch, and nothing of it is kept."""
    _, ours, tensors = CASES[case]("rowwise")
    tensors = on_gpu(tensors)

    def steps():
        for at in range(60):
            x = torch.randn(512 + 16 * (at % 10), K, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            step(ours, {**tensors, "x": x})

    steps()
    check_memory_is_pytorchs(steps)


@pytest.mark.parametrize("case", FEW)
def test_compiled_with_graphs(case):
    torch._dynamo.reset()
    _, ours, tensors = CASES[case]("tensorwise", rows=(256,))
    tensors = on_gpu(tensors)
    expected, grad_outputs = step(ours, tensors)
    compiled = torch.compile(ours, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        outputs = compiled(**tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        kept = [y.detach().clone() for y in outputs]
        grads = torch.autograd.grad(outputs, [t for t in tensors.values() if t is not None], grad_outputs)
        assert equal([*kept, *grads], expected)


def test_messages():
    _, ours, tensors = CASES["rms_norm"]("rowwise")
    with pytest.raises(ingot.Error, match='RMSNorm linear "case" norm weight: is on cpu and the input on cuda:0'):
        ours(**{**on_gpu(tensors), "gamma": tensors["gamma"]})

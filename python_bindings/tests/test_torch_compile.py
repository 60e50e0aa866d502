"""ingot.torch.linear under torch.compile: whole graphs, the same numbers, no compilation for another number of rows."""

import shutil

import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.testing import CompileCounterWithBackend

import ingot.torch
from ingot.torch import LinearOptions, linear


class Layer(torch.nn.Module):
    def __init__(self, recipe):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(32, 16))
        self.bias = torch.nn.Parameter(torch.randn(32))
        self.options = LinearOptions(recipe, name="fc")

    def forward(self, x):
        return torch.relu(linear(2 * x, self.weight, self.bias, self.options))


def step(layer, call, x):
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = call(x)
    y.sum().backward()
    return [y.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_whole_graph(recipe, backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor compiles with g++")
    torch._dynamo.reset()
    layer = Layer(recipe)
    x = torch.randn(2, 8, 16)
    expected = step(layer, layer, x)
    got = step(layer, torch.compile(layer, backend=backend, fullgraph=True), x)
    assert all(torch.equal(a, e) for a, e in zip(got, expected, strict=True))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"])
def test_rows_are_dynamic(recipe):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    layer = Layer(recipe)
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for rows in (8, 24, 40, 200):
        x = torch.randn(rows, 16)
        assert all(
            torch.equal(a, e) for a, e in zip(step(layer, compiled, x), step(layer, layer, x), strict=True)
        )
    assert counter.frame_count == 1


def test_autocast_within_a_graph():
    torch._dynamo.reset()
    layer = Layer("rowwise")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = compiled(x)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, layer(x))


def test_without_gradients():
    torch._dynamo.reset()
    layer = Layer("tensorwise")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(8, 16)
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))

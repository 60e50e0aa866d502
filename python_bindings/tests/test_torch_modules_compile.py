"""ingot's modules of several parts under torch.compile: whole graphs, the same numbers, any number of rows."""


import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch._dynamo.testing import CompileCounterWithBackend

from ingot.nn import Float8Linear, GatedMlp, LayerNormLinear, Mlp, RMSNormLinear, SharedInputLinears, shared_input
from torch_module_cases import equal


class Attention(torch.nn.Module):
    """Layers that keep their names, and share their input all the same."""

    def __init__(self, recipe):
        super().__init__()
        self.wq, self.wk = (Float8Linear(16, 24, recipe=recipe, layer_name=name) for name in ("wq", "wk"))

    def forward(self, x):
        q, k = shared_input(x, self.wq, self.wk)
        return q * k


class Product(torch.nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.layers = SharedInputLinears(16, {"q": 24, "k": 24, "v": 24}, norm="rms", recipe=recipe)

    def forward(self, x):
        q, k, v = self.layers(x)
        return q * k + v


MODULES = {
    "layer_norm": lambda recipe: LayerNormLinear(16, 32, recipe=recipe),
    "rms_norm": lambda recipe: RMSNormLinear(16, 32, bias=False, activation="sigmoid", recipe=recipe),
    "mlp": lambda recipe: Mlp(16, 48, norm="layer", recipe=recipe),
    "gated_mlp": lambda recipe: GatedMlp(16, 48, recipe=recipe),
    "silu": lambda recipe: Float8Linear(16, 32, recipe=recipe, activation="silu"),
    "shared": Product,
    "shared_input": Attention,
}


def step(module, call, x):
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    y = torch.relu(call(2 * x))
    y.sum().backward()
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in module.parameters())]


OF_EACH_KIND = ("layer_norm", "gated_mlp", "shared_input")  # a norm and a layer, an MLP, layers of one input


@pytest.mark.parametrize(
    ("which", "backend"),
    in_ci(
        lambda which, backend: which in {"eager": ["mlp"], "aot_eager": MODULES, "inductor": OF_EACH_KIND}[backend],
        MODULES,
        ["eager", "aot_eager", "inductor"],
    ),
)
def test_whole_graph(which, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = MODULES[which]("rowwise_with_gw_hp" if backend == "aot_eager" else "rowwise")
    x = torch.randn(2, 8, 16)
    expected = step(module, module, x)
    assert equal(step(module, torch.compile(module, backend=backend, fullgraph=True), x), expected)


@pytest.mark.parametrize("which", in_ci(lambda which: which in OF_EACH_KIND, MODULES))
def test_rows_are_dynamic(which):
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounterWithBackend("aot_eager")
    module = MODULES[which]("blockwise")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    for rows in (8, 24, 200):
        x = torch.randn(rows, 16)
        assert equal(step(module, compiled, x), step(module, module, x))
    assert counter.frame_count == 1


def test_any_number_of_tokens():
    """Above 4096 tokens backward casts weights again. A program is for either number, and in a graph it may be unknown."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Float8Linear(16, 16, recipe="rowwise_with_gw_hp"), Mlp(16, 32)), torch.randn(8, 16)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("tokens", max=10000)},))
    given = torch.randn(4096, 16)
    assert torch.equal(program.module()(given), model(given))
    if not hasattr(torch.fx.experimental.symbolic_shapes, "guard_or_false"):
        return  # PyTorch 2.7 knows no such question
    torch._dynamo.reset()
    compiled, grads = torch.compile(model, backend="aot_eager", fullgraph=True), []
    for call in (model, compiled):
        given = x.clone().requires_grad_()
        torch._dynamo.decorators.mark_unbacked(given, 0)
        grads.append(torch.autograd.grad(call(given).sum(), [given, *model.parameters()]))
    assert equal(*grads)


@pytest.mark.parametrize("which", in_ci(lambda which: which in OF_EACH_KIND, MODULES))
def test_without_gradients_and_with_autocast(which):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = MODULES[which]("tensorwise")
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = torch.randn(8, 16)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert compiled(x).dtype == torch.bfloat16
            assert torch.equal(compiled(x), module(x))

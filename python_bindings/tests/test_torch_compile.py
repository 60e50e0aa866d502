"""ingot.torch.linear under torch.compile: whole graphs, the same numbers, no compilation for another number of rows."""


import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import ingot.torch
from ingot.nn import Float8Linear
from ingot.torch import LinearOptions, linear
from ingot.torch import _operators as operators
from ingot.torch import _split_operators as split_operators


class Seen(TorchDispatchMode):
    """Notes the operators that run."""

    def __enter__(self):
        super().__enter__()
        self.names = []
        return self.names

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func).removesuffix(".default"))
        return func(*args, **(kwargs or {}))


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


@pytest.mark.parametrize(
    ("recipe", "backend"),
    in_ci(
        lambda recipe, backend: backend == "aot_eager" or recipe == "rowwise",
        ingot.torch.RECIPES,
        ["eager", "aot_eager", "inductor"],
    ),
)
def test_whole_graph(recipe, backend):
    torch._dynamo.reset()
    layer = Layer(recipe)
    x = torch.randn(2, 8, 16)
    expected = step(layer, layer, x)
    got = step(layer, torch.compile(layer, backend=backend, fullgraph=True), x)
    assert all(torch.equal(a, e) for a, e in zip(got, expected, strict=True))


def test_options_may_be_made_in_the_graph():
    def step(x, weight):
        with_options = linear(x, weight, None, LinearOptions("rowwise", name="made"))
        both = ingot.torch.shared_linear(x, (weight, weight), options=ingot.torch.SharedLinearOptions(names=("q", "k")))
        return (with_options, *both)

    x, weight = torch.randn(8, 16), torch.randn(32, 16)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    assert all(map(torch.equal, compiled(x, weight), step(x, weight)))


def _of_each_scale(recipe):
    return recipe in ("rowwise", "blockwise")


@pytest.mark.parametrize("recipe", in_ci(_of_each_scale, ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"]))
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


class Attention(torch.nn.Module):
    """q, k and v of one input, of different sizes; k has no bias."""

    def __init__(self, recipe):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(
            Float8Linear(16, n, bias=n != 24, recipe=recipe, layer_name=f"to {n}") for n in (32, 24, 8)
        )

    def forward(self, x):
        x = torch.relu(2 * x)
        return sum(layer(x).square().sum() for layer in self.layers)


class Graphs:
    """A backend that runs a graph as it is, and notes the operators of each."""

    def __init__(self):
        self.forward, self.backward = [], []

    def backend(self):
        def noting(into):
            def compile(graph, inputs):
                into.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
                self.outputs = [str(value) for value in graph.graph.output_node().args[0]]
                return make_boxed_func(graph.forward)

            return compile

        return aot_autograd(
            fw_compiler=noting(self.forward),
            bw_compiler=noting(self.backward),
            partition_fn=min_cut_rematerialization_partition,
        )


@pytest.mark.parametrize(
    "recipe", in_ci(_of_each_scale, ["tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise"])
)
def test_a_shared_input_is_cast_once(recipe):
    torch._dynamo.reset()
    model = Attention(recipe)
    x = torch.randn(40, 16, requires_grad=True)

    def grads(call):
        return torch.autograd.grad(call(x), (x, *model.parameters()))

    expected = grads(model)
    graphs = Graphs()
    got = grads(torch.compile(model, backend=graphs.backend(), fullgraph=True))
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-6, atol=1e-6)  # the order in which the input's gradients are added
    assert all(torch.equal(g, e) for e, g in zip(expected[1:], got[1:], strict=True))
    (forward,), (backward,) = graphs.forward, graphs.backward
    assert forward.count("ingot.quantize_input.default") == 1
    assert forward.count("ingot.quantize_weight.default") == 3
    assert forward.count("ingot.gemm_output.default") == 3
    assert backward.count("ingot.linear_backward.default") == 3
    # Codes are kept; nothing is cast again.
    assert not any("quantize" in name or "gemm" in name for name in backward)


def test_codes_are_kept_once():
    """The memory between forward and backward, of three layers with one input, compiled and from eager."""
    torch._dynamo.reset()
    model = Attention("tensorwise")
    x = torch.randn(2048, 16, requires_grad=True)

    def kept(call):
        sizes = {}

        def note(tensor):
            if tensor.dtype == torch.uint8:
                sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = call(x)
        return y, sum(sizes.values())

    eager, of_eager = kept(model)
    y, of_compiled = kept(torch.compile(model, backend="aot_eager", fullgraph=True))
    assert torch.equal(y, eager)
    assert of_compiled < of_eager / 2


def test_eager_has_one_operator_each_way():
    layer = Attention("rowwise")
    with Seen() as seen:
        layer(torch.randn(40, 16)).backward()
    names = [name for name in seen if name.startswith("ingot.")]
    assert names == 3 * ["ingot.linear_forward"] + 3 * ["ingot.linear_backward"]


@pytest.mark.parametrize(
    ("keep", "recipe"),
    in_ci(
        lambda keep, recipe: recipe == "rowwise" or (keep == 1 and recipe == "blockwise"), [0, 1], ingot.torch.RECIPES[1:]
    ),
)
def test_opcheck_of_parts(recipe, keep):
    x, w, b = torch.randn(3, 50, 96), torch.randn(80, 96), torch.randn(80)
    for bias in (None, b):
        bias_dtype = None if bias is None else torch.float32
        facts = operators.add_plan(recipe, "checked", 96, 80, torch.float32, torch.float32, bias_dtype, True)
        input_plan = split_operators.add_input_plan(facts)
        assert input_plan >= 0
        torch.library.opcheck(split_operators.quantize_input, (x, input_plan, keep))
        torch.library.opcheck(split_operators.quantize_weight, (w, facts.number))
        codes, saved = split_operators.quantize_input(x, input_plan, keep)
        operands = (x, codes, saved, split_operators.quantize_weight(w, facts.number), bias)
        torch.library.opcheck(split_operators.gemm_output, (*operands, input_plan, facts.number))
        whole = operators.linear_forward(x, w, bias, facts.number, 3 * keep)[:3]
        parts = split_operators.forward(x, w, bias, input_plan, facts.number, 3 * keep)
        assert torch.equal(parts[0], whole[0])
        if keep:
            assert torch.equal(operators.linear_backward(parts[0], x, w, *parts[1:], facts.number, 3)[0],
                               operators.linear_backward(whole[0], x, w, *whole[1:], facts.number, 3)[0])


def test_messages_of_parts():
    x, w = torch.randn(20, 96), torch.randn(80, 96)
    facts = operators.add_plan("rowwise", "wq", 96, 80, torch.float32, torch.float32, None, True)
    input_plan = split_operators.add_input_plan(facts)
    codes, saved = split_operators.quantize_input(x, input_plan, 1)
    weight = split_operators.quantize_weight(w, facts.number)
    for name, wrong in (
        ("codes", (codes[:9], saved, weight)),
        ("saved", (codes, saved[:9], weight)),
        ("weight codes", (codes, saved, weight[:9])),
    ):
        with pytest.raises(RuntimeError, match=f'linear "wq" {name}: has 9 bytes, expected [0-9]+: give what'):
            split_operators.gemm_output(x, *wrong, None, input_plan, facts.number)
    with pytest.raises(RuntimeError, match='linear "wq" weight: must be float32'):
        split_operators.quantize_weight(w.double(), facts.number)


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


SIZES = ((32, 64, 48, 2), (32, 96, 80, 3), (40, 128, 32, 4))  # rows, in_features, out_features, experts


def _of_linear(draw, m, k, n, experts):
    return ingot.torch.linear, (draw(m, k), draw(n, k))


def _of_norm_linear(draw, m, k, n, experts):
    return lambda x, gamma, weight: ingot.torch.norm_linear(x, gamma, None, weight), (draw(m, k), draw(k), draw(n, k))


def _of_grouped_linear(draw, m, k, n, experts):
    ends = torch.linspace(0, m, experts + 1).int()[1:]
    return lambda x, weight: ingot.torch.grouped_linear(x, weight, ends=ends, options=ROWS), (draw(m, k), draw(experts, n, k))


def _of_experts_mlp(draw, m, k, n, experts):
    index = torch.arange(2 * m).view(m, 2) % experts
    call = lambda x, weights, up, down: ingot.torch.experts_mlp(x, index, weights, up, down, ROWS)
    return call, (draw(m, k), draw(m, 2), draw(experts, 2 * n, k), draw(experts, k, n))


ROWS = ingot.torch.LinearOptions("rowwise", name="rows")


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("case", [_of_linear, _of_norm_linear, _of_grouped_linear, _of_experts_mlp], ids=lambda case: case.__name__)
def test_weights_of_other_sizes_have_graphs_of_their_own(case, trains):
    """From the second size on the compiler takes sizes for ones that change, but a plan is made for a weight's."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    draw = lambda *sizes: (torch.randn(*sizes, generator=generator) / 8).requires_grad_(trains)
    compiled = torch.compile(lambda call, *given: call(*given), backend="aot_eager", fullgraph=True)
    for sizes in SIZES:
        call, given = case(draw, *sizes)
        exact, found = call(*given), compiled(call, *given)
        assert torch.equal(found, exact)
        if trains:
            for ours, right in zip(torch.autograd.grad(found.sum(), given), torch.autograd.grad(exact.sum(), given)):
                torch.testing.assert_close(ours, right)

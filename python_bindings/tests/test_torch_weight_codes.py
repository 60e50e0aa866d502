"""Weight codes that forward keeps for backward, or that backward makes again: the same bits, and what is an error."""

import copy
import gc
import pickle
import weakref

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")
from torch._dynamo.testing import CompileCounterWithBackend

import ingot.nn
import ingot.torch
from ingot.nn import Float8Linear, GatedMlp, RMSNormLinear, SharedInputLinears, shared_input
from ingot.torch import _linear as linear_module
from ingot.torch import _operators as operators
from torch_module_cases import CASES, FLOAT8, equal, step

RECIPES = (*ingot.torch.RECIPES, "delayed")
MANY = operators.MANY_TOKENS


def layer_of(recipe, dtype=torch.bfloat16, bias=True):
    torch.manual_seed(0)
    return Float8Linear(96, 80, bias, dtype=dtype, recipe=recipe, layer_name="fc")


def results(layer, x, grad_output=None):
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.sum().backward() if grad_output is None else y.backward(grad_output)
    return [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]


def kept_by(call, *arguments):
    """What autograd keeps of a call but parameters, each memory once: bytes by dtype."""
    kept = {}

    def note(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = (tensor.dtype, tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        call(*arguments)
    of = {}
    for dtype, count in kept.values():
        of[dtype] = of.get(dtype, 0) + count
    return of


@pytest.mark.parametrize("of_sum", [False, True])
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("float32", "float32")])
@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_are_the_same(recipe, dtypes, of_sum):
    """Weights of float32 too, and a gradient that is one element."""
    weight_dtype, input_dtype = (getattr(torch, name) for name in dtypes)
    if recipe == "high_precision" and weight_dtype != input_dtype:
        pytest.skip("its weight is converted to the input's dtype")
    x = torch.randn(3, 50, 96, dtype=input_dtype)
    grad_output = None if of_sum else torch.randn(3, 50, 80, dtype=input_dtype)
    found = []
    for keep in (True, False):
        layer = layer_of(recipe, weight_dtype)
        layer.keep_weight_codes(keep)
        found.append(results(layer, x, grad_output))
    assert equal(*found)


@pytest.mark.parametrize("recipe", FLOAT8)
@pytest.mark.parametrize("case", sorted(CASES))
def test_bits_of_modules_are_the_same(case, recipe):
    found, grads_of = [], None
    for keep in (True, False):
        _, ours, tensors = CASES[case](recipe, keep_weight_codes=keep)
        values, grads_of = step(ours, tensors, grads_of)
        found.append(values)
    assert equal(*found)


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "high_precision"])
def test_the_tokens_decide(recipe):
    """From 4096 tokens on nothing of the weight is kept."""
    layer = layer_of(recipe)
    codes = 2 * 80 * 96

    def kept(tokens):
        x = torch.zeros(tokens, 96, dtype=torch.bfloat16, requires_grad=True)
        tracked = x * 1
        return sum(kept_by(layer, tracked).values())

    per_token = 2 * 96 if recipe == "rowwise_with_gw_hp" else 96
    few, many = kept(MANY - 128), kept(MANY)
    slack = 4 * MANY + 4096  # for each token at most one scale_inv, and what is aligned
    assert per_token * MANY <= many <= per_token * MANY + slack
    kept_codes = few - many + 128 * per_token
    assert codes - 1024 <= kept_codes <= codes + 1024
    layer.keep_weight_codes(True)
    assert kept(MANY) >= per_token * MANY + codes
    layer.keep_weight_codes(False)
    assert kept(MANY - 128) < few - codes + 1024
    layer.keep_weight_codes(None)
    assert kept(MANY) == many


@pytest.mark.parametrize(
    "module",
    [
        lambda **options: Float8Linear(96, 80, **options),
        lambda **options: RMSNormLinear(96, 80, **options),
        lambda **options: GatedMlp(96, 128, **options),
        lambda **options: SharedInputLinears(96, {"q": 80, "k": 80}, **options),
        lambda recipe, dtype: GatedMlp.from_parts(
            tuple(torch.nn.Linear(96, 128, dtype=dtype) for _ in range(2)),
            torch.nn.Linear(128, 96, dtype=dtype),
            recipe=recipe,
        ),
    ],
    ids=["linear", "norm linear", "gated mlp", "shared input", "gate and up"],
)
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_folded"])
def test_every_module_has_the_option(recipe, module):
    layer = module(recipe=recipe, dtype=torch.bfloat16)
    weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)

    def kept():
        return sum(kept_by(layer, torch.zeros(8, 96, dtype=torch.bfloat16, requires_grad=True) * 1).values())

    before = kept()
    layer.keep_weight_codes(False)
    assert 2 * weights - 4096 <= before - kept() <= 2 * weights + 4096
    assert copy.deepcopy(layer).options.keep_weight_codes is False
    assert pickle.loads(pickle.dumps(layer.options)) == layer.options
    layer.keep_weight_codes()
    assert layer.options.keep_weight_codes is True and kept() == before


def test_layers_with_one_input_follow_the_first():
    layers = [layer_of("rowwise") for _ in range(3)]
    x = torch.zeros(8, 96, dtype=torch.bfloat16, requires_grad=True)
    few = sum(kept_by(shared_input, x * 1, *layers).values())
    layers[0].keep_weight_codes(False)
    assert sum(kept_by(shared_input, x * 1, *layers).values()) <= few - 3 * 2 * 80 * 96 + 2048


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "high_precision"])
def test_a_weight_must_not_change_before_backward(recipe):
    layer = layer_of(recipe)
    layer.keep_weight_codes(False)
    y = layer(torch.ones(2, 96, dtype=torch.bfloat16, requires_grad=True))
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_delayed_scales_are_those_of_forward():
    """A step between forward and backward makes new scales, with which the weight must not be cast."""
    found = []
    for keep in (True, False):
        layer = layer_of("delayed")
        layer.keep_weight_codes(keep)
        x = torch.randn(20, 96, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = layer(x)
        ingot.nn.sync_amax_history(layer)
        layer.fp8_scale[:2].mul_(0.5)
        y.float().square().sum().backward()
        found.append([y.detach(), x.grad, layer.weight.grad, layer.bias.grad])
    assert equal(*found)


# ---- a large input that is kept goes before its gradient comes -------------------------------------------------------


def noting_backward(monkeypatch, held):
    """The gradients that calls want, and whether the input of the layer is alive in each."""
    seen = []
    backward = operators.linear_backward

    def noting(*arguments):
        gc.collect()
        seen.append((arguments[-1], held() is not None))  # `wants` is the last that these calls give
        return backward(*arguments)

    monkeypatch.setattr(linear_module.ops, "linear_backward", noting)
    return seen


@pytest.mark.parametrize("recipe", ["rowwise_with_gw_hp", "high_precision"])
def test_a_large_input_is_let_go(recipe, monkeypatch):
    layer = layer_of(recipe)
    x = torch.randn(MANY, 96, dtype=torch.bfloat16, requires_grad=True)
    tracked = x * 1
    held = weakref.ref(tracked)
    seen = noting_backward(monkeypatch, held)
    y = layer(tracked)
    del tracked
    y.sum().backward()
    assert seen == [(operators.WEIGHT | operators.BIAS, True), (operators.INPUT, False)]


def test_a_retained_graph_keeps_it(monkeypatch):
    layer = layer_of("rowwise_with_gw_hp")
    x = torch.randn(MANY, 96, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x).sum()
    first = torch.autograd.grad(y, (x, *layer.parameters()), retain_graph=True)
    assert equal(first, torch.autograd.grad(y, (x, *layer.parameters())))


@pytest.mark.parametrize("main_grad", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["rowwise_with_gw_hp", "high_precision"])
def test_gradients_in_two_calls_are_the_same(recipe, main_grad, monkeypatch):
    x = torch.randn(MANY, 96, dtype=torch.bfloat16)
    grad_output = torch.randn(MANY, 80, dtype=torch.bfloat16)

    def found():
        layer = layer_of(recipe)
        if main_grad is not None:
            layer.weight.main_grad = torch.ones(80, 96, dtype=main_grad)
        values = results(layer, x, grad_output)
        return [value for value in (*values, getattr(layer.weight, "main_grad", None)) if value is not None]

    in_two = found()
    monkeypatch.setattr(linear_module.ops, "MANY_TOKENS", 10 * MANY)
    assert equal(found(), in_two)


# ---- compilers and FSDP ----------------------------------------------------------------------------------------------


# aot_eager compiles all that eager does, and more.
@pytest.mark.parametrize(
    "recipe, backend",
    in_ci(lambda recipe, backend: backend == "aot_eager" or recipe == "rowwise", RECIPES, ["eager", "aot_eager"]),
)
def test_compiled(recipe, backend):
    torch._dynamo.reset()
    layer, compiled = layer_of(recipe), layer_of(recipe)
    for each in (layer, compiled):
        each.keep_weight_codes(False)
    x, grad_output = torch.randn(40, 96, dtype=torch.bfloat16), torch.randn(40, 80, dtype=torch.bfloat16)
    compiled.compile(backend=backend, fullgraph=True)
    assert equal(results(compiled, x, grad_output), results(layer, x, grad_output))


def test_a_graph_is_compiled_again_where_tokens_become_many():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    layer = layer_of("rowwise")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for rows in (24, 4000, MANY, 5000, 100):
        x = torch.randn(rows, 96, dtype=torch.bfloat16).requires_grad_()
        found = [torch.autograd.grad(call(x).square().sum(), (x, *layer.parameters())) for call in (compiled, layer)]
        assert equal(*found)
        counts.append(counter.frame_count)
    assert counts == [1, 1, 2, 2, 2]

"""main_grad of weights of modules that compute several layers: what is added, and that nothing else changes."""

import copy

import pytest

from conftest import in_ci

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint

import ingot
import ingot.torch
from ingot.nn import Float8Linear, GatedMlp, LayerNormLinear, Mlp, RMSNormLinear, SharedInputLinears
from ingot.torch import _module_operators as operators
from torch_module_cases import PYTORCH_2_7, equal

RECIPES = ingot.torch.RECIPES
K, H = 96, 112


def gated_of_two(**options):
    dtype = options.pop("dtype")
    gate, up = (torch.nn.Linear(K, H, dtype=dtype) for _ in range(2))
    return GatedMlp.from_parts((gate, up), torch.nn.Linear(H, K, dtype=dtype), torch.nn.RMSNorm(K, dtype=dtype), **options)


MODULES = {
    "linear": lambda **options: Float8Linear(K, H, **options),
    "layer norm": lambda **options: LayerNormLinear(K, H, **options),
    "rms norm": lambda **options: RMSNormLinear(K, H, bias=False, activation="sigmoid", **options),
    "activation": lambda **options: Float8Linear(K, H, activation="silu", **options),
    "mlp": lambda **options: Mlp(K, H, norm="layer", **options),
    "gated mlp": lambda **options: GatedMlp(K, H, norm="rms", **options),
    "gated mlp of two": gated_of_two,
    "qkv": lambda **options: SharedInputLinears(K, {"q": H, "k": 16, "v": 48}, **options),
    "qk after a norm": lambda **options: SharedInputLinears(K, {"q": H, "k": 16}, norm="rms", **options),
}


def make(which, recipe, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return MODULES[which](recipe=recipe, dtype=dtype)


def weights_of(layer):
    return [parameter for parameter in layer.parameters() if parameter.dim() == 2]


def give_main_grads(layer, dtype, which=lambda at: True):
    """Returns what they begin with."""
    before = []
    for at, weight in enumerate(weights_of(layer)):
        if which(at):
            weight.main_grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(at)).to(dtype)
            before.append(weight.main_grad.clone())
    return before


def step(layer, seed, dtype=torch.bfloat16, call=None):
    """Outputs and the input's gradient. Gradients of parameters accumulate."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 40, K, generator=generator).to(torch.bfloat16).to(dtype).requires_grad_()
    outputs = (layer if call is None else call)(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = [torch.randn(y.shape, generator=generator).to(torch.bfloat16).to(dtype) for y in outputs]
    torch.autograd.backward(outputs, grads)
    return [*(y.detach() for y in outputs), x.grad]


@pytest.mark.parametrize("main", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("which", MODULES)
def test_gradients_are_added(which, recipe, main):
    """Of two batches, to what was there: as plain accumulation does with the gradients of a weight of the same bits. A
    float32 main_grad takes sums that plain accumulation would round."""
    plain, fused = make(which, recipe), make(which, recipe)
    before = give_main_grads(fused, main)
    for seed in (1, 2):
        plain.zero_grad()
        assert equal(step(plain, seed), step(fused, seed))
        for at, weight in enumerate(weights_of(plain)):
            before[at] = before[at].double() + weight.grad.double()
    for expected, weight in zip(before, weights_of(fused), strict=True):
        assert weight.grad is None and weight.main_grad.dtype == main
        error = (weight.main_grad.double() - expected).norm() / expected.norm()
        assert error < 0.006, error
    others = [p.grad for p in plain.parameters() if p.dim() == 1]
    fused.zero_grad()
    step(fused, 2)
    assert equal(others, [p.grad for p in fused.parameters() if p.dim() == 1])


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_with_gw_hp", "blockwise"])
@pytest.mark.parametrize("which", MODULES)
def test_float32_sums_are_exact(which, recipe):
    """Added to zeros of float32 with float32 weights, it is the gradient itself, to the bit."""
    plain, fused = make(which, recipe, torch.float32), make(which, recipe, torch.float32)
    for weight in weights_of(fused):
        weight.main_grad = torch.zeros_like(weight)
    assert equal(step(plain, 1, torch.float32), step(fused, 1, torch.float32))
    assert equal([w.grad for w in weights_of(plain)], [w.main_grad for w in weights_of(fused)])


CALLS = {
    "eager": lambda layer: layer,
    "compiled": lambda layer: torch.compile(layer, backend="aot_eager", fullgraph=True),
    "checkpointed": lambda layer: lambda x: checkpoint(layer, x, use_reentrant=False),
}


@pytest.mark.parametrize(
    ("which", "how"),
    in_ci(lambda which, how: how != "compiled" or which in ("linear", "gated mlp of two", "qkv"), MODULES, CALLS),
)
def test_gradients_asked_for_in_parts(which, how):
    """As pipelines do that compute inputs' gradients first and weights' later: a weight's is added when it is asked for.
    Of torch.autograd.grad() it is the result, and main_grad stays."""
    if how == "compiled" and PYTORCH_2_7:
        pytest.skip("PyTorch 2.7 refuses a second backward of a graph that has written main_grad")
    torch._dynamo.reset()
    for recipe in ("tensorwise",) if how == "compiled" else ("tensorwise", "high_precision"):
        plain, fused = make(which, recipe, torch.float32), make(which, recipe, torch.float32)
        weights, expected = weights_of(fused), step(plain, 1, torch.float32)
        grads = [weight.grad for weight in weights_of(plain)]
        for weight in weights:
            weight.main_grad = torch.zeros_like(weight)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(3, 40, K, generator=generator).bfloat16().float().requires_grad_()
        outputs = CALLS[how](fused)(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        of = [torch.randn(y.shape, generator=generator).bfloat16().float() for y in outputs]
        (grad,) = torch.autograd.grad(outputs, x, of, retain_graph=True)
        assert torch.equal(grad, expected[-1])
        assert not any(weight.main_grad.any() for weight in weights)
        if how == "compiled" and len(weights) > 1:  # a graph may add to copies
            with pytest.raises(RuntimeError, match="ask for all or none of them"):
                torch.autograd.backward(outputs, of, inputs=weights[:1], retain_graph=True)
        for some in [weights] if how == "compiled" else [[weight] for weight in weights]:
            torch.autograd.backward(outputs, of, inputs=some, retain_graph=True)
        assert equal([weight.main_grad for weight in weights], grads)
        got = torch.autograd.grad(outputs, weights, of, retain_graph=True, allow_unused=True)
        assert equal(got, grads) if how != "compiled" else got == (None,) * len(weights)  # a graph returns none
        assert equal([weight.main_grad for weight in weights], grads)
        torch.autograd.backward(outputs, of)
        assert torch.equal(x.grad, expected[-1])
        for weight, of_plain in zip(weights, grads):
            assert weight.grad is None
            torch.testing.assert_close(weight.main_grad, 2 * of_plain)


@pytest.mark.parametrize("which", ["mlp", "gated mlp", "gated mlp of two", "qkv", "qk after a norm"])
@pytest.mark.parametrize("chosen", [0, 1])
def test_some_weights_may_have_none(which, chosen):
    plain, fused = make(which, "rowwise"), make(which, "rowwise")
    give_main_grads(fused, torch.float32, lambda at: at == chosen)
    assert equal(step(plain, 1), step(fused, 1))
    for at, (expected, weight) in enumerate(zip(weights_of(plain), weights_of(fused), strict=True)):
        if at == chosen:
            assert weight.grad is None
        else:
            assert torch.equal(weight.grad, expected.grad)


@pytest.mark.parametrize("which", MODULES)
def test_frozen_weights_and_no_grad_leave_it(which):
    layer = make(which, "rowwise")
    before = give_main_grads(layer, torch.float32)
    with torch.no_grad():
        layer(torch.randn(8, K, dtype=torch.bfloat16))
    for weight in weights_of(layer):
        weight.requires_grad_(False)
    step(layer, 1)
    assert equal(before, [weight.main_grad for weight in weights_of(layer)])


@pytest.mark.parametrize("which", MODULES)
def test_megatrons_flags(which):
    """Those of the parameter, with a float32 one under autocast too, of which a GEMM in high precision takes a copy."""
    for recipe, dtype in (("tensorwise", torch.bfloat16), ("tensorwise", torch.float32), ("high_precision", torch.float32)):
        layer = make(which, recipe, dtype)
        before = give_main_grads(layer, torch.float32)
        seen = []
        for weight in weights_of(layer):
            weight.grad_added_to_main_grad, weight.zero_out_wgrad = False, True
            weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad_added_to_main_grad))
        with torch.autocast("cpu", torch.bfloat16):
            step(layer, 1)
        assert seen == [True] * len(weights_of(layer))
        assert all(not weight.grad.any() and weight.grad.dtype == dtype for weight in weights_of(layer))
        assert not any(map(torch.equal, before, [weight.main_grad for weight in weights_of(layer)]))


# aot_eager compiles all that eager does, and more.
@pytest.mark.parametrize(
    "which, backend",
    in_ci(lambda which, backend: backend == "aot_eager" or which == "mlp", MODULES, ["eager", "aot_eager"]),
)
def test_compiled(which, backend):
    torch._dynamo.reset()
    layer = make(which, "rowwise")
    compiled = copy.deepcopy(layer)
    for each in (layer, compiled):
        give_main_grads(each, torch.float32)
    call = torch.compile(compiled, backend=backend, fullgraph=True)
    for seed in (1, 2):
        assert equal(step(compiled, seed, call=call), step(layer, seed))
    assert equal([w.main_grad for w in weights_of(compiled)], [w.main_grad for w in weights_of(layer)])
    assert all(weight.grad is None for weight in weights_of(compiled))


def test_the_operators_say_what_they_change():
    """Each writes the main_grads and nothing else."""
    dtype = torch.float32
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    x, up, down = torch.randn(20, K), torch.randn(H, K), torch.randn(K, H)
    layers = operators.Layer(H, K, dtype, None), operators.Layer(K, H, dtype, None)
    no_activation, relu = operators.Activation(""), operators.Activation("relu(x)")
    plan, _ = operators.add_plan("norm_linear", "s", ("n",), "rowwise", no_activation, None, False, dtype, True, layers[:1])
    check = lambda of, arguments, **written: torch.library.opcheck(
        of.backward_in_place, arguments, written, test_utils=checks
    )
    wants = operators.INPUT | operators.WEIGHT
    y, saved = operators.NORM_LINEAR.forward(x, None, None, up, None, plan, 3)
    check(operators.NORM_LINEAR, (y, x, None, up, y, saved, plan, wants), main_grad=torch.zeros(H, K))
    plan, _ = operators.add_plan("mlp", "s", ("n",), "rowwise", relu, None, False, dtype, True, layers)
    y, saved = operators.MLP.forward(x, None, None, up, None, down, None, plan, 3)
    wants |= operators.of_layer(operators.WEIGHT, 1)
    check(operators.MLP, (y, x, None, up, down, saved, plan, wants), up_main_grad=torch.zeros(H, K))
    two = (layers[0], layers[0])
    plan, _ = operators.add_plan("shared_linear", "s", ("q", "k"), "rowwise", None, None, False, dtype, True, two)
    q, k, _, saved = operators.SHARED_LINEAR.forward(x, None, None, up, None, up, None, None, None, plan, 3)
    arguments = (q, k, None, x, None, up, up, None, saved, plan, wants)
    check(operators.SHARED_LINEAR, arguments, main_grad0=torch.zeros(H, K))


@pytest.mark.parametrize(
    "which, subject",
    [
        ("layer norm", 'LayerNorm linear "norm_linear"'),
        ("mlp", 'MLP "mlp" up weight'),
        ("gated mlp of two", 'linear "mlp.gate"'),
        ("qkv", 'linear "q"'),
    ],
)
def test_messages(which, subject):
    layer = make(which, "rowwise")
    (weight, *_) = weights_of(layer)
    x = torch.randn(8, K, dtype=torch.bfloat16, requires_grad=True)
    weight.main_grad = torch.zeros(3, 4)
    with pytest.raises(ingot.Error, match=rf"{subject} main_grad: is torch.float32 of shape \(3, 4\), expected float32"):
        layer(x)
    weight.main_grad = torch.zeros(weight.shape, device="meta")
    with pytest.raises(ingot.Error, match=f"{subject} main_grad: is on meta and the weight on cpu: move one"):
        layer(x)
    weight.main_grad = torch.zeros(tuple(reversed(weight.shape))).t()
    outputs = layer(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    with pytest.raises(ingot.Error, match='" main_grad: has rows that are not contiguous: give the weight one of ordin'):
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])

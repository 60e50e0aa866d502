"""A weight's main_grad: backward adds the gradient there, as Megatron's gradient_accumulation_fusion does."""

import pytest

torch = pytest.importorskip("torch")

import ingot
import ingot.torch
from ingot.nn import Float8Linear

RECIPES = ingot.torch.RECIPES


def make(recipe, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return Float8Linear(96, 80, dtype=dtype, recipe=recipe, layer_name="fc")


def batch(seed, dtype=torch.bfloat16):
    torch.manual_seed(seed)
    return torch.randn(3, 40, 96, dtype=dtype), torch.randn(3, 40, 80, dtype=dtype)


def step(layer, x, grad_output):
    x = x.detach().clone().requires_grad_()
    layer(x).backward(grad_output)
    return x.grad


@pytest.mark.parametrize("main", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_are_added(recipe, main):
    """Of two batches, to what was there; against the sum of the gradients that a float32 weight gets."""
    plain, fused = make(recipe, torch.float32), make(recipe)
    with torch.no_grad():
        plain.weight.copy_(fused.weight)
        plain.bias.copy_(fused.bias)
    before = torch.randn(80, 96).to(main)
    fused.weight.main_grad = before.clone()
    for seed in (1, 2):
        x, grad_output = batch(seed)
        step(plain, x.float(), grad_output.float())
        step(fused, x, grad_output)
    expected = before.double() + plain.weight.grad.double()
    error = (fused.weight.main_grad.double() - expected).norm() / expected.norm()
    assert error < 0.006, error
    assert fused.weight.grad is None
    assert fused.weight.main_grad.dtype == main
    assert torch.allclose(fused.bias.grad.float(), plain.bias.grad, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_other_gradients_are_the_same(recipe):
    plain, fused = make(recipe), make(recipe)
    fused.weight.main_grad = torch.zeros(80, 96)
    x, grad_output = batch(1)
    assert torch.equal(step(fused, x, grad_output), step(plain, x, grad_output))
    assert torch.equal(fused.bias.grad, plain.bias.grad)
    assert torch.allclose(fused.weight.main_grad, plain.weight.grad.float(), rtol=0.01, atol=1e-2)


def test_several_forwards_before_a_backward():
    layer = make("rowwise")
    layer.weight.main_grad = torch.zeros(80, 96)
    batches = [batch(seed) for seed in (1, 2)]
    outputs = [layer(x) for x, _ in batches]
    for y, (_, grad_output) in zip(outputs, batches):
        y.backward(grad_output)
    other = make("rowwise")
    other.weight.main_grad = torch.zeros(80, 96)
    for x, grad_output in batches:
        other(x).backward(grad_output)
    assert torch.equal(layer.weight.main_grad, other.weight.main_grad)


def test_frozen_weights_and_no_grad_leave_it():
    layer = make("rowwise")
    layer.weight.main_grad = torch.zeros(80, 96)
    layer.weight.requires_grad_(False)
    step(layer, *batch(1))
    with torch.no_grad():
        layer(batch(1)[0])
    assert not layer.weight.main_grad.any()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    torch._dynamo.reset()
    layer, compiled = make("rowwise"), make("rowwise")
    for each in (layer, compiled):
        each.weight.main_grad = torch.ones(80, 96)
    call = torch.compile(compiled, backend=backend, fullgraph=True)
    for seed in (1, 2):
        x, grad_output = batch(seed)
        assert torch.equal(step(call, x, grad_output), step(layer, x, grad_output))
    assert torch.equal(compiled.weight.main_grad, layer.weight.main_grad)
    assert compiled.weight.grad is None


def test_the_operator_says_what_it_changes():
    from ingot.torch import _operators as operators

    facts = operators.add_plan("tensorwise", "fc", 96, 80, torch.bfloat16, torch.bfloat16, None, True)
    x, grad_output = batch(1)
    weight = torch.randn(80, 96, dtype=torch.bfloat16)
    _, saved, codes, _ = operators.linear_forward(x, weight, None, facts.number, 3)
    arguments = (grad_output, x, weight, saved, codes, facts.number, 3)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for written in ({"main_grad": torch.zeros(80, 96)}, {}):
        torch.library.opcheck(operators.linear_backward_in_place, arguments, written, test_utils=checks)


def test_messages():
    layer = make("rowwise")
    layer.weight.main_grad = torch.zeros(80, 95)
    with pytest.raises(ingot.Error, match=r'linear "fc" main_grad: is torch.float32 of shape \(80, 95\), expected'):
        layer(batch(1)[0])
    layer.weight.main_grad = torch.zeros(80, 96, device="meta")
    with pytest.raises(ingot.Error, match='linear "fc" main_grad: is on meta and the weight on cpu: move one'):
        layer(batch(1)[0])
    layer.weight.main_grad = torch.zeros(96, 80).t()
    x = batch(1)[0].requires_grad_()
    with pytest.raises(ingot.Error, match='linear "fc" main_grad: has rows that are not contiguous'):
        layer(x).sum().backward()

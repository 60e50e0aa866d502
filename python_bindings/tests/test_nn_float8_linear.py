"""ingot.nn.Float8Linear: a torch.nn.Linear in all but its GEMMs."""

import io

import pytest

torch = pytest.importorskip("torch")

import ingot.torch
from ingot.nn import Float8Linear
from torch_module_cases import equal


def step(layer, x):
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Float8Linear(24, 40, recipe="rowwise", layer_name="fc")


X = torch.linspace(-3, 2, 5 * 24).reshape(5, 24)


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_function(recipe, bias):
    layer = Float8Linear(24, 40, bias=bias, recipe=recipe)
    y = ingot.torch.linear(X, layer.weight, layer.bias, ingot.torch.LinearOptions(recipe))
    assert torch.equal(layer(X), y)


def test_checkpoints_are_those_of_nn_linear(layer):
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    plain = torch.nn.Linear(24, 40)
    plain.load_state_dict(state, strict=True)
    other = Float8Linear(24, 40, recipe="rowwise")
    other.load_state_dict(plain.state_dict(), strict=True)
    assert equal(step(other, X), step(layer, X))


def test_from_float_keeps_everything():
    plain = torch.nn.Linear(24, 40, dtype=torch.bfloat16).eval()
    plain.weight.requires_grad_(False)
    calls = []
    plain.register_forward_hook(lambda *_: calls.append(1))
    plain.mark = "mine"
    layer = Float8Linear.from_float(plain, "blockwise", "head")
    assert layer.weight is plain.weight
    assert (layer.training, layer.mark, layer.options.name) == (False, "mine", "head")
    layer(X.bfloat16())
    assert calls == [1]
    assert "recipe=blockwise" in repr(layer)


def test_meta_then_memory():
    layer = Float8Linear(24, 40, device="meta")
    assert layer(torch.empty(3, 24, device="meta")).shape == (3, 40)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(X).shape == (5, 40)


def test_a_layer_called_twice(layer):
    (layer(X).square().sum() + layer(2 * X).square().sum()).backward()
    together = layer.weight.grad.clone()
    assert torch.allclose(together, step(layer, X)[2] + step(layer, 2 * X)[2], rtol=1e-6)


def test_trains():
    torch.manual_seed(0)
    target = torch.randn(64, 24) @ torch.randn(24, 40)
    x = torch.randn(64, 24)
    losses = {}
    for recipe in ingot.torch.RECIPES:
        torch.manual_seed(1)
        layer = Float8Linear(24, 40, recipe=recipe)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            loss = (layer(x) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses[recipe] = loss.item()
    assert all(loss < 1.3 * losses["high_precision"] for loss in losses.values()), losses


def test_messages(layer):
    with pytest.raises(ingot.Error, match=r'linear "fc" input: has shape \(5, 23\), expected \(\.\.\., 24\)'):
        layer(X[:, :23])
    with pytest.raises(ingot.Error, match="recipe: 'rowwize' is not one of"):
        Float8Linear(24, 40, recipe="rowwize")
    with pytest.raises(ingot.Error, match="Float8Linear.from_float: takes a torch.nn.Linear, got a ReLU"):
        Float8Linear.from_float(torch.nn.ReLU())


def test_a_dtype_that_no_gemm_takes():
    with pytest.raises(ingot.Error, match='Float8Linear "wq" dtype: is torch.float64, expected float32, float16 or bfloat16'):
        ingot.nn.Float8Linear(16, 16, dtype=torch.float64, layer_name="wq")

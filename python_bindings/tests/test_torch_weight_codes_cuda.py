"""On a GPU: kept and remade weight codes give the same bits, and gradients are added to main_grad."""

import pytest

torch = pytest.importorskip("torch")

import ingot.torch
from ingot.nn import Float8Linear
from test_nn_main_grad_modules import MODULES, weights_of
from torch_module_cases import CASES, equal, step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

RECIPES = (*ingot.torch.RECIPES, "delayed")


def on_gpu(tensors):
    return {name: t if t is None else t.detach().cuda().requires_grad_() for name, t in tensors.items()}


@pytest.mark.parametrize("tokens", [150, 4096])
@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_are_the_same(recipe, tokens):
    found = []
    for keep in (True, False):
        torch.manual_seed(0)
        layer = Float8Linear(512, 768, device="cuda", dtype=torch.bfloat16, recipe=recipe)
        layer.keep_weight_codes(keep)
        x = torch.randn(tokens, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        y = layer(x)
        y.backward(torch.randn_like(y))
        found.append([y.detach(), x.grad, layer.weight.grad, layer.bias.grad])
    assert equal(*found)


@pytest.mark.parametrize("rows", [150, 4096])
@pytest.mark.parametrize("case", ["rms_norm", "rms_norm_gated_mlp", "rms_norm_gate_and_up", "shared"])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"])
def test_bits_of_modules_are_the_same(recipe, case, rows):
    found, grads_of = [], None
    for keep in (True, False):
        _, ours, tensors = CASES[case](recipe, rows=(rows,), keep_weight_codes=keep)
        values, grads_of = step(ours, on_gpu(tensors), grads_of)
        found.append(values)
    assert equal(*found)


@pytest.mark.parametrize("main", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_with_gw_hp", "blockwise"])
@pytest.mark.parametrize("which", MODULES)
def test_gradients_are_added(which, recipe, main):
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        layer = MODULES[which](recipe=recipe, dtype=torch.bfloat16).cuda()
        if fused:
            for weight in weights_of(layer):
                weight.main_grad = torch.ones(weight.shape, dtype=main, device="cuda")
        for seed in (1, 2):
            torch.manual_seed(seed)
            outputs = layer(torch.randn(300, 96, device="cuda", dtype=torch.bfloat16))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.autograd.backward(outputs, [torch.randn_like(y) for y in outputs])
        found.append([weight.main_grad if fused else 1 + weight.grad.float() for weight in weights_of(layer)])
    for expected, got in zip(*found, strict=True):
        error = (got.double() - expected.double()).norm() / expected.double().norm()
        assert got.dtype == main and error < 0.01, error

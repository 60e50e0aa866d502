"""ingot.torch.norm_linear, mlp and shared_linear: every error is one sentence that names the layer."""

import pytest

torch = pytest.importorskip("torch")

import ingot.torch
from ingot.nn import RMSNormLinear
from ingot.torch import LinearError, MlpOptions, NormLinearOptions, NormOptions, mlp, norm_linear, shared_linear
from ingot.torch import _module_operators as operators


def message(call):
    with pytest.raises(LinearError) as caught:
        call()
    assert isinstance(caught.value, ingot.Error)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def test_messages_of_norm_linear():
    x, gamma, w = torch.randn(5, 16), torch.ones(16), torch.randn(8, 16)
    named = NormLinearOptions("rowwise", "wq")
    prefix = 'RMSNorm linear "wq" '
    text = message(lambda: torch.fx.symbolic_trace(RMSNormLinear(16, 8)))
    assert "is traced by torch.fx, which cannot look into a layer: make the layer a leaf" in text
    text = message(lambda: norm_linear(x[:, :9], gamma, None, w, None, named))
    assert text == prefix + "input: has shape (5, 9), expected (..., 16)"
    text = message(lambda: norm_linear(x, gamma[:3], None, w, None, named))
    assert text == prefix + "norm weight: has shape (3,), expected (16,)"
    text = message(lambda: norm_linear(x, gamma, gamma, w, None, named))
    assert text == prefix + "norm bias: is given, but an RMSNorm has none"
    text = message(lambda: norm_linear(x, gamma.half(), None, w, None, named))
    assert text == (
        prefix + "norm weight: is torch.float16 with an input of torch.float32, expected that dtype or float32: "
        "convert one with .to()"
    )
    text = message(lambda: norm_linear(x, gamma.to("meta"), None, w, None, named))
    assert text.startswith(prefix + "norm weight: is on meta and the input on cpu: load its values")
    layer = NormLinearOptions("rowwise", "wq", NormOptions("layer"))
    text = message(lambda: norm_linear(x, None, gamma, w, None, layer))
    assert text == 'LayerNorm linear "wq" norm bias: is given, but a norm without weight has none'
    text = message(lambda: norm_linear(x.double(), gamma, None, w, None, named))
    assert "input: is torch.float64, expected float32, float16 or bfloat16: convert it with .to()" in text
    assert "recipe: 'delay' is not one of high_precision" in message(lambda: NormLinearOptions("delay"))
    assert message(lambda: NormOptions("batch")) == "norm kind: 'batch' is not one of \"layer\", \"rms\""
    unknown = message(lambda: NormLinearOptions("rowwise", "wq", None, "sillu"))
    assert unknown.startswith('linear "wq" activation: "sillu" is no function; expected one of exp')
    assert message(lambda: NormLinearOptions("rowwise", "wq", None, "silu(x) * up")) == (
        'linear "wq" activation: "silu(x) * up" must be an expression of x alone, such as silu(x): apply what needs '
        "other tensors after the layer"
    )


def test_messages_of_gradients():
    x, gamma, w = torch.randn(5, 16, requires_grad=True), torch.ones(16), torch.randn(8, 16)
    named = NormLinearOptions("rowwise", "wq")
    text = message(lambda: torch.autograd.grad(norm_linear(x, gamma, None, w, None, named).sum(), x, create_graph=True))
    assert text == (
        'RMSNorm linear "wq" backward: the gradient of an FP8 GEMM has no gradient itself (create_graph=True): use '
        "PyTorch's own modules for this layer"
    )
    text = message(lambda: torch.vmap(lambda row: norm_linear(row, gamma, None, w, None, named))(x))
    assert text == (
        'RMSNorm linear "wq" cannot run under torch.func transforms (vmap, grad, jvp) and in forward mode: give it the '
        "whole batch, which may have any rank, and take its gradients by backward() or torch.autograd.grad()"
    )


def test_messages_of_mlp():
    x, up, down = torch.randn(5, 16), torch.randn(24, 16), torch.randn(16, 12)
    named = MlpOptions("rowwise", "mlp")
    prefix = 'MLP "mlp" '
    assert message(lambda: mlp(x, up, down[:9], options=named)) == (
        prefix + "down weight: has shape (9, 12), expected (16, hidden): its output has as many features as the input"
    )
    assert message(lambda: mlp(x, up[:12], down, options=named)) == (
        prefix + "up weight: has shape (12, 16) with a down weight of (16, 12), expected twice as many rows, the "
        "gate's and then the others"
    )
    assert message(lambda: mlp(x, up, down, torch.zeros(24), options=named)) == (
        prefix + "bias: only one of the two layers has one: give both one, of zeros perhaps, or neither"
    )
    assert message(lambda: mlp(x, up, down.bfloat16(), options=named)) == (
        prefix + "down weight: is torch.bfloat16, but that of up is torch.float32: convert one with .to()"
    )
    assert message(lambda: mlp(x, up[0], down, options=named)) == (
        prefix + "up weight: has shape (16,), expected (out_features, in_features)"
    )
    assert "must be an expression of x" in message(lambda: MlpOptions(activation="silu(x) * z"))
    assert message(lambda: MlpOptions(activation="silu(x)")) == (
        prefix + "activation: 'silu(x)' has no `up`, which a gated MLP multiplies: change it, or gated"
    )
    assert message(lambda: MlpOptions(gated=False, activation="silu(x) * up")) == (
        prefix + "activation: 'silu(x) * up' has `up`, which only a gated MLP has: change it, or gated"
    )


def test_messages_of_shared_linear():
    x, w = torch.randn(5, 16), torch.randn(8, 16)
    assert message(lambda: shared_linear(x, [w])) == (
        'shared input of linear "q", linear "k", linear "v" has 1 weight, 1 bias and 3 names, expected two or three '
        "of each; None stands for a bias that a layer lacks"
    )
    assert message(lambda: shared_linear(x, [w, w, w[:, :9]])) == (
        'linear "v" input: has shape (5, 16), expected (..., 9)'
    )


def test_messages_of_operators():
    x, gamma, w = torch.randn(20, 16), torch.ones(16), torch.randn(8, 16)
    layer = operators.Layer(8, 16, torch.float32, None)
    norm = operators.Norm("rms", "1e-05", False)
    no_activation, silu = operators.Activation(""), operators.Activation("silu(x) * up")
    plan, _ = operators.add_plan("norm_linear", "layer", ("wq",), "rowwise", no_activation, norm, True, torch.float32, True, (layer,))
    _, saved = operators.NORM_LINEAR.forward(x, gamma, gamma, w, w, plan, 3)
    with pytest.raises(RuntimeError, match="this process has no plan of this number"):
        operators.NORM_LINEAR.forward(x, gamma, gamma, w, w, 12345, 3)
    with pytest.raises(RuntimeError, match="saved: has 7 bytes, but a forward of this plan and size leaves"):
        operators.NORM_LINEAR.backward(torch.randn(20, 8), x, gamma, w, w, saved[:7].clone(), plan, 1)
    layers = (operators.Layer(24, 16, torch.float32, None), operators.Layer(16, 12, torch.float32, None))
    plan, _ = operators.add_plan("mlp", "mlp", ("mlp",), "rowwise", silu, None, False, torch.float32, True, layers)
    with pytest.raises(RuntimeError, match="saved: has 0 bytes, but a forward"):
        operators.MLP.backward(x, x, x, x, x, saved[:0].clone(), plan, 1)

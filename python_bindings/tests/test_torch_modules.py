"""ingot.torch.norm_linear, mlp and shared_linear: values against float64, and the bits of separate layers."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch_module_cases import CASES, FEW, FLOAT8, K, RMS, equal, in_float64, mlp_case, norm_linear_case, shared_case
from torch_module_cases import sqnr, step

import ingot.torch
from ingot.torch import LinearOptions, NormLinearOptions, linear, norm_linear


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_values_and_gradients(recipe, case):
    """Against float64, by the bounds of torchao's own tests; gradients but the weights' by the output's."""
    expected, ours, tensors = CASES[case](recipe)
    got, grad_outputs = step(ours, tensors)
    exact = in_float64(expected, tensors, grad_outputs)
    outputs = len(grad_outputs)
    names = [f"output {at}" for at in range(outputs)] + [name for name, t in tensors.items() if t is not None]
    least = {True: (40, 35), False: (18, 17)}[recipe == "high_precision"]
    for at, (name, e, a) in enumerate(zip(names, exact, got, strict=True)):
        assert a.shape == e.shape, name
        assert sqnr(e, a) >= least[at >= outputs], (name, sqnr(e, a))
    kept = [t for t in tensors.values() if t is not None]
    assert [t.dtype for t in got[outputs:]] == [t.dtype for t in kept]


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("recipe", FLOAT8)
def test_float32_parameters_beside_bfloat16_inputs(recipe, case):
    expected, ours, tensors = CASES[case](recipe, master=torch.float32)
    got, grad_outputs = step(ours, tensors)
    assert got[0].dtype == torch.bfloat16
    parameters = [name for name, t in tensors.items() if t is not None]
    assert [t.dtype for t in got[len(grad_outputs) :]] == [tensors[name].dtype for name in parameters]
    for e, a in zip(in_float64(expected, tensors, grad_outputs), got, strict=True):
        assert sqnr(e, a) >= 17


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("case", FEW)
def test_other_dtypes(case, dtype):
    expected, ours, tensors = CASES[case]("rowwise", dtype=dtype)
    got, grad_outputs = step(ours, tensors)
    assert {t.dtype for t in got} == {dtype}
    assert all(sqnr(e, a) >= 17 for e, a in zip(in_float64(expected, tensors, grad_outputs), got, strict=True))


# ---- equal bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_shared_input_has_the_bits_of_separate_layers(recipe, count):
    """In float32 the input's gradient too, which autograd adds in the same order."""
    _, ours, tensors = shared_case(recipe, count=count, dtype=torch.float32)

    def apart(x, gamma, beta, **of):
        options = LinearOptions(recipe)
        return tuple(linear(x, of[f"w{at}"], of["b0"] if at == 0 else None, options) for at in range(count))

    got, grad_outputs = step(ours, tensors)
    expected, _ = step(apart, tensors, grad_outputs)
    assert equal(got, expected)


@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_shared_norm_has_the_bits_of_separate_norms(recipe):
    _, ours, tensors = shared_case(recipe, norm=RMS)

    def apart(x, gamma, beta, **of):
        options = NormLinearOptions(recipe, norm=RMS)
        return tuple(
            norm_linear(x, gamma, beta, of[f"w{at}"], of["b0"] if at == 0 else None, options) for at in range(3)
        )

    got, grad_outputs = step(ours, tensors)
    expected, _ = step(apart, tensors, grad_outputs)
    outputs_and_weights = lambda all: [*all[:3], *all[-4:]]
    assert equal(outputs_and_weights(got), outputs_and_weights(expected))


@pytest.mark.parametrize("recipe", FLOAT8)
def test_activation_has_the_bits_of_one_behind_the_layer(recipe):
    """max(x, 0) commutes with rounding, and so does its gradient."""
    _, ours, tensors = norm_linear_case(recipe, norm=None, activation="relu")

    def apart(x, gamma, beta, w, b):
        return F.relu(linear(x, w, b, LinearOptions(recipe)))

    got, grad_outputs = step(ours, tensors)
    expected, _ = step(apart, tensors, grad_outputs)
    assert equal(got[:-1], expected[:-1])
    torch.testing.assert_close(got[-1], expected[-1])  # the bias' gradient, whose sum has another order


@pytest.mark.parametrize("recipe", FLOAT8)
def test_mlp_has_the_bits_of_its_layers(recipe):
    """The first layer's output, and the activation of it in the cast of the second one's input."""
    _, ours, tensors = mlp_case(recipe, gated=False, norm=RMS, dtype=torch.float32)
    with torch.no_grad():
        options = NormLinearOptions(recipe, norm=RMS)
        t = tensors
        hidden = norm_linear(t["x"], t["gamma"], None, t["up"], t["up_bias"], options)
        expected = linear(F.gelu(hidden), t["down"], t["down_bias"], LinearOptions(recipe))
        # torch's erf differs in the last bits, which moves a code here and there.
        assert sqnr(expected.double(), ours(**tensors)) > 45


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("recipe", ["tensorwise", "blockwise"])
def test_any_rank_and_stride(recipe, case):
    _, ours, tensors = CASES[case](recipe, dtype=torch.float32, rows=(24,))
    expected, grad_outputs = step(ours, tensors)
    outputs = len(grad_outputs)
    x = tensors["x"].detach()
    turned = x.reshape(2, 3, 4, K).permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0).requires_grad_()
    assert not turned.is_contiguous()
    shaped = [grad.reshape(2, 3, 4, -1) for grad in grad_outputs]
    got, _ = step(ours, {**tensors, "x": turned}, shaped)
    assert got[0].shape[:-1] == (2, 3, 4)
    flat = [t.reshape(24, -1) for t in got[: outputs + 1]]
    assert equal([*flat, *got[outputs + 1 :]], expected)
    assert ours(**{**tensors, "x": x[0]}) is not None


@pytest.mark.parametrize("case", FEW)
def test_gradient_of_a_sum(case):
    _, ours, tensors = CASES[case]("rowwise", dtype=torch.float32)
    outputs = ours(**tensors)
    ones = [torch.ones_like(y) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]
    dense, _ = step(ours, tensors, ones)
    expanded, _ = step(ours, tensors, [torch.ones(()).expand(y.shape) for y in ones])
    assert equal(expanded, dense)


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("recipe", ingot.torch.RECIPES)
def test_only_the_gradients_that_are_wanted(recipe, case):
    _, ours, tensors = CASES[case](recipe, dtype=torch.float32)
    names = [name for name, t in tensors.items() if t is not None]
    everything, grad_outputs = step(ours, tensors)
    everything = dict(zip(names, everything[len(grad_outputs) :], strict=True))
    for wanted in ([name] for name in names):
        given = {name: t if t is None else t.detach().requires_grad_(name in wanted) for name, t in tensors.items()}
        outputs = ours(**given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, grad in zip(wanted, torch.autograd.grad(outputs, [given[n] for n in wanted], grad_outputs)):
            # Sums and products that a cast writes with its codes may be computed elsewhere.
            torch.testing.assert_close(grad, everything[name], msg=lambda text: f"{name}: {text}")

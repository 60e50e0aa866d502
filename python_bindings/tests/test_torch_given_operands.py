"""The operators of a linear layer whose input or grad_output is given as FP8 codes and scale_inv, which other ranks may have
made: the bits of the operators that cast these themselves."""

import pytest

torch = pytest.importorskip("torch")
import ingot.torch
from ingot import _core
from ingot.torch import _operators as operators
from ingot.torch._quantize_operators import FORMATS, quantize, quantize_rows
from ingot.torch._module_operators import starts_of
from ingot.torch._parallel_scales import DelayedSlot, scale_of_maximum
from ingot.torch._ranks import Ranks
from ingot.torch._schemas import BIAS, INPUT, KEEP_CODES, KEEP_SAVED, WEIGHT

K, N, TOKENS = 136, 144, 24
RECIPES = ("high_precision", "tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "delayed")


def plan(recipe, trains=True, dtype=torch.bfloat16, **named):
    return operators.add_plan(recipe, "wq", K, N, dtype, dtype, None, trains, *operators.PlanOf(*(None,) * 7, **named)[7:])


def tensors(dtype=torch.bfloat16, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(2, TOKENS // 2, K, dtype=dtype) * torch.rand(TOKENS, 1).reshape(2, -1, 1).to(dtype)
    return x, torch.randn(N, K, dtype=dtype), torch.randn(2, TOKENS // 2, N, dtype=dtype)


def scale_of(values, format):
    return (torch.finfo(format).max / values.abs().max().double()).float().reshape(1)


def codes_of(values, how):
    """As the plan casts the tensor by itself."""
    name, by_row, pow2 = how
    at = [str(format) for format in FORMATS].index(f"torch.float8_{name}")
    if by_row:
        return quantize_rows(values, at, pow2)
    scale = scale_of(values, FORMATS[at])
    return quantize(values, scale, at)[0], scale.reciprocal()


# By the recipe and what is trained: of the input, and of grad_output for the gradients of input, weight, both.
GATHERS = {
    ("high_precision", True): (0, 0, 0, 0),
    ("tensorwise", True): (1, 1, 1, 1),
    ("rowwise", True): (0, 2, 0, 0),
    ("rowwise", False): (2, 2, 0, 0),
    ("rowwise_folded", True): (2, 0, 0, 0),
    ("rowwise_folded", False): (2, 0, 0, 0),
    ("rowwise_with_gw_hp", True): (0, 2, 0, 0),
    ("rowwise_with_gw_hp", False): (2, 2, 0, 0),
    ("blockwise", True): (0, 0, 0, 0),
    ("delayed", True): (1, 1, 1, 1),
}


@pytest.mark.parametrize("recipe, trains", GATHERS)
def test_which_tensors_may_cross_as_codes(recipe, trains):
    found = _core.torch_linear_gathers(plan(recipe, trains).number)
    assert tuple(0 if each is None else 2 if each[1] else 1 for each in found) == GATHERS[recipe, trains]
    if recipe == "tensorwise":
        assert found[0] == ("e4m3fn", False, False) and found[3] == ("e5m2", False, False)
    if recipe == "rowwise":
        assert found[1] == ("e4m3fn", True, True)


# The plan of delayed scales is that of tensorwise ones that are given.
@pytest.mark.parametrize("recipe, trains", [key for key, value in GATHERS.items() if value[0] and key[0] != "delayed"])
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_an_input_in_codes(recipe, trains, dtype):
    x, w, g = tensors(dtype)
    whole, codes_plan = plan(recipe, trains, dtype), plan(recipe, trains, dtype, given_input=True)
    assert codes_plan.saved_constant == codes_plan.saved_per_unit == 0
    keep, wants = (KEEP_CODES | KEEP_SAVED, INPUT | WEIGHT) if trains else (KEEP_CODES, INPUT)
    output, saved, kept, _ = operators.linear_forward(x, w, None, whole.number, keep)
    grads = operators.linear_backward(g, x, w, saved, kept, whole.number, wants)
    codes, scale_inv = codes_of(x, _core.torch_linear_gathers(whole.number)[0])
    for given in (codes, codes.view(torch.uint8)):
        found, saved, kept, _ = operators.linear_forward(
            given, w, None, codes_plan.number, keep, input_scale_inv=scale_inv
        )
        assert found.dtype == dtype and torch.equal(found, output)
        again = operators.linear_backward(g, given, w, saved, kept, codes_plan.number, wants, input_scale_inv=scale_inv)
        assert torch.equal(again[0], grads[0])
        assert not trains or torch.equal(again[1], grads[1])


@pytest.mark.parametrize("recipe", ("tensorwise", "rowwise", "rowwise_with_gw_hp"))
def test_a_grad_output_in_codes(recipe):
    x, w, g = tensors()
    of = plan(recipe)
    _, saved, kept, _ = operators.linear_forward(x, w, None, of.number, KEEP_CODES | KEEP_SAVED)
    for wants, how in zip((INPUT, WEIGHT, INPUT | WEIGHT), _core.torch_linear_gathers(of.number)[1:]):
        if how is None:
            continue
        expected = operators.linear_backward(g, x, w, saved, kept, of.number, wants)
        codes, scale_inv = codes_of(g, how)
        found = operators.linear_backward(
            codes, x, w, saved, kept, of.number, wants, grad_output_scale_inv=scale_inv
        )
        for one, other in zip(found, expected):
            assert one is other is None or (one.dtype == torch.bfloat16 and torch.equal(one, other))


def test_scales_of_divided_tensors_are_given():
    """A plan of divided tensors takes one scale for each that had one, and has the bits of the dynamic one."""
    x, w, g = tensors()
    dynamic, divided = plan("tensorwise"), plan("tensorwise", divided=(True, True, True))
    assert plan("rowwise", divided=(True, True, True)).number == plan("rowwise").number
    output, saved, kept, amaxes = operators.linear_forward(x, w, None, dynamic.number, 3)
    assert amaxes is None
    grads = operators.linear_backward(g, x, w, saved, kept, dynamic.number, 3)
    scales = {"input_scale": scale_of(x, torch.float8_e4m3fn), "weight_scale": scale_of(w, torch.float8_e4m3fn)}
    found, saved, kept, amaxes = operators.linear_forward(x, w, None, divided.number, 3, **scales)
    assert torch.equal(found, output) and amaxes.tolist() == [x.abs().max(), w.abs().max()]
    scale = scale_of(g, torch.float8_e5m2)
    again = operators.linear_backward(g, x, w, saved, kept, divided.number, 3, grad_output_scale=scale)
    assert torch.equal(again[0], grads[0]) and torch.equal(again[1], grads[1])


def test_rows_are_cast_as_by_themselves():
    x, *_ = tensors(torch.float32)
    x[0, 3] = 0
    x[1, 5, 7] = float("nan")
    codes, scale_inv = quantize_rows(x, 0, 0)
    assert codes.shape == x.shape and scale_inv.shape == (TOKENS,)
    rows = x.reshape(TOKENS, K)
    for at, row in enumerate(rows):
        scale = (448 / row.abs().amax().double().clamp(min=1e-12)).float()
        assert torch.equal(scale_inv[at], 1 / scale) or row.isnan().any()
        expected = (row * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(codes.reshape(TOKENS, K)[at].view(torch.uint8), expected.view(torch.uint8)) or row.isnan().any()
    assert scale_inv[12 + 5].isnan()
    empty, none = quantize_rows(x[:0], 1, 1)
    assert empty.shape == (0, TOKENS // 2, K) and empty.dtype == torch.float8_e5m2 and none.shape == (0,)


@pytest.mark.parametrize("tokens", (0, 1))
def test_few_tokens(tokens):
    x, w, g = (each.reshape(-1, each.shape[-1]) for each in tensors())
    x, g = x[:tokens], g[:tokens]
    of = plan("tensorwise", given_input=True)
    codes, scale_inv = quantize(x, torch.ones(1), 0)[0], torch.ones(1)
    output, saved, kept, _ = operators.linear_forward(codes, w, None, of.number, 3, input_scale_inv=scale_inv)
    assert output.shape == (tokens, N)
    gradient = quantize(g, torch.ones(1), 1)[0]
    of_input, of_weight, *_ = operators.linear_backward(
        gradient, codes, w, saved, kept, of.number, 3, input_scale_inv=scale_inv, grad_output_scale_inv=torch.ones(1)
    )
    assert of_input.shape == (tokens, K) and of_weight.shape == (N, K) and (tokens > 0 or not of_weight.any())


def test_messages():
    x, w, g = tensors()
    of, rows = plan("tensorwise", given_input=True), plan("rowwise")
    codes, one = quantize(x, torch.ones(1), 0)[0], torch.ones(1)

    def forward(input, number, **named):
        return lambda: operators.linear_forward(input, w, None, number, 0, **named)

    def backward(gradient, wants, **named):
        return lambda: operators.linear_backward(gradient, x, w, None, None, rows.number, wants, **named)

    gradient, per_row = quantize_rows(g, 0, 1)
    for call, message in (
        (forward(codes, of.number), 'linear "wq" input_scale_inv: is missing, but the plan takes the input as FP8 codes'),
        (forward(codes, rows.number, input_scale_inv=one), "input_scale_inv: is given, but the plan casts its input itself"),
        (forward(x, of.number, input_scale_inv=one), "input: comes with scale_inv, so it must be codes in e4m3fn"),
        (forward(codes.view(torch.float8_e5m2), of.number, input_scale_inv=one), "must be codes in e4m3fn, or the bytes"),
        (forward(codes[..., :8].contiguous(), of.number, input_scale_inv=one), "input: must have 136 columns"),
        (forward(codes.transpose(0, 1), of.number, input_scale_inv=one), "input: is not contiguous: call .contiguous"),
        (forward(codes, of.number, input_scale_inv=torch.ones(24)), "has 24 elements, but the GEMM takes 1, one for the whole"),
        (forward(codes, of.number, input_scale_inv=one.double()), "input_scale_inv: must be float32"),
        (forward(codes, of.number, input_scale_inv=torch.ones(2)[::2]), None),
        (forward(codes, plan("high_precision", given_input=True).number, input_scale_inv=one), "reads it in high precision"),
        (backward(gradient, INPUT | WEIGHT, grad_output_scale_inv=per_row), "grad_output_scale_inv: is given, but no one set"),
        (backward(gradient, INPUT | BIAS, grad_output_scale_inv=per_row), "no one set of codes serves these gradients"),
        (backward(gradient, INPUT, grad_output_scale_inv=per_row[:5]), "grad_output_scale_inv: has 5 elements, but the GEMM "
         "takes 24, one for each row"),
        (lambda: quantize_rows(x, 7, 0), "quantize_rows format: is no number of a dtype"),
        (lambda: quantize_rows(x.double(), 0, 0), "quantize_rows input: must be float32, bfloat16 or float16"),
    ):
        if message is None:
            call()
            continue
        with pytest.raises(RuntimeError, match=message.replace("(", r"\(")):
            call()


def test_fake_kernels():
    """What compilers are told of the results."""
    x, w, g = tensors(torch.float32)
    torch.library.opcheck(quantize_rows, (x, 0, 1))
    of = plan("tensorwise", dtype=torch.float32, given_input=True)
    codes, one = quantize(x, torch.ones(1), 0)[0].view(torch.uint8), torch.ones(1)  # opcheck computes with tensors
    torch.library.opcheck(operators.linear_forward, (codes, w, None, of.number, 3), {"input_scale_inv": one})
    _, saved, kept, _ = operators.linear_forward(codes, w, None, of.number, 3, input_scale_inv=one)
    gradient = quantize(g, torch.ones(1), 1)[0].view(torch.uint8)
    named = {"input_scale_inv": one, "grad_output_scale_inv": one}
    torch.library.opcheck(operators.linear_backward, (gradient, codes, w, saved, kept, of.number, 3), named)


def test_the_first_delayed_scale():
    """Is that of the maximum, where the sizes say that it may be missing and the device that it is."""
    x, alone = tensors()[0], Ranks("", 0, 1)
    first = scale_of(x, torch.float8_e4m3fn)
    for mask, scale, expected in ((0, 1.0, 1.0), (2, 1.0, 1.0), (1, 1.0, first), (1, 0.0, first), (5, 3.0, 3.0), (1, float("nan"), first)):
        slot = DelayedSlot(torch.full((1,), scale), None, starts_of((mask,), x.device), 0)
        assert torch.equal(slot.of_call(x, ("e4m3fn", False), alone), torch.full((1,), float(expected)))
        operator = torch.ops.ingot.delayed_scale.default
        arguments = (x, slot.scale, slot.starts, 0, "e4m3fn", False, "", 1)
        assert torch.equal(operator(*arguments), torch.full((1,), float(expected)))
        torch.library.opcheck(operator, arguments)
    slot.note(torch.ones(1))  # which keeps none


def test_scales_of_maxima():
    """As a cast makes them."""
    maxima = torch.tensor([0.0, 1e-20, 3.7, 448.0, float("inf"), float("nan")])
    for at, name in ((0, "e4m3fn"), (1, "e5m2")):
        for pow2 in (False, True):
            found = 1 / scale_of_maximum(maxima, (name, pow2))
            expected = quantize_rows(maxima.reshape(-1, 1), at, int(pow2))[1]
            assert torch.equal(found[:-1], expected[:-1]) and found[-1].isnan() and expected[-1].isnan()

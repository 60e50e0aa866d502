"""Casts with a fused expression: values against float64, codes bit for bit against torchao's formula on those values."""

import numpy as np
import pytest

import ingot

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# Tolerances against float64: relative (rounding of the values) and absolute (rounding of terms that cancel).
SOURCES = {"float32": (2.0**-20, 4e-6), "bfloat16": (2.0**-8, 1e-4), "float16": (2.0**-10, 1e-4)}
LARGEST = {"e4m3fn": 448.0, "e5m2": 57344.0}


def fp8(dtype: str):
    return getattr(torch, f"float8_{dtype}")


def make(*shape, dtype="float32", seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def expand(per_extent, scale: str, rows: int, cols: int):
    """Expands one number per scale to one per element."""
    if scale == "tensor":
        return per_extent.reshape(1, 1).expand(rows, cols)
    if scale == "row":
        return per_extent[:, None].expand(rows, cols)
    if scale == "col":
        return per_extent[None, :].expand(rows, cols)
    down, across = (int(n) for n in scale.split("x"))
    return per_extent.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :cols]


def amax_of(x, scale: str):
    """Returns max |x| for each scale with torch's amax, over a padded copy if scales cover blocks."""
    x = x.abs().float()
    if scale == "tensor":
        return x.amax().reshape(1)
    if scale in ("row", "col"):
        return x.amax(dim=1 if scale == "row" else 0)
    down, across = (int(n) for n in scale.split("x"))
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % across, 0, -x.shape[0] % down))
    return padded.reshape(padded.shape[0] // down, down, padded.shape[1] // across, across).amax(dim=(1, 3))


def torchao_scale(amax, dtype: str, pow2: bool):
    """torchao's amax_to_scale, written out."""
    scale = (LARGEST[dtype] / torch.clamp(amax.to(torch.float64), min=1e-12)).to(torch.float32)
    return torch.exp2(torch.floor(torch.log2(scale))) if pow2 else scale


def encode(x, scale, dtype: str):
    return (x.float() * scale).clamp(-LARGEST[dtype], LARGEST[dtype]).to(fp8(dtype))


def same_bits(a, b):
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", ["tensor", "row", "col", "1x128", "128x1", "128x128"])
def test_every_granularity_equals_torchaos_formula(scale, source, dtype, pow2):
    for shape in [(1, 1), (37, 131), (130, 260)]:
        x = make(*shape, dtype=source) * 3
        want = torchao_scale(amax_of(x, scale), dtype, pow2)
        codes = encode(x, expand(want, scale, *shape), dtype)
        got = ingot.cast(x, dtype, scale=scale, pow2=pow2, transposed=True)
        assert same_bits(got.scale_inv, 1.0 / want), shape
        assert same_bits(got.codes, codes), shape
        assert same_bits(got.transposed, codes.t()), shape


@pytest.mark.parametrize(("scale", "own"), [("row", "col"), ("1x128", "128x1"), ("tensor", "col"), ("128x128", "row")])
@pytest.mark.parametrize("source", SOURCES)
def test_transposed_codes_with_scales_of_their_own(scale, own, source):
    x = make(137, 261, dtype=source)
    got = ingot.cast(x, scale=scale, transposed_scale=own, transposed=True)
    for granularity, scale_inv, codes in ((scale, got.scale_inv, got.codes), (own, got.transposed_scale_inv, got.transposed.t())):
        want = torchao_scale(amax_of(x, granularity), "e4m3fn", False)
        assert same_bits(scale_inv, 1.0 / want)
        assert same_bits(codes, encode(x, expand(want, granularity, *x.shape), "e4m3fn"))


def test_the_transposed_matrix_has_its_own_scales_the_other_way_round():
    x = make(130, 200)
    got = ingot.cast(x, scale="row", transposed_scale="col", transposed=True).T
    assert (got.scale, got.transposed_scale) == ("row", "col")
    want = ingot.cast(x.t().contiguous(), scale="row", transposed_scale="col", transposed=True)
    for name in ("codes", "transposed", "scale_inv", "transposed_scale_inv"):
        assert same_bits(getattr(got, name), getattr(want, name)), name
    groups = ingot.cast(x, scale="1x128", transposed_scale="128x1", transposed=True).T
    want = ingot.cast(x.t().contiguous(), scale="1x128")
    assert groups.scale == "1x128" and same_bits(groups.scale_inv, want.scale_inv) and same_bits(groups.codes, want.codes)
    with pytest.raises(ingot.Error, match="or a transposed_scale; this one has \"col\""):
        ingot.cast(x, scale="col", transposed=True).T


def test_both_operands_of_a_backward_gemm_from_one_cast():
    x = make(96, 64)
    cast = ingot.cast(x, scale="row", transposed_scale="col", transposed=True)
    got = ingot.gemm(cast.T, cast.T, out_dtype="f32")  # x^T x
    want = x.double().t() @ x.double()
    assert (got.double() - want).norm() < 0.06 * want.norm()


@pytest.mark.parametrize("scale", ["tensor", "row", "128x128"])
def test_given_scales_record_the_maxima(scale):
    x = make(150, 140, dtype="bfloat16")
    amax = amax_of(x, scale)
    scales = 37.0 / (amax + 1)
    got = ingot.cast(x, "e5m2", scale=scale, scales=scales)
    assert same_bits(got.scale_inv, 1.0 / scales)
    assert same_bits(got.codes, encode(x, expand(scales, scale, *x.shape), "e5m2"))
    assert same_bits(got.amax, amax)
    recorded = torch.full_like(amax, 3.0)  # raised in place, where it is smaller
    again = ingot.cast(x, "e5m2", scale=scale, scales=scales, amax=recorded)
    assert again.amax is recorded
    assert same_bits(recorded, torch.maximum(amax, torch.tensor(3.0)))


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


# An expression, the same in torch, and the kinds of its inputs.
FUSIONS = {
    "silu(x) * gate": (lambda x, gate: x * torch.sigmoid(x) * gate, {"gate": "matrix"}),
    "gelu(x + bias[col])": (lambda x, bias: gelu(x + bias), {"bias": "col"}),
    "(x - mean[row]) * rstd[row] * gamma[col] + beta[col]": (
        lambda x, mean, rstd, gamma, beta: (x - mean[:, None]) * rstd[:, None] * gamma + beta,
        {"mean": "row", "rstd": "row", "gamma": "col", "beta": "col"},
    ),
    "x * f[col:f32] + b[col]": (lambda x, f, b: x * f + b, {"f": "col:f32", "b": "col"}),
    "relu(x)": (lambda x: torch.relu(x), {}),
    "a * tanh(b)": (lambda x, a, b: a * torch.tanh(b), {"a": "matrix", "b": "matrix"}),
}


def inputs_of(kinds, shape, source):
    shapes = {"matrix": shape, "col": shape[1:], "col:f32": shape[1:], "row": shape[:1]}
    return {
        name: make(*shapes[kind], dtype="float32" if kind in ("row", "col:f32") else source, seed=3 + i)
        for i, (name, kind) in enumerate(kinds.items())
    }


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("of", FUSIONS)
def test_values_equal_torchs_and_codes_are_theirs(of, source):
    function, kinds = FUSIONS[of]
    for shape in [(1, 1), (37, 131), (130, 264)]:
        x = make(*shape, dtype=source)
        inputs = inputs_of(kinds, shape, source)
        want = function(x.double(), **{name: array.double() for name, array in inputs.items()})
        got = ingot.cast(x, scale="row", of=of, inputs=inputs, result=True, sum="f32", transposed=True)
        assert got.result.dtype == x.dtype
        error = (got.result.double() - want).abs()
        relative, absolute = SOURCES[source]
        assert (error <= relative * want.abs() + absolute).all()  # False for NaN
        plain = ingot.cast(got.result, scale="row", transposed=True)
        for name in ("codes", "transposed", "scale_inv"):
            assert same_bits(getattr(got, name), getattr(plain, name)), name
        scale = torchao_scale(amax_of(got.result, "row"), "e4m3fn", False)
        assert same_bits(got.codes, encode(got.result, scale[:, None], "e4m3fn"))
        total, magnitude = got.result.double().sum(0), got.result.double().abs().sum(0)
        assert ((got.sum.double() - total).abs() <= 2.0**-24 * (shape[0] + 4) * magnitude).all()
        if "x" not in of.replace("max", ""):
            assert same_bits(ingot.cast(None, scale="row", of=of, inputs=inputs).codes, got.codes)


def test_unrounded_values_stay_float32():
    x, gate = make(64, 96, dtype="bfloat16"), make(64, 96, dtype="bfloat16", seed=1)
    of, inputs = "silu(x) * gate", {"gate": gate}
    values = ingot.cast(x.float(), of=of, inputs={"gate": gate.float()}, result=True).result
    got = ingot.cast(x, of=of, inputs=inputs, unrounded=True)
    scale = torchao_scale(amax_of(values, "tensor"), "e4m3fn", False)
    assert same_bits(got.codes, encode(values, scale, "e4m3fn"))
    assert same_bits(got.scale_inv, 1.0 / scale)
    assert not same_bits(got.codes, ingot.cast(x, of=of, inputs=inputs).codes)


def test_fast_math_is_near():
    x, inputs = make(200, 300, dtype="bfloat16"), {"gate": make(200, 300, dtype="bfloat16", seed=1)}
    usual = ingot.cast(x, of="silu(x) * gate", inputs=inputs)
    fast = ingot.cast(x, of="silu(x) * gate", inputs=inputs, fast=True)
    assert torch.allclose(usual.scale_inv, fast.scale_inv, rtol=1e-4)
    differ = usual.codes.view(torch.uint8) != fast.codes.view(torch.uint8)
    assert differ.float().mean() <= 1e-3


def test_a_sum_needs_no_expression():
    x = make(300, 70, dtype="bfloat16")
    got = ingot.cast(x, "e5m2", sum="bf16")
    assert got.sum.dtype == torch.bfloat16 and got.sum.shape == (70,)
    error = (got.sum.double() - x.double().sum(0)).abs()
    assert (error <= 2.0**-8 * x.double().sum(0).abs() + 2.0**-15 * x.double().abs().sum(0)).all()
    assert same_bits(got.codes, ingot.cast(x, "e5m2").codes)


MINE = "x * sigmoid(1.702 * x) * gate + log1p(exp(bias[col])) / (2 + x^2 * scale[row])"


@pytest.mark.parametrize("by", ["x", "gate", "bias", "scale"])
def test_the_derivative_of_ones_own_expression(by):
    """Against central differences in float64 of the expression itself, and against torch's autograd."""
    rng = np.random.default_rng(5)
    given = {
        "x": rng.standard_normal((17, 23)),
        "gate": rng.standard_normal((17, 23)),
        "bias": rng.standard_normal(23),
        "scale": rng.uniform(0.5, 1.5, 17),
    }
    got = ingot.evaluate(ingot.derivative(MINE, by), **given)
    step = 1e-5
    up, down = ({**given, by: given[by] + sign * step} for sign in (1, -1))
    differences = (ingot.evaluate(MINE, **up) - ingot.evaluate(MINE, **down)) / (2 * step)
    assert np.abs(got - differences).max() < 1e-8

    tensors = {name: torch.tensor(array, requires_grad=name == by) for name, array in given.items()}
    x, gate, bias, scale = tensors["x"], tensors["gate"], tensors["bias"], tensors["scale"]
    value = x * torch.sigmoid(1.702 * x) * gate + torch.log1p(torch.exp(bias)) / (2 + x**2 * scale[:, None])
    assert np.allclose(ingot.evaluate(MINE, **given), value.detach().numpy(), rtol=1e-7)  # 1.702 is an f32 here
    (gradient,) = torch.autograd.grad(value.sum(), tensors[by])
    axis = {"bias": 0, "scale": 1}.get(by)
    assert np.allclose(got if axis is None else got.sum(axis), gradient.numpy(), rtol=1e-6, atol=1e-6)


def test_a_fused_backward_follows_from_a_fused_forward():
    x, gate, grad = (make(65, 140, seed=seed) for seed in range(3))
    of = ingot.backward("silu(x) * gate", "x")
    got = ingot.cast(x, "e5m2", of=of, inputs={"gate": gate, "grad": grad}, result=True, sum="f32", transposed=True)
    leaf = x.double().requires_grad_()
    (leaf * torch.sigmoid(leaf) * gate.double()).backward(grad.double())
    assert torch.allclose(got.result.double(), leaf.grad, rtol=1e-5, atol=1e-6)
    assert torch.allclose(got.sum.double(), leaf.grad.sum(0), rtol=1e-4, atol=1e-4)


def test_numpy_arrays_too():
    x, gate = make(40, 50).numpy(), make(40, 50, seed=1).numpy()
    got = ingot.cast(x, scale="col", of="silu(x) * gate", inputs={"gate": gate}, result=True, sum="f16")
    want = ingot.cast(torch.from_numpy(x), scale="col", of="silu(x) * gate", inputs={"gate": torch.from_numpy(gate)})
    assert np.array_equal(got.codes.view(np.uint8), want.codes.view(torch.uint8).numpy())
    assert got.sum.dtype == np.float16 and got.result.dtype == np.float32


ONES = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ingot.cast(ONES, of="x * gate"), r"the expression reads \['gate'\], but given are \[\]"),
        (lambda: ingot.cast(ONES, of="x * y", inputs={"Y": ONES}), r"reads \['y'\], but given are \['Y'\]"),
        (lambda: ingot.cast(ONES, inputs={"y": ONES}), "there is no expression"),
        (lambda: ingot.cast(ONES, of="foo(x)"), r'"foo" is no function(.|\n)*\n  foo\(x\)\n  \^$'),
        (lambda: ingot.cast(ONES, of="x ** 2"), r"write x \^ 2"),
        (lambda: ingot.cast(ONES, of="x * y", inputs={"y": ONES[:2]}), r"inputs\[0\] \(y\): is f32\[2, 6\].*input's shape"),
        (lambda: ingot.cast(ONES, of="x * y", inputs={"y": ONES.astype(np.float16)}), "f16.*the spec asks for f32"),
        (lambda: ingot.cast(ONES, of="x * y", inputs={"y": torch.ones(4, 6)}), "all arrays of a call must be of one"),
        (lambda: ingot.cast(ONES, of="x + b[col]", inputs={"b": ONES}), "cast input b: has 2 dimensions, expected 1"),
        (lambda: ingot.cast(ONES, of="x + b[col]", inputs={"b": ONES[0, :5]}), "one for each column"),
        (lambda: ingot.cast(None, of="x + b", inputs={"b": ONES}), "x: is None"),
        (lambda: ingot.cast(None, of="b[col]", inputs={"b": ONES[0]}), "no matrix to take the shape from"),
        (lambda: ingot.cast(ONES, result=True), "result is set, but there is no pointwise expression"),
        (lambda: ingot.cast(ONES, unrounded=True), "unrounded is set"),
        (lambda: ingot.cast(ONES, fast=True), "fast_math is set"),
        (lambda: ingot.cast(ONES, sum="e5m2"), "sum is e5m2"),
        (lambda: ingot.cast(ONES, scale="1x64"), "scale is 1x64"),
        (lambda: ingot.cast(ONES, transposed_scale="col"), "only a cast that writes both"),
        (lambda: ingot.cast(ONES, scales=np.ones(2, np.float32)), "cast scales"),
        (lambda: ingot.cast(ONES, scales=np.ones(1)), "cast scales: float64 is not one of"),
        (lambda: ingot.cast(ONES, scales=np.ones(1, np.float16)), "cast scales: must be float32, but is f16"),
        (lambda: ingot.cast(ONES, amax=np.zeros(1, np.float32)), "the scales of this spec are dynamic"),
        (lambda: ingot.cast(ONES, scales=np.ones(1, np.float32), amax=torch.zeros(1)), "cast amax: is a Tensor"),
        (lambda: ingot.cast(ONES, scales=np.ones(1, np.float32), pow2=True), "pow2 is set, but the scales are given"),
        (lambda: ingot.derivative("x * y", "z"), "z"),
        (lambda: ingot.evaluate("x * y", ONES), r"reads \['y'\]"),
        (lambda: ingot.evaluate("x"), "evaluate x: is missing"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ingot.Error, match=message):
        call()

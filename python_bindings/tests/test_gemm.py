"""GEMMs against float64."""

import itertools

import numpy as np
import pytest

import ingot

FORMATS = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"]


def values(x: ingot.Float8Array) -> np.ndarray:
    scale_inv = x.scale_inv.astype(np.float64)
    if x.scale == "row":
        scale_inv = scale_inv[:, None]
    if x.scale == "1x128":
        scale_inv = scale_inv.repeat(128, axis=1)[:, : x.codes.shape[1]]
    return ingot.decode(x.codes, x.dtype).astype(np.float64) * scale_inv


@pytest.mark.parametrize(("dtype_a", "dtype_b"), itertools.product(FORMATS, FORMATS))
@pytest.mark.parametrize("scale", ["tensor", "row"])
def test_fp8_against_float64(dtype_a, dtype_b, scale):
    rng = np.random.default_rng(3)
    for m, n, k in [(1, 1, 1), (5, 7, 33), (16, 48, 32)]:
        a = ingot.cast(rng.standard_normal((m, k), np.float32), dtype_a, scale=scale)
        b = ingot.cast(rng.standard_normal((n, k), np.float32), dtype_b, scale=scale)
        want = values(a) @ values(b).T
        got = ingot.gemm(a, b, out_dtype="f32")
        bound = 1e-6 * k * (np.abs(values(a)) @ np.abs(values(b)).T + 1e-30)
        assert (np.abs(got - want) <= bound).all()  # False for NaN


def test_layouts_and_bias_of_high_precision():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((9, 20), np.float32), rng.standard_normal((11, 20), np.float32)
    bias = rng.standard_normal(11, np.float32)
    want = a.astype(np.float64) @ b.T.astype(np.float64) + bias
    for layout in ("nt", "nn", "tn", "tt"):
        stored_a = a if layout[0] == "n" else np.ascontiguousarray(a.T)
        stored_b = b if layout[1] == "t" else np.ascontiguousarray(b.T)
        got = ingot.gemm(stored_a, stored_b, bias=bias, out_dtype="f32", layout=layout)
        assert np.allclose(got, want, rtol=1e-5, atol=1e-5)


def test_output_is_of_the_operands_type_by_default():
    a = np.ones((2, 3), np.float32)
    assert ingot.gemm(a, a).dtype == np.float32
    assert ingot.gemm(a.astype(np.float16), a.astype(np.float16)).dtype == np.float16
    assert ingot.gemm(ingot.cast(a), ingot.cast(a)).dtype.name == "bfloat16"


def test_small_integers_are_exact():
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((13, 40), (9, 40)))
    assert np.array_equal(ingot.gemm(a, b, out_dtype="f32"), a.astype(np.float64) @ b.T.astype(np.float64))


@pytest.mark.parametrize("scales", [("tensor", None), ("row", "col"), ("1x128", "128x1")])
def test_transposed_operand(scales):
    x = np.random.default_rng(6).standard_normal((150, 140)).astype(np.float32)
    turned = ingot.cast(x, scale=scales[0], transposed_scale=scales[1], transposed=True).T
    assert (turned.scale, turned.transposed_scale) == scales
    assert np.allclose(values(turned), x.T, rtol=0.07, atol=0.01)
    want = values(turned) @ values(turned).T
    got = ingot.gemm(turned, turned, out_dtype="f32")  # x^T x: both K-major along the rows of x
    assert np.allclose(got, want, rtol=1e-5, atol=1e-4)


def test_k_of_zero_gives_the_bias():
    got = ingot.gemm(np.zeros((2, 0), np.float32), np.zeros((3, 0), np.float32), bias=np.array([1, 2, 3], np.float32),
                     out_dtype="f32")
    assert np.array_equal(got, [[1, 2, 3], [1, 2, 3]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b: ingot.gemm(a, np.zeros((3, 5), np.float32), out_dtype="f32"), "gemm"),
        (lambda a, b: ingot.gemm(a, b, layout="row"), 'expected "nt", "nn", "tn" or "tt", got \'row\''),
        (lambda a, b: ingot.gemm(ingot.cast(a).T, b), "has no codes"),
        (lambda a, b: ingot.gemm(ingot.cast(a), ingot.cast(b, transposed=True, codes=False)), "gemm b: .*has no codes"),
        (lambda a, b: ingot.gemm(a, ingot.cast(b)), "gemm"),
        (lambda a, b: ingot.gemm(a, b, bias=np.zeros(3, np.float16), out_dtype="f32"), "gemm bias: .*f16.*f32"),
        (lambda a, b: ingot.gemm(a, b, bias=np.zeros(3, np.int32), out_dtype="f32"), "gemm bias: int32 is not one of"),
        (lambda a, b: ingot.gemm(a, b, bias=np.zeros(2, np.float32), out_dtype="f32"), "gemm bias"),
        (lambda a, b: ingot.gemm(a, b, fast_accumulation=True, out_dtype="f32"), "fast"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ingot.Error, match=message):
        call(np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32))

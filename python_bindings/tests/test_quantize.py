"""quantize_mx and float_quantize against ml_dtypes: codes bit for bit, scales by the formula of OCP MX 1.0."""

import ml_dtypes
import numpy as np
import pytest

import ingot

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
FORMATS = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
}
SHAPES = [(1, 1), (3, 31), (8, 32), (5, 33), (17, 96), (4, 1024), (9, 131)]


def make(shape, dtype, kind="normal"):
    generator = np.random.default_rng(shape[1])
    x = generator.standard_normal(shape)
    if kind == "spread":
        x = x * np.exp2(generator.integers(-40, 40, shape))
    elif kind == "zeros":
        x = np.zeros(shape)
    elif kind == "tiny":
        x = x * 2.0**-130
    with np.errstate(over="ignore"):
        return np.nan_to_num(x.astype(np.float32).astype(dtype))


def reference(x, dtype):
    """Computes the formula in float64; ml_dtypes rounds."""
    largest = float(ml_dtypes.finfo(FORMATS[dtype]).max)
    rows, cols = x.shape
    groups = -(-cols // 32)
    padded = np.zeros((rows, groups * 32))
    padded[:, :cols] = x.astype(np.float64)
    padded = padded.reshape(rows, groups, 32)
    amax = np.abs(padded).max(axis=2)
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(amax)) - np.floor(np.log2(largest))
    exponent = np.maximum(exponent, -127)
    scaled = (padded / np.exp2(exponent)[:, :, None]).reshape(rows, groups * 32)[:, :cols]
    codes = np.clip(scaled, -largest, largest).astype(FORMATS[dtype])
    return codes.view(np.uint8), (exponent + 127).astype(np.uint8)


def codes_of(mx):
    codes = np.asarray(mx.codes).view(np.uint8) if not hasattr(mx.codes, "numpy") else mx.codes.view(torch.uint8).numpy()
    return ingot.unpack_codes(codes, mx.dtype, mx.shape[1])


@pytest.mark.parametrize("kind", ["normal", "spread", "zeros", "tiny"])
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("dtype", FORMATS)
def test_codes_are_ml_dtypes_and_scales_the_formulas(dtype, source, kind):
    for shape in SHAPES:
        x = make(shape, source, kind)
        want_codes, want_scales = reference(x, dtype)
        got = ingot.quantize_mx(x, dtype)
        assert got.shape == shape and got.dtype == dtype
        assert np.array_equal(np.asarray(got.scales).view(np.uint8), want_scales), shape
        assert np.array_equal(codes_of(got), want_codes), shape


def test_numpy_gives_typed_scales_and_codes():
    got = ingot.quantize_mx(make((4, 64), np.float32), ml_dtypes.float8_e4m3fn)
    assert got.codes.dtype == ml_dtypes.float8_e4m3fn and got.scales.dtype == ml_dtypes.float8_e8m0fnu
    packed = ingot.quantize_mx(make((4, 5), np.float32), "float6_e3m2fn")
    assert packed.codes.dtype == np.uint8 and packed.codes.shape == (4, 6)
    assert ingot.quantize_mx(make((4, 5), np.float32), ml_dtypes.float4_e2m1fn).codes.shape == (4, 3)


def test_nan_and_inf_make_the_scale_nan():
    x = np.ones((2, 64), np.float32)
    x[0, 3], x[1, 40] = np.nan, -np.inf
    for dtype in FORMATS:
        got = ingot.quantize_mx(x, dtype)
        assert np.asarray(got.scales).view(np.uint8).tolist() == [
            [255, 127 - int(np.log2(float(ml_dtypes.finfo(FORMATS[dtype]).max)))],
            [127 - int(np.log2(float(ml_dtypes.finfo(FORMATS[dtype]).max))), 255],
        ]
        assert (codes_of(got)[0, :32] == (0x7F if dtype in ("e4m3fn", "e5m2") else 0)).all()


@needs_torch
@pytest.mark.parametrize("dtype", FORMATS)
def test_torch_gives_the_same_bytes(dtype):
    x = make((9, 131), np.float32)
    from_numpy, from_torch = ingot.quantize_mx(x, dtype), ingot.quantize_mx(torch.from_numpy(x), dtype)
    assert np.array_equal(codes_of(from_torch), codes_of(from_numpy))
    assert np.array_equal(from_torch.scales.view(torch.uint8).numpy(), from_numpy.scales.view(np.uint8))


@pytest.mark.parametrize("dtype", FORMATS)
def test_packing_is_inverted(dtype):
    bits = {"e4m3fn": 8, "e5m2": 8, "e2m1fn": 4}.get(dtype, 6)
    for cols in range(20):
        codes = np.random.default_rng(cols).integers(0, 1 << bits, (3, cols)).astype(np.uint8)
        assert np.array_equal(ingot.unpack_codes(ingot.pack_codes(codes, dtype), dtype, cols), codes)


@pytest.mark.parametrize("dtype", ["e3m2fn", "e2m3fn", "e2m1fn"])
def test_encode_and_decode(dtype):
    codes = np.arange(1 << (4 if dtype == "e2m1fn" else 6), dtype=np.uint8)
    values = ingot.decode(codes, dtype)
    want = codes.view(FORMATS[dtype]).astype(np.float32)
    assert np.array_equal(values.view(np.uint32), want.view(np.uint32))
    assert np.array_equal(ingot.encode(values, dtype), codes)
    x = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    x = x[~np.isnan(x)]
    assert np.array_equal(ingot.encode(x, dtype), x.astype(FORMATS[dtype]).view(np.uint8))
    assert ingot.encode([np.nan], dtype)[0] == 0


def test_decode_of_scales():
    values = ingot.decode(np.arange(256, dtype=np.uint8), "e8m0fnu")
    assert np.array_equal(values[:255], np.exp2(np.arange(255.0) - 127).astype(np.float32)) and np.isnan(values[255])


# OCP's FP6 and FP4 have no NaN or Inf, so they are exactly formats of float_quantize().
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("bits", [(3, 2, "e3m2fn"), (2, 3, "e2m3fn"), (2, 1, "e2m1fn")])
def test_float_quantize_equals_ml_dtypes(bits, source):
    exponent_bits, mantissa_bits, dtype = bits
    x = np.nan_to_num(np.arange(65536, dtype=np.uint16).view(np.float16), nan=0, posinf=np.inf, neginf=-np.inf)
    x = x.astype(source).reshape(256, 256)
    want = x.astype(np.float32).astype(FORMATS[dtype]).astype(np.float32)
    got = ingot.float_quantize(x, exponent_bits, mantissa_bits)
    assert got.dtype == x.dtype
    assert np.array_equal(got.astype(np.float32).view(np.uint32), want.view(np.uint32))
    assert ingot.float_quantize(x, exponent_bits, mantissa_bits, out=x) is x
    assert np.array_equal(x.astype(np.float32).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ingot.quantize_mx(np.zeros(4, np.float32)), "quantize_mx input: has 1 dimensions, expected 2"),
        (lambda: ingot.quantize_mx(np.zeros((2, 2), np.float32), "e4m3fnuz"), "out is e4m3fnuz, but must be one of"),
        (lambda: ingot.quantize_mx(np.zeros((2, 2), np.float32), "e2m1"), "'e2m1' is not one of f32, .*, e2m1fn; did you mean e2m1fn"),
        (lambda: ingot.float_quantize(np.zeros((2, 2), np.float32), 8, 0), "exponent_bits is 8, but must be 1 to 7"),
        (lambda: ingot.float_quantize(np.zeros((2, 2), np.float16), 5, 2), "but f16 holds the values of formats"),
        (lambda: ingot.cast(np.zeros((2, 2), np.float32), "e2m1fn"), "out is e2m1fn, but must be one of e4m3fn"),
        (
            lambda: ingot.float_quantize(np.zeros((2, 2), np.float32), 3, 2, out=np.zeros((2, 2), np.float16)),
            "float_quantize out: is float16, but is written as f32",
        ),
        (
            lambda: ingot.float_quantize(np.zeros((2, 2), np.float32), 3, 2, out=np.zeros((2, 2), np.float32).T),
            "float_quantize out: must have contiguous rows",
        ),
        (lambda: ingot.pack_codes(np.full((1, 2), 16, np.uint8), "e2m1fn"), "code 0 is 0x10, but those of e2m1fn have 4"),
        (lambda: ingot.pack_codes(np.zeros(2, np.uint8), "e2m1fn"), "codes have 1 dimensions, expected 2"),
        (lambda: ingot.unpack_codes(np.zeros(2, np.uint8), "e2m1fn", 4), "packed rows have 1 dimensions, expected 2"),
        (lambda: ingot.unpack_codes(np.zeros((1, 2), np.uint8), "e2m1fn", 6), "cols: is 6, but rows of 2 bytes hold 0 to 4 codes of e2m1fn"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ingot.Error, match=message):
        call()

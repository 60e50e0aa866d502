"""encode and decode against ml_dtypes, for all four formats."""

import ml_dtypes
import numpy as np
import pytest

import ingot

FORMATS = {
    "e4m3fn": (ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0),
    "e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, 240.0),
    "e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, 57344.0),
}


def encode_with_ml_dtypes(values: np.ndarray, dtype: str) -> np.ndarray:
    """ml_dtypes does not saturate, so the clipping is ours."""
    format_, largest = FORMATS[dtype]
    return np.clip(values, -largest, largest).astype(format_)


def assert_same_codes(values: np.ndarray, dtype: str) -> None:
    """Equal bit for bit; NaN by class, since ml_dtypes keeps its sign."""
    got = ingot.encode(values, dtype)
    want = encode_with_ml_dtypes(values, dtype)
    is_nan = np.isnan(values)
    assert np.isnan(ingot.decode(got[is_nan], dtype)).all()
    differs = np.flatnonzero(got[~is_nan] != want[~is_nan].view(np.uint8))
    assert differs.size == 0, (
        f"{differs.size} codes differ, first: {values[~is_nan][differs[0]]!r} -> "
        f"{got[~is_nan][differs[0]]:#04x}, ml_dtypes {want[~is_nan].view(np.uint8)[differs[0]]:#04x}"
    )


@pytest.mark.parametrize("dtype", FORMATS)
def test_decode_of_all_codes(dtype):
    codes = np.arange(256, dtype=np.uint8)
    want = codes.view(FORMATS[dtype][0]).astype(np.float32)
    got = ingot.decode(codes, dtype)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    finite = ~np.isnan(want)
    assert np.array_equal(got[finite].view(np.uint32), want[finite].view(np.uint32))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", [ml_dtypes.bfloat16, np.float16])
def test_encode_of_all_16_bit_inputs(dtype, source):
    assert_same_codes(np.arange(65536, dtype=np.uint16).view(source).astype(np.float32), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_encode_at_every_rounding_boundary(dtype):
    finite = ingot.decode(np.arange(256, dtype=np.uint8), dtype).astype(np.float64)
    finite = np.unique(finite[np.isfinite(finite)])
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    around = [middles]
    for direction in (np.float32(-np.inf), np.float32(np.inf)):
        neighbour = middles
        for _ in range(4):
            neighbour = np.nextafter(neighbour, direction)
            around.append(neighbour)
    assert_same_codes(np.concatenate([finite.astype(np.float32), *around]), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_encode_of_random_bit_patterns(dtype):
    bits = np.random.default_rng(1).integers(0, 2**32, 4_000_000, dtype=np.uint64).astype(np.uint32)
    assert_same_codes(bits.view(np.float32), dtype)


def test_unknown_dtype_lists_the_known_ones():
    with pytest.raises(ingot.Error, match="'float7' is not one of f32, bf16, f16, e4m3fn"):
        ingot.encode([1.0], "float7")
    with pytest.raises(ingot.Error, match="expected e4m3fn, e5m2, e4m3fnuz, e5m2fnuz, e3m2fn, e2m3fn or e2m1fn, got bf16"):
        ingot.encode([1.0], "bf16")

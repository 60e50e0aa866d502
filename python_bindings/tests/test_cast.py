"""Casts against torchao's formula computed by PyTorch on the CPU, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

import ingot

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
FORMATS = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"]
SHAPES = [(1, 1), (1, 37), (37, 1), (8, 8), (17, 33), (120, 2080), (129, 257)]


def fp8(dtype: str):
    return getattr(torch, f"float8_{dtype}")


def reference(x, dtype: str, scale: str, pow2: bool):
    """The formula of torchao's tensor_to_scale and hp_tensor_and_scale_to_float8, written out."""
    largest = torch.finfo(fp8(dtype)).max
    amax = x.abs().amax() if scale == "tensor" else x.abs().amax(dim=1, keepdim=True)
    factor = (largest / torch.clamp(amax.to(torch.float64), min=1e-12)).to(torch.float32)
    if pow2:
        factor = torch.exp2(torch.floor(torch.log2(factor)))
    codes = (x.to(torch.float32) * factor).clamp(-largest, largest).to(fp8(dtype))
    return codes, 1.0 / factor.reshape(-1)


def make(shape, dtype, kind):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(shape, generator=generator)
    if kind == "spread":
        x = x * torch.exp2(torch.randint(-30, 10, shape, generator=generator).float())
    elif kind == "zeros":
        x = torch.zeros(shape)
    elif kind == "equal":
        x = torch.full(shape, -3.25)
    return x.to(dtype)


@needs_torch
@pytest.mark.parametrize("kind", ["normal", "spread", "zeros", "equal"])
@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("scale", ["tensor", "row"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
def test_codes_and_scale_inv_equal_torchaos(source, dtype, scale, pow2, kind):
    for shape in SHAPES:
        x = make(shape, getattr(torch, source), kind)
        want_codes, want_scale_inv = reference(x, dtype, scale, pow2)
        got = ingot.cast(x, dtype, scale=scale, pow2=pow2, transposed=True)
        assert torch.equal(got.codes.view(torch.uint8), want_codes.view(torch.uint8)), shape
        assert torch.equal(got.transposed.view(torch.uint8), want_codes.view(torch.uint8).t()), shape
        assert torch.equal(got.scale_inv.view(torch.int32), want_scale_inv.view(torch.int32)), shape


@needs_torch
def test_numpy_and_torch_give_the_same_bytes():
    x = make((33, 65), torch.bfloat16, "normal")
    as_numpy = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    from_torch = ingot.cast(x, "e5m2", scale="row")
    from_numpy = ingot.cast(as_numpy, "e5m2", scale="row")
    assert np.array_equal(from_torch.codes.view(torch.uint8).numpy(), from_numpy.codes.view(np.uint8))
    assert np.array_equal(from_torch.scale_inv.numpy(), from_numpy.scale_inv)
    assert from_numpy.codes.dtype == ml_dtypes.float8_e5m2


def test_amax_keeps_nan():
    x = np.array([[1, -4, 2], [0, np.nan, 1]], np.float32)
    rows = ingot.amax(x, "row")
    assert rows[0] == 4 and np.isnan(rows[1])
    assert np.isnan(ingot.amax(x)[0])


@needs_torch
def test_strided_rows_are_read_in_place():
    wide = make((16, 64), torch.float32, "normal")
    part = wide[:, 8:40]
    assert not part.is_contiguous()
    want_codes, _ = reference(part.contiguous(), "e4m3fn", "tensor", False)
    assert torch.equal(ingot.cast(part).codes.view(torch.uint8), want_codes.view(torch.uint8))
    by_columns = make((64, 16), torch.float32, "normal").t()
    want_codes, _ = reference(by_columns.contiguous(), "e4m3fn", "tensor", False)
    assert torch.equal(ingot.cast(by_columns).codes.view(torch.uint8), want_codes.view(torch.uint8))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("scale", ["tensor", "row"])
def test_empty_matrices(shape, scale):
    got = ingot.cast(np.zeros(shape, np.float32), scale=scale, transposed=True)
    assert got.codes.shape == shape and got.transposed.shape == shape[::-1]
    assert got.scale_inv.shape == ((shape[0],) if scale == "row" else (1,))
    assert np.isfinite(got.scale_inv).all()


@pytest.mark.parametrize("scale", ["tensor", "row", "128x128"])
def test_scales_of_any_kind_are_given(scale):
    """Negative, subnormal and huge ones, with the scale_inv of IEEE's division; 0 and Inf show."""
    given = np.array([-0.75, 3e38, -2.5e38, 1e-39, 1e-45, 8.5070592e37, 0.0, np.inf, np.nan], np.float32)
    x = np.float32([[-3.0, 2.0, 0.5]])
    for value in given:
        got = ingot.cast(x, scale=scale, scales=np.array([value], np.float32))
        with np.errstate(divide="ignore", over="ignore"):
            expected = np.float32(np.nan) if np.isinf(value) else np.float32(1) / value
        np.testing.assert_array_equal(got.scale_inv.ravel(), [expected])
        if value == -0.75:
            np.testing.assert_allclose(got.codes.astype(np.float32) * got.scale_inv, x, rtol=0.07)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ingot.cast(np.zeros(4, np.float32)), "cast input: has 1 dimensions, expected 2"),
        (lambda: ingot.cast(np.zeros((2, 2, 2), np.float32)), "cast input: has 3 dimensions, expected 2"),
        (lambda: ingot.cast([[1.0]]), "expected a NumPy array or a PyTorch tensor, got list"),
        (lambda: ingot.cast(np.zeros((2, 2))), "float64 is not one of f32, bf16, f16"),
        (lambda: ingot.cast(np.zeros((2, 2), np.int32)), "is not one of f32, bf16, f16"),
        (lambda: ingot.cast(np.zeros((2, 2), np.uint16)), r"uint16 is not one of .*give array.view\(ml_dtypes.bfloat16\)"),
        (lambda: ingot.cast(np.zeros((2, 2), np.float32), "bf16"), "bf16"),
        (lambda: ingot.cast(np.zeros((2, 2), np.float32), scale="column"), 'unknown scale granularity "column"'),
        (
            lambda: ingot.cast(np.zeros((2, 2), np.float32), scale="rows"),
            'expected "tensor", "row", "col", "1x128", "128x1" or "128x128"$',
        ),
        (lambda: ingot.cast(np.zeros((2, 2), np.float32), codes=False), "codes"),
        (lambda: ingot.cast(np.zeros((2, 2), np.float32), scale="row").T, 'needs scale "tensor"'),
        (lambda: ingot.Context("tpu"), 'expected "auto", "cpu", "cuda" or "cuda:N", got "tpu"'),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ingot.Error, match=message):
        call()

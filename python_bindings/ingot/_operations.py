"""The operations on arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from . import _core
from ._arrays import arrays_of, dtype_name
from ._context import Context, context_for


@dataclasses.dataclass(frozen=True)
class Float8Array:
    """A matrix in FP8: value = code * factor.

    codes[rows, cols] and transposed[cols, rows] hold the same codes; either may be None. factors is float32: one element
    (scale "tensor") or one per row (scale "row").
    """

    codes: Any
    transposed: Any
    factors: Any
    dtype: str
    scale: str

    @property
    def T(self) -> Float8Array:
        """The transposed matrix, without touching a byte. One scale per row does not survive transposition."""
        if self.scale != "tensor":
            raise _core.Error(f'Float8Array.T: needs scale "tensor", this one has "{self.scale}": its factors belong to rows')
        return Float8Array(self.transposed, self.codes, self.factors, self.dtype, self.scale)


def _out_shape_of_factors(array: Any, scale: str) -> tuple[int]:
    return (array.shape[0] if scale == "row" and len(array.shape) == 2 else 1,)


def amax(x: Any, scale: str = "tensor", *, context: Context | None = None) -> Any:
    """max |x| of the whole matrix (scale "tensor") or of each row ("row"), float32. NaN is kept."""
    arrays = arrays_of(x)
    result = arrays.empty(_out_shape_of_factors(x, scale), "f32")
    context = context or context_for(arrays.device)
    _core.amax(context, arrays.bits(x), arrays.dtype(x), scale, arrays.bits(result), arrays.stream)
    return result


def cast(
    x: Any,
    dtype: Any = "e4m3fn",
    *,
    scale: str = "tensor",
    codes: bool = True,
    transposed: bool = False,
    pow2: bool = False,
    context: Context | None = None,
) -> Float8Array:
    """Casts x[rows, cols] (float32, bfloat16 or float16) to FP8 with dynamic scales.

    scale = float32(FP8_MAX / max(float64(amax), 1e-12)), rounded down to a power of two if `pow2`; codes = round to
    nearest even of saturate(x * scale); factors = 1 / scale. NaN and Inf: see ARCHITECTURE.md, "Numerics contract".
    """
    arrays = arrays_of(x)
    out = dtype_name(dtype)
    rows, cols = (x.shape[0], x.shape[1]) if len(x.shape) == 2 else (0, 0)  # another rank is refused below
    result = Float8Array(
        codes=arrays.empty((rows, cols), out) if codes else None,
        transposed=arrays.empty((cols, rows), out) if transposed else None,
        factors=arrays.empty(_out_shape_of_factors(x, scale), "f32"),
        dtype=out,
        scale=scale,
    )
    bits = lambda array: None if array is None else arrays.bits(array)  # noqa: E731
    context = context or context_for(arrays.device)
    _core.cast(
        context, arrays.bits(x), arrays.dtype(x), out, scale, pow2,
        bits(result.codes), bits(result.transposed), arrays.bits(result.factors), arrays.stream,
    )  # fmt: skip
    return result


def gemm(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    out_dtype: Any = None,
    layout: str = "nt",
    fast_accumulation: bool = False,
    context: Context | None = None,
) -> Any:
    """out[M, N] = a @ b^T + bias, summed in float32 and rounded once.

    With layout "nt" a is [M, K] and b is [N, K] (how a linear layer keeps its weight). "nn" takes b as [K, N], "tn" a as
    [K, M], "tt" both; FP8 operands are "nt" only: use cast(..., transposed=True) and Float8Array.T for the others.
    a, b: two Float8Array, or two arrays of one high-precision dtype. out_dtype: by default the arrays' own, or bf16 for FP8
    (as a NumPy array of ml_dtypes.bfloat16, or of its bits in uint16 where ml_dtypes is not installed). bias: [N] of out_dtype (bfloat16 where out_dtype is
    float32 and the operands are FP8).
    """
    if layout not in ("nt", "nn", "tn", "tt"):
        raise _core.Error(f'gemm layout: expected "nt", "nn", "tn" or "tt", got {layout!r}')
    first = a.codes if isinstance(a, Float8Array) else a
    if first is None:
        raise _core.Error("gemm a: this Float8Array has no codes; cast with codes=True, or transposed=True before .T")
    arrays = arrays_of(first)
    operand_a = _operand(arrays, a, layout[0] == "n", "gemm a")
    operand_b = _operand(arrays, b, layout[1] == "t", "gemm b")
    second = b.codes if isinstance(b, Float8Array) else b
    rows = lambda array, k_major: array.shape[0 if k_major else -1] if len(array.shape) == 2 else 0  # noqa: E731
    if out_dtype is None:
        out_dtype = "bf16" if isinstance(a, Float8Array) else arrays.dtype(first)
    out = dtype_name(out_dtype)
    result = arrays.empty((rows(first, layout[0] == "n"), rows(second, layout[1] == "t")), out)
    context = context or context_for(arrays.device)
    _core.gemm(
        context, operand_a, operand_b, None if bias is None else arrays.bits(bias),
        "" if bias is None else arrays.dtype(bias),
        arrays.bits(result), out, fast_accumulation, arrays.stream,
    )  # fmt: skip
    return result


def _operand(arrays: Any, x: Any, k_major: bool, what: str) -> Any:
    if not isinstance(x, Float8Array):
        return _core.Operand(arrays.bits(x), arrays.dtype(x), None, "tensor", k_major)
    if x.codes is None:
        raise _core.Error(f"{what}: this Float8Array has no codes; cast with codes=True, or transposed=True before .T")
    return _core.Operand(arrays.bits(x.codes), x.dtype, arrays.bits(x.factors), x.scale, k_major)


def encode(x: Any, dtype: Any) -> np.ndarray:
    """The FP8 codes of float32 values, unscaled, as uint8: round to nearest even, saturating. Any shape, on the CPU."""
    values = np.ascontiguousarray(x, dtype=np.float32)
    codes = np.empty(values.size, np.uint8)
    _core.encode(values.reshape(-1), dtype_name(dtype), codes)
    return codes.reshape(values.shape)


def decode(codes: Any, dtype: Any) -> np.ndarray:
    """The float32 values of FP8 codes (any one-byte array). Exact. Any shape, on the CPU."""
    raw = np.ascontiguousarray(codes).view(np.uint8)
    values = np.empty(raw.size, np.float32)
    _core.decode(raw.reshape(-1), dtype_name(dtype), values)
    return values.reshape(raw.shape)

"""Casts to MX, and roundings to formats of up to eight bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from . import _core
from ._arrays import PACKED_BITS, arrays_of, dtype_name
from ._context import Context, context_for


@dataclasses.dataclass(frozen=True)
class MxArray:
    """A matrix in MX (OCP Microscaling 1.0): value[r, c] = code[r, c] * 2^(scales[r, c // 32] - 127).

    codes: for FP8 [rows, cols]; for FP6 and FP4 packed rows of bytes, [rows, ceil(cols / 4) * 3] or
    [rows, ceil(cols / 2)], which unpack_codes() unpacks. scales: [rows, ceil(cols / 32)] of e8m0fnu, or of its bits if
    the framework lacks the type; 255 is NaN. shape: the matrix's shape.
    """

    codes: Any
    scales: Any
    dtype: str
    shape: tuple[int, int]


def quantize_mx(x: Any, dtype: Any = "e4m3fn", *, context: Context | None = None) -> MxArray:
    """Casts x[rows, cols] (float32, bfloat16 or float16) to MX with codes in e4m3fn, e5m2, e3m2fn, e2m3fn or e2m1fn.

    Each group of 32 neighbours in a row shares a power-of-two scale: 2^(floor(log2(max |x|)) - floor(log2(largest value
    of dtype))). Codes are rounded to nearest even and saturated. A group with a NaN or an Inf has the scale NaN.
    """
    arrays = arrays_of(x)
    bits, in_dtype, out = arrays.bits(x), arrays.dtype(x), dtype_name(dtype)
    rows, cols = (x.shape[0], x.shape[1]) if len(x.shape) == 2 else (0, 0)  # the core refuses any other rank
    row_bytes = _packed_bytes(out, cols)
    codes = arrays.empty((rows, row_bytes), out)
    if row_bytes * 8 != cols * PACKED_BITS.get(out, 8):
        codes[...] = 0  # padding after the last code of a row, which the cast does not write
    scales = arrays.empty((rows, -(-cols // 32)), "e8m0fnu")
    context = context or context_for(arrays.device)
    _core.quantize_mx(context, bits, in_dtype, arrays.bits(codes), out, arrays.bits(scales), arrays.stream)
    return MxArray(codes=codes, scales=scales, dtype=out, shape=(rows, cols))


def float_quantize(
    x: Any, exponent_bits: int, mantissa_bits: int, *, out: Any = None, context: Context | None = None
) -> Any:
    """Rounds x[rows, cols] to nearest even in a float format and returns the values in x's own dtype.

    The format has a sign, exponent_bits (1 to 7) and mantissa_bits (0 to 6), 8 bits in all at most, and neither Inf nor
    NaN: values beyond its largest become the largest; NaN stays NaN. `out` may be x itself.
    """
    arrays = arrays_of(x)
    result = arrays.empty(tuple(x.shape), arrays.dtype(x)) if out is None else out
    if out is not None and (type(out) is not type(x) or arrays.dtype(out) != arrays.dtype(x)):
        raise _core.Error("float_quantize out: must be of the framework and dtype of x")
    to = arrays.bits(result)
    if out is not None and len(out.shape) == 2 and out.shape[1] > 1 and not _same_rows(out):
        raise _core.Error("float_quantize out: must have contiguous rows; it is written in place")
    context = context or context_for(arrays.device)
    _core.float_quantize(
        context, arrays.bits(x), arrays.dtype(x), exponent_bits, mantissa_bits, to, arrays.stream
    )  # fmt: skip
    return result


def pack_codes(codes: Any, dtype: Any) -> np.ndarray:
    """Packs codes[rows, cols], one per byte, into rows of bytes as MxArray has them. Runs on the CPU."""
    raw = np.ascontiguousarray(codes).view(np.uint8)
    if raw.ndim != 2:
        raise _core.Error(f"pack_codes: codes have {raw.ndim} dimensions, expected 2; reshape them")
    name = dtype_name(dtype)
    packed = np.zeros((raw.shape[0], _packed_bytes(name, raw.shape[1])), np.uint8)
    for row, target in zip(raw, packed):
        _core.pack_codes(row, name, target[: _least_bytes(name, raw.shape[1])])
    return packed


def unpack_codes(packed: Any, dtype: Any, cols: int) -> np.ndarray:
    """Unpacks rows of bytes (a NumPy array) into codes[rows, cols], one per byte: the inverse of pack_codes()."""
    raw = np.ascontiguousarray(packed).view(np.uint8)
    if raw.ndim != 2:
        raise _core.Error(f"unpack_codes: packed rows have {raw.ndim} dimensions, expected 2; reshape them")
    name = dtype_name(dtype)
    codes = np.empty((raw.shape[0], cols), np.uint8)
    for row, target in zip(raw, codes):
        _core.unpack_codes(np.ascontiguousarray(row[: _least_bytes(name, cols)]), name, target)
    return codes


def _least_bytes(dtype: str, cols: int) -> int:
    return -(-cols * PACKED_BITS.get(dtype, 8) // 8)


def _packed_bytes(dtype: str, cols: int) -> int:
    """Returns the bytes of a packed row: whole groups of four 6-bit codes, or of two 4-bit codes."""
    bits = PACKED_BITS.get(dtype, 8)
    unit = {6: 4, 4: 2, 8: 1}[bits]
    return -(-cols // unit) * unit * bits // 8


def _same_rows(array: Any) -> bool:
    stride = array.strides[-1] // array.itemsize if isinstance(array, np.ndarray) else array.stride(-1)
    return stride == 1

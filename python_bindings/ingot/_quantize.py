"""Casts to MX, and roundings to formats of up to eight bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from . import _core
from ._arrays import PACKED_BITS, arrays_of, dtype_name, host_codes, option
from ._context import Context, context_of


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
    Raises ingot.Error for another dtype and for what is no matrix.
    """
    arrays = arrays_of(x, "quantize_mx input")
    in_dtype, out = arrays.dtype(x, "quantize_mx input"), dtype_name(dtype)
    bits = arrays.bits(x, "quantize_mx input")
    rows, cols = (x.shape[0], x.shape[1]) if len(x.shape) == 2 else (0, 0)  # the core refuses any other rank
    row_bytes = _packed_bytes(out, cols)
    codes = arrays.empty((rows, row_bytes), out)
    if row_bytes * 8 != cols * PACKED_BITS.get(out, 8):
        codes[...] = 0  # padding after the last code of a row, which the cast does not write
    scales = arrays.empty((rows, -(-cols // 32)), "e8m0fnu")
    context = context_of(context, arrays.device)
    _core.quantize_mx(context, bits, in_dtype, arrays.bits(codes), out, arrays.bits(scales), arrays.stream)
    return MxArray(codes=codes, scales=scales, dtype=out, shape=(rows, cols))


def float_quantize(
    x: Any, exponent_bits: int, mantissa_bits: int, *, out: Any = None, context: Context | None = None
) -> Any:
    """Rounds x[rows, cols] to nearest even in a float format and returns the values in x's own dtype.

    The format has a sign, exponent_bits (1 to 7) and mantissa_bits (0 to 6), 8 bits in all at most, and neither Inf nor
    NaN: values beyond its largest become the largest; NaN stays NaN. `out` may be x itself.
    Raises ingot.Error for other numbers of bits and for what is no matrix.
    """
    what = "float_quantize input"
    arrays = arrays_of(x, what)
    in_dtype = arrays.dtype(x, what)
    exponent_bits = option(exponent_bits, int, "float_quantize exponent_bits")
    mantissa_bits = option(mantissa_bits, int, "float_quantize mantissa_bits")
    for name, count in (("exponent_bits", exponent_bits), ("mantissa_bits", mantissa_bits)):
        if not 0 <= count <= 32:  # beyond what the core reads; it knows the bounds
            raise _core.Error(f"float_quantize {name}: is {count}, but must be at most 7")
    if out is None:
        result = arrays.empty(tuple(x.shape), in_dtype)
        to = arrays.bits(result)
    else:
        result, to = out, arrays.output(out, (in_dtype,), "float_quantize out")
    context = context_of(context, arrays.device)
    _core.float_quantize(context, arrays.bits(x, what), in_dtype, exponent_bits, mantissa_bits, to, arrays.stream)
    return result


def pack_codes(codes: Any, dtype: Any) -> np.ndarray:
    """Packs codes[rows, cols], one per byte, into rows of bytes as MxArray has them. Runs on the CPU. Raises ingot.Error
    for what is no matrix of uint8, and for another dtype."""
    name = dtype_name(dtype)
    raw = host_codes(codes, name, "pack_codes codes")
    if raw.ndim != 2:
        raise _core.Error(f"pack_codes: codes have {raw.ndim} dimensions, expected 2; reshape them")
    packed = np.zeros((raw.shape[0], _packed_bytes(name, raw.shape[1])), np.uint8)
    for row, target in zip(raw, packed):
        _core.pack_codes(row, name, target[: _least_bytes(name, raw.shape[1])])
    return packed


def unpack_codes(packed: Any, dtype: Any, cols: int) -> np.ndarray:
    """Unpacks rows of bytes into codes[rows, cols], one per byte: the inverse of pack_codes(). Raises
    ingot.Error for rows of fewer than `cols` codes."""
    name = dtype_name(dtype)
    raw = host_codes(packed, "u8" if name in PACKED_BITS else name, "unpack_codes packed")
    if raw.ndim != 2:
        raise _core.Error(f"unpack_codes: packed rows have {raw.ndim} dimensions, expected 2; reshape them")
    cols = option(cols, int, "unpack_codes cols")
    if cols < 0 or _least_bytes(name, cols) > raw.shape[1]:
        raise _core.Error(
            f"unpack_codes cols: is {cols!r}, but rows of {raw.shape[1]} bytes hold 0 to "
            f"{raw.shape[1] * 8 // PACKED_BITS.get(name, 8)} codes of {name}"
        )
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

"""The package's functions on arrays: casts to FP8, GEMMs, pointwise expressions, and encoding of single codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from ._arrays import PACKED_BITS, SIZE, arrays_of, dtype_name, host_codes, host_values, option
from ._context import Context, context_of


@dataclasses.dataclass(frozen=True)
class Float8Array:
    """A matrix in FP8, value = code * factor, and further outputs of the cast that made it.

    codes[rows, cols] and transposed[cols, rows] hold the codes; either may be None. scale_inv is float32, one element for
    each scale: [1] for scale "tensor", [rows] for "row", [cols] for "col", [rows, ceil(cols / 128)] for "1x128",
    [ceil(rows / 128), cols] for "128x1", and so on. If the transposed codes have their own scales, these are
    transposed_scale and transposed_scale_inv, both described on the matrix before its transposition.
    result, sum, amax and transposed_amax are outputs that the cast was asked for, and otherwise None.
    """

    codes: Any
    transposed: Any
    scale_inv: Any
    dtype: str
    scale: str
    transposed_scale: str | None = None
    transposed_scale_inv: Any = None
    result: Any = None
    sum: Any = None
    amax: Any = None
    transposed_amax: Any = None

    @property
    def T(self) -> Float8Array:
        """The transposed matrix, a view without a copy. Its scales are those of the transposed codes, as seen on the
        transposed matrix: a scale for each column of x ("col") is one for each row of x.T."""
        if self.transposed_scale is None and self.scale not in ("tensor", "128x128"):
            raise _core.Error(
                f'Float8Array.T: needs scale "tensor" or "128x128", or a transposed_scale; this one has "{self.scale}": '
                f"its scale_inv belong to rows"
            )
        own = self.transposed_scale is not None
        return Float8Array(
            codes=self.transposed,
            transposed=self.codes,
            scale_inv=_turned(self.transposed_scale_inv if own else self.scale_inv),
            dtype=self.dtype,
            scale=_TURNED.get(self.transposed_scale, self.transposed_scale) if own else self.scale,
            transposed_scale=_TURNED.get(self.scale, self.scale) if own else None,
            transposed_scale_inv=_turned(self.scale_inv) if own else None,
        )


_TURNED = {"row": "col", "col": "row", "1x128": "128x1", "128x1": "1x128"}


def _turned(scale_inv: Any) -> Any:
    return scale_inv.T if len(scale_inv.shape) == 2 else scale_inv


def amax(x: Any, scale: str = "tensor", *, context: Context | None = None) -> Any:
    """Returns max |x| in float32 over the whole matrix (scale "tensor"), each row ("row") or each column ("col"). A NaN
    in x makes the maximum NaN. x: (rows, cols), float32, bfloat16 or float16. Raises ingot.Error for other arrays."""
    arrays = arrays_of(x, "amax input")
    in_dtype = arrays.dtype(x, "amax input")
    result = _per_extent(arrays, scale, *_shape(x))
    context = context_of(context, arrays.device)
    _core.amax(context, arrays.bits(x, "amax input"), in_dtype, scale, arrays.bits(result.reshape(-1)), arrays.stream)
    return result


def cast(
    x: Any,
    dtype: Any = "e4m3fn",
    *,
    scale: str = "tensor",
    transposed_scale: str | None = None,
    codes: bool = True,
    transposed: bool = False,
    pow2: bool = False,
    scales: Any = None,
    transposed_scales: Any = None,
    amax: Any = None,
    transposed_amax: Any = None,
    of: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    result: bool = False,
    sum: Any = None,
    unrounded: bool = False,
    fast: bool = False,
    context: Context | None = None,
) -> Float8Array:
    """Casts x[rows, cols] (float32, bfloat16 or float16) to FP8.

    scale = float32(FP8_MAX / max(float64(amax), 1e-12)), rounded down to a power of two if `pow2`; codes = round to
    nearest even of saturate(x * scale); scale_inv = 1 / scale. NaN and Inf: see docs/numerics.md.

    scale: which elements share a scale: "tensor", "row", "col", "1x128", "128x1" or "128x128". With `transposed_scale`
    the transposed codes have their own scales, so that one call makes the operands of two GEMMs.

    scales: use these scales instead of computing them (float32, one for each factor; with transposed_scale also
    transposed_scales). The cast then records the maxima that the scales should have come from: it raises `amax` (and
    transposed_amax) in place if given, and otherwise returns a new array.

    of: an expression of x that the cast computes first: "silu(x) * gate + bias[col]". A plain name is a matrix of x's
    shape and dtype; name[col] is a vector [cols] of that dtype, name[col:f32] one of float32; name[row] is a float32
    vector [rows]. `inputs` maps names to arrays, and may have more than the expression reads. If the expression does
    not use x, x may be None. Its values are rounded to x's dtype first, as a separate operation would do, unless
    `unrounded`. fast: use the GPU's own exp, tanh and so on, which differ from the CPU's in the last bits.
    result: also return the values, in x's dtype. sum: also return their sum over each column, in this dtype ("f32",
    "bf16", "f16"): the gradient of a bias. `sum` needs no expression.

    Raises ingot.Error for other dtypes and scales, arrays that do not fit, and an expression that cannot be read.
    """
    kinds = _expression_inputs(of, inputs)
    if x is None:
        x = _any_matrix(of, kinds, inputs)
    arrays = arrays_of(x, "cast input")
    in_dtype, out = arrays.dtype(x, "cast input"), dtype_name(dtype)
    x_bits = arrays.bits(x, "cast input")
    rows, cols = _shape(x)
    made = Float8Array(
        codes=arrays.empty((rows, cols), out) if codes else None,
        transposed=arrays.empty((cols, rows), out) if transposed else None,
        scale_inv=_per_extent(arrays, scale, rows, cols),
        dtype=out,
        scale=scale,
        transposed_scale=transposed_scale,
        transposed_scale_inv=None if transposed_scale is None else _per_extent(arrays, transposed_scale, rows, cols),
        result=arrays.empty((rows, cols), in_dtype) if result else None,
        sum=None if sum is None else arrays.empty((cols,), dtype_name(sum)),
        amax=_record(arrays, amax, scale if scales is not None else None, rows, cols),
        transposed_amax=_record(arrays, transposed_amax, transposed_scale if scales is not None else None, rows, cols),
    )
    call = _core.CastCall(
        in_dtype=in_dtype, out_dtype=out, scale=scale, transposed_scale=transposed_scale or "", of=of or "",
        sum="" if sum is None else dtype_name(sum),
        given=scales is not None, pow2=option(pow2, bool, "cast pow2"),
        unrounded=option(unrounded, bool, "cast unrounded"), fast=option(fast, bool, "cast fast"),
    )  # fmt: skip
    read = [read_input(arrays, inputs[name], f"cast input {name}") for name, _ in kinds]
    given = {"scales": scales, "transposed_scales": transposed_scales}
    _run_cast(context_of(context, arrays.device), arrays, call, x_bits, read, given, made)
    return made


def _run_cast(
    context: Context, arrays: Any, call: Any, x_bits: Any, inputs: list[Any], given: dict[str, Any], made: Float8Array
) -> None:
    """Runs the cast into the arrays of `made`; inputs: bits and dtype of each that the expression reads, in its order."""
    vectors = ("scale_inv", "transposed_scale_inv", "sum")
    outputs = {name: getattr(made, name) for name in ("codes", "transposed", "result", *vectors)}
    outputs = {
        name: arrays.bits(array.reshape(-1) if name in vectors else array)
        for name, array in outputs.items()
        if array is not None
    }
    scales = {
        name: read_floats(arrays, array, f"cast {name}").reshape(-1) for name, array in given.items() if array is not None
    }
    for name in ("amax", "transposed_amax"):  # which may be the caller's
        if getattr(made, name) is not None:
            outputs[name] = arrays.output(getattr(made, name), ("f32",), f"cast {name}").reshape(-1)
    _core.cast(context, call, x_bits, inputs, scales, outputs, arrays.stream)


def _shape(x: Any) -> tuple[int, int]:
    return (x.shape[0], x.shape[1]) if len(x.shape) == 2 else (0, 0)  # the core refuses any other rank


def _per_extent(arrays: Any, scale: str, rows: int, cols: int) -> Any:
    """Returns an array with one element for each scale."""
    if not isinstance(scale, str):
        raise _core.Error(f'scale: expected "tensor", "row" or another granularity, got {type(scale).__name__}')
    return arrays.empty(tuple(_core.scale_shape(scale, rows, cols)), "f32")


def _record(arrays: Any, amax: Any, scale: str | None, rows: int, cols: int) -> Any:
    """Returns the array that records maxima under given scales: the caller's, or a new one of zeros."""
    if amax is None and scale is not None:
        amax = _per_extent(arrays, scale, rows, cols)
        amax[...] = 0
        return amax
    if amax is not None:
        arrays.own(amax, "cast amax")
        if not arrays.is_contiguous(amax):
            raise _core.Error("cast amax: must be contiguous; it is raised in place")
    return amax


def read_input(arrays: Any, array: Any, what: str) -> tuple[Any, str]:
    """Returns an input's bits and dtype."""
    return arrays.bits(array, what), arrays.dtype(array, what)


def read_floats(arrays: Any, array: Any, what: str) -> Any:
    """Returns the bits of a float32 array."""
    bits, dtype = read_input(arrays, array, what)
    if dtype != "f32":
        raise _core.Error(f"{what}: must be float32, but is {dtype}; convert it")
    return bits


def _expression_inputs(of: str | None, inputs: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Returns the names and kinds of an expression's inputs. `inputs` must have all of them; it may have more, because a
    derivative often reads fewer inputs than its expression."""
    kinds = [] if of is None else _core.expression_inputs(option(of, str, "expression"))[1]
    wanted, found = [name for name, _ in kinds], list(inputs or {})
    if of is None and found:
        raise _core.Error(f"inputs: there is no expression (of=) that would read {found}")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise _core.Error(f"inputs: must map names to arrays, but is a {type(inputs).__name__}")
    if not set(wanted) <= set(found):
        raise _core.Error(f"inputs: the expression reads {wanted}, but given are {found}")
    return kinds


def _any_matrix(of: str | None, kinds: list[tuple[str, str]], inputs: Mapping[str, Any] | None) -> Any:
    """Returns a matrix input of the expression, which determines the shape if x is None."""
    if of is None or _core.expression_inputs(of)[0]:
        raise _core.Error("cast x: is None, which is for expressions that do without x")
    for name, kind in kinds:
        if kind == "matrix":
            return inputs[name]
    raise _core.Error("cast x: is None, and the expression has no matrix to take the shape from")


# ---- expressions -----------------------------------------------------------------------------------------------------


def derivative(of: str, by: str = "x") -> str:
    """Returns the partial derivative of an expression (see cast) by x or by one of its inputs, as an expression.
    Raises ingot.Error, with the place in the text, for what is no expression."""
    return _core.derivative(option(of, str, "expression"), option(by, str, "by"))


def backward(of: str, by: str = "x", grad: str = "grad") -> str:
    """Returns grad * derivative(of, by), as an expression: the gradient by `by`, given the gradient `grad` of the value.
    Raises ingot.Error, with the place in the text, for what is no expression."""
    return _core.backward(option(of, str, "expression"), option(by, str, "by"), option(grad, str, "grad"))


def evaluate(of: str, /, x: Any = None, **inputs: Any) -> np.ndarray:
    """Returns the values of an expression (see cast) in float64, computed on the CPU, as a reference. x and matrices are
    [rows, cols] or broadcast to it; name[col] and name[col:f32] are [cols], name[row] is [rows]. Raises ingot.Error for shapes that do not
    broadcast, a missing input, and an expression that cannot be read."""
    uses_x, _ = _core.expression_inputs(option(of, str, "expression"))
    if uses_x and x is None:
        raise _core.Error("evaluate x: is missing, but the expression uses it")
    kinds = _expression_inputs(of, inputs)
    arrays = [host_values(0.0 if x is None else x, np.float64, "evaluate x")]
    for name, kind in kinds:
        array = host_values(inputs[name], np.float64, f"evaluate {name}")
        arrays.append(array[:, None] if kind == "row" and array.ndim == 1 else array)
    try:
        arrays = [np.ascontiguousarray(array) for array in np.broadcast_arrays(*arrays)]
    except ValueError:
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise _core.Error(f"evaluate: x and the inputs have the shapes {shapes}, which do not broadcast to one") from None
    shape = arrays[0].shape
    results = np.empty(arrays[0].size, np.float64)
    flat = [array.reshape(-1) for array in arrays]
    _core.evaluate(of, flat[0], flat[1:], results)
    return results.reshape(shape)


# ---- GEMM and codes --------------------------------------------------------------------------------------------------


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
    """Returns out[M, N] = a @ b^T + bias, summed in float32 and rounded once.

    With layout "nt", a is [M, K] and b is [N, K], as a linear layer keeps its weight. "nn" takes b as [K, N], "tn" takes
    a as [K, M], "tt" both. FP8 operands must be "nt": use cast(..., transposed=True) and Float8Array.T for the others.
    a, b: two Float8Array, or two arrays of one high-precision dtype. out_dtype: by default the arrays' own dtype, or
    bf16 for FP8 (for NumPy an array of ml_dtypes.bfloat16, or of its bits in uint16 without ml_dtypes). bias: [N] of
    out_dtype (bfloat16 if out_dtype is float32 and the operands are FP8).

    Raises ingot.Error for arrays whose shapes or dtypes do not fit, and FP8 operands in another layout than "nt".
    """
    if layout not in ("nt", "nn", "tn", "tt"):
        raise _core.Error(f'gemm layout: expected "nt", "nn", "tn" or "tt", got {layout!r}')
    first, second = _matrix(a, "gemm a"), _matrix(b, "gemm b")
    arrays = arrays_of(first, "gemm a")
    operand_a = _operand(arrays, a, layout[0] == "n", "gemm a")
    operand_b = _operand(arrays, b, layout[1] == "t", "gemm b")
    rows = lambda array, k_major: array.shape[0 if k_major else -1] if len(array.shape) == 2 else 0  # noqa: E731
    if out_dtype is None:
        out_dtype = "bf16" if isinstance(a, Float8Array) else arrays.dtype(first, "gemm a")
    out = dtype_name(out_dtype)
    added, bias_dtype = (None, "") if bias is None else read_input(arrays, bias, "gemm bias")
    result = arrays.empty((rows(first, layout[0] == "n"), rows(second, layout[1] == "t")), out)
    context = context_of(context, arrays.device)
    _core.gemm(
        context, operand_a, operand_b, added, bias_dtype, arrays.bits(result), out,
        option(fast_accumulation, bool, "gemm fast_accumulation"), arrays.stream,
    )  # fmt: skip
    return result


def _matrix(x: Any, what: str) -> Any:
    if not isinstance(x, Float8Array):
        return x
    if x.codes is None:
        raise _core.Error(f"{what}: this Float8Array has no codes; cast with codes=True, or transposed=True before .T")
    return x.codes


def _operand(arrays: Any, x: Any, k_major: bool, what: str) -> Any:
    if not isinstance(x, Float8Array):
        bits, dtype = read_input(arrays, x, what)
        if dtype not in ("f32", "bf16", "f16") and dtype in SIZE:
            raise _core.Error(f"{what}: has codes of {dtype} without their scale_inv; give the Float8Array of cast()")
        return _core.Operand(bits, dtype, None, "tensor", k_major)
    scale_inv = read_floats(arrays, x.scale_inv, f"{what} scale_inv").reshape(-1)
    return _core.Operand(arrays.codes(x.codes, x.dtype, f"{what} codes"), x.dtype, scale_inv, option(x.scale, str, f"{what} scale"), k_major)


def encode(x: Any, dtype: Any) -> np.ndarray:
    """Returns the FP8, FP6 or FP4 codes of unscaled values, which are float32 or are rounded to it first: one per uint8,
    rounded to nearest even and saturated. Any shape; runs on the CPU. Raises ingot.Error for another format."""
    values = host_values(x, np.float32, "encode x")
    codes = np.empty(values.size, np.uint8)
    _core.encode(values.reshape(-1), dtype_name(dtype), codes)
    return codes.reshape(values.shape)


def decode(codes: Any, dtype: Any) -> np.ndarray:
    """Returns the exact float32 values of FP8, FP6 or FP4 codes, or of MX scales (e8m0fnu), one per element. Any shape;
    runs on the CPU. Raises Error for codes with more bits than the format has."""
    name = dtype_name(dtype)
    raw = host_codes(codes, name, "decode codes")
    bits = PACKED_BITS.get(name, 8)
    if bits < 8 and raw.size and raw.max() >> bits:
        at = int((raw >> bits != 0).argmax())
        code = int(raw.reshape(-1)[at])
        raise _core.Error(f"decode codes: code {at} is {code:#04x}, but those of {name} have {bits} bits: mask the others")
    values = np.empty(raw.size, np.float32)
    _core.decode(raw.reshape(-1), name, values)
    return values.reshape(raw.shape)

"""Weights as codes and scale_inv: how values are cast, packed and decoded."""

from __future__ import annotations

import functools

import torch

from .. import _core
from .._arrays import PACKED_BITS, dtype_name
from .._operations import decode as decode_on_host
from . import _operators as ops
from . import _weight_operators as weight_ops
from ._checks import called
from ._errors import LinearError
from ._module_calls import interned
from ._weight_operators import WeightFormat

FORMATS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m2fn", "e2m3fn", "e2m1fn")
SCALES = ("tensor", "row", "1x128", "1x64", "1x32", "128x128", "mx")
LAYOUTS = ("packed", "packed_f16", "row_major")
FLOAT8 = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
_CAST_AS_ROWS = {"1x64": 64, "1x32": 32}  # no cast has such groups: they are rows of the same memory


def weight_format(dtype, scale: str, pow2: bool, layout: str, batch_invariant: bool, subject: str) -> WeightFormat:
    """Returns the format of these options. Raises LinearError for an unknown one."""
    try:
        name = dtype_name(dtype)
    except _core.Error:
        name = dtype
    for what, value, known in (("weight_dtype", name, FORMATS), ("scale", scale, SCALES), ("layout", layout, LAYOUTS)):
        if value not in known:
            near = f": did you mean {value}fn?" if f"{value}fn" in known else ""
            raise LinearError(f"{subject} {what}: {value!r} is not one of {', '.join(known)}{near}")
    return interned(WeightFormat(name, scale, pow2, layout, batch_invariant))


def scale_shape(scale: str, out_features: int, in_features: int) -> tuple[int, ...]:
    """The shape of a weight's scale_inv, as public checkpoints have it."""
    if scale == "tensor":
        return (1,)
    if scale == "128x128":
        return (-(-out_features // 128), -(-in_features // 128))
    if scale == "row":
        return (out_features, 1)
    return (out_features, -(-in_features // _group(scale)))


def _group(scale: str) -> int:
    return 32 if scale == "mx" else int(scale.split("x")[1])


@torch.inference_mode(False)
def cast(weight: torch.Tensor, dtype: str, scale: str, pow2: bool, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Casts a weight (out_features, in_features): returns codes in plain rows, uint8 (out_features, bytes of a row),
    and scale_inv in scale_shape()'s shape, float32 or, for "mx", the bits of e8m0fnu in uint8. Values are code *
    factor."""
    out_features, in_features = weight.shape
    if dtype in PACKED_BITS and scale != "mx":
        raise LinearError(f'WeightOnlyLinear "{name}" scale: {dtype} is made only with MX scales: set scale="mx"')
    values = weight.detach()
    shape = scale_shape(scale, out_features, in_features)
    group = _CAST_AS_ROWS.get(scale)
    if group is None:
        facts = weight_ops.weight_plan(name, WeightFormat(dtype, scale, pow2, "row_major"), *values.shape)
    else:
        values = torch.nn.functional.pad(values, (0, -in_features % group)).reshape(-1, group)
        facts = weight_ops.weight_plan(name, WeightFormat(dtype, "row", pow2, "row_major"), *values.shape)
    codes, scale_inv = called(f'WeightOnlyLinear "{name}"', weight_ops.weight_cast, values, facts.number)
    if group is not None:
        codes = codes.reshape(out_features, -1)[:, :in_features].contiguous()
    return codes, scale_inv.reshape(shape)


def aligned(codes: torch.Tensor) -> torch.Tensor:
    """Tensors of a file may begin anywhere in memory, and kernels read 16 bytes at a time."""
    plain = type(codes) in (torch.Tensor, torch.nn.Parameter) and not codes.is_meta
    return codes.detach().clone() if plain and codes.data_ptr() % 16 else codes


def packed(codes: torch.Tensor, form: WeightFormat, name: str, out_features: int, in_features: int) -> torch.Tensor:
    """Returns codes in plain rows in the format's layout."""
    if form.layout == "row_major":
        return codes
    plan = weight_ops.weight_plan(name, form, out_features, in_features)
    return weight_ops.weight_pack(codes.contiguous(), plan.number)


def unpacked(weight: torch.Tensor, form: WeightFormat, name: str, out_features: int, in_features: int) -> torch.Tensor:
    """The inverse: uint8 (out_features, bytes of a row)."""
    if form.layout == "row_major":
        return weight
    if torch.compiler.is_compiling():
        plan = plan_of_trace(*form, out_features, in_features)
    else:
        plan = weight_ops.weight_plan(name, form, out_features, in_features).number
    return weight_ops.weight_unpack(weight, plan)


@torch.compiler.assume_constant_result
def plan_of_trace(dtype, scale, pow2, layout, batch_invariant, out_features, in_features) -> int:
    """The number of a weight's plan for a graph."""
    form = WeightFormat(dtype, scale, pow2, layout, batch_invariant)
    return weight_ops.weight_plan(None, form, out_features, in_features).number


@functools.lru_cache(maxsize=None)
def _table(dtype: str) -> tuple[float, ...]:
    import numpy

    return tuple(float(x) for x in decode_on_host(numpy.arange(2 ** PACKED_BITS[dtype], dtype=numpy.uint8), dtype))


@torch.compiler.assume_constant_result
def _table_of_trace(dtype: str) -> tuple[float, ...]:
    return _table(dtype)


def code_values(codes: torch.Tensor, dtype: str, in_features: int) -> torch.Tensor:
    if dtype in FLOAT8:
        return codes.view(FLOAT8[dtype]).to(torch.float32)
    rows, size = codes.shape
    if PACKED_BITS[dtype] == 4:
        single = torch.stack([codes & 15, codes >> 4], -1)
    else:  # four codes in three bytes, the lowest bits first
        three = codes.reshape(rows, size // 3, 3).to(torch.int32)
        word = three[..., 0] | (three[..., 1] << 8) | (three[..., 2] << 16)
        single = torch.stack([(word >> shift) & 63 for shift in (0, 6, 12, 18)], -1)
    table = torch.tensor(_table_of_trace(dtype), dtype=torch.float32, device=codes.device)
    return table[single.reshape(rows, size * 8 // PACKED_BITS[dtype])[:, :in_features].to(torch.int64)]


def dequantized(codes: torch.Tensor, scale_inv: torch.Tensor, dtype: str, scale: str, in_features: int) -> torch.Tensor:
    """The values of codes in plain rows, float32 (out_features, in_features): code * factor, rounded once."""
    values = code_values(codes, dtype, in_features)
    if scale == "mx":
        scale_inv = scale_inv.view(torch.float8_e8m0fnu).to(torch.float32)
    if scale == "128x128":
        scale_inv = scale_inv.repeat_interleave(128, 0)[: codes.shape[0]].repeat_interleave(128, 1)[:, :in_features]
    elif scale not in ("tensor", "row"):
        scale_inv = scale_inv.repeat_interleave(_group(scale), 1)[:, :in_features]
    return values * scale_inv


def float_scale_inv(scales: torch.Tensor, scale: str, out_features: int, in_features: int, subject: str) -> torch.Tensor:
    """A checkpoint's scales as scale_inv of this granularity, float32. Raises LinearError if there are not as many."""
    shape = scale_shape(scale, out_features, in_features)
    count = 1
    for size in shape:
        count *= size
    if scales.numel() != count:
        raise LinearError(
            f"{subject} scales: has shape {tuple(scales.shape)}, expected {shape}, one for each {scale} of a weight "
            f"({out_features}, {in_features})"
        )
    if scale == "mx":
        if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
            raise LinearError(f"{subject} scales: is {scales.dtype}, but MX scales are float8_e8m0fnu or its bits")
        return aligned(scales.reshape(shape).contiguous().view(torch.uint8))
    if scales.dtype not in (*ops.HIGH_PRECISION, torch.float8_e8m0fnu):
        raise LinearError(f"{subject} scales: is {scales.dtype}, expected float32, bfloat16, float16 or float8_e8m0fnu")
    return aligned(scales.reshape(shape).to(torch.float32).contiguous())

"""grouped_weight_only_linear(): the rows of many experts in 16 bits times their weights in 8, 6 or 4 bits, in one launch, for
decoding."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import torch

from .._arrays import PACKED_BITS
from . import _codes
from . import _weight_operators as weight_ops
from ._checks import called, check_dense, is_transformed, refuse_transforms
from ._errors import LinearError
from ._grouped_linear import rows_of_experts
from ._operators import HIGH_PRECISION
from ._weight_operators import WeightFormat

_CALLER = "grouped_weight_only_linear"
_NAME = "experts"  # what messages call the weights


class ExpertWeights(NamedTuple):
    """The weights (experts, out_features, in_features) of many experts as codes and scale_inv: what quantize() and from_codes()
    return and grouped_weight_only_linear() takes.

    codes: uint8 (experts, bytes of one), in the format's layout. scale_inv: float32 (experts, ...) in the shape that a public
    checkpoint has for one weight, or for "mx" the bits of float8_e8m0fnu in uint8. values are code * scale_inv. sizes: of one
    weight, as a text, which compilers take for a constant whatever else is dynamic."""

    codes: torch.Tensor
    scale_inv: torch.Tensor
    format: WeightFormat
    sizes: str

    @property
    def out_features(self) -> int:
        """N of each weight."""
        return int(self.sizes.split("x")[0])

    @property
    def in_features(self) -> int:
        """K of each weight."""
        return int(self.sizes.split("x")[1])

    @staticmethod
    def quantize(weight: torch.Tensor, weight_dtype="e2m1fn", scale: Optional[str] = None, layout: str = "packed") -> "ExpertWeights":
        """Casts weights (experts, out_features, in_features) of float32, bfloat16 or float16. weight_dtype, scale and layout: as
        ingot.nn.WeightOnlyLinear has them; without a scale, "mx" for FP6 and FP4 and "row" for FP8. Choose layout "packed_f16"
        for FP8 weights by rows in float16. Raises LinearError for other weights and formats."""
        form = ExpertWeights.format_of(weight_dtype, scale, layout)
        if weight.dim() != 3 or weight.dtype not in HIGH_PRECISION:
            raise LinearError(
                f"ExpertWeights.quantize weight: is {weight.dtype} of the shape {tuple(weight.shape)}, expected (experts, "
                "out_features, in_features) of float32, bfloat16 or float16"
            )
        experts, n, k = weight.shape
        if form.scale in ("tensor", "128x128"):  # shared by rows, but of one expert
            parts = [_codes.cast(each, form.dtype, form.scale, False, _NAME) for each in weight]
            codes, scale_inv = (torch.stack(each) for each in zip(*parts))
        else:
            codes, scale_inv = _codes.cast(weight.reshape(experts * n, k), form.dtype, form.scale, False, _NAME)
        return ExpertWeights(_packed(codes.view(experts, n, -1), form, k), _by_expert(scale_inv, experts, form, n, k), form, f"{n}x{k}")

    @staticmethod
    def from_codes(
        codes: torch.Tensor,
        scales: torch.Tensor,
        weight_dtype=None,
        scale: Optional[str] = None,
        layout: str = "packed",
        in_features: Optional[int] = None,
    ) -> "ExpertWeights":
        """Takes a checkpoint's codes (experts, out_features, in_features) and scales, value = code * scale, without a change of
        value. codes: float8, or bits in uint8 with their weight_dtype, where a row of FP6 and FP4 is packed bytes, lowest bits
        first, and in_features says how many codes it has. scales: in any shape with as many elements. Raises LinearError for
        codes and scales that do not fit."""
        form = ExpertWeights.format_of(weight_dtype or codes.dtype, scale, layout)
        subject = "ExpertWeights.from_codes"
        if codes.dtype not in (torch.uint8, _codes.FLOAT8.get(form.dtype)):
            raise LinearError(f"{subject} codes: is {codes.dtype}, but weight_dtype says {form.dtype}")
        if codes.dim() != 3:
            raise LinearError(f"{subject} codes: has the shape {tuple(codes.shape)}, expected (experts, out_features, in_features)")
        experts, n, bytes_of_row = codes.shape
        k = in_features or bytes_of_row * 8 // PACKED_BITS.get(form.dtype, 8)
        facts = weight_ops.weight_plan(_NAME, form, n, k)
        if bytes_of_row != facts.code_bytes:
            raise LinearError(f"{subject} codes: has rows of {bytes_of_row} bytes, expected {facts.code_bytes}")
        if scales.numel() != experts * facts.scale_inv:
            shape = (experts, *_codes.scale_shape(form.scale, n, k))
            raise LinearError(
                f"{subject} scales: has the shape {tuple(scales.shape)}, expected {shape}, one for each {form.scale} of each expert's "
                f"weight ({n}, {k})"
            )
        parts = scales.reshape(experts, facts.scale_inv)
        scale_inv = torch.stack([_codes.float_scale_inv(each, form.scale, n, k, subject) for each in parts])
        return ExpertWeights(_packed(codes.view(torch.uint8), form, k), scale_inv.to(codes.device), form, f"{n}x{k}")

    @staticmethod
    def format_of(weight_dtype, scale: Optional[str] = None, layout: str = "packed") -> WeightFormat:
        """The format of these options, as quantize() takes them."""
        form = _codes.weight_format(weight_dtype, scale or "row", False, layout, False, "ExpertWeights")
        if scale is None and form.dtype in PACKED_BITS:
            return _codes.weight_format(weight_dtype, "mx", False, layout, False, "ExpertWeights")
        return form

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The values (experts, out_features, in_features): code * scale_inv, rounded to dtype."""
        form, n, k = self.format, self.out_features, self.in_features
        values = []
        for codes, scale_inv in zip(self.codes, self.scale_inv):
            if form.layout == "row_major":
                codes = codes.view(n, -1)
            rows = _codes.unpacked(codes, form, _NAME, n, k)
            values.append(_codes.dequantized(rows, scale_inv, form.dtype, form.scale, k).to(dtype))
        return torch.stack(values)


def _packed(rows: torch.Tensor, form: WeightFormat, k: int) -> torch.Tensor:
    """rows: uint8 (experts, out_features, bytes of a row). Each expert is packed as one weight."""
    experts, n, _ = rows.shape
    if form.layout == "row_major":
        return rows.reshape(experts, -1)
    facts = weight_ops.weight_plan(_NAME, form, n, k)
    packed = rows.new_empty((experts, facts.weight_bytes))
    for expert in range(experts):
        packed[expert] = _codes.packed(_codes.aligned(rows[expert].contiguous()), form, _NAME, n, k)
    return packed


def _by_expert(scale_inv: torch.Tensor, experts: int, form: WeightFormat, n: int, k: int) -> torch.Tensor:
    return scale_inv.reshape(experts, *_codes.scale_shape(form.scale, n, k))


def grouped_weight_only_linear(
    input: torch.Tensor,
    weight: ExpertWeights,
    ends: Optional[torch.Tensor] = None,
    *,
    counts: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Returns (M, N), or (experts, capacity, N), in the input's dtype: the rows of each expert times the transpose of its weight.

    input: bfloat16 or float16, (M, K), the rows of expert 0, then of expert 1, and so on; or masked, (experts, capacity, K), of
    which each expert uses its first rows. weight: of up to 512 experts, as ExpertWeights.quantize() and from_codes() make it.
    ends: int32 (experts,) on the input's device, the row at which each expert's rows end, which do not decrease and are at most
    M; counts: with a masked input in place of ends, how many rows each expert has, at most the capacity. The host reads neither,
    so a captured graph takes other ones in each replay. bias: (experts, N). Rows that no expert has, have any values.

    Codes are decoded exactly on the way to the tensor cores, sums are float32 and rounded once, and a call gives the same bits
    each time. It is for decoding, 1 to 64 rows of each expert; for many rows, grouped_linear() with FP8 weights is faster. It has
    no gradients. Runs on the CPU and on GPUs from sm_80 on. Raises LinearError for other tensors, and on the CPU for ends that
    decrease or leave the input and for counts beyond the capacity."""
    if not isinstance(weight, ExpertWeights):
        raise LinearError(
            f"{_CALLER} weight: is a {type(weight).__name__}, expected ExpertWeights: make them by ExpertWeights.quantize() or "
            "from_codes()"
        )
    operands = {"input": input, "weight.codes": weight.codes, "weight.scale_inv": weight.scale_inv}
    optional = {"ends": ends, "counts": counts, "bias": bias}
    operands.update({name: each for name, each in optional.items() if each is not None})
    for name, operand in operands.items():
        check_dense(_CALLER, name, operand)
        if operand.device != input.device:
            raise LinearError(f"{_CALLER} {name}: is on {operand.device} and the input on {input.device}: move one with .to()")
    rows = rows_of_experts(_CALLER, input, ends, counts)
    _check(input, weight, rows, bias)
    if torch.is_grad_enabled() and (input.requires_grad or (bias is not None and bias.requires_grad)):
        raise LinearError(
            f"{_CALLER}: has no gradients: call it under torch.no_grad(), or use grouped_linear(), whose FP8 weights pass gradients on"
        )
    if is_transformed(input, bias, records=False):
        refuse_transforms(_CALLER)
    if torch.compiler.is_compiling():
        plan = _plan_of_trace(*weight.format, weight.sizes)
    else:
        plan = weight_ops.weight_plan(_NAME, weight.format, weight.out_features, weight.in_features).number
    return called(_CALLER, weight_ops.weight_only_experts, input, weight.codes, weight.scale_inv, rows, bias, plan)


@torch.compiler.assume_constant_result
def _plan_of_trace(dtype, scale, pow2, layout, batch_invariant, sizes: str) -> int:
    """The number of the weights' plan for a graph."""
    form = WeightFormat(dtype, scale, pow2, layout, batch_invariant)
    return weight_ops.weight_plan(None, form, *map(int, sizes.split("x"))).number


def _check(input: torch.Tensor, weight: ExpertWeights, rows: torch.Tensor, bias: Optional[torch.Tensor]) -> None:
    experts = weight.codes.shape[0]
    if input.dtype not in (torch.bfloat16, torch.float16):
        raise LinearError(f"{_CALLER} input: is {input.dtype}, expected bfloat16 or float16: convert it with .to()")
    expected: Tuple = ("experts", "capacity", weight.in_features) if input.dim() == 3 else ("M", weight.in_features)
    if input.dim() not in (2, 3) or input.shape[-1] != weight.in_features:
        shown = f"({', '.join(map(str, expected))})"
        raise LinearError(f"{_CALLER} input: has the shape {tuple(input.shape)}, expected {shown}")
    if input.dim() == 3 and input.shape[0] != experts:
        raise LinearError(f"{_CALLER} input: has the shape {tuple(input.shape)}, but there are weights of {experts} experts")
    name = "counts" if input.dim() == 3 else "ends"
    if tuple(rows.shape) != (experts,):
        raise LinearError(f"{_CALLER} {name}: has the shape {tuple(rows.shape)}, expected ({experts},): one for each expert")
    if rows.dtype != torch.int32:
        raise LinearError(f"{_CALLER} {name}: is {rows.dtype}, expected int32: convert it with .to()")
    if bias is not None and tuple(bias.shape) != (experts, weight.out_features):
        raise LinearError(f"{_CALLER} bias: has the shape {tuple(bias.shape)}, expected {(experts, weight.out_features)}")

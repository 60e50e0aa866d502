"""grouped_linear(): the rows of many experts times FP8 weights, in one launch, for inference."""

from __future__ import annotations

from typing import Dict, Optional

import torch

from ._checks import called
from ._errors import LinearError
from ._quantize_operators import OUTPUTS
from ._schemas import fake


def _check_operands(operands: Dict[str, torch.Tensor]) -> None:
    """All tensors of the input's device. PyTorch would take one on meta for a wish to know the output's shape."""
    for name, operand in operands.items():
        if not isinstance(operand, torch.Tensor):
            raise LinearError(f"grouped_linear {name}: is a {type(operand).__name__}, expected a torch.Tensor")
        device = operands["input"].device
        if operand.device != device:
            remedy = "load its values first" if operand.is_meta else "move one with .to()"
            raise LinearError(f"grouped_linear {name}: is on {operand.device} and the input on {device}: {remedy}")
    if torch.is_grad_enabled() and any(each.requires_grad for each in operands.values()):
        raise LinearError(
            "grouped_linear: an operand requires a gradient, and FP8 weights of experts are for inference: call it under "
            "torch.no_grad()"
        )


@fake("grouped_linear")
def _(input, weight, output):
    return torch.empty((*input.shape[:-1], weight.shape[1]), dtype=OUTPUTS[output], device=input.device)


def _rows_of_experts(
    input: torch.Tensor, ends: Optional[torch.Tensor], counts: Optional[torch.Tensor]
) -> torch.Tensor:
    """The one of the two that says which rows each expert has."""
    if ends is not None and counts is not None:
        raise LinearError("grouped_linear: ends and counts are given: give counts for an input (experts, capacity, K), else ends")
    masked = input.dim() == 3
    given = counts if masked else ends
    if given is None:
        expected = "counts, how many rows each expert has" if masked else "ends, the row at which each expert's rows end"
        raise LinearError(f"grouped_linear input: has the shape {tuple(input.shape)}: give {expected}")
    return given


def grouped_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    weight_scale_inv: torch.Tensor,
    ends: Optional[torch.Tensor] = None,
    *,
    counts: Optional[torch.Tensor] = None,
    input_scale_inv: Optional[torch.Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> torch.Tensor:
    """Returns (M, N), or (experts, capacity, N): the rows of each expert times the transpose of its weight.

    input: (M, K), the rows of expert 0, then of expert 1, and so on; or masked, (experts, capacity, K), of which each expert uses
    its first rows. bfloat16, float16 or float32, of any strides; or FP8 codes e4m3fn or e5m2, contiguous, with input_scale_inv.
    weight: FP8 codes (experts, N, K), contiguous, of up to 512 experts. weight_scale_inv: float32, (experts,), (experts, N) for
    rows, (experts, ceil(N / 128), ceil(K / 128)) for blocks, as DeepSeek stores them, or (experts, N, ceil(K / 128)) for groups;
    values are code * scale_inv. ends: int32 (experts,) on the input's device, the row at which each expert's rows end, which do
    not decrease and are at most M; the host does not read them, so a captured graph takes other ends in each replay. Experts may
    have no rows, and none is padded. counts: with a masked input in place of ends, int32 (experts,), how many rows each expert
    has, at most the capacity. Rows that no expert has, have any values.

    Autocast does not apply. An input in high precision is cast to e4m3fn with a scale for each row, or for each 128 of a row
    where the weight has blocks or groups; input_scale_inv is float32 of one element or (M,), or (M, ceil(K / 128)), with
    (experts, capacity) in place of M for a masked input. Sums are float32. out_dtype: float32, bfloat16 or float16; by default
    the input's, and bfloat16 for codes.

    There is no backward. Runs on the CPU and on Hopper's GPUs, there with K a multiple of 16 and codes at addresses that are
    multiples of 16 bytes. Raises LinearError for other tensors, and on the CPU for ends that decrease or leave the input
    and for counts beyond the capacity.
    """
    operands = {"input": input, "weight": weight, "weight_scale_inv": weight_scale_inv}
    optional = {"ends": ends, "counts": counts, "input_scale_inv": input_scale_inv}
    _check_operands({**operands, **{name: each for name, each in optional.items() if each is not None}})
    rows = _rows_of_experts(input, ends, counts)
    if out_dtype is None:
        out_dtype = input.dtype if input.dtype in OUTPUTS else torch.bfloat16
    if out_dtype not in OUTPUTS:
        raise LinearError(f"grouped_linear out_dtype: is {out_dtype}, expected float32, bfloat16 or float16")
    operator, output = torch.ops.ingot.grouped_linear.default, OUTPUTS.index(out_dtype)
    return called("grouped_linear", operator, input, weight, weight_scale_inv, rows, output, input_scale_inv)

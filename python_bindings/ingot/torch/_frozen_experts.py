"""grouped_linear() with FP8 weights for autograd. They do not train, but gradients pass through them to their rows, as adapters
need it that are trained around them."""

from __future__ import annotations

from typing import Optional

import torch

from ._checks import called, refuse_second_derivative_of_experts
from ._quantize_operators import OUTPUTS


def multiply(input, weight, scale_inv, rows, out_dtype: torch.dtype, input_scale_inv: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Of each expert's rows and codes (experts, N, K). rows: their ends, or of a masked input their counts."""
    operator, output = torch.ops.ingot.grouped_linear.default, OUTPUTS.index(out_dtype)
    return called("grouped_linear", operator, input, weight, scale_inv, rows, output, input_scale_inv)


def scale_of(weight: torch.Tensor, scale_inv: torch.Tensor) -> Optional[str]:
    """What of the weight shares a scale_inv, by their shape: "expert", "row", "block", or None for what has no backward. A GEMM
    along N cannot apply the factors of groups of a row, which differ from one n to the next."""
    experts, n, k = weight.shape
    shape = tuple(scale_inv.shape)
    if shape in ((experts,), (experts, 1), (experts, 1, 1)):
        return "expert"
    if shape in ((experts, n), (experts, n, 1)):
        return "row"
    return "block" if shape == (experts, -(-n // 128), -(-k // 128)) else None


def _by_rows(grad_output: torch.Tensor, scale_inv: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """grad_output times the factors of its columns, which are those of its row's expert."""
    experts = rows.numel()
    scale_inv = scale_inv.view(experts, -1)
    if grad_output.dim() == 3:
        return grad_output * scale_inv[:, None]
    numbers = torch.arange(grad_output.shape[0], dtype=rows.dtype, device=rows.device)
    of_rows = torch.searchsorted(rows, numbers, right=True, out_int32=True).clamp_(max=experts - 1)
    return scale_inv[of_rows] * grad_output


def _beyond(grad_output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Which rows no expert has, as a mask of one column."""
    numbers = torch.arange(grad_output.shape[-2], dtype=rows.dtype, device=rows.device)
    return (numbers >= (rows[:, None] if grad_output.dim() == 3 else rows[-1]))[..., None]


def _gradient(grad_output, weight, scale_inv, rows, dtype: torch.dtype) -> torch.Tensor:
    beyond = _beyond(grad_output, rows)
    # A copy for the time of the product: GEMMs read FP8 operands along K, which is N here.
    codes = weight.view(torch.uint8).transpose(1, 2).contiguous().view(weight.dtype)
    scale = scale_of(weight, scale_inv)
    if scale == "row":
        grad_output, scale_inv = _by_rows(grad_output, scale_inv, rows), scale_inv.new_ones(rows.numel())
    elif scale == "block":
        scale_inv = scale_inv.transpose(1, 2).contiguous()
    # The product does not write rows that no expert has.
    return multiply(grad_output, codes, scale_inv, rows, dtype).masked_fill_(beyond, 0)


class _FrozenExperts(torch.autograd.Function):
    """Backward gives the gradient of the input, from the codes that forward read; nothing else is kept."""

    @staticmethod
    def forward(ctx, input, weight, scale_inv, rows, out_dtype, name):
        ctx.dtype, ctx.name = input.dtype, name
        ctx.save_for_backward(weight, scale_inv, rows)
        return multiply(input, weight, scale_inv, rows, out_dtype)

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            refuse_second_derivative_of_experts("grouped linear", ctx.name)
        return _gradient(grad_output, *ctx.saved_tensors, ctx.dtype), *(None,) * 5


def run_frozen_experts(input, weight, scale_inv, rows, out_dtype: torch.dtype, name: str) -> torch.Tensor:
    """multiply() of an input in high precision that requires a gradient."""
    return _FrozenExperts.apply(input, weight, scale_inv, rows, out_dtype, name)

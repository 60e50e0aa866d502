"""A linear layer whose weight comes in FP8, as FSDP gathers it: one operator forward and one backward. For a compiler
the cast and the GEMM of forward are separate operators, as in a layer that casts its weight, so that it fuses the
operations around both alike and both have the same bits."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import _operators as ops
from ..torch import _split_operators as split_ops
from ..torch._checks import refuse_double_backward
from ..torch._errors import from_operator
from ..torch._linear import plan_of
from ..torch._scaled_linear import call
from ._kernels import factor_of
from .float8_training_tensor import Float8TrainingTensor


def is_gathered(weight: torch.Tensor, casts: Optional[ops.Casts]) -> bool:
    """Is this a whole weight in FP8 that matches the casts of its layer?"""
    if type(weight) is not Float8TrainingTensor or casts is None or any(casts.given):
        return False
    formats = {casts.casts[1], casts.casts[4]}
    data = weight._data
    one_scale = len(formats) == 1 and not casts.casts[1][1] and weight._scale.numel() == 1
    same = str(data.dtype) == f"torch.float8_{casts.casts[1][0]}"
    return one_scale and same and type(data) is torch.Tensor and data.dim() == 2 and data.is_contiguous()


# Compiled as in eager mode: of its parts, products and sums of a bias, each would be rounded.
@torch._dynamo.allow_in_graph
class _GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, plan, reads_input, input_plan, name):
        needs = ctx.needs_input_grad
        ctx.plan, ctx.name = plan, name
        ctx.wants = (ops.INPUT if needs[0] else 0) | (ops.WEIGHT if needs[1] else 0)
        if bias is not None and needs[2]:
            ctx.wants |= ops.BIAS
        output, saved = _forward(input, weight, bias, plan, input_plan, ops.KEEP_SAVED if needs[1] else 0)
        # The weight itself, whose memory FSDP frees and fills again, and not its codes.
        ctx.save_for_backward(saved, input if needs[1] and reads_input else None, weight if needs[0] else None)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        refuse_double_backward(f'linear "{ctx.name}"')
        saved, input, weight = ctx.saved_tensors
        codes, scale_inv = (None, None) if weight is None else (weight._data, factor_of(weight._scale))
        try:
            *grads, _ = ops.linear_backward(
                grad_output, input, codes, saved, None, ctx.plan, ctx.wants, weight_scale_inv=scale_inv
            )
        except RuntimeError as error:
            raise from_operator(error) from None
        return (*grads, *(None,) * 4)


def _forward(input, weight, bias, plan: int, input_plan: int, keep: int):
    scale_inv = factor_of(weight._scale)
    if input_plan >= 0:
        return split_ops.forward_float8(input, weight._data, scale_inv, bias, input_plan, plan, keep)
    return ops.linear_forward(input, weight._data, bias, plan, keep, weight_scale_inv=scale_inv)[:2]


def gathered_linear(
    input: torch.Tensor,
    weight: Float8TrainingTensor,
    bias: Optional[torch.Tensor],
    casts: ops.Casts,
    name: str,
    plans: ops.PlanTable,
) -> torch.Tensor:
    """Returns input @ weight.T + bias for a weight that is_gathered(). Its gradient has the dtype that it shows."""
    plan, reads_input, _, input_plan = plan_of(casts, name, plans, input, weight, bias)
    if torch.is_grad_enabled():
        return call(_GatheredLinear.apply, name, input, weight, bias, plan, reads_input, input_plan, name)
    return call(_forward, name, input, weight, bias, plan, input_plan, 0)[0]

"""A linear layer whose weight comes in FP8, as FSDP gathers it: one operator forward and one backward. For a compiler
the cast and the GEMM of forward are separate operators, as in a layer that casts its weight, so that it fuses the
operations around both alike and both have the same bits."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import _operators as ops
from ..torch._checks import called, refuse_double_backward
from ..torch._eager_linear import wants_of
from ..torch._linear import plan_of
from ..torch._stored_linear import float8_backward, float8_forward
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
    def forward(ctx, input, weight, bias, plan, reads_input, input_plan, subject):
        needs = ctx.needs_input_grad
        ctx.plan, ctx.subject, ctx.wants = plan, subject, wants_of(needs)
        output, saved = _forward(input, weight, bias, plan, input_plan, ops.KEEP_SAVED if needs[1] else 0)
        # The weight itself, whose memory FSDP frees and fills again, and not its codes.
        ctx.save_for_backward(saved, input if needs[1] and reads_input else None, weight if needs[0] else None)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        refuse_double_backward(ctx.subject)
        saved, input, weight = ctx.saved_tensors
        of_weight = (None, None) if weight is None else weight.read_by(True)
        grads = float8_backward(ctx.subject, grad_output, input, *of_weight, saved, ctx.plan, ctx.wants)
        return (*grads, *(None,) * 4)


def _forward(input, weight, bias, *plan):
    return float8_forward(input, *weight.read_by(False), bias, *plan)


def gathered_linear(input, weight: Float8TrainingTensor, bias, casts: ops.Casts, name: str, plans) -> torch.Tensor:
    """Returns input @ weight.T + bias for a weight that is_gathered(). Its gradient has the dtype that it shows."""
    plan, reads_input, _, input_plan = plan_of(casts, name, plans, input, weight, bias)
    subject = f'linear "{name}"'
    if torch.is_grad_enabled():
        return called(subject, _GatheredLinear.apply, input, weight, bias, plan, reads_input, input_plan, subject)
    return called(subject, _forward, input, weight, bias, plan, input_plan, 0)[0]

"""A linear layer some of whose scales are given, as delayed and static ones are: one operator forward, one backward."""

from __future__ import annotations

from typing import Optional, Sequence, Union

import torch
import torch.distributed as dist

from . import _operators as ops
from ._checks import called, refuse_batched_gradients, refuse_double_backward
from ._linear import plan_of, wants_of
from ._module_operators import masks_of

# The smallest maximum that a scale is made of, so that a tensor of zeros has a scale.
EPS = 1e-12


def first_given(*scales: Optional[torch.Tensor]) -> torch.Tensor:
    """Returns one of the given scales, as a placeholder for those that are not given."""
    return next(scale for scale in scales if scale is not None)


# ---- delayed scales, which a first step makes ------------------------------------------------------------------------


def scale_of(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """The f32 scale that brings a maximum to `largest`. The division is in f64, where eager and compiled PyTorch agree."""
    return (largest / torch.clamp(amax.to(torch.float64), min=EPS)).to(torch.float32)


def has_seen(amax_history: torch.Tensor) -> torch.Tensor:
    """Has a history, or each of several, a maximum from which a scale can be made: finite, and above 0?"""
    return torch.nan_to_num(amax_history, nan=0.0, posinf=0.0).any(-1)


def start_of_maximum(largest, amax, history, scale, dtype: torch.dtype) -> None:
    """Makes the scale of the tensor's own maximum, as dynamic scaling does, where no step has made one: where the
    history has only zeros and values that are not finite. The device decides. The history is filled by the step's
    end."""
    amax.fill_(largest)
    scale.copy_(torch.where(has_seen(history), scale, scale_of(largest.reshape(1), torch.finfo(dtype).max)))


_library = torch.library.Library("ingot", "FRAGMENT")
_library.define(
    "start_scale(Tensor value, Tensor(a!) amax, Tensor history, Tensor(b!) scale, Tensor starts,"
    " ScalarType dtype, int role, bool reduces) -> ()"
)
_start = torch.ops.ingot.start_scale.default


def _start_of_value(value, amax, history, scale, dtype, reduces: bool) -> None:
    largest = torch.max(torch.abs(value)) if value.numel() > 0 else value.new_zeros(())
    if reduces and dist.is_available() and dist.is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    start_of_maximum(largest, amax, history, scale, dtype)


def _start_where_missing(value, amax, history, scale, starts, dtype, role, reduces) -> None:
    if masks_of(starts)[0] >> role & 1:
        _start_of_value(value, amax, history, scale, dtype, reduces)


_library.impl("start_scale", _start_where_missing, "CPU")
_library.impl("start_scale", _start_where_missing, "CUDA")


@torch.library.register_fake("ingot::start_scale")
def _(*arguments):
    return None


@torch.no_grad()
def start_scale(
    value: torch.Tensor,
    amax: torch.Tensor,
    history: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    started: Union[bool, torch.Tensor],
    role: int = 2,
    reduces: bool = False,
) -> None:
    """start_of_maximum() of a value of role 0 (input), 1 (weight) or 2 (grad_output), unless it has started. In a graph
    `started` is starts_of() the layer's mask, and the operator reads the role's bit in its size: one graph serves a layer
    before and after it has scales. reduces: takes the maximum over all ranks."""
    if started is False:
        _start_of_value(value, amax, history, scale, dtype, reduces)
    elif started is not True:
        _start(value, amax, history, scale, started, dtype, role, reduces)


@torch._dynamo.allow_in_graph
class _ScaledLinear(torch.autograd.Function):
    """A layer whose grad_output has a delayed scale, whose buffers backward keeps up, or a static or a dynamic one."""

    @staticmethod
    def forward(
        ctx,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        scale_input: torch.Tensor,
        scale_weight: torch.Tensor,
        amax: Optional[torch.Tensor],
        amax_history: Optional[torch.Tensor],
        scale: torch.Tensor,
        dtype: torch.dtype,
        started: Union[bool, torch.Tensor],
        plan: int,
        reads_input: bool,
        reads_weight: bool,
        name: str,
    ):
        # Not saved tensors: two forwards before a backward both write these buffers, and saved tensors refuse that.
        ctx.buffers = (amax, amax_history, scale)
        ctx.start = (dtype, started)
        ctx.plan, ctx.name = plan, name
        needs = ctx.needs_input_grad
        keep = (ops.KEEP_CODES if needs[0] and not reads_weight else 0) | (ops.KEEP_SAVED if needs[1] else 0)
        output, saved, codes, amaxes = _forward(input, weight, bias, scale_input, scale_weight, plan, keep)
        ctx.wants = wants_of(needs)
        again = needs[0] and reads_weight
        ctx.save_for_backward(
            saved,
            codes,
            input if needs[1] and reads_input else None,
            weight if again else None,
            # The scale itself is written in the next step.
            scale_weight.clone() if again else None,
        )
        ctx.mark_non_differentiable(amaxes)
        return output, amaxes

    @staticmethod
    def backward(ctx, grad_output, _):
        subject = f'linear "{ctx.name}"'
        refuse_batched_gradients(subject, grad_output)
        refuse_double_backward(subject)
        amax, history, scale = ctx.buffers
        saved, codes, input, weight, scale_weight = ctx.saved_tensors
        if amax is not None:
            start_scale(grad_output, amax, history, scale, *ctx.start)
        arguments = (grad_output, input, weight, saved, codes, ctx.plan, ctx.wants)
        scales = {"grad_output_scale": scale, "weight_scale": scale_weight}
        *grads, amaxes = called(subject, ops.linear_backward, *arguments, **scales)
        if amax is not None:
            amax.copy_(amaxes[:1])
        return (*grads, *(None,) * 11)


def _forward(input, weight, bias, scale_input, scale_weight, plan: int, keep: int):
    """The output, what is saved, the weight's codes, and the maxima (2) of input and weight where their scales are given."""
    return ops.linear_forward(input, weight, bias, plan, keep, input_scale=scale_input, weight_scale=scale_weight)


def run_scaled(config, name: str, plans, operands: tuple, state: Sequence, start: tuple):
    """Forward, and later backward: returns the output, and the maxima of input and weight. operands: input, weight, bias
    and the scales of input and weight, in whose places any f32 tensor of one element is if they are not given; state: the
    buffers amax, history and scale of grad_output, of which a static or dynamic one has the last alone; start: its format,
    and whether it has started, as start_scale() takes it."""
    plan, subject = plan_of(config, name, plans, *operands[:3]), f'linear "{name}"'
    if torch.is_grad_enabled():
        return called(subject, _ScaledLinear.apply, *operands, *state, *start, *plan[:3], name)
    output, _, _, amaxes = called(subject, _forward, *operands, plan[0], 0)
    return output, amaxes

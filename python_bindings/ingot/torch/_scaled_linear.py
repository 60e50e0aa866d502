"""A linear layer some of whose scales are given, as delayed and static ones are: one operator forward, one backward."""

from __future__ import annotations

from typing import Callable, Optional

import torch

from . import _operators as ops
from ._checks import layer_error, refuse_double_backward
from ._errors import from_operator


@torch.compiler.assume_constant_result
def _plan_of_trace(config, out_features, in_features, *rest):
    facts = ops.add_plan(config, None, in_features, out_features, *rest)
    return facts.number, facts.reads_input, facts.reads_weight


def plan_of(
    config, name: str, plans: ops.PlanTable, input, weight, bias, weight_again: bool = False
) -> tuple[int, bool, bool]:
    """The number of the layer's plan, and whether its backward reads input and weight. `config` and weight_again are as
    add_plan()'s, and `plans` belongs to this config and name."""
    bias_dtype = None if bias is None else bias.dtype
    trains_weight = torch.is_grad_enabled() and weight.requires_grad
    key = (*weight.shape, input.dtype, weight.dtype, bias_dtype, trains_weight, weight_again)
    if torch.compiler.is_compiling():
        return _plan_of_trace(config, *key)
    plan = plans.get(key)
    if plan is None:
        facts = ops.add_plan(config, name, key[1], key[0], *key[2:])
        plan = plans[key] = (facts.number, facts.reads_input, facts.reads_weight)
    return plan


def run_forward(ctx, input, weight, bias, scale_input, scale_weight, plan, reads_input, reads_weight):
    """Returns the output, and the maxima (2) of input and weight where their scales are given. `ctx` is that of an
    autograd.Function whose first three arguments these tensors are, or None without gradients. A scale that is not
    given has any f32 tensor of one element in its place."""
    needs = (False,) * 3 if ctx is None else ctx.needs_input_grad
    keep = (ops.INPUT if needs[0] and not reads_weight else 0) | (ops.WEIGHT if needs[1] else 0)
    output, saved, codes, amaxes = ops.linear_forward_scaled(
        input, weight, weight if bias is None else bias, scale_input, scale_weight, plan, keep
    )
    if ctx is None:
        return output, amaxes
    ctx.plan = plan
    ctx.wants = (ops.INPUT if needs[0] else 0) | (ops.WEIGHT if needs[1] else 0)
    if bias is not None and needs[2]:
        ctx.wants |= ops.BIAS
    again = needs[0] and reads_weight
    ctx.save_for_backward(
        saved,
        codes if keep & ops.INPUT else None,
        input if needs[1] and reads_input else None,
        weight if again else None,
        # The scale itself is written in the next step.
        scale_weight.clone() if again else None,
    )
    ctx.mark_non_differentiable(amaxes)
    return output, amaxes


def run_backward(ctx, name: str, grad_output, scale_grad_output: Callable[[], torch.Tensor]):
    """Returns the three gradients, None for those that are not wanted, and the maxima (2), of which the first is that of
    grad_output if its scale is given."""
    refuse_double_backward(f'linear "{name}"')
    saved, codes, input, weight, scale_weight = ctx.saved_tensors
    scale = scale_grad_output()
    arguments = (
        grad_output,
        saved if input is None else input,
        saved if weight is None else weight,
        saved,
        saved if codes is None else codes,
        scale,
        scale if scale_weight is None else scale_weight,
        ctx.plan,
        ctx.wants,
    )
    if torch.compiler.is_compiling():
        results = ops.linear_backward_scaled(*arguments)
    else:
        try:
            results = ops.linear_backward_scaled(*arguments)
        except RuntimeError as error:
            raise from_operator(error) from None
    *grads, amaxes = results
    bits = (ops.INPUT, ops.WEIGHT, ops.BIAS)
    return tuple(grad if ctx.wants & bit else None for grad, bit in zip(grads, bits)), amaxes


def call(function: Callable, name: str, *arguments):
    """Returns function(*arguments); an operator's error becomes one of Ingot's."""
    if torch.compiler.is_compiling():
        return function(*arguments)
    try:
        return function(*arguments)
    except RuntimeError as error:
        raise layer_error(error, f'linear "{name}"') from None


def first_given(*scales: Optional[torch.Tensor]) -> torch.Tensor:
    """One of the scales, to stand in the places of those that are not given."""
    return next(scale for scale in scales if scale is not None)

"""The linear layers of many experts in FP8 for autograd: one operator forward and one backward, as _linear.py has them of one
layer. grouped_linear() calls it for weights in high precision."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

from .. import _core
from . import _operators as ops
from ._checks import SubjectOfExperts, check_recipe_of_experts, refuse_second_derivative_of_experts
from ._eager_linear import wants_of
from ._errors import from_operator
from ._experts_plans import PlansOfExperts
from ._exported import export_layer, is_exporting
from ._gathered_weight import is_gathered
from ._linear import LinearOptions, casts_weight_again
from ._main_grad import Asks, asks_for, dummy_gradient, main_grad_of_experts
from ._module_calls import (
    DelayedScales,
    call_with,
    note_scales,
    refuse_batched_gradients,
    scales_of_backward,
    scales_of_forward,
    state_of_call,
)
from ._schemas import ASKS_ENGINE, fake, flops


class GroupedFacts(NamedTuple):
    """What Python knows of a plan, as PlanFacts."""

    number: int
    experts: int
    out_features: int
    in_features: int
    input_dtype: torch.dtype
    weight_dtype: torch.dtype
    saved_constant: int
    saved_per_unit: int
    weight_bytes: int
    reads_weight: bool
    gated: bool


_PLANS = PlansOfExperts(_core.torch_grouped_plan, _core.torch_name_grouped, GroupedFacts)


@torch.compiler.assume_constant_result
def _plan_of_trace(recipe, experts, out_features, in_features, *rest):
    return _PLANS.plan(None, recipe, (experts, out_features, in_features), *rest)


@fake("grouped_linear_forward")
def _(input, plan, keep):
    facts = _PLANS[plan]
    saved = facts.saved_constant + ops.units_of(input) * facts.saved_per_unit
    return (
        input.new_empty((*input.shape[:-1], facts.out_features), dtype=facts.input_dtype),
        ops.bytes_of(input, saved) if keep & ops.KEEP_SAVED else None,
        ops.bytes_of(input, facts.weight_bytes) if keep & ops.KEEP_CODES else None,
    )


@fake("grouped_linear_backward")
def _(grad_output, plan, wants, main_grad=None):
    facts = _PLANS[plan]
    shape = (facts.experts, facts.out_features, facts.in_features)
    columns = 2 * facts.in_features if facts.gated else facts.in_features
    return (
        grad_output.new_empty((*grad_output.shape[:-1], columns), dtype=facts.input_dtype)
        if wants & ops.INPUT
        else None,
        grad_output.new_empty(shape, dtype=facts.weight_dtype) if wants & ops.WEIGHT and main_grad is None else None,
        grad_output.new_empty(shape[:2], dtype=bias_dtype_of(facts.input_dtype)) if wants & ops.BIAS else None,
    )


@flops("grouped_linear_forward")
def _(input, weight) -> int:
    """Of all rows, here and below: which of them experts have is known on the device only."""
    return 2 * input[0] * weight[1] * weight[2]


@flops("grouped_linear_backward")
def _(grad_output, plan, wants) -> int:
    facts = _PLANS[plan]
    gradients = bool(wants & ops.INPUT) + bool(wants & ops.WEIGHT)
    return 2 * grad_output[0] * facts.out_features * facts.in_features * gradients


def bias_dtype_of(output: torch.dtype) -> torch.dtype:
    """Of a bias that a GEMM of FP8 operands adds to an output of this dtype."""
    return torch.bfloat16 if output is torch.float32 else output


class _GroupedLinear(torch.autograd.Function):
    """Forward keeps codes of its operands for backward, not the operands; the weight where it is cast again."""

    @staticmethod
    def forward(ctx, input, weight, ends, name, plan, reads_weight, reads_input, main_grad, bias, *state):
        needs = ctx.needs_input_grad
        keep = (ops.KEEP_CODES if needs[0] and not reads_weight else 0) | (ops.KEEP_SAVED if needs[1] else 0)
        output, saved, codes = _forward((input, weight, ends), plan, keep, bias, *state)
        note_scales(ctx, reads_weight, *state)
        ctx.name, ctx.plan, ctx.wants = name, plan, wants_of((*needs[:2], needs[8]))
        ctx.main_grad = main_grad  # not saved as autograd does: accumulation changes it before backward
        ctx.weight = None if main_grad is None or torch.compiler.is_compiling() else weight
        ctx.save_for_backward(
            saved,
            codes if keep & ops.KEEP_CODES else None,
            weight if needs[0] and reads_weight else None,
            ends,
            input if needs[0] and reads_input else None,
        )
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            refuse_second_derivative_of_experts("grouped linear", ctx.name or "experts")
        wants, main_grad = ctx.wants, ctx.main_grad
        if main_grad is not None:
            asks = asks_for(ctx, 1, ctx.weight)
            if asks is Asks.RETURNS:
                main_grad = None
            elif asks is Asks.NOTHING:
                wants, main_grad = wants & ~ops.WEIGHT, None
        try:
            grad_input, grad_weight, grad_bias = _gradients(ctx, grad_output, main_grad, wants)
        except RuntimeError as error:
            if torch.compiler.is_compiling():
                raise
            raise from_operator(error) from None
        if main_grad is not None and wants & ops.WEIGHT:
            grad_weight = dummy_gradient(ctx.weight)
        return grad_input, grad_weight, *(None,) * 6, grad_bias, None, None, None


def _forward(operands, plan: int, keep: int, bias, *state):
    """Output, saved memory and codes. state: of state_of_call()."""
    return call_with(scales_of_forward(*state), torch.ops.ingot.grouped_linear_forward, *operands, plan, keep, bias=bias)


def _gradients(ctx, grad_output, main_grad, wants):
    saved, codes, weight, ends, input = ctx.saved_tensors
    arguments = grad_output, input, weight, ends, saved, codes, ctx.plan
    if main_grad is None and ctx.scale is None:
        return torch.ops.ingot.grouped_linear_backward.default(*arguments, wants)
    written = {} if main_grad is None else {"main_grad": main_grad}
    if main_grad is not None and torch.compiler.is_compiling():
        wants |= ASKS_ENGINE
    if ctx.scale is not None:
        refuse_batched_gradients(f'grouped linear "{ctx.name}"', grad_output)
        written.update(scales_of_backward(ctx))
    return torch.ops.ingot.grouped_linear_backward.in_place(*arguments, wants, **written)


def run_grouped_layer(
    input: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    options: LinearOptions,
    activation: Optional[str] = None,
    bias: Optional[torch.Tensor] = None,
    delayed: Optional[DelayedScales] = None,
):
    """grouped_linear() of (M, K) by weights (experts, N, K) in high precision, whose devices are the same. activation: of the
    input, an expression of x, or of x and up; then the input is (M, 2 K), x and up. bias: (experts, N)."""
    subject = SubjectOfExperts("grouped linear", options)
    check_recipe_of_experts(subject, options.recipe, options.fast_gradients)
    state = state_of_call(subject, options.recipe, input, delayed)
    if torch.compiler.is_compiling() and is_exporting():
        facts = {each: getattr(options, each) for each in ("recipe", "name", "keep_weight_codes", "fast_gradients")}
        operands = (input, weight, ends) if bias is None and delayed is None else (input, weight, ends, bias)
        operands += () if delayed is None else tuple(state)
        return export_layer("grouped_linear", operands, activation=activation, **facts)[0]
    if bias is not None:  # rounded as the GEMM adds it
        bias = bias.to(bias_dtype_of(input.dtype)).contiguous()
    main_grad = main_grad_of_experts(weight, subject)
    # Codes for a backward that does not come are not made.
    needs_codes = torch.is_grad_enabled() and input.requires_grad
    again = not needs_codes or is_gathered(weight)
    # Codes of no elements are kept: no operation makes transposed ones of them.
    again = again or (weight.numel() > 0 and casts_weight_again(options.keep_weight_codes, input, needs_codes))
    trains = torch.is_grad_enabled() and weight.requires_grad
    rest = (input.dtype, weight.dtype, trains, again, options.fast_gradients, activation or "", bias is not None)
    if torch.compiler.is_compiling():
        plan, reads_weight = _plan_of_trace(options.recipe, *ops.fixed_sizes(weight), *rest)
    else:
        plan, reads_weight = _PLANS.plan(options.name, options.recipe, tuple(weight.shape), *rest)
    if not torch.is_grad_enabled():
        return _forward((input, weight, ends), plan, 0, bias, *state)[0]
    name = None if torch.compiler.is_compiling() else options.name  # which a compiler would guard: equal layers share a graph
    arguments = input, weight, ends, name, plan, reads_weight, activation is not None, main_grad, bias
    return _GroupedLinear.apply(*arguments, *state)

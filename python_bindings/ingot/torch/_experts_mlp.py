"""The MLPs of a mixture of experts in FP8 for autograd: one operator forward, one backward, and one more for each of the gradients
of input and weights, so that what one reads last can go before the next one's memory is asked for. experts_mlp() calls it with the
indices that say which rows each token has."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import torch

from .. import _core
from . import _operators as ops
from ._checks import SubjectOfExperts, check_recipe_of_experts, refuse_second_derivative_of_experts
from ._errors import from_operator
from ._experts_plans import PlansOfExperts
from ._fsdp_units import frees_weights, frees_weights_of_trace
from ._gathered_weight import is_gathered
from ._grouped_layer import bias_dtype_of
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
from ._schemas import ASKS_ENGINE, ROUTER, fake, flops, of_layer

_UP, _DOWN = of_layer(ops.WEIGHT, 0), of_layer(ops.WEIGHT, 1)
_EDGES = {_UP: 2, _DOWN: 3}  # among what _ExpertsMlp is applied to
_REACHES_HIDDEN = ops.INPUT | ROUTER | _UP | ops.BIAS  # the gradients of what comes before the second layer


class ExpertsFacts(NamedTuple):
    """What Python knows of a plan, as PlanFacts."""

    number: int
    experts: int
    features: int
    hidden: int
    input_dtype: torch.dtype
    weight_dtype: torch.dtype
    saved: Tuple[int, int]  # bytes: a constant, and as many for every 128 rows
    kept_input: Tuple[int, int]
    kept_up: Tuple[int, int]
    kept_down: Tuple[int, int]
    codes_bytes: int
    reads_weight: bool
    gated: bool

    def up_shape(self):
        return self.experts, (2 if self.gated else 1) * self.hidden, self.features

    def down_shape(self):
        return self.experts, self.features, self.hidden


_PLANS = PlansOfExperts(_core.torch_experts_plan, _core.torch_name_experts, ExpertsFacts)


@torch.compiler.assume_constant_result
def _plan_of_trace(recipe, experts, features, hidden, *rest):
    return _PLANS.plan(None, recipe, (experts, features, hidden), *rest)


@fake("experts_mlp_forward")
def _(input, tokens, plan, keep):
    facts = _PLANS[plan]
    saves = keep & ops.KEEP_SAVED
    return (
        input.new_empty(input.shape, dtype=facts.input_dtype),
        input.new_empty((tokens.shape[0], facts.up_shape()[1]), dtype=facts.input_dtype) if saves else None,
        _bytes_of_rows(tokens, facts.saved) if saves else None,
        ops.bytes_of(input, facts.codes_bytes) if keep & ops.KEEP_CODES else None,
    )


def _bytes_of_rows(tokens, size):
    constant, per_unit = size
    return ops.bytes_of(tokens, constant + ops.units_of(tokens[:, None]) * per_unit)


@fake("experts_mlp_backward")
def _(grad_output, router_weights, tokens, plan, wants):
    facts = _PLANS[plan]
    return (
        torch.empty_like(router_weights) if wants & ROUTER else None,
        grad_output.new_empty(facts.up_shape()[:2], dtype=bias_dtype_of(facts.input_dtype)) if wants & ops.BIAS else None,
        _bytes_of_rows(tokens, facts.kept_input) if wants & ops.INPUT else None,
        _bytes_of_rows(tokens, facts.kept_up) if wants & _UP else None,
        _bytes_of_rows(tokens, facts.kept_down) if wants & _DOWN else None,
    )


@fake("experts_mlp_input_backward")
def _(grad_output, plan):
    return grad_output.new_empty(grad_output.shape, dtype=_PLANS[plan].input_dtype)


@fake("experts_mlp_weight_backward")
def _(saved, plan, layer, main_grad=None):
    facts = _PLANS[plan]
    shape = facts.down_shape() if layer else facts.up_shape()
    return saved.new_empty(shape, dtype=facts.weight_dtype) if main_grad is None else None


@flops("experts_mlp_forward")
def _(tokens, up_weight, down_weight) -> int:
    """Of all rows, here and below: which of them experts have is known on the device only."""
    return 2 * tokens[0] * (up_weight[1] * up_weight[2] + down_weight[1] * down_weight[2])


@flops("experts_mlp_backward")
def _(tokens, plan, wants) -> int:
    _, n, k = _PLANS[plan].down_shape()
    return 2 * tokens[0] * n * k if wants & _REACHES_HIDDEN else 0


@flops("experts_mlp_input_backward")
def _(tokens, plan) -> int:
    _, n, k = _PLANS[plan].up_shape()
    return 2 * tokens[0] * n * k


@flops("experts_mlp_weight_backward")
def _(tokens, plan, layer) -> int:
    _, n, k = _PLANS[plan].down_shape() if layer else _PLANS[plan].up_shape()
    return 2 * tokens[0] * n * k


def _frees_weights() -> bool:
    return frees_weights_of_trace() if torch.compiler.is_compiling() else frees_weights()


def _wants_of(needs) -> int:
    bits = (ops.INPUT, ROUTER, _UP, _DOWN, ops.BIAS)
    return sum(bit for bit, need in zip(bits, needs) if need)


def stacked(up: torch.Tensor) -> torch.Tensor:
    """(experts, 2 * hidden, K) of such a weight, or of (experts, 2, hidden, K), which is copied unless its rows follow each other."""
    return up if up.dim() == 3 else up.flatten(1, 2)


class _ExpertsMlp(torch.autograd.Function):
    """Forward keeps codes and the first layer's output for backward, not the operands; the weights where they are cast again.
    Of a layer whose weights do not train it keeps no codes.
    For M rows, tensors of 16 bits and a gated MLP of `hidden` these are M * (features + 5 * hidden) bytes: `features` and `hidden`
    of codes, 4 * hidden of that output. In 16 bits they would be 2 * M * (features + 3 * hidden)."""

    @staticmethod
    def forward(
        ctx, input, router_weights, up, down, tokens, rows, ends, name, plan, reads_weight, up_main_grad, down_main_grad, up_bias, *state
    ):
        needs = (*ctx.needs_input_grad[:4], ctx.needs_input_grad[12])
        reaches_hidden = any(needs[:3]) or needs[4]
        index = tokens, rows, ends
        # Maxima of weights that FSDP2 gathers again would be those of other values, if they changed in between.
        leaves = reaches_hidden and not (reads_weight and (is_gathered(up) or is_gathered(down) or _frees_weights()))
        keep = (ops.KEEP_CODES if leaves else 0) | (ops.KEEP_SAVED if any(needs) else 0)
        operands = input, router_weights, stacked(up), down, *index
        output, hidden, saved, codes = _forward(operands, plan, keep, up_bias, *state)
        note_scales(ctx, reads_weight, *state)
        ctx.name, ctx.plan, ctx.wants, ctx.pairs = name, plan, _wants_of(needs), up.dim() == 4
        # When the second gradient is made, both are there, and what it reads: the less of both.
        ctx.order = (0, 1) if up.shape[-2] * (2 if ctx.pairs else 1) >= down.shape[1] else (1, 0)
        main_grads = up_main_grad, down_main_grad
        ctx.main_grads = main_grads  # not saved as autograd does: accumulation changes them before backward
        ctx.weights = None if not any(each is not None for each in main_grads) or torch.compiler.is_compiling() else (up, down)
        again = reads_weight and reaches_hidden
        hidden = hidden if reaches_hidden else None
        saved = saved if needs[2] or needs[3] else None
        ctx.save_for_backward(hidden, saved, codes, router_weights, up if again else None, down if again else None, *index)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            refuse_second_derivative_of_experts("experts", ctx.name or "experts")
        wants, main_grads = ctx.wants, list(ctx.main_grads)
        for at, bit in enumerate((_UP, _DOWN)):
            if main_grads[at] is None:
                continue
            asks = asks_for(ctx, _EDGES[bit], ctx.weights[at] if ctx.weights is not None else None)
            if asks is Asks.RETURNS:
                main_grads[at] = None
            elif asks is Asks.NOTHING:
                wants, main_grads[at] = wants & ~bit, None
        try:
            gradients = list(_gradients(ctx, grad_output, main_grads, wants))
        except RuntimeError as error:
            if torch.compiler.is_compiling():
                raise
            raise from_operator(error) from None
        for at, bit in enumerate((_UP, _DOWN)):
            if main_grads[at] is not None and wants & bit:
                gradients[2 + at] = dummy_gradient(None if ctx.weights is None else ctx.weights[at])
        if gradients[2] is not None and ctx.pairs:
            gradients[2] = gradients[2].unflatten(1, (2, -1))
        return *gradients[:4], *(None,) * 8, gradients[4], None, None, None


def _forward(operands, plan: int, keep: int, up_bias, *state):
    """Output, the first layer's output, saved memory and codes. state: of state_of_call()."""
    return call_with(scales_of_forward(*state), torch.ops.ingot.experts_mlp_forward, *operands, plan, keep, up_bias=up_bias)


def _gradients(ctx, grad_output, main_grads, wants):
    """Of input, router's weights, up, down and biases. What a call is the last to read goes before the next one asks for memory,
    unless the graph is retained; a compiler lets it go by itself."""
    hidden, saved, codes, router_weights, up, down, *index = ctx.saved_tensors
    if not torch.compiler.is_compiling():
        ctx.maybe_clear_saved_tensors()
    delayed = {}
    if ctx.scale is not None:
        refuse_batched_gradients(f'experts "{ctx.name}"', grad_output)
        delayed = scales_of_backward(ctx)
    operands = grad_output, router_weights, down, *index, hidden, codes, ctx.plan, wants
    of_router, of_bias, kept_input, *of_layers = call_with(delayed, torch.ops.ingot.experts_mlp_backward, *operands)
    kept = list(of_layers)  # what a star takes is a tuple to the compiler of PyTorch 2.11
    del operands, hidden, of_layers
    of_input, of_weights = None, [None, None]
    if kept_input is not None:
        up = None if up is None else stacked(up)  # such a copy is not kept
        arguments = grad_output, up, *index, codes, kept_input, kept[0], ctx.plan, wants
        of_input = call_with(delayed, torch.ops.ingot.experts_mlp_input_backward, *arguments)
        del arguments
    del kept_input, codes, up, down
    for layer in ctx.order:
        mine, kept[layer] = kept[layer], None
        if mine is not None:
            of_weights[layer] = _weight_gradient(index, saved, mine, ctx.plan, wants, layer, main_grads[layer])
        del mine
    return of_input, of_router, *of_weights, of_bias


def _weight_gradient(index, saved, kept, plan, wants, layer, main_grad):
    tokens, _, ends = index
    if main_grad is None:
        return torch.ops.ingot.experts_mlp_weight_backward.default(tokens, ends, saved, kept, plan, wants, layer)
    if torch.compiler.is_compiling():
        wants |= ASKS_ENGINE
    arguments = tokens, ends, saved, kept, plan, wants, layer
    return torch.ops.ingot.experts_mlp_weight_backward.in_place(*arguments, main_grad=main_grad)


class Rows(NamedTuple):
    """int32: the token of each row (M,), the rows of each token (tokens * k,), and the row at which each expert's end."""

    tokens: torch.Tensor
    of_tokens: torch.Tensor
    ends: torch.Tensor


def run_experts_mlp(
    input: torch.Tensor,
    router_weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    rows: Rows,
    options: LinearOptions,
    activation: str,
    fast_math: bool,
    all_have_experts: bool,
    up_bias: Optional[torch.Tensor] = None,
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """experts_mlp() of (tokens, features) in high precision, without biases of `down`. up: as stacked() takes it. router_weights:
    float32 (M,), of each row. Rows from the last end on, unless all_have_experts, are no expert's, and no token has them."""
    subject = SubjectOfExperts("experts", options)
    check_recipe_of_experts(subject, options.recipe, options.fast_gradients)
    state = state_of_call(subject, options.recipe, input, delayed)
    main_grads = (
        main_grad_of_experts(up, subject, "gate_up_weight "),
        main_grad_of_experts(down, subject, "down_weight "),
    )
    if up_bias is not None:  # rounded as the GEMM adds it
        up_bias = up_bias.to(bias_dtype_of(input.dtype)).contiguous()
    reaching = input, router_weights, up, *(() if up_bias is None else (up_bias,))
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in reaching)
    # Of rows, whose number the GEMMs have, not of tokens.
    again = not wanted or is_gathered(up) or is_gathered(down)
    again = again or casts_weight_again(options.keep_weight_codes, rows.tokens[:, None], wanted)
    trains = [torch.is_grad_enabled() and each.requires_grad for each in (up, down)]
    experts, features, hidden = ops.fixed_sizes(down)
    sizes = experts, features, hidden
    rest = (input.dtype, up.dtype, *trains, again, options.fast_gradients, activation, fast_math, all_have_experts, up_bias is not None)
    if torch.compiler.is_compiling():
        plan, reads_weight = _plan_of_trace(options.recipe, *sizes, *rest)
    else:
        plan, reads_weight = _PLANS.plan(options.name, options.recipe, sizes, *rest)
    if not torch.is_grad_enabled():
        return _forward((input, router_weights, stacked(up), down, *rows), plan, 0, up_bias, *state)[0]
    name = None if torch.compiler.is_compiling() else options.name  # which a compiler would guard: equal layers share a graph
    arguments = input, router_weights, up, down, *rows, name, plan, reads_weight, *main_grads, up_bias
    return _ExpertsMlp.apply(*arguments, *state)

"""linear() on one rank's part of a layer that several ranks divide (tensor parallelism), and what they exchange: FP8 codes where
one set of them serves all that reads a tensor, else values. docs/distributed.md says what each recipe sends.

A column-parallel layer has rows of the weight: its input is whole on every rank, or gathered, and the gradient of its input is
a sum over the ranks. A row-parallel one has columns: its output is that sum. A scale of a whole tensor comes of the maxima of
all its parts.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional, Tuple, Union

import torch

from .. import _core
from . import _operators as ops
from ._checks import called, check_layer, refuse, refuse_double_backward
from ._eager_linear import wants_of
from ._exported import is_exporting
from ._gathered_weight import is_gathered
from ._linear import casts_weight_again, in_autocasts_dtype
from ._main_grad import converted
from ._parallel_scales import DelayedSlot, scale_of_maximum
from ._quantize_operators import FORMATS, quantize, quantize_rows
from ._ranks import Ranks, amax_of, gather, gather_rows, in_order, largest_of, scatter_sum, sum_of

_FORMAT = {str(format).removeprefix("torch.float8_"): at for at, format in enumerate(FORMATS)}


class GatheredInput(NamedTuple):
    """The input of column-parallel layers, of all ranks' tokens, which these layers share.

    values: with codes, it has the shape, the dtype and the gradient of the input, and no values. codes: as bytes; None: values are
    gathered. scale_inv: one, or one for each row. amax: of delayed scales, max |x| of this rank's tokens. The gradient that
    each layer returns is a summand of its rank.
    """

    values: torch.Tensor
    codes: Optional[torch.Tensor] = None
    scale_inv: Optional[torch.Tensor] = None
    amax: Optional[torch.Tensor] = None

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        return self.values.requires_grad

    def dim(self) -> int:
        return self.values.dim()

    def size(self, dim: Optional[int] = None):
        return self.values.shape if dim is None else self.values.shape[dim]

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        refuse(
            "PrepareFloat8ModuleInput",
            f"input: {getattr(function, '__name__', function)}() reads values of an input that was gathered as FP8 codes, which "
            "only column-parallel layers can read: give this module torch's PrepareModuleInput, or name the layers' input alone "
            "in its layouts",
        )


class PartOf(NamedTuple):
    """A layer, of which this rank has a part.

    config: a recipe's name, or casts. name: in messages. is_row: does the rank have columns of the weight? ranks: those that
    divide it. tokens: the dimension along which they divide the tokens too, of a column-parallel layer's input and a
    row-parallel one's output; None: each has all. sums: does a row-parallel layer sum its output? Otherwise that is the rank's
    summand.
    """

    config: Union[str, ops.Casts]
    name: str
    is_row: bool
    ranks: Ranks
    tokens: Optional[int] = None
    keep_weight_codes: Optional[bool] = None
    sums: bool = True

    @property
    def subject(self) -> str:
        return f'linear "{self.name}"'

    def with_tokens(self, tokens: Optional[int], sums: bool = True) -> "PartOf":
        return PartOf(self.config, self.name, self.is_row, self.ranks, tokens, self.keep_weight_codes, sums)

    def with_config(self, config: Union[str, ops.Casts]) -> "PartOf":
        return PartOf(config, *self[1:])

    @property
    def divided(self) -> Tuple[bool, bool, bool]:
        """Of input, weight and grad_output: do other ranks have parts of it?"""
        if self.ranks.size == 1:
            return (False, False, False)
        by_tokens = self.tokens is not None
        return (True, True, by_tokens) if self.is_row else (by_tokens, True, True)


How = Optional[Tuple[str, bool, bool]]  # a format's name, one scale for each row?, powers of two?


class Plan(NamedTuple):
    """number: of the plan that casts the input; of_codes: of that which is given it as codes, if it may be. given: format and
    "powers of two?" of input, weight and grad_output where their scale is given. gathers: how the input crosses, and
    grad_output for the gradients of the input, of the weight, of both; None: as values."""

    number: int
    of_codes: int
    reads_input: bool
    reads_weight: bool
    given: Tuple[Optional[Tuple[str, bool]], ...]
    gathers: Tuple[How, ...]


@functools.lru_cache(maxsize=None)
def _plan(config, name, *of) -> Plan:
    facts = ops.add_plan(config, name, *of)
    gathers = tuple(None if each is None else tuple(each) for each in _core.torch_linear_gathers(facts.number))
    given = tuple(None if each is None else tuple(each) for each in _core.torch_linear_given_scales(facts.number))
    of_codes = facts if gathers[0] is None else ops.add_plan(config, name, *of, True)
    return Plan(facts.number, of_codes.number, facts.reads_input, facts.reads_weight, given, gathers)


@torch.compiler.assume_constant_result
def _plan_of_trace(*arguments):
    plan = _plan(*arguments)
    return plan.number, plan.of_codes, plan.reads_input, plan.reads_weight, plan.given, plan.gathers


def plan_of(part: PartOf, of: tuple) -> Plan:
    """of: what ops.PlanOf has after its config, up to weight_again."""
    if torch.compiler.is_compiling():
        return Plan(*_plan_of_trace(part.config, None, *of, part.divided))
    return _plan(part.config, part.name, *of, part.divided)


# ---- casts of this rank's part -----------------------------------------------------------------------------------------------


def _cast(values: torch.Tensor, how, scale: Optional[torch.Tensor]):
    """Returns codes, scale_inv, and the maximum where a scale is given; scale_inv in a row, for each row or one."""
    format, by_row, pow2 = how
    if by_row:
        return (*quantize_rows(values, _FORMAT[format], int(pow2)), None)
    codes, amax = quantize(values, scale, _FORMAT[format])
    return codes, scale.reciprocal(), amax


def _gathered_codes(values: torch.Tensor, how, scale: Optional[torch.Tensor], dim: int, ranks: Ranks):
    """As _cast(), of all ranks' tokens. The codes are bytes."""
    codes, scale_inv, amax = _cast(values, how, scale)
    codes = codes.view(torch.uint8)
    if not how[1]:
        (codes,) = gather([codes], ranks)
        return in_order(codes, dim, ranks), scale_inv, amax
    codes, scale_inv = gather([codes, scale_inv.reshape(values.shape[:-1])], ranks)
    return in_order(codes, dim, ranks), in_order(scale_inv, dim, ranks).reshape(-1), amax


class _GatherCodes(torch.autograd.Function):
    """This rank's tokens to the codes of all. Returns what GatheredInput holds; the gradient of its values is summed over the
    ranks, and each gets that of its tokens."""

    @staticmethod
    def forward(ctx, input, scale, how, dim, ranks):
        ctx.dim, ctx.ranks = dim, ranks
        codes, scale_inv, amax = _gathered_codes(input, how, scale, dim, ranks)
        if how[1] and torch.compiler.is_compiling():
            scale_inv = scale_inv.clone()  # PyTorch 2.11 asks for the gradient of a view, even of one that is marked to have none
        values = input.new_empty(()).expand(codes.shape)
        ctx.mark_non_differentiable(codes, scale_inv, *(() if amax is None else (amax,)))
        return values, codes, scale_inv, amax

    @staticmethod
    def backward(ctx, grad, *_):
        return (scatter_sum(grad, ctx.dim, ctx.ranks), *(None,) * 4)


class _GatherValues(torch.autograd.Function):
    """This rank's tokens to those of all, and back the sum of the gradients."""

    @staticmethod
    def forward(ctx, input, dim, ranks):
        ctx.dim, ctx.ranks = dim, ranks
        return gather_rows(input, dim, ranks)

    @staticmethod
    def backward(ctx, grad):
        return scatter_sum(grad, ctx.dim, ctx.ranks), None, None


class _SumGradients(torch.autograd.Function):
    """What is the same on all ranks, each of which has a part of its gradient."""

    @staticmethod
    def forward(ctx, input, ranks):
        ctx.ranks = ranks
        return input.view_as(input)

    @staticmethod
    def backward(ctx, grad):
        return sum_of(grad, ctx.ranks), None


def with_summed_gradient(tensor: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The tensor; its gradient is summed over the ranks."""
    return tensor if ranks.size == 1 else _SumGradients.apply(tensor, ranks)


class _AddBias(torch.autograd.Function):
    """The bias of a row-parallel layer, added to the sum over the ranks. Its gradient is that of all ranks' tokens, in f32
    before it is rounded."""

    @staticmethod
    def forward(ctx, output, bias, ranks):
        ctx.ranks, ctx.dtype = ranks, bias.dtype
        return output + bias.to(output.dtype)

    @staticmethod
    def backward(ctx, grad):
        grad_bias = None
        if ctx.needs_input_grad[1]:
            rows = grad.flatten(0, -2) if grad.dim() > 1 else grad.unsqueeze(0)
            grad_bias = rows.sum(0, dtype=torch.float32)
            if ctx.ranks is not None:
                grad_bias = sum_of(grad_bias, ctx.ranks)
            grad_bias = grad_bias.to(ctx.dtype)
        return grad if ctx.needs_input_grad[0] else None, grad_bias, None


def add_bias(output: torch.Tensor, bias: torch.Tensor, tokens_are_divided: bool, ranks: Ranks) -> torch.Tensor:
    return _AddBias.apply(output, bias, ranks if tokens_are_divided else None)


# ---- the layer's part --------------------------------------------------------------------------------------------------------


class _Part(torch.autograd.Function):
    """One operator forward and one backward. input: its values, or, with codes, its shape. Scales are given where the plan
    says so; slot: a delayed scale of grad_output. Returns the output, and the maxima of input and weight."""

    @staticmethod
    def forward(
        ctx, input, codes, scale_inv, weight, bias, input_scale, weight_scale, slot_scale, slot_amax, slot_starts, plan, part,
        records,
    ):  # fmt: skip
        needs_input, needs_weight, needs_bias = [records and ctx.needs_input_grad[at] for at in (0, 3, 4)]
        keep = (ops.KEEP_CODES if needs_input and not plan.reads_weight else 0) | (ops.KEEP_SAVED if needs_weight else 0)
        number = plan.number if codes is None else plan.of_codes
        output, saved, weight_codes, amaxes = called(
            part.subject, ops.linear_forward, input if codes is None else codes, weight, bias, number, keep,
            input_scale=input_scale, weight_scale=weight_scale, input_scale_inv=scale_inv,
        )  # fmt: skip
        ctx.number, ctx.plan, ctx.part = number, plan, part
        ctx.wants = wants_of((needs_input, needs_weight, needs_bias))
        # Not saved as autograd does: later steps write them.
        ctx.slot_scale, ctx.slot_amax, ctx.slot_starts = slot_scale, slot_amax, slot_starts
        again = needs_input and plan.reads_weight
        kept = None
        if needs_weight:
            kept = codes if codes is not None else input if plan.reads_input else None
        ctx.save_for_backward(
            saved,
            weight_codes if keep & ops.KEEP_CODES else None,
            kept,
            scale_inv if needs_weight else None,
            weight if again else None,
            weight_scale.clone() if again and weight_scale is not None else None,
        )
        output = _output(output, part)
        if amaxes is None:
            return output, None
        ctx.mark_non_differentiable(amaxes)
        return output, amaxes

    @staticmethod
    def backward(ctx, grad_output, _):
        part = ctx.part
        refuse_double_backward(part.subject)
        saved, weight_codes, input, scale_inv, weight, weight_scale = ctx.saved_tensors
        slot = None if ctx.slot_scale is None else DelayedSlot(ctx.slot_scale, ctx.slot_amax, ctx.slot_starts, 2)
        grad_output, grad_scale, grad_scale_inv, amax = _grad_output(grad_output, ctx.plan, part, slot, ctx.wants)
        grad_input, grad_weight, grad_bias, amaxes = called(
            part.subject, ops.linear_backward, grad_output, input, weight, saved, weight_codes, ctx.number, ctx.wants,
            grad_output_scale=grad_scale, weight_scale=weight_scale, input_scale_inv=scale_inv,
            grad_output_scale_inv=grad_scale_inv,
        )  # fmt: skip
        if slot is not None:
            slot.note(amaxes[:1] if amax is None else amax)
        return (grad_input, None, None, grad_weight, grad_bias, *(None,) * 8)


def _output(output: torch.Tensor, part: PartOf) -> torch.Tensor:
    """A row-parallel layer's output is the sum over the ranks."""
    if not part.is_row or not part.sums:
        return output
    if part.tokens is not None:
        return scatter_sum(output, part.tokens, part.ranks)
    return sum_of(output, part.ranks)


_HOW_FOR = {ops.INPUT: 1, ops.WEIGHT: 2, ops.INPUT | ops.WEIGHT: 3}  # the places in Plan.gathers


def _grad_output(grad_output: torch.Tensor, plan: Plan, part: PartOf, slot: Optional[DelayedSlot], wants: int):
    """What backward multiplies: grad_output or its codes, the scale that it is cast with, the scale_inv of codes, and the
    maximum where codes were made here."""
    format, scale = plan.given[2], None
    if format is not None:
        ranks = part.ranks if part.divided[2] else _ALONE
        if slot is not None:
            scale = slot.of_call(grad_output, format, ranks)
        else:
            scale = scale_of_maximum(largest_of(amax_of(grad_output), ranks), format)
    if not part.is_row or part.tokens is None or part.ranks.size == 1:
        return grad_output, scale, None, None
    at = _HOW_FOR.get(wants & (ops.INPUT | ops.WEIGHT))
    how = None if at is None else plan.gathers[at]
    if how is None:
        return gather_rows(grad_output, part.tokens, part.ranks), scale, None, None
    codes, scale_inv, amax = _gathered_codes(grad_output, how, scale, part.tokens, part.ranks)
    return codes, scale, scale_inv, amax


_ALONE = Ranks("", 0, 1)
Slots = Tuple[DelayedSlot, DelayedSlot, DelayedSlot]  # of input, weight and grad_output


def _scales(values, weight, plan: Plan, part: PartOf, slots: Optional[Slots], is_cast: bool):
    """The scales of input and weight that the call gives: one reduction for both. is_cast: the input is codes already."""
    tensors = (None if is_cast else values, None if is_gathered(weight) else weight)
    scales: list = [None, None]
    maxima = []
    for at, tensor in enumerate(tensors):
        if tensor is None or plan.given[at] is None:
            continue
        if slots is not None:
            scales[at] = slots[at].of_call(tensor, plan.given[at], part.ranks if part.divided[at] else _ALONE)
        else:
            maxima.append((at, amax_of(tensor)))
    if maxima:
        reduced = largest_of(torch.cat([amax for _, amax in maxima]), part.ranks)
        for place, (at, _) in enumerate(maxima):
            scales[at] = scale_of_maximum(reduced[place : place + 1], plan.given[at])
    return scales


def gathered_input(
    input: torch.Tensor, of: tuple, part: PartOf, slot: Optional[DelayedSlot] = None, values_too: bool = True
) -> Optional[GatheredInput]:
    """This rank's tokens to those of all ranks: codes, or, where layers of this config read them, values (values_too), or None.
    of: as plan_of() takes it; slot: the delayed scale of the input."""
    plan = plan_of(part, of)
    how = plan.gathers[0]
    if how is None:
        return GatheredInput(_GatherValues.apply(input, part.tokens, part.ranks)) if values_too else None
    scale = None
    if plan.given[0] is not None and slot is not None:
        scale = slot.of_call(input, plan.given[0], part.ranks)
    elif plan.given[0] is not None:
        scale = scale_of_maximum(largest_of(amax_of(input), part.ranks), plan.given[0])
    return GatheredInput(*_GatherCodes.apply(input, scale, how, part.tokens, part.ranks))


def _column_input(input, plan: Plan, part: PartOf, scale: Optional[torch.Tensor]):
    """The input of all ranks' tokens, as GatheredInput has it, or its values without codes."""
    if isinstance(input, GatheredInput):
        if input.codes is not None and plan.gathers[0] is None:
            refuse(
                part.subject,
                "input: was gathered as FP8 codes, and this layer reads its values: give all layers of the module one recipe, "
                "and train all of their weights or none",
            )
        return input
    if part.tokens is None or part.ranks.size == 1:
        return input, None, None, None
    how = plan.gathers[0]
    if how is None:
        return _GatherValues.apply(input, part.tokens, part.ranks), None, None, None
    return _GatherCodes.apply(input, scale, how, part.tokens, part.ranks)


def run_part(
    input: Union[torch.Tensor, GatheredInput],
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    part: PartOf,
    slots: Optional[Slots] = None,
) -> torch.Tensor:
    """The layer's output, or this rank's part of it. input: this rank's part, or all, with codes or without; weight and bias:
    this rank's part, but all of a row-parallel layer's bias. Plain tensors, or what FSDP has gathered."""
    is_gathered_input = isinstance(input, GatheredInput)
    if torch.compiler.is_compiling() and is_exporting():
        refuse(part.subject, "is divided over several ranks, and torch.export makes programs of one: export the whole layer")
    check_layer(part.subject, input.values if is_gathered_input else input, weight, None if part.is_row else bias)
    if not is_gathered_input:
        input = in_autocasts_dtype(input)
    values = input.values if is_gathered_input else input
    if part.config == "high_precision":
        weight = converted(weight, values.dtype)
    records = torch.is_grad_enabled()
    again = is_gathered(weight) or casts_weight_again(part.keep_weight_codes, values, records)
    own_bias = None if part.is_row else bias
    if is_gathered(weight) and not isinstance(part.config, str):
        part = part.with_config(_casting_again(part.config))
    rows, columns = ops.fixed_sizes(weight) if torch.compiler.is_compiling() else weight.shape
    of = (columns, rows, values.dtype, weight.dtype, None if own_bias is None else own_bias.dtype)
    plan = plan_of(part, (*of, records and weight.requires_grad, again))
    scales = _scales(values, weight, plan, part, slots, is_gathered_input and input.codes is not None)
    values, codes, scale_inv, input_amax = (
        (input, None, None, None) if part.is_row else _column_input(input, plan, part, scales[0])
    )
    if codes is not None:
        scales[0] = None
    notes = slots is not None and records
    slot = (None, None, None)
    if notes and plan.given[2] is not None:
        slot = slots[2].scale, slots[2].amax, slots[2].starts
    output, amaxes = _Part.apply(values, codes, scale_inv, weight, own_bias, *scales, *slot, plan, part, records)
    if notes:
        _note(slots, plan, amaxes, (input_amax, weight.own_amax if is_gathered(weight) else None))
    if bias is None or not part.is_row:
        return output
    return add_bias(output, bias, part.tokens is not None, part.ranks)


def _casting_again(casts: ops.Casts) -> ops.Casts:
    """For a weight that FSDP has gathered as codes, of which nothing is kept."""
    return ops.Casts(casts.casts, casts.pow2, casts.fast_accumulation, True, casts.given)


def _note(slots: Slots, plan: Plan, amaxes: Optional[torch.Tensor], of_codes: Tuple[Optional[torch.Tensor], ...]) -> None:
    """The maxima of input and weight: of the operator's casts, and of codes that were made before (of_codes): of the input
    before it was gathered, of the weight by FSDP."""
    for at, slot in enumerate(slots[:2]):
        amax = of_codes[at]
        if amax is None and amaxes is not None:
            amax = amaxes[at : at + 1]
        if plan.given[at] is not None and amax is not None:
            slot.note(amax)

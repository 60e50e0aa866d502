"""The operators torch.ops.ingot.*, with fake kernels that tell compilers the results' shapes."""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional, Union

import torch

from .. import _core
from .._core import Error
from .._pytorch import OLDEST, is_older
from ._names import with_names

TOKENS_PER_UNIT = _core.torch_tokens_per_unit
# So many make calls whose allocations, and second cast of a weight, cost little beside their GEMMs.
MANY_TOKENS = _core.torch_many_tokens
HIGH_PRECISION = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

# Bits of forward's `keep` and backward's `wants`: the gradients of input, weight and bias.
INPUT, WEIGHT, BIAS = 1, 2, 4


def require_torch(version: str) -> None:
    """Raises ingot.Error if this version of PyTorch is too old."""
    if is_older(version, OLDEST):
        raise Error(f"ingot.torch: needs PyTorch 2.7 or later, this is {version}: upgrade it")


require_torch(torch.__version__)
_core.torch_register()

linear_forward = torch.ops.ingot.linear_forward.default
linear_forward_bias = torch.ops.ingot.linear_forward_bias.default
linear_backward = torch.ops.ingot.linear_backward.default
linear_forward_scaled = torch.ops.ingot.linear_forward_scaled.default
linear_backward_scaled = torch.ops.ingot.linear_backward_scaled.default
linear_backward_into = torch.ops.ingot.linear_backward_into.default
linear_forward_float8 = torch.ops.ingot.linear_forward_float8.default
linear_backward_float8 = torch.ops.ingot.linear_backward_float8.default
# The step of delayed scales, in place: amax (n), history (n, length) and scale (n), float32 and contiguous, of any shape
# with as many elements; formats (2, n): FP8_MAX of each, and 1 where scales are powers of two, else 0.
sync_amax_history = torch.ops.ingot.sync_amax_history.default


class PlanFacts(NamedTuple):
    """What Python knows of a plan. Saved memory has saved_constant + ceil(tokens / TOKENS_PER_UNIT) * saved_per_unit
    bytes."""

    number: int
    in_features: int
    out_features: int
    weight_dtype: torch.dtype
    bias_dtype: Optional[torch.dtype]
    saved_constant: int
    saved_per_unit: int
    weight_bytes: int
    reads_input: bool
    reads_weight: bool


_PLANS: dict[int, PlanFacts] = {}


class PlanTable(dict):
    """The plans that one layer has used. Copies and pickles are empty: plans have to be added in each process."""

    def __reduce__(self):
        return PlanTable, ()


class Casts(NamedTuple):
    """A config by its casts: of input, weight and grad_output in the GEMMs that read them first (output, output,
    grad_input), then in the others (grad_weight, grad_input, grad_weight); each a dtype's name, or "" for none, and
    whether it has a scale for each row. fast_accumulation is that of the output, grad_input and grad_weight GEMMs.
    weight_again: backward casts the weight once more, and no codes of it are kept. given: are the scales of input, weight
    and grad_output given with each call, as delayed and static ones are?"""

    casts: tuple[tuple[str, bool], ...]
    pow2: bool
    fast_accumulation: tuple[bool, bool, bool]
    weight_again: bool
    given: tuple[bool, bool, bool] = (False, False, False)


@functools.lru_cache(maxsize=None)  # as many as a model has kinds of layers
def _plan(
    config: Union[str, Casts],
    in_features: int,
    out_features: int,
    input_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    bias_dtype: Optional[torch.dtype],
    trains_weight: bool,
    weight_again: bool,
) -> PlanFacts:
    dtypes = (
        HIGH_PRECISION[input_dtype],
        HIGH_PRECISION[weight_dtype],
        None if bias_dtype is None else HIGH_PRECISION[bias_dtype],
    )
    arguments = (in_features, out_features, dtypes, trains_weight)
    if isinstance(config, str):
        added = _core.torch_linear_plan(config, *arguments, weight_again)
    else:
        added = _core.torch_linear_plan_of_casts(*config, *arguments)
    number, saved_constant, saved_per_unit, weight_bytes, reads_input, reads_weight = added
    facts = PlanFacts(
        number,
        in_features,
        out_features,
        weight_dtype,
        bias_dtype,
        saved_constant,
        saved_per_unit,
        weight_bytes,
        reads_input,
        reads_weight,
    )
    _PLANS[number] = facts
    return facts


def add_plan(
    config: Union[str, Casts],
    name: Optional[str],
    in_features: int,
    out_features: int,
    input_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    bias_dtype: Optional[torch.dtype],
    trains_weight: bool,
    weight_again: bool = False,
) -> PlanFacts:
    """The plan of a layer; `config` is a recipe's name or the casts. weight_again: as Casts has it, of a recipe.

    name: what messages and observers call the layer. None for a graph, which equal layers share: then the layer is found
    by its weight. Layers that differ only in their names have one plan. Equal arguments give one number, in every process
    with this version of Ingot."""
    of_plan = (in_features, out_features, input_dtype, weight_dtype, bias_dtype, trains_weight, weight_again)
    try:
        facts = _plan(config, *of_plan)
    except Error as error:
        raise named_error(error, name) from None
    if name is None:
        return facts
    number = _core.torch_name_linear(facts.number, [name])
    _PLANS[number] = facts
    return facts._replace(number=number)


def named_error(error: Error, *names: Optional[str]) -> Error:
    """The error of a plan, whose texts have placeholders for the names of layers."""
    return type(error)(with_names(str(error), [name or "unnamed" for name in names]))


def _bytes(like: torch.Tensor, count) -> torch.Tensor:
    return like.new_empty((count,), dtype=torch.uint8)


def facts_of(plan: int) -> PlanFacts:
    """What add_plan() has returned for a plan of this number."""
    return _PLANS[plan]


def units_of(input: torch.Tensor):
    """How often TOKENS_PER_UNIT tokens an input (..., features) has, rounded up."""
    tokens = 1
    for size in input.shape[:-1]:
        tokens = tokens * size
    return (tokens + TOKENS_PER_UNIT - 1) // TOKENS_PER_UNIT


def _fake_forward(input: torch.Tensor, plan: int, keep: int):
    facts = _PLANS[plan]
    units = units_of(input)
    return (
        input.new_empty((*input.shape[:-1], facts.out_features)),
        _bytes(input, facts.saved_constant + units * facts.saved_per_unit if keep & WEIGHT else 0),
        _bytes(input, facts.weight_bytes if keep & INPUT else 0),
    )


@torch.library.register_fake("ingot::linear_forward")
def _(input, weight, plan, keep):
    return _fake_forward(input, plan, keep)


@torch.library.register_fake("ingot::linear_forward_bias")
def _(input, weight, bias, plan, keep):
    return _fake_forward(input, plan, keep)


@torch.library.register_fake("ingot::linear_forward_scaled")
def _(input, weight, bias, scale_input, scale_weight, plan, keep):
    return (*_fake_forward(input, plan, keep), input.new_empty((2,), dtype=torch.float32))


def _fake_backward(grad_output, plan: int, wants: int):
    facts = _PLANS[plan]
    rows = grad_output.shape[:-1]
    weight_shape = (facts.out_features, facts.in_features)
    return (
        grad_output.new_empty((*rows, facts.in_features)) if wants & INPUT else _bytes(grad_output, 0),
        grad_output.new_empty(weight_shape, dtype=facts.weight_dtype) if wants & WEIGHT else _bytes(grad_output, 0),
        grad_output.new_empty(weight_shape[:1], dtype=facts.bias_dtype) if wants & BIAS else _bytes(grad_output, 0),
    )


@torch.library.register_fake("ingot::linear_backward")
def _(grad_output, input, weight, saved, codes, plan, wants):
    return _fake_backward(grad_output, plan, wants)


@torch.library.register_fake("ingot::linear_backward_scaled")
def _(grad_output, input, weight, saved, codes, scale_grad_output, scale_weight, plan, wants):
    return (*_fake_backward(grad_output, plan, wants), grad_output.new_empty((2,), dtype=torch.float32))


@torch.library.register_fake("ingot::linear_backward_into")
def _(grad_output, input, weight, saved, codes, main_grad, plan, wants):
    facts = _PLANS[plan]
    return (
        grad_output.new_empty((*grad_output.shape[:-1], facts.in_features))
        if wants & INPUT
        else _bytes(grad_output, 0),
        grad_output.new_empty((facts.out_features,), dtype=facts.bias_dtype)
        if wants & BIAS
        else _bytes(grad_output, 0),
    )


@torch.library.register_fake("ingot::linear_forward_float8")
def _(input, weight, factor, bias, plan, keep):
    return _fake_forward(input, plan, keep & WEIGHT)[:2]


@torch.library.register_fake("ingot::linear_backward_float8")
def _(grad_output, input, weight, factor, saved, plan, wants):
    return _fake_backward(grad_output, plan, wants)


@torch.library.register_fake("ingot::sync_amax_history")
def _(amax, history, scale, formats):
    return None

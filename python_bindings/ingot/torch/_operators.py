"""The operators torch.ops.ingot.*, with fake kernels that tell compilers the results' shapes."""

from __future__ import annotations

import dataclasses
import functools
from operator import index
from typing import NamedTuple, Optional, Tuple, Union

import torch

from .. import _core
from .._core import Error
from .._pytorch import OLDEST, is_older
from ._errors import LinearError
from ._names import with_names
from ._schemas import BIAS, INPUT, KEEP_CODES, KEEP_SAVED, WEIGHT, fake

TOKENS_PER_UNIT = _core.torch_tokens_per_unit
# A call of this many tokens spends little on allocations and on the weight's second cast, compared with its GEMMs.
MANY_TOKENS = _core.torch_many_tokens
HIGH_PRECISION = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}

def require_torch(version: str) -> None:
    """Raises ingot.Error if this version of PyTorch is too old."""
    if is_older(version, OLDEST):
        raise Error(f"ingot.torch: needs PyTorch 2.7 or later, this is {version}: upgrade it")


require_torch(torch.__version__)
_core.torch_register()

linear_forward = torch.ops.ingot.linear_forward.default
linear_backward = torch.ops.ingot.linear_backward.default
linear_backward_in_place = torch.ops.ingot.linear_backward.in_place
# The step of delayed scales, in place: amax (n), history (n, length) and scale (n), float32 and contiguous, of any shape
# with as many elements; formats (2, n): FP8_MAX of each, and 1 where scales are powers of two, else 0.
sync_amax_history = torch.ops.ingot.sync_amax_history.default


class PlanFacts(NamedTuple):
    """What Python knows of a plan. Saved memory has saved_constant + ceil(tokens / TOKENS_PER_UNIT) * saved_per_unit
    bytes."""

    number: int
    in_features: int
    out_features: int
    input_dtype: torch.dtype
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


class HoldsPlans:
    """Options, a dataclass, with tables of plans that are no fields. Copies and pickles have none of these: the numbers of
    plans are of this process."""

    def __reduce__(self):
        return type(self), tuple(getattr(self, each.name) for each in dataclasses.fields(self))


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


class PlanOf(NamedTuple):
    """What the plan of a layer is made of; `config` is a recipe's name or the casts. weight_again: as Casts has it, of a
    recipe. divided: of input, weight and grad_output, those of which other ranks have parts: where these have one dynamic
    scale, which all parts share, it is given with each call. given_input: each call is given the input as FP8 codes and
    scale_inv."""

    config: Union[str, Casts]
    in_features: int
    out_features: int
    input_dtype: torch.dtype
    weight_dtype: torch.dtype
    bias_dtype: Optional[torch.dtype]
    trains_weight: bool
    weight_again: bool = False
    divided: tuple[bool, bool, bool] = (False, False, False)
    given_input: bool = False


@functools.lru_cache(maxsize=None)  # as many as a model has kinds of layers
def _plan(of: PlanOf) -> PlanFacts:
    bias = None if of.bias_dtype is None else HIGH_PRECISION[of.bias_dtype]
    dtypes = (HIGH_PRECISION[of.input_dtype], HIGH_PRECISION[of.weight_dtype], bias)
    arguments = (of.in_features, of.out_features, dtypes, of.trains_weight)
    if isinstance(of.config, str):
        number, *facts = _core.torch_linear_plan(of.config, *arguments, of.weight_again, *of[-2:])
    else:
        number, *facts = _core.torch_linear_plan_of_casts(*of.config, *arguments, *of[-2:])
    added = PlanFacts(number, of.in_features, of.out_features, of.input_dtype, of.weight_dtype, of.bias_dtype, *facts)
    _PLANS[number] = added
    return added


def add_plan(config: Union[str, Casts], name: Optional[str], *rest) -> PlanFacts:
    """The plan of a layer; `config` and the rest are those of PlanOf.

    name: what messages and observers call the layer. None for a graph, which equal layers share: then the layer is found
    by its weight. Layers that differ only in their names have one plan. Equal arguments give one number, in every process
    with this version of Ingot."""
    try:
        facts = _plan(PlanOf(config, *rest))
    except Error as error:
        raise named_error(error, name) from None
    if name is None:
        return facts
    number = _core.torch_name_linear(facts.number, [name])
    _PLANS[number] = facts
    return facts._replace(number=number)


@functools.lru_cache(maxsize=None)
def frozen_plan(
    name: Optional[str],
    recipe: str,
    code_dtype: str,
    out_features: int,
    in_features: int,
    input_dtype: torch.dtype,
    bias_dtype: Optional[torch.dtype],
) -> int:
    """The number of the plan of a layer whose weight is codes and scale_inv, as checkpoints have them, and is not trained;
    `name` as add_plan() has it."""
    if bias_dtype is not None and bias_dtype not in HIGH_PRECISION:
        raise LinearError(
            f'FrozenFloat8Linear "{name or "unnamed"}" bias: is {bias_dtype}, expected float32, float16 or bfloat16: convert '
            "it with .to()"
        )
    bias = None if bias_dtype is None else HIGH_PRECISION[bias_dtype]
    try:
        number = _core.torch_frozen_plan(recipe, code_dtype, in_features, out_features, HIGH_PRECISION[input_dtype], bias)
    except Error as error:
        raise named_error(error, name) from None
    if name is not None:
        number = _core.torch_name_linear(number, [name])
    sizes = (number, in_features, out_features)
    _PLANS[number] = PlanFacts(*sizes, input_dtype, None, bias_dtype, 0, 0, 0, False, False)
    return number


def named_error(error: Error, *names: Optional[str]) -> Error:
    """Returns a plan's error with layers' names in place of its placeholders."""
    return type(error)(with_names(str(error), [name or "unnamed" for name in names]))


def bytes_of(like: torch.Tensor, count) -> torch.Tensor:
    return like.new_empty((count,), dtype=torch.uint8)


def facts_of(plan: int) -> PlanFacts:
    """What add_plan() has returned for a plan of this number."""
    return _PLANS[plan]


def fixed_sizes(weight: torch.Tensor) -> Tuple[int, ...]:
    """The sizes that a weight's plan is made for. A compiler that has seen other weights takes them for sizes that change: as
    indices they are these, and it makes a graph for each."""
    return tuple([index(size) for size in weight.shape])


def units_of(input: torch.Tensor):
    """Returns an input's tokens in units of TOKENS_PER_UNIT, rounded up. The input is (..., features)."""
    tokens = 1
    for size in input.shape[:-1]:
        tokens = tokens * size
    return (tokens + TOKENS_PER_UNIT - 1) // TOKENS_PER_UNIT


@fake("linear_forward")
def _(input, plan, keep, weight_scale_inv, input_scale, weight_scale):
    facts = _PLANS[plan]
    saved = facts.saved_constant + units_of(input) * facts.saved_per_unit
    is_scaled = input_scale is not None or weight_scale is not None
    return (
        input.new_empty((*input.shape[:-1], facts.out_features), dtype=facts.input_dtype),
        bytes_of(input, saved) if keep & KEEP_SAVED else None,
        bytes_of(input, facts.weight_bytes) if keep & KEEP_CODES and weight_scale_inv is None else None,
        input.new_empty((2,), dtype=torch.float32) if is_scaled else None,
    )


@fake("linear_backward")
def _(grad_output, plan, wants, grad_output_scale, weight_scale, main_grad=None):
    facts = _PLANS[plan]
    shape = (facts.out_features, facts.in_features)
    is_scaled = grad_output_scale is not None or weight_scale is not None
    makes_weight = wants & WEIGHT and main_grad is None
    return (
        grad_output.new_empty((*grad_output.shape[:-1], facts.in_features), dtype=facts.input_dtype)
        if wants & INPUT
        else None,
        grad_output.new_empty(shape, dtype=facts.weight_dtype) if makes_weight else None,
        grad_output.new_empty(shape[:1], dtype=facts.bias_dtype) if wants & BIAS else None,
        grad_output.new_empty((2,), dtype=torch.float32) if is_scaled else None,
    )


@fake("sync_amax_history")
def _():
    return None

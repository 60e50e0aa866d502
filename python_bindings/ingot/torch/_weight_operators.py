"""The operators of weights that are given as codes and scale_inv, with fake kernels: casts, packing, and products."""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional

import torch

from .. import _core
from . import _operators as ops
from .._core import Error
from ._names import PLACEHOLDERS
from ._schemas import fake

weight_only_linear = torch.ops.ingot.weight_only_linear.default
weight_only_experts = torch.ops.ingot.weight_only_experts.default
weight_cast = torch.ops.ingot.weight_cast.default
weight_pack = torch.ops.ingot.weight_pack.default
weight_unpack = torch.ops.ingot.weight_unpack.default


class WeightFormat(NamedTuple):
    """How a weight is stored: the dtype of its codes ("e4m3fn"), what shares a factor ("row", "mx" ...), whether casts
    round scales to powers of two, and the codes' order ("packed", "packed_f16" or "row_major")."""

    dtype: str
    scale: str
    pow2: bool
    layout: str
    batch_invariant: bool = False


class WeightFacts(NamedTuple):
    """A plan's number, and what its fake kernels need: codes in plain rows are (out_features, code_bytes)."""

    number: int
    out_features: int
    in_features: int
    code_bytes: int
    weight_bytes: int
    scale_inv: int
    is_mx: bool


_WEIGHTS: dict[int, WeightFacts] = {}


_SUBJECT = f'WeightOnlyLinear "{PLACEHOLDERS[0]}"'


@functools.lru_cache(maxsize=None)
def _weight_plan(weight_format: WeightFormat, out_features: int, in_features: int) -> WeightFacts:
    dtype, scale, pow2, layout, batch_invariant = weight_format
    options = _core.WeightOnlyOptions(dtype, scale, pow2, layout, batch_invariant, "")
    number, code_bytes, weight_bytes, scale_inv = _core.torch_weight_only_plan(
        _SUBJECT, options, out_features, in_features
    )
    facts = WeightFacts(number, out_features, in_features, code_bytes, weight_bytes, scale_inv, scale == "mx")
    _WEIGHTS[number] = facts
    return facts


@functools.lru_cache(maxsize=None)
def weight_plan(name: Optional[str], weight_format: WeightFormat, out_features: int, in_features: int) -> WeightFacts:
    """The plan of a weight; `name` is what messages call its layer, and None for a graph, which equal layers share. Raises
    ingot.Error for an unknown format."""
    try:
        facts = _weight_plan(weight_format, out_features, in_features)
    except Error as error:
        raise ops.named_error(error, name) from None
    if name is None:
        return facts
    number = _core.torch_name_weight_only(facts.number, [name])
    _WEIGHTS[number] = facts
    return facts._replace(number=number)


@fake("weight_only_linear")
def _(input, plan):
    return input.new_empty((*input.shape[:-1], _WEIGHTS[plan].out_features))


@fake("weight_only_experts")
def _(input, plan):
    return input.new_empty((*input.shape[:-1], _WEIGHTS[plan].out_features))


@fake("weight_cast")
def _(weight, plan):
    facts = _WEIGHTS[plan]
    codes = weight.new_empty((facts.out_features, facts.code_bytes), dtype=torch.uint8)
    return codes, weight.new_empty((facts.scale_inv,), dtype=torch.uint8 if facts.is_mx else torch.float32)


@fake("weight_pack")
def _(codes, plan):
    return codes.new_empty((_WEIGHTS[plan].weight_bytes,), dtype=torch.uint8)


@fake("weight_unpack")
def _(packed, plan):
    facts = _WEIGHTS[plan]
    return packed.new_empty((facts.out_features, facts.code_bytes), dtype=torch.uint8)

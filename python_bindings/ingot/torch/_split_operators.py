"""A linear layer's forward in parts, for compilers: casts of input and weight, and the GEMM of their codes.

Layers that cast one input alike call quantize_input with equal arguments, so that a compiler keeps one of the calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _core
from . import _operators as ops
from ._gathered_weight import is_gathered
from ._schemas import fake

quantize_input = torch.ops.ingot.quantize_input.default
quantize_weight = torch.ops.ingot.quantize_weight.default
gemm_output = torch.ops.ingot.gemm_output.default


class InputPlan(NamedTuple):
    """The cast of an input. Its codes have codes_per_unit[keep] bytes for each TOKENS_PER_UNIT tokens; what is saved has
    the bytes that a layer saves."""

    codes_per_unit: tuple[int, int]
    saved_constant: int
    saved_per_unit: int


_INPUT_PLANS: dict[int, InputPlan] = {}


def add_input_plan(facts: ops.PlanFacts) -> int:
    """The number of the plan that casts the input of a layer; -1 if the layer's forward cannot be split."""
    added = _core.torch_input_plan(facts.number)
    if added is None:
        return -1
    number, inference, training = added
    _INPUT_PLANS[number] = InputPlan((inference, training), facts.saved_constant, facts.saved_per_unit)
    return number


def forward(input, weight, bias, input_plan: int, plan: int, keep: int):
    """As linear_forward: returns the output, what is saved for grad_weight and the weight's codes."""
    codes, saved = quantize_input(input, input_plan, keep & ops.KEEP_SAVED)
    if is_gathered(weight):
        return gemm_output(input, codes, saved, weight, bias, input_plan, plan), saved, None
    weight_codes = quantize_weight(weight, plan)
    return gemm_output(input, codes, saved, weight_codes, bias, input_plan, plan), saved, weight_codes


def forward_float8(input, weight, weight_scale_inv, bias, input_plan: int, plan: int, keep: int):
    """As linear_forward of a weight in FP8: returns the output and what is saved for grad_weight."""
    codes, saved = quantize_input(input, input_plan, keep & ops.KEEP_SAVED)
    arguments = (input, codes, saved, weight, bias, input_plan, plan)
    return gemm_output(*arguments, weight_scale_inv=weight_scale_inv), saved


@fake("quantize_input")
def _(input, plan, keep):
    facts = _INPUT_PLANS[plan]
    units = ops.units_of(input)
    keeps = 1 if keep and facts.saved_constant + facts.saved_per_unit > 0 else 0
    saved = ops.bytes_of(input, facts.saved_constant + units * facts.saved_per_unit) if keeps else None
    return ops.bytes_of(input, units * facts.codes_per_unit[keeps]), saved


@fake("quantize_weight")
def _(weight, plan):
    return ops.bytes_of(weight, ops.facts_of(plan).weight_bytes)


@fake("gemm_output")
def _(input, plan):
    return input.new_empty((*input.shape[:-1], ops.facts_of(plan).out_features))

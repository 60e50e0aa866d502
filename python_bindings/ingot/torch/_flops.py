"""What torch.utils.flop_counter counts of the operators: 2 M N K for each GEMM. Casts, norms and activations count as
nothing, as in PyTorch's own counts."""

from __future__ import annotations

import math

from . import _exported_layers as exported
from . import _module_operators as modules
from . import _operators as ops
from . import _weight_operators as weights
from ._schemas import BIAS, GAMMA, INPUT, UP, WEIGHT, flops, of_layer


def _tokens(shape) -> int:
    return math.prod(shape[:-1])


def _bits(wants: int, *bits: int) -> int:
    """How many of these gradients are wanted; a bit may stand for several that come by one GEMM."""
    return sum(1 for bit in bits if wants & bit)


# ---- linear layers ----


@flops("linear_forward")
def _(input, weight) -> int:
    return 2 * _tokens(input) * weight[0] * weight[1]


@flops("linear_backward")
def _(grad_output, plan, wants) -> int:
    facts = ops.facts_of(plan)
    return 2 * _tokens(grad_output) * facts.out_features * facts.in_features * _bits(wants, INPUT, WEIGHT)


@flops("gemm_output")
def _(input, plan) -> int:
    facts = ops.facts_of(plan)
    return 2 * _tokens(input) * facts.out_features * facts.in_features


@flops("gemm")
def _(a, b) -> int:
    return 2 * a[0] * a[1] * b[1]


@flops("grouped_linear")
def _(input, weight) -> int:
    """Of all rows: which of them experts have is known on the device only."""
    return 2 * math.prod(input[:-1]) * weight[1] * weight[2]


# ---- modules ----


def _products(known, tokens: int) -> list[int]:
    """2 M N K of each layer."""
    return [2 * tokens * layer.out_features * layer.in_features for layer in known.layers]


def _register_module(family: str, of_backward, first: str = "input", of_output: str = "grad_output") -> None:
    """of_backward(flops of each layer, wants): of all GEMMs of a backward. first, of_output: the arguments that have the
    shape of the first input and of the gradient of an output."""
    known = modules.FAMILIES[family].known

    @flops(f"{family}_forward", tensor=first)
    def _(tensor, plan) -> int:
        return sum(_products(known[plan], _tokens(tensor)))

    @flops(f"{family}_backward", tensor=of_output)
    def _(tensor, plan, wants) -> int:
        return of_backward(_products(known[plan], _tokens(tensor)), wants)


def _of_norm_linear(flops: list[int], wants: int) -> int:
    return flops[0] * _bits(wants, INPUT | GAMMA, WEIGHT)


def _of_mlp(flops: list[int], wants: int) -> int:
    up, down = flops
    of_up = _bits(wants, INPUT | GAMMA, WEIGHT)
    return up * of_up + down * _bits(wants, INPUT | GAMMA | WEIGHT | BIAS, of_layer(WEIGHT, 1))


def _of_shared_linear(flops: list[int], wants: int) -> int:
    return sum(each * _bits(wants, INPUT | GAMMA, of_layer(WEIGHT, at)) for at, each in enumerate(flops))


def _of_gated_linear(flops: list[int], wants: int) -> int:
    return flops[0] * _bits(wants, INPUT | UP, WEIGHT)


_register_module("norm_linear", _of_norm_linear)
_register_module("mlp", _of_mlp)
_register_module("shared_linear", _of_shared_linear, of_output="grad_output0")
_register_module("gated_linear", _of_gated_linear, first="gate")


# ---- quantized weights ----


@flops("weight_only_linear")
def _(input, plan) -> int:
    facts = weights._WEIGHTS[plan]
    return 2 * _tokens(input) * facts.out_features * facts.in_features


@flops("weight_only_experts")
def _(input, plan) -> int:
    """Of all rows: which of them experts have is known on the device only."""
    facts = weights._WEIGHTS[plan]
    return 2 * _tokens(input) * facts.out_features * facts.in_features


# ---- layers of exported programs ----

@flops("layer")
def _(tensors, what) -> int:
    layer = exported._parsed(what)
    shapes = layer.all_tensors(tensors)
    if layer.kind == "weight_only":
        return 2 * _tokens(shapes[0]) * math.prod(layer.facts["sizes"])
    weights = [shapes[at] for at in layer.weights if shapes[at] is not None]
    return 2 * _tokens(shapes[0]) * sum(math.prod(weight[-2:]) for weight in weights)  # a row has one expert

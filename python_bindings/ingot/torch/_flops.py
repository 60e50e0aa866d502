"""What torch.utils.flop_counter counts of the operators: 2 M N K for each GEMM. Casts, norms and activations count as
nothing, as in PyTorch's own counts."""

from __future__ import annotations

import math

import torch
from torch.utils.flop_counter import register_flop_formula

from . import _exported_layers as exported
from . import _module_operators as modules
from . import _operators as ops
from . import _weight_operators as weights


def _tokens(shape) -> int:
    return math.prod(shape[:-1])


def _formula(*names: str):
    return register_flop_formula([getattr(torch.ops.ingot, name) for name in names])


def _bits(wants: int, *bits: int) -> int:
    """How many of these gradients are wanted; a bit may stand for several that come by one GEMM."""
    return sum(1 for bit in bits if wants & bit)


# ---- linear layers ----


@_formula("linear_forward", "linear_forward_bias", "linear_forward_scaled", "linear_forward_float8")
def _forward(input, weight, *_, out_shape=None, **__) -> int:
    return 2 * _tokens(input) * weight[0] * weight[1]


@_formula("linear_backward", "linear_backward_into", "linear_backward_scaled", "linear_backward_float8")
def _backward(grad_output, *rest, out_shape=None, **__) -> int:
    plan, wants = rest[-2:]
    facts = ops.facts_of(plan)
    return 2 * _tokens(grad_output) * facts.out_features * facts.in_features * _bits(wants, ops.INPUT, ops.WEIGHT)


@_formula("gemm_output", "gemm_output_bias", "gemm_output_float8")
def _gemm_output(input, *rest, out_shape=None, **__) -> int:
    facts = ops.facts_of(rest[-1])
    return 2 * _tokens(input) * facts.out_features * facts.in_features


@_formula("gemm")
def _gemm(a, factor_a, b, *_, out_shape=None, **__) -> int:
    return 2 * a[0] * a[1] * b[1]


# ---- modules ----


def _products(known, tokens: int) -> list[int]:
    """2 M N K of each layer."""
    return [2 * tokens * layer.out_features * layer.in_features for layer in known.layers]


def _register_module(family: str, known, of_backward) -> None:
    """of_backward(flops of each layer, wants): of all GEMMs of a backward."""

    @_formula(f"{family}_forward", f"{family}_forward_delayed")
    def _(input, *rest, out_shape=None, **__) -> int:
        return sum(_products(known[rest[-2]], _tokens(input)))

    @_formula(f"{family}_backward", f"{family}_backward_into", f"{family}_backward_delayed")
    def _(grad_output, *rest, out_shape=None, **__) -> int:
        plan, wants = rest[-2:]
        return of_backward(_products(known[plan], _tokens(grad_output)), wants)


def _of_norm_linear(flops: list[int], wants: int) -> int:
    return flops[0] * _bits(wants, modules.INPUT | modules.GAMMA, modules.WEIGHT)


def _of_mlp(flops: list[int], wants: int) -> int:
    up, down = flops
    reaches_up = modules.INPUT | modules.GAMMA | modules.WEIGHT | modules.BIAS
    of_up = _bits(wants, modules.INPUT | modules.GAMMA, modules.WEIGHT)
    return up * of_up + down * _bits(wants, reaches_up, modules.DOWN_WEIGHT)


def _of_shared_linear(flops: list[int], wants: int) -> int:
    of_input = modules.INPUT | modules.SHARED_GAMMA
    return sum(
        each * _bits(wants, of_input, modules.SHARED_WEIGHT << 2 * at) for at, each in enumerate(flops)
    )


def _of_gated_linear(flops: list[int], wants: int) -> int:
    return flops[0] * _bits(wants, modules.GATE | modules.UP, modules.WEIGHT)


_register_module("norm_linear", modules._NORM_LINEARS, _of_norm_linear)
_register_module("mlp", modules._MLPS, _of_mlp)
_register_module("shared_linear", modules._SHARED, _of_shared_linear)
_register_module("gated_linear", modules._GATED, _of_gated_linear)


# ---- quantized weights ----


@_formula("weight_only_linear", "weight_only_linear_bias")
def _weight_only(input, *rest, out_shape=None, **__) -> int:
    facts = weights._WEIGHTS[rest[-2]]
    return 2 * _tokens(input) * facts.out_features * facts.in_features


@_formula("frozen_linear", "frozen_linear_bias", "frozen_linear_backward")
def _frozen(input, *rest, out_shape=None, **__) -> int:
    return 2 * _tokens(input) * math.prod(weights._FROZEN[rest[-1]])


# ---- layers of exported programs ----

_WEIGHTS = {
    "linear": (1,),
    "scaled": (1,),
    "frozen": (1,),
    "norm_linear": (3,),
    "mlp": (3, 5),
    "shared_linear": (3, 5, 7),
    "gated_linear": (2,),
}


@_formula("layer")
def _layer(tensors, what, *_, out_shape=None, **__) -> int:
    layer = exported._parsed(what)
    shapes = layer.all_tensors(tensors)
    if layer.kind == "weight_only":
        return 2 * _tokens(shapes[0]) * math.prod(layer.facts["sizes"])
    weights = [shapes[at] for at in _WEIGHTS[layer.kind] if shapes[at] is not None]
    return 2 * _tokens(shapes[0]) * sum(map(math.prod, weights))

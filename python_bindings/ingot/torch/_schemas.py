"""What Python has of the operators' table (csrc/torch_ops/torch_schemas.h): the schemas that PyTorch was given, and the
bits. Functions that know an operator's arguments take them by name, each only those that it needs."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict

import torch
from torch.utils.flop_counter import register_flop_formula

from .. import _core

_bits: Dict[str, int] = _core.torch_bits

# Of a forward's `keep`: what the gradient of the input needs, and what the others need.
KEEP_CODES, KEEP_SAVED = _bits["KEEP_CODES"], _bits["KEEP_SAVED"]
# Of a backward's `wants`. GAMMA is beta's, too; of a gated layer INPUT is the gate's.
INPUT, WEIGHT, BIAS, GAMMA, UP = (_bits[name] for name in ("INPUT", "WEIGHT", "BIAS", "GAMMA", "UP"))
# In a compiled graph the engine is asked for each main_grad while it runs (_main_grad.py).
ASKS_ENGINE = _bits["ASKS_ENGINE"]
ROUTER = _bits["ROUTER"]  # the router's weights, of experts
# Of a plan's `reads`: what backward reads again.
READS_INPUT_FOR_INPUT, READS_INPUT_FOR_WEIGHT = _bits["READS_INPUT_FOR_INPUT"], _bits["READS_INPUT_FOR_WEIGHT"]
READS_WEIGHT, READS_OUTPUT = _bits["READS_WEIGHT"], _bits["READS_OUTPUT"]


def of_layer(bit: int, layer: int) -> int:
    """WEIGHT or BIAS of one of a module's layers."""
    return bit << _bits["LAYER_BITS"] * layer


def overloads_of(name: str) -> list:
    """The overload without tensors that are written, and then "in_place", if there is one."""
    packet = getattr(torch.ops.ingot, name)
    return [getattr(packet, each) for each in ("default", "in_place") if each in packet.overloads()]


def by_name(overload, function: Callable, **renamed: str) -> Callable:
    """A function of the operator's arguments that calls `function` with those that it names; renamed: what the operator
    calls some of them. One with a default may be of another overload. Raises TypeError for a name that no overload has."""
    arguments = [each.name for each in overload._schema.arguments]
    defaults = {each.name: each.default_value for each in overload._schema.arguments if each.has_default_value()}
    name = overload._schema.name.split("::")[1]
    known = {each.name for one in overloads_of(name) for each in one._schema.arguments}
    names = {}
    for each in inspect.signature(function).parameters.values():
        its = renamed.get(each.name, each.name)
        if its not in known or (its not in arguments and each.default is each.empty):
            raise TypeError(f"torch.ops.ingot.{name} has no argument {its}: {overload._schema}")
        if its in arguments:
            names[each.name] = its

    def call(*given: Any, **named: Any) -> Any:
        values = {**defaults, **dict(zip(arguments, given)), **named}
        return function(**{each: values[its] for each, its in names.items()})

    return call


def fake(name: str, **renamed: str) -> Callable:
    """Makes a function the fake kernel of an operator and of its overload in place: it tells compilers the results'
    shapes. It takes the arguments by name that it needs; renamed: what the operator calls some of them."""

    def register(function: Callable) -> Callable:
        for overload in overloads_of(name):
            torch.library.register_fake(overload._schema.name + _suffix(overload), by_name(overload, function, **renamed))
        return function

    return register


def flops(name: str, **renamed: str) -> Callable:
    """Registers a function as torch.utils.flop_counter's count for an operator; tensors are shapes. It takes by name
    the arguments that it needs; renamed: what the operator calls some of them."""

    def register(function: Callable) -> Callable:
        # The counter does not say which overload it counts; that in place has all arguments of the other.
        count = by_name(overloads_of(name)[-1], function, **renamed)

        @register_flop_formula([getattr(torch.ops.ingot, name)])
        def _(*arguments: Any, out_shape: Any = None, **named: Any) -> int:
            return count(*arguments, **named)

        return function

    return register


def _suffix(overload) -> str:
    name = overload._schema.overload_name
    return f".{name}" if name else ""

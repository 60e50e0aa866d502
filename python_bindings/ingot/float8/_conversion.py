"""What a conversion did to each linear layer of a model, why it left some alone, and what FP8 is expected to gain."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

import torch.nn as nn

from ..nn import WeightOnlyLinear
from ..torch._errors import Float8RuntimeError, Float8TypeError, Float8ValueError
from ..torch._gains import expected_gain
from ..torch._model_weights import (
    OtherWeight, float8_experts, layers_line, linear_layers, other_lines, other_weights, users_of_parameters
)
from ..torch._modules import is_ingot_layer, order_of, reason_against_replacing, reason_of_weight
from .config import Float8LinearConfig, Float8LinearRecipeName, ScalingType
from .float8_linear import Float8Linear

_ATTRIBUTE = "_float8_left_alone"


@dataclass(frozen=True)
class LayerConversion:
    """One linear layer: is it FP8, and if not, why; and the speed of a step in FP8 against 16 bits, if it was asked
    for."""

    name: str
    in_features: int
    out_features: int
    is_float8: bool
    reason: str = ""
    gain: Optional[float] = None
    gain_note: str = ""


@dataclass(frozen=True)
class ConversionReport:
    """All linear layers of a model, in its order, those within modules of ingot.nn too; the weights that are in none; and
    the modules of stacked experts that are FP8, by name. str() is a table."""

    layers: Tuple[LayerConversion, ...]
    others: Tuple[OtherWeight, ...] = ()
    experts: Tuple[str, ...] = ()

    @property
    def converted(self) -> Tuple[LayerConversion, ...]:
        """The layers that are FP8."""
        return tuple(layer for layer in self.layers if layer.is_float8)

    @property
    def left_alone(self) -> Tuple[LayerConversion, ...]:
        """The layers that are not."""
        return tuple(layer for layer in self.layers if not layer.is_float8)

    def __str__(self) -> str:
        head = ("layer", "in", "out", "FP8", "gain", "remark")
        rows = [head] + [_row(layer) for layer in self.layers]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        last = layers_line(len(self.converted), len(self.layers), "FP8")
        return "\n".join([*lines, *other_lines(self.others, self.experts), last])


def _row(layer: LayerConversion) -> Tuple[str, ...]:
    gain = "" if layer.gain is None else f"{layer.gain:.2f}"
    remark = layer.reason if layer.reason else layer.gain_note
    name = layer.name or "(the model)"
    return (name, str(layer.in_features), str(layer.out_features), "yes" if layer.is_float8 else "no", gain, remark)


def reason_to_leave_alone(layer: nn.Linear) -> str:
    """Returns why FP8 cannot replace a layer, or "" if it can."""
    if is_ingot_layer(layer):
        return "is FP8 already" if isinstance(layer, Float8Linear) else f"is a {type(layer).__name__} of ingot.nn already"
    return reason_against_replacing(layer) or reason_of_weight(layer)


def _tied_elsewhere(module: nn.Module, becomes_float8: Callable[[nn.Module, str], bool]) -> Dict[int, str]:
    """Returns the parameters, by id, that a module has which does not become an FP8 layer, with the module's name.
    `becomes_float8` is asked of linear layers that share their weight."""
    return {
        parameter: name
        for parameter, users in users_of_parameters(module).items()
        if len(users) > 1
        for each, name in users.items()
        if not isinstance(each, nn.Linear) or not becomes_float8(each, name)
    }


def check_module(what: str, module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise Float8TypeError(f"{what}: is a {type(module).__name__}, expected a torch.nn.Module")


def check_filter(what: str, function: object) -> None:
    if function is not None and not callable(function):
        raise Float8TypeError(
            f"{what}: is a {type(function).__name__}, expected a function that says of a layer whether to convert it"
        )


class ConversionRecorder:
    """The filter of one conversion, which remembers what it said of each layer. Raises RuntimeError for a model that
    should have been converted before it was sharded."""

    def __init__(
        self,
        module: nn.Module,
        module_filter_fn: Optional[Callable[[nn.Module, str], bool]],
        config: Float8LinearConfig,
    ) -> None:
        self._filter = module_filter_fn
        order = order_of(module, keeps_parameters=not config.enable_fsdp_float8_all_gather)
        for layer, (name, text) in order.items():
            if module_filter_fn is None or module_filter_fn(layer, name):
                raise Float8RuntimeError(f"convert_to_float8_training: {text}")
        self._tied = _tied_elsewhere(module, self._may_become) if config.enable_fsdp_float8_all_gather else {}
        self._names: Dict[nn.Module, str] = {}
        self._reasons: Dict[nn.Module, str] = {}

    def _reason(self, layer: nn.Linear, name: str) -> str:
        reason = reason_to_leave_alone(layer)
        if not reason and self._filter is not None and not self._filter(layer, name):
            reason = "module_filter_fn leaves it out"
        return reason

    def _may_become(self, layer: nn.Linear, name: str) -> bool:
        return isinstance(layer, Float8Linear) or not self._reason(layer, name)

    def accepts(self, layer: nn.Linear, name: str) -> bool:
        """Is this layer to be converted?"""
        reason = self._reason(layer, name)
        if not reason and id(layer.weight) in self._tied:
            other = self._tied[id(layer.weight)]
            reason = f"shares its weight with {other}, which cannot take it gathered in FP8"
        self._names[layer] = name
        if reason:
            self._reasons[layer] = reason
        return not reason

    def name_of(self, layer: nn.Linear) -> str:
        """Returns the name with which the layer was accepted."""
        return self._names.get(layer, "")

    def attach(self, result: nn.Module) -> None:
        """Leaves the reasons with the layers that stay, for conversion_report()."""
        for layer, reason in self._reasons.items():
            if not isinstance(layer, Float8Linear):
                object.__setattr__(layer, _ATTRIBUTE, reason)


def conversion_report(model: nn.Module, *, tokens: Optional[int] = None, gpu: Optional[str] = None) -> ConversionReport:
    """Lists the linear layers of a model: which are FP8, and why the others are not; and the weights that are in no linear
    layer, with their parameters and bytes.

    With `tokens`, the rows of a layer's input in one step, the report says how much faster than in 16 bits each FP8
    layer is expected to run forward and backward. That is on `gpu`, such as "h200", or the GPU at hand; where there is
    neither or nothing was measured, the note says so.
    """
    check_module("conversion_report model", model)
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise Float8ValueError(f"conversion_report tokens: is {tokens!r}, expected a number of rows from 1")
    rows: List[LayerConversion] = []
    for name, layer, owner in linear_layers(model):
        row = _described(name, layer, owner)
        rows.append(row if tokens is None else _with_gain(row, owner, tokens, gpu))
    return ConversionReport(tuple(rows), other_weights(model), float8_experts(model))


def _described(name: str, layer: nn.Module, owner: nn.Module) -> LayerConversion:
    reason = _reason_of_row(layer, owner)
    return LayerConversion(name, layer.in_features, layer.out_features, not reason, reason)


def _reason_of_row(layer: nn.Module, owner: nn.Module) -> str:
    """Why the layer is not FP8, or ""."""
    if not is_ingot_layer(owner):
        return getattr(layer, _ATTRIBUTE, "") or reason_to_leave_alone(layer) or "not converted"
    if getattr(getattr(owner, "options", None), "recipe", "") == "high_precision":
        return "its recipe is high_precision"
    if isinstance(owner, WeightOnlyLinear):
        return f"its weight is quantized to {owner.weight_dtype}, and its activations are not"
    return ""


def _with_gain(row: LayerConversion, owner: nn.Module, tokens: int, gpu: Optional[str]) -> LayerConversion:
    if not row.is_float8:
        return row
    if not hasattr(owner, "config") and not hasattr(owner, "options"):
        return dataclasses.replace(row, gain_note="its weight is not trained")
    recipe = recipe_of(owner.config) if hasattr(owner, "config") else owner.options.recipe
    gain, note = expected_gain(recipe, tokens, row.in_features, row.out_features, gpu)
    return dataclasses.replace(row, gain=gain, gain_note=note)


def recipe_of(config: Float8LinearConfig) -> Optional[str]:
    """Returns the name of the core's recipe that casts as `config` does, or None for casts of one's own."""
    if all(cast.scaling_type is ScalingType.DELAYED for _, cast, _ in config.operands()):
        return "delayed"
    for name in Float8LinearRecipeName:
        if config.operands() == Float8LinearConfig.from_recipe_name(name).operands():
            return name.value
    return None

"""quantize_(): puts layers with quantized weights in the place of a model's linear layers, in torchao's manner."""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional, Union

import torch

from ..torch import _codes
from ..torch._errors import LinearError
from ..torch._model_weights import (
    float8_experts,
    layers_line,
    linear_layers,
    other_lines,
    other_weights,
    OtherWeight,
    users_of_parameters,
)
from ..torch._modules import (
    is_ingot_layer, order_of, order_of_wrapper, reason_against_replacing, reason_of_weight, replace_layers, take_hooks
)
from ..torch._progress import progress
from ._apart import take_apart
from ._checkpoint_names import check_model, check_replacing
from ._convert import is_converted, restore_layers
from ._float8_linear import Float8Linear
from ._frozen_linear import FrozenFloat8Linear
from ._parts import linear_with
from ._stored_linear import StoredLinear
from ._weight_only import WeightOnlyLinear


@dataclasses.dataclass(frozen=True)
class Float8WeightOnlyConfig:
    """WeightOnlyLinear with FP8 weights: PyTorch's float8 dtypes or their names, fnuz included.

    weight_dtype: "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz" or PyTorch's dtype. scale: what shares a scale: "tensor", "row", "1x128",
    "1x64", "1x32" or "128x128". pow2: scales are powers of two. layout: the codes' order in memory, "auto" for the fastest.
    batch_invariant: a row of the result does not depend on how many other rows there are. quantize_() raises LinearError for others.
    """

    weight_dtype: Union[torch.dtype, str] = torch.float8_e4m3fn
    scale: str = "row"
    pow2: bool = False
    layout: str = "auto"
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        layout = "row_major" if self.layout == "auto" else self.layout
        _codes.weight_format(
            self.weight_dtype, self.scale, self.pow2, layout, self.batch_invariant, "Float8WeightOnlyConfig"
        )

    def make(self, layer: torch.nn.Linear, name: str) -> torch.nn.Module:
        """The layer that takes the place of `layer`."""
        return WeightOnlyLinear.from_float(
            layer,
            self.weight_dtype,
            self.scale,
            pow2=self.pow2,
            layout=self.layout,
            batch_invariant=self.batch_invariant,
            layer_name=name or "linear",
        )


@dataclasses.dataclass(frozen=True)
class MXWeightOnlyConfig:
    """WeightOnlyLinear with MX weights: MXFP4 ("e2m1fn"), MXFP6 ("e3m2fn", "e2m3fn") or MXFP8, with a power of two for
    each 32 elements of a row.

    batch_invariant: a row of the result does not depend on how many other rows there are. quantize_() raises LinearError for other
    dtypes.
    """

    weight_dtype: Union[torch.dtype, str] = "e2m1fn"
    batch_invariant: bool = False

    def make(self, layer: torch.nn.Linear, name: str) -> torch.nn.Module:
        """The layer that takes the place of `layer`."""
        return WeightOnlyLinear.from_float(
            layer, self.weight_dtype, "mx", batch_invariant=self.batch_invariant, layer_name=name or "linear"
        )


@dataclasses.dataclass(frozen=True)
class FrozenFloat8Config:
    """FrozenFloat8Linear: FP8 weights that are not trained and pass gradients on, as under LoRA's adapters.

    weight_dtype: "e4m3fn" or "e5m2", or PyTorch's dtype. scale: what shares a scale: "tensor", "row" or "128x128". pow2: scales are
    powers of two. quantize_() raises LinearError for others.
    """

    weight_dtype: Union[torch.dtype, str] = torch.float8_e4m3fn
    scale: str = "row"
    pow2: bool = False

    def make(self, layer: torch.nn.Linear, name: str) -> torch.nn.Module:
        """The layer that takes the place of `layer`."""
        return FrozenFloat8Linear.from_float(
            layer, self.weight_dtype, self.scale, pow2=self.pow2, layer_name=name or "linear"
        )


@dataclasses.dataclass(frozen=True)
class QuantizeReport:
    """What quantize_() did: the names of the layers that it replaced, why it left the others alone, what the caller has
    yet to do ("" if nothing), the weights that are in no linear layer, and the modules of stacked experts that are FP8."""

    converted: tuple[str, ...]
    left_alone: dict[str, str]
    note: str = ""
    others: tuple[OtherWeight, ...] = ()
    experts: tuple[str, ...] = ()

    def __str__(self) -> str:
        total = len(self.converted) + len(self.left_alone)
        lines = [layers_line(len(self.converted), total, "quantized", "was", "were")]
        lines += [f"  {name}: {reason}" for name, reason in self.left_alone.items()]
        lines += other_lines(self.others, self.experts)
        return "\n".join([*lines, *([self.note] if self.note else [])])


def reason_to_keep(layer: torch.nn.Module) -> str:
    """Why a layer's weight cannot be quantized; "" if it can."""
    if isinstance(layer, StoredLinear):
        return "is quantized already"
    if is_ingot_layer(layer) and not isinstance(layer, Float8Linear):
        return f"is a {type(layer).__name__} of ingot.nn already"
    reason = reason_against_replacing(layer) or reason_of_weight(layer)
    if not reason and layer.weight.is_meta:
        return "its weight is on meta, without values"
    if not reason and hasattr(layer.weight, "device_mesh"):
        return "its weight is a DTensor: quantize it before it is sharded"
    return reason


def _left_in_modules(model: torch.nn.Module, whole: dict[torch.nn.Module, str]) -> dict[str, str]:
    """The layers inside modules of ingot.nn, which quantize_() leaves alone, with the reason. whole: modules that could not be
    taken apart."""
    left: dict[str, str] = {}
    for name, layer, owner in linear_layers(model):
        if isinstance(owner, WeightOnlyLinear):
            left[name] = "is quantized already"
        elif not isinstance(owner, torch.nn.Linear):
            reason = whole.get(owner, "filter_fn leaves it out")
            left[name] = f"a {type(owner).__name__} of ingot.nn multiplies by it: {reason}"
    return left


def _check_wrappers(model: torch.nn.Module) -> None:
    """Before a converted model is restored: refused later, it would stay taken apart."""
    for name, module in model.named_modules():
        text = order_of_wrapper(module, keeps_parameters=False)
        if text and is_converted(module):
            raise LinearError(f"quantize_: {name or 'the model'} is {text.replace('convert', 'quantize')}")


def quantize_(
    model: torch.nn.Module,
    config: Union[Float8WeightOnlyConfig, MXWeightOnlyConfig, FrozenFloat8Config],
    filter_fn: Optional[Callable[[torch.nn.Module, str], bool]] = None,
    device: Optional[Union[str, torch.device]] = None,
) -> QuantizeReport:
    """Replaces linear layers in place, as torchao.quantization.quantize_ does, and reports what it left alone.

    filter_fn(layer, name) says which linear layers to replace; without it all. device: where weights are cast and then
    stay, one layer after the other. A layer that several modules share stays shared, and a second call changes nothing.
    What convert() has fused is taken apart before, by restore(), and modules of several parts (RMSNormLinear, GatedMlp ...)
    become modules of linear layers, if filter_fn is true of one of their parts. What is replaced is an nn.Linear itself, or a
    Float8Linear with any scales. A subclass with its own forward is left alone. A layer that shares its weight with another
    module is left alone, since codes would be one more copy.
    A Float8TrainingOpConfig of ingot.float8.moe_training trains instead; filter_fn is then asked of all modules, which are taken
    with what is in them, and the report is that of ingot.float8.conversion_report().
    Raises LinearError for a model that is itself a linear layer, for one that is sharded or wrapped already, and for a
    config that the layers refuse.
    """
    if hasattr(config, "convert_") and not isinstance(config, type):  # of training: ingot.float8.moe_training has it
        check_model("quantize_", model)
        return config.convert_(model if device is None else model.to(device), filter_fn)
    if isinstance(config, type) or not hasattr(config, "make"):
        found = f"the class {config.__name__}" if isinstance(config, type) else f"a {type(config).__name__}"
        raise LinearError(
            f"quantize_ config: is {found}, expected Float8WeightOnlyConfig, MXWeightOnlyConfig or "
            "FrozenFloat8Config of ingot.nn"
        )
    check_replacing("quantize_", "replace", model, filter_fn, "WeightOnlyLinear")
    if is_converted(model):
        _check_wrappers(model)
        restore_layers(model)
    for layer, (name, text) in order_of(model, keeps_parameters=False).items():
        if filter_fn is None or filter_fn(layer, name):
            raise LinearError(f"quantize_: {text.replace('convert', 'quantize')}")
    chosen = {owner for name, layer, owner in linear_layers(model) if filter_fn is None or filter_fn(layer, name)}
    names: dict[torch.nn.Module, str] = {}
    left_alone = _left_in_modules(model, take_apart(model, chosen.__contains__))
    users = users_of_parameters(model)

    def wanted(layer: torch.nn.Module, name: str) -> bool:
        if not isinstance(layer, torch.nn.Linear):
            return False
        reason = reason_to_keep(layer)
        if not reason and filter_fn is not None and not filter_fn(layer, name):
            reason = "filter_fn leaves it out"
        others = [] if reason else [each for user, each in users[id(layer.weight)].items() if user is not layer]
        if others:
            reason = f"shares its weight with {', '.join(others)}: give it a copy to quantize it"
        if reason:
            left_alone[name] = reason
            return False
        names[layer] = name
        return True

    in_float32 = False

    def replace(layer: torch.nn.Linear) -> torch.nn.Module:
        nonlocal in_float32
        if device is not None:
            layer.to(device)
        new = config.make(layer, names[layer])
        in_float32 |= layer.weight.dtype == torch.float32 and isinstance(new, WeightOnlyLinear)
        step()
        return new

    with progress("layers are quantized", sum(isinstance(each, torch.nn.Linear) for each in model.modules())) as step:
        replace_layers(model, wanted, replace)
    note = (
        "these layers take bfloat16 or float16, and the model was float32: call .bfloat16() on it, or use torch.autocast"
        if in_float32
        else ""
    )
    return QuantizeReport(tuple(names.values()), left_alone, note, other_weights(model), float8_experts(model))


def dequantize_(model: torch.nn.Module) -> int:
    """Puts a torch.nn.Linear with the decoded values in the place of each quantized layer of the model, under adapters of PEFT
    too, so that merging them rounds nothing but to that dtype. Returns how many it replaced. Hooks and modes stay. Raises
    LinearError for a model that is itself a quantized layer, or has none."""
    check_model("dequantize_", model)
    if isinstance(model, StoredLinear):
        raise LinearError("dequantize_ model: is itself a quantized layer, which cannot be replaced in place")
    made: dict[torch.nn.Module, torch.nn.Module] = {}
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if isinstance(child, StoredLinear):
                if child not in made:
                    made[child] = _dequantized(child)
                parent._modules[key] = made[child]
    if not made:
        raise LinearError("dequantize_ model: has no quantized layer")
    return len(made)


def _dequantized(layer: StoredLinear) -> torch.nn.Linear:
    values = torch.nn.Parameter(layer.dequantize().to(layer.values_dtype), requires_grad=False)
    new = linear_with(values, layer.bias)
    take_hooks(layer, new)
    return new.train(layer.training)

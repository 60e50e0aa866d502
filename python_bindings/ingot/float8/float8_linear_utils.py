"""Which linear layers of a model become FP8, and the step that keeps up delayed scales."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Union

import torch
import torch.nn as nn

from ..nn._delayed import is_delayed, sync_scales
from ..torch._errors import Float8AssertionError, Float8NotImplementedError
from ..torch._modules import replace_layers
from ..torch._saying import warn
from ..torch._shard_gather import agree_at_first_call
from ._conversion import ConversionRecorder, check_filter, check_module
from .config import Float8LinearConfig, Float8LinearRecipeName, ScalingType, checked_config, config_has_stateful_scaling
from .float8_linear import Float8Linear
from .stateful_float8_linear import StatefulFloat8Linear

__all__ = [
    "convert_to_float8_training",
    "get_float8_layers",
    "linear_requires_sync",
    "swap_linear_layers",
    "swap_linear_with_float8_linear",
    "sync_float8_amax_and_scale_history",
]

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())

ModuleFilter = Callable[[nn.Module, str], bool]


def swap_linear_layers(
    module: nn.Module,
    from_float_func: Callable[[nn.Linear], nn.Linear],
    *,
    module_filter_fn: Optional[ModuleFilter] = None,
) -> nn.Module:
    """Replaces linear layers, and of their subclasses, in place and returns the module.

    `from_float_func` makes the new layer of an old one; `module_filter_fn(layer, name)` says which to replace. A layer
    that has several names is replaced once, by one layer. A module that is itself a linear layer cannot be replaced in
    place: its replacement is returned. Raises AssertionError if it has children.
    """
    check_module("swap_linear_layers module", module)
    check_filter("swap_linear_layers module_filter_fn", module_filter_fn)

    def is_wanted(layer: nn.Module, name: str) -> bool:
        return isinstance(layer, nn.Linear) and (module_filter_fn is None or module_filter_fn(layer, name))

    if is_wanted(module, ""):
        if any(True for _ in module.children()):
            raise Float8AssertionError(
                f"Does not support a root nn.Linear with children: {module}. Convert the module that holds it"
            )
        return from_float_func(module)

    replace_layers(module, is_wanted, from_float_func)
    return module


def convert_to_float8_training(
    module: nn.Module, *, module_filter_fn: Optional[ModuleFilter] = None, config: Optional[Float8LinearConfig] = None
) -> nn.Module:
    """Replaces the torch.nn.Linear layers of a model by Float8Linear in place, and returns the model; a model that is
    itself a linear layer is replaced by what is returned.

    `module_filter_fn(layer, name)` leaves a layer alone by returning False; `config` is Float8LinearConfig() unless
    given. The new layers have the parameters, hooks and mode of the old ones. Layers that FP8 cannot replace stay:
    those with their own forward, with weights of other dtypes, and those of torch.nn.MultiheadAttention, which
    does not call them. conversion_report(model) lists all, with the reason. A second call changes nothing.

    Raises AssertionError if the model is a linear layer with children, and RuntimeError for layers that are sharded
    already, or compiled by themselves.
    """
    config = checked_config("convert_to_float8_training", config)
    check_module("convert_to_float8_training module", module)
    check_filter("convert_to_float8_training module_filter_fn", module_filter_fn)
    kind = StatefulFloat8Linear if config_has_stateful_scaling(config) else Float8Linear
    recorder = ConversionRecorder(module, module_filter_fn, config)

    def convert(layer: nn.Linear) -> nn.Linear:
        new = kind.from_float(layer, config=config)
        new.layer_name = recorder.name_of(layer)
        return new

    result = swap_linear_layers(module, convert, module_filter_fn=recorder.accepts)
    recorder.attach(result)
    if config.enable_fsdp_float8_all_gather:
        agree_at_first_call(result)
    return result


def swap_linear_with_float8_linear(
    module: nn.Module,
    module_cls: Optional[type] = None,
    emulate: bool = False,
    skip_fqn_list: Optional[List[str]] = None,
    linear_layer_filter: Optional[Callable[[nn.Linear], bool]] = None,
    *,
    module_filter_fn: Optional[ModuleFilter] = None,
    config: Optional[Float8LinearConfig] = None,
) -> nn.Module:
    """The name and arguments that convert_to_float8_training() had until mid 2024. `module_cls` is not needed; names in
    `skip_fqn_list` and layers that `linear_layer_filter` refuses stay as they are."""
    check_filter("swap_linear_with_float8_linear linear_layer_filter", linear_layer_filter)
    check_filter("swap_linear_with_float8_linear module_filter_fn", module_filter_fn)
    skipped = set(skip_fqn_list or ())

    def is_wanted(layer: nn.Module, name: str) -> bool:
        return (
            name not in skipped
            and (linear_layer_filter is None or linear_layer_filter(layer))
            and (module_filter_fn is None or module_filter_fn(layer, name))
        )

    config = Float8LinearConfig(emulate=emulate) if config is None else config
    return convert_to_float8_training(module, module_filter_fn=is_wanted, config=config)


def linear_requires_sync(config: Float8LinearConfig) -> bool:
    """Do layers with this config need sync_float8_amax_and_scale_history() in every step?"""
    return any(cast.scaling_type is ScalingType.DELAYED for _, cast, _ in config.operands())


def get_float8_layers(model: torch.nn.Module) -> List[Float8Linear]:
    """Returns the FP8 layers of a model; those of ingot.nn too that need sync_float8_amax_and_scale_history()."""
    return [layer for layer in model.modules() if isinstance(layer, Float8Linear) or is_delayed(layer)]


def sync_float8_amax_and_scale_history(
    model: torch.nn.Module,
    fp8_layers: Optional[Sequence[torch.nn.Module]] = None,
    group: Any = None,
    *,
    reduce: bool = True,
) -> None:
    """Makes the scales of the next step from the maxima of this one; to be called once in every step, after backward. It is
    ingot.nn.sync_amax_history() under torchao's name: either serves all layers of a model, of both packages.

    The maxima are those of the last forward and backward, as torchao's; a second call enters them again. A scale stays as
    it is where all of its history is 0. A tensor of which only zeros, or nothing finite, have been seen has no scale, and
    later steps do not know of it: forward and backward cast it with that of its own maximum.

    `group`, a ProcessGroup or a DeviceMesh of one dimension (None: the default group), are the ranks whose maxima count;
    `reduce=False` reduces nothing. `fp8_layers`, from get_float8_layers(), saves the walk through the model. Layers
    without delayed scaling are passed over; without any layer there is a warning. Raises ValueError for layers with
    different scale functions.
    """
    layers = model.modules() if fp8_layers is None else fp8_layers
    if not sync_scales("sync_float8_amax_and_scale_history", model, layers, group, reduce):
        warn("sync_float8_amax_and_scale_history: there is no layer with delayed scaling", log)


def _auto_filter_for_recipe(
    recipe: Union[str, Float8LinearRecipeName], filter_fqns: List[str]
) -> Callable[[nn.Module, str], bool]:
    """Returns a module_filter_fn that leaves out layers that a recipe does not make faster on an H100, and those whose
    name contains one of `filter_fqns`. conversion_report(model, tokens=...) says more of your GPU.

    Raises NotImplementedError for rowwise_with_gw_hp, for which there are no limits, and ValueError for another name.
    """
    recipe = Float8LinearRecipeName(recipe) if isinstance(recipe, str) else recipe
    if recipe is Float8LinearRecipeName.TENSORWISE:
        return partial(_auto_filter_for_tensorwise, filter_fqns=filter_fqns)
    if recipe is Float8LinearRecipeName.ROWWISE:
        return partial(_auto_filter_for_rowwise, filter_fqns=filter_fqns)
    raise Float8NotImplementedError(
        f"{recipe}: there are limits of tensorwise and rowwise only; write a module_filter_fn for this recipe"
    )


def _may_gain(mod: nn.Module, fqn: str, filter_fqns: List[str]) -> bool:
    """Is this a linear layer without a name to leave out, and with the sizes that FP8 tensor cores take best?"""
    if not isinstance(mod, nn.Linear) or any(part in fqn for part in filter_fqns):
        return False
    return all(size % 16 == 0 for size in mod.weight.shape)


def _auto_filter_for_rowwise(mod: nn.Module, fqn: str, filter_fqns: List[str]) -> bool:
    if not _may_gain(mod, fqn, filter_fqns):
        return False
    outputs, inputs = mod.weight.shape
    return outputs > 2048 and inputs > 1024 and (outputs > 4096 or inputs > 2048)


def _auto_filter_for_tensorwise(mod: nn.Module, fqn: str, filter_fqns: List[str]) -> bool:
    if not _may_gain(mod, fqn, filter_fqns):
        return False
    outputs, inputs = mod.weight.shape
    return outputs > 1024 or inputs > 4096

"""How a module takes the place of another one: what it keeps of it, which modules none can replace, and what the modules
around it have to know."""

from __future__ import annotations

import copy
import weakref
from typing import Any, Callable, Dict, Tuple, Type, TypeVar

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._tensor import DTensor
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parallel import DistributedDataParallel

from ._checks import refuse
from ._operators import HIGH_PRECISION

Module = TypeVar("Module", bound=torch.nn.Module)

# An attribute of a module that another conversion than convert() has changed in place: an object whose undo(module) undoes that.
CONVERSION = "ingot_conversion"

# Weights that a layer can cast itself; classes of ingot.float8 say so by an attribute, is_of_ingot.
KNOWN_TENSORS = (
    torch.Tensor,
    torch.nn.Parameter,
    DTensor,
    AsyncCollectiveTensor,
    torch._subclasses.fake_tensor.FakeTensor,
    torch._subclasses.functional_tensor.FunctionalTensor,
)


def type_name(value: object) -> str:
    """Returns the full name of a value's class: "torchao.quantization.Float8Tensor"."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class IngotLayer:
    """What the layers of ingot.nn and ingot.float8 are, and modules of other libraries are not, whatever attributes they
    have."""

    layer_name: str


def is_ingot_layer(module: Any) -> bool:
    """Is it a layer of ingot.nn or ingot.float8, or of a class that is made of one?"""
    return isinstance(module, IngotLayer)


def held(module: torch.nn.Module, key: str = "weight") -> Any:
    """The tensor that a module holds by this name. What a property of its class makes of it, as torchtitan's SimpleFSDP has
    one, is not asked for: it would be a collective, which the other ranks do not run."""
    parameters = module._parameters
    return parameters[key] if key in parameters else getattr(module, key)


def has_own_forward(layer: torch.nn.Module) -> bool:
    """Does it compute something else than torch.nn.Linear, or than the layer of Ingot that its class is made of?"""
    forward = type(layer).forward
    if "forward" in vars(layer):
        return True
    is_ours = is_ingot_layer(layer) and str(getattr(forward, "__module__", "")).partition(".")[0] == "ingot"
    return forward is not torch.nn.Linear.forward and not is_ours


def activation_of(layer: torch.nn.Module) -> str:
    """What an ingot.nn.Float8Linear applies to its output; "" of any other layer."""
    return getattr(getattr(layer, "options", None), "activation", "")


def reason_against_replacing(layer: torch.nn.Module, activation: str = "") -> str:
    """Why another module's forward, which applies this activation, cannot take the place of this linear layer's, or ""."""
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "torch.nn.MultiheadAttention multiplies by its weight itself"
    if isinstance(layer, FSDPModule):
        return "is sharded by FSDP already: convert before fully_shard()"
    if "parametrizations" in layer._modules:
        return "its weight is no parameter: a hook or parametrization computes it"
    if "weight" in layer._buffers:
        return "its weight is quantized already: make a torch.nn.Linear of its dequantize()"
    if activation_of(layer) not in ("", activation):
        return f"its activation {activation_of(layer)!r} would be lost: make a torch.nn.Linear of its weight and bias first"
    if has_own_forward(layer):
        return f"{type_name(layer)} has its own forward"
    if vars(layer).get("_compiled_call_impl") is not None:
        return "is compiled already: convert before compile()"
    if isinstance(layer._parameters.get("weight"), torch.nn.parameter.UninitializedParameter):
        return "its weight has no shape yet: run the model once before"
    return ""


def reason_of_weight(layer: torch.nn.Module) -> str:
    """Why a linear layer's weight cannot be cast, or ""."""
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is no parameter: a hook or parametrization computes it"
    if type(weight) not in KNOWN_TENSORS and not getattr(type(weight), "is_of_ingot", False):
        return f"its weight is a {type_name(weight)}"
    if weight.dtype not in HIGH_PRECISION:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}, and FP8 takes float32, float16 and bfloat16"
    return ""


def check_replaceable(subject: str, layer: torch.nn.Module, activation: str = "") -> None:
    reason = reason_against_replacing(layer, activation)
    if reason:  # a predicate of the layer, or a sentence
        refuse(subject, f"the layer {reason}" if reason.startswith("is ") else reason)


def in_place_of(module: torch.nn.Module, kind: Type[Module]) -> Module:
    """A module of this class with everything of `module`: the same parameters, hooks, `.training`, and whatever else
    was set on it. Its __init__ does not run."""
    new = kind.__new__(kind)
    # Containers are copied, so that the two modules do not share their dicts of parameters and hooks.
    for name, value in vars(module).items():
        new.__dict__[name] = copy.copy(value) if isinstance(value, (dict, set)) else value
    take_hooks(module, new)
    return new


def replace_layers(
    model: torch.nn.Module, is_wanted: Callable[[torch.nn.Module, str], bool], made_of: Callable[[Any], torch.nn.Module]
) -> None:
    """Puts made_of(layer) in the place of each module within the model that is_wanted(module, name), after those within
    it. One that has several names is replaced once, by one layer."""
    replaced: Dict[torch.nn.Module, torch.nn.Module] = {}
    _replace_within(model, "", is_wanted, made_of, replaced, set())
    if replaced:
        leave_fast_paths(model)


def _replace_within(parent: torch.nn.Module, prefix: str, is_wanted, made_of, replaced, visited) -> None:
    """For replace_layers(). A function within it that called itself would hold itself and `replaced`, and so the old layers and
    their weights, until Python collects garbage."""
    visited.add(parent)
    for key, child in list(parent._modules.items()):
        if child is None:
            continue
        name = f"{prefix}.{key}" if prefix else key
        if child not in visited:
            _replace_within(child, name, is_wanted, made_of, replaced, visited)
            if is_wanted(child, name):
                replaced[child] = made_of(child)
        if child in replaced:
            parent._modules[key] = replaced[child]


def take_hooks(module: torch.nn.Module, new: torch.nn.Module) -> None:
    """Gives `new` the hooks of `module`. Handles of them work on `new` from now on, and `module` keeps copies."""
    for name, hooks in vars(module).items():
        if not name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) or not isinstance(hooks, dict):
            continue
        module.__dict__[name] = copy.copy(hooks)
        new.__dict__[name] = _bound_to(hooks, module, new)
    new.__dict__["_is_full_backward_hook"] = module._is_full_backward_hook


def clear_hooks(module: torch.nn.Module) -> None:
    """Of a module whose hooks another one has taken."""
    for name, hooks in vars(module).items():
        if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and isinstance(hooks, dict):
            hooks.clear()


def _bound_to(hooks: Dict[Any, Any], module: torch.nn.Module, new: torch.nn.Module) -> Dict[Any, Any]:
    """A hook that wants its module as an argument holds a weak reference to it."""
    for key, hook in hooks.items():
        if getattr(hook, "with_module", False) and hook.module() is module:
            hooks[key] = copy.copy(hook)
            hooks[key].module = weakref.ref(new)
    return hooks


def take_the_rest(module: torch.nn.Module, new: torch.nn.Module) -> None:
    """Gives `new`, which has its own parameters and buffers, the hooks of a torch.nn.Linear, and whatever else was
    set on that."""
    take_hooks(module, new)
    if is_ingot_layer(module):
        return  # its attributes are those of its kind
    for name, value in vars(module).items():
        new.__dict__.setdefault(name, value)
    for name in ("_parameters", "_buffers", "_modules"):
        for key, value in module.__dict__[name].items():
            if not any(key in new.__dict__[each] for each in ("_parameters", "_buffers", "_modules")):
                new.__dict__[name][key] = value
    new._non_persistent_buffers_set |= module._non_persistent_buffers_set


# ---- torch.nn.TransformerEncoder, whose fast path multiplies by the weights of its linear layers itself ----


def _note_in_encoder_layer(parent: torch.nn.Module, name: str, child: Any) -> None:
    """To an encoder layer with a layer of Ingot's no activation is one that its fast path fuses."""
    if isinstance(parent, torch.nn.TransformerEncoderLayer) and is_ingot_layer(child):
        parent.activation_relu_or_gelu = 0


torch.nn.modules.module.register_module_module_registration_hook(_note_in_encoder_layer)


def leave_fast_paths(model: torch.nn.Module) -> None:
    """After layers of the model were replaced: its encoders call them, whatever the mode."""
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            for name, child in module.named_children():
                _note_in_encoder_layer(module, name, child)
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoder):
            if any(getattr(layer, "activation_relu_or_gelu", 1) == 0 for layer in module.layers):
                module.use_nested_tensor = False  # what it is for is the fast path


# ---- models that are wrapped already ----


def order_of(model: torch.nn.Module, keeps_parameters: bool) -> Dict[torch.nn.Module, Tuple[str, str]]:
    """The linear layers that cannot be replaced any more, with their names and what says in which order to do it: what
    shards them holds the old modules. keeps_parameters: does DistributedDataParallel find the parameters that it noted?"""
    found: Dict[torch.nn.Module, Tuple[str, str]] = {}
    for path, module in model.named_modules():
        text = order_of_wrapper(module, keeps_parameters)
        compiled = getattr(module, "_orig_mod", None)
        if isinstance(compiled, torch.nn.Linear) and not is_ingot_layer(compiled):
            text = "compiled already: convert before torch.compile()"
        if not text:
            continue
        for name, each in module.named_modules(prefix=path):
            if each is not module and isinstance(each, torch.nn.Linear) and not is_ingot_layer(each):
                found.setdefault(each, (name, f"{path or 'the model'} is {text}"))
    return found


def order_of_wrapper(module: torch.nn.Module, keeps_parameters: bool) -> str:
    """Why modules within this one cannot be replaced, and what to do before; "" if they can."""
    if isinstance(module, FSDPModule):
        return "sharded by FSDP already: convert before fully_shard()"
    if isinstance(module, FullyShardedDataParallel):
        return "sharded already: convert before FullyShardedDataParallel()"
    if isinstance(module, DistributedDataParallel) and not keeps_parameters:
        return "wrapped already: convert before DistributedDataParallel()"
    return ""

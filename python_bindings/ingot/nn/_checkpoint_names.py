"""The modules of a model under the names that checkpoints have: those of the model itself, whatever wraps it."""

from __future__ import annotations

import sys
from typing import Iterator, NamedTuple, Optional

import torch

from ..torch._errors import LinearError

_WRAPPED = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")


class Place(NamedTuple):
    """A module, its name, and the parent and the key by which it can be replaced (None of the model itself)."""

    name: str
    module: torch.nn.Module
    parent: Optional[torch.nn.Module]
    key: str

    @property
    def prefix(self) -> str:
        return f"{self.name}." if self.name else ""


def _peft():
    """PEFT's classes of models and of layers with adapters, if the program has imported it."""
    if "peft" not in sys.modules:
        return (), (), ()
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer

    return PeftModel, BaseTuner, BaseTunerLayer


def is_adapted(place: Place) -> bool:
    """Is this a layer to which PEFT has added adapters, or one of which it trains a copy?"""
    return isinstance(place.parent, _peft()[2]) or trains_a_copy(place.module)


def trains_a_copy(module: torch.nn.Module) -> bool:
    """Is this PEFT's module of an original, and of what it trains in its place?"""
    return {"original_module", "modules_to_save"} <= module._modules.keys()


def _wrapped(module: torch.nn.Module) -> Optional[str]:
    """The key of the module that this one wraps and whose names are its own; None if it is no wrapper."""
    for key in _WRAPPED:
        if key in module._modules:
            return key
    if isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
        return "module"
    model, tuner, layer = _peft()
    if isinstance(module, model) and isinstance(module.base_model, tuner):
        return "base_model"
    if isinstance(module, tuner):
        return "model"
    return "base_layer" if isinstance(module, layer) and "base_layer" in module._modules else None


def places(model: torch.nn.Module) -> Iterator[Place]:
    """All modules that are no wrappers, in the model's order; one that has several names comes with each of them."""

    def visit(place: Place) -> Iterator[Place]:
        key = _wrapped(place.module)
        if key is not None:
            refuse_flat_parameters(place)
            yield from visit(Place(place.name, place.module._modules[key], place.module, key))
            return
        yield place
        for key, child in list(place.module._modules.items()):
            if child is not None:
                yield from visit(Place(place.prefix + key, child, place.module, key))

    return visit(Place("", model, None, ""))


def check_model(subject: str, model: torch.nn.Module) -> None:
    if not isinstance(model, torch.nn.Module):
        raise LinearError(f"{subject} model: is a {type(model).__name__}, expected a torch.nn.Module")


def check_replacing(subject: str, what: str, model: torch.nn.Module, filter_fn: object, instead: str) -> None:
    """Refuses what no layer can be replaced in, and a filter that is no function. what: "convert" it; instead: the class whose
    from_float() takes a layer."""
    check_model(subject, model)
    if filter_fn is not None and not callable(filter_fn):
        raise LinearError(
            f"{subject} filter_fn: is a {type(filter_fn).__name__}, expected a function (layer, name) that says whether to "
            f"{what} the layer"
        )
    if isinstance(model, torch.nn.Linear):
        raise LinearError(
            f"{subject} model: is itself a linear layer, which cannot be replaced in place: use {instead}.from_float(model)"
        )


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    return next(places(model)).module


def refuse_flat_parameters(place: Place) -> None:
    """FullyShardedDataParallel keeps all parameters in one, unless they are asked for."""
    state = getattr(place.module, "training_state", None)
    if "_fsdp_wrapped_module" in place.module._modules and getattr(state, "name", "") != "SUMMON_FULL_PARAMS":
        raise LinearError(
            f'"{place.name or "the model"}" is wrapped by FullyShardedDataParallel, which keeps its parameters in one '
            "flat tensor: call this within FullyShardedDataParallel.summon_full_params(model)"
        )


def put(place: Place, module: torch.nn.Module) -> None:
    """Replaces a place's module."""
    place.parent._modules[place.key] = module
    if place.key == "_orig_mod":
        place.parent._initialize()  # torch.compile's module calls the one that it was made of

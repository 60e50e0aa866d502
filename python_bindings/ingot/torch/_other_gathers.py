"""Weights that were to be gathered in FP8 and that something else than FSDP2 gathers, in high precision: FSDP1, which
flattens them, and properties or parametrizations, as torchtitan's SimpleFSDP has them. Both are an error that says what to
use instead; all ranks shard alike, so all of them raise it, and no collective is needed for that."""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import NoReturn, Optional

import torch
from torch.distributed.tensor import DTensor

from ._errors import LinearError
from ._fsdp_units import unit_of
from ._layers import ingot_layers

EXPERTS = "_gathered_experts"  # of a module that calls functions of experts: the names of these weights, by their keys
_FLATTENED = "_fsdp_flattened"  # FSDP1 sets it on what it has flattened, and on the result


def refuse_other_gathers(model: torch.nn.Module) -> None:
    """Raises LinearError where something else than FSDP2 gathers a weight of the model that was to be gathered in FP8."""
    for module in model.modules():
        for key, name in vars(module).get(EXPERTS, {}).items():
            if is_computed(module, key):
                _refuse_computed(f'experts "{name}"')
            if is_flattened(getattr(module, key, None)):
                refuse_fsdp1(f'experts "{name}"')
    for _, layer in ingot_layers(model):
        if not getattr(layer, "_gathers", False):
            continue
        for part in layer.modules():
            if is_computed(part):
                _refuse_computed(f'linear "{layer.layer_name}"')
        for name, weight in layer.named_weights():
            if is_flattened(weight):
                refuse_fsdp1(f'linear "{name}"')


def is_flattened(weight: Optional[torch.Tensor]) -> bool:
    """Is it a parameter that FSDP1 has flattened, or a view of such ones?"""
    return any(getattr(each, _FLATTENED, False) for each in (weight, getattr(weight, "_base", None)))


def is_computed(part: torch.nn.Module, key: str = "weight") -> bool:
    """Is its weight, or its other parameter, made, whenever it is read, of a DTensor that was to be gathered in FP8, and that is not FSDP2's?"""
    if not isinstance(inspect.getattr_static(type(part), key, None), property):
        return False
    stored = part._parameters.get(key)
    if stored is None and "parametrizations" in part._modules and key in part._modules["parametrizations"]:
        stored = getattr(part._modules["parametrizations"][key], "original", None)
    return isinstance(stored, DTensor) and hasattr(stored._local_tensor, "fsdp_pre_all_gather") and unit_of(stored) is None


_INSTEAD = (
    "shard the model by torch.distributed.fsdp.fully_shard() (FSDP2), or leave out float8_all_gather() "
    "(enable_fsdp_float8_all_gather in ingot.float8)"
)


def refuse_fsdp1(subject: str) -> NoReturn:
    raise LinearError(
        f"{subject} weight: FullyShardedDataParallel (FSDP1) gathers it in high precision, and only FSDP2 gathers in FP8: {_INSTEAD}"
    )


def _refuse_computed(subject: str) -> NoReturn:
    raise LinearError(
        f"{subject} weight: a parametrization, like SimpleFSDP's, gathers it in high precision, and only FSDP2 gathers in FP8: {_INSTEAD}"
    )


# ---- while a compiler traces the first call ----

_MODELS: "weakref.WeakValueDictionary[str, torch.nn.Module]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def key_of(model: torch.nn.Module) -> str:
    """Stands for the model in refuse_in_trace(): a text, because to compilers numbers may be variables."""
    key = str(next(_numbers))
    _MODELS[key] = model
    return key


@torch.compiler.assume_constant_result
def refuse_in_trace(key: str) -> int:
    model = _MODELS.get(key)
    if model is not None:
        refuse_other_gathers(model)
    return 0

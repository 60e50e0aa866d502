"""FSDP2 that gathers the weights of ingot.nn's layers and of experts in FP8: which weights, and how they are cast."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ..torch._checks import check_recipe_of_experts, refuse
from ..torch._gathered_weight import Casts
from ..torch._layers import ingot_layers, name_layers
from ..torch._model_weights import ExpertsWeight, is_experts_layer, users_of_parameters, weights_of_experts
from ..torch._modules import type_name
from ..torch._operators import HIGH_PRECISION
from ..torch._other_gathers import EXPERTS
from ..torch._saying import say_once, warn
from ..torch._shard_gather import (
    agree_at_first_call, gathered_again, gathered_in_float8, plain_in_state_dict, precompute, weights_changed as weights_changed
)
from ..torch._sharded_weight import ShardedWeight, subject_of

_E4M3 = torch.float8_e4m3fn
# By recipe; the casts are those of src/nn/recipe/recipes.cpp.
_CASTS = {
    "tensorwise": Casts(_E4M3, "tensor", "tensor", False),
    "rowwise": Casts(_E4M3, "row", "col", True),
    "rowwise_folded": Casts(_E4M3, "row", "row", True),
    "rowwise_with_gw_hp": Casts(_E4M3, "row", "tensor", True),
    "blockwise": Casts(_E4M3, "128x128", "128x128", False),
    "delayed": Casts(_E4M3, "tensor", "tensor", False, delayed=True),
}

_CALLER = "float8_all_gather"

Filter = Callable[[str, torch.nn.Parameter], bool]
Experts = Callable[[str, torch.nn.Parameter], Optional[str]]


class _Weight(NamedTuple):
    """layer: what computes with the weight, a layer of Ingot or a module that calls functions of experts. is_transposed: of
    experts, the weight is stored as (experts, K, N)."""

    name: str
    weight: torch.nn.Parameter
    casts: Casts
    layer: torch.nn.Module
    is_transposed: bool = False

    @property
    def subject(self) -> str:
        return subject_of(self.name, self.weight.dim())


def _weights(model: torch.nn.Module, experts: Optional[Experts]) -> Iterator[_Weight]:
    """Those of the model's layers and of its experts, a tied one once for each."""
    for _, layer in ingot_layers(model):
        casts = None if is_experts_layer(layer) else _CASTS.get(getattr(getattr(layer, "options", None), "recipe", ""))
        for name, weight in layer.named_weights() if casts is not None else ():
            if isinstance(weight, torch.nn.Parameter) and weight.dtype in HIGH_PRECISION:
                yield _Weight(name, weight, casts, layer)
    for each in _experts(model, experts):
        if each.weight.dtype in HIGH_PRECISION:
            yield _Weight(each.name, each.weight, _CASTS[each.recipe], each.module, each.is_transposed)


def _experts(model: torch.nn.Module, experts: Optional[Experts]) -> Iterator[ExpertsWeight]:
    """Those of converted modules, and those that a program's own modules give to functions of experts."""
    converted = list(weights_of_experts(model))
    yield from converted
    known = {id(each.weight) for each in converted}
    for path, module in model.named_modules() if experts is not None else ():
        for key, weight in module._parameters.items():
            name = f"{path}.{key}" if path else key
            recipe = None if weight is None or id(weight) in known else experts(name, weight)
            if recipe is None:
                continue
            check_recipe_of_experts(f"{_CALLER} experts: of {name}", recipe)
            if weight.dim() != 3:
                refuse(_CALLER, f"experts: takes {name}, which is {tuple(weight.shape)}, expected weights (experts, N, K)")
            yield ExpertsWeight(name, weight, recipe, module)


def float8_all_gather(
    model: torch.nn.Module, *, filter: Optional[Filter] = None, recomputed: bool = False, experts: Optional[Experts] = None
) -> Tuple[str, ...]:
    """From now on FSDP2 gathers the weights of the model's FP8 layers and experts in FP8, one byte for each element, and nothing
    casts them afterwards; to be called before fully_shard(). Returns the names of these weights' layers, and of experts those of
    the parameters; none, with a warning in the log, for a model without any.

    Parameters, optimizers and checkpoints stay in high precision, and training has the bits that it has without: with a
    mixed-precision policy each rank rounds its shard to `param_dtype` before it casts it. filter(name, weight) says which
    weights to gather so; by default all.

    Weights of layers with the recipe "rowwise" or "rowwise_with_gw_hp" are read differently by forward and backward, and are
    gathered for each of them; where FSDP keeps the weight after forward, or activation checkpointing runs the forward again,
    two sets would be as many bytes as 16 bits, and these weights are gathered in high precision, which is logged once.
    recomputed=True does so from the beginning: for a forward that calls torch.utils.checkpoint itself. So are weights that a
    module shares which is no layer of Ingot, and blocks that a rank's rows would cut ("blockwise": a multiple of 128 rows a
    rank). Layers with "high_precision" are left alone.

    Experts are those of GroupedLinear and ExpertsMlp, of convert_experts_() and of convert_grouped_experts_(). Of modules of your own, experts(name, parameter)
    returns the recipe of a parameter (experts, N, K) that their forward gives to experts_mlp() or grouped_linear(), the one that
    its options say, and None of any other. FSDP shards experts whole, so nothing is reduced; a stack that is sharded otherwise,
    or stored as (experts, K, N), is gathered in high precision, which is logged once.

    precompute_float8_all_gather() after each optimizer.step() finds the scales of all shards together. Raises LinearError for a
    model that is sharded already. The first step asks whether all ranks gather the same weights; if not, each of them raises
    LinearError, which names the first that differs.
    """
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        refuse(_CALLER, "model: is sharded by FSDP already: call it before fully_shard()")
    if experts is not None and not callable(experts):
        refuse(
            _CALLER,
            f"experts: is a {type(experts).__name__}, expected a function (name, parameter) that returns the recipe of a stack of "
            "experts, or None",
        )
    name_layers(model)
    names = []
    users = users_of_parameters(model)
    wanted: Dict[int, list] = {}
    for each in _weights(model, experts):
        wanted.setdefault(id(each.weight), []).append(each)
    if not wanted:
        warn("float8_all_gather: the model has no FP8 layers of Ingot, and nothing changes: convert() it first")
    for same in wanted.values():
        name, weight, casts = same[0][:3]
        if filter is not None and not filter(name, weight):
            continue
        reason = _reason(same, users[id(weight)], recomputed)
        if reason:
            say_once(same[0].subject, f"FSDP gathers its weight in high precision: {reason}")
            continue
        holders = [(module, key) for module in users[id(weight)] for key, value in module._parameters.items() if value is weight]
        gathered = _gathered(weight, casts, name)
        if gathered is not weight:
            refuse(same[0].subject, "weight: something else holds it, as a graph or a weak reference does: make it anew")
        for module, key in holders:
            module.register_load_state_dict_post_hook(partial(_gather_again, key=key, casts=casts, name=name))
            module.register_state_dict_post_hook(partial(plain_in_state_dict, key=key))
        for each in same:
            _note(each)
        names.append(name)
    agree_at_first_call(model)
    return tuple(names)


def _note(each: _Weight) -> None:
    """For refuse_other_gathers()."""
    if each.weight.dim() == 2:
        each.layer._gathers = True
        return
    key = next(key for key, weight in each.layer._parameters.items() if weight is each.weight)
    vars(each.layer).setdefault(EXPERTS, {})[key] = each.name


def _gathered(weight: torch.nn.Parameter, casts: Casts, name: str) -> torch.nn.Parameter:
    return gathered_in_float8(weight, lambda values: _sharded(values, casts, name))


def _sharded(values: torch.Tensor, casts: Casts, name: str) -> torch.Tensor:
    """Of a weight that tensor parallelism divides, this rank's part is what FSDP shards."""
    if not isinstance(values, DTensor):
        return ShardedWeight(values, casts, name)
    part = ShardedWeight(values.to_local(), casts, name)
    place = (values.device_mesh, values.placements)
    return DTensor.from_local(part, *place, run_check=False, shape=values.shape, stride=values.stride())


def _gather_again(module: torch.nn.Module, _: Any, key: str, casts: Casts, name: str) -> None:
    """FSDP gathers a parameter that load_state_dict(assign=True) has put in another's place like the one before."""
    weight = module._parameters.get(key)
    if type(weight) is torch.nn.Parameter:
        module._parameters[key] = _gathered(weight, casts, name)
    elif type(weight) is DTensor and not isinstance(weight._local_tensor, ShardedWeight):
        module._parameters[key] = gathered_again(weight, lambda values: ShardedWeight(values, casts, name))


def _reason(same: list, users: Dict[torch.nn.Module, str], recomputed: bool) -> str:
    """Why the weight cannot be gathered in FP8, or ""."""
    casts = same[0].casts
    if casts.delayed and same[0].weight.dim() == 3:
        return "each of its experts has a delayed scale, and FP8 gathers know one for a whole weight"
    if any(each.is_transposed for each in same):
        return "it is stored as (experts, K, N), and codes of (experts, N, K) are gathered"
    known = {id(each.layer) for each in same if each.weight.dim() == 3}
    others = [name for module, name in users.items() if id(module) not in known and not _is_part(module)]
    if others:
        return f"{others[0]} shares it, and reads it in high precision"
    if any(each.casts != casts for each in same):
        return f'"{same[1].name}" shares it, and casts it in another way'
    if recomputed and casts.alternates:
        return "its forward runs again in backward, which reads other codes"
    return ""


def _is_part(module: torch.nn.Module) -> bool:
    """Is it a layer of Ingot, or a part of one? Embeddings, heads and whatever else multiplies by itself are not."""
    return type_name(module).startswith("ingot.")


def precompute_float8_all_gather(model: torch.nn.Module) -> None:
    """Finds the scales of all weights that FSDP2 gathers in FP8, with one reduction of their maxima for each mesh, and one gather of
    the scale_inv of rows and blocks; with tensor parallelism one more reduction, over its mesh, where the scale of a divided weight is
    that of all its parts ("tensorwise", "delayed"). To be called after optimizer.step(), on every rank. Without it each gather asks
    the other ranks for the scales of what it gathers.

    Raises LinearError, on every rank, where ranks hold other weights to gather.
    """
    precompute(model)

"""The weights of a model that FSDP2 gathers in FP8: which they are, their scales all together after the optimizer's step, and
the check that all ranks hold the same."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.distributed.tensor import DTensor

from ._errors import LinearError
from ._operators import PlanTable
from ._fsdp_units import Unit, unit_of
from ._gathered_weight import Casts
from ._handshake import facts_of_ranks, other_rank
from ._other_gathers import key_of, refuse_in_trace, refuse_other_gathers
from ._shard_casts import ShardCast, rows_of
from ._shard_plan import CodesPlan, Part, ShardPlan
from ._sharded_weight import ShardedWeight, asks_of, gathered_of, is_in_high_precision, largest_of, over, was_gathered

_GATHERED_AS = "_gathered_as"


def gathered_in_float8(
    weight: torch.nn.Parameter, made: Callable[[torch.Tensor], ShardedWeight]
) -> torch.nn.Parameter:
    """Makes a parameter one that FSDP2 gathers in FP8, and returns it. made(values): the sharded weight of its values. It
    stays the same object with its gradient, hooks and attributes, so that layers which share it and optimizers that have it
    keep it. Only where PyTorch cannot exchange what an object holds, because a graph or a weak reference does too, another
    object takes its place, in all such layers."""
    if _GATHERED_AS in vars(weight):
        return vars(weight)[_GATHERED_AS]
    other = torch.nn.Parameter(made(weight.detach()), requires_grad=weight.requires_grad)
    attributes, grad = dict(vars(weight)), weight.grad
    hooks, post_hooks = weight._backward_hooks, weight._post_accumulate_grad_hooks
    try:
        torch.utils.swap_tensors(weight, other)
        gathered = weight
    except RuntimeError:
        gathered = vars(weight)[_GATHERED_AS] = other
    vars(gathered).update(attributes)
    gathered.grad = grad
    # To assign them is what registers them with the tensor that the object now has.
    gathered._backward_hooks, gathered._post_accumulate_grad_hooks = hooks, post_hooks
    return gathered


def gathered_again(weight: DTensor, made: Callable[[torch.Tensor], ShardedWeight]) -> torch.nn.Parameter:
    """A shard in high precision that has taken the place of one that FSDP2 gathers in FP8 (load_state_dict(assign=True)), as
    a parameter that is gathered like that one."""
    local = made(weight._local_tensor.detach())
    place = weight.device_mesh, weight.placements
    sharded = DTensor.from_local(local, *place, run_check=False, shape=weight.shape, stride=weight.stride())
    return torch.nn.Parameter(sharded, requires_grad=weight.requires_grad)


def plain_in_state_dict(
    module: torch.nn.Module, state: Dict[str, Any], prefix: str, _: Any = None, *, key: str = "weight"
) -> None:
    """state_dict() has plain tensors in the place of weights that FSDP2 gathers in FP8 where each rank has all of them, so that
    what PyTorch calls a full state dict has: files and other libraries have no use for Ingot's class. Writes of the memory are
    seen as before; through a plain DTensor they would not be, so that nothing is kept of such a weight from then on."""
    value = state.get(prefix + key)
    if isinstance(value, torch.nn.Parameter):  # keep_vars=True
        return
    if isinstance(value, ShardedWeight):
        state[prefix + key] = value._tensor.detach()
    elif isinstance(value, DTensor) and isinstance(value._local_tensor, ShardedWeight) and _is_whole(value):
        value._local_tensor._known.keeps = False
        value._local_tensor._known.written()
        state[prefix + key] = DTensor(value._local_tensor._tensor.detach(), value._spec, requires_grad=False)


def _is_whole(weight: DTensor) -> bool:
    return all(place.is_replicate() or weight.device_mesh.size(dim) == 1 for dim, place in enumerate(weight.placements))


def sharded_weights(module: torch.nn.Module) -> Iterator[Tuple[str, DTensor]]:
    """The parameters of a model that are sharded and gathered in FP8, with their names, each once."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor) and isinstance(parameter._local_tensor, ShardedWeight):
            yield name, parameter


# ---- are they the same on all ranks? ----


class _Facts(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    dtype: str
    casts: Casts

    def __str__(self) -> str:
        kinds = self.casts.output if not self.casts.alternates else f"{self.casts.output} and {self.casts.grad_input}"
        scales = " with delayed scales" * self.casts.delayed + " with powers of two as scales" * self.casts.pow2
        cast = f"cast to {str(self.casts.dtype).removeprefix('torch.')} by {kinds}{scales}"
        return f'"{self.name}" {list(self.shape)} {self.dtype} {cast}'


_Group = Tuple[Any, Tuple[int, ...]]  # a mesh, and its dimensions that weights are sharded over
_AGREED: "weakref.WeakKeyDictionary[torch.nn.Module, tuple]" = weakref.WeakKeyDictionary()


def _groups(module: torch.nn.Module) -> Dict[_Group, List[Tuple[str, DTensor]]]:
    """All meshes of the model, on every rank alike, with the weights that are gathered in FP8 there."""
    groups: Dict[_Group, List[Tuple[str, DTensor]]] = {}
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            sharded = tuple(dim for dim, place in enumerate(parameter.placements) if not place.is_replicate())
            weights = groups.setdefault((parameter.device_mesh, sharded), [])
            if isinstance(parameter._local_tensor, ShardedWeight):
                weights.append((name, parameter))
    return groups


def _over(group: _Group, values: torch.Tensor, reduce: Callable) -> torch.Tensor:
    mesh, sharded = group
    return over([(mesh, dim) for dim in sharded], values, reduce)


def _agree(module: torch.nn.Module, groups: Dict[_Group, List[Tuple[str, DTensor]]]) -> None:
    """Raises LinearError on every rank if ranks have other weights to gather. As many collectives of one size as there are
    meshes, and only when the weights of a module are new."""
    ids = tuple((group, *(id(each) for _, each in weights)) for group, weights in groups.items())
    agreed = _AGREED.get(module, (None, None))
    if agreed[0] == ids:
        return
    refuse_other_gathers(module)
    facts = {
        group: [
            _Facts(name, tuple(each.shape), str(each.dtype).removeprefix("torch."), each._local_tensor._casts)
            for name, each in weights
        ]
        for group, weights in groups.items()
    }
    key = tuple(zip(groups, map(tuple, facts.values())))
    if agreed[1] == key:
        _AGREED[module] = ids, key
        return
    problems = []
    for (mesh, _), of_group in facts.items():
        group = (mesh, tuple(range(mesh.ndim)))  # replicas too
        exchanges = [partial(_over, group, reduce=each) for each in (largest_of, gathered_of)]
        of_ranks = facts_of_ranks([str(each) for each in of_group], *exchanges)
        if of_ranks is not None:
            problems.append(_difference(of_ranks))
    if problems:
        raise LinearError(problems[0])
    _AGREED[module] = ids, key


def agree_at_first_call(model: torch.nn.Module) -> None:
    """The first call of the model asks whether all ranks have the same weights to gather: ranks that send other bytes would
    wait for each other. Raises LinearError then, on every rank, and where something else than FSDP2 gathers them. Only what
    FSDP gathers with the model itself, and with no module within it, is gathered before. Of a model that is compiled whole,
    precompute() asks whether ranks have the same weights."""

    model.register_forward_pre_hook(_AskOnce(key_of(model)), prepend=True)


class _AskOnce:
    """A hook that removes itself, from copies of a model too."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            refuse_in_trace(self.key)
            return
        for key in [key for key, hook in module._forward_pre_hooks.items() if hook is self]:
            del module._forward_pre_hooks[key]
        _agree(module, _groups(module))


def _difference(of_ranks: List[List[str]]) -> str:
    """Says which weight is the first that is not the same on all ranks, the same sentence on each of them."""
    at = 0
    while all(len(each) > at and each[at] == of_ranks[0][at] for each in of_ranks):
        at += 1
    values = [each[at] if at < len(each) else "no more weights" for each in of_ranks]
    other = other_rank(values)
    return (
        f"the ranks hold different weights to gather in FP8: rank 0 has {len(of_ranks[0])} and rank {other} has "
        f"{len(of_ranks[other])}; number {at} is {values[0]} on rank 0 and {values[other]} on rank {other}: "
        "convert the same layers on every rank"
    )


# ---- all scales together ----


@torch.no_grad()
def precompute(module: torch.nn.Module) -> None:
    """Finds the scales of all weights that FSDP2 gathers in FP8, with one reduction of their maxima for each mesh they are
    sharded over, and one more for the scales of weights whose parts the ranks of another mesh have. The first call for a module also
    asks whether all ranks have the same weights, and raises LinearError on each of them if not."""
    groups = _groups(module)
    _agree(module, groups)
    for group, weights in groups.items():
        if weights:
            _scale_all(module, group, [parameter for _, parameter in weights])


class _Scales(NamedTuple):
    """How the scales of a mesh's weights are found: the plan, the key of its parts, the cast of each weight, and the codes that are
    kept of offloaded ones. all_of: the weights with those in high precision, by weak references to parameter, local tensor and the
    tensor within; at: which of them the casts are of. is_settled: has FSDP gathered each, so that this does not change?"""

    plan: ShardPlan
    casts: List[ShardCast]
    kept: Optional[CodesPlan]
    all_of: List[Tuple[weakref.ref, weakref.ref, weakref.ref]]
    at: List[int]
    is_settled: bool

    def is_of(self, parameters: List[DTensor]) -> bool:
        """Are these the same, in the same memory? To make their parts anew and compare them takes most of the host's time here."""
        if not self.is_settled or len(parameters) != len(self.all_of):
            return False
        for parameter, (same, local, tensor) in zip(parameters, self.all_of):
            weight = parameter._local_tensor
            if same() is not parameter or local() is not weight or tensor() is not weight._tensor:
                return False
        return True


_PLANS = "_float8_gather_plans"  # of a module: _Scales by group


def _scale_all(module: torch.nn.Module, group: _Group, parameters: List[DTensor]) -> None:
    plans = vars(module).setdefault(_PLANS, PlanTable())
    scales = plans.get(group)
    if scales is None or not scales.is_of(parameters):
        scales = _scales_of(group, parameters, scales)
        if scales is None:
            return
        plans[group] = scales
    parameters = [parameters[at] for at in scales.at]
    asks = asks_of(_ranks(group, _unit_of(parameters[0]))[1])
    scales.plan.run(asks, [scale for parameter in parameters for scale in parameter._local_tensor.delayed_scales()])
    if scales.kept is not None:
        scales.kept.run()
    for parameter, cast in zip(parameters, scales.casts):
        weight = parameter._local_tensor
        weight._known.give(cast, weight._tensor.dtype, weight._tensor, parameter, *weight.watched())


def _scales_of(group: _Group, parameters: List[DTensor], before: Optional[_Scales]) -> Optional[_Scales]:
    """None where all are in high precision, or gathers have to ask: of two meshes' ranks, FSDP's are not known without its unit."""
    known = [len(group[1]) == 1 or _unit_of(each) is not None for each in parameters]
    at = [at for at, each in enumerate(parameters) if known[at] and not is_in_high_precision(each._local_tensor)]
    parts = [part for each in at for part in _parts(group, parameters[each])]
    if not parts:
        return None
    all_of = [tuple(map(weakref.ref, (each, each._local_tensor, each._local_tensor._tensor))) for each in parameters]
    is_settled = all(was_gathered(each._local_tensor) for each in parameters)
    if before is not None and before.plan.key == tuple(part.key for part in parts):
        return before._replace(all_of=all_of, at=at, is_settled=is_settled)
    casts, of_parts = [], []
    for each in at:
        weight = parameters[each]._local_tensor
        count = 2 if weight._casts.alternates else 1
        casts.append(ShardCast(parts[len(of_parts)].dtype, rows_of(weight._tensor)))
        of_parts += casts[-1:] * count
    plan = ShardPlan(parts, of_parts, _ranks(group, _unit_of(parameters[at[0]]))[0])
    kept, device = None, parts[0].values.device
    if device.type != group[0].device_type:  # FSDP copies the codes of offloaded shards to the GPU for each gather
        kept = CodesPlan(parts, of_parts, torch.empty(CodesPlan.size(parts), dtype=torch.uint8, device=device))
        for part, cast, codes in zip(parts, of_parts, kept.codes):
            cast.kept[part.side] = codes
    return _Scales(plan, casts, kept, all_of, at, is_settled)


def _parts(group: _Group, parameter: DTensor) -> List[Part]:
    weight = parameter._local_tensor
    unit = _unit_of(parameter)
    gathered, whole = (weight.dtype, parameter.shape) if unit is None else (unit.gathered_dtype, unit.whole)
    how = gathered if weight._rounds else None, _ranks(group, unit)[0], whole, unit
    return [weight.part(side, *how) for side in ((0, 1) if weight._casts.alternates else (0,))]


def _unit_of(parameter: DTensor) -> Optional[Unit]:
    return parameter._local_tensor._unit() or unit_of(parameter)


def _ranks(group: _Group, unit: Optional[Unit]) -> Tuple[int, Any]:
    """How many ranks share the rows of a weight of the group, and their mesh and its dimension."""
    mesh, sharded = group
    if unit is not None:
        return unit.ranks, unit.shards
    return mesh.size(sharded[0]), (mesh, sharded[0])


def weights_changed(module: torch.nn.Module) -> None:
    """Says that weights were written past PyTorch, by a raw pointer or a kernel of another library: casts that are known
    of them are dropped. Writes by PyTorch need no call, through any alias. To be called on every rank."""
    for parameter in module.parameters():
        local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
        if isinstance(local, ShardedWeight):
            local._known.written()

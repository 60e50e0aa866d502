"""What FSDP2 knows of a sharded parameter: whether it frees the weight after forward, in which precision it gathers, and
whether it gathers for a forward or for a backward. PyTorch has no public functions for that; where a version of it has other names
for what is read here, nothing is known, and weights are gathered as if everything were needed."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterator, Optional, Tuple

import torch
from torch.distributed import _composable_state
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper


_STATES = getattr(_composable_state, "_module_state_mapping", {})


def _kept(holder: Any, name: str, make: Callable[[], Any]) -> Any:
    found = vars(holder).get(name)
    if found is None:
        found = vars(holder)[name] = make()
    return found


class Unit:
    """group: of the parameters that are gathered together; parameter: FSDP's own object of one. Each is None once FSDP has
    dropped it: this holds neither, because a weight that held what holds it, in part by references of PyTorch's C++, would never
    be freed."""

    __slots__ = ("_group", "_parameter")

    def __init__(self, group: Any, parameter: Any) -> None:
        self._group, self._parameter = weakref.ref(group), weakref.ref(parameter)

    @property
    def group(self) -> Any:
        return self._group()

    @property
    def parameter(self) -> Any:
        return self._parameter()

    @property
    def is_gone(self) -> bool:
        return self.group is None or self.parameter is None

    def of_group(self, name: str, make: Callable[[], Any]) -> Any:
        """What Ingot keeps with the parameters that are gathered together."""
        return _kept(self.group, name, make)

    def common(self, name: str, make: Callable[[], Any]) -> Any:
        """What it keeps with all that use the same streams: the units of a model."""
        return _kept(getattr(self.group, "comm_ctx", self.group), name, make)

    @property
    def reshards(self) -> bool:
        return bool(self.group._reshard_after_forward)

    @property
    def ranks(self) -> int:
        """How many ranks the weight is sharded over; 1 where each has all of it."""
        return getattr(self.parameter.mesh_info, "shard_mesh_size", 1)

    @property
    def shards(self) -> Any:
        """Their mesh and its dimension, where there are several."""
        info = self.parameter.mesh_info
        return info.mesh, getattr(info, "shard_mesh_dim", 0)

    @property
    def whole(self) -> torch.Size:
        """The size of what these ranks have together, which another parallelism may have split."""
        return self.parameter._orig_size

    @property
    def keeps_a_part(self) -> bool:
        """Is the weight sharded over fewer ranks after forward, reshard_after_forward=<int>?"""
        return bool(getattr(self.group, "_use_post_forward_mesh", False))

    @property
    def is_split_again(self) -> bool:
        """Is it part of a weight that another parallelism has split, so that these are not all of its rows?"""
        return bool(self.parameter.is_dtensor)

    @property
    def _split(self) -> Any:
        """How it has split it: a DTensorSpec, whose name depends on the version of PyTorch; None if it has not."""
        if not self.is_split_again:
            return None
        return getattr(self.parameter, "_unsharded_dtensor_spec", None) or self.parameter._tp_spec

    @property
    def is_split_along_rows(self) -> bool:
        """Has the other parallelism split its first dimension alone, as expert parallelism does?"""
        return self._split is not None and all(place.is_replicate() or place.is_shard(0) for place in self._split.placements)

    @property
    def others(self) -> Tuple[Tuple[Any, int], ...]:
        """The ranks that the other parallelism has split it over: meshes, each with its dimension."""
        split = self._split
        if split is None:
            return ()
        dims = enumerate(split.placements)
        return tuple((split.mesh, dim) for dim, place in dims if not place.is_replicate() and split.mesh.size(dim) > 1)

    @property
    def gathered_dtype(self) -> torch.dtype:
        """Of a gather in high precision."""
        local = self.parameter.sharded_param._local_tensor
        return self.parameter.mp_policy.param_dtype or local.dtype

    @property
    def is_backward(self) -> bool:
        return self.group._training_state.name == "PRE_BACKWARD"


def _states() -> Iterator[Any]:
    for reference in list(_STATES.values()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        if state is not None:
            yield state


def _groups(state: Any) -> list:
    many = getattr(state, "_fsdp_param_groups", None)
    one = getattr(state, "_fsdp_param_group", None) if many is None else None
    return list(many or ([one] if one is not None else []))


def unit_of(parameter: torch.Tensor) -> Optional[Unit]:
    """Of a sharded parameter, or of its local tensor."""
    try:
        for state in _states():
            for group in _groups(state):
                for each in group.fsdp_params:
                    sharded = each.sharded_param
                    if sharded is parameter or sharded._local_tensor is parameter:
                        unit = Unit(group, each)
                        unit.reshards, unit.is_split_again, unit.others, unit.gathered_dtype, unit.is_backward, unit.ranks  # there?
                        unit.shards, unit.whole
                        each._module_info.module
                        return unit
    except AttributeError:
        pass
    return None


_FREES: list = [None, False]  # the modules that were looked at, by the last one and their number, and what was found


def frees_weights() -> bool:
    """Does FSDP2 free the weights of any model after forward? Then codes that a layer keeps for backward would be a copy of
    the weight that FSDP knows nothing of."""
    modules = getattr(_STATES, "data", None)
    if not modules:
        return False
    seen = next(reversed(modules)), len(modules)
    if seen != _FREES[0]:
        try:
            frees = any(group._reshard_after_forward for state in _states() for group in _groups(state))
        except AttributeError:
            frees = True
        _FREES[:] = seen, frees
    return _FREES[1]


@torch.compiler.assume_constant_result
def frees_weights_of_trace() -> bool:
    return frees_weights()


def _calls_again(module: torch.nn.Module) -> bool:
    """Does this module run the forward of what it contains again in backward?"""
    return isinstance(module, CheckpointWrapper) or getattr(module, "gradient_checkpointing", False) is True


def is_recomputed(unit: Unit) -> bool:
    """Is the module of this parameter within one that activation checkpointing wraps? A call of torch.utils.checkpoint
    within a forward is not seen."""
    layer = unit.parameter._module_info.module
    for root, reference in list(_STATES.items()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        if not getattr(state, "_is_root", False) or not any(each is layer for each in root.modules()):
            continue
        around = (each for each in root.modules() if _calls_again(each))
        return any(each is layer for module in around for each in module.modules())
    return False

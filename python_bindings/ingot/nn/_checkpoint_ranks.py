"""Checkpoints of models whose parameters are sharded (FSDP2, tensor parallelism): all ranks take part in gathering each
tensor, and one of them writes."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Iterable, Optional

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .._text import some_of
from ..torch._errors import LinearError
from ..torch._fsdp_units import unit_of


def is_sharded(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


def is_gathered_in_float8(tensor: torch.Tensor) -> bool:
    """Is it one of ingot.float8's weights that FSDP gathers in FP8? Those hold the weight as `_tensor`."""
    return getattr(type(tensor), "is_of_ingot", False) and hasattr(tensor, "_tensor")


def _held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._tensor if is_gathered_in_float8(tensor) else tensor


def gathered_dtype(weight: torch.Tensor) -> Optional[torch.dtype]:
    """What FSDP2's mixed precision rounds a weight to before its layer casts it; None if nothing does."""
    unit = unit_of(weight) if isinstance(weight, DTensor) else None
    rounds = unit is not None and getattr(weight._local_tensor, "_rounds", True)
    return unit.gathered_dtype if rounds else None


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the unsharded tensor: all of a DTensor, on each rank, by a collective."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return _held(tensor)
    local, mesh = _held(tensor._local_tensor), tensor.device_mesh
    if local.device.type != mesh.device_type:  # as FSDP's offloading leaves it
        local = local.to(mesh.device_type)
    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(local, mesh, tensor.placements, run_check=False, **sizes).full_tensor()


class Ranks:
    """Those that hold the shards of a model's tensors; one rank alone if no tensor has shards."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._meshes: list[Any] = []
        for tensor in tensors:
            if isinstance(tensor, DTensor) and tensor.device_mesh not in self._meshes:
                self._meshes.append(tensor.device_mesh)
        self.several = bool(self._meshes)
        self.writes = True

    def _all(self, value: Any, joined: Callable[[list[Any]], Any]) -> Any:
        """Joins all ranks' values on each rank, along one dimension of a mesh after the other."""
        for mesh in self._meshes:
            for dim in range(mesh.ndim):
                group = mesh.get_group(dim)
                values: list[Any] = [None] * dist.get_world_size(group)
                dist.all_gather_object(values, value, group=group)
                value = joined(values)
        return value

    def raise_first(self, fault: Optional[str]) -> None:
        """Raises the error of any rank on all of them, so that none waits for another."""
        first = self._all(fault, lambda faults: next((each for each in faults if each), None))
        if first:
            raise LinearError(first)

    def agree(self, subject: str, facts: dict[str, str], fault: Optional[str]) -> None:
        """Raises on all ranks where one has a fault or models differ: a rank that gathers what another lacks would wait
        forever. Decides which rank writes."""
        self.raise_first(fault)
        if not self._meshes:
            return
        digest = hashlib.sha256("\n".join(f"{name} {fact}" for name, fact in facts.items()).encode()).hexdigest()
        digests = self._all({digest}, lambda sets: set().union(*sets))
        if len(digests) > 1:
            known = self._all([facts], lambda lists: [each for one in lists for each in one])
            names = dict.fromkeys(name for each in known for name in each)
            differ = [name for name in names if len({each.get(name) for each in known}) > 1]
            first = differ[0] if differ else ""
            found = " and ".join(sorted({each.get(first, "absent") for each in known}))
            what = f"{some_of(differ)} differ: {found}" if differ else "their tensors come in another order"
            raise LinearError(f"{subject}: the ranks hold different models ({what}): load and convert the same on all ranks")
        self.writes = self._all(dist.get_rank(), min) == dist.get_rank()

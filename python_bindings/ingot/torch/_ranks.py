"""Collectives of the ranks that divide a layer, as operators that compilers can trace: rows that come together, sums, and
maxima. One rank needs none."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

import torch

_ops = torch.ops._c10d_functional


class Ranks(NamedTuple):
    """group: the name of their process group; rank: this one's number in it; size: how many there are."""

    group: str
    rank: int
    size: int


def ranks_of(mesh) -> Ranks:
    """Of a DeviceMesh of one dimension."""
    return Ranks(mesh.get_group().group_name, mesh.get_local_rank(), mesh.size())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """In a row: what is gathered is bytes, because not every backend knows FP8."""
    return tensor.contiguous().view(torch.uint8).reshape(-1)


def gather(tensors: Sequence[torch.Tensor], ranks: Ranks) -> List[torch.Tensor]:
    """All ranks' parts of each tensor along its first dimension, in one launch. A rank's parts have the same shapes as
    another's."""
    if ranks.size == 1:
        return list(tensors)
    sent = [_bytes(each) for each in tensors]
    if len(sent) == 1:
        found = [_ops.all_gather_into_tensor(sent[0], ranks.size, ranks.group)]
    else:
        found = _ops.all_gather_into_tensor_coalesced(sent, ranks.size, ranks.group)
    waited = [_ops.wait_tensor(each) for each in found]
    return [
        each.view(part.dtype).reshape(ranks.size * part.shape[0], *part.shape[1:]) for each, part in zip(waited, tensors)
    ]


def _parted(values: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
    """The values with this dimension split in two: the ranks, and what each of them has. Dynamo cannot trace
    Tensor.unflatten(), which is written in Python, under torch.set_default_device()."""
    shape = values.shape
    return values.view(*shape[:dim], ranks.size, shape[dim] // ranks.size, *shape[dim + 1 :])


def in_order(gathered: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
    """What gather() returns, with the parts along this dimension in place of the first. A copy, unless the dimensions before
    have one element."""
    if dim == 0 or ranks.size == 1:
        return gathered
    return _parted(gathered, 0, ranks).movedim(0, dim).flatten(dim, dim + 1)


def gather_rows(values: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
    """All ranks' parts of a tensor along one of its dimensions."""
    return in_order(gather([values], ranks)[0], dim, ranks)


def one_after_another(values: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
    """The opposite of in_order(): the parts along this dimension, one after another along the first."""
    return _parted(values, dim, ranks).movedim(dim, 0).flatten(0, 1).contiguous()


def scatter_sum(values: torch.Tensor, dim: int, ranks: Ranks) -> torch.Tensor:
    """This rank's part, along a dimension that the ranks divide, of the sum over the ranks."""
    if ranks.size == 1:
        return values
    parts = one_after_another(values, dim, ranks)
    return _ops.wait_tensor(_ops.reduce_scatter_tensor(parts, "sum", ranks.size, ranks.group))


def sum_of(values: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    if ranks.size == 1:
        return values
    return _ops.wait_tensor(_ops.all_reduce(values.contiguous(), "sum", ranks.group))


def largest_of(maxima: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Of maxima of |x|, float32. As integers they order as they do as floats, with NaN above all, which a maximum of floats
    may forget."""
    if ranks.size == 1:
        return maxima
    bits = _ops.wait_tensor(_ops.all_reduce(maxima.view(torch.int32), "max", ranks.group))
    return bits.view(torch.float32)


def amax_of(values: torch.Tensor) -> torch.Tensor:
    """max |x|, float32 of one element; 0 of none."""
    if values.numel() == 0:
        return torch.zeros(1, dtype=torch.float32, device=values.device)
    values = values.detach()
    return torch.linalg.vector_norm(values, float("inf"), dtype=torch.float32).reshape(1)

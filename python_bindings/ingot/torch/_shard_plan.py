"""The casts of shards in a few launches, into memory that stays from step to step."""

from __future__ import annotations

import math
from typing import Callable, List, NamedTuple, Optional, Sequence

import torch

from .. import _core
from ._errors import LinearError
from ._gathered_weight import Casts, is_shared, scale_inv_count
from ._layers import context_name
from ._operators import HIGH_PRECISION
from ._shard_casts import ShardCast, rows_of

class Part(NamedTuple):
    """One side of a weight's cast: a shard's values (n, K), or (n, N, K) of n experts, contiguous, how they are cast, for forward
    (0) or backward (1), the dtype that they are rounded to first, or None, and how many rows or experts a rank sends, n or
    more."""

    values: torch.Tensor
    casts: Casts
    side: int
    dtype: Optional[torch.dtype]
    rows: int

    @property
    def kind(self) -> str:
        return self.casts.kind(self.side == 1)

    @property
    def is_shared(self) -> bool:
        """Are its scales those of all ranks?"""
        return is_shared(self.kind, self.values.dim())

    @property
    def key(self) -> tuple:
        return self.values.data_ptr(), rows_of(self.values), self.values.dtype, *self[1:]


class _Place(NamedTuple):
    """Where a part's numbers begin: its maxima and scales in one vector, its scale_inv and its codes in others."""

    amax: int
    scale_inv: int
    codes: int


def _aligned(count: int) -> int:
    return -(-count // 256) * 256


class _Codes(NamedTuple):
    """Where the cast of a part writes, and what it reads besides the values: tensors of all its matrices."""

    kind: str
    codes: torch.Tensor
    amax: torch.Tensor
    scales: torch.Tensor
    scale_inv: torch.Tensor

    def of_matrix(self, at: int, size: int, scales: int) -> _core.TorchShardCodes:
        """size: the elements of a matrix; scales: how many of these it has."""
        floats = (each.data_ptr() + 4 * at * scales for each in (self.amax, self.scales, self.scale_inv))
        return _core.TorchShardCodes(self.kind, self.codes.data_ptr() + at * size, *floats)


def _shards(part: Part, sets: Sequence[_Codes]) -> List[_core.TorchShard]:
    """A shard's matrices: one, or each expert's."""
    rounds = part.dtype is not None and part.dtype != part.values.dtype
    rounded = HIGH_PRECISION[part.dtype] if rounds else ""
    rest = (rounded, str(part.casts.dtype).removeprefix("torch.float8_"), part.casts.pow2)
    values, dtype, (*experts, rows, columns) = part.values, HIGH_PRECISION[part.values.dtype], part.values.shape
    made = []
    for at in range(math.prod(experts)):
        of_matrix = [each.of_matrix(at, rows * columns, scale_inv_count(each.kind, rows, columns)) for each in sets]
        data = values.data_ptr() + at * rows * columns * values.element_size()
        made.append(_core.TorchShard(data, dtype, rows, columns, *rest, of_matrix))
    return made


class ShardPlan:
    """Casts the parts, again and again. Each has a ShardCast's tensors, which are written in place; parts of one weight that
    have the same `cast` share it. ranks: as many as columns are sent by parts of."""

    @torch.inference_mode(False)  # later steps write what is made in whatever mode
    def __init__(self, parts: Sequence[Part], casts: Sequence[ShardCast], ranks: int) -> None:
        self.key = tuple(part.key for part in parts)
        self._casts = tuple({id(cast): cast for cast in casts}.values())
        device = parts[0].values.device
        for part in parts:
            if part.rows < part.values.shape[0]:
                raise LinearError(f"a shard of {part.values.shape[0]} rows cannot be sent as {part.rows} rows")
        counts = [scale_inv_count(part.kind, *part.values.shape) for part in parts]
        # The maxima that ranks reduce come first.
        order = sorted(range(len(parts)), key=lambda at: not parts[at].is_shared)
        places: List[Optional[_Place]] = [None] * len(parts)
        floats = inverse = codes = 0
        self._shared = 0
        for at in order:
            part = parts[at]
            places[at] = _Place(floats, inverse, codes)
            floats += counts[at]
            sent = -(-counts[at] // ranks) * ranks if part.is_shared and part.kind == "col" else counts[at]
            inverse += -(-sent // 4) * 4  # cuBLASLt reads them at multiples of 16 bytes
            codes += _aligned(part.rows * math.prod(part.values.shape[1:]))
            if part.is_shared:
                self._shared = floats
        f32 = {"dtype": torch.float32, "device": device}
        self._amax, self._scales = torch.zeros(floats, **f32), torch.ones(floats, **f32)
        self._scale_inv = torch.zeros(inverse, **f32)
        self._codes = torch.zeros(codes, dtype=torch.uint8, device=device)
        self._delayed: List[slice] = []
        sets: dict = {}  # of each shard
        for part, place, count, cast in zip(parts, places, counts, casts):
            rows, *sizes = part.values.shape
            sent = -(-count // ranks) * ranks if part.is_shared and part.kind == "col" else count
            amax = self._amax[place.amax : place.amax + count]
            scales = self._scales[place.amax : place.amax + count]
            scale_inv = self._scale_inv[place.scale_inv : place.scale_inv + sent]
            bytes_ = self._codes[place.codes : place.codes + part.rows * math.prod(sizes)].view(part.rows, *sizes)
            cast.scales[part.side] = scales.view(()) if part.is_shared and part.kind == "tensor" else scales
            cast.scale_inv[part.side] = scale_inv
            cast.bytes[part.side] = bytes_
            cast.codes[part.side] = bytes_[:rows].view(part.casts.dtype)
            if part.casts.delayed:
                self._delayed.append(slice(place.amax, place.amax + 1))
            sets.setdefault(id(cast), (part, []))[1].append(_Codes(part.kind, bytes_, amax, scales, scale_inv))
        self._own = torch.zeros(len(self._delayed), **f32)
        delayed = (cast for part, cast in zip(parts, casts) if part.casts.delayed)
        for at, cast in enumerate(delayed):
            cast.amax = self._own[at : at + 1]
        shards = [shard for part, of_codes in sets.values() for shard in _shards(part, of_codes)]
        self._native = _core.TorchShardCasts(context_name(device), shards)

    def run(self, reduced: Optional[Callable], delayed_scales: Sequence[torch.Tensor] = ()) -> None:
        """reduced(maxima) -> those of all ranks, of maxima in int32, whose order is that of the floats, and in which NaN is the
        largest; None where there is one rank. delayed_scales: of the parts that have such, in their order."""
        for cast in self._casts:
            cast.writes += 1
        self._native.amax()
        if self._delayed:
            torch.stack([self._amax[each] for each in self._delayed], out=self._own.view(-1, 1))
        if reduced is not None and self._shared:
            shared = self._amax[: self._shared].view(torch.int32)
            shared.copy_(reduced(shared))
        self._native.scales()
        if delayed_scales:
            known = torch.stack([each.reshape(()) for each in delayed_scales]).to(self._scales.device)
            made = (known > 0) & torch.isfinite(known) & (known != 1)
            for at, where in enumerate(self._delayed):
                slot = self._scales[where]
                slot.copy_(torch.where(made[at : at + 1], known[at : at + 1], slot))
        self._native.cast()

"""The maxima and scales of shards, and their codes, each in a few launches, into memory that stays from step to step."""

from __future__ import annotations

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _core
from ._errors import LinearError
from ._gathered_weight import Casts, is_shared, scale_inv_count
from ._layers import context_name
from ._operators import HIGH_PRECISION
from ._shard_casts import OwnScale, ShardCast, codes_of, rounded, rows_of


class Part(NamedTuple):
    """One side of a weight's cast: a shard's values (n, K), or (n, N, K) of n experts, contiguous, how they are cast, for forward
    (0) or backward (1), the dtype that they are rounded to first, or None, how many rows or experts a rank sends, n or more, and
    how many the whole weight has. others: the ranks that have other parts of a weight that tensor parallelism divides, whose
    maxima its scale is of, too: meshes, each with its dimension."""

    values: torch.Tensor
    casts: Casts
    side: int
    dtype: Optional[torch.dtype]
    rows: int
    whole: int
    others: Tuple[Tuple[Any, int], ...] = ()

    @property
    def kind(self) -> str:
        return self.casts.kind(self.side == 1)

    @property
    def is_shared(self) -> bool:
        """Are its scales those of all ranks, and not of this rank's rows?"""
        return is_shared(self.kind, self.values.dim())

    @property
    def has_one_scale(self) -> bool:
        return self.is_shared and self.kind == "tensor"

    @property
    def bytes(self) -> int:
        """Of the codes that a rank sends."""
        return self.rows * math.prod(self.values.shape[1:])

    def scale_inv_count(self, rows: int) -> int:
        """Of so many of its rows or experts."""
        return scale_inv_count(self.kind, rows, *self.values.shape[1:])

    @property
    def key(self) -> tuple:
        return self.values.data_ptr(), rows_of(self.values), self.values.dtype, *self[1:]


def _aligned(count: int, to: int) -> int:
    return -(-count // to) * to


class _Codes(NamedTuple):
    """What the cast of a part reads besides the values, and where it writes: tensors of all its matrices."""

    kind: str
    own: OwnScale
    codes: Optional[torch.Tensor] = None
    scale_inv: Optional[torch.Tensor] = None

    def of_matrix(self, at: int, size: int, scales: int) -> _core.TorchShardCodes:
        """size: the elements of a matrix; scales: how many of these it has."""
        codes = None if self.codes is None else self.codes.data_ptr() + at * size
        floats = (0 if each is None else each.data_ptr() + 4 * at * scales for each in (*self.own, self.scale_inv))
        return _core.TorchShardCodes(self.kind, codes, *floats)


def _native_of(parts: Sequence[Part], sets: Sequence[Sequence[_Codes]]) -> _core.TorchShardCasts:
    """A shard's matrices: one, or each expert's."""
    made = []
    for part, of_part in zip(parts, sets):
        rounds = part.dtype is not None and part.dtype != part.values.dtype
        rounded = HIGH_PRECISION[part.dtype] if rounds else ""
        rest = (rounded, str(part.casts.dtype).removeprefix("torch.float8_"), part.casts.pow2)
        values, dtype, (*experts, rows, columns) = part.values, HIGH_PRECISION[part.values.dtype], part.values.shape
        for at in range(math.prod(experts)):
            of_matrix = [each.of_matrix(at, rows * columns, scale_inv_count(each.kind, rows, columns)) for each in of_part]
            data = values.data_ptr() + at * rows * columns * values.element_size()
            made.append(_core.TorchShard(data, dtype, rows, columns, *rest, of_matrix))
    return _core.TorchShardCasts(context_name(parts[0].values.device), made)


class ShardPlan:
    """Finds the scales of the parts, again and again. Each has a ShardCast's tensors, which are written in place; parts of one
    weight that have the same `cast` share it. ranks: how many share each weight's rows.

    Maxima, scales and scale_inv have the same order: one element for each weight with one scale, by the `others` that it is asked
    of, then those of columns, then those of this rank's rows, blocks and experts, as many of each weight as the longest shard has,
    which ranks send to each other.
    """

    @torch.inference_mode(False)  # later steps write what is made in whatever mode
    def __init__(self, parts: Sequence[Part], casts: Sequence[ShardCast], ranks: int) -> None:
        self.key = tuple(part.key for part in parts)
        self._casts = tuple({id(cast): cast for cast in casts}.values())
        for part in parts:
            if part.rows < part.values.shape[0]:
                raise LinearError(f"a shard of {part.values.shape[0]} rows cannot be sent as {part.rows} rows")
        all_others = list(dict.fromkeys(part.others for part in parts))
        place_of = lambda part: (0, all_others.index(part.others)) if part.has_one_scale else (1 if part.is_shared else 2, 0)
        order = sorted(enumerate(zip(parts, casts)), key=lambda each: place_of(each[1][0]))
        places, sizes = [], []  # of each, in the order
        floats = self._ones = self._shared = 0
        for _, (part, _) in order:
            places.append(floats)
            sizes.append(part.scale_inv_count(part.values.shape[0] if part.is_shared else part.rows))
            is_read = not part.has_one_scale and (part.is_shared or ranks == 1)
            floats += _aligned(sizes[-1], 4) if is_read else sizes[-1]  # cuBLASLt reads at multiples of 16 bytes
            if part.has_one_scale:
                self._ones = floats
            if part.is_shared:
                self._shared = floats
        self._asked = {(): slice(0, self._shared)} if ranks > 1 and self._shared else {}  # whose maxima, of which ranks
        for (_, (part, _)), place in zip(order, places):
            if part.others:
                begin = self._asked.get(part.others, slice(place, place)).start
                self._asked[part.others] = slice(begin, place + 1)
        f32 = {"dtype": torch.float32, "device": parts[0].values.device}
        self._amax, self._scales = torch.zeros(floats, **f32), torch.ones(floats, **f32)
        self._one_inv, self._scale_inv = torch.zeros(self._ones, 4, **f32), torch.zeros(floats - self._ones, **f32)
        self._received: List[torch.Tensor] = []  # scale_inv of rows, blocks and experts, of all ranks
        self._split: List[int] = []
        delayed = []
        sets: dict = {}  # of each shard
        for (at, (part, cast)), place, size in zip(order, places, sizes):
            count = part.scale_inv_count(part.values.shape[0])
            own = OwnScale(self._amax[place : place + count], self._scales[place : place + count])
            cast.own[part.side] = own
            cast.scales[part.side] = own.scale.view(()) if part.has_one_scale else own.scale
            cast.scale_inv[part.side] = self._inverse(part, place, size, ranks)
            if part.casts.delayed:
                delayed.append((at, place, cast))
            sets.setdefault(id(cast), (part, []))[1].append(_Codes(part.kind, own))
        delayed.sort(key=lambda each: each[0])  # as they are given
        self._delayed = [slice(place, place + 1) for _, place, _ in delayed]
        self._own = torch.zeros(len(delayed), **f32)
        for at, (*_, cast) in enumerate(delayed):
            cast.amax = self._own[at : at + 1]
        self._native = _native_of(*zip(*sets.values()))

    def _inverse(self, part: Part, place: int, size: int, ranks: int) -> torch.Tensor:
        """The memory of a part's scale_inv, those of the whole weight."""
        if part.has_one_scale:
            return self._one_inv[place, :1]
        mine = self._scale_inv[place - self._ones :][:size]
        if part.is_shared:
            return mine
        count = part.scale_inv_count(part.whole)
        if ranks == 1:
            return mine[:count]
        self._received.append(torch.zeros(ranks, size, dtype=mine.dtype, device=mine.device))
        self._split.append(size)
        return self._received[-1].view(-1)[:count]

    @property
    def asks(self) -> bool:
        """Do ranks reduce maxima, or send each other scale_inv?"""
        return bool(self._asked) or bool(self._received)

    def run(self, ranks: "Asks", delayed_scales: Sequence[torch.Tensor] = ()) -> None:
        """delayed_scales: of the parts that have such, in their order."""
        for cast in self._casts:
            cast.writes += 1
        self._native.amax()
        if self._delayed:
            torch.stack([self._amax[each] for each in self._delayed], out=self._own.view(-1, 1))
        for others, where in self._asked.items():
            maxima = self._amax[where].view(torch.int32)
            maxima.copy_(ranks.largest(maxima, others))
        self._native.scales()
        if delayed_scales:
            known = torch.stack([each.reshape(()) for each in delayed_scales]).to(self._scales.device)
            made = (known > 0) & torch.isfinite(known) & (known != 1)
            for at, where in enumerate(self._delayed):
                slot = self._scales[where]
                slot.copy_(torch.where(made[at : at + 1], known[at : at + 1], slot))
        if self._ones:
            torch.reciprocal(self._scales[: self._ones], out=self._one_inv[:, 0])
        if self._scale_inv.numel():
            torch.reciprocal(self._scales[self._ones :], out=self._scale_inv)
        if self._received:
            of_ranks = ranks.gathered(self._scale_inv[self._shared - self._ones :])
            of_ranks = of_ranks.view(-1, sum(self._split)).to(self._scale_inv.device)
            torch.split_with_sizes_copy(of_ranks, self._split, 1, out=self._received)


class Asks(NamedTuple):
    """What ranks ask each other. largest(maxima, others) -> those of all ranks that share the rows, or of the others (Part), of
    maxima in int32, whose order is that of the floats, and in which NaN is the largest; gathered(scale_inv) -> the vectors of all
    ranks that share the rows, one after the other."""

    largest: Callable[[torch.Tensor, Tuple[Tuple[Any, int], ...]], torch.Tensor]
    gathered: Callable[[torch.Tensor], torch.Tensor]


class CodesPlan:
    """Casts parts whose scales are known, again and again. codes: of each part, uint8, as many rows or experts as a
    rank sends, in `memory`, which others may write in between; those besides its own hold anything."""

    @torch.inference_mode(False)
    def __init__(self, parts: Sequence[Part], casts: Sequence[ShardCast], memory: torch.Tensor) -> None:
        self.memory, self.casts = memory, casts
        self.codes: List[torch.Tensor] = []
        at = 0
        for part in parts:
            self.codes.append(memory[at : at + part.bytes].view(part.rows, *part.values.shape[1:]))
            at += _aligned(part.bytes, 256)
        all_of = list(zip(parts, casts, self.codes))
        self._given = [each for each in all_of if each[1].own[each[0].side] is None]
        found = [each for each in all_of if each[1].own[each[0].side] is not None]
        counts = [part.scale_inv_count(part.values.shape[0]) for part, *_ in found]
        # Each cast writes its scale_inv too, which are there already: others may be reading those.
        self._unread = torch.empty(sum(counts), dtype=torch.float32, device=memory.device)
        of_each = zip(found, self._unread.split(counts))
        sets = [[_Codes(part.kind, cast.own[part.side], codes, inverse)] for (part, cast, codes), inverse in of_each]
        self._native = _native_of([part for part, *_ in found], sets) if found else None

    @staticmethod
    def size(parts: Sequence[Part]) -> int:
        """The bytes of memory that the codes need."""
        return sum(_aligned(part.bytes, 256) for part in parts)

    def run(self) -> None:
        if self._native is not None:
            self._native.cast()
        for part, cast, codes in self._given:  # with a scale that a program has set
            scale, dtype = cast.scales[part.side], part.casts.dtype
            cast.scale_inv[part.side].copy_(scale.reciprocal().reshape(-1))
            codes[: part.values.shape[0]].view(dtype).copy_(codes_of(rounded(part.values, part.dtype), scale, dtype))

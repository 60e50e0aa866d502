"""What is known in FP8 of a rank's shard of a weight."""

from __future__ import annotations

import weakref
from typing import Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch.distributed.tensor import DTensor

from ._fsdp_units import Unit


# ---- what is known of a shard ----


_PAIRS = ("kept", "own", "scale_inv", "scales")


class OwnScale(NamedTuple):
    """The maxima and scales of the extents of this rank's shard, float32, in memory that a plan writes."""

    amax: torch.Tensor
    scale: torch.Tensor


class ShardCast:
    """How a shard is cast to FP8, for forward (index 0) and backward (1), None where that is not known.

    A scale is what values are multiplied by, float32; `own` are those of the shard's elements, None of a scale that a program has
    set. scale_inv: of the whole weight. The codes are made when a gather asks for them, and not kept, but of shards that are
    offloaded: those are `kept`, uint8 with the rows, or experts, that a rank sends. amax: of delayed scales, max |x| of the shard. dtype: what
    the values are rounded to before. rows: the shape of the shard, and where it begins in the memory that aliases share. writes:
    how often a plan has written them, in place.
    """

    __slots__ = ("amax", "dtype", "kept", "own", "rows", "scale_inv", "scales", "writes")

    def __init__(self, dtype: Optional[torch.dtype], rows: tuple) -> None:
        self.dtype, self.rows = dtype, rows
        for name in _PAIRS:
            setattr(self, name, [None, None])
        self.amax: Optional[torch.Tensor] = None
        self.writes = 0

    def scale_alone(self, rows: tuple) -> "ShardCast":
        """For a copy of the weight: its scale, if it has one. A plan writes scales and scale_inv in place in each step, and the
        copy keeps its values."""
        new = ShardCast(self.dtype, rows)
        new.scales = [each.clone() if each is not None and each.dim() == 0 else None for each in self.scales]
        return new

    def to(self, device: torch.device, rows: tuple) -> "ShardCast":
        """On another device."""
        new = ShardCast(self.dtype, rows)
        for name in ("kept", "scale_inv", "scales"):
            setattr(new, name, [None if each is None else each.to(device) for each in getattr(self, name)])
        new.amax = None if self.amax is None else self.amax.to(device)
        return new

    def of(self, rows: tuple, dtype: Optional[torch.dtype]) -> "ShardCast":
        """What holds for other rows of the same weight: the scales of one element, which are the whole weight's."""
        if rows == self.rows and dtype == self.dtype:
            return self
        new = ShardCast(dtype, rows)
        if dtype == self.dtype:
            for name in ("scales", "scale_inv"):
                one = [scale is not None and scale.dim() == 0 for scale in self.scales]
                setattr(new, name, [each if is_one else None for each, is_one in zip(getattr(self, name), one)])
        return new


def rows_of(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()


class _Versions:
    """The versions of tensors, which grow with each write. FSDP asks for them for every weight in every gather: a tensor is looked
    at once, and one of inference mode, which has no version, never. FSDP's parameters are not kept alive: they hold the weight
    whose cast this watches, and neither would ever be freed."""

    __slots__ = ("_parameters", "_tensors")

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors: List[tuple] = []
        self._parameters: List[tuple] = []
        seen: List[int] = []
        for each in tensors:
            if id(each) in seen or each.is_inference():
                continue
            seen.append(id(each))
            if isinstance(each, DTensor):
                self._parameters.append((weakref.ref(each), each._version))
            else:
                self._tensors.append((each, each._version))

    def are_the_same(self) -> bool:
        """False also once a parameter is gone."""
        for tensor, version in self._tensors:
            if tensor._version != version:
                return False
        for found, version in self._parameters:
            parameter = found()
            if parameter is None or parameter._version != version:
                return False
        return True


_NOTHING = _Versions(())  # so that each write need not make another


class Known:
    """What is known of the weight in one memory. All its aliases share one of these, and a write through any of them
    clears it.

    `outside` is the tensor that the weight was made of, which a program may write too. Tensors that compiled code may
    write past the class, or other code, are watched by their versions.
    """

    __slots__ = ("_cast", "_dtype", "_outside", "_watched", "_writes", "is_zero", "keeps", "layer", "unit")

    def __init__(self, outside: Optional[torch.Tensor]) -> None:
        self._outside = outside
        self.keeps = True  # False once a program may write the memory unseen
        self.unit: Optional[Unit] = None
        self.layer: Optional[Tuple[weakref.ref, int]] = None  # with delayed scales, and the weight's place in it
        self.written()

    def written(self) -> None:
        self.is_zero = False  # is it memory of zeros, to which FSDP pads a shard?
        self._writes = 0
        self._cast: Optional[ShardCast] = None
        self._dtype: Optional[torch.dtype] = None
        self._watched = _NOTHING

    def give(self, cast: Optional[ShardCast], dtype: torch.dtype, *aliases: torch.Tensor) -> None:
        self.written()
        if cast is not None and self.keeps:
            self._cast, self._dtype, self._writes = cast, dtype, cast.writes
            self._watched = _Versions(aliases if self._outside is None else (*aliases, self._outside))

    def cast_of(self, dtype: torch.dtype) -> Optional[ShardCast]:
        cast = self._cast
        if cast is not None and (cast.writes != self._writes or not self._watched.are_the_same()):
            self.written()
        return self._cast if dtype == self._dtype else None

    def __deepcopy__(self, memo: dict) -> "Known":
        new = Known(None)
        cast = None if self._dtype is None else self.cast_of(self._dtype)
        if cast is not None:
            new._cast, new._dtype = cast.scale_alone(cast.rows), self._dtype
        return new


# ---- with a scale that is given ----


def rounded(values: torch.Tensor, dtype: Optional[torch.dtype]) -> torch.Tensor:
    """The values as a gather in high precision would send them."""
    return values if dtype is None or dtype == values.dtype else values.to(dtype)


def codes_of(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """saturate(values * scale) of one scale."""
    largest = torch.finfo(dtype).max
    return (values.to(torch.float32) * scale).clamp(-largest, largest).to(dtype)

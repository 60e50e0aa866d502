"""What is known in FP8 of a rank's shard of a weight."""

from __future__ import annotations

import weakref
from typing import Iterable, List, Optional, Tuple

import torch
from torch.distributed.tensor import DTensor

from ._fsdp_units import Unit


# ---- what is known of a shard ----


_PAIRS = ("bytes", "codes", "scale_inv", "scales", "whole")


def _codes_in(codes: Optional[torch.Tensor], sent: Optional[torch.Tensor], device: torch.device) -> Optional[torch.Tensor]:
    if codes is None or sent is None:
        return None if codes is None else codes.to(device)
    return sent[: codes.shape[0]].view(codes.dtype)


class ShardCast:
    """A shard in FP8: scales, scale_inv and codes for forward (index 0) and backward (1), None where they are not made.

    A scale is what values are multiplied by, float32; of columns, scale_inv may have more than there are. codes: float8 (n, K),
    or (n, N, K) of experts; `bytes` the same as uint8, with the rows of zeros, or experts, that a rank sends besides; None of a
    scale that a program has set. `whole` are the scale_inv of the whole weight, where it is made of rows, blocks or experts and
    they are not sent with the codes. amax:
    of delayed scales, max |x| of the shard. dtype: what the values are rounded to before. rows: the shape of the shard, and where
    it begins in the memory that aliases share. precomputed: were all ranks asked, for all weights? Then `sent` is what
    fsdp_pre_all_gather() has returned for forward and for backward. writes: how often a plan has written them, in place.
    """

    __slots__ = ("amax", "bytes", "codes", "dtype", "precomputed", "rows", "scale_inv", "scales", "sent", "whole", "writes")

    def __init__(self, dtype: Optional[torch.dtype], rows: tuple) -> None:
        self.dtype, self.rows = dtype, rows
        for name in _PAIRS:
            setattr(self, name, [None, None])
        self.amax: Optional[torch.Tensor] = None
        self.precomputed, self.writes = False, 0
        self.sent: List[Optional[tuple]] = [None, None]

    def scale_alone(self, rows: tuple) -> "ShardCast":
        """For a copy of the weight: its scale, if it has one. A plan writes codes, scales and scale_inv in place in each step,
        and the copy keeps its values."""
        new = ShardCast(self.dtype, rows)
        new.scales = [each.clone() if each is not None and each.dim() == 0 else None for each in self.scales]
        return new

    def to(self, device: torch.device, rows: tuple) -> "ShardCast":
        """On another device."""
        new = ShardCast(self.dtype, rows)
        for name in ("bytes", "scale_inv", "scales", "whole"):
            setattr(new, name, [None if each is None else each.to(device) for each in getattr(self, name)])
        new.codes = [_codes_in(*each) for each in zip(self.codes, new.bytes, (device, device))]
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
        watched = {id(each): each for each in tensors if not each.is_inference()}.values()
        self._tensors = [(each, each._version) for each in watched if not isinstance(each, DTensor)]
        self._parameters = [(weakref.ref(each), each._version) for each in watched if isinstance(each, DTensor)]

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

    __slots__ = ("_cast", "_dtype", "_outside", "_watched", "_writes", "is_zero", "layer", "plans", "unit")

    def __init__(self, outside: Optional[torch.Tensor]) -> None:
        self._outside = outside
        self.unit: Optional[Unit] = None
        self.layer: Optional[Tuple[weakref.ref, int]] = None  # with delayed scales, and the weight's place in it
        self.plans: List[Optional[tuple]] = [None, None]  # of casts of this weight alone: (ShardPlan, ShardCast)
        self.written()

    def written(self) -> None:
        self.is_zero = False  # is it memory of zeros, to which FSDP pads a shard?
        self._writes = 0
        self._cast: Optional[ShardCast] = None
        self._dtype: Optional[torch.dtype] = None
        self._watched = _NOTHING

    def give(self, cast: Optional[ShardCast], dtype: torch.dtype, *aliases: torch.Tensor) -> None:
        self.written()
        if cast is not None:
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

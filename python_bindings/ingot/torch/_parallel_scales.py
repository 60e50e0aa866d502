"""The scales of tensors of which several ranks have parts: of the largest maximum of all parts, or delayed."""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from ._codes import FLOAT8
from ._module_operators import masks_of
from ._ranks import Ranks, amax_of, largest_of
from ._scaled_linear import scale_of

# A format's name, and whether scales are powers of two.
Format = Tuple[str, bool]

_EXPONENT = 0x7F800000


def scale_of_maximum(amax: torch.Tensor, format: Format) -> torch.Tensor:
    """The scale of a dynamic cast, float32 of amax' shape."""
    name, pow2 = format
    scale = scale_of(amax, torch.finfo(FLOAT8[name]).max)
    if not pow2:
        return scale
    rounded = (scale.view(torch.int32) & _EXPONENT).view(torch.float32)
    return torch.where(scale.isnan(), scale, rounded)


class DelayedSlot(NamedTuple):
    """A tensor's delayed scale, float32 of one element, and the maximum that calls raise, which is None where none is
    noted. starts: an empty tensor that says by its sizes whether scales may be missing (starts_of()), of a module with one
    layer, in which this tensor has the bit `role`."""

    scale: torch.Tensor
    amax: Optional[torch.Tensor]
    starts: torch.Tensor
    role: int

    def note(self, amax: torch.Tensor) -> None:
        if self.amax is not None:
            self.amax.copy_(torch.maximum(self.amax, amax))

    def of_call(self, values: torch.Tensor, format: Format, ranks: Ranks) -> torch.Tensor:
        """The scale with which this rank's part is cast; the first one is that of the maximum of all parts."""
        if torch.compiler.is_compiling():
            return _delayed_scale(values.detach(), self.scale, self.starts, self.role, *format, ranks.group, ranks.size)
        return _scale_or_first(values, self.scale, self.starts, self.role, *format, lambda amax: largest_of(amax, ranks))


def _scale_or_first(values, scale, starts, role: int, name: str, pow2: bool, reduced) -> torch.Tensor:
    if not masks_of(starts)[0] >> role & 1:
        return scale
    first = scale_of_maximum(reduced(amax_of(values)), (name, pow2))
    # Which steps have made one the device knows; 1 is a scale that is not made (templates/scaling.cuh).
    has = (scale > 0) & (scale < float("inf")) & (scale != 1)
    return torch.where(has, scale, first)


# In a graph, which is the same before and after a tensor has its scale: the ranks' sizes of `starts` are the same, so that
# either all of them reduce or none.
_library = torch.library.Library("ingot", "FRAGMENT")
_library.define(
    "delayed_scale(Tensor values, Tensor scale, Tensor starts, int role, str format, bool pow2, str group, int ranks) -> Tensor"
)
_delayed_scale = torch.ops.ingot.delayed_scale.default


def _run(values, scale, starts, role, format, pow2, group, ranks):
    def reduced(amax: torch.Tensor) -> torch.Tensor:
        if ranks > 1:
            bits = amax.view(torch.int32)
            dist.all_reduce(bits, dist.ReduceOp.MAX, group=dist.distributed_c10d._resolve_process_group(group))
        return amax

    made = _scale_or_first(values, scale, starts, role, format, pow2, reduced)
    return made.clone() if made is scale else made


_library.impl("delayed_scale", _run, "CPU")
_library.impl("delayed_scale", _run, "CUDA")


@torch.library.register_fake("ingot::delayed_scale")
def _(values, scale, starts, role, format, pow2, group, ranks):
    return torch.empty_like(scale)

"""The step of delayed scaling: the maxima of this step enter the histories, and the next scales are made of those."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..torch._amax_ranks import largest_of_ranks
from ..torch._scale_buffers import is_time_to_look
from ..torch._scaled_linear import has_seen
from ._errors import Float8ValueError
from .float8_utils import EPS, _require_max, _round_scale_down_to_power_of_2
from .stateful_float8_linear import StatefulFloat8Linear

log = logging.getLogger(__name__)


@torch.no_grad()
def sync_float8_amax_and_scale_history(
    model: torch.nn.Module,
    fp8_layers: Optional[Sequence[torch.nn.Module]] = None,
    group: Any = None,
    *,
    reduce: bool = True,
) -> None:
    """Makes the scales of the next step from the maxima of this one; to be called once in every step, after backward.

    The maxima are those of the last forward and backward, as torchao's; a second call enters them again. A scale stays as
    it is where all of its history is 0. A tensor of which only zeros, or nothing finite, have been seen has no scale, and
    later steps do not know of it: forward and backward cast it with that of its own maximum. Which tensors have one is
    read in the calls 1, 2, 3, 16, 64, 256, and so on of a model in which some have none, and never after that.

    With torch.distributed the maxima are those of all ranks of `group`, a ProcessGroup or a DeviceMesh of one dimension;
    None is the default group: as ingot.nn.sync_amax_history() has it, with the same error where the ranks hold different
    layers. reduce=False reduces nothing. `fp8_layers`, from get_float8_layers(), saves the walk through the model. Layers
    without delayed scaling are passed over; without any layer there is a warning. Raises ValueError for layers with
    different scale functions.
    """
    layers = model.modules() if fp8_layers is None else fp8_layers
    delayed = [layer for layer in layers if isinstance(layer, StatefulFloat8Linear) and layer.has_any_delayed_scaling]
    if not delayed:
        log.warning("sync_float8_amax_and_scale_history: there is no layer with delayed scaling")
    functions = {layer.config.delayed_scaling_config.scale_fn_name for layer in delayed}
    if len(functions) > 1:
        raise Float8ValueError(f"All layers must have the same scale_fn recipe, got {sorted(functions)}")
    for function in functions:
        _require_max(function)
    reduces = reduce and dist.is_available() and dist.is_initialized()
    # Compiled layers do not note that they have run, and what has not run enters nothing.
    delayed = [layer for layer in delayed if not layer._buffers["fp8_amax_input"].is_meta]
    places = _places(delayed)
    groups = [list(alike) for _, alike in itertools.groupby(places, key=lambda place: place.kind)]
    stacks = [torch.stack([place.history for place in alike]) for alike in groups]
    waits = any(place.waits for place in places)
    amaxes = torch.cat([place.amax for place in places]) if places else None
    if waits:
        amaxes = _of_this_step(amaxes, places, torch.cat([has_seen(stack) for stack in stacks]))
    if reduces:
        joined = [] if amaxes is None else [amaxes]
        largest_of_ranks("sync_float8_amax_and_scale_history", model, delayed, joined, group)
        if places:
            torch._foreach_copy_([place.amax for place in places], list(amaxes.split(1)))
    if not places:
        return
    of_groups = amaxes.split([len(alike) for alike in groups])
    largest = [_update(*each) for each in zip(groups, stacks, of_groups)]
    if waits:
        _look([layer for layer in delayed if not layer.is_amax_initialized], places, largest)


class _Place(NamedTuple):
    """One tensor's buffers, its format, and what its history must have in common with others to be stacked."""

    amax: torch.Tensor
    history: torch.Tensor
    scale: torch.Tensor
    dtype: torch.dtype
    kind: Tuple[int, bool]  # the history's length, and whether scales are rounded to powers of two
    waits: bool  # it may have no scale yet
    layer: StatefulFloat8Linear
    role: int


def _places(layers: List[StatefulFloat8Linear]) -> List[_Place]:
    """Those of all layers, kinds and formats together. Buffers are read from the dict that has them: for a hundred layers
    nn.Module's way to them takes longer than all operations."""
    places = []
    for layer in layers:
        buffers, config = layer._buffers, layer.config
        kind = (config.delayed_scaling_config.history_len, config.round_scales_to_power_of_2)
        for at, (role, cast) in enumerate(layer._casts()):
            of_role = [buffers[f"fp8_{name}_{role}"] for name in ("amax", "amax_history", "scale")]
            places.append(_Place(*of_role, cast.target_dtype, kind, not layer._started[at], layer, at))
    return sorted(places, key=lambda place: (place.kind, str(place.dtype)))


def _of_this_step(amaxes: torch.Tensor, places: List[_Place], seen: torch.Tensor) -> torch.Tensor:
    """The maxima without those of tensors that have no scale and that nothing has been seen of in this step either: FP8_MAX,
    which the buffer begins with, or what is not finite."""
    waits = torch.tensor([place.waits for place in places])
    initial = torch.tensor([torch.finfo(place.dtype).max for place in places]).masked_fill_(~waits, -1.0)
    initial = initial.to(amaxes.device, non_blocking=True)
    keeps = seen | (initial < 0) | (torch.isfinite(amaxes) & (amaxes != initial))
    return torch.where(keeps, amaxes, 0.0)


def _update(places: List[_Place], stack: torch.Tensor, amaxes: torch.Tensor) -> torch.Tensor:
    """Of one kind. Returns the largest maxima of the new histories."""
    histories = [place.history for place in places]
    earlier = stack[:, :-1]
    if stack.shape[1] > 1 and any(place.waits for place in places):
        # A history that begins has its first maximum twice: also as that of the step before, which made the first scale.
        earlier[:, 0].copy_(torch.where(has_seen(stack), stack[:, 0], amaxes))
    stack = torch.cat([amaxes.unsqueeze(1), earlier], dim=1)
    largest = torch.amax(stack, dim=1)
    # The arithmetic of amax_to_scale(), for all formats at once.
    scales = largest.double().clamp_(min=EPS).reciprocal_()
    counts = Counter(place.dtype for place in places)
    for part, dtype in zip(scales.split(list(counts.values())), counts):
        part.mul_(torch.finfo(dtype).max)
    scales = scales.float()
    if places[0].kind[1]:
        scales = _round_scale_down_to_power_of_2(scales)
    scales = torch.where(largest == 0, torch.cat([place.scale for place in places]), scales)
    new = [*stack.unbind(), *scales.split(1)]
    torch._foreach_copy_([*histories, *(place.scale for place in places)], new)
    return largest


def _look(layers: List[StatefulFloat8Linear], places: List[_Place], largest: List[torch.Tensor]) -> None:
    """Looks which scales are there now, at times."""
    for layer in layers:
        layer._syncs += 1
    due = {id(layer) for layer in layers if is_time_to_look(layer._syncs)}
    if not due or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return
    found: dict = {}
    for place, value in zip(places, torch.cat(largest).tolist()):
        found.setdefault(id(place.layer), [False] * 3)[place.role] = value != 0
    for layer in layers:
        if id(layer) in due:
            layer._note_started(found[id(layer)])

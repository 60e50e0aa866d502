"""The step of delayed scaling: the maxima of this step enter the histories, and the next scales are made of those."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ._errors import Float8ValueError
from .float8_utils import EPS, _require_max, _round_scale_down_to_power_of_2, largest_of_ranks
from .stateful_float8_linear import StatefulFloat8Linear

log = logging.getLogger(__name__)


@torch.no_grad()
def sync_float8_amax_and_scale_history(
    model: torch.nn.Module, fp8_layers: Optional[Sequence[torch.nn.Module]] = None
) -> None:
    """Makes the scales of the next step from the maxima of this one; to be called in every step, after backward.

    With torch.distributed the maxima are those of all ranks, by one all-reduce. `fp8_layers`, from get_float8_layers(),
    saves the walk through the model. Layers without delayed scaling are passed over; without any layer there is a
    warning. Raises ValueError for layers with different scale functions.
    """
    layers = model.modules() if fp8_layers is None else fp8_layers
    delayed = [layer for layer in layers if isinstance(layer, StatefulFloat8Linear) and layer.has_any_delayed_scaling]
    if not delayed:
        log.warning("sync_float8_amax_and_scale_history: there is no layer with delayed scaling")
        return
    functions = {layer.config.delayed_scaling_config.scale_fn_name for layer in delayed}
    if len(functions) != 1:
        raise Float8ValueError(f"All layers must have the same scale_fn recipe, got {sorted(functions)}")
    _require_max(*functions)
    places = _places(delayed)
    amaxes = _reduced([place.amax for place in places])
    for (_, rounded), group in _alike(places).items():
        _update([places[at] for at in group], amaxes if len(group) == len(places) else amaxes[group], rounded)
    for layer in delayed:
        if not layer.is_amax_initialized:
            layer.is_amax_initialized = True


class _Place(NamedTuple):
    """One tensor's buffers, its format, and what its history must have in common with others to be stacked."""

    amax: torch.Tensor
    history: torch.Tensor
    scale: torch.Tensor
    dtype: torch.dtype
    kind: Tuple[int, bool]  # the history's length, and whether scales are rounded to powers of two


def _places(layers: List[StatefulFloat8Linear]) -> List[_Place]:
    """Those of all layers, formats together. Buffers are read from the dict that has them: for a hundred layers
    nn.Module's way to them takes longer than all operations."""
    places = []
    for layer in layers:
        buffers, config = layer._buffers, layer.config
        kind = (config.delayed_scaling_config.history_len, config.round_scales_to_power_of_2)
        for role, cast in layer._casts():
            of_role = [buffers[f"fp8_{name}_{role}"] for name in ("amax", "amax_history", "scale")]
            places.append(_Place(*of_role, cast.target_dtype, kind))
    return sorted(places, key=lambda place: str(place.dtype))


def _reduced(amaxes: List[torch.Tensor]) -> torch.Tensor:
    """The maxima side by side; with torch.distributed those of all ranks, which the buffers then have, too."""
    joined = torch.cat(amaxes)
    if dist.is_initialized():
        joined = largest_of_ranks(joined, list(range(dist.get_world_size())))
        torch._foreach_copy_(amaxes, list(joined.split(1)))
    return joined


def _alike(places: List[_Place]) -> Dict[Tuple[int, bool], List[int]]:
    """Groups the places whose histories can be stacked, so that the work is a few operations for all layers."""
    groups: Dict[Tuple[int, bool], List[int]] = defaultdict(list)
    for at, place in enumerate(places):
        groups[place.kind].append(at)
    return groups


def _update(places: List[_Place], amaxes: torch.Tensor, rounded: bool) -> None:
    histories = [place.history for place in places]
    stack = torch.cat([amaxes.unsqueeze(1), torch.stack(histories)[:, :-1]], dim=1)
    # The arithmetic of amax_to_scale(), for all formats at once.
    scales = torch.amax(stack, dim=1).double().clamp_(min=EPS).reciprocal_()
    counts = Counter(place.dtype for place in places)
    for part, dtype in zip(scales.split(list(counts.values())), counts):
        part.mul_(torch.finfo(dtype).max)
    scales = scales.float()
    if rounded:
        scales = _round_scale_down_to_power_of_2(scales)
    new = [*stack.unbind(), *scales.split(1)]
    torch._foreach_copy_([*histories, *(place.scale for place in places)], new)

"""The step of delayed scaling: the maxima of this step enter the histories, and the next scales are made of those."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ._errors import Float8ValueError
from .float8_utils import _round_scale_down_to_power_of_2, amax_history_to_scale_stack, largest_of_ranks
from .stateful_float8_linear import ROLES, StatefulFloat8Linear

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
    _reduce(delayed)
    for (dtype, _, rounded), places in _alike(delayed).items():
        _update(places, dtype, rounded, functions)
    for layer in delayed:
        layer.is_amax_initialized = True


Place = Tuple[StatefulFloat8Linear, str]


def _reduce(layers: List[StatefulFloat8Linear]) -> None:
    if not dist.is_initialized():
        return
    amaxes = [layer._of(role)[0] for layer in layers for role in ROLES]
    largest = largest_of_ranks(torch.cat(amaxes), list(range(dist.get_world_size())))
    torch._foreach_copy_(amaxes, list(largest.split(1)))


def _alike(layers: List[StatefulFloat8Linear]) -> Dict[tuple, List[Place]]:
    """Groups the tensors whose histories can be stacked, so that the work is a few operations for all layers."""
    groups: Dict[tuple, List[Place]] = defaultdict(list)
    for layer in layers:
        for role, cast in layer._casts():
            length = layer.config.delayed_scaling_config.history_len
            groups[cast.target_dtype, length, layer.config.round_scales_to_power_of_2].append((layer, role))
    return groups


def _update(places: List[Place], dtype: torch.dtype, rounded: bool, functions: set) -> None:
    buffers = [layer._of(role) for layer, role in places]
    amaxes, histories, scales = (list(each) for each in zip(*buffers))
    stack = torch.roll(torch.stack(histories), 1, dims=1)
    stack[:, 0] = torch.cat(amaxes)
    (function,) = functions
    new_scales = amax_history_to_scale_stack(stack, dtype, function)
    if rounded:
        new_scales = _round_scale_down_to_power_of_2(new_scales)
    torch._foreach_copy_(histories, list(stack.unbind()))
    torch._foreach_copy_(scales, list(new_scales.split(1)))

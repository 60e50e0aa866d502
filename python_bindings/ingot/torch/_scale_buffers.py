"""What modules with scales in buffers share: their conversion, and when they look which delayed scales have been made."""

from __future__ import annotations

import math
from typing import List, Sequence

import torch


def _buffers_of_scales(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer for name, buffer in module._buffers.items() if name.startswith("fp8_") and buffer is not None}


def keep_buffers_of_scales(module: torch.nn.Module, before: dict[str, torch.Tensor | None]) -> bool:
    """Gives a module's buffers of scales, named fp8_*, the float32 values from before its conversion, on the device that
    they have now: whatever converted them may have rounded them, or be to_empty(). before: the module's buffers then.
    False if they had no values, on meta, and now have memory."""
    for name, buffer in _buffers_of_scales(module).items():
        old = before[name]
        if buffer is old or buffer.is_meta:
            continue
        if old.is_meta:
            return False
        module._buffers[name] = old.to(buffer.device)
    return True


def as_buffers_of_scales(module: torch.nn.Module) -> None:
    """After load_state_dict(), which may have assigned tensors of the checkpoint: float32 and contiguous."""
    for name, buffer in _buffers_of_scales(module).items():
        if buffer.dtype != torch.float32 or not buffer.is_contiguous():
            module._buffers[name] = buffer.to(torch.float32).contiguous()


def has_scale(scale: float) -> bool:
    """As has_scale() of templates/scaling.cuh: 1 is a delayed scale that no maximum has made yet."""
    return 0 < scale < math.inf and scale != 1


def is_time_to_look(syncs: int) -> bool:
    """Is a step in which scales are missing one of those that look for them? Those are ever rarer, because the scales of
    some tensors never come: of an expert without tokens, or of a frozen weight of zeros."""
    return syncs <= 3 or (syncs >= 16 and syncs & (syncs - 1) == 0 and syncs.bit_length() % 2 == 1)


def read_scales(scales: Sequence[torch.Tensor]) -> List[List[float]]:
    """The values, read from each device once. None are read where they cannot be: while a graph is captured, say."""
    if not scales or not all(type(each) is torch.Tensor for each in scales):
        return []
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return []
    values = {}
    for device in {each.device for each in scales}:
        of_device = [each.reshape(-1) for each in scales if each.device == device]
        values[device] = iter(torch.cat(of_device).tolist())
    return [[next(values[each.device]) for _ in range(each.numel())] for each in scales]

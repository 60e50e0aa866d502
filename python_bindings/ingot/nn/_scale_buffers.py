"""What modules with scales in buffers share: their conversion, when they look which delayed scales have been made, and the
maxima over the ranks of a group, with a check that all ranks hold the same layers."""

from __future__ import annotations

import math
import weakref
import zlib
from typing import Any, List, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..torch._errors import LinearError


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


def computing_device(parameter: torch.Tensor) -> torch.device:
    """Its device, but of a shard that FSDP2 keeps on the CPU, where it offloads, that of the mesh."""
    if isinstance(parameter, DTensor) and not parameter.is_meta and parameter.device_mesh.device_type != parameter.device.type:
        return torch.device(parameter.device_mesh.device_type)
    return parameter.device


def has_scale(scale: float) -> bool:
    """As has_scale() of templates/scaling.cuh: 1 is a delayed scale that no maximum has made yet."""
    return 0 < scale < math.inf and scale != 1


def is_time_to_look(syncs: int) -> bool:
    """Should a step in which scales are missing look for them? Increasingly rarely, because some tensors never get one:
    those of an expert without tokens, or a frozen weight of zeros."""
    return syncs <= 3 or (syncs >= 16 and syncs & (syncs - 1) == 0 and syncs.bit_length() % 2 == 1)


def read_scales(scales: Sequence[torch.Tensor]) -> List[List[float]]:
    """Reads the values, from each device once. Reads none where that is impossible, such as while a graph is
    captured."""
    if not scales or not all(type(each) is torch.Tensor for each in scales):
        return []
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return []
    values = {}
    for device in {each.device for each in scales}:
        of_device = [each.reshape(-1) for each in scales if each.device == device]
        values[device] = iter(torch.cat(of_device).tolist())
    return [[next(values[each.device]) for _ in range(each.numel())] for each in scales]


# ---- over the ranks of a group ----

# What is reduced first, on every rank the same number of elements, whatever it holds: a collective whose sizes differ
# hangs or aborts. What exceeds it follows in another, when it is known that all ranks have that.
_FIRST = 4096
_HEAD = 4  # the number of layers, a hash of their names and sizes, and both negated: the maximum is so the minimum, too


class _Layers(NamedTuple):
    head: torch.Tensor
    padding: torch.Tensor
    checked: List[bool]  # not empty once all ranks are known to hold them


# By a model's first layer, and by what else makes them others.
_KNOWN: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def largest_of_ranks(
    who: str, model: torch.nn.Module, layers: Sequence[torch.nn.Module], amaxes: Sequence[torch.Tensor], group: Any
) -> bool:
    """Raises the maxima to the largest of all ranks of `group`: a ProcessGroup, a DeviceMesh, or None for the default
    group. The number of collectives and the size of the first depend on nothing that a rank has alone. Without
    torch.distributed there is nothing to do. Returns whether there was.

    Raises LinearError, before anything has changed, where the ranks' layers differ, on every rank that reads it: on the CPU
    always, on a GPU once for a model.
    """
    if not dist.is_available() or not dist.is_initialized():
        return False
    group = group.get_group() if hasattr(group, "get_group") else group
    if dist.get_rank(group) < 0:
        raise LinearError(f"{who} group: this rank is not in it: give the group that it is in, or reduce=False")
    if dist.get_world_size(group) == 1:
        return False
    device = _device_of(group, model, amaxes)
    count = sum(amax.numel() for amax in amaxes)
    known = _layers_of(model, layers, amaxes, (len(layers), count, device, id(group)))
    flat = [amax.reshape(-1).to(device) for amax in amaxes]
    joined = torch.cat([known.head, *flat, known.padding])
    dist.all_reduce(joined[:_FIRST], dist.ReduceOp.MAX, group=group)
    if device.type == "cpu" or not (known.checked or torch.cuda.is_current_stream_capturing()):
        _refuse_others(who, *joined[:_HEAD].tolist())
        known.checked.append(True)
    if joined.numel() > _FIRST:
        dist.all_reduce(joined[_FIRST:], dist.ReduceOp.MAX, group=group)
    if amaxes:
        parts = joined[_HEAD : _HEAD + count].split([amax.numel() for amax in amaxes])
        torch._foreach_copy_(list(amaxes), [part.view_as(amax) for part, amax in zip(parts, amaxes)])
    return True


def _device_of(group: Any, model: torch.nn.Module, amaxes: Sequence[torch.Tensor]) -> torch.device:
    """Where this rank joins the collective: where its maxima are; without any where its model computes; without parameters
    on its GPU, unless the group has none. What is on the CPU goes to the GPU if the group's backend takes nothing else."""
    first = next((each for each in model.parameters() if not each.is_meta), None)
    if amaxes:
        device = amaxes[0].device
    elif first is not None:
        device = computing_device(first)
    else:
        device = torch.device("cpu" if dist.get_backend(group) == "gloo" or not torch.cuda.is_available() else "cuda")
    if device.type == "cpu" and "cpu" not in str(dist.get_backend_config(group)):
        device = torch.device("cuda")
    is_current = device.type == "cuda" and device.index is None
    return torch.device("cuda", torch.cuda.current_device()) if is_current else device


def check_ranks_of_parts(who: str, layers: Sequence[torch.nn.Module], group: Any, reduce: bool) -> None:
    """Raises LinearError where several ranks divide a layer, whose parts have one scale, and not all of them are reduced over."""
    divided = {}
    for layer in layers:
        for part in (layer, *layer._modules.values()):
            division = getattr(part, "_division", None)
            if division is not None and division.ranks.size > 1:
                divided.setdefault(division.ranks.group, (layer, division))
    if not divided:
        return
    group = group.get_group() if hasattr(group, "get_group") else group
    group = dist.group.WORLD if group is None else group
    reduced = set(dist.get_process_group_ranks(group)) if reduce else set()
    for layer, division in divided.values():
        parts = dist.get_process_group_ranks(division.mesh.get_group())
        if not reduced.issuperset(parts):
            what = "reduce: is False" if not reduce else f"group: has the ranks {sorted(reduced)}"
            raise LinearError(
                f"{who} {what}, but the ranks {parts} divide {layer.options.subject}, and its parts have one scale: give a group "
                "that has all of them, or None for all ranks"
            )


def _layers_of(model: torch.nn.Module, layers: Sequence[torch.nn.Module], amaxes, key: tuple) -> _Layers:
    by_key = _KNOWN.setdefault(layers[0], {}) if layers else {}
    found = by_key.get(key)
    if found is None:
        count, slots, device, _ = key
        of_model = {id(layer) for layer in layers}
        names = [name for name, each in model.named_modules() if id(each) in of_model]
        text = repr((names, [tuple(amax.shape) for amax in amaxes]))
        hashed = zlib.crc32(text.encode()) & 0xFFFFFF  # exact in float32
        head = torch.tensor([count, -count, hashed, -hashed], dtype=torch.float32, device=device)
        padding = torch.zeros(max(0, _FIRST - _HEAD - slots), dtype=torch.float32, device=device)
        found = by_key[key] = _Layers(head, padding, [])
    return found


def _refuse_others(who: str, most: float, least: float, hashed: float, hashed_least: float) -> None:
    what = ""
    if most != -least:
        what = f"{-int(least)} with delayed scales on one, {int(most)} on another"
    elif hashed != -hashed_least:
        what = f"{int(most)} with delayed scales each, but of other names or sizes"
    if what:
        raise LinearError(
            f"{who}: the ranks hold different layers: {what}. Scales are made of the maxima of all ranks: give as group the "
            "ranks that hold the same layers, or reduce=False for layers that no other rank has"
        )

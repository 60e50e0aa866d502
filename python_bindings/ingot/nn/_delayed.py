"""Delayed scaling of ingot.nn's modules: each tensor is cast with a scale made of the maxima of earlier steps, which
saves the pass that finds its own maximum."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist

from ..torch import DelayedScales
from ..torch._checks import refuse
from ..torch._operators import sync_amax_history as sync_slots
from ..torch._scale_buffers import restore_float32

# FP8_MAX of each tensor's format: input, weight, grad_output.
_LARGEST = (448.0, 448.0, 57344.0)
_BUFFERS = ("fp8_amax", "fp8_amax_history", "fp8_scale")


class KeepsScales(torch.nn.Module):
    """A module whose recipe may be "delayed". Then it has buffers, float32 whatever it is converted to, for input, weight
    and grad_output of each of its layers: `fp8_amax` (layers, 3), the maxima since the last sync_amax_history();
    `fp8_amax_history` (layers, 3, history_length), those of earlier steps, the newest first; `fp8_scale` (layers, 3). A
    module that is one layer has them without the first dimension."""

    def _keep_scales(self, subject: str, history_length: int, layers: Optional[int] = None) -> None:
        """To be called when parameters and options are there. layers: None for a module that is one layer."""
        if not isinstance(history_length, int) or history_length < 1:
            refuse(subject, f"history_length: is {history_length!r}, expected a number of steps, 1 or more")
        self.history_length = history_length
        if self.options.recipe == "delayed":
            return self._make_buffers((3,) if layers is None else (layers, 3))
        for name in _BUFFERS:  # of a layer that had delayed scales, and is made anew without
            self._buffers.pop(name, None)

    def _make_buffers(self, sizes: tuple[int, ...]) -> None:
        device = next(self.parameters()).device
        self.register_buffer("fp8_amax", torch.zeros(sizes, device=device))
        self.register_buffer("fp8_amax_history", torch.zeros(*sizes, self.history_length, device=device))
        self.register_buffer("fp8_scale", torch.ones(sizes, device=device))
        self.scales_started = False
        self._has_run = False  # with gradients: until then there is nothing to make scales of
        self._of_formats: Optional[torch.Tensor] = None

    def _reset_scales(self) -> None:
        if is_delayed(self):
            self._make_buffers(tuple(self.fp8_amax.shape))

    def reset_parameters(self) -> None:
        """Initialises the parameters that the module has itself, as PyTorch's module of its kind does, and the buffers of
        delayed scales."""
        of_kind = getattr(super(), "reset_parameters", None)
        if of_kind is not None:
            of_kind()
        self._reset_scales()

    def _delayed(self) -> Optional[DelayedScales]:
        """For a call of the module's function; None of another recipe."""
        if self.options.recipe != "delayed":
            return None
        if self.fp8_amax.is_meta and not next(self.parameters()).is_meta:
            self._reset_scales()  # parameters came with a checkpoint that has no scales
        if not self._has_run and torch.is_grad_enabled():
            self._has_run = True
        return DelayedScales(self.fp8_scale, self.fp8_amax, not self.scales_started)

    def _formats(self, slots: int) -> torch.Tensor:
        """What sync_slots() takes of the formats of so many slots, kept for the next step. No buffer: no checkpoint is to
        hold it."""
        device = self._buffers["fp8_amax"].device
        kept = self._of_formats
        if kept is None or kept.device != device or kept.shape[1] != slots:
            kept = torch.zeros(2, slots, device=device)
            for at, largest in enumerate(_LARGEST):
                kept[0, at :: len(_LARGEST)].fill_(largest)
            self._of_formats = kept
        return kept

    def _apply(self, fn, recurse: bool = True):
        before = dict(self._buffers)
        result = super()._apply(fn, recurse)
        restore_float32(self, before)
        return result

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """Checkpoints load with and without the buffers, strictly too. The scales of one that has any go on; one that has
        the module's parameters alone begins anew."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        for keys in (missing, unexpected):
            keys[:] = [key for key in keys if not key.startswith(f"{prefix}fp8_")]
        if not is_delayed(self):
            return
        history = state_dict.get(f"{prefix}fp8_amax_history")
        if history is not None and not history.is_meta:
            self.scales_started = bool((history != 0).any())
        elif history is None and any(key.startswith(prefix) for key in state_dict):
            self._reset_scales()


def is_delayed(module: Any) -> bool:
    return isinstance(module, KeepsScales) and "fp8_amax" in module._buffers


@torch.no_grad()
def sync_amax_history(model: torch.nn.Module) -> None:
    """Makes the scales of the next step from the maxima of this one, for all modules of the model with delayed scales
    together; to be called in every step, after backward.

    The maxima enter the histories, and are cleared; a scale is FP8_MAX divided by the largest of its history, and stays
    as it is where all of that are 0. A maximum that is Inf or NaN counts as 0. With torch.distributed the maxima are those of
    all ranks, by one all-reduce, and a second one while there are modules that no rank has run with gradients yet. Until the
    first call behind that run every forward and backward takes the scales of its own tensors, as dynamic scaling does. A
    model without such modules is left as it is.
    """
    by_device: Dict[torch.device, List[KeepsScales]] = {}
    for module in model.modules():
        if is_delayed(module):
            by_device.setdefault(module._buffers["fp8_amax"].device, []).append(module)
    for modules in by_device.values():
        _sync_on_a_device(modules)


def _sync_on_a_device(modules: List[KeepsScales]) -> None:
    # Read from the dicts that have them: for a hundred layers nn.Module's way to them takes longer than all operations.
    buffers = [module._buffers for module in modules]
    amaxes = [each["fp8_amax"] for each in buffers]
    if dist.is_initialized():
        together = amaxes[0] if len(amaxes) == 1 else _joined(amaxes)
        dist.all_reduce(together, dist.ReduceOp.MAX)
        _share_runs([module for module in modules if not module.scales_started], together.device)
        if len(amaxes) > 1:
            _copy_from_joined(amaxes, together)
    # A module that starts has its first maxima in the history twice: also as those of the step before. Here Inf and NaN
    # become 0; in the newest entry the operator does that.
    starts = [at for at, module in enumerate(modules) if not module.scales_started and module._has_run]
    if starts:
        first = _joined([amaxes[at] for at in starts]).nan_to_num_(nan=0.0, posinf=0.0)
        _copy_from_joined([buffers[at]["fp8_amax_history"][..., 0] for at in starts], first)
    by_shape: Dict[torch.Size, List[KeepsScales]] = {}
    for module, each in zip(modules, buffers):
        by_shape.setdefault(each["fp8_amax_history"].shape, []).append(module)
    for of_shape in by_shape.values():
        _sync(of_shape)
    for at in starts:
        modules[at].scales_started = True


def _joined(tensors: List[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.view(-1) for each in tensors])


def _copy_from_joined(tensors: List[torch.Tensor], joined: torch.Tensor) -> None:
    parts = joined.split([each.numel() for each in tensors])
    torch._foreach_copy_(tensors, [part.view_as(each) for part, each in zip(parts, tensors)])


def _share_runs(modules: List[KeepsScales], device: torch.device) -> None:
    """Modules start on all ranks at once, whichever has run them: a token may have come to an expert on one rank alone."""
    if not modules:
        return
    has_run = torch.tensor([float(module._has_run) for module in modules], device=device)
    dist.all_reduce(has_run, dist.ReduceOp.MAX)
    for module, ran in zip(modules, has_run.tolist()):
        module._has_run = ran > 0


def _sync(modules: List[KeepsScales]) -> None:
    """Of modules whose histories have one shape."""
    buffers = [module._buffers for module in modules]
    arrays = [[each[name] for each in buffers] for name in _BUFFERS]
    formats = modules[0]._formats(sum(amax.numel() for amax in arrays[0]))
    if len(modules) == 1:
        return sync_slots(*(of_one for (of_one,) in arrays), formats)
    joined = [torch.stack(each) for each in arrays]
    sync_slots(*joined, formats)
    torch._foreach_copy_([*arrays[1], *arrays[2]], [*joined[1].unbind(), *joined[2].unbind()])
    torch._foreach_zero_(arrays[0])

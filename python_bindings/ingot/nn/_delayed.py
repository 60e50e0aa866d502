"""Delayed scaling of ingot.nn's modules: each tensor is cast with a scale made of the maxima of earlier steps, which
saves the pass that finds its own maximum."""

from __future__ import annotations

import math
import warnings
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence

import torch

from ..torch import DelayedScales
from ..torch._checks import is_dense, refuse
from ..torch._exported import is_exporting, refuse_training
from ..torch._gathered_weight import is_gathered
from ..torch._module_operators import masks_of, starts_of
from ..torch._names import register
from ..torch._operators import sync_amax_history as sync_slots
from ..torch._saying import is_first_rank, warn
from ._scale_buffers import (
    as_buffers_of_scales, check_ranks_of_parts, computing_device, has_scale, is_time_to_look, keep_buffers_of_scales,
    largest_of_ranks, read_scales
)

# FP8_MAX of each tensor's format: input, weight, grad_output.
_LARGEST = (448.0, 448.0, 57344.0)
_BUFFERS = ("fp8_amax", "fp8_amax_history", "fp8_scale")
_ALL = (1 << len(_LARGEST)) - 1


class KeepsScales(torch.nn.Module):
    """A module whose recipe may be "delayed". Then it has buffers, float32 whatever it is converted to, for input, weight
    and grad_output of each of its layers: `fp8_amax` (layers, 3), the maxima since the last sync_amax_history();
    `fp8_amax_history` (layers, 3, history_length), those of earlier steps, the newest first; `fp8_scale` (layers, 3), where
    1 is a scale that is not made yet. A module that is one layer has them without the first dimension.

    Which tensors have a scale is known on the host too, as of the last time that it was looked at: `_starts` has it as
    starts_of() does, for operators and graphs, and `_waits` says whether any has none. ingot.float8's layers keep the same
    in torchao's buffers and step as torchao does; they have their own _make_buffers(), _slots(), _telling(), _missing() and
    _make_scales(), and names of the buffers. ExpertScales has a scale for each expert of each tensor, and no parameters."""

    _first_buffer = "fp8_amax"
    _gathers = False  # are weights gathered in FP8?
    _runs = 0  # eagerly, with gradients, since the last sync
    # Of a checkpoint whose files load one by one: the weights that none of them had, and the buffers that any had. None: no file has
    # loaded.
    _unloaded: Optional[FrozenSet[str]] = None
    _restored: FrozenSet[str] = frozenset()

    def _keep_scales(
        self, subject: str, history_length: int, layers: Optional[int] = None, sharing: Optional[int] = None
    ) -> None:
        """To be called when parameters and options are there. layers: None for a module that is one layer. sharing: how
        many of the layers, the first ones, cast one input, with the first one's scale."""
        register(self)
        if type(history_length) is not int or history_length < 1:  # True is no number of steps
            refuse(subject, f"history_length: is {history_length!r}, expected a number of steps, 1 or more")
        self.history_length = history_length
        self._rows, self._sharing = layers, sharing or 1
        if self.options.recipe == "delayed":
            return self._make_buffers()
        for name in _BUFFERS:  # of a layer that had delayed scales, and is made anew without
            self._buffers.pop(name, None)

    def __getstate__(self):
        """A shallow copy has its own dict of buffers: what the module knows of its scales is not in that dict."""
        return {**self.__dict__, "_buffers": dict(self._buffers)}

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        register(self)

    # ---- the buffers ----

    def _place(self) -> torch.Tensor:
        """Whose device the buffers have. They stay where they are while parameters are on meta, whose file may come later."""
        first = next(self.parameters())
        if not first.is_meta:
            return first
        return next((each for key, each in self._buffers.items() if key.startswith("fp8_")), first)

    def _sizes(self) -> Sequence[int]:
        return (3,) if self._rows is None else (self._rows, 3)

    @torch.inference_mode(False)  # steps write them, also outside of the mode that the module is made in
    def _make_buffers(self) -> None:
        sizes = self._sizes()
        # The default dtype may be another one, as it is while transformers makes a model.
        place = {"dtype": torch.float32, "device": computing_device(self._place())}
        self.register_buffer("fp8_amax", torch.zeros(sizes, **place))
        self.register_buffer("fp8_amax_history", torch.zeros(*sizes, self.history_length, **place))
        self.register_buffer("fp8_scale", torch.ones(sizes, **place))
        self._of_formats: Optional[torch.Tensor] = None
        self._start_anew()

    def _start_anew(self) -> None:
        self._has_run = False  # eagerly, with gradients and tokens
        self._syncs = 0  # while scales are missing, since the first such run
        self._runs = 0
        self._note_missing(self._slots())

    def _slots(self) -> Sequence[int]:
        """The tensors of each layer that have delayed scales: bits 1, 2 and 4 for input, weight and grad_output."""
        return [_ALL if at == 0 or at >= self._sharing else _ALL - 1 for at in range(self._rows or 1)]

    def _telling(self) -> List[torch.Tensor]:
        """The buffers that say which tensors have a scale."""
        return [self._buffers["fp8_scale"]]

    def _missing(self, told: Sequence[Sequence[float]]) -> List[int]:
        """The tensors of each layer that have no scale, by the values of _telling()."""
        (scales,) = told
        return [
            used & sum(1 << at for at in range(3) if not has_scale(scales[3 * layer + at]))
            for layer, used in enumerate(self._slots())
        ]

    def _note_missing(self, masks: Sequence[int], empty: Optional[torch.Tensor] = None) -> None:
        """Notes which tensors have no scale, so that the casts of others need not ask for it on the device. empty: as
        starts_of()'s."""
        self._starts = starts_of(masks, self._buffers[self._first_buffer].device, empty)
        self._waits = any(masks)

    @property
    def scales_started(self) -> bool:
        """Has every tensor a scale from earlier steps? sync_amax_history() updates this."""
        return not self._waits

    @scales_started.setter
    def scales_started(self, started: bool) -> None:
        """For a caller that writes the scales itself. If False, casts check each tensor's scale on the device."""
        self._note_missing([0 if started else used for used in self._slots()])

    def _reset_scales(self) -> None:
        if is_delayed(self):
            self._make_buffers()

    def reset_parameters(self) -> None:
        """Initialises the parameters that the module has itself, as PyTorch's module of its kind does, and the buffers of
        delayed scales."""
        of_kind = getattr(super(), "reset_parameters", None)
        if of_kind is not None:
            of_kind()
        self._reset_scales()

    # ---- a call ----

    def _delayed(self, input: torch.Tensor) -> Optional[DelayedScales]:
        """Returns the scales for a call of the module's function; None for other recipes."""
        if self.options.recipe != "delayed":
            return None
        if not torch.compiler.is_compiling():
            self._check_buffers()
        amax = self.fp8_amax
        if amax.is_meta and not self._place().is_meta:
            self._reset_scales()  # parameters came with a checkpoint that has no scales
            amax = self.fp8_amax
        self._note_run(input)
        if self._gathers and torch.is_grad_enabled():
            self._note_gathered(amax)
        return DelayedScales(self.fp8_scale, amax, self._starts)

    def scales_of_weights(self) -> Sequence[torch.Tensor]:
        """The delayed scales of the weights, in named_weights()' order: views of the buffer."""
        return self.fp8_scale.view(-1, 3)[:, 1].unbind()

    def _note_gathered(self, amax: torch.Tensor) -> None:
        """The maxima of weights that FSDP has gathered in FP8, each rank's of its own shard: no operator sees their values."""
        maxima = amax.view(-1, 3)[:, 1]
        for place, (_, weight) in enumerate(self.named_weights()):
            if is_gathered(weight) and weight.own_amax is not None:
                slot = maxima[place : place + 1]
                slot.copy_(torch.maximum(slot, weight.own_amax))

    def _note_run(self, input: torch.Tensor) -> None:
        # Not in a compiled graph, which would be compiled again for it.
        if torch.compiler.is_compiling():
            if is_exporting():
                refuse_training(self, self.options.subject)
        elif torch.is_grad_enabled():
            if not self._has_run and holds_rows(input):
                self._has_run, self._syncs = True, 0
            self._runs += 1
            if self._unloaded is not None:
                self._end_checkpoint()
            if self._runs == _MANY_RUNS:
                warn_of_no_sync(f'{type(self).__name__} "{self.layer_name}"')

    def _note_sync(self, model: torch.nn.Module) -> None:
        self._runs = 0
        self._end_checkpoint()

    def _check_buffers(self) -> None:
        amax = self._buffers.get("fp8_amax")
        if amax is None:
            refuse(
                self.options.subject,
                'recipe: was set to "delayed" after the module was made, which has no buffers for scales: make it with '
                "that recipe, by from_float() or from_parts()",
            )
        if amax.dtype != torch.float32:  # MixedPrecision(buffer_dtype=...) of FullyShardedDataParallel writes .data
            as_buffers_of_scales(self)

    def _states_to_prepare(self, device: torch.device):
        """Yields to ingot.torch.prepare() in each state whose steps launch different kernels, then restores this one.
        device: that of the tensors that stand in for the buffers."""
        if not is_delayed(self):
            yield
            return
        kept = self._starts, self._waits, self._has_run, self._syncs, self._runs
        try:
            for masks in (self._slots(), [0] * len(self._slots())):
                self._note_missing(masks, torch.empty(0, device=device))
                yield
        finally:
            self._starts, self._waits, self._has_run, self._syncs, self._runs = kept

    # ---- being moved and loaded ----

    def _apply(self, fn, recurse: bool = True):
        if is_delayed(self) and self._buffers[self._first_buffer].is_meta and not self._place().is_meta:
            self._reset_scales()  # parameters came one by one, with a checkpoint that has no scales
        before = dict(self._buffers)
        result = super()._apply(fn, recurse)
        if not keep_buffers_of_scales(self, before):
            self._reset_scales()  # they were on meta, and no values came with the memory
        elif is_delayed(self) and self._starts.device != self._buffers[self._first_buffer].device:
            self._note_missing(masks_of(self._starts))
        return result

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """Checkpoints load with and without the buffers, strictly too. Scales that the checkpoint has are restored; with one that has
        all of the module's weights and no scales they start anew."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        for keys in (missing, unexpected):
            keys[:] = [key for key in keys if not key.startswith(f"{prefix}fp8_")]
        state = {key: state_dict[prefix + key] for key in self._buffers if prefix + key in state_dict}
        self._note_values(state)
        self._note_weights(frozenset(state), state_dict, prefix, missing)

    def _note_weights(
        self, loaded: FrozenSet[str], state_dict: Mapping[str, torch.Tensor], prefix: str, missing: Sequence[str]
    ) -> None:
        """loaded: the buffers that the file had."""
        self._note_file(loaded, self._lacking(state_dict, prefix, missing))

    def _lacking(self, state_dict: Mapping[str, torch.Tensor], prefix: str, missing: Sequence[str]) -> Optional[FrozenSet[str]]:
        """The weights that a load lacks, by names. None: it may not have been one of weights."""
        weights = self.weights_in(self)
        return frozenset(name for name in weights if prefix + name not in state_dict) if weights else None

    def weights_in(self, around: torch.nn.Module) -> Dict[str, torch.Tensor]:
        """The weights that the scales are of, by their names in the module that has them, which is this one: no norms and biases."""
        return {name: each for name, each in around.named_parameters() if each.dim() > 1}

    def note_load(self, state: Mapping[str, torch.Tensor], lacking: FrozenSet[str]) -> None:
        """Notes that a file of a checkpoint has loaded, which had this of the buffers and lacked these weights."""
        self._note_values(state)
        self._note_file(frozenset(state), lacking)

    def _note_values(self, state: Mapping[str, torch.Tensor]) -> None:
        as_buffers_of_scales(self)
        if not is_delayed(self):
            return
        loaded = [each for key, each in state.items() if _is_delayed_state(key)]
        if loaded and not any(each.is_meta for each in (*self._telling(), *loaded)):
            self._syncs = 0
            self._note_missing(self._missing([each.reshape(-1).tolist() for each in self._telling()]))

    def _note_file(self, loaded: FrozenSet[str], lacking: Optional[FrozenSet[str]]) -> None:
        """Files come in any order: the last of the weights starts the scales anew, unless one of the files had them."""
        if not is_delayed(self):
            return
        if lacking is None or not lacking and self._unloaded == lacking:
            self._end_checkpoint()  # the weights come again, so this is another checkpoint
        if lacking is None:
            return
        before = self._unloaded
        self._unloaded = lacking if before is None else before & lacking
        self._restored |= frozenset(filter(_is_delayed_state, loaded))
        if self._unloaded:
            return
        if self._restored == frozenset(filter(_is_delayed_state, self._buffers)):
            self._end_checkpoint()
        elif not self._restored and before != self._unloaded:  # a file with the scales may still come
            self._make_buffers()

    def _end_checkpoint(self) -> None:
        self._unloaded, self._restored = None, frozenset()

    # ---- a step ----

    @staticmethod
    def _make_scales(modules: List["KeepsScales"]):
        """The step of modules of one device: yields their maxima, which the caller may raise to those of all ranks, and
        then makes scales of them. The caller sends whether it has done so."""
        yield [module._buffers["fp8_amax"] for module in modules]
        by_shape: Dict[Any, List[KeepsScales]] = {}
        for module in modules:
            by_shape.setdefault(module._buffers["fp8_amax_history"].shape, []).append(module)
        for alike in by_shape.values():
            _sync(alike)

    def _formats(self, slots: int) -> torch.Tensor:
        """The formats of this many slots, as sync_slots() takes them, kept for the next step. No buffer: no checkpoint
        shall hold it."""
        device = self._buffers["fp8_amax"].device
        kept = self._of_formats
        if kept is None or kept.device != device or kept.shape[1] != slots:
            kept = torch.zeros(2, slots, dtype=torch.float32, device=device)
            of_each = math.prod(self._buffers["fp8_amax"].shape[2:])  # of experts, their number
            for at, largest in enumerate(_LARGEST):
                kept[0].view(-1, len(_LARGEST), of_each)[:, at].fill_(largest)
            self._of_formats = kept
        return kept


def _is_delayed_state(buffer: str) -> bool:
    """Static scales have other names."""
    return buffer.startswith(("fp8_amax", "fp8_scale"))


_MANY_RUNS = 1000
_WARNED: List[str] = []


def warn_of_no_sync(subject: str) -> None:
    """Once: a program that never makes the call trains with the scales of each step's own data, and more slowly. Ranks other than
    the first, which may be the only ones with such layers, log it."""
    if _WARNED:
        return
    _WARNED.append(subject)
    text = (
        f'{subject} recipe: is "delayed", and {_MANY_RUNS} forwards have run without sync_amax_history(model), which makes '
        'its scales: call it once in every step, after backward, or choose "tensorwise"'
    )
    if is_first_rank():
        warnings.warn(text, stacklevel=3)
    else:
        warn(text)


def holds_rows(input: Any) -> bool:
    """Does the tensor have elements? Tensors that are not dense are refused later."""
    return is_dense(input) and input.numel() > 0


def is_delayed(module: Any) -> bool:
    return isinstance(module, KeepsScales) and module._first_buffer in module._buffers


def sync_amax_history(model: torch.nn.Module, group: Any = None, *, reduce: bool = True) -> None:
    """Makes the scales of the next step from the maxima of this one, for all modules of the model with delayed scales
    together, layers of ingot.float8 too; to be called once in every step, after the backward of the last micro-batch.

    The maxima since the last call enter the histories, and are cleared; a scale is FP8_MAX divided by the largest of its
    history, and stays as it is where all of that are 0. A maximum that is Inf or NaN counts as 0. A tensor of which only
    zeros, or nothing finite, have been seen has no scale yet: forward and backward cast it with that of its own maximum, as
    dynamic scaling does. A call after some of the micro-batches makes scales of these, and the others count for the next
    step; a second call without a step between is a step in which no data came: the histories move on by one.

    With torch.distributed the maxima are those of all ranks of `group`, a ProcessGroup or a DeviceMesh of one dimension;
    None is the default group. All ranks of the group call it, each with the same layers: one all-reduce of 16 KB, and
    another for what exceeds 4092 tensors. Where layers differ, as in stages of a pipeline, every rank that has not called
    it for its model before gets an ingot.Error. reduce=False reduces nothing: for layers that only this rank has.

    Until every tensor of the model has a scale, calls 1, 2, 3, 16, 64, 256, and so on since the first run of a module that
    lacks some read the scales to know which; after that nothing is read back.
    """
    sync_scales("sync_amax_history", model, model.modules(), group, reduce)


@torch.no_grad()
def sync_scales(
    who: str, model: torch.nn.Module, modules: Iterable[torch.nn.Module], group: Any, reduce: bool
) -> List[KeepsScales]:
    """sync_amax_history() of those of these modules that have delayed scales, which are returned."""
    delayed = [module for module in modules if is_delayed(module)]
    found = [module for module in delayed if not module._buffers[module._first_buffer].is_meta]
    alike: Dict[Any, List[KeepsScales]] = {}
    for module in found:
        alike.setdefault((module._make_scales, module._buffers[module._first_buffer].device), []).append(module)
    check_ranks_of_parts(who, found, group, reduce)
    steps = [step(of_step) for (step, _), of_step in alike.items()]
    maxima = [amax for step in steps for amax in next(step)]
    reduced = reduce and largest_of_ranks(who, model, found, maxima, group)
    for step in steps:
        try:
            step.send(reduced)
        except StopIteration:
            pass
    for module in found:
        module._note_sync(model)
    _look([module for module in found if module._waits])
    return delayed


def _look(modules: List[KeepsScales]) -> None:
    """Checks from time to time which scales have been made."""
    if not modules:
        return
    due = []
    for module in modules:
        module._syncs += 1
        if is_time_to_look(module._syncs):
            due.append(module)
    telling = [module._telling() for module in due]
    told = iter(read_scales([each for of_module in telling for each in of_module]))
    empty: Dict[torch.device, torch.Tensor] = {}
    for module, of_module in zip(due, telling):
        values = [each for _, each in zip(of_module, told)]
        if len(values) < len(of_module):
            return  # nothing could be read
        device = of_module[0].device
        if device not in empty:
            empty[device] = torch.empty(0, device=device)
        # A scale that was there is there, also after a history of zeros.
        masks = [now & before for now, before in zip(module._missing(values), masks_of(module._starts))]
        module._note_missing(masks, empty[device])


def _begin(history: torch.Tensor, amax: torch.Tensor) -> None:
    """An empty history takes its first maximum twice, as if the step before had it too. This sets Inf and NaN to 0; the
    operator does so in the newest entry."""
    first = amax.nan_to_num(nan=0.0, posinf=0.0)
    last = history[..., 0]
    last.copy_(torch.where(history.any(-1), last, first))


def _sync(modules: List[KeepsScales]) -> None:
    """Makes the scales of modules whose histories have the same shape."""
    # Read from the dicts that have them: for a hundred layers nn.Module's way to them takes longer than all operations.
    buffers = [module._buffers for module in modules]
    arrays = [[each[name] for each in buffers] for name in _BUFFERS]
    formats = modules[0]._formats(sum(amax.numel() for amax in arrays[0]))
    joined = [each[0] if len(modules) == 1 else torch.stack(each) for each in arrays]
    if any(module._waits for module in modules):
        _begin(joined[1], joined[0])
    sync_slots(*joined, formats)
    if len(modules) == 1:
        torch.autograd.graph.increment_version(joined[2])  # by which weights in FP8 see a new scale; the operator does not
        return
    torch._foreach_copy_([*arrays[1], *arrays[2]], [*joined[1].unbind(), *joined[2].unbind()])
    torch._foreach_zero_(arrays[0])

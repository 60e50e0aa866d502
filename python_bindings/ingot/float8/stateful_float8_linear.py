"""StatefulFloat8Linear: a Float8Linear whose scales are delayed or static, and so are kept in buffers."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ..nn._scale_buffers import as_buffers_of_scales, computing_device
from ..torch._errors import Float8ValueError
from ..torch._exported import export_layer, is_exporting
from ..torch._module_operators import masks_of
from ..torch._scaled_linear import EPS, first_given, has_seen, run_scaled, start_scale
from .config import CastConfig, Float8LinearConfig, ScalingType
from .distributed_utils import tensor_already_casted_to_fp8
from .float8_linear import _PLAIN, Float8Linear, is_foreign, matmul_with_hp_or_float8_args
from .float8_scaling_utils import (
    NoopFwToFloat8BwDelayed,
    NoopFwToFloat8BwDynamic,
    NoopFwToFloat8BwStatic,
    _maybe_initialize_amaxes_scales_for_float8_cast,
    hp_tensor_to_float8_delayed,
    hp_tensor_to_float8_dynamic,
    hp_tensor_to_float8_static,
)
from .float8_training_tensor import GemmInputRole
from .float8_utils import _require_max, _round_scale_down_to_power_of_2

ROLES = ("input", "weight", "grad_output")


class StatefulFloat8Linear(Float8Linear):
    """A Float8Linear with delayed or static scales.

    With delayed scaling each of input, weight and grad_output has three f32 buffers: `fp8_amax_*` (1), the maximum of
    this step; `fp8_amax_history_*` (history_len), those of earlier steps; `fp8_scale_*` (1), the scale made of them. A
    cast uses the scale that is there and writes the maximum; sync_float8_amax_and_scale_history() makes the next
    scale. A tensor of which only zeros, or nothing finite, have been seen has no scale yet, and is cast as with dynamic
    scaling, unless the config has `enable_amax_init=False`. A static scale is the buffer `fp8_static_scale_*`.

    Forward and backward are one operator of Ingot's each; PyTorch's operations compute operands that come in FP8, and
    `emulate=True`.

    Buffers stay f32 whatever the layer is converted to. They are saved in checkpoints, and checkpoints without them
    load. What is known of the scales, and when they are made, is as in every module of ingot.nn (KeepsScales).
    """

    _gives_scales = True
    _first_buffer = "fp8_amax_input"

    def _use_config(self, config: Float8LinearConfig) -> None:
        super()._use_config(config)
        self.has_any_delayed_scaling = any(self._slots())
        self.create_buffers()

    def _casts(self) -> Tuple[Tuple[str, CastConfig], ...]:
        config = self.config
        return tuple(zip(ROLES, (config.cast_config_input, config.cast_config_weight, config.cast_config_grad_output)))

    def create_buffers(self) -> None:
        """Makes the buffers, or makes them anew, on the weight's device."""
        self._make_buffers(keeps_static=False)

    @torch.inference_mode(False)  # steps write them, also outside of the mode that the layer is made in
    def _make_buffers(self, keeps_static: bool = True) -> None:
        device = computing_device(self._place())
        for role, cast in self._casts():
            if self.has_any_delayed_scaling:
                largest = torch.finfo(cast.target_dtype).max
                length = self.config.delayed_scaling_config.history_len
                self._buffer(f"fp8_amax_{role}", torch.full((1,), largest, device=device))
                self._buffer(f"fp8_amax_history_{role}", torch.zeros(length, device=device))
                self._buffer(f"fp8_scale_{role}", torch.ones(1, device=device))
            self._make_static_scale(role, cast, keeps_static)
        self._waits = False
        if self.has_any_delayed_scaling:
            self._start_anew()
            self.is_amax_initialized = not self.config.enable_amax_init

    def _make_static_scale(self, role: str, cast: CastConfig, keeps: bool = True) -> None:
        """keeps: a buffer with a value stays."""
        static = self._buffers.get(f"fp8_static_scale_{role}")
        if cast.static_scale is not None and (not keeps or static is None or static.is_meta):
            scale = cast.static_scale.detach().to(device=computing_device(self._place()), dtype=torch.float32)
            self._buffer(f"fp8_static_scale_{role}", scale.reshape(1).clone())

    def _buffer(self, name: str, value: torch.Tensor) -> None:
        self.register_buffer(name, value.to(torch.float32))

    def _reset_scales(self) -> None:
        if "config" in self.__dict__:  # not while torch.nn.Linear makes the layer
            self.create_buffers()

    @torch.inference_mode(False)
    def _load_from_state_dict(self, state_dict, prefix, *rest) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        for role, cast in self._casts():
            self._make_static_scale(role, cast)  # the weight may have come with a checkpoint without scales

    # ---- which tensors have a scale ----

    def _slots(self) -> Sequence[int]:
        casts = self._casts()
        return [sum(1 << at for at, (_, cast) in enumerate(casts) if cast.scaling_type is ScalingType.DELAYED)]

    def _telling(self) -> List[torch.Tensor]:
        return [self._buffers[f"fp8_amax_history_{role}"] for role in ROLES]

    def _missing(self, told: Sequence[Sequence[float]]) -> List[int]:
        if not self.config.enable_amax_init:
            return [0]
        missing = sum(1 << at for at, history in enumerate(told) if not any(0 < each < float("inf") for each in history))
        return [missing & self._slots()[0]]

    @property
    def is_amax_initialized(self) -> bool:
        """torchao's name of scales_started."""
        return self.scales_started

    @is_amax_initialized.setter
    def is_amax_initialized(self, initialized: bool) -> None:
        if self.has_any_delayed_scaling:
            self.scales_started = initialized

    def _has_started(self, role: str) -> bool:
        return not self._waits or not masks_of(self._starts)[0] >> ROLES.index(role) & 1

    def _is_started(self, role: str, tensor: torch.Tensor) -> Union[bool, torch.Tensor]:
        """May the tensor's scale be used as it is? As start_scale() takes it. tensor: is of the type of what is cast."""
        if torch.compiler.is_compiling() and type(tensor) in _PLAIN and not is_exporting():
            return self._starts
        return self._has_started(role)

    @staticmethod
    def _make_scales(modules: List["StatefulFloat8Linear"]):
        """As torchao: the maxima stay where they are, and what is not finite enters the histories."""
        functions = {layer.config.delayed_scaling_config.scale_fn_name for layer in modules}
        if len(functions) > 1:
            raise Float8ValueError(f"All layers must have the same scale_fn recipe, got {sorted(functions)}")
        for function in functions:
            _require_max(function)
        places = _places(modules)
        groups = [list(alike) for _, alike in itertools.groupby(places, key=lambda place: place.kind)]
        stacks = [torch.stack([place.history for place in alike]) for alike in groups]
        amaxes = torch.cat([place.amax for place in places])
        if any(place.waits for place in places):
            amaxes = _of_this_step(amaxes, places, torch.cat([has_seen(stack) for stack in stacks]))
        reduced = yield [amaxes]
        if reduced:
            torch._foreach_copy_([place.amax for place in places], list(amaxes.split(1)))
        for each in zip(groups, stacks, amaxes.split([len(alike) for alike in groups])):
            _update(*each)

    # ---- computing ----

    def _of(self, role: str) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the buffers amax, history and scale of a tensor."""
        return (
            getattr(self, f"fp8_amax_{role}"),
            getattr(self, f"fp8_amax_history_{role}"),
            getattr(self, f"fp8_scale_{role}"),
        )

    def _start(self, tensor: torch.Tensor, role: str, cast: CastConfig) -> None:
        """Makes the tensor's scale in a first step."""
        started = self._is_started(role, tensor)
        if isinstance(started, torch.Tensor):
            start_scale(tensor, *self._of(role), cast.target_dtype, started, ROLES.index(role))
        elif not started:
            state = (*self._of(role), self.config.delayed_scaling_config.scale_fn_name, cast.target_dtype)
            _maybe_initialize_amaxes_scales_for_float8_cast(tensor, *state, False, reduce_amax=False)

    def _cast_with_state(self, tensor: torch.Tensor, role: str, cast: CastConfig) -> torch.Tensor:
        if tensor_already_casted_to_fp8(tensor):
            return tensor
        gemm_role = GemmInputRole(role)
        if cast.scaling_type is ScalingType.DYNAMIC:
            return hp_tensor_to_float8_dynamic(
                tensor,
                cast.target_dtype,
                self.linear_mm_config,
                gemm_input_role=gemm_role,
                round_scales_to_power_of_2=self.config.round_scales_to_power_of_2,
            )
        if cast.scaling_type is ScalingType.STATIC:
            scale = getattr(self, f"fp8_static_scale_{role}")
            return hp_tensor_to_float8_static(tensor, scale, cast.target_dtype, self.linear_mm_config, gemm_role)
        amax, _, scale = self._of(role)
        self._start(tensor, role, cast)
        # The codes are kept for backward, so their scale must not be the buffer, which the next step changes.
        return hp_tensor_to_float8_delayed(
            tensor, scale.clone(), cast.target_dtype, amax, self.linear_mm_config, gemm_role
        )

    def _cast_gradient_of(self, output: torch.Tensor) -> torch.Tensor:
        """Passes the output on; its gradient will be cast."""
        cast = self.config.cast_config_grad_output
        dtype = cast.target_dtype
        if cast.scaling_type is ScalingType.DYNAMIC:
            return NoopFwToFloat8BwDynamic.apply(output, self.linear_mm_config, dtype)
        if cast.scaling_type is ScalingType.STATIC:
            return NoopFwToFloat8BwStatic.apply(output, self.fp8_static_scale_grad_output, self.linear_mm_config, dtype)
        return NoopFwToFloat8BwDelayed.apply(
            output,
            *self._of("grad_output"),
            self.config.delayed_scaling_config.scale_fn_name,
            self._is_started("grad_output", output),
            self.linear_mm_config,
            dtype,
        )

    def _given_scale(self, role: str, cast: CastConfig, tensor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """Returns the scale that a tensor will be cast with; None if it is dynamic. A delayed one is made from `tensor`
        in the first step."""
        if cast.scaling_type is ScalingType.DYNAMIC:
            return None
        if cast.scaling_type is ScalingType.STATIC:
            return getattr(self, f"fp8_static_scale_{role}")
        if tensor is not None:
            self._start(tensor, role, cast)
        return self._of(role)[2]

    def _run_operators(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]
    ) -> torch.Tensor:
        """Forward, and later backward, as one operator of Ingot's each."""
        if torch.compiler.is_compiling() and is_exporting():
            return self._export(input)
        # A compiler would guard each layer's name and compile alike blocks again for each.
        options = self.options
        name = "Float8Linear" if torch.compiler.is_compiling() else options.full_name
        tensors = (input, weight, None)
        scales = [self._given_scale(role, cast, each) for (role, cast), each in zip(self._casts(), tensors)]
        any_scale = first_given(*scales)
        scale_input, scale_weight, scale_grad_output = (any_scale if each is None else each for each in scales)
        operands = (input, weight, bias, scale_input, scale_weight)
        cast = self.config.cast_config_grad_output
        delays = cast.scaling_type is ScalingType.DELAYED
        state = self._of("grad_output") if delays else (None, None, scale_grad_output)
        # Only where a backward may come does the layer run for the first time.
        started = not delays or not torch.is_grad_enabled() or self._is_started("grad_output", input)
        start = (cast.target_dtype, started)
        output, amaxes = run_scaled(options.casts, name, options._plans, operands, state, start)
        with torch.no_grad():
            for at, (role, cast) in enumerate(self._casts()[:2]):
                if cast.scaling_type is ScalingType.DELAYED:
                    self._of(role)[0].copy_(amaxes[at : at + 1])
        return output

    def _export(self, input: torch.Tensor) -> torch.Tensor:
        """Runs the layer as one operator, which also makes first scales, and writes no buffer."""
        tensors = [input, self.weight, self.bias]
        for role, cast in self._casts():
            tensors += [None if self._has_started(role) else self._of(role)[1], self._given_scale(role, cast, None)]
        facts = {
            "config": self.options.casts,
            "name": self.options.full_name,
            "dtypes": tuple([str(cast.target_dtype).removeprefix("torch.") for _, cast in self._casts()]),
        }
        return export_layer("scaled", tensors, **facts)[0]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., out_features) for (..., in_features)."""
        weight, bias = self.weight, self.bias  # once: a property of the class may gather them
        if is_foreign(weight):
            return torch.nn.functional.linear(input, weight, bias)
        input = self._checked(input, weight)
        self._check_transforms(input, weight, bias, records=True)
        if not torch.compiler.is_compiling() and next(iter(self._buffers.values())).dtype != torch.float32:
            as_buffers_of_scales(self)  # MixedPrecision(buffer_dtype=...) of FullyShardedDataParallel writes .data
        if self.has_any_delayed_scaling:
            self._note_run(input)
        if self._runs_as_operators(input, weight):
            return self._run_operators(input, weight, bias)
        config = self.config
        input = self._cast_with_state(input, "input", config.cast_config_input)
        weight = self._cast_with_state(weight, "weight", config.cast_config_weight)
        output = matmul_with_hp_or_float8_args.apply(input, weight.t(), self.linear_mm_config, config)
        output = self._cast_gradient_of(output)
        return output if bias is None else output + bias.to(output.dtype)


# ---- the step of all layers together ----


class _Place(NamedTuple):
    """One tensor's buffers, its format, and what its history must have in common with others to be stacked."""

    amax: torch.Tensor
    history: torch.Tensor
    scale: torch.Tensor
    dtype: torch.dtype
    kind: Tuple[int, bool]  # the history's length, and whether scales are rounded to powers of two
    waits: bool  # it may have no scale yet


def _places(layers: List[StatefulFloat8Linear]) -> List[_Place]:
    """Those of all layers, kinds and formats together. Buffers are read from the dict that has them: for a hundred layers
    nn.Module's way to them takes longer than all operations."""
    places = []
    for layer in layers:
        buffers, config = layer._buffers, layer.config
        kind = (config.delayed_scaling_config.history_len, config.round_scales_to_power_of_2)
        for role, cast in layer._casts():
            of_role = [buffers[f"fp8_{name}_{role}"] for name in ("amax", "amax_history", "scale")]
            places.append(_Place(*of_role, cast.target_dtype, kind, not layer._has_started(role)))
    return sorted(places, key=lambda place: (place.kind, str(place.dtype)))


def _of_this_step(amaxes: torch.Tensor, places: List[_Place], seen: torch.Tensor) -> torch.Tensor:
    """The maxima, except those of tensors that have no scale and had no data in this step either: FP8_MAX, which the
    buffer begins with, or a value that is not finite."""
    initial = [torch.finfo(place.dtype).max if place.waits else -1.0 for place in places]
    initial = torch.tensor(initial, dtype=torch.float32, device="cpu")  # whatever the default ones are
    initial = initial.to(amaxes.device, non_blocking=True)
    keeps = seen | (initial < 0) | (torch.isfinite(amaxes) & (amaxes != initial))
    return torch.where(keeps, amaxes, 0.0)


def _update(places: List[_Place], stack: torch.Tensor, amaxes: torch.Tensor) -> None:
    """Makes new histories and scales for the places of one kind."""
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

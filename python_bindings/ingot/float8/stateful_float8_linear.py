"""StatefulFloat8Linear: a Float8Linear whose scales are delayed or static, and so are kept in buffers."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from ..torch._exported import export_layer, is_exporting, refuse_training
from ..torch._module_operators import starts_of
from ..torch._scale_buffers import as_buffers_of_scales, keep_buffers_of_scales
from ..torch._scaled_linear import first_given, has_seen, run_scaled, start_scale
from ._weights import is_foreign
from .config import CastConfig, Float8LinearConfig, ScalingType
from .distributed_utils import tensor_already_casted_to_fp8
from .float8_linear import _PLAIN, Float8Linear, matmul_with_hp_or_float8_args
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
    load.
    """

    _gives_scales = True

    def _use_config(self, config: Float8LinearConfig) -> None:
        super()._use_config(config)
        casts = (config.cast_config_input, config.cast_config_weight, config.cast_config_grad_output)
        self.has_any_delayed_scaling = any(cast.scaling_type is ScalingType.DELAYED for cast in casts)
        self.create_buffers()

    def _casts(self) -> Tuple[Tuple[str, CastConfig], ...]:
        config = self.config
        return tuple(zip(ROLES, (config.cast_config_input, config.cast_config_weight, config.cast_config_grad_output)))

    @torch.inference_mode(False)  # steps write them, also outside of the mode that the layer is made in
    def create_buffers(self) -> None:
        """Makes the buffers, or makes them anew, on the weight's device."""
        device = self.weight.device
        self._has_run = False  # eagerly, while scales are missing
        self._syncs = 0  # while they are
        for role, cast in self._casts():
            if self.has_any_delayed_scaling:
                largest = torch.finfo(cast.target_dtype).max
                length = self.config.delayed_scaling_config.history_len
                self._buffer(f"fp8_amax_{role}", torch.full((1,), largest, device=device))
                self._buffer(f"fp8_amax_history_{role}", torch.zeros(length, device=device))
                self._buffer(f"fp8_scale_{role}", torch.ones(1, device=device))
            if cast.static_scale is not None:
                scale = cast.static_scale.detach().to(device=device, dtype=torch.float32)
                self._buffer(f"fp8_static_scale_{role}", scale.reshape(1).clone())
        self.is_amax_initialized = not self.config.enable_amax_init

    def _buffer(self, name: str, value: torch.Tensor) -> None:
        self.register_buffer(name, value.to(torch.float32))

    def reset_parameters(self) -> None:
        """Initialises parameters as torch.nn.Linear does, and the buffers."""
        super().reset_parameters()
        if hasattr(self, "config"):
            self.create_buffers()

    def _apply(self, fn, recurse: bool = True):
        before = dict(self._buffers)
        result = super()._apply(fn, recurse)
        if not keep_buffers_of_scales(self, before):
            self.create_buffers()  # they were on meta, and no values came with the memory
        elif self.has_any_delayed_scaling and self._starts.device != self._buffers["fp8_amax_input"].device:
            self._use_started(self._started)
        return result

    def _load_from_state_dict(self, state_dict, prefix, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        as_buffers_of_scales(self)
        on_meta = any(buffer.is_meta for name, buffer in self._buffers.items() if name.startswith("fp8_"))
        if on_meta and not self.weight.is_meta:
            self.create_buffers()  # the weight came with a checkpoint that has no scales
        elif f"{prefix}fp8_amax_history_input" in state_dict and self.has_any_delayed_scaling and not on_meta:
            histories = torch.stack([self._of(role)[1] for role in ROLES])
            self._note_started(has_seen(histories).tolist())

    @property
    def is_amax_initialized(self) -> bool:
        """Has every tensor with delayed scaling a scale of earlier steps? As of the last time that it was looked at, by
        sync_float8_amax_and_scale_history()."""
        return all(self._started)

    @is_amax_initialized.setter
    def is_amax_initialized(self, initialized: bool) -> None:
        delayed = [cast.scaling_type is ScalingType.DELAYED for _, cast in self._casts()]
        self._use_started([initialized or not each for each in delayed])

    def _use_started(self, started: Sequence[bool]) -> None:
        """Sets which tensors have a scale, of input, weight and grad_output; for graphs as starts_of() has it."""
        self._started = tuple(started)
        if self.has_any_delayed_scaling:
            mask = sum(1 << at for at, each in enumerate(started) if not each)
            self._starts = starts_of((mask,), self._buffers["fp8_amax_input"].device)

    def _states_to_prepare(self, device: torch.device):
        """Leads ingot.torch.prepare() through the first steps and the others, and back to this state."""
        names = ("_started", "_starts", "_has_run", "_syncs")
        kept = {name: self.__dict__[name] for name in names if name in self.__dict__}
        try:
            for self.is_amax_initialized in (False, True):
                yield
        finally:
            self.__dict__.update(kept)

    def _note_started(self, started: Sequence[bool]) -> None:
        """Notes the tensors that have a scale, of input, weight and grad_output."""
        now = tuple(before or bool(each) for before, each in zip(self._started, started))
        if now != self._started:
            self._use_started(now)

    def _is_started(self, role: str, tensor: torch.Tensor) -> Union[bool, torch.Tensor]:
        """May the tensor's scale be used as it is? As start_scale() takes it. tensor: is of the type of what is cast."""
        if torch.compiler.is_compiling() and type(tensor) in _PLAIN and not is_exporting():
            return self._starts
        started = self._started[ROLES.index(role)]
        if not started and not self._has_run:
            self._has_run = True
            if not (dist.is_available() and dist.is_initialized()):  # ranks look in the same steps
                self._syncs = 0
        return started

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

    def _run_operators(self, input: torch.Tensor) -> torch.Tensor:
        """Forward, and later backward, as one operator of Ingot's each."""
        if torch.compiler.is_compiling() and is_exporting():
            return self._export(input)
        weight, bias = self.weight, self.bias
        # A compiler would guard each layer's name and compile alike blocks again for each.
        name = "Float8Linear" if torch.compiler.is_compiling() else self.layer_name or "Float8Linear"
        tensors = (input, weight, None)
        scales = [self._given_scale(role, cast, each) for (role, cast), each in zip(self._casts(), tensors)]
        any_scale = first_given(*scales)
        scale_input, scale_weight, scale_grad_output = (any_scale if each is None else each for each in scales)
        operands = (input, weight, bias, scale_input, scale_weight)
        cast = self.config.cast_config_grad_output
        delays = cast.scaling_type is ScalingType.DELAYED
        state = self._of("grad_output") if delays else (None, None, scale_grad_output)
        # Only where a backward may come does the layer run for the first time.
        started = not torch.is_grad_enabled() or self._is_started("grad_output", input)
        start = (cast.target_dtype, started)
        output, amaxes = run_scaled(self._operator_casts, name, self._operator_plans, operands, state, start)
        with torch.no_grad():
            for at, (role, cast) in enumerate(self._casts()[:2]):
                if cast.scaling_type is ScalingType.DELAYED:
                    self._of(role)[0].copy_(amaxes[at : at + 1])
        return output

    def _export(self, input: torch.Tensor) -> torch.Tensor:
        """As one operator, which also makes first scales, and writes no buffer."""
        tensors = [input, self.weight, self.bias]
        for (role, cast), started in zip(self._casts(), self._started):
            tensors += [None if started else self._of(role)[1], self._given_scale(role, cast, None)]
        facts = {
            "config": self._operator_casts,
            "name": self.layer_name or "Float8Linear",
            "dtypes": tuple([str(cast.target_dtype).removeprefix("torch.") for _, cast in self._casts()]),
        }
        return export_layer("scaled", tensors, **facts)[0]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if is_foreign(self.weight):
            return torch.nn.functional.linear(input, self.weight, self.bias)
        input = self._checked(input)
        self._check_transforms(input, records=True)
        if torch.compiler.is_compiling():
            if self.has_any_delayed_scaling and is_exporting():
                refuse_training(self, f'linear "{self.layer_name or "Float8Linear"}"')
        elif next(iter(self._buffers.values())).dtype != torch.float32:
            as_buffers_of_scales(self)  # MixedPrecision(buffer_dtype=...) of FullyShardedDataParallel writes .data
        if self._runs_as_operators(input, self.weight):
            return self._run_operators(input)
        config = self.config
        input = self._cast_with_state(input, "input", config.cast_config_input)
        weight = self._cast_with_state(self.weight, "weight", config.cast_config_weight)
        output = matmul_with_hp_or_float8_args.apply(input, weight.t(), self.linear_mm_config, config)
        output = self._cast_gradient_of(output)
        return output if self.bias is None else output + self.bias.to(output.dtype)

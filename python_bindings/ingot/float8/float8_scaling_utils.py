"""Casts with their scales: dynamic, delayed and static; forward, or of a gradient on its way back."""

from __future__ import annotations

from typing import Optional, Union

import torch

from ..torch._module_operators import masks_of
from .config import ScalingGranularity
from .distributed_utils import tensor_already_casted_to_fp8
from .float8_training_tensor import (
    GemmInputRole,
    LinearMMConfig,
    cast_with_own_scale,
    hp_tensor_and_scale_to_float8,
)
from .float8_utils import amax_history_to_scale, tensor_to_amax, tensor_to_scale


def hp_tensor_to_float8_dynamic(
    hp_tensor: torch.Tensor,
    float8_dtype: torch.dtype,
    linear_mm_config: LinearMMConfig,
    reduce_amax: bool = False,
    gemm_input_role: GemmInputRole = GemmInputRole.INPUT,
    device_mesh=None,
    scaling_granularity: ScalingGranularity = ScalingGranularity.TENSORWISE,
    axiswise_dim: Optional[int] = None,
    round_scales_to_power_of_2: bool = False,
) -> torch.Tensor:
    """Casts a tensor with the scale of its own maximum and returns a Float8TrainingTensor.

    `axiswise_dim`, 0 or -1, is the dimension that a scale spans with axiswise scaling. `reduce_amax` takes the maximum
    over the ranks of `device_mesh`, or of all. Raises what tensor_to_scale() and hp_tensor_and_scale_to_float8() raise.
    """
    scale = tensor_to_scale(
        hp_tensor,
        float8_dtype,
        reduce_amax,
        device_mesh,
        scaling_granularity,
        axiswise_dim,
        round_scales_to_power_of_2,
    )
    return cast_with_own_scale(hp_tensor, scale, float8_dtype, linear_mm_config, gemm_input_role, axiswise_dim)


def hp_tensor_to_float8_delayed(
    hp_tensor: torch.Tensor,
    s: torch.Tensor,
    float8_dtype: torch.dtype,
    amax_buffer: torch.Tensor,
    linear_mm_config: Optional[LinearMMConfig] = None,
    gemm_input_role: Optional[GemmInputRole] = GemmInputRole.INPUT,
) -> torch.Tensor:
    """Casts a tensor with the scale `s` of earlier steps and writes its own maximum to `amax_buffer` (1 element)."""
    amax_buffer.fill_(tensor_to_amax(hp_tensor))
    return hp_tensor_and_scale_to_float8(hp_tensor, s, float8_dtype, linear_mm_config, gemm_input_role)


def hp_tensor_to_float8_static(
    hp_tensor: torch.Tensor,
    scale: torch.Tensor,
    float8_dtype: torch.dtype,
    linear_mm_config: LinearMMConfig,
    gemm_input_role: GemmInputRole = GemmInputRole.INPUT,
) -> torch.Tensor:
    """Casts a tensor with a given scale. A tensor that is FP8 already is returned as it is."""
    if tensor_already_casted_to_fp8(hp_tensor):
        return hp_tensor
    return hp_tensor_and_scale_to_float8(hp_tensor, scale, float8_dtype, linear_mm_config, gemm_input_role)


def get_maybe_axiswise_dim(axiswise_dim: int, scaling_granularity: ScalingGranularity) -> Optional[int]:
    """Returns `axiswise_dim` for axiswise scaling and None for one scale."""
    return axiswise_dim if scaling_granularity is ScalingGranularity.AXISWISE else None


@torch.no_grad()
def _maybe_initialize_amaxes_scales_for_float8_cast(
    x: torch.Tensor,
    cur_amax: torch.Tensor,
    amax_history: torch.Tensor,
    scale: torch.Tensor,
    scale_fn_name: str,
    float8_dtype: torch.dtype,
    is_initialized: bool,
    reduce_amax: bool,
) -> None:
    """Makes the scale from the tensor itself, as dynamic scaling does, where no step has made one: where the history has
    nothing but zeros and what is not finite. The device decides. The history is filled by the step's end."""
    if is_initialized:
        return
    amax = tensor_to_amax(x, reduce_amax=reduce_amax)
    cur_amax.fill_(amax)
    own = amax_history_to_scale(amax.reshape(1), float8_dtype, scale_fn_name)
    scale.copy_(torch.where(has_seen(amax_history), scale, own))


def has_seen(amax_history: torch.Tensor) -> torch.Tensor:
    """Has a history, or each of several, a maximum of which a scale can be made: finite, and above 0?"""
    return torch.nan_to_num(amax_history, nan=0.0, posinf=0.0).any(-1)


_ROLES = (GemmInputRole.INPUT, GemmInputRole.WEIGHT, GemmInputRole.GRAD_OUTPUT)  # of the bits of starts_of()'s masks

_library = torch.library.Library("ingot", "FRAGMENT")
_library.define(
    "start_scale(Tensor value, Tensor(a!) amax, Tensor history, Tensor(b!) scale, Tensor starts,"
    " str function, ScalarType dtype, int role, bool reduces) -> ()"
)
_start = torch.ops.ingot.start_scale.default


def _start_where_missing(value, amax, history, scale, starts, function, dtype, role, reduces) -> None:
    is_started = not masks_of(starts)[0] >> role & 1
    _maybe_initialize_amaxes_scales_for_float8_cast(value, amax, history, scale, function, dtype, is_started, reduces)


_library.impl("start_scale", _start_where_missing, "CPU")
_library.impl("start_scale", _start_where_missing, "CUDA")


@torch.library.register_fake("ingot::start_scale")
def _(*arguments):
    return None


def start_scale(
    value: torch.Tensor,
    amax: torch.Tensor,
    history: torch.Tensor,
    scale: torch.Tensor,
    function: str,
    dtype: torch.dtype,
    started: Union[bool, torch.Tensor],
    role: GemmInputRole = GemmInputRole.GRAD_OUTPUT,
    reduces: bool = False,
) -> None:
    """As _maybe_initialize_amaxes_scales_for_float8_cast(). In a graph `started` is starts_of() the layer's mask, and the
    operator reads the bit of `role` in its size: one graph serves a layer before and after it has scales."""
    if started is True:
        return
    if started is False:
        _maybe_initialize_amaxes_scales_for_float8_cast(value, amax, history, scale, function, dtype, False, reduces)
        return
    with torch.no_grad():
        _start(value, amax, history, scale, started, function, dtype, _ROLES.index(role), reduces)


@torch._dynamo.allow_in_graph
class NoopFwToFloat8BwDynamic(torch.autograd.Function):
    """Passes a tensor on, and casts its gradient with a dynamic scale."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor, linear_mm_config: LinearMMConfig, target_dtype: torch.dtype):
        ctx.linear_mm_config = linear_mm_config
        ctx.target_dtype = target_dtype
        return tensor

    @staticmethod
    def backward(ctx, grad):
        if tensor_already_casted_to_fp8(grad):
            return grad, None, None
        cast = cast_with_own_scale(
            grad,
            tensor_to_scale(grad, ctx.target_dtype),
            ctx.target_dtype,
            ctx.linear_mm_config,
            GemmInputRole.GRAD_OUTPUT,
        )
        return cast, None, None


@torch._dynamo.allow_in_graph
class NoopFwToFloat8BwDelayed(torch.autograd.Function):
    """Passes a tensor on, and casts its gradient with the scale of earlier steps, whose buffers it keeps up."""

    @staticmethod
    def forward(
        ctx,
        tensor: torch.Tensor,
        fp8_amax_grad_output: torch.Tensor,
        fp8_amax_history_grad_output: torch.Tensor,
        fp8_scale_grad_output: torch.Tensor,
        scale_fn_name: str,
        is_amax_initialized: Union[bool, torch.Tensor],
        linear_mm_config: LinearMMConfig,
        target_dtype: torch.dtype,
    ):
        ctx.buffers = (fp8_amax_grad_output, fp8_amax_history_grad_output, fp8_scale_grad_output)
        ctx.scale_fn_name = scale_fn_name
        ctx.is_amax_initialized = is_amax_initialized
        ctx.linear_mm_config = linear_mm_config
        ctx.target_dtype = target_dtype
        return tensor

    @staticmethod
    def backward(ctx, grad):
        # Not saved tensors: two forwards before a backward both write these buffers, and saved tensors refuse that.
        amax, history, scale = ctx.buffers
        dtype = ctx.target_dtype
        if not tensor_already_casted_to_fp8(grad):
            state = (amax, history, scale, ctx.scale_fn_name, dtype, ctx.is_amax_initialized)
            start_scale(grad, *state, reduces=True)
            grad = hp_tensor_to_float8_delayed(
                grad, scale, dtype, amax, ctx.linear_mm_config, GemmInputRole.GRAD_OUTPUT
            )
        return grad, None, None, None, None, None, None, None


@torch._dynamo.allow_in_graph
class NoopFwToFloat8BwStatic(torch.autograd.Function):
    """Passes a tensor on, and casts its gradient with a given scale."""

    @staticmethod
    def forward(
        ctx,
        tensor: torch.Tensor,
        fp8_static_scale_grad_output: torch.Tensor,
        linear_mm_config: LinearMMConfig,
        target_dtype: torch.dtype,
    ):
        ctx.scale = fp8_static_scale_grad_output
        ctx.linear_mm_config = linear_mm_config
        ctx.target_dtype = target_dtype
        return tensor

    @staticmethod
    def backward(ctx, grad):
        cast = hp_tensor_to_float8_static(
            grad, ctx.scale, ctx.target_dtype, ctx.linear_mm_config, GemmInputRole.GRAD_OUTPUT
        )
        return cast, None, None, None

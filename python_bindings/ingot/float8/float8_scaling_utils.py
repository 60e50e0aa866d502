"""Casts with their scales: dynamic, delayed and static; forward, or of a gradient on its way back."""

from __future__ import annotations

from typing import Optional, Union

import torch

from ..torch._scaled_linear import start_of_maximum, start_scale
from .config import ScalingGranularity
from .distributed_utils import tensor_already_casted_to_fp8
from .float8_training_tensor import (GemmInputRole, LinearMMConfig, cast_with_own_scale, hp_tensor_and_scale_to_float8)
from .float8_utils import _require_max, tensor_to_amax, tensor_to_scale


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
        hp_tensor, float8_dtype, reduce_amax, device_mesh, scaling_granularity, axiswise_dim, round_scales_to_power_of_2
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
    """start_of_maximum() of a tensor of any class, unless the layer has started."""
    if is_initialized:
        return
    _require_max(scale_fn_name)
    start_of_maximum(tensor_to_amax(x, reduce_amax=reduce_amax), cur_amax, amax_history, scale, float8_dtype)


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
        ctx.options = (scale_fn_name, is_amax_initialized, linear_mm_config, target_dtype)
        return tensor

    @staticmethod
    def backward(ctx, grad):
        # Not saved tensors: two forwards before a backward both write these buffers, and saved tensors refuse that.
        amax, history, scale = ctx.buffers
        scale_fn_name, started, linear_mm_config, dtype = ctx.options
        if not tensor_already_casted_to_fp8(grad):
            if isinstance(started, torch.Tensor):
                start_scale(grad, amax, history, scale, dtype, started, reduces=True)
            else:
                state = (amax, history, scale, scale_fn_name, dtype)
                _maybe_initialize_amaxes_scales_for_float8_cast(grad, *state, started, reduce_amax=True)
            grad = hp_tensor_to_float8_delayed(grad, scale, dtype, amax, linear_mm_config, GemmInputRole.GRAD_OUTPUT)
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

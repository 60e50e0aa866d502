"""Scales, casts and what is said about them. Numbers are torchao.float8's, bit for bit, for finite tensors: the scale
is f32(largest FP8 value / f64(amax)), a cast multiplies by it in f32, saturates and rounds to nearest even."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.tensor import DTensor, Partial, Replicate

from ..torch._codes import FLOAT8
from ..torch._errors import Float8AssertionError, Float8NotImplementedError, Float8ValueError
from ..torch._scaled_linear import EPS, scale_of
from .config import ScalingGranularity, config_has_stateful_scaling, e4m3_dtype, e5m2_dtype

IS_ROCM = torch.version.hip is not None and torch.cuda.is_available()

FP8_TYPES = set(FLOAT8.values())

__all__ = [
    "EPS",
    "FP8_TYPES",
    "IS_ROCM",
    "amax_history_to_scale",
    "amax_history_to_scale_stack",
    "amax_to_scale",
    "compute_error",
    "config_has_stateful_scaling",
    "e4m3_dtype",
    "e5m2_dtype",
    "fp8_tensor_statistics",
    "is_row_major",
    "pad_tensor_for_matmul",
    "tensor_to_amax",
    "tensor_to_scale",
    "to_fp8_saturated",
]


def _largest(float8_dtype: torch.dtype) -> float:
    if float8_dtype not in FP8_TYPES:
        raise Float8ValueError(f"float8_dtype is {float8_dtype}, expected one of {sorted(map(str, FP8_TYPES))}")
    return torch.finfo(float8_dtype).max


@torch.no_grad()
def amax_to_scale(
    amax: torch.Tensor, float8_dtype: torch.dtype, round_scales_to_power_of_2: bool = False
) -> torch.Tensor:
    """Returns the f32 scale, of the shape of `amax`, that brings a maximum to the largest value of `float8_dtype`. The
    division is in f64, where eager and compiled PyTorch agree. Raises ValueError if `float8_dtype` is not FP8."""
    scale = scale_of(amax, _largest(float8_dtype))
    return _round_scale_down_to_power_of_2(scale) if round_scales_to_power_of_2 else scale


def _round_scale_down_to_power_of_2(scale: torch.Tensor) -> torch.Tensor:
    """Returns the largest power of two that is not above each scale. Raises AssertionError if `scale` is not f32."""
    if scale.dtype != torch.float32:
        raise Float8AssertionError(f"scale must be float32 tensor, got {scale.dtype}")
    return torch.exp2(torch.floor(torch.log2(scale)))


@torch.no_grad()
def tensor_to_amax(
    x: torch.Tensor,
    reduce_amax: bool = False,
    device_mesh=None,
    scaling_granularity: ScalingGranularity = ScalingGranularity.TENSORWISE,
    axiswise_dim: Optional[int] = None,
) -> torch.Tensor:
    """Returns max|x| in the dtype of `x`: a scalar, or with axiswise scales a tensor whose `axiswise_dim` is 1.

    `reduce_amax` takes the maximum over the ranks of `device_mesh`, or of all ranks without one; it does nothing
    outside torch.distributed. An empty tensor, which a rank's shard of a small weight can be, has the maximum 0.
    """
    if scaling_granularity is ScalingGranularity.TENSORWISE and _has_uneven_shards(x):
        amax = _amax_of_shards(x)
    elif scaling_granularity is ScalingGranularity.TENSORWISE:
        amax = torch.max(torch.abs(x)) if x.numel() > 0 else x.new_zeros(())
    elif axiswise_dim is None:
        raise Float8AssertionError("unsupported: axiswise scaling without axiswise_dim; pass 0 or -1")
    elif x.numel() > 0:
        amax = torch.amax(torch.abs(x), dim=axiswise_dim, keepdim=True)
    else:
        amax = torch.sum(x, dim=axiswise_dim, keepdim=True)  # zeros, and of no row where there is none
    if reduce_amax and dist.is_initialized():
        group = list(range(dist.get_world_size())) if device_mesh is None else device_mesh.get_group()
        amax = largest_of_ranks(amax, group)
    return amax


def _has_uneven_shards(x: torch.Tensor) -> bool:
    """May a rank have no element of this DTensor, whose maximum PyTorch cannot take? All ranks give one answer."""
    if not isinstance(x, DTensor) or any(placement.is_partial() for placement in x.placements):
        return False
    parts = [1] * x.dim()
    for at, placement in enumerate(x.placements):
        if not placement.is_replicate():
            parts[placement.dim] *= x.device_mesh.size(at)  # Dynamo of PyTorch 2.11 does not trace the mesh's shape
    return any(size % count != 0 for size, count in zip(x.shape, parts))


def _amax_of_shards(x: DTensor) -> DTensor:
    local = x.to_local()
    amax = torch.max(torch.abs(local)) if local.numel() > 0 else local.new_zeros(())
    layout = [Replicate() if placement.is_replicate() else Partial("max") for placement in x.placements]
    shards = DTensor.from_local(amax, x.device_mesh, layout, run_check=False)
    return shards.redistribute(placements=[Replicate()] * len(layout))


def largest_of_ranks(amax: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns the elementwise maximum over the ranks of a group, in whichever form functional collectives take one."""
    largest = all_reduce(amax, "MAX", group)
    return largest.wait() if isinstance(largest, AsyncCollectiveTensor) else largest


@torch.no_grad()
def tensor_to_scale(
    hp_tensor: torch.Tensor,
    float8_dtype: torch.dtype,
    reduce_amax: bool = False,
    device_mesh=None,
    scaling_granularity: ScalingGranularity = ScalingGranularity.TENSORWISE,
    axiswise_dim: Optional[int] = None,
    round_scales_to_power_of_2: bool = False,
) -> torch.Tensor:
    """Returns the f32 scale of a tensor: amax_to_scale(tensor_to_amax(...)), with their arguments and errors."""
    amax = tensor_to_amax(hp_tensor, reduce_amax, device_mesh, scaling_granularity, axiswise_dim)
    return amax_to_scale(amax, float8_dtype, round_scales_to_power_of_2)


@torch.no_grad()
def amax_history_to_scale(
    amax_history: torch.Tensor, float8_dtype: torch.dtype, history_to_scale_fn_type: str
) -> torch.Tensor:
    """Returns the scale of the largest maximum of a history of shape (steps). Raises NotImplementedError for another
    function than "max"."""
    _require_max(history_to_scale_fn_type)
    return amax_to_scale(torch.max(amax_history), float8_dtype)


@torch.no_grad()
def amax_history_to_scale_stack(
    amax_history: torch.Tensor, float8_dtype: torch.dtype, history_to_scale_fn_type: str
) -> torch.Tensor:
    """Returns the scales, of shape (tensors), of histories of shape (tensors, steps). Raises NotImplementedError for
    another function than "max"."""
    _require_max(history_to_scale_fn_type)
    return amax_to_scale(torch.amax(amax_history, dim=1), float8_dtype)


def _require_max(function: str) -> None:
    if function != "max":
        raise Float8NotImplementedError(f'a scale comes from the "max" of a history, not from its {function!r}')


def to_fp8_saturated(x: torch.Tensor, float8_dtype: torch.dtype) -> torch.Tensor:
    """Returns `x` in `float8_dtype`, rounded to nearest even; what is too large becomes the largest value, NaN stays.
    Raises ValueError if `float8_dtype` is not FP8."""
    largest = _largest(float8_dtype)
    return x.clamp(min=-largest, max=largest).to(float8_dtype)


def compute_error(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns the ratio of signal to noise in dB, as a scalar tensor: how far `y` is from `x`, which is right."""
    signal = torch.linalg.vector_norm(x)
    noise = torch.linalg.vector_norm(x - y)
    return 20 * torch.log10(signal / noise)


def fp8_tensor_statistics(tensor: torch.Tensor, float8_dtype: torch.dtype) -> Tuple[int, int]:
    """Returns how many elements of a Float8TrainingTensor are zero and how many have the largest value of
    `float8_dtype`: many of either mean a wrong scale. Raises ValueError if `float8_dtype` is not FP8."""
    largest = _largest(float8_dtype)
    codes = tensor._data.to(tensor._orig_dtype)
    return int((codes == 0).sum().item()), int((codes.abs() == largest).sum().item())


def is_row_major(stride: Tuple[int, ...]) -> bool:
    """Are these the strides of a matrix whose rows are contiguous? Raises AssertionError if it has not 2
    dimensions."""
    if len(stride) != 2:
        raise Float8AssertionError(f"is_row_major takes the strides of a matrix, got those of {len(stride)} dimensions")
    return stride[0] > stride[1] and stride[1] == 1


def _get_min_alignment(size: int, alignment_value: int) -> int:
    """Returns the smallest multiple of `alignment_value` that is at least `size`."""
    return -(-size // alignment_value) * alignment_value


def pad_tensor_for_matmul(tensor: torch.Tensor, dims: Union[int, Iterable[int]]) -> torch.Tensor:
    """Returns a matrix padded with zeros so that its sizes along `dims` are multiples of 16. Raises AssertionError if
    `tensor` has not 2 dimensions."""
    if tensor.dim() != 2:
        raise Float8AssertionError(f"pad_tensor_for_matmul takes a matrix, got shape {tuple(tensor.shape)}")
    wanted = (dims,) if isinstance(dims, int) else tuple(dims)
    rows, columns = (
        _get_min_alignment(size, 16) - size if dim in wanted else 0 for dim, size in enumerate(tensor.shape)
    )
    return torch.nn.functional.pad(tensor, (0, columns, 0, rows))

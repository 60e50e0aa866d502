"""FSDP2's all-gather of weights in FP8: each rank casts its shard with the scale of the whole weight, and bytes are
sent."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn as nn
from torch.distributed._tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ._errors import Float8RuntimeError
from .float8_scaling_utils import hp_tensor_to_float8_dynamic
from .float8_training_tensor import (
    Float8TrainingTensor,
    GemmInputRole,
    LinearMMConfig,
    cast_with_own_scale,
)
from .float8_utils import amax_to_scale, largest_of_ranks

aten = torch.ops.aten

# FSDP pads and moves its shard with these; the result has to stay of the class, with the scale where the values are the
# same, ...
_KEEP_CLASS_AND_SCALE = {
    aten._pin_memory.default,
    aten._to_copy.default,
    aten.alias.default,
    aten.as_strided.default,
    aten.clone.default,
    aten.detach.default,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.view.default,
}
# ... and without it where they are new.
_KEEP_CLASS = {aten.empty_like.default, aten.new_empty.default, aten.new_zeros.default, aten.zeros_like.default}


class WeightWithDynamicFloat8CastTensor(torch.Tensor):
    """A weight that FSDP2 gathers in FP8.

    Holds the tensor, the LinearMMConfig of its layer, the FP8 dtype and, once
    precompute_float8_dynamic_scale_for_fsdp() has run, the scale. Operations see a plain tensor; one that writes to the
    weight drops the scale, so that an old one is never used.
    """

    @staticmethod
    def __new__(
        cls,
        tensor: torch.Tensor,
        linear_mm_config: LinearMMConfig,
        dtype: torch.dtype,
        precomputed_scale: Optional[torch.Tensor] = None,
        round_scales_to_power_of_2: bool = False,
    ):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            tensor.size(),
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=tensor.device,
            pin_memory=tensor.is_pinned(),
            requires_grad=tensor.requires_grad,
        )

    def __init__(
        self,
        tensor: torch.Tensor,
        linear_mm_config: LinearMMConfig,
        dtype: torch.dtype,
        precomputed_scale: Optional[torch.Tensor] = None,
        round_scales_to_power_of_2: bool = False,
    ) -> None:
        self._tensor = tensor
        self._linear_mm_config = linear_mm_config
        self._dtype = dtype
        self._precomputed_scale = precomputed_scale
        self._round_scales_to_power_of_2 = round_scales_to_power_of_2

    def _like(self, tensor: torch.Tensor, scale: Optional[torch.Tensor]) -> "WeightWithDynamicFloat8CastTensor":
        return WeightWithDynamicFloat8CastTensor(
            tensor, self._linear_mm_config, self._dtype, scale, self._round_scales_to_power_of_2
        )

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*tree_map_only(cls, _unwrapped, args), **tree_map_only(cls, _unwrapped, kwargs))
        if func is aten.copy_.default:
            return _after_copy(args[0], args[1])
        _forget_scales_of_written(func, args, kwargs)
        if func in _KEEP_CLASS_AND_SCALE or func in _KEEP_CLASS:
            source = args[0]
            scale = source._precomputed_scale if func in _KEEP_CLASS_AND_SCALE else None
            return tree_map_only(torch.Tensor, lambda each: source._like(each, scale), result)
        # What writes in place returns the tensor that it was given; what writes to lists of tensors returns nothing.
        is_first = args and result is not None and result is getattr(args[0], "_tensor", None)
        return args[0] if is_first else result

    def __tensor_flatten__(self):
        names = ["_tensor"] if self._precomputed_scale is None else ["_tensor", "_precomputed_scale"]
        return names, {
            "mm_config": self._linear_mm_config,
            "dtype": self._dtype,
            "round_scales_to_power_of_2": self._round_scales_to_power_of_2,
        }

    @staticmethod
    def __tensor_unflatten__(inner_tensors, flatten_spec, outer_size, outer_stride):
        return WeightWithDynamicFloat8CastTensor(
            inner_tensors["_tensor"],
            flatten_spec["mm_config"],
            flatten_spec["dtype"],
            inner_tensors.get("_precomputed_scale"),
            flatten_spec["round_scales_to_power_of_2"],
        )

    def __repr__(self) -> str:
        return (
            f"WeightWithDynamicFloat8CastTensor({self._tensor}, dtype={self._dtype}, "
            f"precomputed_scale={self._precomputed_scale}, linear_mm_config={self._linear_mm_config})"
        )

    def fsdp_pre_all_gather(
        self,
        mesh,
        outer_size: Optional[torch.Size] = None,
        outer_stride: Optional[Tuple[int, ...]] = None,
        module: Optional[nn.Module] = None,
        mp_policy: Any = None,
    ) -> Tuple[Tuple[torch.Tensor, ...], Tuple[torch.Tensor, ...]]:
        """Returns the bytes of this rank's shard, padded to the size that all ranks send, and the scale."""
        scale = self._precomputed_scale
        if scale is not None:
            cast = cast_with_own_scale(self._tensor, scale, self._dtype, self._linear_mm_config, GemmInputRole.WEIGHT)
        else:
            cast = hp_tensor_to_float8_dynamic(
                self._tensor,
                self._dtype,
                self._linear_mm_config,
                reduce_amax=True,
                gemm_input_role=GemmInputRole.WEIGHT,
                device_mesh=mesh,
                round_scales_to_power_of_2=self._round_scales_to_power_of_2,
            )
        codes = cast._data.contiguous().view(torch.uint8)
        return (_padded(codes, mesh, outer_size),), (cast._scale,)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: Tuple[torch.Tensor, ...],
        metadata: Tuple[torch.Tensor, ...],
        param_dtype: torch.dtype,
        *,
        out: Optional[torch.Tensor] = None,
    ):
        """Returns the gathered weight and the tensor that holds its bytes; or gives `out`, whose bytes are these, the
        new scale. Raises RuntimeError if `out` is no FP8 tensor."""
        (received,) = all_gather_outputs
        (scale,) = metadata
        if out is None:
            data = received.view(self._dtype)
            weight = Float8TrainingTensor(
                data, scale, param_dtype, self._linear_mm_config, gemm_input_role=GemmInputRole.WEIGHT
            )
            return weight, (data,)
        local = out._local_tensor if isinstance(out, DTensor) else out
        if not isinstance(local, Float8TrainingTensor):
            raise Float8RuntimeError(
                "the weight that was gathered in FP8 before is now a "
                f"{type(local).__name__}: it was replaced between two all-gathers; convert before fully_shard()"
            )
        local._scale = scale
        return None


# The names that torchao 0.9 had for weights with other scales. Here a weight is gathered with the scale of its own
# maximum, whatever scales the layer has.
WeightWithDelayedFloat8CastTensor = WeightWithDynamicFloat8CastTensor
WeightWithStaticFloat8CastTensor = WeightWithDynamicFloat8CastTensor


def _unwrapped(weight: WeightWithDynamicFloat8CastTensor) -> torch.Tensor:
    return weight._tensor


def _after_copy(target: torch.Tensor, source: Any) -> torch.Tensor:
    """A copy takes the scale of its source along, because the values are the same."""
    if isinstance(target, WeightWithDynamicFloat8CastTensor):
        target._precomputed_scale = getattr(source, "_precomputed_scale", None)
    return target


def _forget_scales_of_written(func: Any, args: tuple, kwargs: Dict[str, Any]) -> None:
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for each in tree_leaves(value):
            if isinstance(each, WeightWithDynamicFloat8CastTensor):
                each._precomputed_scale = None


def _padded(codes: torch.Tensor, mesh, outer_size: Optional[torch.Size]) -> torch.Tensor:
    """Pads the rows of a shard with zeros, because ranks that hold fewer rows, or none, send as many bytes as rank
    0."""
    if outer_size is None or codes.shape[1:] != outer_size[1:]:
        return codes
    missing = math.ceil(outer_size[0] / mesh.size()) - codes.shape[0]
    return codes if missing == 0 else torch.nn.functional.pad(codes, (0, 0, 0, missing))


@torch.no_grad()
def precompute_float8_dynamic_scale_for_fsdp(module: nn.Module) -> None:
    """Computes the scales of all weights that FSDP2 gathers in FP8, with one all-reduce for each mesh dimension that
    they are sharded over. To be called after optimizer.step(): without it every weight reduces its own maximum."""
    groups: Dict[Any, List[WeightWithDynamicFloat8CastTensor]] = {}
    for each in module.modules():
        weight = each._parameters.get("weight")
        if isinstance(weight, DTensor) and isinstance(weight._local_tensor, WeightWithDynamicFloat8CastTensor):
            sharded = tuple(dim for dim, placement in enumerate(weight.placements) if not placement.is_replicate())
            groups.setdefault((weight.device_mesh, sharded), []).append(weight._local_tensor)
    for (mesh, sharded), weights in groups.items():
        amaxes = _local_maxima(weights)
        for dim in sharded:
            amaxes = largest_of_ranks(amaxes, (mesh, dim))
        _give_scales(weights, amaxes)


def _local_maxima(weights: List[WeightWithDynamicFloat8CastTensor]) -> torch.Tensor:
    """Returns max|w| of each shard, in f32, which holds every 16-bit value; 0 for one without elements."""
    shards = [weight._tensor for weight in weights]
    maxima = torch.zeros(len(shards), dtype=torch.float32, device=shards[0].device)
    filled = [index for index, shard in enumerate(shards) if shard.numel() > 0]
    if filled:
        norms = torch._foreach_norm([shards[index] for index in filled], ord=math.inf)
        # No index tensor: making one would copy from the host.
        parts = [maxima[index] for index in filled]
        torch._foreach_copy_(parts, [norm.to(torch.float32) for norm in norms])
    return maxima


def _give_scales(weights: List[WeightWithDynamicFloat8CastTensor], amaxes: torch.Tensor) -> None:
    kinds = {(weight._dtype, weight._round_scales_to_power_of_2) for weight in weights}
    scales = {kind: amax_to_scale(amaxes, *kind) for kind in kinds}
    for index, weight in enumerate(weights):
        weight._precomputed_scale = scales[weight._dtype, weight._round_scales_to_power_of_2][index]


torch.serialization.add_safe_globals([WeightWithDynamicFloat8CastTensor])

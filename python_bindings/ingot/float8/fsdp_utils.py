"""FSDP2's all-gather of weights in FP8: each rank casts its shard with the scale of the whole weight, and bytes are
sent."""

from __future__ import annotations

import math
import weakref
import zlib
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn as nn
from torch.distributed._tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..torch._errors import Float8RuntimeError
from .float8_scaling_utils import hp_tensor_to_float8_dynamic
from .float8_training_tensor import (Float8TrainingTensor, GemmInputRole, LinearMMConfig, cast_with_own_scale)
from .float8_utils import amax_to_scale, largest_of_ranks

aten = torch.ops.aten

# FSDP pads and moves its shard with views and with these, whose results have to stay of the class: with the scale where
# the values are the same, ...
_COPIES = {aten._pin_memory.default, aten._to_copy.default, aten.clone.default}
# ... and without it where they are new.
_ZEROS = {aten.new_zeros.default, aten.zeros_like.default}
_NEW = {aten.empty_like.default, aten.new_empty.default, *_ZEROS}


class _KnownScale:
    """What is known of the weight in one memory. All its aliases share one of these, and a write through any of them
    clears it.

    `outside` is the tensor that the weight was made of, which a program may write too. Tensors that compiled code may
    write past the class, or other code, are watched by their versions.
    """

    __slots__ = ("_dtype", "_outside", "_scale", "_watched", "is_zero")

    def __init__(self, outside: Optional[torch.Tensor], is_zero: bool = False) -> None:
        self._outside = outside
        self.written()
        self.is_zero = is_zero

    def written(self) -> None:
        self.is_zero = False
        self._scale: Optional[torch.Tensor] = None
        self._dtype: Optional[torch.dtype] = None
        self._watched: Tuple[Tuple[torch.Tensor, int], ...] = ()

    def give(self, scale: Optional[torch.Tensor], dtype: torch.dtype, *aliases: torch.Tensor) -> None:
        self.written()
        if scale is not None:
            self._scale, self._dtype = scale, dtype
            watched = aliases if self._outside is None else (*aliases, self._outside)
            self._watched = tuple((each, _version(each)) for each in watched)

    def scale_of(self, dtype: torch.dtype) -> Optional[torch.Tensor]:
        if self._scale is not None and any(_version(each) != version for each, version in self._watched):
            self.written()
        return self._scale if dtype == self._dtype else None

    def __deepcopy__(self, memo: dict) -> "_KnownScale":
        new = _KnownScale(None, self.is_zero)
        if self._dtype is not None:
            new._scale, new._dtype = self.scale_of(self._dtype), self._dtype
        return new


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class WeightWithDynamicFloat8CastTensor(torch.Tensor):
    """A weight that FSDP2 gathers in FP8.

    Holds the tensor, the LinearMMConfig of its layer, the FP8 dtype and, once
    precompute_float8_dynamic_scale_for_fsdp() has run, the scale. Operations see a plain tensor. The scale belongs to
    the memory: all aliases share it (.data, .detach(), views, slices, what state_dict() returns), and one that writes
    drops it, so that an old one is never used. So does another dtype. Who writes past PyTorch, by a raw pointer, says so with
    weights_changed().
    """

    is_of_ingot = True

    @staticmethod
    def __new__(cls, tensor: torch.Tensor, *_: Any, **__: Any):
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
        self._round_scales_to_power_of_2 = round_scales_to_power_of_2
        self._known = _KnownScale(tensor)
        self._precomputed_scale = precomputed_scale

    @property
    def _precomputed_scale(self) -> Optional[torch.Tensor]:
        return self._known.scale_of(self.dtype)

    @_precomputed_scale.setter
    def _precomputed_scale(self, scale: Optional[torch.Tensor]) -> None:
        self._give(scale)

    def _give(self, scale: Optional[torch.Tensor], *outer: torch.Tensor) -> None:
        """The scale of these values. `outer` are tensors that hold this one, as a DTensor does: what compiled code
        writes, it says of these."""
        self._known.give(scale, self.dtype, self._tensor, *outer)

    @property
    def data(self) -> "WeightWithDynamicFloat8CastTensor":
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        """Raises RuntimeError for another shape or dtype: PyTorch would change what it knows of this tensor, but not
        its values."""
        if value.shape != self.shape or value.dtype != self.dtype or value.device != self.device:
            raise Float8RuntimeError(
                f"the data of a weight that FSDP gathers in FP8 is {self.dtype} of shape {tuple(self.shape)} on "
                f"{self.device}, and cannot become {value.dtype} of shape {tuple(value.shape)} on {value.device}: make "
                "a new parameter"
            )
        is_same = isinstance(value, WeightWithDynamicFloat8CastTensor)
        self._tensor = value._tensor if is_same else value.detach()
        self._known = value._known if is_same else _KnownScale(self._tensor)

    def _like(self, tensor: torch.Tensor) -> "WeightWithDynamicFloat8CastTensor":
        return WeightWithDynamicFloat8CastTensor(
            tensor, self._linear_mm_config, self._dtype, None, self._round_scales_to_power_of_2
        )

    def _alias(self, tensor: torch.Tensor) -> "WeightWithDynamicFloat8CastTensor":
        alias = self._like(tensor)
        alias._known = self._known
        return alias

    def _copy(self, tensor: torch.Tensor) -> "WeightWithDynamicFloat8CastTensor":
        copy = self._like(tensor)
        scale = self._precomputed_scale
        if scale is not None and copy.dtype == self.dtype:
            copy._precomputed_scale = scale.to(copy.device)
        return copy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*tree_map_only(cls, _unwrapped, args), **tree_map_only(cls, _unwrapped, kwargs))
        if func is aten.copy_.default:
            return _after_copy(args[0], args[1])
        source = args[0] if args and isinstance(args[0], cls) else None
        if func._schema.is_mutable:
            _forget_scales_of_written(func, args, kwargs)
        elif source is None:
            return result
        elif func.is_view or func is aten._unsafe_view.default:
            return tree_map_only(torch.Tensor, source._alias, result)
        elif func in _COPIES:
            return source._copy(result)
        elif func in _NEW:
            new = source._like(result)
            new._known.is_zero = func in _ZEROS
            return new
        # What writes in place returns the tensor that it was given; what writes to lists of tensors returns nothing.
        return source if source is not None and result is source._tensor else result

    def __getstate__(self) -> dict:
        names = ("_tensor", "_linear_mm_config", "_dtype", "_precomputed_scale", "_round_scales_to_power_of_2")
        others = {name: value for name, value in self.__dict__.items() if name != "_known"}
        return {**others, **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict) -> None:
        self._known = _KnownScale(state["_tensor"])
        for name in ("_tensor", *state):
            setattr(self, name, state[name])

    def __copy__(self) -> "WeightWithDynamicFloat8CastTensor":
        alias = self._alias(self._tensor).requires_grad_(self.requires_grad)
        alias.__dict__.update(self.__dict__)
        return alias

    def share_memory_(self) -> "WeightWithDynamicFloat8CastTensor":
        self._tensor.share_memory_()
        return self

    def is_shared(self) -> bool:
        return self._tensor.is_shared()

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


_GATHERED_AS = "_gathered_as"


def gathered_in_float8(
    weight: nn.Parameter, linear_mm_config: LinearMMConfig, dtype: torch.dtype, rounds: bool
) -> nn.Parameter:
    """Makes a parameter one that FSDP2 gathers in FP8, and returns it. It stays the same object with its gradient, hooks and
    attributes, so that layers which share it and optimizers that have it keep it. Only where PyTorch cannot exchange what
    an object holds, because a graph or a weak reference does too, another object takes its place, in all such layers."""
    if _GATHERED_AS in vars(weight):
        return vars(weight)[_GATHERED_AS]
    cast = WeightWithDynamicFloat8CastTensor(
        weight.detach(), linear_mm_config, dtype, round_scales_to_power_of_2=rounds
    )
    other = nn.Parameter(cast, requires_grad=weight.requires_grad)
    attributes, grad = dict(vars(weight)), weight.grad
    hooks, post_hooks = weight._backward_hooks, weight._post_accumulate_grad_hooks
    try:
        torch.utils.swap_tensors(weight, other)
        gathered = weight
    except RuntimeError:
        gathered = vars(weight)[_GATHERED_AS] = other
    vars(gathered).update(attributes)
    gathered.grad = grad
    # To assign them is what registers them with the tensor that the object now has.
    gathered._backward_hooks, gathered._post_accumulate_grad_hooks = hooks, post_hooks
    return gathered


# The names that torchao 0.9 had for weights with other scales. Here a weight is gathered with the scale of its own
# maximum, whatever scales the layer has.
WeightWithDelayedFloat8CastTensor = WeightWithDynamicFloat8CastTensor
WeightWithStaticFloat8CastTensor = WeightWithDynamicFloat8CastTensor


def _unwrapped(weight: WeightWithDynamicFloat8CastTensor) -> torch.Tensor:
    return weight._tensor


def _after_copy(target: torch.Tensor, source: Any) -> torch.Tensor:
    """A copy into a whole memory, or into zeros as FSDP pads them, takes the scale of its source along, because the
    values are the same."""
    if not isinstance(target, WeightWithDynamicFloat8CastTensor):
        return target
    scale = None
    if isinstance(source, WeightWithDynamicFloat8CastTensor) and _same_cast(target, source):
        tensor = target._tensor
        is_whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        scale = source._precomputed_scale if is_whole or target._known.is_zero else None
    target._precomputed_scale = scale
    return target


def _same_cast(one: WeightWithDynamicFloat8CastTensor, other: WeightWithDynamicFloat8CastTensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device and _kind(one) == _kind(other)


def _forget_scales_of_written(func: Any, args: tuple, kwargs: Dict[str, Any]) -> None:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for each in tree_leaves(value):
            if isinstance(each, WeightWithDynamicFloat8CastTensor):
                each._known.written()


def weights_changed(module: nn.Module) -> None:
    """Says that weights were written past PyTorch, by a raw pointer or a kernel of another library: scales that
    precompute_float8_dynamic_scale_for_fsdp() has computed are dropped. Writes by PyTorch need no call, through any
    alias. To be called on every rank."""
    for parameter in module.parameters():
        local = _local(parameter)
        if isinstance(local, WeightWithDynamicFloat8CastTensor):
            local._known.written()


def _padded(codes: torch.Tensor, mesh, outer_size: Optional[torch.Size]) -> torch.Tensor:
    """Pads the rows of a shard with zeros, because ranks that hold fewer rows, or none, send as many bytes as rank
    0."""
    if outer_size is None or codes.shape[1:] != outer_size[1:]:
        return codes
    missing = math.ceil(outer_size[0] / mesh.size()) - codes.shape[0]
    return codes if missing == 0 else torch.nn.functional.pad(codes, (0, 0, 0, missing))


# What the ranks of each module have agreed on.
_AGREED: "weakref.WeakKeyDictionary[nn.Module, tuple]" = weakref.WeakKeyDictionary()


@torch.no_grad()
def precompute_float8_dynamic_scale_for_fsdp(module: nn.Module) -> None:
    """Computes the scales of all weights that FSDP2 gathers in FP8, with one all-reduce for each mesh dimension that
    they are sharded over. To be called after optimizer.step(), on every rank: without it every weight reduces its own
    maximum.

    The first call for a module also asks whether all ranks have the same weights to gather, and raises RuntimeError on
    each of them if not.
    """
    groups: Dict[Any, List[DTensor]] = {}
    for each in module.modules():
        for parameter in each._parameters.values():
            if isinstance(parameter, DTensor):
                sharded = tuple(dim for dim, place in enumerate(parameter.placements) if not place.is_replicate())
                weights = groups.setdefault((parameter.device_mesh, sharded), [])
                if isinstance(parameter._local_tensor, WeightWithDynamicFloat8CastTensor):
                    weights.append(parameter)
    _agree(module, groups)
    for (mesh, sharded), weights in groups.items():
        if weights:
            maxima = _local_maxima(weights)
            amaxes = maxima.to(mesh.device_type)  # offloaded weights are on the CPU
            for dim in sharded:
                amaxes = largest_of_ranks(amaxes, (mesh, dim))
            _give_scales(weights, amaxes.to(maxima.device))


def _agree(module: nn.Module, groups: Dict[Any, List[DTensor]]) -> None:
    """Raises RuntimeError on every rank if ranks have other weights to gather. As many collectives as there are meshes,
    and only when the weights of a module are new."""
    facts = tuple((*key, len(weights), _checksum(weights)) for key, weights in groups.items())
    if _AGREED.get(module) == facts:
        return
    found = []
    for mesh, sharded, count, checksum in facts:
        extremes = torch.tensor([count, -count, checksum, -checksum], device=mesh.device_type)
        for dim in sharded:
            extremes = largest_of_ranks(extremes, (mesh, dim))
        found.append((count, *extremes.tolist()))
    for count, most, fewest, checksum, other in found:
        if most != -fewest or checksum != -other:
            others = "other shapes" if most == -fewest else f"from {-fewest} to {most}"
            raise Float8RuntimeError(
                f"precompute_float8_dynamic_scale_for_fsdp: this rank has {count} weights that are gathered in FP8, "
                f"and the ranks of its mesh have {others}: convert the same layers on every rank"
            )
    _AGREED[module] = facts


def _checksum(weights: List[DTensor]) -> int:
    casts = [(*weight.shape, str(weight._local_tensor._dtype)) for weight in weights]
    return zlib.crc32(repr(casts).encode())


def _local(weight: torch.Tensor) -> WeightWithDynamicFloat8CastTensor:
    return weight._local_tensor if isinstance(weight, DTensor) else weight


def _local_maxima(weights: List[torch.Tensor]) -> torch.Tensor:
    """Returns max|w| of each shard, in f32, which holds every 16-bit value; 0 for one without elements."""
    shards = [_local(weight)._tensor for weight in weights]
    maxima = torch.zeros(len(shards), dtype=torch.float32, device=shards[0].device)
    filled = [index for index, shard in enumerate(shards) if shard.numel() > 0]
    if filled:
        norms = torch._foreach_norm([shards[index] for index in filled], ord=math.inf)
        # No index tensor: making one would copy from the host.
        parts = [maxima[index] for index in filled]
        torch._foreach_copy_(parts, [norm.to(torch.float32) for norm in norms])
    return maxima


def _give_scales(weights: List[torch.Tensor], amaxes: torch.Tensor) -> None:
    kinds = {_kind(_local(weight)) for weight in weights}
    scales = {kind: amax_to_scale(amaxes, *kind) for kind in kinds}
    for index, weight in enumerate(weights):
        local = _local(weight)
        local._give(scales[_kind(local)][index], weight)


def _kind(weight: WeightWithDynamicFloat8CastTensor) -> Tuple[torch.dtype, bool]:
    return weight._dtype, weight._round_scales_to_power_of_2


torch.serialization.add_safe_globals([WeightWithDynamicFloat8CastTensor])

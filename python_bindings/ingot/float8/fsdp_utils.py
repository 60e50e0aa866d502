"""FSDP2's all-gather of weights in FP8 by torchao's names (ingot/torch/_sharded_weight.py has how it is done)."""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn as nn

from ..torch._gathered_weight import Casts
from ..torch._shard_gather import gathered_again, gathered_in_float8, plain_in_state_dict, precompute, weights_changed
from ..torch._shard_casts import ShardCast, rows_of
from ..torch._sharded_weight import ShardedWeight
from .float8_training_tensor import Float8TrainingTensor, GemmInputRole, LinearMMConfig

__all__ = [
    "WeightWithDelayedFloat8CastTensor",
    "WeightWithDynamicFloat8CastTensor",
    "WeightWithStaticFloat8CastTensor",
    "gathered_in_float8",
    "precompute_float8_dynamic_scale_for_fsdp",
    "weights_changed",
]


class WeightWithDynamicFloat8CastTensor(ShardedWeight):
    """A weight that FSDP2 gathers in FP8, as torchao.float8 makes it: with the LinearMMConfig of its layer, the FP8 dtype
    and, once precompute_float8_dynamic_scale_for_fsdp() has run, the scale (`_precomputed_scale`, float32 of one element;
    None where each row or block has one). `casts`, the layer's name and `rounds` are ShardedWeight's; without casts it has one
    scale. What is gathered is a Float8TrainingTensor where it has one scale."""

    def __init__(
        self,
        tensor: torch.Tensor,
        linear_mm_config: LinearMMConfig,
        dtype: torch.dtype,
        precomputed_scale: Optional[torch.Tensor] = None,
        round_scales_to_power_of_2: bool = False,
        casts: Optional[Casts] = None,
        name: str = "Float8Linear",
        rounds: bool = True,
    ) -> None:
        one = Casts(dtype, "tensor", "tensor", round_scales_to_power_of_2)
        super().__init__(tensor, one if casts is None else casts, name, rounds)
        self._linear_mm_config = linear_mm_config
        self._dtype = dtype
        self._round_scales_to_power_of_2 = round_scales_to_power_of_2
        if precomputed_scale is not None:
            self._precomputed_scale = precomputed_scale

    def _config(self) -> tuple:
        rounds_scales = self._round_scales_to_power_of_2
        return self._linear_mm_config, self._dtype, None, rounds_scales, self._casts, self._name, self._rounds

    @property
    def _precomputed_scale(self) -> Optional[torch.Tensor]:
        cast = self._known.cast_of(self.dtype)
        return cast.scales[0] if cast is not None and self._casts.output == "tensor" else None

    @_precomputed_scale.setter
    def _precomputed_scale(self, scale: Optional[torch.Tensor]) -> None:
        if scale is None:
            return self._known.written()
        unit = self._unit()
        dtype = (self.dtype if unit is None else unit.gathered_dtype) if self._rounds else None
        cast = ShardCast(dtype, rows_of(self._tensor))
        cast.scales[0] = scale
        self._known.give(cast, self.dtype, self._tensor, self, *self.watched())

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_precomputed_scale": self._precomputed_scale}

    def __setstate__(self, state: dict) -> None:
        """Also of a weight that Ingot 0.1 has saved."""
        one = Casts(state["_dtype"], "tensor", "tensor", state["_round_scales_to_power_of_2"])
        super().__setstate__({"_casts": one, "_name": "Float8Linear", "_rounds": True, **state})

    def __repr__(self) -> str:
        return (
            f"WeightWithDynamicFloat8CastTensor({self._tensor}, dtype={self._dtype}, casts={self._casts}, "
            f"precomputed_scale={self._precomputed_scale}, linear_mm_config={self._linear_mm_config})"
        )

    def _made(self, received, metadata, param_dtype):
        if metadata.scale is None or metadata.gather.mode != "codes":
            return super()._made(received, metadata, param_dtype)
        data, role = received[0].view(self._dtype), GemmInputRole.WEIGHT
        scale, scale_inv = metadata.scale, metadata.scale_inv[0]
        if metadata.stays:
            scale, scale_inv = scale.clone(), scale_inv.clone()
        made = Float8TrainingTensor(data, scale, param_dtype, self._linear_mm_config, gemm_input_role=role)
        made._scale_inv = scale_inv
        return made

    def _filled(self, local: torch.Tensor, metadata) -> bool:
        if not isinstance(local, Float8TrainingTensor):
            return super()._filled(local, metadata)
        if metadata.stays:  # casts write their scales in place
            for mine, new in ((local._scale, metadata.scale), (local._scale_inv, metadata.scale_inv[0])):
                with torch.autograd._unsafe_preserve_version_counter(mine):
                    mine.copy_(new)
        else:
            local._scale, local._scale_inv = metadata.scale, metadata.scale_inv[0]
        return True


# The names that torchao 0.9 had for weights with other scales. Here a weight is gathered with the scale of its own
# maximum, whatever scales the layer has.
WeightWithDelayedFloat8CastTensor = WeightWithDynamicFloat8CastTensor
WeightWithStaticFloat8CastTensor = WeightWithDynamicFloat8CastTensor


def precompute_float8_dynamic_scale_for_fsdp(module: nn.Module) -> None:
    """Computes the scales of all weights that FSDP2 gathers in FP8, with at most one all-reduce for each mesh dimension that they
    are sharded over, and one all-gather where rows have scales. To be called after optimizer.step(), on every rank: without it
    each gather asks the other ranks for the scales of what it gathers.

    The first call for a module also asks whether all ranks have the same weights to gather, and raises RuntimeError on
    each of them if not.
    """
    precompute(module)


torch.serialization.add_safe_globals([WeightWithDynamicFloat8CastTensor])

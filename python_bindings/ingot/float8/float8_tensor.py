"""The names that torchao.float8.float8_tensor had until version 0.9; see float8_training_tensor."""

from __future__ import annotations

from .float8_training_tensor import (
    Float8TrainingTensor,
    GemmInputRole,
    LinearMMConfig,
    ScaledMMConfig,
    choose_scaled_mm_config,
    hp_tensor_and_scale_to_float8,
)

Float8Tensor = Float8TrainingTensor

__all__ = [
    "Float8Tensor",
    "GemmInputRole",
    "LinearMMConfig",
    "ScaledMMConfig",
    "choose_scaled_mm_config",
    "hp_tensor_and_scale_to_float8",
]

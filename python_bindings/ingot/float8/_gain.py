"""What FP8 is expected to gain on a layer: the core's estimate (src/nn/linear_gain.h), for a config of this package."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from .. import _core
from .config import Float8LinearConfig, Float8LinearRecipeName, ScalingType


def recipe_of(config: Float8LinearConfig) -> Optional[str]:
    """Returns the name of the core's recipe that casts as `config` does, or None for casts of one's own."""
    if config.cast_config_input.scaling_type is ScalingType.DELAYED:
        return "delayed"
    for name in Float8LinearRecipeName:
        other = Float8LinearConfig.from_recipe_name(name)
        if all(getattr(config, field) == getattr(other, field) for field in _cast_fields()):
            return name.value
    return None


def _cast_fields() -> Tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(Float8LinearConfig) if f.name.startswith("cast_config"))


def expected_gain(
    config: Float8LinearConfig, tokens: int, in_features: int, out_features: int, gpu: Optional[str]
) -> Tuple[Optional[float], str]:
    """Returns the time of a step in 16 bits over that in FP8, and what the number rests on; None where nothing is known."""
    recipe = recipe_of(config)
    if recipe is None:
        return None, "no estimate for casts that are no recipe's"
    return _core.expected_gain(recipe, tokens, in_features, out_features, gpu or "")

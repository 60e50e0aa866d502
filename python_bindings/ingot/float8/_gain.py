"""What FP8 is expected to gain on a layer: the core's estimate (src/nn/planning/linear_gain.h), for a config of this package."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

from .. import _core
from .._context import context_for
from .config import Float8LinearConfig, Float8LinearRecipeName, ScalingType


def recipe_of(config: Float8LinearConfig) -> Optional[str]:
    """Returns the name of the core's recipe that casts as `config` does, or None for casts of one's own."""
    casts = (config.cast_config_input, config.cast_config_weight, config.cast_config_grad_output)
    if all(cast.scaling_type is ScalingType.DELAYED for cast in casts):
        return "delayed"
    for name in Float8LinearRecipeName:
        other = Float8LinearConfig.from_recipe_name(name)
        if all(getattr(config, field) == getattr(other, field) for field in _cast_fields()):
            return name.value
    return None


def _cast_fields() -> Tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Float8LinearConfig) if field.name.startswith("cast_config"))


def expected_gain(
    recipe: Optional[str], tokens: int, in_features: int, out_features: int, gpu: Optional[str]
) -> Tuple[Optional[float], str]:
    """Returns the time of a step in 16 bits over that in FP8, and what the number rests on; None where nothing is
    known. `recipe`: the core's name, or None for casts that are no recipe's. Raises ingot.Error for a GPU that is not known by name."""
    if recipe is None:
        return None, "no estimate for casts that are no recipe's"
    context = context_for("cpu" if gpu else "auto")
    if not gpu and context.device == "cpu":
        return None, 'there is no GPU here: name one, as gpu="h200"'
    return _core.expected_gain(context, recipe, tokens, in_features, out_features, gpu or "")

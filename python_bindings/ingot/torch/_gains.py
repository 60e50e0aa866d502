"""The core's estimate of what FP8 gains (src/nn/planning/conversion.h)."""

from __future__ import annotations

from typing import Optional, Tuple

from .. import _core
from .._context import context_for


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

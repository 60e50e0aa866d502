"""torchtitan: an override of its config puts FP8 layers into a model, without a change of its code.

    torchtitan ... --override.imports 'ingot.integrations.torchtitan.float8={"recipe": "rowwise"}'

The layers of the blocks' attention and MLPs become Ingot's; the output and routers of experts stay in high precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.config.override import derive, override
from torchtitan.models.common.linear import Linear
from torchtitan.protocols.module import Module

from ..nn import Float8Linear as IngotLinear

__all__ = ["Float8Linear", "float8"]

_BLOCKS = ["*layers.*.attention.*", "*layers.*.feed_forward.*", "*layers.*.moe.shared_experts.*"]


class Float8Linear(IngotLinear, Module):
    """ingot.nn.Float8Linear that torchtitan builds of its config, initialises and divides as its own linear layers."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        recipe: str = "tensorwise"
        history_length: int = 16

    def __init__(self, config: Any) -> None:
        options = {"recipe": config.recipe, "history_length": config.history_length}
        IngotLinear.__init__(self, config.in_features, config.out_features, config.bias, **options)


@override(target=Linear.Config, exact=True, fqns=_BLOCKS, description="linear layers in FP8, by Ingot")
def float8(config: Any, recipe: str = "tensorwise", history_length: int = 16) -> Any:
    """recipe: one of ingot.torch.RECIPES. With "delayed" the training loop has to call ingot.nn.sync_amax_history()."""
    return derive(config, Float8Linear.Config, recipe=recipe, history_length=history_length)

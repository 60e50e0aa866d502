"""Float8Linear: torch.nn.Linear whose GEMMs run in FP8, by one operator forward and one backward."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import LinearOptions, linear
from ..torch._errors import LinearError
from ..torch._modules import in_place_of


class Float8Linear(torch.nn.Linear):
    """torch.nn.Linear with its GEMMs in FP8, as ingot.torch.linear computes them.

    Takes inputs (..., in_features) of float32, float16 or bfloat16 and of any strides, and returns (..., out_features)
    in that dtype, or in autocast's. Parameters, and so checkpoints, are those of torch.nn.Linear. `recipe` is one of
    ingot.torch.RECIPES, `layer_name` the name in messages.

    Raises ingot.Error for an unknown recipe, and for another shape, dtype or device of the input.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        recipe: str = "tensorwise",
        layer_name: str = "linear",
    ) -> None:
        options = LinearOptions(recipe, layer_name)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.options = options

    @property
    def layer_name(self) -> str:
        """The layer's name in messages, monitors and traces."""
        return self.options.name

    @layer_name.setter
    def layer_name(self, name: str) -> None:
        self.options = LinearOptions(self.options.recipe, name)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias, self.options)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.options.recipe}"

    @classmethod
    def from_float(
        cls, module: torch.nn.Linear, recipe: str = "tensorwise", layer_name: str = "linear"
    ) -> "Float8Linear":
        """Returns an FP8 layer with everything of `module`: the same parameters, hooks, `.training`, and whatever else
        was set on it. Raises LinearError if `module` is no torch.nn.Linear."""
        if not isinstance(module, torch.nn.Linear):
            raise LinearError(f"Float8Linear.from_float: takes a torch.nn.Linear, got a {type(module).__name__}")
        options = LinearOptions(recipe, layer_name)
        new = in_place_of(module, cls)
        new.options = options
        return new

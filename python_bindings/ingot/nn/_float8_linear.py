"""Float8Linear: torch.nn.Linear whose GEMMs run in FP8, by one operator forward and one backward."""

from __future__ import annotations

from typing import Optional, Union

import torch

from ..torch import LinearOptions, NormLinearOptions, linear, norm_linear
from ..torch._errors import LinearError
from ..torch._modules import in_place_of


def _options(recipe: str, layer_name: str, activation: str) -> Union[LinearOptions, NormLinearOptions]:
    if activation:
        return NormLinearOptions(recipe, layer_name, None, activation)
    return LinearOptions(recipe, layer_name)


class Float8Linear(torch.nn.Linear):
    """torch.nn.Linear with its GEMMs in FP8, as ingot.torch.linear computes them.

    Takes inputs (..., in_features) of float32, float16 or bfloat16 and of any strides, and returns (..., out_features)
    in that dtype, or in autocast's. Parameters, and so checkpoints, are those of torch.nn.Linear. `recipe` is one of
    ingot.torch.RECIPES, `layer_name` the name in messages. `activation`, a function's name ("silu", "gelu" ...) or an
    expression of x (docs/pointwise.md), is applied to the output within the layer's GEMM.

    Raises ingot.Error for an unknown recipe or activation, and for another shape, dtype or device of the input.
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
        activation: str = "",
    ) -> None:
        options = _options(recipe, layer_name, activation)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.options = options

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        options = self.options
        if isinstance(options, NormLinearOptions):
            return norm_linear(input, None, None, self.weight, self.bias, options)
        return linear(input, self.weight, self.bias, options)

    def extra_repr(self) -> str:
        activation = getattr(self.options, "activation", "")
        return f"{super().extra_repr()}, recipe={self.options.recipe}" + (f", {activation=}" if activation else "")

    @classmethod
    def from_float(
        cls,
        module: torch.nn.Linear,
        recipe: str = "tensorwise",
        layer_name: str = "linear",
        activation: str = "",
    ) -> "Float8Linear":
        """Returns an FP8 layer with everything of `module`: the same parameters, hooks, `.training`, and whatever else
        was set on it. Raises LinearError if `module` is no torch.nn.Linear."""
        if not isinstance(module, torch.nn.Linear):
            raise LinearError(f"Float8Linear.from_float: takes a torch.nn.Linear, got a {type(module).__name__}")
        options = _options(recipe, layer_name, activation)
        new = in_place_of(module, cls)
        new.options = options
        return new

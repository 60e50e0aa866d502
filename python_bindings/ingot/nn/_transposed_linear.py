"""A linear layer whose weight is (in_features, out_features), as transformers' Conv1D of GPT-2 has it."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import NormLinearOptions, norm_linear
from ..torch._modules import in_place_of
from ._delayed import KeepsScales
from ._parts import NamedLayer, norm_options, norm_parameters


def is_transposed_linear(module: torch.nn.Module) -> bool:
    """Is it transformers' Conv1D, which is no convolution?"""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") and "forward" not in vars(module)


class TransposedLinear(NamedLayer, KeepsScales):
    """norm(input) @ weight + bias, in FP8, with a weight (in_features, out_features); the norm, in front, is optional. Casts
    read the weight's transpose, which is copied in each call: `weight.t()` as a torch.nn.Linear's is faster."""

    norm: Optional[torch.nn.Module] = None

    @classmethod
    def of(cls, module: torch.nn.Module, norm, *, zero_centred: bool, recipe: str, layer_name: str, history_length: int):
        """With everything of a Conv1D. Raises LinearError for a norm of another size or kind."""
        features = module.weight.shape[0]
        options = norm_options(norm, features, zero_centred, f'convert "{layer_name}"')
        new = in_place_of(module, cls)
        new.in_features, new.out_features = module.weight.shape
        new.options = NormLinearOptions(recipe, layer_name, options)
        new._keep_scales(new.options.subject, history_length)
        return new

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weight's transpose, which is no parameter: FSDP gathers it in high precision."""
        return [(self.options.name, self.weight.t())]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        norm = norm_parameters(self.norm, self.options)
        return norm_linear(input, *norm, self.weight.t(), self.bias, self.options, self._delayed(input))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, recipe={self.options.recipe}"

"""norm_linear(): a LayerNorm or RMSNorm, the linear layer after it and its activation, by one operator each way."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from ._checks import check_layer
from ._linear import in_autocasts_dtype
from ._module_calls import DelayedScales, ModuleOptions, NormOptions, activation_of, run


@dataclasses.dataclass(frozen=True)
class NormLinearOptions(ModuleOptions):
    """How norm_linear() computes.

    recipe: one of RECIPES, or "delayed". name: the layer's name in messages. norm: the norm before it,
    or None. activation: applied to the layer's output x: a function's name ("silu", "gelu", "relu" ...), or an expression
    of x (docs/pointwise.md). keep_weight_codes: forward keeps the weight's FP8 codes for backward (LinearOptions
    says more). fast_math: the activation and its derivative use
    the GPU's own exp, tanh and so on (docs/numerics.md): faster, and not to the bit a CPU's.
    """

    recipe: str = "tensorwise"
    name: str = "norm_linear"
    norm: Optional[NormOptions] = NormOptions()
    activation: str = ""
    keep_weight_codes: Optional[bool] = None
    fast_math: bool = False

    def __post_init__(self) -> None:
        kind = "" if self.norm is None else "RMSNorm " if self.norm.kind == "rms" else "LayerNorm "
        self._settle(lambda names: f'{kind}linear "{names[0]}"', (self.name,), self.norm)
        vars(self)["_activation"] = activation_of(self.subject, self.activation, self.fast_math)


def norm_linear(
    input: torch.Tensor,
    norm_weight: Optional[torch.Tensor],
    norm_bias: Optional[torch.Tensor],
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    options: NormLinearOptions = NormLinearOptions(),
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """Returns activation(norm(input) @ weight.T + bias), shape (..., out_features), in the input's dtype or autocast's.

    input: (..., in_features), float32, float16 or bfloat16, of any strides. norm_weight, norm_bias: (in_features,), in
    the input's dtype, or float32, which is rounded to the input's dtype; None where the norm has none. weight:
    (out_features, in_features); bias: (out_features,) or None. A weight's main_grad is added to, as in linear(). delayed: the scales of the recipe "delayed". Gradients have the dtypes of
    their tensors.

    The normalised values are cast to FP8 without being written. Backward keeps the input, a few numbers for each row
    and FP8 codes; of a fused activation it keeps the layer's output, in the input's dtype. Raises LinearError, an
    ingot.Error that names the layer.
    """
    check_layer(options, input, weight, bias)
    input = in_autocasts_dtype(input)
    layers = ((weight, bias, options, ""),)
    return run("norm_linear", options, (input,), layers, (norm_weight, norm_bias), delayed)

"""gated_linear(): an activation of a gate and up, and the linear layer after it, by one operator each way."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from ._checks import check_dense, check_layer, refuse
from ._linear import in_autocasts_dtype
from ._module_calls import DelayedScales, ModuleOptions, mlp_activation_of, run


@dataclasses.dataclass(frozen=True)
class GatedLinearOptions(ModuleOptions):
    """How gated_linear() computes.

    recipe: one of RECIPES, or "delayed". name: the layer's name in messages. activation: a function's name, of the gate, which then
    multiplies up, or an expression of x (the gate) and `up` (docs/pointwise.md). keep_weight_codes:
    forward keeps the weight's FP8 codes for backward (LinearOptions says more). fast_math: the activation and its derivative use
    the GPU's own exp, tanh and so on (docs/numerics.md).
    """

    recipe: str = "tensorwise"
    name: str = "gated_linear"
    activation: str = "silu"
    keep_weight_codes: Optional[bool] = None
    fast_math: bool = False

    def __post_init__(self) -> None:
        self._settle(lambda names: f'gated linear "{names[0]}"', (self.name,))
        vars(self)["_activation"] = mlp_activation_of(self.subject, self.activation, True, self.fast_math)


def gated_linear(
    gate: torch.Tensor,
    up: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    options: GatedLinearOptions = GatedLinearOptions(),
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """Returns (silu(gate) * up) @ weight.T + bias, or with another activation of both, in the dtype of gate, or
    autocast's: the second half of a gated MLP whose first half are two layers, by shared_linear() for example.

    gate, up: (..., in_features), of one shape and dtype, float32, float16 or bfloat16, of any strides. weight:
    (out_features, in_features), of those dtypes; bias: (out_features,) or None. A weight's main_grad is added to, as in linear().
    delayed: the scales of the recipe "delayed".

    The activation is computed within the cast to FP8, and written nowhere. Backward keeps gate, up and FP8 codes. Raises
    LinearError, an ingot.Error that names the layer.
    """
    check_layer(options, gate, weight, bias, ("weight", "bias"))
    check_dense(options, "up", up)
    gate, up = in_autocasts_dtype(gate), in_autocasts_dtype(up)
    if up.shape != gate.shape or up.dtype != gate.dtype or up.device != gate.device:
        refuse(
            options,
            f"up: is {up.dtype} of shape {tuple(up.shape)} on {up.device}, expected the gate's {gate.dtype} of shape "
            f"{tuple(gate.shape)} on {gate.device}",
        )
    return run("gated_linear", options, (gate, up), ((weight, bias, options, ""),), None, delayed)

"""mlp(): two linear layers with an activation between them, plain or gated, and a norm in front, by one operator each
way."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from ._checks import check_layer, check_tensor, check_vector, check_weight, refuse
from ._gated_linear import GatedLinearOptions, gated_linear
from ._linear import in_autocasts_dtype
from ._module_calls import DelayedScales, ModuleOptions, NormOptions, mlp_activation_of, run
from ._shared_linear import SharedLinearOptions, shared_linear


@dataclasses.dataclass(frozen=True)
class MlpOptions(ModuleOptions):
    """How mlp() computes.

    recipe: one of RECIPES, or "delayed". name: the MLP's name in messages. gated: the first layer makes a gate and what it
    multiplies. activation: between the layers: a function's name, of x or of the gate, or an expression of x, and gated
    of x (the gate) and `up` (docs/pointwise.md); default silu, or gelu of a plain MLP. norm: the norm in front, or
    None. keep_weight_codes: forward keeps the FP8 codes of all weights for backward (LinearOptions says more). fast_math: the
    activation and its derivative use the GPU's own exp, tanh and so on (docs/numerics.md).
    """

    recipe: str = "tensorwise"
    name: str = "mlp"
    gated: bool = True
    activation: str = ""
    norm: Optional[NormOptions] = None
    keep_weight_codes: Optional[bool] = None
    fast_math: bool = False

    def __post_init__(self) -> None:
        self._settle(lambda names: f'MLP "{names[0]}"', (self.name,), self.norm)
        activation = self.activation or ("silu" if self.gated else "gelu")
        vars(self)["_activation"] = mlp_activation_of(self.subject, activation, self.gated, self.fast_math)
        vars(self)["_apart"] = self._options_apart() if self.gated else None

    def _options_apart(self) -> tuple[SharedLinearOptions, GatedLinearOptions]:
        """The options of shared_linear() and gated_linear(), for an MLP whose gate and up have separate weights."""
        names = (f"{self.name}.gate", f"{self.name}.up")
        text, fast_math = self._activation
        gated = GatedLinearOptions(self.recipe, f"{self.name}.down", text, self.keep_weight_codes, fast_math)
        return SharedLinearOptions(self.recipe, names, self.norm, self.keep_weight_codes), gated


def _check(input, up_weight, up_bias, down_weight, down_bias, options: MlpOptions) -> None:
    check_layer(options, input, up_weight, up_bias, ("up weight", "up bias"))
    check_weight(options, "down weight", down_weight)
    features, hidden = down_weight.shape
    rows, columns = up_weight.shape
    if features != columns:
        refuse(
            options,
            f"down weight: has shape {(features, hidden)}, expected ({columns}, hidden): its output has as many "
            "features as the input",
        )
    if rows != hidden * (2 if options.gated else 1):
        what = "twice as many rows, the gate's and then the others" if options.gated else "as many rows"
        refuse(
            options,
            f"up weight: has shape {(rows, columns)} with a down weight of {(features, hidden)}, expected {what}",
        )
    if (up_bias is None) != (down_bias is None):
        refuse(options, "bias: only one of the two layers has one: give both one, of zeros perhaps, or neither")
    check_tensor(options, "down weight", down_weight, input)
    if down_bias is not None:
        check_vector(options, "down bias", down_bias, features)
        check_tensor(options, "down bias", down_bias, input)
        if up_bias.dtype != down_bias.dtype:
            refuse(
                options, f"down bias: is {down_bias.dtype}, but that of up is {up_bias.dtype}: convert one with .to()"
            )
    if up_weight.dtype != down_weight.dtype:
        refuse(
            options, f"down weight: is {down_weight.dtype}, but that of up is {up_weight.dtype}: convert one with .to()"
        )


def mlp(
    input: torch.Tensor,
    up_weight: torch.Tensor,
    down_weight: torch.Tensor,
    up_bias: Optional[torch.Tensor] = None,
    down_bias: Optional[torch.Tensor] = None,
    norm_weight: Optional[torch.Tensor] = None,
    norm_bias: Optional[torch.Tensor] = None,
    options: MlpOptions = MlpOptions(),
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """Returns activation(norm(input) @ up_weight.T + up_bias) @ down_weight.T + down_bias, in the input's shape and
    dtype, or autocast's.

    input: (..., features), float32, float16 or bfloat16, of any strides. up_weight: (hidden, features), or gated
    (2 * hidden, features), the gate's rows first; down_weight: (features, hidden); up_bias, down_bias: (rows,), both or
    neither. Weights have one dtype, and biases; weights of float32 with 16-bit inputs are cast straight to FP8.
    norm_weight, norm_bias: (features,), in the input's dtype or float32; None where the norm has none. delayed: the scales of
    the recipe "delayed", of the first layer and the second.

    A weight's main_grad is added to, as in linear(). Backward keeps the first layer's output in high precision, FP8 codes, and
    with a norm the input. Raises LinearError, an ingot.Error that names the MLP.
    """
    _check(input, up_weight, up_bias, down_weight, down_bias, options)
    input = in_autocasts_dtype(input)
    layers = ((up_weight, up_bias, options, "up weight "), (down_weight, down_bias, options, "down weight "))
    return run("mlp", options, (input,), layers, (norm_weight, norm_bias), delayed)


def mlp_of_gate_and_up(
    input: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    down_weight: torch.Tensor,
    biases: tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (None, None),
    down_bias: Optional[torch.Tensor] = None,
    norm_weight: Optional[torch.Tensor] = None,
    norm_bias: Optional[torch.Tensor] = None,
    options: MlpOptions = MlpOptions(),
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """A gated mlp() whose gate and up have separate weights (hidden, features): shared_linear(), then gated_linear(),
    which copy neither. Each weight, and the gradient of each output, has its own scales, so that results have the bits
    of three layers; with one weight for both, results differ by FP8's rounding.

    input: (..., features), float32, float16 or bfloat16, of any strides; the result has its shape and dtype, or autocast's.
    down_weight: (features, hidden); biases: (hidden,) or None of each; down_bias: (features,) or None. norm_weight, norm_bias:
    (features,), in the input's dtype or float32; None where the norm has none. options: as mlp() takes them, gated. delayed: the
    scales of the recipe "delayed", of gate, up and the layer after them. Raises LinearError, an ingot.Error that names the MLP.
    """
    shared, gated = options._apart
    of_shared = of_gated = None
    if delayed is not None:
        scale, amax, starts = delayed
        of_both = starts, starts
        if isinstance(starts, torch.Tensor):  # of the layers' sizes: gate's and up's, and that of the layer after them
            of_both = starts.select(2, 0), starts.select(0, 0).select(0, 0)
        of_shared = DelayedScales(scale[:2], amax[:2], of_both[0])
        of_gated = DelayedScales(scale[2:], amax[2:], of_both[1])
    gate, up = shared_linear(input, weights, biases, norm_weight, norm_bias, shared, of_shared)
    return gated_linear(gate, up, down_weight, down_bias, gated, of_gated)

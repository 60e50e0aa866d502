"""norm_linear(): a LayerNorm or RMSNorm, the linear layer after it and its activation, by one operator each way."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from . import _module_operators as ops
from ._checks import check_layer, check_norm, refuse_double_backward
from ._linear import in_autocasts_dtype
from ._module_calls import (
    DelayedScales,
    NormOptions,
    Weight,
    activation_of,
    check_module_recipe,
    forward_of,
    gradients,
    layer_of,
    norm_of,
    note_main_grads,
    note_scales,
    run,
    weight_of,
)
from ._main_grad import main_grad_of
from ._names import PLACEHOLDERS, with_names
from ._operators import PlanTable


@dataclasses.dataclass(frozen=True)
class NormLinearOptions:
    """How norm_linear() computes.

    recipe: one of RECIPES, or "delayed". name: the layer's name in messages. norm: the norm before it,
    or None. activation: applied to the layer's output x: a function's name ("silu", "gelu", "relu" ...), or an expression
    of x (docs/pointwise.md). keep_weight_codes: as LinearOptions has it. fast_math: the activation and its derivative use
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
        object.__setattr__(self, "_subject", f'{kind}linear "{PLACEHOLDERS[0]}"')
        object.__setattr__(self, "subject", with_names(self._subject, (self.name,)))
        check_module_recipe(self.subject, self.recipe)
        object.__setattr__(self, "_plans", PlanTable())
        object.__setattr__(self, "_names", (self.name,))
        object.__setattr__(self, "_norm", norm_of(self.norm))
        object.__setattr__(self, "_activation", activation_of(self.subject, self.activation, self.fast_math))

    def __reduce__(self):
        fields = (self.recipe, self.name, self.norm, self.activation, self.keep_weight_codes, self.fast_math)
        return NormLinearOptions, fields


_WEIGHTS = {3: Weight(ops.WEIGHT, "main_grad")}


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gamma, beta, weight, bias, plan, reads, subject, main_grad, scale, amax, starts):
        needs = ctx.needs_input_grad
        of_input = needs[0] or needs[1] or needs[2]
        wants = (ops.INPUT if needs[0] else 0) | (ops.WEIGHT if needs[3] else 0) | (ops.BIAS if needs[4] else 0)
        if needs[1] or needs[2]:
            wants |= ops.GAMMA
        keep = ops.KEEP_SAVED if wants else 0
        if of_input and not reads & ops.READS_WEIGHT:
            keep |= ops.KEEP_CODES
        output, saved = _forward(input, gamma, beta, weight, bias, plan, keep, scale, amax, starts)
        ctx.plan, ctx.wants, ctx.subject = plan, wants, subject
        note_main_grads(ctx, (input, gamma, beta, weight), _WEIGHTS, (main_grad,))
        note_scales(ctx, reads, scale, amax, starts)
        reads_input = (of_input and reads & ops.READS_INPUT_FOR_INPUT) or (
            needs[3] and reads & ops.READS_INPUT_FOR_WEIGHT
        )
        ctx.save_for_backward(
            saved,
            input if reads_input else None,
            gamma if of_input else None,
            weight if of_input and reads & ops.READS_WEIGHT else None,
            output if reads & ops.READS_OUTPUT else None,
        )
        return output

    @staticmethod
    def backward(ctx, grad_output):
        refuse_double_backward(ctx.subject)
        saved, *others = ctx.saved_tensors
        grads = gradients(ctx, ops.NORM_LINEAR, (grad_output, *others, saved), _WEIGHTS)
        needs = ctx.needs_input_grad  # those of gamma and beta come together
        return (*(grad if need else None for grad, need in zip(grads, needs)), *(None,) * 7)


def _forward(input, gamma, beta, weight, bias, plan, keep, *state):
    return forward_of(ops.NORM_LINEAR, (input, gamma, beta, weight, bias), plan, keep, *state)


def _infer(input, gamma, beta, weight, bias, plan, *state):
    return _forward(input, gamma, beta, weight, bias, plan, 0, *state)[0]


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
    the input's dtype, or float32, which is rounded to the input's dtype; None where the norm has none. weight and bias
    as linear() takes them, main_grad included. delayed: the scales of the recipe "delayed". Gradients have the dtypes of
    their tensors.

    The normalised values are cast to FP8 without being written. Backward keeps the input, a few numbers for each row
    and FP8 codes; of a fused activation it keeps the layer's output, in the input's dtype. Raises LinearError, an
    ingot.Error that names the layer.
    """
    check_layer(options, input, weight, bias)
    input = in_autocasts_dtype(input)
    if options.norm is not None:
        check_norm(options, input, norm_weight, norm_bias, options.norm.kind)
        norm_bias = beta_of(options.norm, norm_weight, norm_bias)
    trains_weight = torch.is_grad_enabled() and weight.requires_grad
    main_grads = (main_grad_of(weight, options),)
    weight = weight_of(weight, input, options.recipe)
    tensors = (input, norm_weight, norm_bias, weight, bias)
    layers = (layer_of(weight, bias),)
    operands = (options, input, norm_weight, tensors, layers, trains_weight, main_grads, delayed)
    return run("norm_linear", _NormLinear, _infer, *operands)


def beta_of(
    norm: NormOptions, gamma: Optional[torch.Tensor], beta: Optional[torch.Tensor]
) -> Optional[torch.Tensor]:
    """Returns a LayerNorm's bias: zeros if it has only a weight."""
    if norm.kind == "layer" and gamma is not None and beta is None:
        return torch.zeros_like(gamma, requires_grad=False)
    return beta

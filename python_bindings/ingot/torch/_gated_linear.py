"""gated_linear(): an activation of a gate and up, and the linear layer after it, by one operator each way."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from . import _module_operators as ops
from ._checks import check_dense, check_layer, refuse, refuse_double_backward
from ._linear import in_autocasts_dtype
from ._main_grad import main_grad_of
from ._module_calls import (
    DelayedScales,
    Weight,
    mlp_activation_of,
    check_module_recipe,
    forward_of,
    gradients,
    layer_of,
    note_main_grads,
    note_scales,
    run,
    weight_of,
)
from ._names import PLACEHOLDERS, with_names
from ._operators import PlanTable


@dataclasses.dataclass(frozen=True)
class GatedLinearOptions:
    """How gated_linear() computes.

    recipe: one of RECIPES, or "delayed". name: the layer's name in messages. activation: a function's name, of the gate, which then
    multiplies up, or an expression of x (the gate) and `up` (docs/pointwise.md). keep_weight_codes: as LinearOptions
    has it. fast_math: as NormLinearOptions has it.
    """

    recipe: str = "tensorwise"
    name: str = "gated_linear"
    activation: str = "silu"
    keep_weight_codes: Optional[bool] = None
    fast_math: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_subject", f'gated linear "{PLACEHOLDERS[0]}"')
        object.__setattr__(self, "subject", with_names(self._subject, (self.name,)))
        check_module_recipe(self.subject, self.recipe)
        object.__setattr__(self, "_plans", PlanTable())
        object.__setattr__(self, "_names", (self.name,))
        object.__setattr__(self, "_norm", None)
        of_gate = mlp_activation_of(self.subject, self.activation, True, self.fast_math)
        object.__setattr__(self, "_activation", of_gate)

    def __reduce__(self):
        """Copies and pickles have no plans: their numbers are of this process."""
        fields = (self.recipe, self.name, self.activation, self.keep_weight_codes, self.fast_math)
        return GatedLinearOptions, fields


_WEIGHTS = {2: Weight(ops.WEIGHT, "main_grad")}


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, weight, bias, plan, reads, subject, main_grad, *state):
        needs = ctx.needs_input_grad
        wants = 0
        for need, bit in zip(needs, (ops.INPUT, ops.UP, ops.WEIGHT, ops.BIAS)):
            wants |= bit if need else 0
        of_inputs = needs[0] or needs[1]
        keep = ops.KEEP_SAVED if wants else 0
        if of_inputs and not reads & ops.READS_WEIGHT:
            keep |= ops.KEEP_CODES
        output, saved = _forward(gate, up, weight, bias, plan, keep, *state)
        ctx.plan, ctx.wants, ctx.subject = plan, wants, subject
        note_main_grads(ctx, (gate, up, weight), _WEIGHTS, (main_grad,))
        note_scales(ctx, reads, *state)
        ctx.save_for_backward(
            saved,
            gate if wants else None,
            up if wants else None,
            weight if of_inputs and reads & ops.READS_WEIGHT else None,
        )
        return output

    @staticmethod
    def backward(ctx, grad_output):
        refuse_double_backward(ctx.subject)
        saved, gate, up, weight = ctx.saved_tensors
        grads = gradients(ctx, ops.GATED_LINEAR, (grad_output, gate, up, weight, saved), _WEIGHTS)
        return (*grads, *(None,) * 7)


def _forward(gate, up, weight, bias, plan, keep, *state):
    return forward_of(ops.GATED_LINEAR, (gate, up, weight, bias), plan, keep, *state)


def _infer(gate, up, weight, bias, plan, *state):
    return _forward(gate, up, weight, bias, plan, 0, *state)[0]


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
    (out_features, in_features) and bias: (out_features,), as linear() takes them, main_grad included.
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
    trains_weight = torch.is_grad_enabled() and weight.requires_grad
    main_grads = (main_grad_of(weight, options),)
    weight = weight_of(weight, gate, options.recipe)
    tensors, layers = (gate, up, weight, bias), (layer_of(weight, bias),)
    operands = (options, gate, None, tensors, layers, trains_weight, main_grads, delayed)
    return run("gated_linear", _GatedLinear, _infer, *operands)

"""shared_linear(): two or three linear layers of one input, such as q, k and v, which is cast and kept once."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

import torch

from . import _module_operators as ops
from ._checks import check_layer, check_norm, refuse, refuse_double_backward
from ._linear import in_autocasts_dtype
from ._module_calls import (
    DelayedScales,
    NormOptions,
    Weight,
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
from ._norm_linear import beta_of
from ._names import PLACEHOLDERS
from ._operators import PlanTable

_MOST = 3


def _subject(names) -> str:
    return "shared input of " + ", ".join(f'linear "{name}"' for name in names)


@dataclasses.dataclass(frozen=True)
class SharedLinearOptions:
    """How shared_linear() computes.

    recipe: one of RECIPES, or "delayed", of all layers. names: the layers' names in messages. norm: the norm in front, or
    None. keep_weight_codes: as LinearOptions has it, of all layers.
    """

    recipe: str = "tensorwise"
    names: tuple[str, ...] = ("q", "k", "v")
    norm: Optional[NormOptions] = None
    keep_weight_codes: Optional[bool] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "subject", _subject(self.names))
        object.__setattr__(self, "_count", len(self.names))
        object.__setattr__(self, "_subject", _subject(PLACEHOLDERS[: len(self.names)]))
        check_module_recipe(self.subject, self.recipe)
        object.__setattr__(self, "_plans", PlanTable())
        object.__setattr__(self, "_names", self.names)
        object.__setattr__(self, "_norm", norm_of(self.norm))
        object.__setattr__(self, "_activation", None)

    def __reduce__(self):
        return SharedLinearOptions, (self.recipe, self.names, self.norm, self.keep_weight_codes)


_WEIGHTS = {3 + 2 * at: Weight(ops.of_layer(ops.WEIGHT, at), f"main_grad{at}") for at in range(_MOST)}


class _SharedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        input,
        gamma,
        beta,
        weight0,
        bias0,
        weight1,
        bias1,
        weight2,
        bias2,
        plan,
        reads,
        subject,
        main_grad0,
        main_grad1,
        main_grad2,
        *state,
    ):
        needs = ctx.needs_input_grad
        of_input = needs[0] or needs[1] or needs[2]
        wants = (ops.INPUT if needs[0] else 0) | (ops.GAMMA if needs[1] or needs[2] else 0)
        wants_weight = False
        for at in range(_MOST):
            wants |= ops.of_layer(ops.WEIGHT, at) if needs[3 + 2 * at] else 0
            wants |= ops.of_layer(ops.BIAS, at) if needs[4 + 2 * at] else 0
            wants_weight = wants_weight or needs[3 + 2 * at]
        keep = ops.KEEP_SAVED if wants else 0
        if of_input and not reads & ops.READS_WEIGHT:
            keep |= ops.KEEP_CODES
        layers = (weight0, bias0, weight1, bias1, weight2, bias2)
        *outputs, saved = _forward(input, gamma, beta, *layers, plan, keep, *state)
        ctx.plan, ctx.wants, ctx.subject = plan, wants, subject
        tensors = (input, gamma, beta, weight0, bias0, weight1, bias1, weight2)
        note_main_grads(ctx, tensors, _WEIGHTS, (main_grad0, main_grad1, main_grad2))
        note_scales(ctx, reads, *state)
        reads_input = (of_input and reads & ops.READS_INPUT_FOR_INPUT) or (
            wants_weight and reads & ops.READS_INPUT_FOR_WEIGHT
        )
        reads_weight = of_input and reads & ops.READS_WEIGHT
        ctx.save_for_backward(
            saved,
            input if reads_input else None,
            gamma if of_input else None,
            weight0 if reads_weight else None,
            weight1 if reads_weight else None,
            weight2 if reads_weight else None,
        )
        return tuple(outputs[:2]) if weight2 is None else tuple(outputs)

    @staticmethod
    def backward(ctx, *grad_outputs):
        refuse_double_backward(ctx.subject)
        saved, *others = ctx.saved_tensors
        of_outputs = (*grad_outputs, *(None,) * (_MOST - len(grad_outputs)))
        grads = gradients(ctx, ops.SHARED_LINEAR, (*of_outputs, *others, saved), _WEIGHTS)
        needs = ctx.needs_input_grad  # those of gamma and beta come together
        return (*(grad if need else None for grad, need in zip(grads, needs)), *(None,) * 9)


def _forward(input, gamma, beta, weight0, bias0, weight1, bias1, weight2, bias2, plan, keep, *state):
    tensors = (input, gamma, beta, weight0, bias0, weight1, bias1, weight2, bias2)
    return forward_of(ops.SHARED_LINEAR, tensors, plan, keep, *state)


def _infer(input, gamma, beta, weight0, bias0, weight1, bias1, weight2, bias2, plan, *state):
    outputs = _forward(input, gamma, beta, weight0, bias0, weight1, bias1, weight2, bias2, plan, 0, *state)
    return outputs[:2] if weight2 is None else outputs[:_MOST]


def shared_linear(
    input: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Optional[Sequence[Optional[torch.Tensor]]] = None,
    norm_weight: Optional[torch.Tensor] = None,
    norm_bias: Optional[torch.Tensor] = None,
    options: SharedLinearOptions = SharedLinearOptions(),
    delayed: Optional[DelayedScales] = None,
) -> tuple[torch.Tensor, ...]:
    """Returns norm(input) @ weight.T + bias of each of two or three layers, in the input's dtype or autocast's.

    input: (..., in_features), float32, float16 or bfloat16, of any strides. weights: (out_features, in_features) of
    each layer; biases: (out_features,) or None of each; both as linear() takes them, main_grad included. norm_weight and
    norm_bias as norm_linear() takes them. delayed: the scales of the recipe "delayed".

    Outputs and the weights' gradients have the bits of separate layers. The input, or what the norm makes of it, is
    cast once, and backward keeps its codes once. The input's gradient is the sum of the layers', rounded once. Raises
    LinearError, an ingot.Error that names the layers.
    """
    biases = (None,) * len(weights) if biases is None else biases
    if not 2 <= len(weights) <= _MOST or len(biases) != len(weights) or options._count != len(weights):
        refuse(
            options,
            f"has {len(weights)} weights, {len(biases)} biases and {options._count} names, expected two or three "
            "of each; None stands for a bias that a layer lacks",
        )
    # A compiler would guard the names: equal modules share a graph.
    names = ("0", "1", "2") if torch.compiler.is_compiling() else options.names
    for name, weight, bias in zip(names, weights, biases):
        check_layer(f'linear "{name}"', input, weight, bias)
    input = in_autocasts_dtype(input)
    if options.norm is not None:
        check_norm(options, input, norm_weight, norm_bias, options.norm.kind)
        norm_bias = beta_of(options.norm, norm_weight, norm_bias)
    trains_weight = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
    main_grads = [main_grad_of(weight, f'linear "{name}"') for name, weight in zip(names, weights)]
    main_grads += [None] * (_MOST - len(weights))
    weights = [weight_of(weight, input, options.recipe) for weight in weights]
    layers = tuple(layer_of(weight, bias) for weight, bias in zip(weights, biases))
    pairs = [tensor for pair in zip(weights, biases) for tensor in pair]
    tensors = (input, norm_weight, norm_bias, *pairs, *(None,) * (2 * (_MOST - len(weights))))
    operands = (options, input, norm_weight, tensors, layers, trains_weight, main_grads, delayed)
    return run("shared_linear", _SharedLinear, _infer, *operands)

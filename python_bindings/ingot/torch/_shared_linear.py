"""shared_linear(): two or three linear layers of one input, such as q, k and v, which is cast and kept once."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

import torch

from .._text import counted
from ._checks import check_layer, refuse
from ._linear import in_autocasts_dtype
from ._module_calls import DelayedScales, ModuleOptions, NormOptions, run

_MOST = 3


def _subject(names) -> str:
    return "shared input of " + ", ".join(f'linear "{name}"' for name in names)


@dataclasses.dataclass(frozen=True)
class SharedLinearOptions(ModuleOptions):
    """How shared_linear() computes.

    recipe: one of RECIPES, or "delayed", of all layers. names: the layers' names in messages. norm: the norm in front, or
    None. keep_weight_codes: forward keeps the FP8 codes of all weights for backward (LinearOptions says more).
    """

    recipe: str = "tensorwise"
    names: tuple[str, ...] = ("q", "k", "v")
    norm: Optional[NormOptions] = None
    keep_weight_codes: Optional[bool] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "_count", len(self.names))
        self._settle(_subject, self.names, self.norm)


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
    each layer; biases: (out_features,) or None of each. A weight's main_grad is added to, as in linear(). norm_weight, norm_bias:
    (in_features,), in the input's dtype or float32; None where the norm has none. delayed: the scales of the recipe "delayed".

    Outputs and the weights' gradients have the bits of separate layers. The input, or what the norm makes of it, is
    cast once, and backward keeps its codes once. The input's gradient is the sum of the layers', from the last to the
    first, rounded after each addition. Raises LinearError, an ingot.Error that names the layers.
    """
    biases = (None,) * len(weights) if biases is None else biases
    if not 2 <= len(weights) <= _MOST or len(biases) != len(weights) or options._count != len(weights):
        given = f"{counted(len(weights), 'weight', 'weights')}, {counted(len(biases), 'bias', 'biases')}"
        what = counted(options._count, "name", "names")
        refuse(
            options,
            f"has {given} and {what}, expected two or three of each; None stands for a bias that a layer lacks",
        )
    # A compiler would guard the names: equal modules share a graph.
    names = ("0", "1", "2") if torch.compiler.is_compiling() else options.names
    for name, weight, bias in zip(names, weights, biases):
        check_layer(f'linear "{name}"', input, weight, bias)
    input = in_autocasts_dtype(input)
    layers = [(*each, f'linear "{name}"', "") for name, *each in zip(names, weights, biases)]
    return run("shared_linear", options, (input,), layers, (norm_weight, norm_bias), delayed)

"""LayerNormLinear and RMSNormLinear: a norm and the linear layer after it, as one operator in forward and one in
backward."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import NormLinearOptions, norm_linear
from ..torch._checks import refuse
from ._delayed import KeepsScales
from ._divided_modules import norm_linear_of_part
from ._parts import NamedLayer, NormModule, make_norm, norm_options, norm_parameters, require_linear


class _NormLinear(NamedLayer, KeepsScales):
    _kind = "rms"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        eps: Optional[float] = None,
        zero_centred: bool = False,
        activation: str = "",
        fast_math: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "norm_linear",
        history_length: int = 16,
    ) -> None:
        norm = make_norm(self._kind, in_features, eps, zero_centred, device, dtype)
        super().__init__()
        linear = torch.nn.Linear(in_features, out_features, bias, device, dtype)
        self._take(norm, linear, recipe, layer_name, activation, fast_math, zero_centred, history_length)

    def _take(self, norm, linear, recipe, layer_name, activation, fast_math, zero_centred, history_length) -> None:
        subject = f'{type(self).__name__} "{layer_name}"'
        require_linear(linear, subject)
        options = norm_options(norm, linear.in_features, zero_centred, subject)
        if options is None or options.kind != self._kind:
            expected = torch.nn.LayerNorm if self._kind == "layer" else torch.nn.RMSNorm
            refuse(subject, f"from_parts: takes a torch.nn.{expected.__name__}, got a {type(norm).__name__}")
        self.options = NormLinearOptions(recipe, layer_name, options, activation, fast_math=fast_math)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.norm = norm
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self._keep_scales(self.options.subject, history_length)

    @classmethod
    def from_parts(
        cls,
        norm: NormModule,
        linear: torch.nn.Linear,
        *,
        recipe: str = "tensorwise",
        layer_name: str = "norm_linear",
        activation: str = "",
        fast_math: bool = False,
        zero_centred: bool = False,
        history_length: int = 16,
    ):
        """Returns a module with the parameters of a norm and of the layer after it, in the layer's mode. Raises
        LinearError for modules of other kinds, a norm of another size than the layer's input, and modules with
        hooks."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new._take(norm, linear, recipe, layer_name, activation, fast_math, zero_centred, history_length)
        return new.train(linear.training)

    def reset_parameters(self) -> None:
        """Resets the layer's parameters as torch.nn.Linear does, and the norm's."""
        torch.nn.Linear.reset_parameters(self)
        if hasattr(self.norm, "reset_parameters"):
            self.norm.reset_parameters()
        else:
            torch.nn.init.ones_(self.norm.weight)
        if self.options.norm.zero_centred:
            torch.nn.init.zeros_(self.norm.weight)
        self._reset_scales()

    _division = None  # where several ranks divide the layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., out_features) for (..., in_features)."""
        if self._division is not None:
            return norm_linear_of_part(self, input)
        of_norm = norm_parameters(self.norm, self.options)
        return norm_linear(input, *of_norm, self.weight, self.bias, self.options, self._delayed(input))

    def extra_repr(self) -> str:
        options = self.options
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        if options.activation:
            text += f", activation={options.activation!r}"
        if options.fast_math:
            text += ", fast_math=True"
        return f"{text}, zero_centred={options.norm.zero_centred}, recipe={options.recipe}"


class LayerNormLinear(_NormLinear):
    """torch.nn.LayerNorm over the last dimension, then torch.nn.Linear and perhaps an activation, in FP8 as
    ingot.torch.norm_linear computes them.

    Takes inputs (..., in_features) of float32, float16 or bfloat16 and of any strides, and returns (..., out_features)
    in that dtype, or in autocast's. Parameters: weight, bias, norm.weight, norm.bias. zero_centred: the norm multiplies
    by norm.weight + 1. activation: a function's name ("silu", "gelu" ...), or an expression of x (docs/pointwise.md).
    fast_math: the activation and its derivative use the GPU's own exp, tanh and so on (docs/numerics.md). eps: of the norm; None is
    its default. recipe: one of ingot.torch.RECIPES, or "delayed", whose scales come from the maxima of the last history_length
    steps (ingot.nn.sync_amax_history()). layer_name: the name in messages.

    Raises ingot.Error for an unknown recipe or activation, and for another shape, dtype or device of the input.
    """

    _kind = "layer"


class RMSNormLinear(_NormLinear):
    """torch.nn.RMSNorm over the last dimension, then torch.nn.Linear and perhaps an activation, in FP8 as
    ingot.torch.norm_linear computes them.

    Takes inputs (..., in_features) of float32, float16 or bfloat16 and of any strides, and returns (..., out_features)
    in that dtype, or in autocast's. Parameters: weight, bias, norm.weight. eps: of the norm; None is the epsilon of its dtype.
    zero_centred: the norm multiplies by norm.weight + 1. activation: a function's name ("silu", "gelu" ...), or an expression of
    x (docs/pointwise.md). fast_math: the activation and its derivative use the GPU's own exp, tanh and so on (docs/numerics.md).
    recipe: one of ingot.torch.RECIPES, or "delayed", whose scales come from the maxima of the last history_length steps
    (ingot.nn.sync_amax_history()). layer_name: the name in messages.

    Raises ingot.Error for an unknown recipe or activation, and for another shape, dtype or device of the input.
    """

    _kind = "rms"

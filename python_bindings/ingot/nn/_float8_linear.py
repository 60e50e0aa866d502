"""Float8Linear: torch.nn.Linear whose GEMMs run in FP8, by one operator forward and one backward."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch.distributed.tensor import DTensor

from ..torch import DelayedScales, LinearOptions, NormLinearOptions, linear, norm_linear
from ..torch._errors import LinearError
from ..torch._module_calls import check_module_recipe
from ..torch._modules import activation_of, check_replaceable, in_place_of
from ._activations import activated
from ._delayed import KeepsScales
from ._divided import Division, slots_of, values_of
from ._parts import NamedLayer, check_dtype_of_parameters

_Options = Union[LinearOptions, NormLinearOptions]


def _options(recipe: str, layer_name: str, activation: str, fast_math: bool) -> _Options:
    check_module_recipe(f'linear "{layer_name}"', recipe)
    if activation or recipe == "delayed":
        return NormLinearOptions(recipe, layer_name, None, activation, fast_math=fast_math)
    return LinearOptions(recipe, layer_name)


class Float8Linear(NamedLayer, KeepsScales, torch.nn.Linear):
    """torch.nn.Linear with its GEMMs in FP8, as ingot.torch.linear computes them.

    Takes inputs (..., in_features) of float32, float16 or bfloat16 and of any strides, and returns (..., out_features)
    in that dtype, or in autocast's. Parameters, and so checkpoints, are those of torch.nn.Linear. `recipe` is one of
    ingot.torch.RECIPES or "delayed", `layer_name` the name in messages. `activation`, a function's name ("silu", "gelu"
    ...) or an expression of x (docs/pointwise.md), is applied to the output within the layer's GEMM; with `fast_math` it
    uses the GPU's own exp, tanh and so on (docs/numerics.md).

    With "delayed" the scales come from the maxima of the last `history_length` steps: call ingot.nn.sync_amax_history()
    for the model after each backward. Maxima, histories and scales are buffers `fp8_*`, which stay float32 whatever the
    layer is converted to; checkpoints without them load strictly, and a loaded history goes on. A forward without
    gradients notes no maxima.

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
        history_length: int = 16,
        activation: str = "",
        fast_math: bool = False,
    ) -> None:
        options = _options(recipe, layer_name, activation, fast_math)
        check_dtype_of_parameters(f'Float8Linear "{layer_name}"', dtype)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._use(options, history_length)

    def _use(self, options: _Options, history_length: int) -> None:
        self.options = options
        self._keep_scales(options.subject, history_length)

    _division: Optional[Division] = None  # where several ranks divide the layer

    @property
    def config_of_part(self):
        """A recipe's name, or casts: how a part of the layer is computed."""
        return self.options.recipe

    @property
    def name_of_part(self) -> str:
        """The layer's name in messages."""
        return self.options.name

    def scales_of_call(self, input: torch.Tensor) -> Optional[DelayedScales]:
        """The delayed scales of a call, or None."""
        return self._delayed(input)

    def _divided(self, input: torch.Tensor) -> torch.Tensor:
        slots = slots_of(self.scales_of_call(values_of(input)))
        of = (self.weight, self.bias, slots, self.name_of_part)
        output = self._division.run(self.options, self.config_of_part, input, *of)
        activation = getattr(self.options, "activation", "")
        return activated(activation, output) if activation else output

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., out_features) for (..., in_features)."""
        if self._division is not None:
            return self._divided(input)
        options = self.options
        if type(options) is LinearOptions:
            if torch.compiler.is_compiling():
                return linear(input, self.weight, self.bias, options)
            # torch.nn.Module finds a parameter by slow Python code (__getattr__).
            parameters = self._parameters
            weight = parameters["weight"] if "weight" in parameters else self.weight
            bias = parameters["bias"] if "bias" in parameters else self.bias
            if type(weight) is DTensor:  # a property of the class may gather it
                weight, bias = self.weight, self.bias
            return linear(input, weight, bias, options)
        return norm_linear(input, None, None, self.weight, self.bias, options, self._delayed(input))

    def extra_repr(self) -> str:
        activation = getattr(self.options, "activation", "")
        text = f"{super().extra_repr()}, recipe={self.options.recipe}" + (f", {activation=}" if activation else "")
        return text + (", fast_math=True" if getattr(self.options, "fast_math", False) else "")

    @classmethod
    def from_float(
        cls,
        module: torch.nn.Linear,
        recipe: str = "tensorwise",
        layer_name: str = "linear",
        history_length: int = 16,
        activation: str = "",
        fast_math: bool = False,
    ) -> "Float8Linear":
        """Returns an FP8 layer with everything of `module`: the same parameters, hooks, `.training`, and whatever else
        was set on it. Raises LinearError if `module` is no torch.nn.Linear, or one whose forward
        another cannot replace."""
        if not isinstance(module, torch.nn.Linear):
            raise LinearError(f"Float8Linear.from_float: takes a torch.nn.Linear, got a {type(module).__name__}")
        activation = activation or activation_of(module)
        check_replaceable("Float8Linear.from_float", module, activation)
        options = _options(recipe, layer_name, activation, fast_math)
        new = in_place_of(module, cls)
        new._use(options, history_length)
        return new

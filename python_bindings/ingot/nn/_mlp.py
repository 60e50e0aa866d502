"""Mlp and GatedMlp: two linear layers with an activation between them, and perhaps a norm in front, by one operator
forward and one backward."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence, Union

import torch

from ..torch import MlpOptions, mlp, mlp_of_gate_and_up
from ..torch._checks import refuse
from ..torch._modules import held
from ._delayed import KeepsScales
from ._divided_modules import is_divided, mlp_of_parts
from ._parts import (
    LinearParameters, NamedLayer, NormModule, make_norm, norm_options, norm_parameters, parameters_of, require_linear
)

_Pair = tuple[torch.nn.Linear, torch.nn.Linear]


def _subject(layer_name: str) -> str:
    return f'MLP "{layer_name}"'


class _MlpLayer(NamedLayer, KeepsScales):
    _gated = False
    _names_of_parts: Mapping[str, str] = {}  # of a model's own MLP, where they are others than here

    def _part(self, name: str) -> Optional[torch.nn.Module]:
        return self._modules.get(self._names_of_parts.get(name, name))

    def take_names(self, names: Mapping[str, str], order: Sequence[str]) -> None:
        """Gives parts the names that a model has for them (by the names here), and that model's order."""
        parts = {names.get(name, name): part for name, part in self._modules.items()}
        self._modules = {name: parts[name] for name in sorted(parts, key=list(order).index)}
        self._names_of_parts = dict(names)

    def _settle(
        self, norm, features, recipe, layer_name, activation, fast_math, zero_centred, history_length, apart=False
    ) -> None:
        """To be called when the parts are there, but for the norm. apart: gate and up are two layers."""
        self.norm = norm
        of_norm = norm_options(norm, features, zero_centred, _subject(layer_name))
        self.options = MlpOptions(recipe, layer_name, self._gated, activation, of_norm, fast_math=fast_math)
        self._keep_scales(self.options.subject, history_length, 3 if apart else 2, 2 if apart else 1)

    @property
    def in_features(self) -> int:
        return self._part("down_proj").out_features

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        found = {name: self._part(name) for name in ("gate_up_proj", "gate_proj", "up_proj", "down_proj")}
        names = {"gate_proj": ".gate", "up_proj": ".up", "down_proj": ".down"} if found["gate_proj"] is not None else {}
        return [(self.options.name + names.get(name, ""), held(part)) for name, part in found.items() if part is not None]

    def extra_repr(self) -> str:
        fast_math = ", fast_math=True" if self.options.fast_math else ""
        return f"activation={self.options.activation!r}, recipe={self.options.recipe}{fast_math}"


class Mlp(_MlpLayer):
    """activation(norm(input) @ up^T) @ down^T, with biases, in FP8 as ingot.torch.mlp computes it.

    Takes inputs (..., features) of float32, float16 or bfloat16 and of any strides, and returns that shape and dtype,
    or autocast's. Parameters: up_proj.weight (hidden, features), down_proj.weight (features, hidden), their biases, and
    with a norm norm.weight (and norm.bias). norm: "layer", "rms" or None. activation: a function's name ("gelu", "relu"
    ...), or an expression of x (docs/pointwise.md). fast_math: the activation uses the GPU's own exp,
    tanh and so on (docs/numerics.md). eps: of the norm; None is the epsilon of its dtype. zero_centred: the norm multiplies by
    norm.weight + 1. recipe: one of ingot.torch.RECIPES, or "delayed", whose scales come from the maxima of the last
    history_length steps (ingot.nn.sync_amax_history()). layer_name: the name in messages.

    Raises ingot.Error for an unknown recipe or activation, and for another shape, dtype or device of the input.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        bias: bool = True,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        activation: str = "gelu",
        fast_math: bool = False,
        norm: Optional[str] = None,
        eps: Optional[float] = None,
        zero_centred: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "mlp",
        history_length: int = 16,
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, features, eps, zero_centred, device, dtype)
        self.up_proj = LinearParameters(features, hidden, bias, device, dtype)
        self.down_proj = LinearParameters(hidden, features, bias, device, dtype)
        options = (recipe, layer_name, activation, fast_math, zero_centred, history_length)
        self._settle(self.norm, features, *options)

    @classmethod
    def from_parts(
        cls,
        up: torch.nn.Linear,
        down: torch.nn.Linear,
        norm: Optional[NormModule] = None,
        *,
        activation: str = "gelu",
        fast_math: bool = False,
        zero_centred: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "mlp",
        history_length: int = 16,
    ) -> "Mlp":
        """Returns a module with the parameters of two layers and of the norm in front. Raises LinearError for modules
        of other kinds, a norm of another size than the first layer's input, and modules with hooks."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        subject = _subject(layer_name)
        new.up_proj, new.down_proj = LinearParameters.of(up, subject), LinearParameters.of(down, subject)
        options = (recipe, layer_name, activation, fast_math, zero_centred, history_length)
        new._settle(norm, up.in_features, *options)
        return new.train(up.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., features) for (..., features)."""
        if is_divided(self, ("up_proj", "down_proj")):
            return mlp_of_parts(self, input)
        options = self.options
        up, up_bias = parameters_of(self._part("up_proj"), options)
        down, down_bias = parameters_of(self._part("down_proj"), options)
        of_norm = norm_parameters(self.norm, options)
        return mlp(input, up, down, up_bias, down_bias, *of_norm, options, self._delayed(input))


class GatedMlp(_MlpLayer):
    """(silu(gate) * up) @ down^T with gate, up = norm(input) @ gate_up^T: the MLP of Llama, with biases or without, in
    FP8 as ingot.torch.mlp computes it.

    Parameters: gate_up_proj.weight (2 * hidden, features), the gate's rows first, down_proj.weight (features, hidden),
    their biases, and with a norm norm.weight (and norm.bias). Checkpoints with gate_proj and up_proj load as well, and
    a module that from_parts() makes of two layers keeps them as such, and computes them as layers that share their
    input (ingot.torch.mlp_of_gate_and_up). activation: of the gate, or an expression of x
    (the gate) and `up` (docs/pointwise.md).

    Takes inputs (..., features) of float32, float16 or bfloat16 and of any strides, and returns that shape and dtype, or
    autocast's. norm: "layer", "rms" or None, with eps (None is the epsilon of its dtype) and zero_centred (it multiplies by
    norm.weight + 1). fast_math: the activation uses the GPU's own exp (docs/numerics.md). recipe: one of ingot.torch.RECIPES, or
    "delayed", whose scales come from the maxima of the last history_length steps (ingot.nn.sync_amax_history()). layer_name: the
    name in messages.

    Raises ingot.Error for an unknown recipe or activation, and for another shape, dtype or device of the input.
    """

    _gated = True

    def __init__(
        self,
        features: int,
        hidden: int,
        bias: bool = False,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        activation: str = "silu",
        fast_math: bool = False,
        norm: Optional[str] = None,
        eps: Optional[float] = None,
        zero_centred: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "mlp",
        history_length: int = 16,
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, features, eps, zero_centred, device, dtype)
        self.gate_up_proj = LinearParameters(features, 2 * hidden, bias, device, dtype)
        self.down_proj = LinearParameters(hidden, features, bias, device, dtype)
        options = (recipe, layer_name, activation, fast_math, zero_centred, history_length)
        self._settle(self.norm, features, *options)

    @classmethod
    def from_parts(
        cls,
        gate_up: Union[torch.nn.Linear, _Pair],
        down: torch.nn.Linear,
        norm: Optional[NormModule] = None,
        *,
        activation: str = "silu",
        fast_math: bool = False,
        zero_centred: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "mlp",
        history_length: int = 16,
    ) -> "GatedMlp":
        """Returns a module with the parameters of these layers and of the norm in front. gate_up: one layer with the
        gate's rows first, or (gate, up): their parameters stay two, and each is cast with its own scales. Raises
        LinearError for modules of other kinds, a norm of another size than the input, and modules with hooks."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        subject = _subject(layer_name)
        if isinstance(gate_up, (tuple, list)):
            gate, up = gate_up
            require_linear(gate, subject)
            require_linear(up, subject)
            if (gate.out_features, gate.bias is None) != (up.out_features, up.bias is None):
                refuse(
                    subject,
                    f"from_parts: gate is {gate} and up is {up}, expected two layers of one size, both with a bias or "
                    "both without",
                )
            new.gate_proj, new.up_proj = LinearParameters.of(gate, subject), LinearParameters.of(up, subject)
            features = gate.in_features
        else:
            new.gate_up_proj = LinearParameters.of(gate_up, subject)
            features = gate_up.in_features
        new.down_proj = LinearParameters.of(down, subject)
        options = (recipe, layer_name, activation, fast_math, zero_centred, history_length)
        new._settle(norm, features, *options, apart=isinstance(gate_up, (tuple, list)))
        return new.train(down.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., features) for (..., features)."""
        options, joined = self.options, self._part("gate_up_proj")
        if is_divided(self, ("gate_up_proj", "gate_proj", "up_proj", "down_proj")):
            if joined is not None:
                refuse(
                    options,
                    "gate_up_proj: has the gate's rows and then those of up, of which ranks would get one or the other: make the "
                    "module of two layers, GatedMlp.from_parts((gate, up), down), and divide gate_proj and up_proj",
                )
            return mlp_of_parts(self, input)
        down, down_bias = parameters_of(self._part("down_proj"), options)
        norm = norm_parameters(self.norm, options)
        if joined is not None:
            both, bias = parameters_of(joined, options)
            return mlp(input, both, down, bias, down_bias, *norm, options, self._delayed(input))
        gate, gate_bias = parameters_of(self._part("gate_proj"), options)
        up, up_bias = parameters_of(self._part("up_proj"), options)
        of_down = (down, (gate_bias, up_bias), down_bias)
        return mlp_of_gate_and_up(input, (gate, up), *of_down, *norm, options, self._delayed(input))

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """Joins a checkpoint's gate_proj and up_proj where the module has them as one."""
        if "gate_up_proj" in self._modules:
            for name in ("weight", "bias"):
                keys = [f"{prefix}{part}.{name}" for part in ("gate_proj", "up_proj")]
                if all(key in state_dict for key in keys):
                    state_dict[f"{prefix}gate_up_proj.{name}"] = torch.cat([state_dict.pop(key) for key in keys])
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

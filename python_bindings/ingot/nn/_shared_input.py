"""Linear layers that share their input (q, k and v; gate and up): it is cast to FP8, and kept, once."""

from __future__ import annotations

import dataclasses
from typing import Iterable, Mapping, Optional

import torch

from .._text import counted
from ..torch import SharedLinearOptions, shared_linear
from ..torch._checks import refuse
from ..torch._exported import export_layer, is_exporting
from ..torch._modules import has_own_forward, held, type_name
from ._delayed import KeepsScales
from ._divided_modules import is_divided, shared_linears_of_parts
from ._float8_linear import Float8Linear
from ._parts import (
    KeepsWeightCodes, LinearParameters, NormModule, make_norm, norm_options, norm_parameters, parameters_of
)


def _names(module: str, layers: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{module}.{layer}" if module else layer for layer in layers)


class SharedInputLinears(KeepsWeightCodes, KeepsScales):
    """Two or three torch.nn.Linear of one input, perhaps after a norm, in FP8 as ingot.torch.shared_linear computes
    them.

    out_features: each layer's, by the name that it has as a submodule: {"q_proj": 4096, "k_proj": 1024, "v_proj":
    1024}. Takes inputs (..., in_features) of float32, float16 or bfloat16 and of any strides, and returns a tuple of
    (..., out_features) in that dtype, or in autocast's, in the order of the names. Parameters: q_proj.weight,
    q_proj.bias ..., and with a norm norm.weight (and norm.bias). norm: "layer", "rms" or None. eps: of
    the norm; None is the epsilon of its dtype. zero_centred: it multiplies by norm.weight + 1. recipe: one of ingot.torch.RECIPES, or
    "delayed", whose scales come from the maxima of the last history_length steps (ingot.nn.sync_amax_history()); that of the input
    is the first layer's. layer_name goes in front of the names in messages.

    Raises ingot.Error for an unknown recipe, and for another shape, dtype or device of the input.
    """

    def __init__(
        self,
        in_features: int,
        out_features: Mapping[str, int],
        bias: bool = True,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        norm: Optional[str] = None,
        eps: Optional[float] = None,
        zero_centred: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "",
        history_length: int = 16,
    ) -> None:
        super().__init__()
        layers = {
            name: torch.nn.Linear(in_features, count, bias, device, dtype) for name, count in out_features.items()
        }
        made = make_norm(norm, in_features, eps, zero_centred, device, dtype)
        self._take(layers, made, zero_centred, recipe, layer_name, history_length)

    def _take(self, layers, norm, zero_centred: bool, recipe: str, layer_name: str, history_length: int) -> None:
        names = _names(layer_name, layers)
        subject = "SharedInputLinears " + ", ".join(f'"{name}"' for name in names)
        if not 2 <= len(layers) <= 3:
            refuse(subject, f"has {counted(len(layers), 'layer', 'layers')}, but two or three can share an input: make several modules")
        for name, layer in layers.items():
            self.add_module(name, LinearParameters.of(layer, subject))
        features = {name: layer.in_features for name, layer in layers.items()}
        if len(set(features.values())) > 1:
            refuse(subject, f"has layers of different in_features, {features}, expected one number: they share their input")
        self._layer_names = tuple(layers)
        self._layer_name = layer_name
        self.norm = norm
        self.in_features = in_features = next(iter(layers.values())).in_features
        self.options = SharedLinearOptions(recipe, names, norm_options(norm, in_features, zero_centred, subject))
        self._keep_scales(subject, history_length, len(layers), sharing=len(layers))

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weights, each with the name of its layer."""
        return [(name, held(self._modules[part])) for name, part in zip(self.options.names, self._layer_names)]

    @property
    def layer_name(self) -> str:
        """The prefix of the layers' names in messages, monitors and traces."""
        return self._layer_name

    @layer_name.setter
    def layer_name(self, name: str) -> None:
        self._layer_name = name
        self.options = dataclasses.replace(self.options, names=_names(name, self._layer_names))

    @classmethod
    def from_parts(
        cls,
        layers: Mapping[str, torch.nn.Linear],
        norm: Optional[NormModule] = None,
        *,
        zero_centred: bool = False,
        recipe: str = "tensorwise",
        layer_name: str = "",
        history_length: int = 16,
    ) -> "SharedInputLinears":
        """Returns a module with the parameters of these layers, by name, and of the norm in front. Raises LinearError
        for modules of other kinds, a norm of another size than the layers' input, and modules with hooks."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new._take(dict(layers), norm, zero_centred, recipe, layer_name, history_length)
        return new.train(next(iter(layers.values())).training)

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns (..., out_features) of each layer, in the order of their names, for (..., in_features)."""
        if is_divided(self, self._layer_names):
            return shared_linears_of_parts(self, input)
        options = self.options
        weights, biases = zip(*[parameters_of(self._modules[name], options) for name in self._layer_names])
        norm = norm_parameters(self.norm, options)
        return shared_linear(input, weights, biases, *norm, options, self._delayed(input))

    def extra_repr(self) -> str:
        return f"recipe={self.options.recipe}"


_OPTIONS: dict[tuple[str, tuple[str, ...], Optional[bool]], SharedLinearOptions] = {}


@torch.compiler.assume_constant_result
def _options_of(recipe: str, names: tuple[str, ...], keep_weight_codes: Optional[bool]) -> SharedLinearOptions:
    key = (recipe, names, keep_weight_codes)
    if key not in _OPTIONS:
        _OPTIONS[key] = SharedLinearOptions(recipe, names, keep_weight_codes=keep_weight_codes)
    return _OPTIONS[key]


def shared_input(input: torch.Tensor, *layers: Float8Linear) -> tuple[torch.Tensor, ...]:
    """Returns what two or three Float8Linear give for one input, which is cast and kept once:

        q, k, v = ingot.nn.shared_input(x, self.wq, self.wk, self.wv)

    The layers stay as they are, and so do their names in checkpoints; their hooks do not run. Whether the weights' codes
    are kept (keep_weight_codes()) is what the first layer says. Raises LinearError for
    layers of other kinds, of different recipes or with activations.
    """
    subject = "shared_input"
    for layer in layers:
        if not isinstance(layer, Float8Linear) or not hasattr(layer.options, "recipe"):
            refuse(subject, f"takes ingot.nn.Float8Linear, got a {type(layer).__name__}: convert it by from_float()")
        if type(layer) is not Float8Linear and has_own_forward(layer) or "forward" in layer.__dict__:
            refuse(subject, f'"{layer.options.name}" has its own forward ({type_name(layer)}): call that layer itself')
        if getattr(layer.options, "activation", ""):
            name = layer.options.name
            refuse(subject, f'takes layers without an activation, "{name}" has one: call that layer itself')
        if layer._division is not None:
            refuse(
                subject,
                f'takes layers that this rank has all of, others have parts of "{layer.options.name}": call the layers '
                "themselves, in a module with PrepareFloat8ModuleInput",
            )
        if layer.options.recipe == "delayed":
            refuse(
                subject,
                f'takes layers whose scales have no state, those of "{layer.options.name}" are delayed: '
                "SharedInputLinears.from_parts() makes one module of such layers",
            )
        if layer.options.recipe != layers[0].options.recipe:
            refuse(
                subject,
                f'takes layers of one recipe, "{layers[0].options.name}" has {layers[0].options.recipe} and '
                f'"{layer.options.name}" {layer.options.recipe}',
            )
    if not 2 <= len(layers) <= 3:
        refuse(subject, f"got {counted(len(layers), 'layer', 'layers')}, but two or three can share an input: call it several times")
    first = layers[0].options
    if torch.compiler.is_compiling() and is_exporting():
        pairs = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        tensors = (input, None, None, *pairs, *(None,) * (9 - len(pairs)))
        names = tuple([layer.options.name for layer in layers])
        facts = {"recipe": first.recipe, "names": names, "norm": None}
        return tuple(export_layer("shared_linear", tensors, **facts, activation="", fast_math=False))
    # A compiler would guard the names: equal layers share a graph.
    names = ("0", "1", "2")[: len(layers)]
    if not torch.compiler.is_compiling():
        names = tuple([layer.options.name for layer in layers])
    options = _options_of(first.recipe, names, first.keep_weight_codes)
    weights, biases = zip(*[parameters_of(layer, options) for layer in layers])
    return shared_linear(input, weights, biases, options=options)

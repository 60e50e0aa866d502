"""Modules of several parts, taken apart for inference: the same computation by linear layers that are called, and so can be
quantized."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Tuple

import torch
from torch.nn import functional as F

from ..torch._modules import replace_layers, take_hooks
from ._mlp import _MlpLayer
from ._norm_linear import _NormLinear
from ._parts import linear_with
from ._recognise import ACTIVATIONS
from ._shared_input import SharedInputLinears

_OF_TORCH = (torch.nn.LayerNorm, torch.nn.RMSNorm)


class _Apart(torch.nn.Module):
    """Has the norm of the module whose place it takes, and computes it as that did."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        options = module.options
        self.norm = module.norm
        self._zero_centred = options.norm is not None and options.norm.zero_centred and isinstance(module.norm, _OF_TORCH)
        self._activation = _activation_of(module)
        take_hooks(module, self)
        self.training = module.training

    def _normed(self, input: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        if norm is None:
            return input
        if not self._zero_centred:
            return norm(input)
        weight = norm.weight + 1
        if isinstance(norm, torch.nn.LayerNorm):
            return F.layer_norm(input, norm.normalized_shape, weight, norm.bias, norm.eps)
        return F.rms_norm(input, norm.normalized_shape, weight, norm.eps)


class NormThenLinear(_Apart):
    """activation(linear(norm(input)))"""

    def __init__(self, module: _NormLinear) -> None:
        super().__init__(module)
        self.linear = linear_with(module.weight, module.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._activation(self.linear(self._normed(input)))


class MlpOfLinears(_Apart):
    """down_proj(activation(...)), with gate and up of norm(input) as one layer, as two, or without a gate."""

    def __init__(self, module: _MlpLayer) -> None:
        super().__init__(module)
        self.gated = module.options.gated
        for name in ("gate_up_proj", "gate_proj", "up_proj", "down_proj"):
            part = module._part(name)
            if part is not None:
                self.add_module(name, linear_with(part.weight, part.bias))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = self._normed(input)
        if not self.gated:
            return self.down_proj(self._activation(self.up_proj(x)))
        if "gate_up_proj" in self._modules:
            gate, up = self.gate_up_proj(x).chunk(2, -1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(self._activation(gate) * up)


class LinearsOfOneInput(_Apart):
    """The outputs of each layer for norm(input), by the names that SharedInputLinears has."""

    def __init__(self, module: SharedInputLinears) -> None:
        super().__init__(module)
        self._names = module._layer_names
        for name in self._names:
            self.add_module(name, linear_with(module._modules[name].weight, module._modules[name].bias))

    def forward(self, input: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        x = self._normed(input)
        return tuple([self._modules[name](x) for name in self._names])


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def _activation_of(module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    name = getattr(module.options, "activation", "")
    return ACTIVATIONS[name] if name else _same


def _kind_of(module: torch.nn.Module) -> Optional[type]:
    kinds: List[Tuple[type, type]] = [(_NormLinear, NormThenLinear), (_MlpLayer, MlpOfLinears), (SharedInputLinears, LinearsOfOneInput)]
    return next((apart for kind, apart in kinds if isinstance(module, kind)), None)


def reason_to_stay_whole(module: torch.nn.Module) -> str:
    """Why a module of several parts cannot be taken apart, or ""."""
    name = getattr(module.options, "activation", "")
    if name and name not in ACTIVATIONS:
        return f"its activation {name!r} is an expression of Ingot, which no other module computes"
    tensors = [each for part in (module, *module._modules.values()) if part is not None for each in part._parameters.values()]
    if any(hasattr(each, "device_mesh") for each in tensors):
        return "is sharded: quantize it before that"
    return ""


def take_apart(model: torch.nn.Module, wanted: Callable[[torch.nn.Module], bool]) -> Dict[torch.nn.Module, str]:
    """Takes apart the modules of several parts within the model that are wanted. Returns those that have to stay whole, with the
    reason."""
    whole: Dict[torch.nn.Module, str] = {}
    if _kind_of(model) is not None:
        whole[model] = "it is the model itself, whose place nothing can take: put it into another module"

    def is_wanted(module: torch.nn.Module, _: str) -> bool:
        if _kind_of(module) is None or not wanted(module):
            return False
        reason = reason_to_stay_whole(module)
        if reason:
            whole[module] = reason
        return not reason

    replace_layers(model, is_wanted, lambda module: _kind_of(module)(module))
    return whole

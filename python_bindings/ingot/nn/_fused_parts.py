"""What stands in a model where a norm, or linear layers that read it, are computed by one module: their parameters stay where
they were, so that state_dict(), optimizers and FSDP see the model's own names."""

from __future__ import annotations

import copy
import threading
from typing import Any, Mapping, NoReturn, Optional, Sequence

import torch
from torch.distributed.tensor import DTensor

from ..torch import NormOptions, SharedLinearOptions, shared_linear
from ..torch._checks import refuse
from ..torch._modules import in_place_of
from ._delayed import KeepsScales
from ._divided_modules import are_divided, shared_linears_of_parts
from ._parts import (
    KeepsWeightCodes, LinearParameters, NormModule, held, norm_options, norm_parameters, parameters_of
)


def refuse_data_parallel(what: str) -> NoReturn:
    refuse(
        f"convert: {what}",
        "cannot be copied to several GPUs by torch.nn.DataParallel: start a process for each GPU (torchrun), which "
        "DistributedDataParallel needs, or convert with fuse=False",
    )


class FusedNorm(torch.nn.Module):
    """The place of a norm that the modules after it compute: it has the norm's parameters and returns its input."""

    @classmethod
    def of(cls, norm: NormModule, computed_by: str) -> "FusedNorm":
        kinds = (kind for kind in (_FusedLayerNorm, _FusedRMSNorm) if isinstance(norm, kind.__mro__[2]))
        new = in_place_of(norm, next(kinds, cls))
        new.__dict__["_computed_by"] = computed_by
        return new

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input

    def _replicate_for_data_parallel(self):
        refuse_data_parallel(f"a norm within {self._computed_by}")

    def extra_repr(self) -> str:
        return f"computed within {self._computed_by}"


# Programs that make an optimizer's groups ask for the class, such as those that let norms' weights not decay.
class _FusedLayerNorm(FusedNorm, torch.nn.LayerNorm):
    pass


class _FusedRMSNorm(FusedNorm, torch.nn.RMSNorm):
    pass


class PyTorchNorm(torch.nn.Module):
    """A norm of another library, computed by PyTorch's function where that has the same result's dtype: for an input of its
    weight's dtype, under autocast for float32 only. Anything else is its own class's forward."""

    @classmethod
    def of(cls, norm: NormModule, options: NormOptions) -> "PyTorchNorm":
        new = in_place_of(norm, cls)
        new.__dict__.update(_options=options, _own=norm)
        return new

    def share_parameters(self) -> None:
        """The module that it replaces has the same dict of parameters from now on."""
        self._own._parameters = self._parameters

    def _with_parameters(self) -> NormModule:
        """The module that it replaces, with the parameters that this one has, also where they are attributes or computed:
        as under FSDP1 and with parametrizations."""
        if "weight" in self._parameters:
            return self._own
        own = copy.copy(self._own)
        vars(own).update({name: getattr(self, name) for name in ("weight", "bias") if hasattr(self, name)})
        return own

    @property
    def function(self) -> str:
        return "rms_norm" if self._options.kind == "rms" else "layer_norm"

    def forward(self, *args, **kwargs) -> torch.Tensor:
        weight, options = self.weight, self._options
        if kwargs or len(args) != 1 or not self._fits(args[0], weight):
            return type(self._own).forward(self._with_parameters(), *args, **kwargs)
        (input,) = args
        if options.kind == "rms":
            return torch.nn.functional.rms_norm(input, weight.shape, weight, options.eps)
        return torch.nn.functional.layer_norm(input, weight.shape, weight, getattr(self, "bias", None), options.eps)

    def _replicate_for_data_parallel(self):
        refuse_data_parallel(f"a norm that is {self.function} now")

    @staticmethod
    def _fits(input: Any, weight: torch.Tensor) -> bool:
        if isinstance(weight, DTensor) or not isinstance(input, torch.Tensor) or isinstance(input, DTensor):
            return False
        wide = input.dtype == torch.float32 or not torch.is_autocast_enabled(input.device.type)
        return wide and input.dtype == weight.dtype

    def extra_repr(self) -> str:
        return f"{self.function} in the place of {type(self._own).__name__}"


def refer_to_norm(module: torch.nn.Module, norm: Optional[FusedNorm]) -> None:
    """From now on the module reads its norm's parameters where they are in the model, and has none itself."""
    module._modules.pop("norm", None)
    module.__dict__["norm"] = norm
    if norm is not None:
        module.__dict__["computes_elsewhere"] = (*vars(module).get("computes_elsewhere", ()), norm)


class SharedPart(LinearParameters):
    """One of several linear layers of one input: the first of them computes all, and keeps the others' results until they are
    called with that input. It has the parameters of a torch.nn.Linear, and is none: its input is not what it multiplies by."""

    computed_by: "FirstOfShared"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.computed_by.output_of(self, input)


class FirstOfShared(SharedPart, KeepsWeightCodes, KeepsScales):
    """The first of two or three linear layers of one input, with the norm in front of them. It computes them as
    ingot.torch.shared_linear does: the norm and the cast once.

    A model calls each by itself. The first call with an input computes all, and the results of the others wait for their
    calls. One that is called with something else, by another thread, in autocast where the first was not, or when the input or a
    parameter was written since, computes all anew.
    """

    _waiting: Optional[tuple]  # the input, the state that results are for, and results by their places

    @classmethod
    def make(
        cls,
        layers: Mapping[str, torch.nn.Linear],
        norm: NormModule,
        *,
        zero_centred: bool,
        recipe: str,
        history_length: int,
    ) -> Sequence[SharedPart]:
        """The modules that take the places of these layers, which have these names. Raises LinearError as
        SharedInputLinears.from_parts() does."""
        names = tuple(layers)
        subject = "convert " + ", ".join(f'"{name}"' for name in names)
        first, *others = layers.values()
        head = cls.of(first, subject)
        head.options = SharedLinearOptions(
            recipe, names, norm_options(norm, first.in_features, zero_centred, subject)
        )
        parts = (head, *(SharedPart.of(layer, subject) for layer in others))
        for part in parts:
            part.__dict__["computed_by"] = head
        head.__dict__.update(_parts=parts, _waiting=None, computes_elsewhere=parts[1:])
        head._keep_scales(subject, history_length, len(parts), sharing=len(parts))
        return parts

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weights, each with the name of its layer."""
        return [(name, held(part)) for name, part in zip(self.options.names, self._parts)]

    @property
    def _layer_names(self) -> tuple[str, ...]:
        return self.options.names

    def _part(self, name: str) -> SharedPart:
        return self._parts[self.options.names.index(name)]

    @property
    def layer_name(self) -> str:
        return self.options.names[0]

    @property
    def names_of_layers(self) -> Sequence[str]:
        """Those that monitors and traces know the layers by."""
        return self.options.names

    def output_of(self, part: SharedPart, input: torch.Tensor) -> torch.Tensor:
        at = next(place for place, each in enumerate(self._parts) if each is part)
        waiting = self._waiting
        state = self._state(input)
        fits = waiting is not None and waiting[0] is input and waiting[1] == state
        result = waiting[2].pop(at, None) if fits else None
        if result is None:
            waiting = (input, state, dict(enumerate(self.compute_all(input))))
            result = waiting[2].pop(at)
        self._waiting = waiting if waiting[2] else None
        return result

    def _state(self, input: torch.Tensor) -> tuple:
        """What results are for, besides the input itself."""
        if torch.compiler.is_compiling():
            return (torch.is_grad_enabled(),)
        tensors = [each for module in (*self._parts, self.norm) for each in module._parameters.values() if each is not None]
        versions = [(id(each), _version(each)) for each in tensors]
        autocast = torch.is_autocast_enabled(input.device.type)
        return torch.is_grad_enabled(), autocast, threading.get_ident(), _version(input), versions

    def compute_all(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of all layers, in the order of their names."""
        options = self.options
        if are_divided(self._parts):
            return shared_linears_of_parts(self, input)
        weights, biases = zip(*[parameters_of(part, options) for part in self._parts])
        return shared_linear(input, weights, biases, *norm_parameters(self.norm, options), options, self._delayed(input))

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_waiting": None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.options.recipe}, layers={len(self._parts)}"


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version

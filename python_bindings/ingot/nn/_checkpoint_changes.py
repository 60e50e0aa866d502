"""Changes of a model by a load, which an error takes back."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch

from ..torch._errors import LinearError
from ..torch._modules import take_hooks
from ._checkpoint_names import Place, put
from ._delayed import KeepsScales
from ._scale_buffers import computing_device


class ScalesLoad(NamedTuple):
    """What a load does to a module's delayed scales: those that the file has, the module that has the weights, which is another
    one for ExpertScales, and the names of those that the load lacks."""

    state: dict[str, torch.Tensor]
    around: torch.nn.Module
    lacking: frozenset[str]

    @property
    def device(self) -> torch.device:
        return next(map(computing_device, self.around.parameters()), torch.device("cpu"))


class Changes:
    """Changes of a model that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._have_hooks: set[torch.nn.Module] = set()  # layers of two names take them once, with their handles

    def take_back(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def replace(self, place: Place, layer: torch.nn.Module) -> None:
        is_first = layer not in self._have_hooks

        def undo() -> None:
            if is_first:
                take_hooks(layer, place.module)
            put(place, place.module)

        if is_first:
            self._have_hooks.add(layer)
            take_hooks(place.module, layer)
        self._undo.append(undo)
        put(place, layer)

    def assign(self, tensors: dict[str, Any], key: str, value: torch.Tensor) -> None:
        old = tensors[key]
        self._undo.append(lambda: tensors.__setitem__(key, old))
        tensors[key] = value

    def copy(self, tensor: torch.Tensor, value: torch.Tensor, where: str) -> None:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            old = tensor.detach().to("cpu", copy=True)

            def undo() -> None:
                with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                    tensor.copy_(old)

            try:
                tensor.copy_(value)
            except RuntimeError as error:
                raise LinearError(f"{where}: cannot be written into the model's tensor: {error}") from None
            self._undo.append(undo)

    def load_scales(self, module: KeepsScales, load: ScalesLoad, device: torch.device) -> None:
        """As load_state_dict() does: scales that the checkpoint has are restored, others start anew. device: where scales get memory if
        the weights have none yet, as their file comes later."""
        before = {**vars(module), "_buffers": module._buffers}

        def undo() -> None:
            vars(module).clear()
            vars(module).update(before)

        self._undo.append(undo)
        of_scales = {key: each for key, each in module._buffers.items() if key.startswith("fp8_") and each is not None}
        module._buffers = {**module._buffers, **{key: each.clone() for key, each in of_scales.items()}}
        if any(each.is_meta for each in of_scales.values()):
            place = device if load.state and load.device.type == "meta" else load.device
            module._buffers.update({key: torch.empty_like(each, device=place) for key, each in of_scales.items()})
            module._reset_scales()
        errors: list[str] = []
        torch.nn.Module._load_from_state_dict(module, load.state, "", {}, False, [], [], errors)
        if errors:
            raise LinearError(f"load_float8_checkpoint: {errors[0]}")
        module.note_load(load.state, load.lacking)

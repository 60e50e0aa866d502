"""Changes of a model by a load, which an error takes back."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch

from ..torch._errors import LinearError
from ..torch._modules import take_hooks
from ._checkpoint_names import Place, put
from ._scale_buffers import computing_device


class Around(NamedTuple):
    """The module that has an ExpertScales and the weights, and the names of those that the checkpoint lacks."""

    module: torch.nn.Module
    lacking: list[str]

    @property
    def device(self) -> torch.device:
        return next(map(computing_device, self.module.parameters()), torch.device("cpu"))


class Changes:
    """Changes of a model that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def take_back(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def replace(self, place: Place, layer: torch.nn.Module) -> None:
        def undo() -> None:
            take_hooks(layer, place.module)
            put(place, place.module)

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

    def load_scales(
        self, module: torch.nn.Module, state: dict[str, torch.Tensor], around: Optional[Around], device: torch.device
    ) -> None:
        """As load_state_dict() does: scales that the checkpoint has are restored, others start anew. around: of scales of experts.
        device: where these get memory if the weights have none yet, as their file comes later."""
        before = {**vars(module), "_buffers": module._buffers}

        def undo() -> None:
            vars(module).clear()
            vars(module).update(before)

        self._undo.append(undo)
        of_scales = {key: each for key, each in module._buffers.items() if key.startswith("fp8_") and each is not None}
        module._buffers = {**module._buffers, **{key: each.clone() for key, each in of_scales.items()}}
        if any(each.is_meta for each in of_scales.values()):
            if around is None:
                module._reset_scales()
            else:
                module.to_empty(device=device if state and around.device.type == "meta" else around.device)
        errors: list[str] = []
        if around is None:
            module._load_from_state_dict(state or {"": torch.empty(0)}, "", {}, False, [], [], errors)
        else:
            module._load_from_state_dict({f"scales.{key}": each for key, each in state.items()}, "scales.", {}, False, around.lacking, [], errors)
        if errors:
            raise LinearError(f"load_float8_checkpoint: {errors[0]}")

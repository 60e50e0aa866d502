"""Ingot's layers within a model: which they are, and the names by which messages, monitors and traces call them."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

import torch

from ._errors import LinearError
from ._modules import is_ingot_layer
from ._names import UNNAMED


def ingot_layers(model: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module]]:
    """The model's layers of ingot.nn and ingot.float8 with their paths in it, each once; not what they are made of."""
    seen = set()

    def walk(path: str, module: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        if is_ingot_layer(module):
            yield path, module
            return
        for name, child in module.named_children():
            yield from walk(f"{path}.{name}" if path else name, child)

    yield from walk("", model)


def name_layers(model: torch.nn.Module) -> Tuple[str, ...]:
    """Gives each Ingot layer of the model that has no name its path in the model. Returns all names, in order; of one
    that computes several layers of the model theirs."""
    names = []
    for path, layer in ingot_layers(model):
        if layer.layer_name in UNNAMED and path:
            layer.layer_name = path
        names += getattr(layer, "names_of_layers", (layer.layer_name,))
    return tuple(names)


def device_of(model: Optional[torch.nn.Module]) -> torch.device:
    """The GPU that the model is on. A model on the CPU, or none: the current GPU if the model is None and CUDA is in
    use, else the CPU."""
    if model is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")
    for tensor in model.parameters():
        if tensor.device.type == "cuda":
            return tensor.device
    return torch.device("cpu")


def context_name(device: torch.device) -> str:
    """The name of the device's context: "cpu" or "cuda:N"."""
    return "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"


def gpu_of(model: torch.nn.Module, who: str, why: str) -> torch.device:
    """Returns the GPU that the model is on, or else the current one. Raises LinearError, `who` and `why`, without a GPU."""
    device = device_of(model)
    if device.type == "cpu":
        device = device_of(None)
    if device.type == "cpu":
        raise LinearError(f"{who}: {why}")
    return device

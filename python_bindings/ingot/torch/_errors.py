"""Errors of ingot.torch, and how the operators' messages come back as such."""

from __future__ import annotations

import torch

from .._core import Error
from .._text import without_controls

_PREFIX = "ingot: "
_MEMORY = "out of memory: "


class LinearError(Error, RuntimeError):
    """Tensors or options that a layer cannot take, or a device's error. The message names the layer."""

    def __init__(self, *texts) -> None:
        super().__init__(*(without_controls(text) if isinstance(text, str) else text for text in texts))


class OutOfMemoryError(LinearError, torch.OutOfMemoryError):
    """The device, or the host, has no memory for a call."""


def from_operator(error: RuntimeError) -> RuntimeError:
    """The ingot error that an operator raised, as PyTorch passed it on; other errors are returned as they are."""
    first_line = str(error).split("\n", 1)[0]
    at = first_line.find(_PREFIX)
    if at < 0:
        return error
    message = first_line[at + len(_PREFIX) :]
    return OutOfMemoryError(message) if message.startswith(_MEMORY) else LinearError(message)

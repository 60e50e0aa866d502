"""Errors of ingot.torch and ingot.float8, and how the operators' messages come back as such."""

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


# Each of ingot.float8's is also what torchao.float8 raises in its place, so that trainers which catch AssertionError,
# ValueError, NotImplementedError or RuntimeError need no change.


class Float8AssertionError(Error, AssertionError):
    """A config or an operand that does not fit: torchao.float8 asserts here."""


class Float8ValueError(Error, ValueError):
    """A value that is not one of those expected."""


class Float8NotImplementedError(Error, NotImplementedError):
    """An operation that has no meaning for FP8 tensors."""


class Float8RuntimeError(Error, RuntimeError):
    """A shape or a copy that an FP8 tensor cannot have."""


class Float8TypeError(Error, TypeError):
    """An object of the wrong kind."""


def from_operator(error: RuntimeError) -> RuntimeError:
    """The ingot error that an operator raised, as PyTorch passed it on; other errors are returned as they are."""
    first_line = str(error).split("\n", 1)[0]
    at = first_line.find(_PREFIX)
    if at < 0:
        return error
    message = first_line[at + len(_PREFIX) :]
    return OutOfMemoryError(message) if message.startswith(_MEMORY) else LinearError(message)

"""Errors of ingot.torch, and how the operators' messages come back as such."""

from __future__ import annotations

from .._core import Error

_PREFIX = "ingot: "


class LinearError(Error, RuntimeError):
    """Tensors or options that a layer cannot take, or a device's error. The message names the layer."""


def from_operator(error: RuntimeError) -> RuntimeError:
    """The ingot error that an operator raised, as PyTorch passed it on; other errors are returned as they are."""
    first_line = str(error).split("\n", 1)[0]
    at = first_line.find(_PREFIX)
    return error if at < 0 else LinearError(first_line[at + len(_PREFIX) :])

"""Contexts: one per device, made when first needed."""

from __future__ import annotations

import functools
from typing import Any

from . import _core

Context = _core.Context


@functools.lru_cache(maxsize=None)
def context_for(device: str) -> Context:
    """The context that functions use when they are given none. `device` is "auto", "cpu" or "cuda:N"."""
    return Context(device)


def info(device: str = "auto") -> dict[str, Any]:
    """What Ingot found: its version, the device (and why it is the CPU, where it is), the target that kernels are
    compiled for, the CUDA driver, NVRTC and cuBLASLt with version and path (or what is missing), and the kernel store."""
    return context_for(device).info()

"""Contexts, which hold a device and its compiled kernels: one per device, created when first needed."""

from __future__ import annotations

import functools
from typing import Any

from . import _core

Context = _core.Context


@functools.lru_cache(maxsize=None)
def context_for(device: str) -> Context:
    """Returns the context that functions use by default. `device` is "auto", "cpu" or "cuda:N"."""
    return Context(device)


def info(device: str = "auto") -> dict[str, Any]:
    """Returns what Ingot found: its version; the device, and the reason if it is the CPU; the target that kernels are
    compiled for; the CUDA driver, NVRTC and cuBLASLt with version and path, or what is missing; and the kernel store."""
    return context_for(device).info()

"""Contexts, which hold a device and its compiled kernels: one per device, created when first needed, under all of its
names and for all threads, and kept until the process ends."""

from __future__ import annotations

import atexit
from typing import Any

from . import _core
from ._core import Context

_found: dict[str, Context] = {}  # by name; it is _core that has one context a device
atexit.register(_core.end_contexts)


def context_for(device: str) -> Context:
    """Returns the context that functions use by default. `device` is "auto", "cpu" or "cuda:N"."""
    if not isinstance(device, str):
        raise _core.Error(f'device: expected "auto", "cpu", "cuda" or "cuda:N", got a {type(device).__name__}')
    context = _found.get(device)
    if context is None:
        context = _found[device] = _core.context_for(device)
    return context


def context_of(context: Context | None, device: str) -> Context:
    """Returns the context that a call was given, or the device's."""
    if context is None:
        return context_for(device)
    if not isinstance(context, Context):
        raise _core.Error(f"context: expected an ingot.Context or None, got a {type(context).__name__}")
    return context


def info(device: str = "auto") -> dict[str, Any]:
    """Returns what Ingot found: its version; the device, and the reason if it is the CPU; the target that kernels are
    compiled for; the CUDA driver, NVRTC, cuBLASLt, NVTX and NCCL with version and path, or what is missing; the kernel
    store; and the bundles and other stores that are only read. Needs no GPU, no CUDA toolkit and no PyTorch. device: "auto",
    "cpu" or "cuda:N". Raises ingot.Error for another name, and for a GPU that is not there."""
    return context_for(device).info()


def stats(device: str = "auto") -> dict[str, Any]:
    """Returns what the device's context has done so far: `compiled`, how many kernels were compiled, and
    `compile_seconds`, how long that took on all threads together; `loaded`, how many came from the store; `from_tiers`,
    how many from each bundle and other store, by its path; `launched`, how many
    kernels were launched on a GPU. device: "auto", "cpu" or "cuda:N". Raises ingot.Error for another name, and for a GPU that is not
    there."""
    return context_for(device).stats()


def recording(device: str = "auto") -> str:
    """Returns what the device's context was asked for so far, each kernel and each matmul, as the text of a recording
    (docs/recordings.md): the first 65,536 of each. On the CPU that is what a GPU would have been asked for.
    Raises ingot.Error for another device than "auto", "cpu" or "cuda:N", and for a GPU that is not there."""
    return context_for(device).recording()

"""Checks that steps on a GPU take no memory from outside of PyTorch and keep none of PyTorch's.

The driver reports only how much of the whole card is in use, so other processes' memory is in that figure. NVML has a
figure for each process, but in many containers not for those inside."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable

import torch

ROUNDS, QUIET_ROUNDS = 40, 3


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def used_by_this_process() -> int | None:
    """Bytes of the current GPU's memory that NVML counts for this process; None if it does not list the process."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        processes_of = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    except (OSError, AttributeError):
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
    device, count, processes = ctypes.c_void_p(), ctypes.c_uint(256), (_Process * 256)()
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        if nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(device)) != 0:
            return None
        if processes_of(device, ctypes.byref(count), processes) != 0:
            return None
        return next((p.used for p in processes[: count.value] if p.pid == os.getpid()), None)
    finally:
        nvml.nvmlShutdown()


def used_on_the_card() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def knows_this_process() -> bool:
    """Whether NVML's figure is this process's: it follows an allocation. In a container the number may be another's."""
    torch.cuda.synchronize()
    before = used_by_this_process()
    if before is None:
        return False
    size = 512 << 20  # more than PyTorch has in reserve for one tensor
    reserved = torch.cuda.memory_reserved()
    held = torch.empty(size, dtype=torch.uint8, device="cuda")
    grown = torch.cuda.memory_reserved() - reserved
    after = used_by_this_process()
    del held
    torch.cuda.empty_cache()
    return grown > 0 and after is not None and grown <= after - before <= grown + (64 << 20)


def grows(one_round: Callable[[], None], used: Callable[[], int], *, alone: bool, pause: float = 0.25) -> bool:
    """Whether rounds of the same steps take ever more memory. `alone`: only this process's memory is in the figure, so
    one round decides. Otherwise rounds go on until three did not raise it: a leak raises it in every round, and other
    processes do not start in all of ten seconds."""
    quiet = 0
    for _ in range(1 if alone else ROUNDS):
        before = used()
        one_round()
        quiet += used() <= before
        if quiet == (1 if alone else QUIET_ROUNDS):
            return False
        if not alone:
            time.sleep(pause)
    return True


def requested() -> int:
    """The bytes of all tensors. memory_allocated() has those of their blocks, which may be larger, by chance."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def check_memory_is_pytorchs(steps: Callable[[], None]) -> None:
    """`steps` was run before, often enough that kernels are loaded and PyTorch has the memory that they need."""

    def one_round() -> None:
        steps()
        torch.cuda.synchronize()
        gc.collect()  # tensors in cycles, of other tests too, are freed at any time otherwise

    alone = knows_this_process()
    used = used_by_this_process if alone else used_on_the_card
    one_round()
    kept = requested()
    assert not grows(one_round, lambda: used() - torch.cuda.memory_reserved(), alone=alone)
    assert requested() <= kept

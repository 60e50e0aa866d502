"""What modules with scales in buffers share: their conversion."""

from __future__ import annotations

import torch


def restore_float32(module: torch.nn.Module, before: dict[str, torch.Tensor | None]) -> None:
    """Gives a module's buffers of scales, named fp8_*, the float32 values from before its conversion, on the device that
    they have now. before: the module's buffers then."""
    for name, buffer in module._buffers.items():
        if name.startswith("fp8_") and buffer is not None and buffer.dtype != torch.float32:
            module._buffers[name] = before[name].to(buffer.device)

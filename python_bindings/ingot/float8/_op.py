"""When a layer's GEMMs are Ingot's operators (ingot.torch) and when plain PyTorch operations."""

from __future__ import annotations

from typing import Optional

import torch

from .config import Float8LinearConfig


def takes(
    input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], config: Float8LinearConfig
) -> bool:
    """Does linear() compute this?"""
    return False


def linear(
    input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], config: Float8LinearConfig
) -> torch.Tensor:
    """Returns input @ weight^T + bias."""
    raise AssertionError

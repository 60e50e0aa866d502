"""Casts of the shards of weights: maxima, which ranks reduce, then scales and codes (formulas: docs/numerics.md)."""

from __future__ import annotations

from typing import Optional

import torch

from ._gathered_weight import Casts, scale_inv_count
from ._scaled_linear import scale_of


def rounded(values: torch.Tensor, dtype: Optional[torch.dtype]) -> torch.Tensor:
    """The values as a gather in 16 bits would send them."""
    return values if dtype is None or dtype == values.dtype else values.to(dtype)


def _blocks(values: torch.Tensor) -> torch.Tensor:
    """A matrix as (blocks of rows, 128, blocks of columns, 128), padded with zeros."""
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % 128, 0, -rows % 128))
    return padded.reshape(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)


def amax_of(values: torch.Tensor, kind: str) -> torch.Tensor:
    """max |x| of what shares a scale, float32 (scale_inv_count()); 0 where there are no elements."""
    if values.numel() == 0:
        return values.new_zeros(scale_inv_count(kind, *values.shape), dtype=torch.float32)
    if kind == "128x128":
        amax = _blocks(values).abs().amax((1, 3))
    else:
        amax = values.abs().amax({"tensor": (0, 1), "row": 1, "column": 0}[kind])
    return amax.reshape(-1).to(torch.float32)


def started(scale: torch.Tensor, amax: torch.Tensor, casts: Casts) -> torch.Tensor:
    """A delayed scale; where no step has made one, which 1 says, that of the weight's own maximum."""
    made = (scale > 0) & torch.isfinite(scale) & (scale != 1)
    return torch.where(made, scale, scales_of(amax, casts).reshape(()))


def scales_of(amax: torch.Tensor, casts: Casts) -> torch.Tensor:
    """The scales of these maxima, in one vector."""
    scale = scale_of(amax, torch.finfo(casts.dtype).max)
    return torch.exp2(torch.floor(torch.log2(scale))) if casts.pow2 else scale


def codes_of(values: torch.Tensor, scales: torch.Tensor, kind: str, casts: Casts) -> torch.Tensor:
    """The codes (n, K) of values (n, K) in high precision."""
    rows, columns = values.shape
    if kind == "128x128":
        scales = scales.reshape(-1, max(1, -(-columns // 128)))
        scales = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    elif kind == "row":
        scales = scales.reshape(-1, 1)
    largest = torch.finfo(casts.dtype).max
    return (values.to(torch.float32) * scales).clamp(-largest, largest).to(casts.dtype)

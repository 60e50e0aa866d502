"""The operators that cast a tensor by itself, with fake kernels: torch.ops.ingot.quantize, with given scales, and
torch.ops.ingot.quantize_rows, with a dynamic scale for each row."""

from __future__ import annotations

import torch

from ._codes import FLOAT8
from ._operators import HIGH_PRECISION
from ._schemas import fake

# By the numbers that the operators take: of codes, and of products.
FORMATS = tuple(FLOAT8.values())
OUTPUTS = tuple(HIGH_PRECISION)

quantize = torch.ops.ingot.quantize.default
quantize_rows = torch.ops.ingot.quantize_rows.default


@fake("quantize")
def _(input, scale, format):
    return torch.empty(input.shape, dtype=FORMATS[format], device=input.device), torch.empty(
        scale.shape, dtype=torch.float32, device=input.device
    )


@fake("quantize_rows")
def _(input, format):
    rows = 1
    for size in input.shape[:-1]:
        rows = rows * size
    return torch.empty(input.shape, dtype=FORMATS[format], device=input.device), torch.empty(
        (rows,), dtype=torch.float32, device=input.device
    )

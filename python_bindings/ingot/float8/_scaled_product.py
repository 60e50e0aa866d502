"""The product of two FP8 matrices with their scales, of any size and on any device."""

from __future__ import annotations

from typing import Optional

import torch

from . import _kernels as kernels


def scaled_product(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    output_dtype: torch.dtype,
    use_fast_accum: bool,
) -> torch.Tensor:
    """Returns (a / a_scale) @ (b / b_scale) for FP8 `a` (M, K) and `b` (K, N). The f32 scales are scalars, or (M, 1)
    and (1, N). Sums are f32 and are rounded once. Ingot's kernels compute it on the CPU and on CUDA devices."""
    product = kernels.product(a, a_scale, b, b_scale, output_dtype, use_fast_accum)
    if product is not None:
        return product
    product = torch.mm(a.to(torch.float32), b.to(torch.float32))
    return (product * a_scale.reciprocal() * b_scale.reciprocal()).to(output_dtype)


def emulated_product(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, output_dtype: torch.dtype
) -> torch.Tensor:
    """Returns the same product of operands that are decoded first, which is what torchao.float8 emulates."""
    return torch.mm(a.to(torch.float32) / a_scale, b.to(torch.float32) / b_scale).to(output_dtype)


def add_bias(product: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """Returns product + bias in the dtype of the product."""
    return product if bias is None else product + bias.to(product.dtype)

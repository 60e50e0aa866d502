"""The product of two FP8 matrices with their scales, of any size and on any device."""

from __future__ import annotations

from typing import Optional

import torch

from .float8_utils import pad_tensor_for_matmul


def scaled_product(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    output_dtype: torch.dtype,
    use_fast_accum: bool,
) -> torch.Tensor:
    """Returns (a / a_scale) @ (b / b_scale) for FP8 `a` (M, K) and `b` (K, N). The f32 scales are scalars, or (M, 1)
    and (1, N). Sums are f32 and are rounded once."""
    if a.is_cuda and 0 not in (*a.shape, *b.shape) and _tensor_cores_take(a, b):
        return on_tensor_cores(a, a_scale, b, b_scale, output_dtype, use_fast_accum)
    product = torch.mm(a.to(torch.float32), b.to(torch.float32))
    return (product * a_scale.reciprocal() * b_scale.reciprocal()).to(output_dtype)


def _tensor_cores_take(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do this GPU's tensor cores multiply these formats? NVIDIA's know the OCP formats, but not e5m2 by e5m2."""
    if torch.version.hip is not None:
        return True
    formats = {a.dtype, b.dtype}
    known = {torch.float8_e4m3fn, torch.float8_e5m2}
    return formats <= known and formats != {torch.float8_e5m2} and torch.cuda.get_device_capability(a.device) >= (8, 9)


def on_tensor_cores(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    output_dtype: torch.dtype,
    use_fast_accum: bool,
) -> torch.Tensor:
    """Returns the product by torch._scaled_mm, which takes `a` by rows, `b` by columns, and multiples of 16."""
    rows, columns = a.shape[0], b.shape[1]
    padded_a = pad_tensor_for_matmul(a.view(torch.uint8), (0, 1)).view(a.dtype).contiguous()
    padded_b = pad_tensor_for_matmul(b.t().view(torch.uint8), (0, 1)).view(b.dtype).contiguous().t()
    a_factor, b_factor = a_scale.reciprocal(), b_scale.reciprocal()
    if a_factor.numel() == 1 and b_factor.numel() == 1:
        product = torch._scaled_mm(
            padded_a,
            padded_b,
            scale_a=a_factor.reshape(()),
            scale_b=b_factor.reshape(()),
            out_dtype=output_dtype,
            use_fast_accum=use_fast_accum,
        )
        return product[:rows, :columns]
    # Factors of rows and columns are applied in f32 afterwards: no GPU has to know them, and it is rounded once.
    one = torch.ones((), dtype=torch.float32, device=a.device)
    product = torch._scaled_mm(
        padded_a, padded_b, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=use_fast_accum
    )
    return (product[:rows, :columns] * a_factor * b_factor).to(output_dtype)


def emulated_product(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, output_dtype: torch.dtype
) -> torch.Tensor:
    """Returns the same product of operands that are decoded first, which is what torchao.float8 emulates."""
    return torch.mm(a.to(torch.float32) / a_scale, b.to(torch.float32) / b_scale).to(output_dtype)


def add_bias(product: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """Returns product + bias in the dtype of the product."""
    return product if bias is None else product + bias.to(product.dtype)

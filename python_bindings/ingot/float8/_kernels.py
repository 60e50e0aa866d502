"""Casts and products of FP8 tensors on Ingot's kernels: torch.ops.ingot.quantize and torch.ops.ingot.gemm."""

from __future__ import annotations

from typing import Optional

import torch
from torch.distributed._tensor import DTensor

from ..torch._errors import from_operator
from ..torch._operators import HIGH_PRECISION
from ..torch._quantize_operators import FORMATS, OUTPUTS
from ..torch._schemas import fake


def _quantize(*arguments):
    return _run(torch.ops.ingot.quantize.default, *arguments)


def _gemm(*arguments):
    return _run(torch.ops.ingot.gemm.default, *arguments)


def _run(operator, *arguments):
    """Runs an operator and turns its errors into Ingot's."""
    if torch.compiler.is_compiling():
        return operator(*arguments)
    try:
        return operator(*arguments)
    except RuntimeError as error:
        raise from_operator(error) from None


_DEVICES = ("cpu", "cuda", "meta")


@fake("gemm")
def _(a, b, output):
    return torch.empty((a.shape[0], b.shape[1]), dtype=OUTPUTS[output], device=a.device)


def _lies_by_columns(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.stride(1) > 1 and tensor.stride(0) == 1 and tensor.shape[0] > 1


def quantized(tensor: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Optional[torch.Tensor]:
    """Returns saturate(tensor * scale) in the FP8 `dtype`, with the tensor's memory layout; None where
    Ingot's kernels do not compute it.

    The f32 `scale` has one element, or the shape of the tensor with 1 as its first or its last size.
    """
    if isinstance(tensor, DTensor) or isinstance(scale, DTensor):
        return None
    if tensor.device.type not in _DEVICES or tensor.dtype not in HIGH_PRECISION or tensor.dim() == 0:
        return None
    if dtype not in FORMATS or scale.dtype != torch.float32:
        return None
    if scale.numel() != 1 and scale.dim() != tensor.dim():
        return None
    if _lies_by_columns(tensor):
        return _quantize(tensor.t(), scale if scale.numel() == 1 else scale.t(), FORMATS.index(dtype))[0].t()
    if scale.numel() == 1 or scale.shape == (*tensor.shape[:-1], 1):
        return _quantize(tensor, scale, FORMATS.index(dtype))[0]
    if scale.shape != (1, *tensor.shape[1:]):
        return None
    shape = (tensor.shape[0], scale.numel())
    codes, _ = _quantize(tensor.reshape(shape), scale.reshape(1, shape[1]), FORMATS.index(dtype))
    return codes.reshape(tensor.shape)


def scale_inv_of(scale: torch.Tensor) -> torch.Tensor:
    """1 / scale in float32, rounded once. A kernel that Inductor makes divides float32 approximately, but float64 exactly,
    and a quotient that is rounded to float64 first becomes the same float32."""
    if torch.compiler.is_compiling() or type(scale) is not torch.Tensor:  # it is traced
        return scale.to(torch.float64).reciprocal().to(torch.float32)
    return scale.to(torch.float32).reciprocal()


def scaled_product(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    output_dtype: torch.dtype,
    use_fast_accum: bool,
) -> torch.Tensor:
    """Returns (a / a_scale) @ (b / b_scale) for FP8 `a` (M, K) and `b` (K, N), in any order in memory. The f32 scales are
    scalars, or (M, 1) and (1, N). Sums are f32 and are rounded once. Ingot's kernels compute it on the CPU and on CUDA
    devices."""
    if a.device.type in _DEVICES and output_dtype in OUTPUTS:
        return _gemm(a, scale_inv_of(a_scale), b, scale_inv_of(b_scale), OUTPUTS.index(output_dtype), use_fast_accum)
    product = torch.mm(a.to(torch.float32), b.to(torch.float32))
    return (product * a_scale.reciprocal() * b_scale.reciprocal()).to(output_dtype)

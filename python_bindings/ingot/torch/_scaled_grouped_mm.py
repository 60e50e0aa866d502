"""scaled_grouped_mm(): the products of FP8 codes of many experts, by the name and the arguments of torch.nn.functional. Experts
may have any number of rows, or of columns along K, and the CPU computes as well."""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Sequence

import torch

from ._checks import called, check_dense, is_transformed, refuse_transforms
from ._errors import LinearError
from ._quantize_operators import FORMATS, OUTPUTS
from ._schemas import fake, flops

_NAME = "scaled_grouped_mm"


@fake("grouped_gemm")
def _(a, b, ends, output):
    sizes = (a.shape[0], b.shape[1]) if b.dim() == 3 else (ends.shape[0], a.shape[0], b.shape[0])
    return torch.empty(sizes, dtype=OUTPUTS[output], device=a.device)


@flops("grouped_gemm")
def _(a, b) -> int:
    """Of all rows, or of all of K: which of them experts have is known on the device only."""
    return 2 * a[0] * a[1] * b[-2]


def _refuse(what: str) -> NoReturn:
    raise LinearError(f"{_NAME} {what}")


def _single(name: str, given: Any, expected: str) -> Any:
    """What a list of one has, as of scales in one level."""
    if not isinstance(given, (list, tuple)):
        return given
    if len(given) != 1:
        _refuse(f"{name}: has {len(given)} levels, expected one, of {expected}")
    return given[0]


def _check_recipe(name: str, given: Any) -> None:
    """A ScalingType, or its name, since PyTorch 2.7 has none."""
    recipe = _single(name, given, "ScalingType.RowWise")
    found = getattr(recipe, "name", recipe)
    if found != "RowWise":
        _refuse(
            f"{name}: is {found!r}, expected ScalingType.RowWise: ingot.torch.grouped_linear() takes a scale_inv for each expert and "
            "blocks of 128 x 128"
        )


def _check_swizzle(name: str, given: Any) -> None:
    swizzle = _single(name, given, "SwizzleType.NO_SWIZZLE")
    if swizzle is not None and getattr(swizzle, "name", swizzle) != "NO_SWIZZLE":
        _refuse(f"{name}: is {getattr(swizzle, 'name', swizzle)!r}, but scales of rows are not swizzled: leave it out")


def _check_tensor(name: str, tensor: Any, device: torch.device) -> None:
    check_dense(_NAME, name, tensor)
    if tensor.device != device:
        _refuse(f"{name}: is on {tensor.device} and mat_a on {device}: move one with .to()")
    if torch.is_grad_enabled() and tensor.requires_grad:
        _refuse(
            f"{name}: requires a gradient, but FP8 codes and their scales have none: detach() it, or call "
            "ingot.torch.grouped_linear() with values in high precision, which trains"
        )


def _check_operands(mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor) -> None:
    for name, operand in (("mat_a", mat_a), ("mat_b", mat_b)):
        _check_tensor(name, operand, mat_a.device)
        if operand.dtype not in FORMATS[:2]:
            _refuse(f"{name}: is {operand.dtype}, expected float8_e4m3fn or float8_e5m2: cast it first")
    shapes = f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)}"
    if mat_a.dim() != 2 or mat_b.dim() not in (2, 3):
        _refuse(f"mat_a and mat_b: have the shapes {shapes}, expected (M, K) and (experts, K, N), or (M, K) and (K, N)")
    if mat_a.shape[1] != mat_b.shape[-2]:
        _refuse(f"mat_b: K is {mat_b.shape[-2]}, but that of mat_a is {mat_a.shape[1]}: the shapes are {shapes}")
    if offs is None:
        _refuse("offs: is missing, expected int32 (experts,): where each expert's rows end, or its part of K if mat_b has two dimensions")
    _check_tensor("offs", offs, mat_a.device)
    if offs.dtype != torch.int32 or offs.dim() != 1:
        _refuse(f"offs: is {offs.dtype} of the shape {tuple(offs.shape)}, expected int32 (experts,): convert it with .to(torch.int32)")
    if mat_b.dim() == 3 and offs.shape[0] != mat_b.shape[0]:
        _refuse(f"offs: has {offs.shape[0]} elements, but mat_b has {mat_b.shape[0]} experts: give one for each")


def _scales(name: str, given: Any, shape: Sequence[int], of: str, device: torch.device) -> torch.Tensor:
    scale = _single(name, given, f"{tuple(shape)}")
    _check_tensor(name, scale, device)
    if scale.dtype != torch.float32 or tuple(scale.shape) != tuple(shape):
        _refuse(f"{name}: is {scale.dtype} of the shape {tuple(scale.shape)}, expected float32 {tuple(shape)}: {of}")
    return scale.contiguous()


def scaled_grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: Any,
    scale_recipe_a: Any,
    scale_b: Any,
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Optional[torch.Tensor] = None,
    offs: Optional[torch.Tensor] = None,
    output_dtype: Optional[torch.dtype] = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_grouped_mm() of FP8 codes with a scale for each row.

    mat_a (M, K) by mat_b (experts, K, N): the rows of each expert, which end at offs, by its matrix; scale_a (M,), scale_b
    (experts, N). Returns (M, N), of which rows from offs[-1] on are not written. Or mat_a (M, K) by mat_b (K, N), of which each
    expert has some of K, which end at offs, as the gradients of weights do; scale_a (experts * M,), scale_b (experts * N,). Returns
    (experts, M, N), with zeros for experts that have nothing.

    Codes are e4m3fn or e5m2; values are code * scale. mat_a lies by rows and mat_b by columns (a transpose); others are copied. offs:
    int32 (experts,) on the device, which the host does not read; any ends, with nothing padded. scale_recipe_*:
    ScalingType.RowWise, or its name. output_dtype: bfloat16, float32 or float16. use_fast_accum: sums in the tensor core
    throughout. Runs on the CPU and on Hopper's GPUs, there with K (and with a mat_b (K, N) all of K) a multiple of 16. There is no
    backward: grouped_linear() with values in high precision trains. Raises LinearError for what it does not take."""
    check_dense(_NAME, "mat_a", mat_a)
    of_rows = [each for given in (scale_a, scale_b) for each in (given if isinstance(given, (list, tuple)) else (given,))]
    if is_transformed(mat_a, mat_b, *(each for each in of_rows if isinstance(each, torch.Tensor))):
        refuse_transforms(_NAME)
    for side, recipe, swizzle in (("a", scale_recipe_a, swizzle_a), ("b", scale_recipe_b, swizzle_b)):
        _check_recipe(f"scale_recipe_{side}", recipe)
        _check_swizzle(f"swizzle_{side}", swizzle)
    if bias is not None:
        _refuse("bias: is given, but there is none within this product: add it to the result")
    dims = tuple(contraction_dim) if isinstance(contraction_dim, (tuple, list)) else contraction_dim
    if dims not in ((), (-1, -2)):
        _refuse(f"contraction_dim: is {dims}, expected (), which is mat_a's last and mat_b's last but one")
    if not isinstance(use_fast_accum, int):
        _refuse(f"use_fast_accum: is {use_fast_accum!r}, expected True or False")
    _check_operands(mat_a, mat_b, offs)
    output_dtype = torch.bfloat16 if output_dtype is None else output_dtype
    if output_dtype not in OUTPUTS:
        _refuse(f"output_dtype: is {output_dtype}, expected bfloat16, float32 or float16")
    m, n, experts = mat_a.shape[0], mat_b.shape[-1], offs.shape[0]
    if mat_b.dim() == 3:
        scales = ((m,), "one for each row of mat_a"), ((experts, n), "one for each column of each expert")
    else:
        scales = ((experts * m,), "each expert's rows of mat_a"), ((experts * n,), "each expert's columns of mat_b")
    scale_a, scale_b = (
        _scales(name, given, *each, mat_a.device)
        for name, given, each in (("scale_a", scale_a, scales[0]), ("scale_b", scale_b, scales[1]))
    )
    arguments = mat_a.contiguous(), scale_a, mat_b.transpose(-1, -2).contiguous(), scale_b, offs.contiguous()
    return called(_NAME, torch.ops.ingot.grouped_gemm.default, *arguments, OUTPUTS.index(output_dtype), int(use_fast_accum))

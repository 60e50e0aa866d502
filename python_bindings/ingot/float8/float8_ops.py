"""What PyTorch's operations do to a Float8TrainingTensor. Codes are copied as they are; a scale for rows or columns
follows its elements."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch.utils._pytree import tree_map

from ..torch._errors import Float8AssertionError, Float8NotImplementedError, Float8RuntimeError
from ._kernels import scaled_product
from .float8_training_tensor import FLOAT8_OPS_TABLE, Float8TrainingTensor, choose_scaled_mm_config
from .float8_utils import to_fp8_saturated

aten = torch.ops.aten
c10d_functional = torch.ops.c10d_functional
_c10d_functional = torch.ops._c10d_functional


def implements(aten_ops) -> Callable:
    """Enters a function (op, args, kwargs) into FLOAT8_OPS_TABLE for these operations. Raises RuntimeError for one that
    has a function."""

    def enter(function: Callable) -> Callable:
        for op in aten_ops:
            if op in FLOAT8_OPS_TABLE:
                raise Float8RuntimeError(
                    f"{op} has a function already, {FLOAT8_OPS_TABLE[op].__name__}: replace it in FLOAT8_OPS_TABLE"
                )
            FLOAT8_OPS_TABLE[op] = function
        return function

    return enter


def add_bias(product: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    """Returns product + bias in the dtype of the product."""
    return product if bias is None else product + bias.to(product.dtype)


def _is_tensorwise(tensor: Float8TrainingTensor) -> bool:
    return tensor._scale.dim() < 2


def _require_tensorwise(op: Any, tensor: Float8TrainingTensor) -> None:
    if not _is_tensorwise(tensor):
        raise Float8AssertionError(
            f"{op} with axiswise scaling is not supported yet, for a scale of shape {tuple(tensor._scale.shape)}: cast "
            "after it, or call to_original_precision() first"
        )


# ---- Views and copies ------------------------------------------------------------------------------------------------


@implements([aten._unsafe_view.default, aten.as_strided.default, aten.constant_pad_nd.default])
def float8_desugar_op(op, args, kwargs):
    """Moves codes: views, and padding with zeros, whose code is zero in every format."""
    source = args[0]
    if op is aten._unsafe_view.default:
        return float8_view(op, args, kwargs)
    _require_tensorwise(op, source)
    if op is aten.constant_pad_nd.default and any(value != 0 for value in args[2:]):
        raise Float8NotImplementedError(f"{op} pads FP8 tensors with zeros only, got {args[2]}")
    return source._like(op(source._data, *args[1:], **kwargs))


@implements([aten.clone.default, aten.detach.default, aten.alias.default])
def float8_desugar_data_and_scale_op(op, args, kwargs):
    """Copies and aliases, of codes and scale alike."""
    source = args[0]  # a gather of FSDP2 writes the scale of its weight in place, and a copy keeps its values
    new = source._like(op(source._data, *args[1:], **kwargs), op(source._scale))
    new._scale_inv = None if source._scale_inv is None else op(source._scale_inv)
    return new


@implements([aten.t.default, aten.transpose.int])
def float8_transpose(op, args, kwargs):
    """A transpose; the axis of the scale goes with its elements."""
    source = args[0]
    data = op(source._data, *args[1:], **kwargs)
    scale = source._scale if _is_tensorwise(source) else op(source._scale, *args[1:], **kwargs)
    axis = source._axiswise_dim
    rank = source._data.dim()
    if axis is not None and rank > 1:
        first, second = (0, 1) if op is aten.t.default else (dim % rank for dim in args[1:3])
        position = axis % rank
        position = {first: second, second: first}.get(position, position)
        if position not in (0, rank - 1):
            raise Float8AssertionError(
                f"{op} with axiswise scaling is not supported yet: it would bring the scaled dimension to {position} "
                f"of {rank}, and only the first or the last can be scaled"
            )
        axis = 0 if position == 0 else -1
    return source._like(data, scale, axis)


@implements([aten.view.default, aten.reshape.default])
def float8_view(op, args, kwargs):
    """A view of another shape. With axiswise scales the scaled dimension has to stay what it is."""
    source = args[0]
    data = op(source._data, *args[1:], **kwargs)
    if _is_tensorwise(source):
        return source._like(data)
    old, new = tuple(source._data.shape), tuple(data.shape)
    at_front = source._axiswise_dim == 0
    if len(new) == 0 or new[0 if at_front else -1] != old[0 if at_front else -1]:
        kept = f"({old[0]}, ...)" if at_front else f"(..., {old[-1]})"
        raise Float8RuntimeError(
            f"{op}: shape {old} with a scale of shape {tuple(source._scale.shape)} cannot become {new}, which would "
            f"mix elements of different scales; a shape {kept} can"
        )
    scale_shape = (1, *new[1:]) if at_front else (*new[:-1], 1)
    return source._like(data, source._scale.reshape(scale_shape), 0 if at_front else -1)


def _scale_part(tensor: Float8TrainingTensor, dim: int, op: Callable) -> torch.Tensor:
    """Returns the scale of a part of the tensor along `dim`."""
    if _is_tensorwise(tensor) or tensor._scale.shape[dim] == 1:
        return tensor._scale
    return op(tensor._scale)


@implements([aten.slice.Tensor])
def float8_slice(op, args, kwargs):
    """A part along one dimension."""
    source = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    scale = _scale_part(source, dim, lambda each: op(each, *args[1:], **kwargs))
    return source._like(op(source._data, *args[1:], **kwargs), scale)


@implements([aten.split.Tensor, aten.split_with_sizes.default])
def float8_split(op, args, kwargs):
    """Parts along one dimension; with one scale they share it."""
    source = args[0]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    parts = op(source._data, *args[1:], **kwargs)
    whole = _is_tensorwise(source) or source._scale.shape[dim] == 1
    scales = [source._scale] * len(parts) if whole else op(source._scale, *args[1:], **kwargs)
    return [source._like(part, scale) for part, scale in zip(parts, scales)]


@implements([aten.cat.default])
def float8_cat(op, args, kwargs):
    """A join of tensors that have one scale: the parts of a split, for example. Bytes are joined, because not every
    backend joins FP8."""
    parts = args[0]
    first = parts[0]
    for part in parts:
        if not isinstance(part, Float8TrainingTensor):
            raise Float8AssertionError(f"cat joins FP8 tensors with each other only, got a {type(part).__name__}")
        _require_tensorwise(op, part)
        _require_same(op, first, part)
    joined = op([part._data.view(torch.uint8) for part in parts], *args[1:], **kwargs)
    return first._like(joined.view(first._data.dtype))


def _require_same(op: Any, one: Float8TrainingTensor, other: Float8TrainingTensor) -> None:
    """Raises AssertionError unless codes of one mean the same in the other."""
    for what, a, b in (
        ("dtype", one._orig_dtype, other._orig_dtype),
        ("FP8 dtype", one._data.dtype, other._data.dtype),
        ("linear_mm_config", one._linear_mm_config, other._linear_mm_config),
        ("gemm_input_role", one._gemm_input_role, other._gemm_input_role),
    ):
        if a != b:
            raise Float8AssertionError(f"{op} of FP8 tensors with different {what}: {a} and {b}")
    if one._scale is not other._scale and not bool((one._scale == other._scale).all()):
        raise Float8AssertionError(
            f"{op} of FP8 tensors with different scales, {one._scale} and {other._scale}: cast them with one scale"
        )


@implements([aten._to_copy.default])
def autocast_to_copy(op, args, kwargs):
    """Another dtype to show, which autocast asks for, or another device."""
    source = args[0]
    dtype = kwargs.get("dtype") or source._orig_dtype
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise Float8AssertionError(
            f"{op}: an FP8 tensor can stand for float16, bfloat16 or float32, not {dtype}: call "
            "to_original_precision() first"
        )
    moves = {name: value for name, value in kwargs.items() if name != "dtype"}
    data, scale = source._data, source._scale
    if moves:
        data, scale = op(data, **moves), op(scale, **moves)
    return Float8TrainingTensor(
        data, scale, dtype, source._linear_mm_config, source._gemm_input_role, source._axiswise_dim
    )


# ---- Writes ----------------------------------------------------------------------------------------------------------


@implements([aten.fill_.Scalar])
def float8_fill(op, args, kwargs):
    """Sets every element to the code of one value."""
    target, value = args[0], args[1]
    target._data.copy_(to_fp8_saturated(target._scale * value, target._data.dtype))
    return target


@implements([aten.index_put_.default])
def index_put_fp8(op, args, kwargs):
    """Writes FP8 elements into an FP8 tensor of the same scale."""
    target, values = args[0], args[2]
    for each in (target, values):
        if not isinstance(each, Float8TrainingTensor):
            raise Float8AssertionError(
                f"{op} writes FP8 tensors into FP8 tensors only, got a {type(each).__name__}: cast it with the same "
                "scale, or call to_original_precision() on the other"
            )
        _require_tensorwise(op, each)
    _require_same(op, target, values)
    op(target._data, args[1], values._data, *args[3:], **kwargs)
    return target


@implements([aten.copy_.default])
def copy_fp8(op, args, kwargs):
    """A copy into a plain tensor, which decodes, or into an FP8 tensor of the same scale. Raises RuntimeError for a
    plain source, whose scale is not known."""
    target, source = args[0], args[1]
    if not isinstance(source, Float8TrainingTensor):
        raise Float8RuntimeError(
            "Unsupported semantics for copy_ in Float8TrainingTensor: a plain tensor has no scale; cast it with "
            "hp_tensor_and_scale_to_float8() first"
        )
    if not isinstance(target, Float8TrainingTensor):
        return op(target, source.to_original_precision(), *args[2:], **kwargs)
    _require_tensorwise(op, source)
    _require_same(op, target, source)
    op(target._data, source._data, *args[2:], **kwargs)
    return target


# ---- Sums and comparisons --------------------------------------------------------------------------------------------


@implements([aten.sum.dim_IntList])
def float8_cast_up_op(op, args, kwargs):
    """A sum, of decoded elements: the gradient of a bias is one."""

    def decoded(each):
        return each.to_original_precision() if isinstance(each, Float8TrainingTensor) else each

    return op(*tree_map(decoded, args), **tree_map(decoded, kwargs))


@implements([aten.is_same_size.default])
def float8_is_same_size(op, args, kwargs):
    """Have both tensors the same shape?"""
    return args[0].shape == args[1].shape


# ---- Matrix products -------------------------------------------------------------------------------------------------


def addmm_float8_unwrapped(
    a_data: torch.Tensor,
    a_scale: torch.Tensor,
    b_data: torch.Tensor,
    b_scale: torch.Tensor,
    output_dtype: torch.dtype,
    output_scale: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Returns (a / a_scale) @ (b / b_scale) + bias in `output_dtype`, for FP8 codes `a_data` (M, K) and `b_data` (K, N)
    of any size. Scales are f32: scalars, or (M, 1) and (1, N). `output_scale` multiplies the result, which an FP8
    `output_dtype` needs."""
    if output_scale is None:
        product = scaled_product(a_data, a_scale, b_data, b_scale, output_dtype, use_fast_accum)
        return add_bias(product, bias)
    product = scaled_product(a_data, a_scale, b_data, b_scale, torch.float32, use_fast_accum)
    scaled = add_bias(product, bias) * output_scale
    return to_fp8_saturated(scaled, output_dtype) if output_dtype.itemsize == 1 else scaled.to(output_dtype)


def _product(a: Float8TrainingTensor, b: Float8TrainingTensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
    how = choose_scaled_mm_config(a._gemm_input_role, a._linear_mm_config, b._gemm_input_role, b._linear_mm_config)
    if how.emulate:
        # Of operands that are decoded first, as torchao.float8 emulates it.
        product = torch.mm(a._data.to(torch.float32) / a._scale, b._data.to(torch.float32) / b._scale)
        return add_bias(product.to(a._orig_dtype), bias)
    return addmm_float8_unwrapped(
        a._data, a._scale, b._data, b._scale, a._orig_dtype, bias=bias, use_fast_accum=how.use_fast_accum
    )


def _require_operands(op: Any, a: Any, b: Any) -> None:
    if not (isinstance(a, Float8TrainingTensor) and isinstance(b, Float8TrainingTensor)):
        raise Float8AssertionError(
            f"{op}: expecting both operands in FP8, found {type(a).__name__} and {type(b).__name__}: cast the other, "
            "or call to_original_precision()"
        )


@implements([aten.mm.default, aten.matmul.default])
def float8_mm(op, args, kwargs):
    """The product of two FP8 matrices, in the dtype that the first one shows."""
    _require_operands(op, args[0], args[1])
    return _product(args[0], args[1], None)


@implements([aten.addmm.default])
def float8_addmm(op, args, kwargs):
    """The same with a bias of that dtype."""
    bias, a, b = args[:3]
    _require_operands(op, a, b)
    if bias.dtype != a._orig_dtype:
        raise Float8AssertionError(
            f"{op}: the bias is {bias.dtype}, and the product {a._orig_dtype}: convert it with .to()"
        )
    return _product(a, b, bias)


# ---- Collectives -----------------------------------------------------------------------------------------------------


def _collectives(*names: str) -> list:
    """The operations of these names that this PyTorch has, in both of their namespaces."""
    found = [getattr(space, name, None) for name in names for space in (c10d_functional, _c10d_functional)]
    return [each.default for each in found if each is not None]


@implements(_collectives("all_gather_into_tensor", "all_to_all_single", "broadcast"))
def allgather_fp8(op, args, kwargs):
    """A collective that copies: it sends bytes, because gloo knows no FP8. Every rank has to have the same scale."""
    source = args[0]
    _require_tensorwise(op, source)
    received = op(source._data.contiguous().view(torch.uint8), *args[1:], **kwargs)
    return source._like(received.view(source._data.dtype))


@implements(_collectives("wait_tensor", "_wrap_tensor_autograd"))
def wait_tensor_fp8(op, args, kwargs):
    """Waits for a collective."""
    source = args[0]
    _require_tensorwise(op, source)
    return source._like(op(source._data, *args[1:], **kwargs))

"""Adapters that let Ingot use NumPy arrays and PyTorch tensors alike: element type, raw bits, new arrays, current stream.

There is one class for each framework, with the same methods. PyTorch's is used only for torch tensors, so torch is never
imported for users who do not use it. The core reads raw bits, so whatever gives an element another meaning or place
(byte order, masks, sparse storage, a lazy negation) is resolved or refused here.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from ._core import Error, dtypes

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_IEEE_LONG_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# PyTorch's and ml_dtypes' names: float8_e4m3fn, float6_e3m2fn ...
FROM_LONG_NAME = {
    _IEEE_LONG_NAMES.get(name, f"float{bits}_{name}"): name for name, bits, kind in dtypes if kind != "bytes"
}
_LONG_NAME = {short: long for long, short in FROM_LONG_NAME.items()}
# Arrays of these dtypes hold bits without their type: NumPy itself has no bfloat16 and no FP8.
_HINTS = {
    "uint16": "for the bits of bf16 install ml_dtypes and give array.view(ml_dtypes.bfloat16)",
    "uint8": "for codes of FP8 give their dtype too, where the call has one, or array.view(ml_dtypes.float8_e4m3fn)",
}
SIZE = {name: bits // 8 for name, bits, kind in dtypes if kind in ("high_precision", "fp8")}
# Bits per code of the packed formats: two codes share one byte, or four share three.
PACKED_BITS = {name: bits for name, bits, kind in dtypes if kind == "sub_byte"}
_NAMES = [*SIZE, *(name for name, _, kind in dtypes if kind == "scale"), *PACKED_BITS]


def dtype_name(dtype: Any) -> str:
    """Returns "e4m3fn" for "e4m3fn", "float8_e4m3fn", torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, and so on."""
    text = dtype if isinstance(dtype, str) else str(dtype)
    if text.startswith("<class"):
        text = dtype.__name__
    text = text.removeprefix("torch.")
    text = FROM_LONG_NAME.get(text, text)
    if text not in _NAMES:
        short = text.removeprefix("float8_").removeprefix("float6_").removeprefix("float4_")
        near = f"; did you mean {short}fn?" if f"{short}fn" in _NAMES else ""
        raise Error(f"dtype: {repr(dtype)[:80]} is not one of {', '.join(_NAMES)}{near}")
    return text


def _array_dtype(what: str, name: str) -> str:
    """Returns the short name of an array's dtype, which `name` is in its framework."""
    short = FROM_LONG_NAME.get(name)
    if short is None:
        raise Error(f"{what}: {name} is not one of {', '.join(SIZE)}; {_HINTS.get(name, 'convert it first')}")
    return short


def _check_own_codes(what: str, name: str, dtype: str) -> None:
    """Refuses codes whose array has the dtype `name`, if these are neither codes of `dtype` nor bytes."""
    own = FROM_LONG_NAME.get(name, name)
    if own not in (dtype, "uint8") and not (name == "float4_e2m1fn_x2" and dtype == "e2m1fn"):
        raise Error(f"{what}: holds {own}, but should hold {dtype}; set dtype to what the codes are, or give their bits in uint8")


class NumpyArrays:
    device = "cpu"
    stream = 0

    @staticmethod
    def own(array: Any, what: str) -> np.ndarray:
        """Returns the array as a plain ndarray."""
        if not isinstance(array, np.ndarray):
            raise Error(f"{what}: is a {type(array).__name__}; all arrays of a call must be of one framework, here NumPy")
        if isinstance(array, np.ma.MaskedArray):
            raise Error(f"{what}: is a masked array, and masks are not read; give array.filled(0) or another plain array")
        return np.asarray(array)

    @staticmethod
    def dtype(array: np.ndarray, what: str = "array") -> str:
        return _array_dtype(what, array.dtype.name)

    def bits(self, array: Any, what: str = "array") -> np.ndarray:
        """Returns the array's bits as unsigned integers in this machine's byte order, with contiguous columns and rows
        that follow one another. Copies where the array is not so."""
        array = self.own(array, what)
        if array.itemsize not in _UNSIGNED:
            raise Error(f"{what}: {array.dtype.name} is not one of {', '.join(SIZE)}; convert it first")
        if not array.dtype.isnative:
            array = array.byteswap().view(array.dtype.newbyteorder("="))
        if not _is_plain(array.strides, array.shape, array.itemsize) or not array.flags.aligned:
            array = np.array(array, order="C", copy=True)
        return array.view(_UNSIGNED[array.itemsize])

    def output(self, array: Any, dtypes: tuple[str, ...], what: str) -> np.ndarray:
        """Returns the bits of an array that a call writes in place. Refuses one that cannot be written so."""
        array = self.own(array, what)
        if self.dtype(array, what) not in dtypes:
            raise Error(f"{what}: is {array.dtype.name}, but is written as {' or '.join(dtypes)}; give an array of that dtype")
        if not array.flags.writeable:
            raise Error(f"{what}: is read-only, and is written in place; give a copy")
        if not array.dtype.isnative:
            raise Error(f"{what}: has the other byte order, and is written in place; give an array in this machine's")
        if not _is_plain(array.strides, array.shape, array.itemsize) or not array.flags.aligned:
            raise Error(f"{what}: must have contiguous rows that share no memory, aligned; it is written in place")
        return array.view(_UNSIGNED[array.itemsize])

    def codes(self, array: Any, dtype: str, what: str) -> np.ndarray:
        """Returns the bits of codes, which have their dtype or are bytes."""
        _check_own_codes(what, self.own(array, what).dtype.name, dtype)
        return self.bits(array, what)

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Returns an uninitialised array. If NumPy lacks the type, the array has ml_dtypes' type, or without ml_dtypes
        unsigned integers. Formats smaller than a byte are stored in bytes."""
        if dtype in PACKED_BITS:
            return np.empty(shape, np.uint8)
        long_name = _LONG_NAME[dtype]
        if dtype in ("f32", "f16"):
            return np.empty(shape, long_name)
        try:
            import ml_dtypes
        except ImportError:
            return np.empty(shape, _UNSIGNED[SIZE.get(dtype, 1)])
        return np.empty(shape, getattr(ml_dtypes, long_name))

    @staticmethod
    def is_contiguous(array: Any) -> bool:
        """Does reshape(-1) return a view, so that writes to it change the array?"""
        return array.flags.c_contiguous


class TorchArrays:
    def __init__(self, tensor: Any) -> None:
        import torch  # already imported: the tensor is torch's

        self._torch = torch
        self._place = tensor.device
        if tensor.device.type == "cuda":
            index = tensor.device.index if tensor.device.index is not None else 0
            self.device = f"cuda:{index}"
            self.stream = torch.cuda.current_stream(tensor.device).cuda_stream
        elif tensor.device.type == "cpu":
            self.device, self.stream = "cpu", 0
        else:
            raise Error(f"tensor: is on {tensor.device}; Ingot computes on cpu and cuda")

    def own(self, tensor: Any, what: str) -> Any:
        """Returns the tensor without its history."""
        torch = self._torch
        if not isinstance(tensor, torch.Tensor):
            raise Error(f"{what}: is a {type(tensor).__name__}; all arrays of a call must be of one framework, here PyTorch")
        _check_dense(torch, tensor, what)
        if tensor.device != self._place:
            raise Error(f"{what}: is on {tensor.device}, but the first tensor of the call on {self._place}; move it there")
        return tensor.detach().resolve_neg()

    @staticmethod
    def dtype(tensor: Any, what: str = "tensor") -> str:
        return _array_dtype(what, str(tensor.dtype).removeprefix("torch."))

    def bits(self, tensor: Any, what: str = "tensor") -> Any:
        tensor = self.own(tensor, what)
        size = tensor.element_size()
        if size not in _UNSIGNED:
            raise Error(f"{what}: {str(tensor.dtype).removeprefix('torch.')} is not one of {', '.join(SIZE)}; convert it first")
        if not self._is_plain(tensor):
            tensor = tensor.clone(memory_format=self._torch.contiguous_format)
        return tensor.view(self._integers(size))

    def output(self, tensor: Any, dtypes: tuple[str, ...], what: str) -> Any:
        bits = self.own(tensor, what)
        if self.dtype(tensor, what) not in dtypes:
            own = str(tensor.dtype).removeprefix("torch.")
            raise Error(f"{what}: is {own}, but is written as {' or '.join(dtypes)}; give a tensor of that dtype")
        if tensor.requires_grad:
            raise Error(f"{what}: requires a gradient, and is written in place; give tensor.detach()")
        if tensor.is_neg() or not self._is_plain(tensor):
            raise Error(f"{what}: must have contiguous rows that share no memory, aligned; it is written in place")
        if not tensor.is_inference():
            self._torch.autograd.graph.increment_version(tensor)  # for whoever has saved it
        return bits.view(self._integers(tensor.element_size()))

    def codes(self, tensor: Any, dtype: str, what: str) -> Any:
        _check_own_codes(what, str(self.own(tensor, what).dtype).removeprefix("torch."), dtype)
        return self.bits(tensor, what)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        # uint8 if PyTorch lacks the type: for packed codes, and in early versions for scales.
        torch_dtype = getattr(self._torch, _LONG_NAME[dtype], self._torch.uint8)
        return self._torch.empty(shape, dtype=torch_dtype, device=self._place)

    @staticmethod
    def is_contiguous(tensor: Any) -> bool:
        return tensor.is_contiguous()

    @staticmethod
    def _is_plain(tensor: Any) -> bool:
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        return _is_plain(strides, tensor.shape, size) and tensor.data_ptr() % size == 0

    def _integers(self, size: int) -> Any:
        return {1: self._torch.uint8, 2: self._torch.int16, 4: self._torch.int32}[size]


def _is_plain(strides: tuple[int, ...], shape: tuple[int, ...], size: int) -> bool:
    """Are the columns contiguous, and do rows follow one another, a whole number of elements apart?"""
    if len(shape) == 0 or 0 in shape:
        return True
    if shape[-1] > 1 and strides[-1] != size:
        return False
    return len(shape) != 2 or shape[0] == 1 or (strides[0] >= shape[1] * size and strides[0] % size == 0)


def _check_dense(torch: Any, tensor: Any, what: str) -> None:
    """Refuses tensors whose elements are not where their strides say."""
    if tensor.is_nested:
        raise Error(f"{what}: is a nested tensor; give a dense one, such as torch.nested.to_padded_tensor(tensor, 0.0)")
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise Error(f"{what}: is a tensor of the layout {layout}; give a dense one: tensor.to_dense()")
    if tensor.is_quantized:
        raise Error(f"{what}: is a quantized tensor of PyTorch; give tensor.dequantize()")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Error(f"{what}: is a {type(tensor).__name__}, which is no plain tensor; give the tensor that it holds")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise Error(f"{what}: is a tensor of a torch.func transform, which cannot look into this call; call it outside")


def is_torch(array: Any) -> bool:
    """Is it a tensor of PyTorch? Imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, getattr(torch, "Tensor", ()))


def arrays_of(array: Any, what: str = "array") -> NumpyArrays | TorchArrays:
    """Returns the adapter for this array and all others of a call."""
    if isinstance(array, np.ndarray):
        arrays: NumpyArrays | TorchArrays = NumpyArrays()
    elif is_torch(array):
        arrays = TorchArrays(array)
    else:
        raise Error(f"{what}: expected a NumPy array or a PyTorch tensor, got {type(array).__name__}")
    arrays.own(array, what)
    return arrays


def _on_host(array: Any, what: str) -> np.ndarray:
    """Returns anything like an array as one of NumPy's: a tensor on the CPU with its dtype's bits as unsigned integers."""
    try:
        plain = np.asarray(array)
    except (TypeError, ValueError) as error:
        raise Error(f"{what}: is no array of numbers: {error}") from None
    return NumpyArrays.own(array if isinstance(array, np.ndarray) else plain, what)


def _tensor_on_host(tensor: Any, what: str) -> Any:
    if tensor.device.type != "cpu":
        raise Error(f"{what}: is on {tensor.device}, and this function runs on the CPU; give tensor.cpu()")
    return TorchArrays(tensor).own(tensor, what)


def host_values(array: Any, dtype: type, what: str) -> np.ndarray:
    """Returns real numbers of any shape as a contiguous array of `dtype` on the CPU."""
    if is_torch(array):
        import torch

        tensor = _tensor_on_host(array, what)
        if tensor.dtype.is_complex:
            raise Error(f"{what}: is {str(tensor.dtype).removeprefix('torch.')}; give real numbers")
        array = tensor.to(torch.float32 if tensor.element_size() < 8 else torch.float64).numpy()
    values = _on_host(array, what)
    is_real = values.dtype.kind in "biuf" or values.dtype.name in FROM_LONG_NAME
    try:
        if is_real:
            return np.asarray(values, dtype, order="C")
    except (TypeError, ValueError):
        pass
    raise Error(f"{what}: is {values.dtype.name}; give real numbers")


def host_codes(array: Any, dtype: str, what: str) -> np.ndarray:
    """Returns codes of `dtype`, one to an element, as a contiguous array of bytes on the CPU."""
    if is_torch(array):
        tensor = _tensor_on_host(array, what)
        name = str(tensor.dtype).removeprefix("torch.")
        if name in FROM_LONG_NAME:
            _check_own_codes(what, name, dtype)
            array = TorchArrays(tensor).bits(tensor, what).numpy()
        else:
            array = tensor.numpy()
    codes = _on_host(array, what)
    if codes.dtype.name in FROM_LONG_NAME:
        _check_own_codes(what, codes.dtype.name, dtype)
        if codes.itemsize == 1:
            return np.asarray(codes.view(np.uint8), order="C")
    if codes.dtype.kind not in "iu" and codes.size:
        raise Error(f"{what}: is {codes.dtype.name}; give {f'codes of {dtype}, or ' if dtype in _NAMES else ''}bytes in uint8")
    if codes.dtype == np.int8:
        codes = codes.view(np.uint8)
    if codes.size and not (codes.min() >= 0 and codes.max() <= 255):
        raise Error(f"{what}: has integers from {codes.min()} to {codes.max()}; codes are from 0 to 255")
    return np.asarray(codes, np.uint8, order="C")


_KINDS = {str: "a text", bool: "True or False", int: "a whole number"}


def option(value: Any, kind: type, what: str) -> Any:
    """Returns an option's value as the core takes it, or refuses one of another kind by its name."""
    if kind is bool and isinstance(value, np.bool_):
        return bool(value)
    if kind is int and isinstance(value, np.integer):
        return int(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Error(f"{what}: expected {_KINDS[kind]}, got a {type(value).__name__}")
    return value


def file_name(file: Any, what: str) -> str:
    """Returns a path as the core takes it."""
    try:
        name = os.fsdecode(file)
        name.encode()
    except TypeError:
        raise Error(f"{what}: expected a path, got {type(file).__name__}") from None
    except UnicodeEncodeError:
        raise Error(f"{what}: {name!r} is not UTF-8; rename it") from None
    if not name or "\0" in name:
        raise Error(f"{what}: {name!r} names nothing; give a file's name")
    return name

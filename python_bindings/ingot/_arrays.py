"""Adapters that let Ingot use NumPy arrays and PyTorch tensors alike: element type, raw bits, new arrays, current stream.

There is one class for each framework, with the same methods. PyTorch's is used only for torch tensors, so torch is never
imported for users who do not use it.
"""

from __future__ import annotations

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
        raise Error(f"dtype: {dtype!r} is none of {', '.join(_NAMES)}")
    return text


class NumpyArrays:
    device = "cpu"
    stream = 0

    @staticmethod
    def dtype(array: np.ndarray) -> str:
        if hint := _HINTS.get(array.dtype.name):
            raise Error(f"array: {array.dtype.name} is none of {', '.join(SIZE)}; {hint}")
        return dtype_name(array.dtype.name)

    @staticmethod
    def bits(array: np.ndarray) -> np.ndarray:
        """Returns the array's bits as unsigned integers, with contiguous columns."""
        if array.ndim and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
            array = np.ascontiguousarray(array)
        if array.itemsize not in _UNSIGNED:
            raise Error(f"array: {array.dtype.name} is none of {', '.join(SIZE)}; convert it first")
        return array.view(_UNSIGNED[array.itemsize])

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
    def same_memory(array: Any) -> bool:
        """Does reshape(-1) return a view, so that writes to it change the array?"""
        return isinstance(array, np.ndarray) and array.flags.c_contiguous


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
            raise Error(f"tensor: lies on {tensor.device}; Ingot computes on cpu and cuda")

    @staticmethod
    def dtype(tensor: Any) -> str:
        return dtype_name(tensor.dtype)

    def bits(self, tensor: Any) -> Any:
        tensor = tensor.detach()
        if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            tensor = tensor.contiguous()
        integers = {1: self._torch.uint8, 2: self._torch.int16, 4: self._torch.int32}
        return tensor.view(integers[tensor.element_size()])

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        # uint8 if PyTorch lacks the type: for packed codes, and in early versions for scales.
        torch_dtype = getattr(self._torch, _LONG_NAME[dtype], self._torch.uint8)
        return self._torch.empty(shape, dtype=torch_dtype, device=self._place)

    def same_memory(self, tensor: Any) -> bool:
        return isinstance(tensor, self._torch.Tensor) and tensor.is_contiguous()


def arrays_of(array: Any) -> NumpyArrays | TorchArrays:
    if isinstance(array, np.ndarray):
        return NumpyArrays()
    if type(array).__module__.split(".")[0] == "torch":
        return TorchArrays(array)
    raise Error(f"array: expected a NumPy array or a PyTorch tensor, got {type(array).__name__}")

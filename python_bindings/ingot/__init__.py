"""Ingot: FP8 kernels written, compiled and cached at run time.

Arrays are NumPy arrays (CPU reference) or PyTorch tensors, on the CPU or on a CUDA device. Nothing here imports torch.
"""

from ._context import Context, info
from ._core import Error, __version__
from ._operations import Float8Array, amax, backward, cast, decode, derivative, encode, evaluate, gemm
from ._quantize import MxArray, float_quantize, pack_codes, quantize_mx, unpack_codes
from ._weight_only import WeightOnlyLinear

__all__ = [
    "Context",
    "Error",
    "Float8Array",
    "MxArray",
    "WeightOnlyLinear",
    "__version__",
    "amax",
    "backward",
    "cast",
    "decode",
    "derivative",
    "encode",
    "evaluate",
    "float_quantize",
    "gemm",
    "info",
    "pack_codes",
    "quantize_mx",
    "unpack_codes",
]

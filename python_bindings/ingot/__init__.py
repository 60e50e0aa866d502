"""Ingot: FP8 kernels that are generated, compiled and cached at run time.

Functions take NumPy arrays (computed by the CPU reference) or PyTorch tensors on the CPU or a CUDA device. Importing this
package does not import torch; its subpackages float8, nn and torch do, when they are first used.
"""

import importlib

from ._context import Context, info, recording, stats
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
    "recording",
    "stats",
    "unpack_codes",
]


def __getattr__(name: str):
    if name in ("float8", "nn", "torch"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

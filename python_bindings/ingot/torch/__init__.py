"""Layers for PyTorch that run as one operator forward and one backward, fast without a compiler.

    import torch, ingot.torch
    y = ingot.torch.linear(x, weight, bias, ingot.torch.LinearOptions("rowwise", name="layers.0.wq"))

Needs PyTorch 2.7 or later. Computes on the CPU and on CUDA devices, on PyTorch's current stream and in memory of its
allocator.
"""

from .._pytorch import require_import

require_import("ingot.torch")

from . import _exported_layers as _exported_layers  # programs run by it
from . import _flops as _flops  # PyTorch counts by it
from ._errors import LinearError
from ._experts import experts_mlp
from ._gated_linear import GatedLinearOptions, gated_linear
from ._grouped_linear import grouped_linear
from ._linear import RECIPES, LinearOptions, linear
from ._mlp import MlpOptions, mlp, mlp_of_gate_and_up
from ._module_calls import DelayedScales, NormOptions
from ._norm_linear import NormLinearOptions, norm_linear
from ._observers import Monitor, monitor, nvtx_ranges, trace
from ._prepare import Prepared, prepare
from ._scaled_grouped_mm import scaled_grouped_mm
from ._shared_linear import SharedLinearOptions, shared_linear
from ._tune import TunedMatmul, tune
from ._weight_only_experts import ExpertWeights, grouped_weight_only_linear

__all__ = [
    "DelayedScales",
    "ExpertWeights",
    "GatedLinearOptions",
    "RECIPES",
    "LinearError",
    "LinearOptions",
    "MlpOptions",
    "Monitor",
    "NormLinearOptions",
    "NormOptions",
    "Prepared",
    "SharedLinearOptions",
    "TunedMatmul",
    "experts_mlp",
    "gated_linear",
    "grouped_linear",
    "grouped_weight_only_linear",
    "linear",
    "mlp",
    "mlp_of_gate_and_up",
    "monitor",
    "norm_linear",
    "nvtx_ranges",
    "prepare",
    "scaled_grouped_mm",
    "shared_linear",
    "trace",
    "tune",
]

"""Modules for PyTorch. Importing this package imports torch; it needs PyTorch 2.7 or later."""

from .._pytorch import require_import

require_import("ingot.nn")

from ._all_gather import float8_all_gather, precompute_float8_all_gather, weights_changed
from ._checkpoint import CheckpointReport, load_float8_checkpoint
from ._checkpoint_save import float8_quantization_config, save_float8_checkpoint
from ._convert import ConvertReport, convert, restore
from ._delayed import sync_amax_history
from ._expert_scales import ExpertScales
from ._experts import ExpertsMlp, GroupedLinear
from ._float8_linear import Float8Linear
from ._frozen_linear import FrozenFloat8Linear
from ._mlp import GatedMlp, Mlp
from ._norm_linear import LayerNormLinear, RMSNormLinear
from ._quantize import Float8WeightOnlyConfig, FrozenFloat8Config, MXWeightOnlyConfig, QuantizeReport, dequantize_, quantize_
from ._shared_input import SharedInputLinears, shared_input
from ._tensor_parallel import Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput
from ._weight_only import WeightOnlyLinear

__all__ = [
    "CheckpointReport",
    "ConvertReport",
    "ExpertScales",
    "ExpertsMlp",
    "Float8ColwiseParallel",
    "Float8Linear",
    "Float8RowwiseParallel",
    "Float8WeightOnlyConfig",
    "FrozenFloat8Config",
    "FrozenFloat8Linear",
    "GatedMlp",
    "GroupedLinear",
    "LayerNormLinear",
    "MXWeightOnlyConfig",
    "Mlp",
    "PrepareFloat8ModuleInput",
    "QuantizeReport",
    "RMSNormLinear",
    "SharedInputLinears",
    "WeightOnlyLinear",
    "convert",
    "dequantize_",
    "float8_all_gather",
    "float8_quantization_config",
    "load_float8_checkpoint",
    "precompute_float8_all_gather",
    "quantize_",
    "restore",
    "save_float8_checkpoint",
    "shared_input",
    "sync_amax_history",
    "weights_changed",
]

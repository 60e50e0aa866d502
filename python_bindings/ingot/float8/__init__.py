"""Training with linear layers in FP8: `import ingot.float8 as float8` where it was `import torchao.float8 as float8`.

Names, configs, messages and numbers are those of torchao.float8; docs/from_torchao.md says what differs. Its submodules
are here under the same names, and replace_torchao() makes programs that import torchao.float8 use them unchanged.
"""

from .._pytorch import require_pytorch

require_pytorch("ingot.float8")

import torch

from . import float8_ops as float8_ops  # what Float8TrainingTensor's operations do
from ._conversion import ConversionReport, LayerConversion, conversion_report
from ._replace import replace_torchao
from .config import (
    CastConfig,
    DelayedScalingConfig,
    Float8GemmConfig,
    Float8LinearConfig,
    Float8LinearRecipeName,
    ScalingGranularity,
    ScalingType,
    recipe_name_to_linear_config,
)
from .float8_linear import Float8Linear
from .float8_linear_utils import (
    _auto_filter_for_recipe,
    convert_to_float8_training,
    get_float8_layers,
    linear_requires_sync,
    swap_linear_layers,
    swap_linear_with_float8_linear,
    sync_float8_amax_and_scale_history,
)
from .float8_training_tensor import Float8TrainingTensor, GemmInputRole, LinearMMConfig, ScaledMMConfig
from .fsdp_utils import (WeightWithDynamicFloat8CastTensor, precompute_float8_dynamic_scale_for_fsdp, weights_changed)
from .stateful_float8_linear import StatefulFloat8Linear

# What torch.load(weights_only=True) may make of a checkpoint.
torch.serialization.add_safe_globals(
    [
        Float8TrainingTensor,
        GemmInputRole,
        LinearMMConfig,
        ScaledMMConfig,
        ScalingGranularity,
        WeightWithDynamicFloat8CastTensor,
    ]
)

__all__ = [
    "CastConfig",
    "ConversionReport",
    "DelayedScalingConfig",
    "Float8GemmConfig",
    "Float8Linear",
    "Float8LinearConfig",
    "Float8LinearRecipeName",
    "Float8TrainingTensor",
    "GemmInputRole",
    "LayerConversion",
    "LinearMMConfig",
    "ScaledMMConfig",
    "ScalingGranularity",
    "ScalingType",
    "StatefulFloat8Linear",
    "WeightWithDynamicFloat8CastTensor",
    "_auto_filter_for_recipe",
    "conversion_report",
    "convert_to_float8_training",
    "get_float8_layers",
    "linear_requires_sync",
    "precompute_float8_dynamic_scale_for_fsdp",
    "recipe_name_to_linear_config",
    "replace_torchao",
    "swap_linear_layers",
    "swap_linear_with_float8_linear",
    "sync_float8_amax_and_scale_history",
    "weights_changed",
]

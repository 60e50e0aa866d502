"""Modules for PyTorch. Importing this package imports torch; it needs PyTorch 2.7 or later."""

from ._delayed import sync_amax_history
from ._float8_linear import Float8Linear
from ._mlp import GatedMlp, Mlp
from ._norm_linear import LayerNormLinear, RMSNormLinear
from ._shared_input import SharedInputLinears, shared_input

__all__ = [
    "Float8Linear",
    "GatedMlp",
    "LayerNormLinear",
    "Mlp",
    "RMSNormLinear",
    "SharedInputLinears",
    "shared_input",
    "sync_amax_history",
]

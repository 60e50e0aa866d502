"""Modules for PyTorch. Importing this package imports torch; it needs PyTorch 2.7 or later."""

from ._delayed import sync_amax_history
from ._float8_linear import Float8Linear

__all__ = ["Float8Linear", "sync_amax_history"]

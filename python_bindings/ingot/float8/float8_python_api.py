"""The name that torchao.float8.float8_python_api had until version 0.9; see float8_ops."""

from __future__ import annotations

from .float8_ops import addmm_float8_unwrapped

__all__ = ["addmm_float8_unwrapped"]

"""Errors of ingot.float8. Each is an ingot.Error, and also what torchao.float8 raises in its place, so that trainers
which catch AssertionError, ValueError, NotImplementedError or RuntimeError need no change."""

from __future__ import annotations

from .._core import Error


class Float8AssertionError(Error, AssertionError):
    """A config or an operand that does not fit: torchao.float8 asserts here."""


class Float8ValueError(Error, ValueError):
    """A value that is none of those expected."""


class Float8NotImplementedError(Error, NotImplementedError):
    """An operation that has no meaning for FP8 tensors."""


class Float8RuntimeError(Error, RuntimeError):
    """A shape or a copy that an FP8 tensor cannot have."""


class Float8TypeError(Error, TypeError):
    """An object of the wrong kind."""

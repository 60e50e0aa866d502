"""Which weights a layer can cast itself."""

from __future__ import annotations

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._tensor import DTensor

from ..torch._modules import type_name
from ..torch._operators import HIGH_PRECISION
from .float8_training_tensor import Float8TrainingTensor
from .fsdp_utils import WeightWithDynamicFloat8CastTensor

__all__ = ["HIGH_PRECISION", "is_foreign", "type_name"]

_KNOWN = (
    torch.Tensor,
    torch.nn.Parameter,
    DTensor,
    AsyncCollectiveTensor,
    Float8TrainingTensor,
    WeightWithDynamicFloat8CastTensor,
    torch._subclasses.fake_tensor.FakeTensor,
    torch._subclasses.functional_tensor.FunctionalTensor,
)


def is_foreign(weight: torch.Tensor) -> bool:
    """Is this a tensor of another library's class, which multiplies in a way of its own?"""
    return type(weight) not in _KNOWN

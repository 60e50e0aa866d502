"""What distributed wrappers hold."""

from __future__ import annotations

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._tensor import DTensor

from .float8_training_tensor import Float8TrainingTensor


def tensor_already_casted_to_fp8(tensor: torch.Tensor) -> bool:
    """Is this a Float8TrainingTensor, or a DTensor or pending collective that holds one?"""
    while isinstance(tensor, (DTensor, AsyncCollectiveTensor)):
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor.elem
    return isinstance(tensor, Float8TrainingTensor)

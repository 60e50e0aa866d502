"""A weight's main_grad: the tensor to which backward adds the weight's gradient, as Megatron does."""

from __future__ import annotations

from typing import Optional

import torch

from ._checks import refuse
from ._operators import HIGH_PRECISION


def main_grad_of(weight: torch.Tensor, subject: str) -> Optional[torch.Tensor]:
    """The attribute main_grad of a weight; None if it has none, or if this call is for no gradient of it. Raises
    LinearError, with the layer's name `subject`, for one that cannot be added to."""
    main_grad = getattr(weight, "main_grad", None)
    if main_grad is None:
        return None
    if main_grad.shape != weight.shape or main_grad.dtype not in HIGH_PRECISION:
        refuse(
            subject,
            f"main_grad: is {main_grad.dtype} of shape {tuple(main_grad.shape)}, expected float32, float16 or bfloat16 "
            f"of the weight's shape {tuple(weight.shape)}",
        )
    if main_grad.device != weight.device:
        refuse(
            subject, f"main_grad: is on {main_grad.device} and the weight on {weight.device}: move one with .to()"
        )
    return main_grad if torch.is_grad_enabled() and weight.requires_grad else None


def dummy_gradient(weight: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """What Megatron's hook of the weight wants to see, once it is told that main_grad is up to date."""
    if weight is None or not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)

"""Activations of modules that ranks divide, in PyTorch: a part's GEMM does not apply them, as a compiler fuses them with what
is around them."""

from __future__ import annotations

from typing import Callable, Dict, Optional

import torch
from torch.nn import functional as F

# Those of src/codegen/pointwise/pointwise_functions.cpp that take x alone.
ACTIVATIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "elu": F.elu,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "swish": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "square": torch.square,
}


def function_of(activation: str, gated: bool = False) -> Optional[str]:
    """The name of the function that an activation is, "silu" or "silu(x)", gated "silu(x) * up"; None for other
    expressions."""
    text = activation.replace(" ", "")
    for end in ("(x)*up", "") if gated else ("(x)", ""):
        if text.endswith(end) and text[: len(text) - len(end)] in ACTIVATIONS:
            return text[: len(text) - len(end)]
    return None


def activated(activation: str, x: torch.Tensor, up: Optional[torch.Tensor] = None) -> torch.Tensor:
    """activation(x), or activation(x) * up, in f32 and rounded once."""
    value = ACTIVATIONS[function_of(activation, up is not None)](x.float())
    return (value if up is None else value * up.float()).to(x.dtype)

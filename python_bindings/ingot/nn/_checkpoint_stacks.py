"""Stacks of experts in FP8, as ingot.integrations.experts.quantize_experts_() makes them: buffers of codes (experts, N, K), each
with a scale_inv for each row. Checkpoints have them under the model's own names."""

from __future__ import annotations

import torch

from .._text import printable
from ..torch._errors import LinearError
from ..torch._operators import HIGH_PRECISION
from ._checkpoint_names import Place

_SCALE = "_scale_inv"


def has_stacks_in_float8(subject: str, place: Place) -> bool:
    """Raises LinearError for codes that a conversion has made values of."""
    buffers = place.module._buffers
    names = [key.removesuffix(_SCALE) for key in buffers if key.endswith(_SCALE)]
    stacks = {key: buffers[key] for key in names if isinstance(buffers.get(key), torch.Tensor) and buffers[key].dim() == 3}
    for key, codes in stacks.items():
        if codes.dtype in HIGH_PRECISION:
            raise LinearError(
                f'{subject} "{printable(place.prefix + key)}": is {str(codes.dtype).removeprefix("torch.")}, but quantize_experts_() '
                "made FP8 codes of it: a conversion such as model.bfloat16() has destroyed them: convert the model first, then "
                "quantize it"
            )
    return bool(stacks)

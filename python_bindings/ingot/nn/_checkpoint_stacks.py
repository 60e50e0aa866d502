"""Stacks of experts as ingot.integrations.experts.quantize_experts_() makes them. In FP8 they are buffers of codes (experts, N, K),
each with a scale_inv for each row, and checkpoints have them under the model's own names. With activations in 16 bits they are
packed, and a checkpoint's codes and scale_inv of the same format go into them without a change of value."""

from __future__ import annotations

from typing import Dict

import torch

from .._text import printable
from ..torch._errors import LinearError
from ..torch._operators import HIGH_PRECISION
from ..torch._stored_experts import buffers_of_codes, format_of_stack
from ._checkpoint_files import Reader
from ._checkpoint_layouts import StoredWeight, StoredWeights
from ._checkpoint_names import Place
from ._checkpoint_values import read_operands

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


def find_codes(reader: Reader, weights: StoredWeights, place: Place, key: str) -> StoredWeight:
    """What a checkpoint has for a stack whose activations stay in 16 bits. Raises LinearError for values and other formats."""
    form, n, k = format_of_stack(place.module, key)
    name = place.prefix + key
    weight = weights.of(name)
    expected = (place.module._buffers[key].shape[0], n, k)
    wants = f"but quantize_experts_() made {form.dtype} of {expected} with scale={form.scale} of the model's"
    if weight is None:
        there = name in reader.names
        raise LinearError(
            f"{reader.where(name)}: {'is ' + str(reader.dtype(name)).removeprefix('torch.') if there else 'is missing'}, {wants}: "
            "load a checkpoint in high precision before quantize_experts_(), and what state_dict() has saved by load_state_dict()"
        )
    if (weight.dtype, weight.is_mx, weight.shape) != (form.dtype, form.scale == "mx", expected):
        found = f"{weight.dtype} of {weight.shape}{' with MX scales' if weight.is_mx else ''}"
        raise LinearError(f"{reader.where(weight.codes)}: is {found}, {wants}: quantize the model with the checkpoint's format")
    return weight


def read_codes(reader: Reader, weight: StoredWeight, place: Place, key: str) -> Dict[str, torch.Tensor]:
    """The stack's buffers, by their names, on the host."""
    return buffers_of_codes(place.module, key, *read_operands(reader, weight))

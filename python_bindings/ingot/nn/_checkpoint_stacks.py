"""Stacks of experts as ingot.integrations.experts.quantize_experts_() makes them. In FP8 they are buffers of codes (experts, N,
K), each with a scale_inv for each row, and checkpoints have them under the model's own names, or as layers of each expert. With
activations in 16 bits they are packed, and a checkpoint's codes and scale_inv of the same format go into them without a change
of value."""

from __future__ import annotations

from typing import Dict, List, Tuple

import torch

from .._text import printable
from ..torch._errors import LinearError
from ..torch._operators import HIGH_PRECISION
from ..torch._stored_experts import buffers_of_codes, format_of_stack, is_weight_only
from ..torch._weight_operators import WeightFormat
from ._checkpoint_files import Reader
from ._checkpoint_layouts import StoredWeight, StoredWeights, matrix_of
from ._checkpoint_names import Place
from ._checkpoint_renames import parts_of_stack
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


def find_rows(reader: Reader, weights: StoredWeights, place: Place) -> Dict[str, List[StoredWeight]]:
    """What a checkpoint has of each expert for stacks in FP8: codes of e4m3 with a scale_inv for each row, or one for all of them,
    which is each row's. Raises LinearError for others, which are decoded into the model's own stacks alone."""
    found = {}
    for key, stack in place.module._buffers.items():
        name = place.prefix + key
        is_codes = f"{key}{_SCALE}" in place.module._buffers and not is_weight_only(place.module, key)
        if not is_codes or f"{name}{_SCALE}" in reader.names:
            continue
        if name in reader.names:
            names, expected = [name], tuple(stack.shape)
        else:
            names = parts_of_stack(place, key, stack)
            expected = (stack.shape[1] * stack.shape[0] // max(len(names), 1), stack.shape[2])
        parts = [weights.of(each) for each in names]
        if parts and all(parts):
            found[key] = parts
            for weight in parts:
                _check_rows(reader, weight, expected)
    return found


def _check_rows(reader: Reader, weight: StoredWeight, expected: Tuple[int, int]) -> None:
    where = reader.where(weight.codes)
    if weight.shape != expected:
        raise LinearError(f"{where}: has shape {weight.shape}, but the model's stack asks for {expected}")
    if weight.dtype != "e4m3fn" or weight.is_mx or not _is_of_rows(reader, weight):
        shape = "no" if weight.scales is None else f"scale_inv of shape {reader.facts(weight.scales)[1]}"
        raise LinearError(
            f"{where}: is {weight.dtype} with {shape}, but quantize_experts_() made e4m3fn with one for each row: load first, then "
            "quantize_experts_()"
        )


def _is_of_rows(reader: Reader, weight: StoredWeight) -> bool:
    """Has each row one scale_inv, its own or that of all?"""
    if len(weight.shape) == 3:
        return weight.scales is not None and reader.facts(weight.scales)[1] in (weight.shape[:2], (*weight.shape[:2], 1))
    rows = weight.shape[0]
    return weight.scales is None or matrix_of(reader.facts(weight.scales)[1]) in ((), (1,), (1, 1), (rows,), (rows, 1))


def find_codes(reader: Reader, weights: StoredWeights, place: Place, key: str) -> List[StoredWeight]:
    """What a checkpoint has for a stack whose activations stay in 16 bits: the stack, or the layers of each expert. Raises LinearError
    for values and other formats."""
    form, n, k = format_of_stack(place.module, key)
    name = place.prefix + key
    stack = place.module._buffers[key]
    apart = parts_of_stack(place, key, stack)
    if weights.of(name) is None and name not in reader.names and any(part in reader.names or weights.of(part) for part in apart):
        expected = (n * stack.shape[0] // len(apart), k)
        return [_checked(reader, weights, part, form, expected) for part in apart]
    return [_checked(reader, weights, name, form, (stack.shape[0], n, k))]


def _checked(reader: Reader, weights: StoredWeights, name: str, form: WeightFormat, expected: Tuple[int, ...]) -> StoredWeight:
    weight = weights.of(name)
    wants = f"but quantize_experts_() made {form.dtype} of {expected} with scale={form.scale} of the model's"
    if weight is None:
        there = name in reader.names
        raise LinearError(
            f"{reader.where(name)}: {'is ' + str(reader.dtype(name)).removeprefix('torch.') if there else 'is missing'}, {wants}: "
            "load a checkpoint in high precision before quantize_experts_(), and what state_dict() has saved by load_state_dict()"
        )
    fits = (weight.dtype, weight.is_mx, weight.shape) == (form.dtype, form.scale == "mx", expected)
    if not fits or (len(expected) == 2 and not weight.is_mx and not _is_of_rows(reader, weight)):
        found = f"{weight.dtype} of {weight.shape}{' with MX scales' if weight.is_mx else ''}"
        if fits:
            found += f" with scale_inv of shape {reader.facts(weight.scales)[1]}"
        raise LinearError(f"{reader.where(weight.codes)}: is {found}, {wants}: quantize the model with the checkpoint's format")
    return weight


def read_codes(reader: Reader, weights: List[StoredWeight], place: Place, key: str) -> Dict[str, torch.Tensor]:
    """The stack's buffers, by their names, on the host."""
    if len(weights) == 1 and len(weights[0].shape) == 3:
        codes, scale_inv = read_operands(reader, weights[0])
        if is_weight_only(place.module, key):
            return buffers_of_codes(place.module, key, codes, scale_inv)
        return {key: codes, f"{key}{_SCALE}": scale_inv.reshape(codes.shape[:2])}
    each = [read_operands(reader, weight) for weight in weights]
    experts = place.module._buffers[key].shape[0]
    codes = torch.cat([codes for codes, _ in each]).unflatten(0, (experts, -1))
    scales = [of if weight.is_mx else of.reshape(-1).expand(weight.shape[0]) for weight, (_, of) in zip(weights, each)]
    scale_inv = torch.cat(scales).unflatten(0, (experts, -1))
    if is_weight_only(place.module, key):
        return buffers_of_codes(place.module, key, codes, scale_inv)
    return {key: codes, f"{key}{_SCALE}": scale_inv}

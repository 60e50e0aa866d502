"""Stacks of experts whose weights are stored in 8, 6 or 4 bits by activations in 16: what
ingot.integrations.experts.quantize_experts_() makes of a module's parameters, and how its products are computed."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Set, Tuple

import torch

from .. import _core
from . import _codes
from . import _weight_operators as weight_ops
from ._errors import LinearError
from ._weight_only_experts import ExpertWeights, grouped_weight_only_linear

FLOAT8 = "float8"  # codes by rows, multiplied by activations in FP8
_HALVES = (torch.bfloat16, torch.float16)
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # what configs call the number of all experts
_FORMATS = "ingot_expert_formats"  # of a module: by a weight's name, its format and its sizes as ExpertWeights has them


def check_format(stacks: Dict[str, torch.nn.Module], format: str) -> None:
    """Raises LinearError for an unknown format, for stacks that have another one, and for weights of float32."""
    if format != FLOAT8 and format not in _codes.FORMATS:
        raise LinearError(f"quantize_experts_ format: is {format!r}, expected {FLOAT8!r} or one of {', '.join(_codes.FORMATS)}")
    for name, module in stacks.items():
        where = f"quantize_experts_ {name or type(module).__name__}:"
        has = format_of(module)
        if has is not None and has != format:
            raise LinearError(f"{where} has {has} weights, not {format}: load the model again, and quantize it once")
        down = module._parameters.get("down_proj")
        if format != FLOAT8 and down is not None and down.dtype not in _HALVES:
            raise LinearError(
                f"{where} is {down.dtype}, but activations of {format} weights are bfloat16 or float16: load the model with "
                "dtype=torch.bfloat16"
            )


def has_all_experts(module: torch.nn.Module, experts: int) -> bool:
    """Are these the experts of the module's config? Expert parallelism leaves a part of them in the module."""
    return experts in _counts(module)


def divided_of(module: torch.nn.Module, experts: int) -> Optional[str]:
    """What an error says of a module that has these experts of more, as expert parallelism leaves them; None if it has all, or its
    config does not know."""
    counts = _counts(module)
    if not counts or experts in counts:
        return None
    return f"has {experts} of the {counts[0]} experts of its config: expert parallelism has divided them"


def _counts(module: torch.nn.Module) -> Tuple[int, ...]:
    found = (getattr(getattr(module, "config", None), name, None) for name in _COUNTS)
    return tuple(each for each in found if isinstance(each, int))


def format_of(module: torch.nn.Module):
    """What quantize_experts_() made of a stack; None for one in high precision."""
    formats = getattr(module, _FORMATS, None)
    if formats:
        return next(iter(formats.values()))[0].dtype
    return FLOAT8 if hasattr(module, "down_proj_scale_inv") else None


def is_weight_only(module: torch.nn.Module, name: str) -> bool:
    return name in getattr(module, _FORMATS, ())


def store_experts(module: torch.nn.Module, name: str, rows: torch.Tensor, format: str) -> None:
    """Puts the codes of values (experts, N, K) in the place of a parameter; on meta, their shapes."""
    layout = "packed_f16" if rows.dtype == torch.float16 else "packed"
    if rows.is_meta:
        weight = _on_meta(rows, format, layout)
    else:
        weight = ExpertWeights.quantize(rows, format, layout=layout)
    del module._parameters[name]
    if not hasattr(module, _FORMATS):
        setattr(module, _FORMATS, {})
        module.register_load_state_dict_pre_hook(_check_state)
    _set(module, name, weight)


def _on_meta(rows: torch.Tensor, format: str, layout: str) -> ExpertWeights:
    experts, n, k = rows.shape
    form = ExpertWeights.format_of(format, None, layout)
    facts = weight_ops.weight_plan("experts", form, n, k)
    codes = torch.empty(experts, facts.weight_bytes, dtype=torch.uint8, device="meta")
    shape = (experts, *_codes.scale_shape(form.scale, n, k))
    scale_inv = torch.empty(shape, dtype=torch.uint8 if facts.is_mx else torch.float32, device="meta")
    return ExpertWeights(codes, scale_inv, form, f"{n}x{k}")


def format_of_stack(module: torch.nn.Module, name: str) -> Tuple[weight_ops.WeightFormat, int, int]:
    """Of a weight of which is_weight_only(): its format, out_features and in_features."""
    form, sizes = getattr(module, _FORMATS)[name]
    n, k = map(int, sizes.split("x"))
    return form, n, k


def buffers_of_codes(module: torch.nn.Module, name: str, codes: torch.Tensor, scales: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The buffers, by their names, that a checkpoint's codes (experts, N, bytes of a row) and scales are to a stack. Raises
    LinearError for another number of them."""
    form, _, k = format_of_stack(module, name)
    return _buffers(name, ExpertWeights.from_codes(codes, scales, form.dtype, form.scale, form.layout, k))


def _buffers(name: str, weight: ExpertWeights) -> Dict[str, torch.Tensor]:
    form = weight.format
    places = _codes.LAYOUTS.index(form.layout), _codes.FORMATS.index(form.dtype), _codes.SCALES.index(form.scale)
    packing = torch.tensor([_core.packed_layout_version, *places], dtype=torch.int32)
    return {
        name: weight.codes[:, None],  # three dimensions, as the parameter has them
        f"{name}_scale_inv": weight.scale_inv,
        f"{name}_packing": packing.to(weight.codes.device),
    }


def _set(module: torch.nn.Module, name: str, weight: ExpertWeights) -> None:
    for key, buffer in _buffers(name, weight).items():
        module.register_buffer(key, buffer)
    getattr(module, _FORMATS)[name] = weight.format, weight.sizes


def _check_state(module, state_dict, prefix, *_) -> None:
    """A state that was packed in another way would be misread."""
    for name in getattr(module, _FORMATS):
        given, own = (each.get(key) for each, key in ((state_dict, f"{prefix}{name}_packing"), (module._buffers, f"{name}_packing")))
        if given is None or given.is_meta or own is None or own.is_meta:
            continue
        if given.tolist() != own.tolist():
            raise LinearError(
                f"{prefix}{name}: is stored as {given.tolist()} and the model as {own.tolist()} (version of the layouts, layout, format, "
                "scale): quantize the model with the format and in the dtype of the one that was saved, by the same version of Ingot"
            )


def stored(module: torch.nn.Module, name: str) -> ExpertWeights:
    codes, scale_inv = getattr(module, name), getattr(module, f"{name}_scale_inv")
    if codes.dtype != torch.uint8 or scale_inv.dtype not in (torch.uint8, torch.float32):
        wrong = codes.dtype if codes.dtype != torch.uint8 else scale_inv.dtype
        raise LinearError(
            f"{name}: is {wrong}, but quantize_experts_() made codes and scale_inv of it: a conversion such as model.bfloat16() has "
            "destroyed them: convert the model first, then quantize it"
        )
    return ExpertWeights(codes[:, 0], scale_inv, *getattr(module, _FORMATS)[name])


def multiply_stored(module: torch.nn.Module, name: str, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    bias = getattr(module, f"{name}_bias") if module.has_bias else None
    return grouped_weight_only_linear(rows, stored(module, name), ends, bias=bias)


def run_stored(module: torch.nn.Module, name: str, rows: Sequence[int], dtype: torch.dtype, seen: Set[tuple]) -> None:
    """A stack's product with each number of rows, on tensors whose values are undefined, once for each kind, for ingot.record."""
    weight = stored(module, name)
    experts = weight.codes.shape[0]
    kind = experts, *weight[2:], dtype, module.has_bias
    if kind in seen:
        return
    seen.add(kind)
    weight = weight._replace(codes=torch.empty(weight.codes.shape, dtype=torch.uint8), scale_inv=torch.empty_like(weight.scale_inv, device="cpu"))
    bias = torch.empty(experts, weight.out_features, dtype=dtype) if module.has_bias else None
    ends = torch.zeros(experts, dtype=torch.int32)
    for count in rows:
        grouped_weight_only_linear(torch.empty(count, weight.in_features, dtype=dtype), weight, ends, bias=bias)

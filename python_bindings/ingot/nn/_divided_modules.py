"""Modules of several parts that ranks divide: a norm with its layer, layers that share their input, MLPs. Their parts are
computed one after the other, as separate layers are, and the input of several is cast and gathered once."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch.distributed.tensor import DTensor

from ..torch._checks import refuse
from ..torch._linear import in_autocasts_dtype
from ..torch._parallel_linear import GatheredInput, PartOf, gathered_input, with_summed_gradient
from ._activations import activated, function_of
from ._divided import Division, local, slots_of, values_of


def _part(module: torch.nn.Module, name: str) -> Optional[torch.nn.Module]:
    """By its name in ingot.nn; that of an MLP may have another one."""
    return module._part(name) if hasattr(module, "_part") else module._modules.get(name)


def is_divided(module: torch.nn.Module, parts: Sequence[str]) -> bool:
    """Do ranks divide any of these parts of the module?"""
    return are_divided([_part(module, name) for name in parts])


def are_divided(parts: Sequence[Optional[torch.nn.Module]]) -> bool:
    """Do ranks divide any of these modules? Asks for no names, by which compiled graphs of equal blocks would differ."""
    return any([getattr(part, "_division", None) is not None for part in parts])


def divisions_of(module: torch.nn.Module, rows: Sequence[str], columns: Sequence[str] = ()) -> List[Division]:
    """Those of the module's parts. Raises LinearError where ranks divide some of them only, or by the other dimension."""
    found = []
    for name in (*rows, *columns):
        division, is_row = getattr(_part(module, name), "_division", None), name in columns
        if division is None or division.is_row != is_row:
            style = "Float8RowwiseParallel" if is_row else "Float8ColwiseParallel"
            others = ", ".join(other for other in (*rows, *columns) if other != name)
            refuse(module.options, f"{name}: other ranks have parts of {others}, so its style has to be {style}")
        found.append(division)
    return found


def _shape_of_tokens(division: Division, input: torch.Tensor) -> bool:
    """Has this rank a part of the tokens, whose sum is a part of a parameter's gradient?"""
    layout = input.placements[0] if isinstance(input, DTensor) else division.input_layout
    return layout.is_shard() and division.ranks.size > 1


def normalised(options, norm: Optional[torch.nn.Module], division: Division, input: Any) -> Any:
    """norm(input), of the tokens that this rank has, in the input's layout."""
    if norm is None:
        return input
    if isinstance(input, GatheredInput):
        refuse(
            options,
            "input: was gathered as FP8 codes, and a norm reads its values: leave PrepareFloat8ModuleInput out in front of it",
        )
    layout = input.placements[0] if isinstance(input, DTensor) else division.input_layout
    if layout.is_partial() or (layout.is_shard() and layout.dim % input.dim() == input.dim() - 1):
        refuse(options, f"input: is {layout}, and a norm reads all features of a token: use Shard(0), Shard(1) or Replicate()")
    values = in_autocasts_dtype(local(input))
    weight, bias = local(norm.weight), local(getattr(norm, "bias", None))
    if _shape_of_tokens(division, input):
        weight = None if weight is None else with_summed_gradient(weight, division.ranks)
        bias = None if bias is None else with_summed_gradient(bias, division.ranks)
    made = _norm(options.norm, values, weight, bias)
    return DTensor.from_local(made, division.mesh, (layout,), run_check=False) if isinstance(input, DTensor) else made


def _norm(of, values: torch.Tensor, weight, bias) -> torch.Tensor:
    """In f32, and rounded once."""
    shape, dtype = (values.shape[-1],), values.dtype
    eps = torch.finfo(dtype).eps if of.eps is None else of.eps
    values, weight = values.float(), None if weight is None else weight.to(dtype).float()
    if of.zero_centred:
        weight = weight + 1
    if of.kind == "rms":
        return torch.nn.functional.rms_norm(values, shape, weight, eps).to(dtype)
    bias = None if bias is None else bias.to(dtype).float()
    return torch.nn.functional.layer_norm(values, shape, weight, bias, eps).to(dtype)


def norm_linear_of_part(module: torch.nn.Module, input: Any) -> torch.Tensor:
    """The forward of a LayerNormLinear or an RMSNormLinear of which this rank has rows of the weight."""
    options, division = module.options, module._division
    values = normalised(options, module.norm, division, input)
    slots = slots_of(module._delayed(local(values)))
    output = division.run(options, options.recipe, values, module.weight, module.bias, slots, options.name)
    return activated(options.activation, output) if options.activation else output


def _shared(options, input: Any, divisions: List[Division], weights, slot, names: Tuple[str, ...]) -> Any:
    """The input of several layers, gathered once where ranks divide its tokens."""
    if isinstance(input, GatheredInput):
        return input
    first = divisions[0]
    if any([each.input_layout != first.input_layout for each in divisions]):
        refuse(options, "input_layouts: differ in the styles of layers that share their input: give all of them one layout")
    layout = input.placements[0] if isinstance(input, DTensor) else first.input_layout
    if input.dim() == 0:
        return input
    first.agree(f'linear "{names[0]}"', options.recipe, input)
    tokens = first.tokens_dim(layout, input.shape, isinstance(input, DTensor))
    if tokens is None:
        return input
    values = in_autocasts_dtype(local(input))
    name = "linear" if torch.compiler.is_compiling() else names[0]
    part = PartOf(options.recipe, name, False, first.ranks, tokens)
    trains = torch.is_grad_enabled() and any([each.requires_grad for each in weights])
    out_features, in_features = weights[0].shape
    of = (in_features, out_features, values.dtype, weights[0].dtype, None, trains, False)
    return gathered_input(values, of, part, slot)


def shared_linears_of_parts(module: torch.nn.Module, input: Any) -> Tuple[torch.Tensor, ...]:
    """The forward of SharedInputLinears of whose layers this rank has rows of the weights."""
    options, names = module.options, module._layer_names
    divisions = divisions_of(module, names)
    values = normalised(options, module.norm, divisions[0], input)
    return _linears(module, options, values, names, divisions, options.names)


def _linears(module, options, values: Any, parts: Sequence[str], divisions, names) -> Tuple[torch.Tensor, ...]:
    """The outputs of layers that share their input: the first ones of the module, whose scales have that order."""
    delayed = module._delayed(local(values_of(values)))
    slots = [slots_of(delayed, at) for at in range(len(parts))]
    layers = [_part(module, part) for part in parts]
    shared = _shared(options, values, divisions, [each.weight for each in layers], slots[0] and slots[0][0], names)
    return tuple(
        [
            division.run(options, options.recipe, shared, layer.weight, layer.bias, slot, name)
            for division, layer, slot, name in zip(divisions, layers, slots, names)
        ]
    )


def mlp_of_parts(module: torch.nn.Module, input: Any) -> torch.Tensor:
    """The forward of an Mlp, or of a GatedMlp of two layers, of which this rank has rows of the first weights and columns of
    the last."""
    options, gated = module.options, _part(module, "gate_proj") is not None
    firsts = ("gate_proj", "up_proj") if gated else ("up_proj",)
    *divisions, last = divisions_of(module, firsts, ("down_proj",))
    activation = options.activation or ("silu" if gated else "gelu")
    if function_of(activation, gated) is None:
        refuse(
            options,
            f"activation: {activation!r} is an expression, and an MLP that ranks divide takes functions by their names (silu, "
            "gelu ...): make it of Float8Linear",
        )
    name = options.name
    names = (f"{name}.gate", f"{name}.up", f"{name}.down") if gated else (name, name)
    values = normalised(options, module.norm, divisions[0], input)
    outputs = _linears(module, options, values, firsts, divisions, names)
    hidden = activated(activation, *outputs)
    slots = slots_of(module._delayed(local(hidden)), len(firsts), len(firsts))
    down = _part(module, "down_proj")
    return last.run(options, options.recipe, hidden, down.weight, down.bias, slots, names[-1])

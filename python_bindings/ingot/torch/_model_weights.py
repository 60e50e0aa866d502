"""All weights of a model, for reports of what was converted: those of linear layers, Ingot's modules of several parts
included, and those that are in no linear layer and so stay in high precision."""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

import torch

from .._text import counted
from ._modules import is_ingot_layer, type_name


@dataclasses.dataclass(frozen=True)
class OtherWeight:
    """A parameter of two or more dimensions that belongs to no linear layer."""

    name: str
    parameters: int
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.parameters:,} parameters, {self.bytes:,} bytes: {self.reason}"


def linear_layers(model: torch.nn.Module) -> Iterator[Tuple[str, torch.nn.Module, torch.nn.Module]]:
    """(name, layer, owner) of each linear layer, once. The owner computes it: the layer itself, or a module of ingot.nn
    that has it as a part."""
    seen: Set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            if module not in seen:
                yield name, module, module
        elif is_ingot_layer(module) and not is_experts_layer(module):
            if isinstance(getattr(module, "out_features", None), int):
                yield name, module, module
            for key, child in module.named_children():
                if isinstance(getattr(child, "out_features", None), int):
                    seen.add(child)
                    yield f"{name}.{key}" if name else key, child, module
        elif is_ingot_layer(getattr(module, "computed_by", None)):
            yield name, module, module.computed_by


def other_weights(model: torch.nn.Module) -> Tuple[OtherWeight, ...]:
    """Those in high precision that are no linear layer's, each once, in the model's order."""
    counted = {id(each) for _, layer, _ in linear_layers(model) for each in layer._parameters.values()}
    found: List[OtherWeight] = []
    for path, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is None or id(parameter) in counted or isinstance(
                parameter, torch.nn.parameter.UninitializedParameter
            ):
                continue
            if is_experts_layer(module) or (parameter.dim() == 3 and _has_float8_experts(module)):
                continue
            if parameter.dim() < 2 or not parameter.is_floating_point() or parameter.element_size() < 2:
                continue
            counted.add(id(parameter))
            size = parameter.numel()
            name = f"{path}.{key}" if path else key
            found.append(OtherWeight(name, size, size * parameter.element_size(), _reason(module, parameter)))
    return tuple(found)


def is_stack(module: torch.nn.Module) -> bool:
    """Is it a class that transformers' use_experts_implementation() has made? Known without transformers."""
    down = getattr(module, "down_proj", None)
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate") and isinstance(down, torch.Tensor) and down.dim() == 3


def is_experts_layer(module: torch.nn.Module) -> bool:
    """Is it a GroupedLinear or ExpertsMlp of ingot.nn?"""
    return is_ingot_layer(module) and isinstance(getattr(module, "experts", None), int)


def _has_float8_experts(module: torch.nn.Module) -> bool:
    """Are its experts FP8? Those of transformers run as their config says, whoever has set it."""
    if not is_stack(module):
        return hasattr(module, "ingot_options") or is_experts_layer(module)
    if hasattr(module, "down_proj_scale_inv"):
        return True
    return getattr(getattr(module, "config", None), "_experts_implementation", None) == "ingot"


def float8_experts(model: torch.nn.Module) -> Tuple[str, ...]:
    """The names of a model's modules of stacked experts that are FP8."""
    modules = model.named_modules()
    return tuple(name for name, module in modules if _has_float8_experts(module) and not hasattr(module, "ingot_expert_formats"))


class ExpertsWeight(NamedTuple):
    """A parameter (experts, N, K) of a module whose experts train in FP8, and how it is called and cast. is_transposed: it is
    stored as (experts, K, N)."""

    name: str
    weight: torch.nn.Parameter
    recipe: str
    module: torch.nn.Module
    is_transposed: bool = False


_OF_STACKS = "gate_up_proj", "up_proj", "down_proj"
_OF_MODULES = "w1", "w2", "w3", "gate_up_proj", "down_proj", "weight"  # of GroupedExperts and of ingot.nn


def weights_of_experts(model: torch.nn.Module) -> Iterator[ExpertsWeight]:
    """Those of a model's modules of ingot.nn, and that convert_experts_() or convert_grouped_experts_() has converted, a tied one once
    for each."""
    for path, module in model.named_modules():
        if not _has_float8_experts(module):
            continue
        options = getattr(module, "options" if is_experts_layer(module) else "ingot_options", None)
        recipe = getattr(options, "recipe", "rowwise")  # of a config that was set by name
        transposed = is_stack(module) and bool(module.is_transposed)
        for key in _OF_STACKS if is_stack(module) else _OF_MODULES:
            weight = module._parameters.get(key)
            if weight is not None:
                yield ExpertsWeight(f"{path}.{key}" if path else key, weight, recipe, module, transposed)


def _reason(module: torch.nn.Module, parameter: torch.nn.Parameter) -> str:
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        return "is looked up, not multiplied"
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return "is a convolution's"
    if type(module).__name__ == "Conv1D":
        return "a Conv1D has its weight transposed: a torch.nn.Linear of weight.t() in its place can be converted"
    if parameter.dim() > 2:
        remedy = ": convert_experts_() of ingot.integrations.experts has it compute in FP8" if is_stack(module) else ""
        return f"has {parameter.dim()} dimensions, and {type_name(module)} multiplies by it itself{remedy}"
    return f"{type_name(module)} multiplies by it itself"


def users_of_parameters(model: torch.nn.Module) -> Dict[int, Dict[torch.nn.Module, str]]:
    """The modules that have a parameter, with their names, by its id."""
    users: Dict[int, Dict[torch.nn.Module, str]] = {}
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                users.setdefault(id(parameter), {})[module] = name
    return users


def layers_line(count: int, total: int, what: str, is_: str = "is", are: str = "are") -> str:
    """Returns a report's line "1 of 4 linear layers is FP8"."""
    return f"{count:,} of {counted(total, 'linear layer', 'linear layers')} {is_ if count == 1 else are} {what}"


def other_lines(others: Tuple[OtherWeight, ...], experts: Tuple[str, ...] = ()) -> List[str]:
    """Returns a report's lines about what is in no linear layer: these weights, and the experts that are FP8."""
    what = counted(len(experts), "module of experts is", "modules of experts are")
    lines = [f"{what} FP8: {', '.join(experts)}"] if experts else []
    if not others:
        return lines
    parameters, size = sum(each.parameters for each in others), sum(each.bytes for each in others)
    one, many = f"parameter ({size:,} bytes) is", f"parameters ({size:,} bytes) are"
    head = f"{counted(parameters, one, many)} in no linear layer and {'stays' if parameters == 1 else 'stay'} in high precision"
    return [*lines, head, *(f"  {each}" for each in others)]

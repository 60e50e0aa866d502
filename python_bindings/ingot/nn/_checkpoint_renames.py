"""Tensors that a file calls otherwise than the model does. transformers 5 gave the modules of its mixtures of experts common names,
and its save_pretrained() writes the names of before, which the hub has, so that both are read here.

Its own table of conversions (transformers.conversion_mapping) is not asked: loading needs no other package, the table knows
only classes of transformers' own, and its conversions work on tensors, of which a plan here has names alone. A name for which
the model has no place goes through the rules below, in their order, until the model has one for what they made of it; what none
of them helps keeps its name. So a model that has the file's names, as transformers 4 has them, is read as it is.
"""

from __future__ import annotations

import re
from typing import Iterable

import torch

from ._checkpoint_names import Place
from ._mlp import GatedMlp
from ._stored_linear import StoredLinear

# Stacks that transformers 5 makes of each expert's layers.
OF_EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
_RULES = tuple(
    (re.compile(rf"(?:^|(?<=\.)){pattern}"), by)
    for pattern, by in (
        (r"input_linear\.weight", "experts.gate_up_proj"),  # GraniteMoe, of which a file has stacks
        (r"output_linear\.weight", "experts.down_proj"),
        (r"router\.layer\.", "router."),
        (r"block_sparse_moe\.", "mlp."),  # Mixtral, MiniMax, MiniMax-M2, PhiMoE
        (r"(experts\.\d+\.)w1\.", r"\1gate_proj."),  # these, and LFM2
        (r"(experts\.\d+\.)w3\.", r"\1up_proj."),
        (r"(experts\.\d+\.)w2\.", r"\1down_proj."),
        (r"mlp\.router\.gate\.", "mlp.gate."),  # Hunyuan 3
        (r"mlp\.expert_bias", "mlp.e_score_correction_bias"),
        (r"mlp\.shared_(?:mlp|expert)\.", "mlp.shared_experts."),  # and Laguna
        (r"mlp\.gate\.", "mlp.router."),  # PhiMoE
        (r"mlp\.(?:experts\.)?e_score_correction_bias", "mlp.gate.e_score_correction_bias"),  # EXAONE, Laguna
        (r"mlp\.moe_statics\.", "mlp.gate.moe_statics."),  # ERNIE 4.5
        (r"post_mlp_layernorm\.", "mlp.post_mlp_layernorm."),  # A.X-K1
        (r"self_attn\.attention_sink_bias", "self_attn.sinks"),  # MiMo-V2
        (r"self_attn\.q_b_proj\.", "self_attn.q_gate_proj."),  # A.X-K2
        (r"W_down\.", "mlp.fc1."),
        (r"W_up\.", "mlp.fc2."),
        (r"backbone\.", "model."),  # Nemotron-H
    )
)
_OF_STACK = re.compile(r"(_weight)?(_scale|_scale_inv|_input_scale|_packed|[_.]blocks|[_.]scales)$")


def parts_of_stack(place: Place, key: str, stack: torch.Tensor) -> list[str]:
    """What files call the layers of each expert that transformers makes a stack of; none if it has other ones."""
    parts = OF_EXPERTS.get(key, ()) if len(stack.shape) == 3 else ()
    return [f"{place.prefix}{expert}.{part}.weight" for expert in range(stack.shape[0]) for part in parts]


def renames(names: set[str], places: Iterable[Place]) -> dict[str, str]:
    """Returns the file's names, by what the model calls these tensors, of those that a rule renames. A name that the file has
    itself is no other tensor's."""
    wanted, found = _Wanted(places), {}
    for name in sorted(names):
        made = name
        for pattern, by in _RULES:
            if wanted.has(made):
                break
            made = pattern.sub(by, made, count=1)
        if made not in names and made not in found and wanted.has(made):
            found[made] = name
    return found


class _Wanted:
    """What a model has a place for."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._tensors: set[str] = set()
        self._layers: set[str] = set()  # their weights come with scales, codes and biases of many names
        self._stacks: set[str] = set()
        for place in places:
            module = place.module
            if isinstance(module, StoredLinear):
                self._layers.add(place.name)
            if isinstance(place.parent, GatedMlp) and place.key == "gate_up_proj":
                above = place.name.removesuffix("gate_up_proj")
                self._layers.update(above + part for part in OF_EXPERTS["gate_up_proj"])
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None:
                    self._add(place, key, tensor)

    def _add(self, place: Place, key: str, tensor: torch.Tensor) -> None:
        self._tensors.add(place.prefix + key)
        if key == "weight":
            self._layers.add(place.name)
        parts = parts_of_stack(place, key, tensor)
        if parts:
            self._stacks.add(place.prefix + key)
            self._layers.update(part.removesuffix(".weight") for part in parts)

    def has(self, name: str) -> bool:
        above = name.rpartition(".")[0]
        return name in self._tensors or above in self._layers or _OF_STACK.sub("", name) in self._stacks

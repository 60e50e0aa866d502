"""Tensors that a file calls otherwise than the model does. transformers 5 gave the modules of its mixtures of experts common names,
and its save_pretrained() writes the names of before, which the hub has, so that both are read here, and those are written.

Its own table of conversions (transformers.conversion_mapping) is not asked: loading needs no other package, the table knows
only classes of transformers' own, and its conversions work on tensors, of which a plan here has names alone. A name for which
the model has no place goes through the rules below, in their order, until the model has one for what they made of it; what none
of them helps keeps its name. So a model that has the file's names, as transformers 4 has them, is read as it is.

Files are written by a table of families, by the model_type of the config: what the model calls mlp.gate is block_sparse_moe.gate in
Mixtral's files and mlp.router.gate in Hunyuan's. A family that the table lacks is written by the model's own names.
"""

from __future__ import annotations

import re
from typing import Iterable, List, Tuple

import torch

from ._checkpoint_names import Place, unwrapped
from ._mlp import GatedMlp
from ._stored_linear import StoredLinear

# Stacks that transformers 5 makes of each expert's layers.
OF_EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
_Rules = Tuple[Tuple[re.Pattern, str], ...]


def _rules(*rules: Tuple[str, str]) -> _Rules:
    """Patterns that begin where a part of a name does, and what comes in the place of the first match of each."""
    return tuple((re.compile(rf"(?:^|(?<=\.)){pattern}"), by) for pattern, by in rules)


_RULES = _rules(
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
    (r"hc_pre\.hc_attn_layer\.hc_", "attn_hc."),  # Hunyuan 4
    (r"hc_pre\.hc_mlp_layer\.hc_", "ffn_hc."),
    (r"hc_pre\.hc_head\.hc_head_", "hc_head.hc_"),
    (r"linear_gate\.", "gate_proj."),
    (r"self_attn\.learnable_sink_param", "self_attn.sinks"),
    (r"self_attn\.(f_[ab]_proj\.|dt_bias|A_log)", r"self_attn.forget_gate.\1"),  # Kimi Linear
    (r"attn\.", "self_attn."),  # DeepSeek-V4
    (r"ffn\.gate\.bias", "mlp.gate.e_score_correction_bias"),
    (r"ffn\.", "mlp."),
    (r"attn_norm\.", "input_layernorm."),
    (r"ffn_norm\.", "post_attention_layernorm."),
    (r"hc_(attn|ffn)_", r"\1_hc."),
    (r"hc_head_", "hc_head.hc_"),
    (r"self_attn\.attn_sink", "self_attn.sinks"),
    (r"indexer\.weights_proj\.", "compressor.indexer.scorer.weights_proj."),
    (r"indexer\.wq_b\.", "compressor.indexer.q_b_proj."),
    (r"indexer\.compressor\.", "compressor.indexer."),
    (r"(self_attn\.(?:compressor\.(?:indexer\.)?)?)norm\.", r"\1kv_norm."),
    (r"ape$", "position_bias"),
    (r"w(q_a|q_b|kv|o_a|o_b)\.", r"\1_proj."),
    (r"wgate\.", "gate_proj."),
    (r"q_norm\.", "q_a_norm."),
    (r"(shared_experts\.)w1\.", r"\1gate_proj."),
    (r"(shared_experts\.)w3\.", r"\1up_proj."),
    (r"(shared_experts\.)w2\.", r"\1down_proj."),
    (r"^head\.", "lm_head."),
    (r"embed\.", "embed_tokens."),
    (r"^(embed_tokens\.|layers\.|norm\.|hc_head\.)", r"model.\1"),
)

# What files call what transformers 5 calls otherwise, besides the layers of each expert: by model_type.
_LETTERS = (r"(experts\.\d+\.)gate_proj\.", r"\1w1."), (r"(experts\.\d+\.)up_proj\.", r"\1w3."), (r"(experts\.\d+\.)down_proj\.", r"\1w2.")
_MIXTRAL = (*_LETTERS, (r"mlp\.", "block_sparse_moe."))
_GRANITE = (
    (r"experts\.gate_up_proj", "input_linear.weight"),
    (r"experts\.down_proj", "output_linear.weight"),
    (r"block_sparse_moe\.router\.", "block_sparse_moe.router.layer."),
)
_FAMILIES = {
    "mixtral": _MIXTRAL,
    "minimax": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
    "phimoe": (*_MIXTRAL, (r"block_sparse_moe\.router\.", "block_sparse_moe.gate.")),
    "lfm2_moe": _LETTERS,
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "nemotron_h": ((r"^model\.", "backbone."),),
    "axk1": ((r"mlp\.post_mlp_layernorm\.", "post_mlp_layernorm."),),
    "axk2": ((r"mlp\.fc1\.", "W_down."), (r"mlp\.fc2\.", "W_up."), (r"self_attn\.q_gate_proj\.", "self_attn.q_b_proj.")),
    "deepseek_v4": (
        *_LETTERS,
        (r"(shared_experts\.)gate_proj\.", r"\1w1."),
        (r"(shared_experts\.)up_proj\.", r"\1w3."),
        (r"(shared_experts\.)down_proj\.", r"\1w2."),
        (r"compressor\.indexer\.scorer\.weights_proj\.", "indexer.weights_proj."),
        (r"compressor\.indexer\.q_b_proj\.", "indexer.wq_b."),
        (r"compressor\.indexer\.", "indexer.compressor."),
        (r"compressor\.gate_proj\.", "compressor.wgate."),
        (r"kv_norm\.", "norm."),
        (r"q_a_norm\.", "q_norm."),
        (r"position_bias", "ape"),
        (r"(q_a|q_b|kv|o_a|o_b)_proj\.", r"w\1."),
        (r"self_attn\.sinks", "self_attn.attn_sink"),
        (r"mlp\.gate\.e_score_correction_bias", "mlp.gate.bias"),
        (r"input_layernorm\.", "attn_norm."),
        (r"post_attention_layernorm\.", "ffn_norm."),
        (r"(attn|ffn)_hc\.", r"hc_\1_"),
        (r"self_attn\.", "attn."),
        (r"mlp\.", "ffn."),
        (r"^lm_head\.", "head."),
        (r"^embed_tokens\.", "embed."),  # of a model without its head
        (r"^hc_head\.hc_", "hc_head_"),
    ),
    "ernie4_5_moe": ((r"mlp\.gate\.moe_statics\.", "mlp.moe_statics."),),
    "exaone_moe": ((r"mlp\.gate\.e_score_correction_bias", "mlp.e_score_correction_bias"),),
    "hy_v3": (
        (r"mlp\.gate\.", "mlp.router.gate."),
        (r"mlp\.e_score_correction_bias", "mlp.expert_bias"),
        (r"mlp\.shared_experts\.", "mlp.shared_mlp."),
    ),
    "hy_v4": (
        (r"attn_hc\.", "hc_pre.hc_attn_layer.hc_"),
        (r"ffn_hc\.", "hc_pre.hc_mlp_layer.hc_"),
        (r"hc_head\.hc_", "hc_pre.hc_head.hc_head_"),
        (r"gate_proj\.", "linear_gate."),
        (r"self_attn\.sinks", "self_attn.learnable_sink_param"),
    ),
    "kimi_linear": (
        *_LETTERS,
        (r"mlp\.(?=(?:gate|experts|shared_experts)\.)", "block_sparse_moe."),  # not of the first layers, which have no experts
        (r"self_attn\.forget_gate\.", "self_attn."),
    ),
    "laguna": (
        (r"mlp\.gate\.e_score_correction_bias", "mlp.experts.e_score_correction_bias"),
        (r"mlp\.shared_experts\.", "mlp.shared_expert."),
    ),
    "mimo_v2_flash": ((r"self_attn\.sinks", "self_attn.attention_sink_bias"),),
    **dict.fromkeys(
        (
            "qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe", "flex_olmo", "deepseek_v2", "deepseek_v3", "glm4_moe", "dots1",
            "hunyuan_v1_moe", "jamba", "afmoe", "cohere2_moe", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "mellum",
            "qwen3_5_moe_text", "solar_open",
        ),
        (),
    ),
}  # fmt: skip
_OF_STACKS = ("granitemoe", "granitemoeshared", "granitemoehybrid", "hy_v4")  # of which files have stacks, as the model has them
_JOINED = {"conv1d": ("q_conv1d", "k_conv1d", "v_conv1d")}  # what a model has as one layer, and files of kimi_linear as these
_OF_STACK = re.compile(r"(_weight)?(_scale|_scale_inv|_input_scale|_packed|[_.]blocks|[_.]scales)$")


def parts_of_stack(place: Place, key: str, stack: torch.Tensor) -> list[str]:
    """What files call the layers of each expert that transformers makes a stack of; none if it has other ones."""
    return _parts_of(place, key, range(stack.shape[0])) if len(stack.shape) == 3 else []


def parts_after_stack(place: Place, key: str, stack: torch.Tensor) -> list[str]:
    """What files call the layers of the first expert that the stack has no place for; none if it has other ones."""
    return _parts_of(place, key, (stack.shape[0],)) if len(stack.shape) == 3 else []


def _parts_of(place: Place, key: str, experts: Iterable[int]) -> list[str]:
    return [f"{place.prefix}{expert}.{part}.weight" for expert in experts for part in OF_EXPERTS.get(key, ())]


def parts_of_layer(place: Place, key: str) -> list[str]:
    """What files may call the layers that the model has as one, below each other; none if it is no such layer."""
    is_pair = isinstance(place.parent, GatedMlp) and place.key == "gate_up_proj"
    parts = OF_EXPERTS["gate_up_proj"] if is_pair else _JOINED.get(place.key, ())
    above = place.name.removesuffix(place.key)
    return [f"{above}{part}.{key}" for part in parts]


class FileNames:
    """What the published files of a model's family call its tensors and layers. published: False for the model's own names."""

    def __init__(self, model: torch.nn.Module, published: bool = True) -> None:
        family = getattr(getattr(unwrapped(model), "config", None), "model_type", None) if published else None
        self._divides = family == "kimi_linear"
        self._has_layers = family in _FAMILIES and family not in _OF_STACKS
        self._rules = _rules(*_FAMILIES.get(family, ()))

    def of(self, name: str) -> str:
        """A tensor's."""
        for pattern, by in self._rules:
            name = pattern.sub(by, name, count=1)
        return name

    def of_layer(self, name: str) -> str:
        return self.of(f"{name}.").removesuffix(".")

    def of_experts(self, place: Place, key: str, tensor: torch.Tensor) -> List[str]:
        """The weights of each expert's layers, if files of the family have these instead of a stack; else none."""
        return [self.of(part) for part in parts_of_stack(place, key, tensor)] if self._has_layers else []

    def of_parts(self, place: Place, key: str, tensor: torch.Tensor) -> List[str]:
        """Those, or of the layers that files of the family have instead of one; else none."""
        return self.of_experts(place, key, tensor) or (parts_of_layer(place, key) if self._divides else [])


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
            self._layers.update(part.removesuffix(".weight") for part in parts_of_layer(place, "weight"))
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
            more = parts_after_stack(place, key, tensor)  # that the load refuses, by whatever name
            self._layers.update(part.removesuffix(".weight") for part in [*parts, *more])

    def has(self, name: str) -> bool:
        above = name.rpartition(".")[0]
        return name in self._tensors or above in self._layers or _OF_STACK.sub("", name) in self._stacks

"""Small models of transformers' mixtures of experts, whose files have other names than their modules."""

import torch
import transformers

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "pad_token_id": 0, "num_experts_per_tok": 2,
}  # fmt: skip
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8}
ROUTED = {"n_routed_experts": 4, "moe_intermediate_size": 32, "intermediate_size": 96, "first_k_dense_replace": 1}
OF_DEEPSEEK = {**LATENT, **ROUTED, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4}
QWEN = {"num_experts": 4, "moe_intermediate_size": 32, "intermediate_size": 96, "mlp_only_layers": []}
LOCAL = {"num_local_experts": 4, "intermediate_size": 32}
GRANITE = {**LOCAL, "head_dim": None, "shared_intermediate_size": 32}
# By the model_type of transformers; what its files call otherwise than its modules is, besides the layers of each expert, said.
FAMILIES = {
    "mixtral": LOCAL,  # block_sparse_moe, w1, w2, w3
    "minimax": {**LOCAL, "layer_types": ["full_attention", "linear_attention"]},
    "minimax_m2": LOCAL,  # and the router's bias
    "phimoe": {**LOCAL, "head_dim": None},  # and the router
    "lfm2_moe": {**QWEN, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"], "head_dim": None},  # w1, w2, w3
    "granitemoe": {**GRANITE, "shared_intermediate_size": None},  # input_linear, output_linear, router.layer: stacks
    "granitemoeshared": GRANITE,
    "granitemoehybrid": {**GRANITE, "layer_types": ["attention"] * 2},
    "nemotron_h": {  # backbone, and up_proj without a gate
        "n_routed_experts": 4, "moe_intermediate_size": 32, "intermediate_size": 96, "n_group": 1, "topk_group": 1, "mamba_num_heads": 4,
        "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "moe_shared_expert_intermediate_size": 32, "layers_block_type": ["attention", "moe"],
    },
    "axk1": OF_DEEPSEEK,  # post_mlp_layernorm
    "axk2": OF_DEEPSEEK,  # W_down, W_up, q_b_proj
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_intermediate_size": 32, "intermediate_size": 96, "moe_k": 2},  # moe_statics
    "exaone_moe": {**QWEN, "n_group": 1, "topk_group": 1},  # e_score_correction_bias
    "hy_v3": {**QWEN, "first_k_dense_replace": 0},  # router.gate, expert_bias, shared_mlp
    "hy_v4": {**QWEN, **LATENT, "first_k_dense_replace": 0, "num_key_value_heads": 4},  # hc_pre, linear_gate, learnable_sink_param
    "kimi_linear": {  # block_sparse_moe, w1, w2, w3, forget_gate, and three convolutions instead of one
        **LATENT, "num_local_experts": 4, "moe_intermediate_size": 32, "intermediate_size": 96, "num_key_value_heads": 4,
        "linear_num_heads": 4, "linear_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["sparse"] * 2,
    },
    "laguna": {**QWEN, "shared_expert_intermediate_size": 32},  # experts.e_score_correction_bias, shared_expert
    "mimo_v2_flash": ROUTED,  # attention_sink_bias
    "qwen2_moe": {**QWEN, "shared_expert_intermediate_size": 32},
    "qwen3_moe": QWEN,
    "qwen3_next": {**QWEN, "shared_expert_intermediate_size": 32, "layer_types": ["full_attention"] * 2},
    "olmoe": {"num_experts": 4, "intermediate_size": 32},
    "flex_olmo": {"num_experts": 4, "intermediate_size": 32},
    "deepseek_v2": OF_DEEPSEEK,
    "deepseek_v3": OF_DEEPSEEK,
    "deepseek_v4": {  # nearly all; a layer that looks its experts up, and two kinds of compressed attention
        **LATENT, **ROUTED, "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 16,
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"], "mlp_layer_types": ["hash_moe", "moe"],
    },
    "glm4_moe": {**ROUTED, "n_group": 1, "topk_group": 1},
    "dots1": {**ROUTED, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "hunyuan_v1_moe": {"num_experts": 4, "intermediate_size": 32, "moe_topk": 2},
    "jamba": {"num_experts": 4, "intermediate_size": 32, "attn_layer_period": 1, "attn_layer_offset": 0, "use_mamba_kernels": False},
    **dict.fromkeys(
        ("afmoe", "cohere2_moe", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "mellum", "qwen3_5_moe_text", "solar_open"),
        {
            **OF_DEEPSEEK, "num_experts": 4, "shared_expert_intermediate_size": 32, "n_shared_experts": 1, "index_n_heads": 2,
            "index_head_dim": 16, "moe_topk": 2, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 96,
        },
    ),
    "llama": {"intermediate_size": 96},  # no experts
    "gpt_oss": {**LOCAL, "layer_types": ["full_attention"] * 2, "sliding_window": 16},  # no other names
    "llama4_text": {**LOCAL, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 1, "head_dim": 16},
}  # fmt: skip


def model_of(family, **others):
    torch.manual_seed(0)
    values = {**SIZES, **FAMILIES.get(family, {}), **others}
    config = transformers.AutoConfig.for_model(family, **{key: value for key, value in values.items() if value is not None})
    made = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made.eval()


def same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        each = found[name]
        assert each.dtype == value.dtype and torch.equal(each.reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)), name

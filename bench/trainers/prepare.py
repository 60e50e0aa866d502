"""Writes what all jobs of compare_trainers.py read, and what machine this is: a Llama of random weights in bfloat16 as
transformers saves it, and machine.json."""

from __future__ import annotations

import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import torch_machine
from transformers import LlamaConfig, LlamaForCausalLM


def main(folder: pathlib.Path) -> None:
    given = json.loads((folder / "prepare.json").read_text(encoding="utf-8"))
    sizes = given["sizes"]
    (folder / "machine.json").write_text(
        json.dumps(torch_machine.machine(torch, given["device"], given["commit"])), encoding="utf-8"
    )
    config = LlamaConfig(
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["intermediate"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        vocab_size=sizes["vocabulary"],
        max_position_embeddings=max(sizes["tokens"], 8192),
        rope_theta=500000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(given["device"]):
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

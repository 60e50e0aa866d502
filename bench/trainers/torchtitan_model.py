"""torchtitan 0.2's Llama in a job's sizes."""

from __future__ import annotations

from torchtitan.models.llama3 import TransformerModelArgs


def model_args(sizes: dict[str, int]) -> TransformerModelArgs:
    """Its MLPs have two thirds of four times the width, rounded up to a multiple: so the multiple is their size."""
    return TransformerModelArgs(
        dim=sizes["hidden"],
        n_layers=sizes["layers"],
        n_heads=sizes["heads"],
        n_kv_heads=sizes["kv_heads"],
        vocab_size=sizes["vocabulary"],
        multiple_of=sizes["intermediate"],
        rope_theta=500000,
        max_seq_len=sizes["tokens"],
    )

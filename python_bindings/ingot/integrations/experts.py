"""transformers' mixtures of experts with experts in FP8, for inference:

    from ingot.integrations.experts import quantize_experts_
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
    print(quantize_experts_(model))
    model.generate(...)

Each module of stacked experts (gate_up_proj or up_proj, and down_proj, as transformers 5 has them) gets codes and scale_inv in the
place of its weights, and runs as the experts implementation "ingot": rows sorted by their experts, two grouped GEMMs
(ingot.torch.grouped_linear), and the sum of each token's experts in the order that the router chose, so that bits repeat. Needs
transformers 5.
"""

from __future__ import annotations

from typing import List

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ..torch._errors import LinearError
from ..torch._grouped_linear import grouped_linear
from ..torch._quantize_operators import FORMATS, quantize_rows

NAME = "ingot"
_WEIGHTS = ("gate_up_proj", "up_proj", "down_proj")
_E4M3 = FORMATS.index(torch.float8_e4m3fn)


def _is_stack(module: torch.nn.Module) -> bool:
    """Is it a class that transformers' use_experts_implementation() has made?"""
    down = getattr(module, "down_proj", None)
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate") and isinstance(down, torch.Tensor) and down.dim() == 3


def quantize_experts_(model: torch.nn.Module) -> List[str]:
    """Casts the stacked experts of a transformers model to e4m3fn, in place, with a scale_inv for each row, and has them run by
    "ingot". Returns their names. The weights become buffers: codes (experts, N, K) under their own names, and
    `<name>_scale_inv`, float32 (experts, N). Biases, routers and shared experts stay. A second call changes nothing. Raises
    LinearError for a model without stacked experts."""
    stacks = {name: module for name, module in model.named_modules() if _is_stack(module)}
    if not stacks:
        raise LinearError(
            f"quantize_experts_: {type(model).__name__} has no stacked experts, which are modules with gate_up_proj or up_proj, and "
            "down_proj of three dimensions, as transformers 5 has them; linear layers are quantize_()'s of ingot.nn"
        )
    for module in stacks.values():
        for name in _WEIGHTS:
            weight = module._parameters.get(name)
            if weight is not None:
                _replace(module, name, weight.detach())
        module.config._experts_implementation = NAME
    return list(stacks)


def _replace(module: torch.nn.Module, name: str, weight: torch.Tensor) -> None:
    rows = weight.transpose(1, 2) if module.is_transposed else weight
    experts, n, k = rows.shape
    codes, scale_inv = quantize_rows(rows.reshape(experts * n, k), _E4M3, 0)
    del module._parameters[name]
    module.register_buffer(name, codes.view(experts, n, k))
    module.register_buffer(f"{name}_scale_inv", scale_inv.view(experts, n))


def _forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """transformers' experts function: hidden_states (tokens, hidden), of each token its experts and their weights (tokens, k). An
    index from the number of experts on, as expert parallelism has them of other ranks, counts as none."""
    tokens, chosen = top_k_index.shape
    experts = self.down_proj.shape[0]
    of_rows, order = top_k_index.reshape(-1).sort(stable=True)
    numbers = torch.arange(experts, device=of_rows.device, dtype=of_rows.dtype)
    ends = torch.searchsorted(of_rows, numbers, right=True, out_int32=True)
    first = "gate_up_proj" if self.has_gate else "up_proj"
    hidden = _product(self, first, hidden_states[order // chosen], of_rows, ends)
    hidden = self._apply_gate(hidden) if self.has_gate else self.act_fn(hidden)
    out = _product(self, "down_proj", hidden, of_rows, ends)
    out = out * top_k_weights.reshape(-1)[order, None].to(out.dtype)
    out = out.masked_fill_((of_rows >= experts)[:, None], 0)  # rows that no product has written
    by_token = torch.empty_like(out)
    by_token[order] = out
    return by_token.view(tokens, chosen, out.shape[1]).sum(1).to(hidden_states.dtype)


def _product(self, name: str, rows: torch.Tensor, of_rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = grouped_linear(rows, getattr(self, name), getattr(self, f"{name}_scale_inv"), ends)
    if self.has_bias:
        out = out + getattr(self, f"{name}_bias")[of_rows.clamp(max=ends.numel() - 1)].to(out.dtype)
    return out


ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)

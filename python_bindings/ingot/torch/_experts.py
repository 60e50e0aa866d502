"""Mixtures of experts: rows of tokens go to their experts and come back, around two grouped products. Bits repeat, those of
gradients too: nothing is added in an order of chance."""

from __future__ import annotations

from typing import Callable

import torch

from ._errors import LinearError
from ._grouped_linear import grouped_linear
from ._linear import LinearOptions


SWIGLU = "silu(x) * up"


class _Permute(torch.autograd.Function):
    """rows[order], and backward by the inverse: a sum over indices would add in any order."""

    @staticmethod
    def forward(ctx, rows, order, inverse):
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.saved_tensors[0]], None, None


class _Dispatch(torch.autograd.Function):
    """Each token's row, once for each of its experts, in the order of the experts."""

    @staticmethod
    def forward(ctx, hidden_states, order, inverse, chosen: int):
        ctx.save_for_backward(inverse)
        ctx.chosen = chosen
        return hidden_states[order // chosen]

    @staticmethod
    def backward(ctx, grad):
        by_token = grad[ctx.saved_tensors[0]]
        return by_token.view(grad.shape[0] // ctx.chosen, ctx.chosen, grad.shape[1]).sum(1), None, None, None


def routed(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    experts: int,
    first: Callable,
    second: Callable,
    has_all: bool = True,
) -> torch.Tensor:
    """Returns for each token the sum of its experts' outputs, (tokens, hidden), in the order of top_k_index. first and second
    are functions of (rows, the expert of each row, ends), rows sorted by experts; the activation is in `second`. An index
    below 0 or from `experts` on counts as none. has_all: such an index is an exception, whose row is computed by some expert and
    counts for nothing; otherwise such rows, many where other ranks have their experts, are not computed."""
    tokens, chosen = top_k_index.shape
    lacks = (top_k_index < 0) | (top_k_index >= experts)
    if has_all:
        top_k_weights = top_k_weights.masked_fill(lacks, 0)
        top_k_index = top_k_index.clamp(0, experts - 1)
    else:
        top_k_index = top_k_index.masked_fill(lacks, experts)
    of_rows, order = top_k_index.reshape(-1).sort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    numbers = torch.arange(experts, device=of_rows.device, dtype=of_rows.dtype)
    ends = torch.searchsorted(of_rows, numbers, right=True, out_int32=True)
    # No product writes the rows of other ranks' experts, nor their gradients, and what a cast reads must be finite.
    lacking = None if has_all else (of_rows >= experts)[:, None]
    known = lambda rows: rows if lacking is None else rows.masked_fill(lacking, 0)
    hidden = known(first(known(_Dispatch.apply(hidden_states, order, inverse, chosen)), of_rows, ends))
    out = known(second(hidden, of_rows, ends))
    by_token = _Permute.apply(out, inverse, order).view(tokens, chosen, out.shape[1])
    return (by_token * top_k_weights[..., None].to(out.dtype)).sum(1).to(hidden_states.dtype)


def experts_mlp(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    gate_up_weight: torch.Tensor,
    down_weight: torch.Tensor,
    options: LinearOptions = LinearOptions("rowwise", name="experts"),
) -> torch.Tensor:
    """The gated MLP of each token's experts, in FP8: the sum over k of top_k_weights[:, k] * (silu(gate) * up) @ down[e].T, where
    gate and up are the halves of hidden_states @ gate_up[e].T and e is top_k_index[:, k].

    hidden_states: (tokens, hidden), float32, bfloat16 or float16. top_k_index, top_k_weights: (tokens, k), integers, as
    torch.topk() gives them, and the router's weights; an index that no expert has counts as none. gate_up_weight: (experts, 2 * intermediate, hidden);
    down_weight: (experts, hidden, intermediate). Returns (tokens, hidden) in the dtype of hidden_states. options: the recipe,
    "tensorwise" or "rowwise", as grouped_linear() takes them; both layers have its name. Raises LinearError."""
    if top_k_index.is_floating_point():
        raise LinearError(f"experts_mlp top_k_index: is {top_k_index.dtype}, expected integers: torch.topk(scores, k).indices")
    if hidden_states.dim() != 2 or gate_up_weight.dim() != 3 or gate_up_weight.shape[2] != hidden_states.shape[1]:
        raise LinearError(
            f"experts_mlp gate_up_weight: has the shape {tuple(gate_up_weight.shape)} for hidden_states "
            f"{tuple(hidden_states.shape)}, expected (experts, 2 * intermediate, hidden) for (tokens, hidden)"
        )
    experts, both, hidden = gate_up_weight.shape
    if both % 2 != 0 or tuple(down_weight.shape) != (experts, hidden, both // 2):
        raise LinearError(
            f"experts_mlp down_weight: has the shape {tuple(down_weight.shape)} for gate_up_weight {tuple(gate_up_weight.shape)}, "
            "expected (experts, hidden, intermediate) for (experts, 2 * intermediate, hidden)"
        )
    if top_k_index.dim() != 2 or top_k_index.shape != top_k_weights.shape or hidden_states.shape[:1] != top_k_index.shape[:1]:
        raise LinearError(
            f"experts_mlp top_k_index: has the shape {tuple(top_k_index.shape)} for hidden_states {tuple(hidden_states.shape)} and "
            f"top_k_weights {tuple(top_k_weights.shape)}, expected (tokens, k) for both"
        )

    first = lambda rows, _, ends: grouped_linear(rows, gate_up_weight, ends=ends, options=options)
    second = lambda rows, _, ends: grouped_linear(rows, down_weight, ends=ends, options=options, activation=SWIGLU)
    return routed(hidden_states, top_k_index, top_k_weights, gate_up_weight.shape[0], first, second)

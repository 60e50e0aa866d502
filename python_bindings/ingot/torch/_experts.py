"""Mixtures of experts: rows of tokens go to their experts and come back, around two grouped products. Bits repeat, those of
gradients too: nothing is added in an order of chance."""

from __future__ import annotations

from typing import Callable, Dict, NamedTuple, Optional, Tuple

import torch

from ._checked_index import checked_index
from ._checks import SubjectOfExperts, check_bias_of_experts, check_dense, is_transformed, layer_error, refuse, refuse_transforms
from ._errors import LinearError
from ._experts_mlp import Rows, run_experts_mlp, stacked
from ._exported import is_exporting
from ._grouped_linear import check_options, grouped_linear
from ._module_calls import DelayedScales
from ._linear import LinearOptions, in_autocasts_dtype
from ._operators import HIGH_PRECISION


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


def _exports() -> bool:
    """A program takes derivatives itself, of what it sees; PyTorch 2.7's has none of an autograd.Function."""
    return torch.compiler.is_compiling() and is_exporting()


def _permuted(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return rows[order] if _exports() else _Permute.apply(rows, order, inverse)


def _dispatched(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, chosen: int) -> torch.Tensor:
    return rows[order // chosen] if _exports() else _Dispatch.apply(rows, order, inverse, chosen)


class _Order(NamedTuple):
    """The rows of all tokens, sorted by their experts."""

    of_rows: torch.Tensor  # the expert of each row; the number of experts for one that has none here
    order: torch.Tensor  # which of all choices each row is
    inverse: torch.Tensor  # which row each choice is
    ends: torch.Tensor  # int32: the row at which each expert's end
    weights: torch.Tensor  # (tokens, k), 0 for a choice that counts as none


def _wide(top_k_index: torch.Tensor) -> torch.Tensor:
    """In a dtype that holds the number of experts and that all operators take, as 8 bits and PyTorch's unsigned ones do not."""
    return top_k_index if top_k_index.dtype in (torch.int32, torch.int64) else top_k_index.long()


def _lacks_expert(top_k_index: torch.Tensor, experts: int) -> torch.Tensor:
    return (top_k_index < 0) | (top_k_index >= experts)


def _ordered(top_k_index: torch.Tensor, top_k_weights: torch.Tensor, experts: int, has_all: bool) -> _Order:
    lacks = _lacks_expert(top_k_index, experts)
    top_k_weights = top_k_weights.masked_fill(lacks, 0)
    top_k_index = top_k_index.clamp(0, experts - 1) if has_all else top_k_index.masked_fill(lacks, experts)
    # Of 16 bits: a radix sort takes a quarter of the passes that it takes for int64.
    of_rows, order = top_k_index.reshape(-1).to(torch.int16).sort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    numbers = torch.arange(experts, device=of_rows.device, dtype=of_rows.dtype)
    ends = torch.searchsorted(of_rows, numbers, right=True, out_int32=True)
    return _Order(of_rows, order, inverse, ends, top_k_weights)


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
    top_k_index = _wide(top_k_index)
    of_rows, order, inverse, ends, weights = _ordered(top_k_index, top_k_weights, experts, has_all)
    of_rows = of_rows.to(torch.int64)  # which tensors are indexed by
    # No product writes the rows of other ranks' experts, nor their gradients, and what a cast reads must be finite.
    lacking = None if has_all else (of_rows >= experts)[:, None]
    known = lambda rows: rows if lacking is None else rows.masked_fill(lacking, 0)
    hidden = known(first(known(_dispatched(hidden_states, order, inverse, chosen)), of_rows, ends))
    out = known(second(hidden, of_rows, ends))
    by_token = _permuted(out, inverse, order).view(tokens, chosen, out.shape[1])
    return (by_token * weights[..., None].to(out.dtype)).sum(1).to(hidden_states.dtype)


def _check_operands(operands: Dict[str, torch.Tensor]) -> None:
    device = operands["hidden_states"].device
    for name, operand in operands.items():
        check_dense("experts_mlp", name, operand)
        if operand.device != device:
            remedy = "load its values first" if operand.is_meta else "move one with .to()"
            raise LinearError(f"experts_mlp {name}: is on {operand.device} and hidden_states on {device}: {remedy}")
        if operand.dtype not in HIGH_PRECISION and name != "top_k_index":
            raise LinearError(f"experts_mlp {name}: is {operand.dtype}, expected float32, bfloat16 or float16")
    dtypes = operands["gate_up_weight"].dtype, operands["down_weight"].dtype
    if dtypes[0] != dtypes[1]:
        raise LinearError(f"experts_mlp down_weight: is {dtypes[1]}, but gate_up_weight is {dtypes[0]}: convert one with .to()")


def mlp_of_rows(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    gate_up_weight: torch.Tensor,
    down_weight: torch.Tensor,
    options: LinearOptions,
    fast_math: bool = False,
    has_all: bool = True,
    biases: Tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (None, None),
    activation: str = SWIGLU,
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """experts_mlp() without the checks of shapes; has_all: as routed() has it. biases: of gate_up and of down. gate_up_weight:
    stacked() says what else than (experts, 2 * hidden, K)."""
    operands = {"hidden_states": hidden_states, "top_k_index": top_k_index, "top_k_weights": top_k_weights}
    _check_operands({**operands, "gate_up_weight": gate_up_weight, "down_weight": down_weight})
    # Where gradients are off, too, _Permute is an autograd.Function.
    if is_transformed(hidden_states, top_k_weights, gate_up_weight, down_weight, *biases, records=True):
        refuse_transforms(SubjectOfExperts("experts", options))
    if _exports():  # an exported program has grouped layers
        if delayed is not None:  # scales of values that the router's weight is a factor of
            refuse(
                SubjectOfExperts("experts", options),
                'recipe: is "delayed", with which two grouped layers, as an exported program has them, would compute other values: '
                'export with "tensorwise"',
            )
        product = lambda rows, at, ends, **how: grouped_linear(
            rows, (stacked(gate_up_weight), down_weight)[at], ends=ends, options=options, bias=biases[at], **how
        )
        first = lambda rows, _, ends: product(rows, 0, ends)
        second = lambda rows, _, ends: product(rows, 1, ends, activation=activation)
        return routed(hidden_states, top_k_index, top_k_weights, gate_up_weight.shape[0], first, second, has_all)
    experts = down_weight.shape[0]
    top_k_index = _wide(top_k_index)
    _, order, inverse, ends, weights = _ordered(top_k_index, top_k_weights, experts, has_all)
    of_tokens = inverse.to(torch.int32)
    if not has_all:
        of_tokens = of_tokens.masked_fill(_lacks_expert(top_k_index, experts).reshape(-1), -1)
    rows = Rows((order // top_k_index.shape[1]).to(torch.int32), of_tokens, ends)
    by_row = _Permute.apply(weights.reshape(-1).float(), order, inverse)
    input = in_autocasts_dtype(hidden_states)
    arguments = input, by_row, gate_up_weight, down_weight, rows, options, activation, fast_math, has_all, biases[0], delayed
    finished = lambda output: _with_down_bias(output, top_k_index, weights, biases[1]).to(hidden_states.dtype)
    if torch.compiler.is_compiling():
        return finished(run_experts_mlp(*arguments))
    try:
        return finished(run_experts_mlp(*arguments))
    except RuntimeError as error:
        raise layer_error(error, SubjectOfExperts("experts", options).subject) from None


def _with_down_bias(
    output: torch.Tensor, top_k_index: torch.Tensor, weights: torch.Tensor, bias: Optional[torch.Tensor]
) -> torch.Tensor:
    """Adds each token's sum over its experts of weight * bias, as the product of the router's weights of all experts and their
    biases. weights: 0 for an index that counts as none."""
    if bias is None:
        return output
    experts = bias.shape[0]
    of_all = weights.new_zeros(weights.shape[0], experts).scatter_add(1, top_k_index.long().clamp(0, experts - 1), weights)
    return torch.addmm(output, of_all.to(output.dtype), bias.to(output.dtype))


def experts_mlp(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    gate_up_weight: torch.Tensor,
    down_weight: torch.Tensor,
    options: LinearOptions = LinearOptions("rowwise", name="experts"),
    fast_math: bool = False,
    *,
    gate_up_bias: Optional[torch.Tensor] = None,
    down_bias: Optional[torch.Tensor] = None,
    activation: str = SWIGLU,
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    """The gated MLP of each token's experts, in FP8: the sum over k of top_k_weights[:, k] * ((silu(gate) * up) @ down[e].T +
    down_bias[e]), where gate and up are the halves of hidden_states @ gate_up[e].T + gate_up_bias[e] and e is top_k_index[:, k].

    hidden_states: (tokens, hidden), float32, bfloat16 or float16. top_k_index, top_k_weights: (tokens, k), integers, as
    torch.topk() gives them, and the router's weights; an index that no expert has counts as none, or with INGOT_CHECK_EXPERTS=1 is
    an error unless it is below 0. gate_up_weight: (experts, 2 * intermediate, hidden), the rows of gate before those of up;
    down_weight: (experts, hidden, intermediate). Returns
    (tokens, hidden) in the dtype of hidden_states, under autocast too. options: the recipe, "tensorwise", "delayed", "rowwise" or
    "blockwise", keep_weight_codes, fast_gradients, and the name, whose layers are `<name>.gate_up` and `<name>.down`. fast_math: the
    activation uses the GPU's own exp, of which bfloat16 keeps all bits but rarely the last; on the CPU neither of the two fast
    ones changes anything. gate_up_bias (experts, 2 * intermediate) and down_bias (experts, hidden): of each expert, or none; the
    first is added within the product and rounded as grouped_linear() has it, the second by a product of the router's weights of
    all experts and the biases, which is another kernel. activation: an expression of x, the gate, and up (docs/pointwise.md), such
    as gpt-oss's. delayed: of the recipe "delayed", the scales of gate_up's and of down's experts, (2, 3, experts), which an
    ingot.nn.ExpertScales keeps. A weight's main_grad is float32 of its shape. Runs on the CPU and on Hopper's GPUs, there with hidden
    and intermediate sizes that are multiples of 16. Raises LinearError."""
    operands = {"hidden_states": hidden_states, "top_k_index": top_k_index, "top_k_weights": top_k_weights}
    for name, operand in {**operands, "gate_up_weight": gate_up_weight, "down_weight": down_weight}.items():
        check_dense("experts_mlp", name, operand)
    check_options("experts_mlp", options)
    if top_k_index.is_floating_point() or top_k_index.dtype is torch.bool:
        raise LinearError(f"experts_mlp top_k_index: is {top_k_index.dtype}, expected integers: torch.topk(scores, k).indices")
    if hidden_states.dim() != 2 or gate_up_weight.dim() != 3 or gate_up_weight.shape[2] != hidden_states.shape[1]:
        raise LinearError(
            f"experts_mlp gate_up_weight: has the shape {tuple(gate_up_weight.shape)} for hidden_states "
            f"{tuple(hidden_states.shape)}, expected (experts, 2 * intermediate, hidden) for (tokens, hidden)"
        )
    experts, both, hidden = gate_up_weight.shape
    if both % 2 != 0:
        raise LinearError(
            f"experts_mlp gate_up_weight: has the shape {tuple(gate_up_weight.shape)}, expected an even number of rows, (experts, "
            "2 * intermediate, hidden): those of gate, then of up"
        )
    if tuple(down_weight.shape) != (experts, hidden, both // 2):
        raise LinearError(
            f"experts_mlp down_weight: has the shape {tuple(down_weight.shape)} for gate_up_weight {tuple(gate_up_weight.shape)}, "
            "expected (experts, hidden, intermediate) for (experts, 2 * intermediate, hidden)"
        )
    if top_k_index.dim() != 2 or top_k_index.shape != top_k_weights.shape or hidden_states.shape[:1] != top_k_index.shape[:1]:
        raise LinearError(
            f"experts_mlp top_k_index: has the shape {tuple(top_k_index.shape)} for hidden_states {tuple(hidden_states.shape)} and "
            f"top_k_weights {tuple(top_k_weights.shape)}, expected (tokens, k) for both"
        )

    check_bias_of_experts("experts_mlp", "gate_up_bias", gate_up_bias, gate_up_weight)
    check_bias_of_experts("experts_mlp", "down_bias", down_bias, down_weight)
    if not isinstance(activation, str) or "up" not in activation:
        raise LinearError(f"experts_mlp activation: is {activation!r}, expected an expression of x and up, such as {SWIGLU!r}")
    top_k_index = checked_index(top_k_index, experts, options)
    operands = hidden_states, top_k_index, top_k_weights, gate_up_weight, down_weight
    return mlp_of_rows(*operands, options, fast_math, True, (gate_up_bias, down_bias), activation, delayed)

"""Linear layers whose weight is stored as codes and scale_inv: ingot.nn's WeightOnlyLinear and FrozenFloat8Linear below their
modules, and in exported programs."""

from __future__ import annotations

from typing import Optional

import torch

from . import _codes
from . import _operators as ops
from . import _split_operators as split_ops
from . import _weight_operators as weight_ops
from ._checks import called, refuse_double_backward

# ---- activations in 16 bits ----


class _WeightOnly(torch.autograd.Function):
    """The gradient of the input is a product with the decoded weight: slow, but adapters next to the layer need it."""

    @staticmethod
    def forward(ctx, input, weight, scale_inv, bias, layer, plan, constant):
        ctx.layer = layer
        ctx.save_for_backward(weight, scale_inv)
        return _multiply(input, weight, scale_inv, bias, plan, constant)

    @staticmethod
    def backward(ctx, grad_output):
        weight, scale_inv = ctx.saved_tensors
        name, form, out_features, in_features = ctx.layer
        codes = _codes.unpacked(weight, form, name, out_features, in_features)
        values = _codes.dequantized(codes, scale_inv, form.dtype, form.scale, in_features).to(grad_output.dtype)
        grad_input = grad_output @ values if ctx.needs_input_grad[0] else None
        grad_bias = grad_output.reshape(-1, out_features).sum(0) if ctx.needs_input_grad[3] else None
        return grad_input, None, None, grad_bias, None, None, None


def _multiply(input, weight, scale_inv, bias, plan: int, constant: int) -> torch.Tensor:
    return weight_ops.weight_only_linear(input, weight, scale_inv, bias, plan, constant)


def records(input: torch.Tensor, bias: Optional[torch.Tensor]) -> bool:
    """Will there be a backward? The weight has no gradient."""
    return torch.is_grad_enabled() and (input.requires_grad or (bias is not None and bias.requires_grad))


def run_weight_only(input, weight, scale_inv, bias, layer, plan: Optional[int] = None, constant: int = 0) -> torch.Tensor:
    """layer: its name, the weight's format, out_features and in_features. plan: the number of its plan, if that is known.
    constant: 1 if the device has written the weight, and kernels may read it before the work ahead has ended."""
    if plan is None:
        plan = weight_ops.weight_plan(*layer).number
    if records(input, bias):
        return _WeightOnly.apply(input, weight, scale_inv, bias, layer, plan, constant)
    return _multiply(input, weight, scale_inv, bias, plan, constant)


# ---- activations in FP8 ----


class _Frozen(torch.autograd.Function):
    """Backward gives the gradient of the input, from the codes that forward read; nothing else is kept."""

    @staticmethod
    def forward(ctx, input, codes, scale_inv, bias, plan, subject):
        ctx.plan, ctx.subject = plan, subject
        ctx.save_for_backward(codes, scale_inv)
        return float8_forward(input, codes, scale_inv, bias, plan)[0]

    @staticmethod
    def backward(ctx, grad_output):
        refuse_double_backward(ctx.subject)
        codes, scale_inv = ctx.saved_tensors
        grad_input = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input, *_ = float8_backward(ctx.subject, grad_output, None, codes, scale_inv, None, ctx.plan, ops.INPUT)
        if ctx.needs_input_grad[3]:
            grad_bias = grad_output.reshape(-1, grad_output.shape[-1]).sum(0)
        return grad_input, None, None, grad_bias, None, None


def float8_forward(input, codes, scale_inv, bias, plan: int, input_plan: int = -1, keep: int = 0):
    """Returns the output, and what is saved for the gradient of the weight. input_plan: as plan_of() returns it."""
    if input_plan >= 0:
        return split_ops.forward_float8(input, codes, scale_inv, bias, input_plan, plan, keep)
    return ops.linear_forward(input, codes, bias, plan, keep, weight_scale_inv=scale_inv)[:2]


def float8_backward(subject: str, grad_output, input, codes, scale_inv, saved, plan: int, wants: int):
    """Returns the gradients of input, weight and bias."""
    arguments = (grad_output, input, codes, saved, None, plan, wants)
    return called(subject, ops.linear_backward, *arguments, weight_scale_inv=scale_inv)[:3]


@torch.compiler.assume_constant_result
def _plan_of_trace(*arguments) -> int:
    return ops.frozen_plan(None, *arguments)


def run_frozen(input, codes, scale_inv, bias, name: str, key) -> torch.Tensor:
    """key: the recipe, and the codes' format."""
    sizes = ops.fixed_sizes(codes) if torch.compiler.is_compiling() else codes.shape
    facts = (*key, *sizes, input.dtype, None if bias is None else bias.dtype)
    if torch.compiler.is_compiling():
        # Without the name, which a compiler would guard: equal layers share a graph.
        plan, subject = _plan_of_trace(*facts), "FrozenFloat8Linear"
    else:
        plan, subject = ops.frozen_plan(name, *facts), f'FrozenFloat8Linear "{name}"'
    if torch.is_grad_enabled():
        return _Frozen.apply(input, codes, scale_inv, bias, plan, subject)
    return float8_forward(input, codes, scale_inv, bias, plan)[0]

"""What linear() runs in eager mode for tensors like those of an earlier call: with as little Python as PyTorch allows,
because a small layer waits for the host. The checks are not repeated: a table finds the plan by everything that they
look at, and linear() repeats a call that the operators refuse, so that its checks say why."""

from __future__ import annotations

import math
from typing import NoReturn, Optional

import torch
from torch.autograd import forward_ad

from . import _operators as ops
from ._errors import LinearError, from_operator

# Without the Python frame of torch.ops' own objects, which are for what a compiler traces.
_forward = ops.linear_forward._op
_backward = ops.linear_backward._op
# What torch.autograd.Function.apply() asks before it does its work.
_transforms_are_active = torch._C._are_functorch_transforms_active


def refuse_second_derivative(name: Optional[str]) -> NoReturn:
    subject = "linear" if name is None else f'linear "{name}"'
    raise LinearError(
        f'{subject} backward: the gradient of an FP8 GEMM has no gradient itself (create_graph=True): use '
        "torch.nn.functional.linear for this layer"
    )


def wants_of(needs) -> int:
    """Returns the bits of the gradients of input, weight and bias; needs: a function's ctx.needs_input_grad."""
    return (ops.INPUT if needs[0] else 0) | (ops.WEIGHT if needs[1] else 0) | (ops.BIAS if needs[2] else 0)


class EagerPlan:
    """A plan for tensors that have passed the checks, and what its calls do by the gradients that are wanted."""

    __slots__ = ("name", "number", "reads_input", "reads_weight", "device_type", "most_elements", "modes", "gathered")

    def __init__(self, name: str, plan: tuple, input: torch.Tensor, gathered: bool, of_any_tokens: bool) -> None:
        """plan: as plan_of() returns it. gathered: has FSDP gathered the weight in FP8? of_any_tokens: is the plan the same for many
        tokens? Where backward reads the input, _Linear frees that of many tokens earlier."""
        self.name, self.gathered = name, gathered
        self.number, self.reads_input, self.reads_weight, _ = plan
        self.device_type = input.device.type
        is_any = of_any_tokens and not self.reads_input
        self.most_elements = math.inf if is_any else ops.MANY_TOKENS * input.shape[-1]
        self.modes: dict[tuple[bool, ...], tuple] = {}

    def add_mode(self, needs: tuple[bool, ...]) -> tuple:
        """For an autograd.Function's ctx.needs_input_grad: the plan's number, `keep` of forward and `wants` of backward,
        whether backward needs the codes, the input and the weight besides the saved bytes, whether that is gathered, and the
        layer's name."""
        input, weight = needs[:2]
        codes = input and not self.reads_weight
        mode = self.modes[needs] = (
            self.number,
            (ops.KEEP_CODES if codes else 0) | (ops.KEEP_SAVED if weight else 0),
            wants_of(needs),
            codes,
            weight and self.reads_input,
            input and self.reads_weight,
            self.gathered,
            self.name,
        )
        return mode


class _EagerLinear(torch.autograd.Function):
    """One operator forward and one backward, as _Linear of _linear.py."""

    @staticmethod
    def forward(ctx, input, weight, bias, plan):
        needs = ctx.needs_input_grad
        ctx.mode = mode = plan.modes.get(needs) or plan.add_mode(needs)
        number, keep, _, needs_codes, needs_input, needs_weight, gathered, _ = mode
        if gathered and weight.has(False):  # as its class gives them when PyTorch asks it
            read, scale_inv = weight.read_by(False)
            output, saved, codes, _ = _forward(input, read, bias, number, keep, weight_scale_inv=scale_inv)
        else:
            output, saved, codes, _ = _forward(input, weight, bias, number, keep)
        # As many tensors as _Linear saves, and the same: activation checkpointing may recompute a call of that by this.
        if needs_codes and not needs_input:
            ctx.save_for_backward(saved, codes)
        else:
            ctx.save_for_backward(saved, codes, input if needs_input else None, weight if needs_weight else None)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            refuse_second_derivative(ctx.mode[-1])
        number, _, wants, needs_codes, needs_input, _, gathered, _ = ctx.mode
        if needs_codes and not needs_input:
            saved, codes = ctx.saved_tensors
            input = weight = None
        else:
            saved, codes, input, weight = ctx.saved_tensors
        if torch.compiler.is_compiling():
            grads = ops.linear_backward(grad_output, input, weight, saved, codes, number, wants)
        else:
            try:
                if gathered and weight is not None and weight.has(True):
                    read, scale_inv = weight.read_by(True)
                    grads = _backward(grad_output, input, read, saved, codes, number, wants, weight_scale_inv=scale_inv)
                else:
                    grads = _backward(grad_output, input, weight, saved, codes, number, wants)
            except RuntimeError as error:
                raise from_operator(error) from None
        return grads  # the fourth, the maxima of given scales, is None, as the gradient of the plan


# Without torch.autograd.Function.apply()'s own Python, which prepares the arguments for torch.func's transforms.
_apply = super(torch.autograd.Function, _EagerLinear).apply


def eager_key(input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> tuple:
    """Everything that linear()'s checks and its choice of a plan look at, except the shape of the input."""
    grads = torch.is_grad_enabled()
    of_others = (
        type(weight),
        weight.shape,
        weight.dtype,
        weight.device,
        input.dtype,
        input.device,
        grads and input.requires_grad,
        grads and weight.requires_grad,
    )
    return of_others if bias is None else (*of_others, bias.shape, bias.dtype, bias.device)


def note_eager(
    plans: dict[tuple, EagerPlan], input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], plan: EagerPlan
) -> None:
    """Notes a call that succeeded, for run_eager()."""
    if input.device.type != "meta" and input.numel() < plan.most_elements:
        plans[eager_key(input, weight, bias)] = plan


def run_eager(
    plans: dict[tuple, EagerPlan], input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]
) -> Optional[torch.Tensor]:
    """Returns what linear() returns, or None where linear() itself must be called. Not for a compiler."""
    try:
        plan = plans.get(eager_key(input, weight, bias))
        if (
            plan is None
            or input.numel() >= plan.most_elements
            or (
                torch.is_autocast_enabled(plan.device_type)
                and torch.get_autocast_dtype(plan.device_type) != input.dtype
            )
            or _transforms_are_active()
            or getattr(weight, "main_grad", None) is not None
        ):
            return None
        if torch.is_grad_enabled():
            return _apply(input, weight, bias, plan)
        if forward_ad._current_level >= 0:
            return None
        if plan.gathered and weight.has(False):
            read, scale_inv = weight.read_by(False)
            return _forward(input, read, bias, plan.number, 0, weight_scale_inv=scale_inv)[0]
        return _forward(input, weight, bias, plan.number, 0)[0]
    except (AttributeError, RuntimeError):
        return None  # linear() says what is wrong

"""linear(): torch.nn.functional.linear with its GEMMs in FP8, for autograd, compilers and checkpointing."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch
from torch.fx.experimental import symbolic_shapes

from . import _operators as ops
from . import _split_operators as split_ops
from ._checks import check_layer, is_transformed, layer_error, refuse, refuse_transforms
from ._eager_linear import EagerPlan, note_eager, refuse_second_derivative, run_eager, wants_of
from ._errors import from_operator
from ._exported import export_layer, is_exporting
from ._fsdp_units import frees_weights, frees_weights_of_trace
from ._gathered_weight import is_gathered
from ._main_grad import Asks, asks_for, converted, dummy_gradient, main_grad_of
from ._schemas import ASKS_ENGINE

RECIPES = ("high_precision", "tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")
"""The recipes of functions and modules (docs/layers.md); modules also take "delayed"."""
# Asked when this is imported: older versions of PyTorch cannot trace the question.
_AUTOCAST_DEVICES = tuple(
    device for device in ("cpu", "cuda", "mps", "xpu", "hpu") if torch.amp.is_autocast_available(device)
)


def in_autocasts_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, in autocast's dtype if autocast is on for its device. float64 and integers stay as they are,
    as in PyTorch."""
    device = tensor.device.type
    if device in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device) and tensor.dtype in ops.HIGH_PRECISION:
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


def check_recipe(subject: str, recipe: str) -> None:
    if recipe not in RECIPES and recipe != "delayed":
        refuse(
            subject,
            f"recipe: {recipe!r} is not one of {', '.join(RECIPES)}, and for experts delayed",
        )


if hasattr(symbolic_shapes, "guard_or_false"):

    def _is_known(fact) -> bool:
        """In a graph: one of sizes that are data (an expert's tokens) may be unknown, and is false then."""
        return symbolic_shapes.guard_or_false(fact)

else:  # PyTorch 2.7

    def _is_known(fact) -> bool:
        return True if fact else False


def casts_weight_again(keep: Optional[bool], input: torch.Tensor, needs_codes: bool) -> bool:
    """Does backward cast the weights again, or does forward keep their codes for it? `keep` is what the layer's options
    say; None leaves it to the tokens. Either gives the same bits. needs_codes: is a gradient wanted that
    is multiplied by a weight?"""
    if not needs_codes:
        return False
    if keep is not None:
        return not keep
    if torch.compiler.is_compiling():
        # A program is for any number of tokens, and its layers decide it when they run.
        if is_exporting():
            return False
        return frees_weights_of_trace() or _is_known(input.numel() >= ops.MANY_TOKENS * input.size(-1))
    return input.numel() >= ops.MANY_TOKENS * input.size(-1) or frees_weights()


@dataclasses.dataclass(frozen=True)
class LinearOptions(ops.HoldsPlans):
    """How linear() computes.

    recipe: one of RECIPES: which GEMMs are in FP8, and how their operands are scaled (docs/layers.md); for experts also
    "delayed".
    name: the layer's name in messages.
    keep_weight_codes: forward keeps the weight's FP8 codes for backward, 2 bytes for each of its elements. False: it
    keeps none, and backward casts the weight again, which must not have changed since: experts_mlp() keeps the maxima of
    its values. None: they are kept for fewer
    than 4096 tokens, for which the cast would be felt, unless FSDP2 frees weights after forward. The results are the same
    bits.
    fast_gradients: the GEMMs of the gradients sum in the tensor core throughout, as forward's does (use_fast_accum), and as
    torchao's mixtures of experts do in all GEMMs; otherwise they add 128 products at a time in float32. For experts:
    grouped_linear() and experts_mlp(). ingot.float8's linear layers have it in torchao's config.
    """

    recipe: str = "tensorwise"
    name: str = "linear"
    keep_weight_codes: Optional[bool] = None
    fast_gradients: bool = False

    def __post_init__(self) -> None:
        subject = f'linear "{self.name}"'
        check_recipe(subject, self.recipe)
        for name, value in (("subject", subject), ("_plans", ops.PlanTable()), ("_eager_plans", ops.PlanTable())):
            object.__setattr__(self, name, value)


@torch.compiler.assume_constant_result
def _plan_of_trace(config, out_features, in_features, *rest):
    facts = ops.add_plan(config, None, in_features, out_features, *rest)
    return facts.number, facts.reads_input, facts.reads_weight, split_ops.add_input_plan(facts)


def plan_of(config, name, plans: ops.PlanTable, input, weight, bias, weight_again: bool = False):
    """(its number, does backward read the input again, and the weight?, the plan of the input in a graph, else -1). config
    and weight_again are as add_plan()'s, and `plans` belongs to this config and name."""
    trains_weight = torch.is_grad_enabled() and weight.requires_grad
    bias_dtype = None if bias is None else bias.dtype
    key = (weight.shape, input.dtype, weight.dtype, bias_dtype, trains_weight, weight_again)
    if torch.compiler.is_compiling():
        # Without the name, which a compiler would guard: equal layers share a graph.
        return _plan_of_trace(config, *ops.fixed_sizes(weight), *key[1:])
    plan = plans.get(key)
    if plan is None:
        facts = ops.add_plan(config, name, weight.shape[1], weight.shape[0], *key[1:])
        plan = plans[key] = (facts.number, facts.reads_input, facts.reads_weight, -1)
    return plan


def _forward(input, weight, bias, plan, input_plan, keep):
    """As linear_forward. For a compiler the casts and the GEMM are separate operators (input_plan >= 0)."""
    if input_plan >= 0:
        return split_ops.forward(input, weight, bias, input_plan, plan, keep)
    return ops.linear_forward(input, weight, bias, plan, keep)[:3]


class _Linear(torch.autograd.Function):
    """One operator forward and one backward. Forward keeps the operands' codes for backward, not the operands."""

    @staticmethod
    def forward(ctx, input, weight, bias, name, plan, reads_input, reads_weight, input_plan):
        ctx.name = name
        needs = ctx.needs_input_grad
        keep = (ops.KEEP_CODES if needs[0] and not reads_weight else 0) | (ops.KEEP_SAVED if needs[1] else 0)
        output, saved, codes = _forward(input, weight, bias, plan, input_plan, keep)
        ctx.plan = plan
        ctx.wants = wants_of(needs)
        keeps_input = needs[1] and reads_input
        ctx.lets_go = keeps_input and needs[0] and input.numel() >= ops.MANY_TOKENS * input.size(-1)
        ctx.save_for_backward(
            saved,
            codes if keep & ops.KEEP_CODES else None,
            input if keeps_input else None,
            weight if needs[0] and reads_weight else None,
        )
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            refuse_second_derivative(ctx.name)
        return (*_gradients(ctx, grad_output, None, ctx.wants), *(None,) * 5)


class _LinearIntoMainGrad(torch.autograd.Function):
    """_Linear that adds the weight's gradient to main_grad, within its GEMM. The weight gets no
    gradient, or a dummy one where Megatron's hooks wait for it."""

    @staticmethod
    def forward(ctx, input, weight, bias, name, plan, reads_input, reads_weight, input_plan, main_grad):
        ctx.main_grad = main_grad  # not saved as autograd does: accumulation changes it before backward
        ctx.weight = None if torch.compiler.is_compiling() else weight
        return _Linear.forward(ctx, input, weight, bias, name, plan, reads_input, reads_weight, input_plan)

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            refuse_second_derivative(ctx.name)
        wants, main_grad = ctx.wants, ctx.main_grad
        asks = asks_for(ctx, 1, ctx.weight)
        if asks is Asks.RETURNS:
            main_grad = None
        elif asks is Asks.NOTHING:
            wants, main_grad = wants & ~ops.WEIGHT, None
        grad_input, grad_weight, grad_bias = _gradients(ctx, grad_output, main_grad, wants)
        if main_grad is not None and wants & ops.WEIGHT:
            grad_weight = dummy_gradient(ctx.weight)
        return (grad_input, grad_weight, grad_bias, *(None,) * 6)


def _gradients(ctx, grad_output, main_grad, wants):
    """Returns the gradients of input, weight and bias, None for those that are not wanted. With a main_grad, the
    weight's gradient is added to it and is None here."""
    saved, codes, input, weight = ctx.saved_tensors
    plan = ctx.plan
    if torch.compiler.is_compiling():
        wants = wants if main_grad is None else wants | ASKS_ENGINE
        return _backward(grad_output, input, weight, saved, codes, main_grad, plan, wants)
    try:
        if not ctx.lets_go or not wants & ops.INPUT or not wants & ops.WEIGHT:
            return _backward(grad_output, input, weight, saved, codes, main_grad, plan, wants)
        # The input is as large as its gradient. Once the gradients that it is needed for are there it goes, unless the
        # graph is retained, so that no step needs the memory of both.
        ctx.maybe_clear_saved_tensors()
        _, grad_weight, grad_bias = _backward(
            grad_output, input, weight, saved, codes, main_grad, plan, wants & ~ops.INPUT
        )
        del input
        grad_input = ops.linear_backward(grad_output, None, weight, None, codes, plan, ops.INPUT)[0]
        return grad_input, grad_weight, grad_bias
    except RuntimeError as error:
        raise from_operator(error) from None


def _backward(grad_output, input, weight, saved, codes, main_grad, plan, wants):
    arguments = (grad_output, input, weight, saved, codes, plan, wants)
    if main_grad is None:
        return ops.linear_backward(*arguments)[:3]
    return ops.linear_backward_in_place(*arguments, main_grad=main_grad)[:3]


def _run(input, weight, bias, name, plan, reads_input, reads_weight, input_plan, main_grad):
    if main_grad is not None and torch.is_grad_enabled() and weight.requires_grad:
        return _LinearIntoMainGrad.apply(
            input, weight, bias, name, plan, reads_input, reads_weight, input_plan, main_grad
        )
    if torch.is_grad_enabled():
        return _Linear.apply(input, weight, bias, name, plan, reads_input, reads_weight, input_plan)
    return _forward(input, weight, bias, plan, input_plan, 0)[0]


def run_linear(
    input, weight, bias, config, name: str, plans: ops.PlanTable, main_grad=None, weight_again: bool = False
) -> torch.Tensor:
    """linear() without its checks. `config` and weight_again are as add_plan()'s, and `plans` belongs to this config and
    name. The gradient of the weight is added to main_grad if there is one."""
    if torch.compiler.is_compiling():
        if is_exporting():
            return export_layer("linear", (input, weight, bias), config=config, name=name)[0]
        plan = plan_of(config, None, plans, input, weight, bias, weight_again)
        return _run(input, weight, bias, None, *plan, main_grad)
    try:
        plan = plan_of(config, name, plans, input, weight, bias, weight_again)
        return _run(input, weight, bias, name, *plan, main_grad)
    except RuntimeError as error:
        raise layer_error(error, f'linear "{name}"') from None


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    options: LinearOptions = LinearOptions(),
) -> torch.Tensor:
    """Returns input @ weight.T + bias, shape (..., out_features), in the input's dtype or autocast's.

    input: (..., in_features), float32, float16 or bfloat16, of any strides. weight: (out_features, in_features), of
    those dtypes; one in another dtype than the input (float32 master weights) is cast straight to FP8, or to the
    input's dtype where a GEMM is in high precision. bias: (out_features,). Gradients have the dtypes of their tensors.

    Backward keeps FP8 codes of the input in place of the tensor where the recipe allows it, and of the weight codes or
    nothing (LinearOptions.keep_weight_codes); under no_grad nothing is kept. A weight with an attribute main_grad, a
    tensor of its shape of float32, float16 or bfloat16, gets no gradient: backward adds it to main_grad, as Megatron's
    gradient_accumulation_fusion does. Raises LinearError, an ingot.Error that names the layer.
    """
    if not torch.compiler.is_compiling() and isinstance(input, torch.Tensor):
        output = run_eager(options._eager_plans, input, weight, bias)
        if output is not None:
            return output
    check_layer(options, input, weight, bias)
    if is_transformed(input, weight, bias):
        refuse_transforms(options)
    given = input, weight
    main_grad = main_grad_of(weight, options)
    input = in_autocasts_dtype(input)
    if options.fast_gradients:
        refuse(options, "fast_gradients: is for experts: a linear layer has it by ingot.float8 and torchao's config")
    if options.recipe == "delayed":
        refuse(options, 'recipe: is "delayed", whose scales have a state, which a linear layer has in the modules of ingot.nn')
    if options.recipe == "high_precision":
        weight = converted(weight, input.dtype)
    again = is_gathered(weight) or casts_weight_again(options.keep_weight_codes, input, input.requires_grad)
    output = run_linear(input, weight, bias, options.recipe, options.name, options._plans, main_grad, again)
    is_plain = input is given[0] and weight is given[1] and main_grad is None
    if is_plain and not torch.compiler.is_compiling():
        plan, gathered = plan_of(options.recipe, options.name, options._plans, input, weight, bias, again), is_gathered(weight)
        note_eager(options._eager_plans, input, weight, bias, EagerPlan(options.name, plan, input, gathered, gathered))
    return output

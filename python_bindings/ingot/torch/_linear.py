"""linear(): torch.nn.functional.linear with its GEMMs in FP8, for autograd, compilers and checkpointing."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from . import _operators as ops
from . import _split_operators as split_ops
from ._errors import LinearError, from_operator

RECIPES = ("high_precision", "tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")
_DEVICES = ("cpu", "cuda", "meta")
# Asked when this is imported: older versions of PyTorch cannot trace the question.
_AUTOCAST_DEVICES = tuple(
    device for device in ("cpu", "cuda", "mps", "xpu", "hpu") if torch.amp.is_autocast_available(device)
)


def in_autocasts_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in autocast's dtype if autocast is on for its device."""
    device = tensor.device.type
    if device in _AUTOCAST_DEVICES and torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


@dataclasses.dataclass(frozen=True)
class LinearOptions:
    """How linear() computes.

    recipe: one of RECIPES: which GEMMs are in FP8, and how their operands are scaled (docs/layers.md).
    name: the layer's name in messages.
    """

    recipe: str = "tensorwise"
    name: str = "linear"

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise LinearError(
                f'linear "{self.name}" recipe: {self.recipe!r} is none of {", ".join(RECIPES)}; delayed scales have a '
                "state, which ingot.float8's layers keep"
            )
        object.__setattr__(self, "_plans", ops.PlanTable())

    def __reduce__(self):
        """Copies and pickles have no plans: their numbers are of this process."""
        return LinearOptions, (self.recipe, self.name)


def _refuse(options: LinearOptions, what: str) -> None:
    raise LinearError(f'linear "{options.name}" {what}')


def _check(input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], options: LinearOptions) -> None:
    if weight.dim() != 2:
        _refuse(options, f"weight: has shape {tuple(weight.shape)}, expected (out_features, in_features)")
    if input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        _refuse(options, f"input: has shape {tuple(input.shape)}, expected (..., {weight.shape[1]})")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        _refuse(options, f"bias: has shape {tuple(bias.shape)}, expected ({weight.shape[0]},)")
    if input.device.type not in _DEVICES:
        _refuse(options, f"input: is on {input.device}, but Ingot computes on the CPU and on CUDA: move it with .to()")
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype not in ops.HIGH_PRECISION:
            _refuse(options, f"{name}: is {tensor.dtype}, expected float32, float16 or bfloat16: convert it with .to()")
        if tensor.device != input.device:
            _refuse(options, f"{name}: is on {tensor.device} and the input on {input.device}: move one with .to()")


@torch.compiler.assume_constant_result
def _plan_of_trace(config, name, out_features, in_features, input_dtype, weight_dtype, bias_dtype, trains_weight):
    facts = ops.add_plan(config, name, in_features, out_features, input_dtype, weight_dtype, bias_dtype, trains_weight)
    return facts.number, facts.reads_input, facts.reads_weight, split_ops.add_input_plan(facts)


def _forward(input, weight, bias, plan, input_plan, keep):
    """As linear_forward. For a compiler the casts and the GEMM are operators of their own (input_plan >= 0)."""
    if input_plan >= 0:
        return split_ops.forward(input, weight, bias, input_plan, plan, keep)
    if bias is None:
        return ops.linear_forward(input, weight, plan, keep)
    return ops.linear_forward_bias(input, weight, bias, plan, keep)


class _Linear(torch.autograd.Function):
    """One operator forward and one backward. Forward keeps the operands' codes for backward, not the operands."""

    @staticmethod
    def forward(ctx, input, weight, bias, plan, reads_input, reads_weight, input_plan):
        needs = ctx.needs_input_grad
        keep = (ops.INPUT if needs[0] and not reads_weight else 0) | (ops.WEIGHT if needs[1] else 0)
        output, saved, codes = _forward(input, weight, bias, plan, input_plan, keep)
        ctx.plan = plan
        ctx.wants = (ops.INPUT if needs[0] else 0) | (ops.WEIGHT if needs[1] else 0)
        if bias is not None and needs[2]:
            ctx.wants |= ops.BIAS
        # What the plan does not read again is not kept: the bytes that are saved stand in its place.
        ctx.save_for_backward(
            saved,
            codes if keep & ops.INPUT else None,
            input if needs[1] and reads_input else None,
            weight if needs[0] and reads_weight else None,
        )
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if torch.is_grad_enabled():
            raise LinearError(
                "linear: the gradient of an FP8 GEMM has no gradient itself (create_graph=True): use "
                "torch.nn.functional.linear for this layer"
            )
        saved, codes, input, weight = ctx.saved_tensors
        codes = saved if codes is None else codes
        input = saved if input is None else input
        weight = codes if weight is None else weight
        wants = ctx.wants
        if torch.compiler.is_compiling():
            grads = ops.linear_backward(grad_output, input, weight, saved, codes, ctx.plan, wants)
        else:
            try:
                grads = ops.linear_backward(grad_output, input, weight, saved, codes, ctx.plan, wants)
            except RuntimeError as error:
                raise from_operator(error) from None
        return (
            grads[0] if wants & ops.INPUT else None,
            grads[1] if wants & ops.WEIGHT else None,
            grads[2] if wants & ops.BIAS else None,
            None,
            None,
            None,
            None,
        )


def _run(input, weight, bias, plan, reads_input, reads_weight, input_plan=-1):
    if torch.is_grad_enabled():
        return _Linear.apply(input, weight, bias, plan, reads_input, reads_weight, input_plan)
    return _forward(input, weight, bias, plan, input_plan, 0)[0]


def run_linear(input, weight, bias, config, name: str, plans: ops.PlanTable) -> torch.Tensor:
    """linear() without its checks. `config` is as add_plan()'s, and `plans` belongs to this config and name."""
    trains_weight = torch.is_grad_enabled() and weight.requires_grad
    bias_dtype = None if bias is None else bias.dtype
    if torch.compiler.is_compiling():
        out_features, in_features = weight.shape
        facts = _plan_of_trace(
            config, name, out_features, in_features, input.dtype, weight.dtype, bias_dtype, trains_weight
        )
        return _run(input, weight, bias, *facts)
    key = (weight.shape, input.dtype, weight.dtype, bias_dtype, trains_weight)
    plan = plans.get(key)
    try:
        if plan is None:
            facts = ops.add_plan(config, name, weight.shape[1], weight.shape[0], *key[1:])
            plan = plans[key] = (facts.number, facts.reads_input, facts.reads_weight)
        return _run(input, weight, bias, *plan)
    except RuntimeError as error:
        if torch._C._functorch.maybe_current_level() is not None:
            raise LinearError(
                f'linear "{name}" cannot run under torch.func transforms (vmap, grad): give it the whole batch, which '
                "may have any rank"
            ) from None
        raise from_operator(error) from None


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

    Backward keeps FP8 codes of input and weight in place of the tensors where the recipe allows it; under no_grad
    nothing is kept. Raises LinearError, an ingot.Error that names the layer.
    """
    _check(input, weight, bias, options)
    input = in_autocasts_dtype(input)
    if options.recipe == "high_precision" and weight.dtype != input.dtype:
        weight = weight.to(input.dtype)
    return run_linear(input, weight, bias, options.recipe, options.name, options._plans)

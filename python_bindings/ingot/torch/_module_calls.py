"""What the functions of modules made of several parts share: their norm's options, the plan of a call, and how a call
runs."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from .. import _core
from .._core import Error
from . import _module_operators as ops
from ._checks import layer_error, refuse
from ._errors import LinearError
from ._linear import casts_weight_again
from ._main_grad import dummy_gradient
from ._module_operators import Layer, Norm

_ADD = {"norm_linear": ops.add_norm_linear, "mlp": ops.add_mlp, "shared_linear": ops.add_shared_linear}
_ADD["gated_linear"] = ops.add_gated_linear


@dataclasses.dataclass(frozen=True)
class NormOptions:
    """A norm in front of a layer, over its input's last dimension.

    kind: "layer" or "rms". eps: is added to the variance, or to the mean square; None is the epsilon of the input's
    dtype, as torch.nn.RMSNorm has it. zero_centred: the norm multiplies by its weight + 1.
    """

    kind: str = "rms"
    eps: Optional[float] = 1e-5
    zero_centred: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("layer", "rms"):
            raise LinearError(f'norm kind: {self.kind!r} is none of "layer", "rms"')


def norm_of(options: Optional[NormOptions]) -> Optional[Norm]:
    if options is None:
        return None
    return Norm(options.kind, None if options.eps is None else repr(float(options.eps)), options.zero_centred)


def activation_text(activation: str, gated: bool = False) -> str:
    """The expression that a function's name is short for: silu is silu(x), or gated silu(x) * up."""
    if not activation.isidentifier() or activation == "x":
        return activation
    return f"{activation}(x) * up" if gated else f"{activation}(x)"


def check_activation(subject: str, activation: str) -> None:
    """Of a layer's output: an expression of x."""
    _named(_core.torch_check_activation, subject, activation)


def check_mlp_activation(subject: str, activation: str, gated: bool) -> None:
    """Between two layers: an expression of x, and gated of x and up."""
    if _named(_core.torch_check_mlp_activation, subject, activation) != gated:
        what = "has no `up`, which a gated MLP multiplies" if gated else "has `up`, which only a gated MLP has"
        refuse(subject, f"activation: {activation!r} {what}: change it, or gated")


def _named(function, *arguments):
    try:
        return function(*arguments)
    except Error as error:
        raise LinearError(str(error)) from None


def weight_of(weight: torch.Tensor, input: torch.Tensor, recipe: str) -> torch.Tensor:
    """In high precision both operands of a GEMM have one dtype."""
    return weight.to(input.dtype) if recipe == "high_precision" and weight.dtype != input.dtype else weight


def layer_of(weight: torch.Tensor, bias: Optional[torch.Tensor]) -> Layer:
    return Layer(weight.shape[0], weight.shape[1], weight.dtype, None if bias is None else bias.dtype)


@torch.compiler.assume_constant_result
def _plan_of_trace(family, *arguments):
    return _ADD[family](*arguments)


def run(family: str, function, forward, options, input, gamma, tensors, layers, trains_weight: bool, main_grads):
    """Runs an operator with its plan: function.apply(*tensors, plan, reads, subject, *main_grads) where gradients may be
    wanted, else forward(*tensors, plan). `options` has the plans and what is fixed of them; main_grads are those of the
    weights, or None for each that has none."""
    affine = gamma is not None
    needs_codes = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    again = casts_weight_again(options.keep_weight_codes, input, needs_codes)
    fixed = (options.subject, options._names, options.recipe, options._activation, options._norm)
    subject = options.subject
    if torch.compiler.is_compiling():
        plan, reads = _plan_of_trace(family, *fixed, affine, input.dtype, trains_weight, layers, again)
        if torch.is_grad_enabled():
            return function.apply(*tensors, plan, reads, subject, *main_grads)
        return forward(*tensors, plan)
    key = (affine, input.dtype, trains_weight, layers, again)
    try:
        plan = options._plans.get(key)
        if plan is None:
            plan = options._plans[key] = _named(_ADD[family], *fixed, *key)
        if torch.is_grad_enabled():
            return function.apply(*tensors, *plan, subject, *main_grads)
        return forward(*tensors, plan[0])
    except RuntimeError as error:
        raise layer_error(error, subject) from None


def note_main_grads(ctx, weights, main_grads) -> None:
    """For gradients(): the weights, and the main_grad of each, or None."""
    # Not saved as autograd does: accumulation changes them before backward.
    ctx.main_grads = None if all(each is None for each in main_grads) else main_grads
    ctx.weights = None if torch.compiler.is_compiling() else weights


def gradients(ctx, operator, into, arguments, at):
    """The results of a backward's operator, or, where weights have a main_grad, those of `into`, which adds their
    gradients to it. Then these weights, the places of whose gradients are `at`, get none but a dummy."""
    if ctx.main_grads is None:
        return _run_backward(ctx.subject, operator, *arguments, ctx.plan, ctx.wants)
    empty = arguments[-1].new_empty
    main_grads = [empty((0,)) if each is None else each for each in ctx.main_grads]
    grads = list(_run_backward(ctx.subject, into, *arguments, *main_grads, ctx.plan, ctx.wants))
    for place, each, main_grad in zip(at, ctx.weights or (None,) * len(at), ctx.main_grads):
        if main_grad is not None:
            grads[place] = dummy_gradient(each)
    return grads


def _run_backward(subject: str, operator, *arguments):
    """A backward's operator, whose errors are ingot's."""
    if torch.compiler.is_compiling():
        return operator(*arguments)
    try:
        return operator(*arguments)
    except RuntimeError as error:
        raise layer_error(error, subject) from None

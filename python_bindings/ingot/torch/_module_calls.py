"""What the functions of modules made of several parts share: their norm's options, the plan of a call, and how a call
runs."""

from __future__ import annotations

import dataclasses
from typing import Callable, NamedTuple, Optional, Sequence, Union

import torch

from .. import _core
from .._core import Error
from . import _module_operators as ops
from ._checks import (
    Subject,
    called,
    check_norm,
    is_transformed,
    layer_error,
    refuse,
    refuse_batched_gradients,
    refuse_double_backward,
    refuse_places,
    refuse_transforms,
)
from ._errors import LinearError
from ._exported import export_layer, is_exporting
from ._gathered_weight import is_gathered
from ._linear import RECIPES, casts_weight_again
from ._main_grad import Asks, asks_for, converted, dummy_gradient, main_grad_of
from ._module_operators import OF_INPUT, Activation, Norm
from ._names import PLACEHOLDERS
from ._operators import HoldsPlans, PlanTable, fixed_sizes
from ._schemas import ASKS_ENGINE


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
            raise LinearError(f'norm kind: {self.kind!r} is not one of "layer", "rms"')


class DelayedScales(NamedTuple):
    """The scales of the recipe "delayed", whose state is the caller's (ingot.nn's modules keep it).

    scale: FP8_MAX divided by a maximum of earlier steps; amax: raised by a call to the largest |value| that it casts, backward
    included. Both float32 (layers, 3), contiguous, on the layers' device, for input, weight and grad_output of each layer;
    layers that share an input cast it with the first one's; of experts (layers, 3, experts). starts: scales may be missing,
    which is what a scale of 1 says: such a tensor is cast with the scale of its own maximum, as dynamic scaling does. This is
    decided on the device, and takes a pass that finds the maximum, so it is for the steps before every tensor has a scale.
    ingot.nn's modules give the tensor of ingot.torch._module_operators.starts_of() for it, which says so of each.
    """

    scale: torch.Tensor
    amax: torch.Tensor
    starts: Union[bool, torch.Tensor] = False


def check_module_recipe(subject: str, recipe: str) -> None:
    if recipe not in RECIPES and recipe != "delayed":
        refuse(subject, f"recipe: {recipe!r} is not one of {', '.join(RECIPES)}, delayed")


class ModuleOptions(HoldsPlans):
    """What the options of modules have beside their fields, from their __post_init__() on."""

    recipe: str
    subject: str  # what messages begin with

    def _settle(self, subject: Callable, names: tuple[str, ...], norm: Optional[NormOptions] = None) -> None:
        """subject(names): what messages call a module with layers of these names."""
        made = {"subject": subject(names), "_subject": subject(PLACEHOLDERS[: len(names)])}
        check_module_recipe(made["subject"], self.recipe)
        made.update(_names=names, _norm=norm_of(norm), _plans=PlanTable(), _activation=None)
        for name, value in made.items():
            object.__setattr__(self, name, value)


_KNOWN: dict = {}


def interned(value):
    """The first of all equal values: a compiler guards a tuple by its identity."""
    return _KNOWN.setdefault(value, value)


def norm_of(options: Optional[NormOptions]) -> Optional[Norm]:
    if options is None:
        return None
    return interned(Norm(options.kind, None if options.eps is None else repr(float(options.eps)), options.zero_centred))


def activation_text(activation: str, gated: bool = False) -> str:
    """The expression that a function's name is short for: silu is silu(x), or gated silu(x) * up."""
    if not activation.isidentifier() or activation == "x":
        return activation
    return f"{activation}(x) * up" if gated else f"{activation}(x)"


def activation_of(subject: str, activation: str, fast_math: bool) -> Activation:
    """Of a layer's output: an expression of x."""
    text = activation_text(activation)
    _named(_core.torch_check_activation, subject, text)
    return interned(Activation(text, fast_math))


def mlp_activation_of(subject: str, activation: str, gated: bool, fast_math: bool) -> Activation:
    """Between two layers: an expression of x, and gated of x and up."""
    text = activation_text(activation, gated)
    if _named(_core.torch_check_mlp_activation, subject, text) != gated:
        what = "has no `up`, which a gated MLP multiplies" if gated else "has `up`, which only a gated MLP has"
        refuse(subject, f"activation: {text!r} {what}: change it, or gated")
    return interned(Activation(text, fast_math))


def _named(function, *arguments):
    try:
        return function(*arguments)
    except Error as error:
        raise LinearError(str(error)) from None


@torch.compiler.assume_constant_result
def _plan_of_trace(family, subject, *arguments):
    return ops.add_plan(family, subject, None, *arguments)


class _Module(torch.autograd.Function):
    """A module's forward and backward, by one operator each. Applied to the family's name, its tensors, a plan and what it
    reads again, what messages call the module, a main_grad or None of each weight, and the fields of DelayedScales."""

    @staticmethod
    def forward(ctx, name, *arguments):
        family = ops.FAMILIES[name]
        count = len(family.bits)
        tensors, (plan, reads, subject, *main_grads), state = arguments[:count], arguments[count:-3], arguments[-3:]
        wants = 0
        for need, bit in zip(ctx.needs_input_grad[1:], family.bits):
            wants |= bit if need else 0
        of_input, reads_weight = wants & OF_INPUT, reads & ops.READS_WEIGHT
        keeps_codes = wants & family.through and not reads_weight
        keep = (ops.KEEP_SAVED if wants else 0) | (ops.KEEP_CODES if keeps_codes else 0)
        outputs, saved = _forward(family, tensors, plan, keep, *state)
        ctx.name, ctx.plan, ctx.wants, ctx.subject = name, plan, wants, subject
        note_main_grads(ctx, tensors, family.weights, main_grads)
        note_scales(ctx, bool(reads_weight), *state)
        input, second = tensors[:2]
        if family.has_norm:
            reads_input = of_input and reads & ops.READS_INPUT_FOR_INPUT
            reads_input = reads_input or (wants & family.of_input and reads & ops.READS_INPUT_FOR_WEIGHT)
            kept = [input if reads_input else None, second if of_input else None]
        else:
            kept = [input, second] if wants else [None, None]
        for at, weight in family.weights.items():
            kept.append(tensors[at] if reads_weight and wants & weight.through else None)
        if family.keeps_output:
            kept.append(outputs if reads & ops.READS_OUTPUT else None)
        ctx.save_for_backward(saved, *kept)
        return outputs

    @staticmethod
    def backward(ctx, *grad_outputs):
        refuse_double_backward(ctx.subject)
        family = ops.FAMILIES[ctx.name]
        saved, *others = ctx.saved_tensors
        of_outputs = (*grad_outputs, *(None,) * (family.outputs - len(grad_outputs)))
        grads = gradients(ctx, family, (*of_outputs, *others, saved))
        needs = ctx.needs_input_grad[1:]  # those of gamma and beta come together
        return (None, *(grad if need else None for grad, need in zip(grads, needs)), *(None,) * (len(needs) - len(grads)))


def _forward(family: ops.Family, tensors, plan: int, keep: int, scale, amax, starts):
    """The output, or those of layers that share their input, and what is saved. scale: None, or that of DelayedScales."""
    if scale is None:
        results = family.operators.forward(*tensors, plan, keep)
    else:
        results = family.operators.forward_in_place(*tensors, plan, keep, scale=scale, starts=starts, amax=amax)
    return results if family.outputs == 1 else (tuple(results[: 2 if tensors[-2] is None else 3]), results[-1])


def call_with(scales: dict, operator, *arguments, **others):
    """An operator of experts, in the form that writes maxima if there are delayed scales: what it takes of them."""
    return (operator.in_place if scales else operator.default)(*arguments, **others, **scales)


def scales_of_forward(scale, amax, starts) -> dict:
    """What a forward's operator takes of them; scale: None, or that of DelayedScales."""
    return {} if scale is None else {"scale": scale, "starts": starts, "amax": amax}


def scales_of_layer(delayed: Optional[DelayedScales], at: int) -> Optional[DelayedScales]:
    """Of several layers of experts, those of one."""
    if delayed is None:
        return None
    starts = delayed.starts
    if isinstance(starts, torch.Tensor):  # whose sizes say it
        for other in reversed(range(starts.dim() - 1)):
            starts = starts if other == at else starts.select(other, 0)
    return DelayedScales(delayed.scale[at : at + 1], delayed.amax[at : at + 1], starts)


def state_of_call(subject: Subject, recipe: str, input: torch.Tensor, delayed: Optional[DelayedScales]):
    """What an operator takes of delayed scales: scale, amax, starts. A forward without gradients notes no maxima."""
    scale, amax, starts = _state_of(subject, recipe, input, delayed)
    return scale, amax if scale is None or torch.is_grad_enabled() else torch.zeros_like(amax), starts


def _state_of(subject: Subject, recipe: str, input: torch.Tensor, delayed: Optional[DelayedScales]):
    if recipe != "delayed":
        if delayed is not None:
            refuse(subject, f'delayed: is given, but the recipe is {recipe}, whose scales have no state: omit it')
        return None, None, None
    if delayed is None:
        refuse(
            subject,
            'delayed: is missing, but the recipe is "delayed": give DelayedScales, or use a module of ingot.nn, which '
            "keeps them",
        )
    for name, tensor in (("scale", delayed.scale), ("amax", delayed.amax)):
        if tensor.device != input.device:
            refuse_places(subject, input, **{f"delayed {name}": tensor})
    if isinstance(delayed.starts, torch.Tensor):
        return delayed
    layers = delayed.scale.shape[0] if delayed.scale.dim() == 3 else delayed.scale.numel() // 3
    return delayed._replace(starts=ops.starts_of((7 if delayed.starts else 0,) * layers, input.device))


# Of a layer: its weight and bias, then the subject and the part that messages about the weight's main_grad name.
LayerOf = tuple[torch.Tensor, Optional[torch.Tensor], Subject, str]


def run(family: str, options, inputs, layers: Sequence[LayerOf], norm=None, delayed: Optional[DelayedScales] = None):
    """Runs a module's operators with their plan, which `options` has. inputs: one, with the norm's weight and bias, or gate
    and up; in autocast's dtype, and the layers checked."""
    compiling, records = torch.compiler.is_compiling(), torch.is_grad_enabled()
    input, gamma = inputs[0], None
    if norm is not None:
        gamma, beta = norm
        if options.norm is not None:
            check_norm(options, input, gamma, beta, options.norm.kind)
            if options.norm.kind == "layer" and gamma is not None and beta is None:
                beta = torch.zeros_like(gamma, requires_grad=False)
        inputs = (input, gamma, beta)
    converts = options.recipe == "high_precision"  # then both operands of a GEMM have one dtype
    tensors, main_grads, of_layers, trains_weight, gathers = [*inputs], [], [], False, False
    for weight, bias, subject, part in layers:
        main_grads.append(main_grad_of(weight, subject, part))
        gathers = gathers or is_gathered(weight)
        weight = converted(weight, input.dtype) if converts else weight
        trains_weight = trains_weight or weight.requires_grad
        tensors += (weight, bias)
        sizes = fixed_sizes(weight) if compiling else weight.shape
        of_layers.append((*sizes, weight.dtype, None if bias is None else bias.dtype))
    absent = len(ops.FAMILIES[family].weights) - len(of_layers)
    tensors, main_grads = (*tensors, *(None,) * (2 * absent)), (*main_grads, *(None,) * absent)
    if is_transformed(*tensors, records=records):
        refuse_transforms(options)
    needs_codes = trains_weight or any(each is not None and each.requires_grad for each in tensors)
    again = gathers or casts_weight_again(options.keep_weight_codes, input, needs_codes)
    fixed = (options.recipe, options._activation, options._norm)
    # A compiler would guard the names: equal modules share a graph.
    subject = options._subject if compiling else options.subject
    state = state_of_call(subject, options.recipe, input, delayed)
    key = (gamma is not None, input.dtype, trains_weight and records, tuple(of_layers), again)
    if compiling:
        if is_exporting():
            return _export(family, options, tensors, state)
        plan = _plan_of_trace(family, options._subject, *fixed, *key)
        if records:
            return _Module.apply(family, *tensors, *plan, subject, *main_grads, *state)
        return _forward(ops.FAMILIES[family], tensors, plan[0], 0, *state)[0]
    try:
        plan = options._plans.get(key)
        if plan is None:
            names = (family, options._subject, options._names)
            plan = options._plans[key] = _named(ops.add_plan, *names, *fixed, *key)
        if records:
            return _Module.apply(family, *tensors, *plan, subject, *main_grads, *state)
        return _forward(ops.FAMILIES[family], tensors, plan[0], 0, *state)[0]
    except RuntimeError as error:
        raise layer_error(error, subject) from None


def _export(family: str, options, tensors, state):
    norm = getattr(options, "norm", None)
    norm = None if norm is None else (norm.kind, norm.eps, norm.zero_centred)
    text, fast_math = options._activation or ("", False)
    facts = {"recipe": options.recipe, "names": options._names, "norm": norm}
    results = export_layer(family, (*tensors, *state), **facts, activation=text, fast_math=fast_math)
    return results[0] if family != "shared_linear" else tuple(results)


def note_scales(ctx, reads_weight: bool, scale, amax, starts) -> None:
    """For scales_of_backward(): delayed scales, or None in their places."""
    # Not saved as autograd does: later forwards and steps write them.
    ctx.scale, ctx.amax, ctx.starts = scale, amax, starts
    # The weight is cast again with the scale that it had.
    ctx.old_scale = scale.clone() if scale is not None and reads_weight else None


def scales_of_backward(ctx) -> dict:
    """What a backward's operator takes of the delayed scales that its forward has noted."""
    scale = ctx.scale
    if ctx.old_scale is not None:
        at = 1 if scale.dim() == 3 else -1  # of experts, or the last dimension
        scale = torch.cat((ctx.old_scale.narrow(at, 0, 2), scale.narrow(at, 2, 1)), at)
    return {"scale": scale, "starts": ctx.starts, "amax": ctx.amax}


def note_main_grads(ctx, tensors, weights: dict[int, ops.Weight], main_grads) -> None:
    """For gradients(): the main_grad of each weight, or None. `tensors`: the function's."""
    # Not saved as autograd does: accumulation changes them before backward.
    ctx.main_grads = None if all(each is None for each in main_grads) else main_grads
    ctx.weights = None
    if ctx.main_grads is not None and not torch.compiler.is_compiling():
        # Each with the number of its edge in the graph, as autograd counts tensors alone.
        ctx.weights = [(sum(each is not None for each in tensors[:at]), tensors[at]) for at in weights]


def _asked_main_grads(ctx, weights: dict[int, ops.Weight]):
    """The bits of what this backward wants, and the main_grads that it adds to, None in the places of others."""
    wants, main_grads = ctx.wants, ctx.main_grads or (None,) * len(weights)
    if ctx.weights is None:
        return wants if ctx.main_grads is None else wants | ASKS_ENGINE, main_grads
    asked = []
    for weight, edge_and_weight, main_grad in zip(weights.values(), ctx.weights, main_grads):
        if main_grad is not None:
            asks = asks_for(ctx, *edge_and_weight)
            if asks is Asks.NOTHING:
                wants &= ~weight.bit
            if asks is not Asks.ACCUMULATES:
                main_grad = None
        asked.append(main_grad)
    return wants, asked


def gradients(ctx, family: ops.Family, arguments):
    """The results of a module's backward. The gradient of a weight that has a main_grad is added to it, and the weight gets
    none but a dummy."""
    operators, weights = family.operators, family.weights
    if ctx.main_grads is None and ctx.scale is None:
        return called(ctx.subject, operators.backward, *arguments, ctx.plan, ctx.wants)
    wants, of_weights = _asked_main_grads(ctx, weights)
    written = {weight.main_grad: each for weight, each in zip(weights.values(), of_weights)}
    if ctx.scale is not None:
        refuse_batched_gradients(ctx.subject, arguments[0])
        written.update(scales_of_backward(ctx))
    grads = list(called(ctx.subject, operators.backward_in_place, *arguments, ctx.plan, wants, **written))
    for at, (place, main_grad) in enumerate(zip(weights, of_weights)):
        if main_grad is not None:
            grads[place] = None if ctx.weights is None else dummy_gradient(ctx.weights[at][1])
    return grads

"""The operators of modules made of several parts (a norm and its layer, an MLP, layers that share an input), with fake
kernels that tell compilers the results' shapes."""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple, Optional, Sequence

import torch

from .. import _core
from .._core import Error
from ._operators import HIGH_PRECISION, TOKENS_PER_UNIT, named_error


class Operators(NamedTuple):
    """Those of one family of modules. `backward_into` and `backward_delayed` add the gradients of weights to a main_grad;
    a weight that has none has an empty tensor in its place. Those with delayed scales take the fields of DelayedScales
    after their other tensors, `starts` as starts_of() makes it."""

    forward: torch._ops.OpOverload
    backward: torch._ops.OpOverload
    backward_into: torch._ops.OpOverload
    forward_delayed: torch._ops.OpOverload
    backward_delayed: torch._ops.OpOverload


def _operators(family: str) -> Operators:
    return Operators(*(getattr(torch.ops.ingot, f"{family}_{name}").default for name in Operators._fields))


NORM_LINEAR = _operators("norm_linear")
MLP = _operators("mlp")
SHARED_LINEAR = _operators("shared_linear")
GATED_LINEAR = _operators("gated_linear")

# Bits of a forward's `keep`: saved memory for any gradient, the weights' codes for the input's.
KEEP_SAVED, KEEP_CODES = 1, 2
# Bits of a backward's `wants`. Those of gamma and beta come together.
INPUT, WEIGHT, BIAS, GAMMA = 1, 2, 4, 8
DOWN_WEIGHT, DOWN_BIAS = 16, 32
# Those of gated_linear_backward beside WEIGHT and BIAS.
GATE, UP = 1, 8
# Those of shared_linear_backward; a layer's two are shifted by 2 bits for each layer before it.
SHARED_GAMMA, SHARED_WEIGHT, SHARED_BIAS = 2, 4, 8
# Bits of a plan's `reads`: what backward reads again. The input (and gamma) for the gradients of the input and of
# gamma, and the input for those of the weights.
READS_INPUT_FOR_INPUT, READS_INPUT_FOR_WEIGHT, READS_WEIGHT, READS_OUTPUT = 1, 2, 4, 8


def starts_of(masks: Sequence[int], device: torch.device, empty: Optional[torch.Tensor] = None) -> torch.Tensor:
    """DelayedScales.starts as operators take it: an empty tensor whose sizes are 2 + the mask of each layer, and 0. A mask
    has the bits 1, 2 and 4 of input, weight and grad_output. A compiler takes these sizes for variables from the first
    call on, so that no graph is compiled again when a tensor gets its scale, nor one for each combination; and compiles
    again when two modules have one tensor. empty: any of no elements there, of which it can be a view."""
    sizes = (*(2 + mask for mask in masks), 0)
    made = (torch.empty(0, device=device) if empty is None else empty).as_strided(sizes, (0,) * len(sizes))
    for at in range(len(masks)):
        torch._dynamo.maybe_mark_dynamic(made, at)
    return made


def masks_of(starts: torch.Tensor) -> tuple[int, ...]:
    return tuple(size - 2 for size in starts.shape[:-1])


class Norm(NamedTuple):
    """A norm as a plan has it. eps: a number's repr(), because torch.compile may take a float for a variable, as
    PyTorch 2.11 does; None is the epsilon of the input's dtype."""

    kind: str
    eps: Optional[str]
    zero_centred: bool


class Activation(NamedTuple):
    text: str  # an expression; "" for none
    fast_math: bool = False  # as LinearFusion::fast_math (src/nn/linear/linear_plan.h)


class Layer(NamedTuple):
    """The sizes and dtypes of one layer's weight and bias."""

    out_features: int
    in_features: int
    weight_dtype: torch.dtype
    bias_dtype: Optional[torch.dtype]


class _Known(NamedTuple):
    """A forward keeps saved_constant + ceil(tokens / TOKENS_PER_UNIT) * saved_per_unit bytes, and then the weights'
    codes."""

    layers: tuple[Layer, ...]
    saved_constant: int
    saved_per_unit: int
    codes: int
    has_gamma: bool
    has_beta: bool


_NORM_LINEARS: dict[int, _Known] = {}
_MLPS: dict[int, _Known] = {}
_SHARED: dict[int, _Known] = {}
_GATED: dict[int, _Known] = {}


# ---- plans -----------------------------------------------------------------------------------------------------------


def _add(known: dict[int, _Known], layers, norm: Optional[Norm], affine: bool, added) -> tuple[int, int]:
    number, saved_constant, saved_per_unit, codes, *reads = added
    has_gamma = norm is not None and affine
    has_beta = has_gamma and norm.kind == "layer"
    known[number] = _Known(layers, saved_constant, saved_per_unit, codes, has_gamma, has_beta)
    return number, sum(1 << at for at, is_read in enumerate(reads) if is_read)


def _dtypes(input: torch.dtype, layer: Layer):
    bias = layer.bias_dtype
    return HIGH_PRECISION[input], HIGH_PRECISION[layer.weight_dtype], None if bias is None else HIGH_PRECISION[bias]


def _norm(norm: Optional[Norm], affine: bool, input_dtype: torch.dtype):
    if norm is None:
        return None
    return norm.kind, affine, torch.finfo(input_dtype).eps if norm.eps is None else float(norm.eps), norm.zero_centred


@functools.lru_cache(maxsize=None)
def _plan_of_norm_linear(
    subject, recipe, activation, norm, affine, input_dtype, trains_weight, layers, weight_again
):
    (layer,) = layers
    dtypes = _dtypes(input_dtype, layer)
    norm_text = _norm(norm, affine, input_dtype)
    sizes = (layer.in_features, layer.out_features)
    added = _core.torch_norm_linear_plan(
        subject, recipe, *sizes, dtypes, trains_weight, norm_text, *activation, weight_again
    )
    return _add(_NORM_LINEARS, layers, norm, affine, added)


@functools.lru_cache(maxsize=None)
def _plan_of_mlp(subject, recipe, activation, norm, affine, input_dtype, trains_weight, layers, weight_again):
    up, down = layers
    dtypes = _dtypes(input_dtype, up)
    norm_text = _norm(norm, affine, input_dtype)
    sizes = (up.in_features, down.in_features)
    added = _core.torch_mlp_plan(
        subject, recipe, *sizes, dtypes, trains_weight, norm_text, *activation, weight_again
    )
    return _add(_MLPS, layers, norm, affine, added)


@functools.lru_cache(maxsize=None)
def _plan_of_shared_linear(
    subject, recipe, _activation, norm, affine, input_dtype, trains_weight, layers, weight_again
):
    of_layers = []
    for layer in layers:
        _, weight, bias = _dtypes(input_dtype, layer)
        of_layers.append((layer.out_features, weight, bias))
    input_text, norm_text = HIGH_PRECISION[input_dtype], _norm(norm, affine, input_dtype)
    in_features = layers[0].in_features
    added = _core.torch_shared_linear_plan(
        subject, recipe, in_features, input_text, of_layers, trains_weight, norm_text, weight_again
    )
    return _add(_SHARED, layers, norm, affine, added)


@functools.lru_cache(maxsize=None)
def _plan_of_gated_linear(
    subject, recipe, activation, norm, affine, input_dtype, trains_weight, layers, weight_again
):
    (layer,) = layers
    sizes = (layer.in_features, layer.out_features)
    dtypes = _dtypes(input_dtype, layer)
    added = _core.torch_gated_linear_plan(
        subject, recipe, *sizes, dtypes, trains_weight, *activation, weight_again
    )
    return _add(_GATED, layers, norm, affine, added)


class _Family(NamedTuple):
    plan: Callable
    name: Callable
    known: dict


_FAMILIES = {
    "norm_linear": _Family(_plan_of_norm_linear, _core.torch_name_norm_linear, _NORM_LINEARS),
    "mlp": _Family(_plan_of_mlp, _core.torch_name_mlp, _MLPS),
    "shared_linear": _Family(_plan_of_shared_linear, _core.torch_name_shared_linear, _SHARED),
    "gated_linear": _Family(_plan_of_gated_linear, _core.torch_name_gated_linear, _GATED),
}


def add_plan(
    family: str,
    subject: str,
    names: Optional[Sequence[str]],
    recipe: str,
    activation: Optional[Activation],
    norm: Optional[Norm],
    affine: bool,
    input_dtype: torch.dtype,
    trains_weight: bool,
    layers: tuple[Layer, ...],
    weight_again: bool = False,
) -> tuple[int, int]:
    """The plan of a module: a norm, a layer and its activation ("norm_linear"), an MLP of two layers whose dtypes are
    equal ("mlp"), two or three layers that share an input ("shared_linear"), a layer whose input is an activation of a
    gate and up ("gated_linear"). `subject` is what messages call it, with PLACEHOLDERS for the names of its layers.
    names: these; None for a graph, which equal modules share. weight_again: backward casts the weights once more, and
    forward keeps no codes of them. Returns the plan's number and READS bits; equal arguments give one number, in every
    process with this version of Ingot."""
    plan, name, known = _FAMILIES[family]
    try:
        number, reads = plan(
            subject, recipe, activation, norm, affine, input_dtype, trains_weight, layers, weight_again
        )
    except Error as error:
        raise named_error(error, *(names or ())) from None
    if names is not None:
        named = name(number, list(names))
        known[named] = known[number]
        number = named
    return number, reads


# ---- fake kernels ----------------------------------------------------------------------------------------------------


def _bytes(like: torch.Tensor, count) -> torch.Tensor:
    return like.new_empty((count,), dtype=torch.uint8)


def _fake_kept(input: torch.Tensor, known: _Known, keep: int) -> torch.Tensor:
    count = known.codes if keep & KEEP_CODES else 0
    if keep & KEEP_SAVED:
        tokens = 1
        for size in input.shape[:-1]:
            tokens = tokens * size
        count = count + known.saved_constant + (tokens + TOKENS_PER_UNIT - 1) // TOKENS_PER_UNIT * known.saved_per_unit
    return _bytes(input, count)


def _fake_output(input: torch.Tensor, layer: Layer) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], layer.out_features))


def _fake_gradients_of_norm(grad_output, gamma, known: _Known, wants_input: bool, wants_gamma: bool):
    """Of input, gamma and beta."""
    features = known.layers[0].in_features
    none = lambda: _bytes(grad_output, 0)
    vector = lambda has: gamma.new_empty((features,)) if has and (wants_input or wants_gamma) else none()
    input = grad_output.new_empty((*grad_output.shape[:-1], features)) if wants_input else none()
    return input, vector(known.has_gamma), vector(known.has_beta)


def _fake_gradients_of_layer(like: torch.Tensor, layer: Layer, wants_weight: bool, wants_bias: bool):
    shape = (layer.out_features, layer.in_features)
    weight = like.new_empty(shape, dtype=layer.weight_dtype) if wants_weight else _bytes(like, 0)
    bias = like.new_empty(shape[:1], dtype=layer.bias_dtype) if wants_bias else _bytes(like, 0)
    return weight, bias


@torch.library.register_fake("ingot::norm_linear_forward")
def _fake_norm_linear_forward(input, gamma, beta, weight, bias, plan, keep):
    known = _NORM_LINEARS[plan]
    return _fake_output(input, known.layers[0]), _fake_kept(input, known, keep)


@torch.library.register_fake("ingot::norm_linear_backward")
def _(grad_output, input, gamma, weight, output, saved, plan, wants):
    known = _NORM_LINEARS[plan]
    of_norm = _fake_gradients_of_norm(grad_output, gamma, known, bool(wants & INPUT), bool(wants & GAMMA))
    return *of_norm, *_fake_gradients_of_layer(grad_output, known.layers[0], bool(wants & WEIGHT), bool(wants & BIAS))


@torch.library.register_fake("ingot::norm_linear_backward_into")
def _fake_norm_linear_backward_into(grad_output, input, gamma, weight, output, saved, main_grad, plan, wants):
    known = _NORM_LINEARS[plan]
    of_norm = _fake_gradients_of_norm(grad_output, gamma, known, bool(wants & INPUT), bool(wants & GAMMA))
    makes_weight = bool(wants & WEIGHT) and not main_grad.numel()
    return *of_norm, *_fake_gradients_of_layer(grad_output, known.layers[0], makes_weight, bool(wants & BIAS))


@torch.library.register_fake("ingot::norm_linear_forward_delayed")
def _(input, gamma, beta, weight, bias, scale, amax, starts, plan, keep):
    return _fake_norm_linear_forward(input, gamma, beta, weight, bias, plan, keep)


@torch.library.register_fake("ingot::norm_linear_backward_delayed")
def _(grad_output, input, gamma, weight, output, saved, main_grad, scale, amax, starts, plan, wants):
    return _fake_norm_linear_backward_into(grad_output, input, gamma, weight, output, saved, main_grad, plan, wants)


@torch.library.register_fake("ingot::mlp_forward")
def _(input, gamma, beta, up_weight, up_bias, down_weight, down_bias, plan, keep):
    return torch.empty_like(input, memory_format=torch.contiguous_format), _fake_kept(input, _MLPS[plan], keep)


@torch.library.register_fake("ingot::mlp_forward_delayed")
def _(input, gamma, beta, up_weight, up_bias, down_weight, down_bias, scale, amax, starts, plan, keep):
    return torch.empty_like(input, memory_format=torch.contiguous_format), _fake_kept(input, _MLPS[plan], keep)


@torch.library.register_fake("ingot::mlp_backward")
def _(grad_output, input, gamma, up_weight, down_weight, saved, plan, wants):
    return _fake_gradients_of_mlp(grad_output, gamma, plan, wants, True, True)


@torch.library.register_fake("ingot::mlp_backward_into")
def _(grad_output, input, gamma, up_weight, down_weight, saved, up_main_grad, down_main_grad, plan, wants):
    return _fake_gradients_of_mlp(
        grad_output, gamma, plan, wants, not up_main_grad.numel(), not down_main_grad.numel()
    )


@torch.library.register_fake("ingot::mlp_backward_delayed")
def _(
    grad_output,
    input,
    gamma,
    up_weight,
    down_weight,
    saved,
    up_main_grad,
    down_main_grad,
    scale,
    amax,
    starts,
    plan,
    wants,
):
    return _fake_gradients_of_mlp(
        grad_output, gamma, plan, wants, not up_main_grad.numel(), not down_main_grad.numel()
    )


def _fake_gradients_of_mlp(grad_output, gamma, plan: int, wants: int, makes_up: bool, makes_down: bool):
    known = _MLPS[plan]
    up, down = known.layers
    of_norm = _fake_gradients_of_norm(grad_output, gamma, known, bool(wants & INPUT), bool(wants & GAMMA))
    of_up = _fake_gradients_of_layer(grad_output, up, bool(wants & WEIGHT) and makes_up, bool(wants & BIAS))
    wants_down = bool(wants & DOWN_WEIGHT) and makes_down
    of_down = _fake_gradients_of_layer(grad_output, down, wants_down, bool(wants & DOWN_BIAS))
    return *of_norm, *of_up, *of_down


@torch.library.register_fake("ingot::shared_linear_forward")
def _(input, gamma, beta, weight0, bias0, weight1, bias1, weight2, bias2, plan, keep):
    return _fake_outputs_of_shared(input, plan, keep)


@torch.library.register_fake("ingot::shared_linear_forward_delayed")
def _(input, gamma, beta, weight0, bias0, weight1, bias1, weight2, bias2, scale, amax, starts, plan, keep):
    return _fake_outputs_of_shared(input, plan, keep)


def _fake_outputs_of_shared(input: torch.Tensor, plan: int, keep: int):
    known = _SHARED[plan]
    outputs = [_fake_output(input, layer) for layer in known.layers]
    if len(outputs) == 2:
        outputs.append(_bytes(input, 0))
    return *outputs, _fake_kept(input, known, keep)


@torch.library.register_fake("ingot::shared_linear_backward")
def _(grad_output0, grad_output1, grad_output2, input, gamma, weight0, weight1, weight2, saved, plan, wants):
    return _fake_gradients_of_shared(grad_output0, gamma, plan, wants)


@torch.library.register_fake("ingot::shared_linear_backward_into")
def _(
    grad_output0,
    grad_output1,
    grad_output2,
    input,
    gamma,
    weight0,
    weight1,
    weight2,
    saved,
    main_grad0,
    main_grad1,
    main_grad2,
    plan,
    wants,
):
    return _fake_gradients_of_shared(grad_output0, gamma, plan, wants, (main_grad0, main_grad1, main_grad2))


@torch.library.register_fake("ingot::shared_linear_backward_delayed")
def _(
    grad_output0,
    grad_output1,
    grad_output2,
    input,
    gamma,
    weight0,
    weight1,
    weight2,
    saved,
    main_grad0,
    main_grad1,
    main_grad2,
    scale,
    amax,
    starts,
    plan,
    wants,
):
    return _fake_gradients_of_shared(grad_output0, gamma, plan, wants, (main_grad0, main_grad1, main_grad2))


@torch.library.register_fake("ingot::gated_linear_forward_delayed")
def _(gate, up, weight, bias, scale, amax, starts, plan, keep):
    known = _GATED[plan]
    return _fake_output(gate, known.layers[0]), _fake_kept(gate, known, keep)


@torch.library.register_fake("ingot::gated_linear_backward_delayed")
def _(grad_output, gate, up, weight, saved, main_grad, scale, amax, starts, plan, wants):
    return _fake_gradients_of_gated(grad_output, gate, plan, wants, not main_grad.numel())


@torch.library.register_fake("ingot::gated_linear_forward")
def _(gate, up, weight, bias, plan, keep):
    known = _GATED[plan]
    return _fake_output(gate, known.layers[0]), _fake_kept(gate, known, keep)


@torch.library.register_fake("ingot::gated_linear_backward")
def _(grad_output, gate, up, weight, saved, plan, wants):
    return _fake_gradients_of_gated(grad_output, gate, plan, wants, True)


@torch.library.register_fake("ingot::gated_linear_backward_into")
def _(grad_output, gate, up, weight, saved, main_grad, plan, wants):
    return _fake_gradients_of_gated(grad_output, gate, plan, wants, not main_grad.numel())


def _fake_gradients_of_gated(grad_output, gate, plan: int, wants: int, makes_weight: bool):
    of_inputs = [
        torch.empty_like(gate, memory_format=torch.contiguous_format) if wants & bit else _bytes(grad_output, 0)
        for bit in (GATE, UP)
    ]
    wants_weight = bool(wants & WEIGHT) and makes_weight
    return *of_inputs, *_fake_gradients_of_layer(grad_output, _GATED[plan].layers[0], wants_weight, bool(wants & BIAS))


def _fake_gradients_of_shared(grad_output0, gamma, plan: int, wants: int, main_grads=()):
    """main_grads: of each layer, if the call has them; one with elements takes the weight's gradient."""
    known = _SHARED[plan]
    makes = [not main_grad.numel() for main_grad in main_grads] or [True] * 3
    grads = [*_fake_gradients_of_norm(grad_output0, gamma, known, bool(wants & INPUT), bool(wants & SHARED_GAMMA))]
    for at in range(3):
        layer = known.layers[min(at, len(known.layers) - 1)]
        wants_weight, wants_bias = wants & SHARED_WEIGHT << 2 * at, wants & SHARED_BIAS << 2 * at
        grads += _fake_gradients_of_layer(grad_output0, layer, bool(wants_weight) and makes[at], bool(wants_bias))
    return tuple(grads)

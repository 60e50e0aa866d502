"""The operators of modules made of several parts (a norm and its layer, an MLP, layers that share an input), with fake
kernels that tell compilers the results' shapes."""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple, Optional, Sequence

import torch

from .. import _core
from .._core import Error
from ._operators import HIGH_PRECISION, bytes_of, named_error, units_of
from ._schemas import (
    BIAS,
    GAMMA,
    INPUT,
    KEEP_CODES,
    KEEP_SAVED,
    READS_INPUT_FOR_INPUT,
    READS_INPUT_FOR_WEIGHT,
    READS_OUTPUT,
    READS_WEIGHT,
    UP,
    WEIGHT,
    fake,
    of_layer,
)


class Operators(NamedTuple):
    """Those of one family of modules. Those in place add the gradients of weights to a main_grad, and raise the maxima
    `amax` of delayed scales."""

    forward: torch._ops.OpOverload
    backward: torch._ops.OpOverload
    forward_in_place: torch._ops.OpOverload
    backward_in_place: torch._ops.OpOverload


def _operators(family: str) -> Operators:
    forward, backward = (getattr(torch.ops.ingot, f"{family}_{name}") for name in ("forward", "backward"))
    return Operators(forward.default, backward.default, forward.in_place, backward.in_place)


NORM_LINEAR = _operators("norm_linear")
MLP = _operators("mlp")
SHARED_LINEAR = _operators("shared_linear")
GATED_LINEAR = _operators("gated_linear")


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
    """A forward keeps saved_constant + ceil(tokens / TOKENS_PER_UNIT) * saved_per_unit bytes, and then the codes of each
    weight that is not given as codes."""

    layers: tuple[Layer, ...]
    saved_constant: int
    saved_per_unit: int
    codes: Sequence[int]
    has_gamma: bool
    has_beta: bool


OF_INPUT = INPUT | GAMMA | UP  # of the bits: those of inputs


class Weight(NamedTuple):
    """Of a weight: its bit of a backward's `wants`, what that operator calls its main_grad, and the bits of the gradients
    that flow through it."""

    bit: int
    main_grad: str
    through: int


class Family(NamedTuple):
    """A family of modules. bits: those of `wants`, by the places of the forward's tensors; weights: by their places there;
    of_input: the bits of the weights that multiply the input, or the norm's values; plan: of C++, returns a plan's facts;
    name: gives it names; known: its plans by number. A family whose input is no norm's has two inputs, gate and up."""

    operators: Operators
    bits: tuple[int, ...]
    weights: dict[int, Weight]
    of_input: int
    plan: Callable
    name: Callable
    known: dict[int, _Known]
    has_norm: bool = True
    outputs: int = 1
    keeps_output: bool = False
    through: int = OF_INPUT  # the bits of the gradients that flow through any of the weights


def _pair(layer: int) -> tuple[int, int]:
    return of_layer(WEIGHT, layer), of_layer(BIAS, layer)


_NORM = (INPUT, GAMMA, GAMMA)
_SHARED_WEIGHTS = {3 + 2 * at: Weight(of_layer(WEIGHT, at), f"main_grad{at}", OF_INPUT) for at in range(3)}
FAMILIES = {
    "norm_linear": Family(
        NORM_LINEAR, (*_NORM, WEIGHT, BIAS), {3: Weight(WEIGHT, "main_grad", OF_INPUT)}, WEIGHT,
        _core.torch_norm_linear_plan, _core.torch_name_norm_linear, {}, keeps_output=True,
    ),
    "mlp": Family(
        MLP, (*_NORM, *_pair(0), *_pair(1)),
        {
            3: Weight(WEIGHT, "up_main_grad", OF_INPUT),
            5: Weight(of_layer(WEIGHT, 1), "down_main_grad", OF_INPUT | WEIGHT | BIAS),
        },
        WEIGHT, _core.torch_mlp_plan, _core.torch_name_mlp, {}, through=OF_INPUT | WEIGHT | BIAS,
    ),
    "shared_linear": Family(
        SHARED_LINEAR, (*_NORM, *_pair(0), *_pair(1), *_pair(2)), _SHARED_WEIGHTS,
        sum(each.bit for each in _SHARED_WEIGHTS.values()),
        _core.torch_shared_linear_plan, _core.torch_name_shared_linear, {}, outputs=3,
    ),
    "gated_linear": Family(
        GATED_LINEAR, (INPUT, UP, WEIGHT, BIAS), {2: Weight(WEIGHT, "main_grad", OF_INPUT)}, WEIGHT,
        _core.torch_gated_linear_plan, _core.torch_name_gated_linear, {}, has_norm=False,
    ),
}  # fmt: skip


# ---- plans -----------------------------------------------------------------------------------------------------------


def _norm(norm: Optional[Norm], affine: bool, input_dtype: torch.dtype):
    if norm is None:
        return None
    return norm.kind, affine, torch.finfo(input_dtype).eps if norm.eps is None else float(norm.eps), norm.zero_centred


@functools.lru_cache(maxsize=None)
def _plan(
    family, subject, recipe, activation, norm, affine, input_dtype, trains_weight, layers, weight_again
) -> tuple[int, int]:
    layers = tuple(Layer(*each) for each in layers)
    of_layers = []
    for layer in layers:
        bias = None if layer.bias_dtype is None else HIGH_PRECISION[layer.bias_dtype]
        of_layers.append((layer.out_features, layer.in_features, HIGH_PRECISION[layer.weight_dtype], bias))
    norm_text, function = _norm(norm, affine, input_dtype), activation or Activation("")
    number, saved_constant, saved_per_unit, codes, reads = FAMILIES[family].plan(
        subject, recipe, HIGH_PRECISION[input_dtype], of_layers, trains_weight, norm_text, *function, weight_again
    )
    has_gamma = norm is not None and affine
    has_beta = has_gamma and norm.kind == "layer"
    FAMILIES[family].known[number] = _Known(layers, saved_constant, saved_per_unit, codes, has_gamma, has_beta)
    return number, reads


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
    layers: tuple[tuple, ...],
    weight_again: bool = False,
) -> tuple[int, int]:
    """The plan of a module: a norm, a layer and its activation ("norm_linear"), an MLP of two layers whose dtypes are
    equal ("mlp"), two or three layers that share an input ("shared_linear"), a layer whose input is an activation of a
    gate and up ("gated_linear"). `subject` is what messages call it, with PLACEHOLDERS for the names of its layers.
    names: these; None for a graph, which equal modules share. layers: of each the fields of Layer. weight_again: backward
    casts the weights once more, and forward keeps no codes of them. Returns the plan's number and READS bits; equal
    arguments give one number, in every process with this version of Ingot."""
    facts = (subject, recipe, activation, norm, affine, input_dtype, trains_weight, layers, weight_again)
    try:
        number, reads = _plan(family, *facts)
    except Error as error:
        raise named_error(error, *(names or ())) from None
    if names is not None:
        known, plain = FAMILIES[family].known, number
        number = FAMILIES[family].name(plain, list(names))
        known[number] = known[plain]
    return number, reads


# ---- fake kernels ----------------------------------------------------------------------------------------------------


def _fake_kept(input: torch.Tensor, known: _Known, keep: int, scale_inv) -> torch.Tensor:
    """scale_inv: of each weight; None where that is in high precision."""
    count = 0
    if keep & KEEP_CODES:
        count = sum(size for size, given in zip(known.codes, scale_inv) if given is None)
    if keep & KEEP_SAVED:
        count = count + known.saved_constant + units_of(input) * known.saved_per_unit
    return bytes_of(input, count)


def _fake_output(input: torch.Tensor, layer: Layer) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], layer.out_features))


def _fake_gradients_of_norm(grad_output, gamma, known: _Known, wants: int):
    """Of input, gamma and beta."""
    features = known.layers[0].in_features
    vector = lambda has: gamma.new_empty((features,)) if has and wants & (INPUT | GAMMA) else None
    input = grad_output.new_empty((*grad_output.shape[:-1], features)) if wants & INPUT else None
    return input, vector(known.has_gamma), vector(known.has_beta)


def _fake_gradients_of_layer(like: torch.Tensor, known: _Known, at: int, wants: int, main_grad):
    """Of the weight and bias of the layer at this place."""
    if at >= len(known.layers):
        return None, None
    layer = known.layers[at]
    shape = (layer.out_features, layer.in_features)
    makes_weight = wants & of_layer(WEIGHT, at) and main_grad is None
    weight = like.new_empty(shape, dtype=layer.weight_dtype) if makes_weight else None
    bias = like.new_empty(shape[:1], dtype=layer.bias_dtype) if wants & of_layer(BIAS, at) else None
    return weight, bias


def _fake_forward(family: str, input: torch.Tensor, plan: int, keep: int, *scale_inv):
    known = FAMILIES[family].known[plan]
    return _fake_output(input, known.layers[-1]), _fake_kept(input, known, keep, scale_inv)


@fake("norm_linear_forward")
def _(input, plan, keep, weight_scale_inv):
    return _fake_forward("norm_linear", input, plan, keep, weight_scale_inv)


@fake("mlp_forward")
def _(input, plan, keep, up_weight_scale_inv, down_weight_scale_inv):
    return _fake_forward("mlp", input, plan, keep, up_weight_scale_inv, down_weight_scale_inv)


@fake("gated_linear_forward")
def _(gate, plan, keep, weight_scale_inv):
    return _fake_forward("gated_linear", gate, plan, keep, weight_scale_inv)


@fake("shared_linear_forward")
def _(input, plan, keep, weight0_scale_inv, weight1_scale_inv, weight2_scale_inv):
    known = FAMILIES["shared_linear"].known[plan]
    outputs = [_fake_output(input, layer) for layer in known.layers]
    kept = _fake_kept(input, known, keep, (weight0_scale_inv, weight1_scale_inv, weight2_scale_inv))
    return *outputs, *(None,) * (3 - len(outputs)), kept


def _fake_gradients(family: str, grad_output, gamma, plan: int, wants: int, *main_grads):
    known = FAMILIES[family].known[plan]
    grads = [*_fake_gradients_of_norm(grad_output, gamma, known, wants)]
    for at, main_grad in enumerate(main_grads):
        grads += _fake_gradients_of_layer(grad_output, known, at, wants, main_grad)
    return tuple(grads)


@fake("norm_linear_backward")
def _(grad_output, gamma, plan, wants, main_grad=None):
    return _fake_gradients("norm_linear", grad_output, gamma, plan, wants, main_grad)


@fake("mlp_backward")
def _(grad_output, gamma, plan, wants, up_main_grad=None, down_main_grad=None):
    return _fake_gradients("mlp", grad_output, gamma, plan, wants, up_main_grad, down_main_grad)


@fake("shared_linear_backward")
def _(grad_output0, gamma, plan, wants, main_grad0=None, main_grad1=None, main_grad2=None):
    return _fake_gradients("shared_linear", grad_output0, gamma, plan, wants, main_grad0, main_grad1, main_grad2)


@fake("gated_linear_backward")
def _(grad_output, gate, plan, wants, main_grad=None):
    like = lambda bit: torch.empty_like(gate, memory_format=torch.contiguous_format) if wants & bit else None
    known = FAMILIES["gated_linear"].known[plan]
    return like(INPUT), like(UP), *_fake_gradients_of_layer(grad_output, known, 0, wants, main_grad)

"""What the operator torch.ops.ingot.layer computes, in the process that runs an exported program: the function of
ingot.torch that its text says. It has a gradient: backward runs the layer once more."""

from __future__ import annotations

import functools
import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _core
from . import _operators as ops
from ._errors import LinearError
from ._exported import library
from ._gated_linear import GatedLinearOptions, gated_linear
from ._grouped_layer import run_grouped_layer
from ._linear import LinearOptions, run_linear
from ._mlp import MlpOptions, mlp
from ._module_calls import DelayedScales, NormOptions
from ._norm_linear import NormLinearOptions, norm_linear
from ._scaled_linear import run_scaled, start_scale
from ._shared_linear import SharedLinearOptions, shared_linear
from ._stored_linear import run_frozen, run_weight_only
from ._weight_operators import WeightFormat


class _Layer:
    """A parsed text, with the plans that the layer has used."""

    def __init__(self, what: str) -> None:
        try:
            self.facts: Dict[str, Any] = json.loads(what)
            self.kind, self.has = self.facts["layer"], self.facts["has"]
            run, self.sizes, self.weights = KINDS[self.kind]
        except (KeyError, TypeError, ValueError):
            raise LinearError(
                f"torch.ops.ingot.layer: this Ingot is {_core.__version__} and knows no such layer: {what[:200]!r}: export "
                "the program again with this version"
            ) from None
        self.run = run(self.facts)

    def all_tensors(self, tensors: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Returns all tensors, with None for those that the layer lacks."""
        given = iter(tensors)
        return [next(given) if has else None for has in self.has]


@functools.lru_cache(maxsize=None)  # as many as the programs have layers
def _parsed(what: str) -> _Layer:
    return _Layer(what)


def _casts(config: Sequence) -> ops.Casts:
    casts, pow2, fast, again, given = config
    return ops.Casts(tuple(tuple(each) for each in casts), pow2, tuple(fast), again, tuple(given))


def _linear(facts: Dict[str, Any]) -> Callable:
    config, plans = facts["config"], ops.PlanTable()
    config = config if isinstance(config, str) else _casts(config)
    return lambda input, weight, bias: [run_linear(input, weight, bias, config, facts["name"], plans)]


def _norm_of(facts: Dict[str, Any]):
    return None if facts["norm"] is None else NormOptions(*facts["norm"])


def _delayed(tensors: tuple):
    scale, amax, starts = tensors
    return None if scale is None else DelayedScales(scale, torch.zeros_like(amax), starts)


def _common(facts: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the fields of a module's options that all of these have."""
    return {"name": facts["names"][0], **{each: facts[each] for each in ("recipe", "activation", "fast_math")}}


def _norm_linear(facts: Dict[str, Any]) -> Callable:
    options = NormLinearOptions(norm=_norm_of(facts), **_common(facts))
    return lambda *tensors: [norm_linear(*tensors[:5], options, _delayed(tensors[5:]))]


def _mlp(facts: Dict[str, Any]) -> Callable:
    options = MlpOptions(gated="up" in facts["activation"], norm=_norm_of(facts), **_common(facts))

    def run(input, gamma, beta, up, up_bias, down, down_bias, *state):
        return [mlp(input, up, down, up_bias, down_bias, gamma, beta, options, _delayed(state))]

    return run


def _shared_linear(facts: Dict[str, Any]) -> Callable:
    options, count = SharedLinearOptions(facts["recipe"], tuple(facts["names"]), _norm_of(facts)), len(facts["names"])

    def run(input, gamma, beta, *rest):
        weights, biases = rest[:6:2][:count], rest[1:6:2][:count]
        return list(shared_linear(input, weights, biases, gamma, beta, options, _delayed(rest[6:])))

    return run


def _gated_linear(facts: Dict[str, Any]) -> Callable:
    options = GatedLinearOptions(**_common(facts))
    return lambda *tensors: [gated_linear(*tensors[:4], options, _delayed(tensors[4:]))]


def _grouped_linear(facts: Dict[str, Any]) -> Callable:
    chosen = (facts[each] for each in ("recipe", "name", "keep_weight_codes"))
    options = LinearOptions(*chosen, fast_gradients=facts.get("fast_gradients", False))  # which older programs do not have

    def run(input, weight, ends, bias=None, *state):
        return [run_grouped_layer(input, weight, ends, options, facts["activation"], bias, _delayed(state) if state else None)]

    return run


def _scaled(facts: Dict[str, Any]) -> Callable:
    config, plans = _casts(facts["config"]), ops.PlanTable()
    starts = [(getattr(torch, dtype), False) for dtype in facts["dtypes"]]

    def run(input, weight, bias, *state):
        histories, scales = state[::2], [None if each is None else each.clone() for each in state[1::2]]
        for at, value in enumerate((input, weight)):
            if histories[at] is not None:
                start_scale(value, torch.empty_like(scales[at]), histories[at], scales[at], *starts[at])
        any_scale = next(each for each in scales if each is not None)
        scale_input, scale_weight, scale = (any_scale if each is None else each for each in scales)
        of_grad = (None, None, scale) if histories[2] is None else (torch.empty_like(scale), histories[2], scale)
        operands = (input, weight, bias, scale_input, scale_weight)
        return list(run_scaled(config, facts["name"], plans, operands, of_grad, starts[2]))

    return run


def _weight_only(facts: Dict[str, Any]) -> Callable:
    if facts["packing"] != _core.packed_layout_version and facts["form"][3] != "row_major":
        raise LinearError(
            f'WeightOnlyLinear "{facts["name"]}": its weight is packed as version {facts["packing"]} has it, and this Ingot '
            f"packs as version {_core.packed_layout_version}: export the program again"
        )
    layer = (facts["name"], WeightFormat(*facts["form"]), *facts["sizes"])
    return lambda input, weight, scale_inv, bias: [run_weight_only(input, weight, scale_inv, bias, layer)]


def _frozen(facts: Dict[str, Any]) -> Callable:
    return lambda input, codes, scale_inv, bias: [run_frozen(input, codes, scale_inv, bias, facts["name"], facts["key"])]


def _like(input: torch.Tensor, features) -> torch.Tensor:
    return input.new_empty((*input.shape[:-1], features))


class Kind(NamedTuple):
    """What there is of a kind of layers: `run` makes of a text's facts the function of its tensors; `sizes` the results of
    a fake call, of facts and tensors; weights: the places of its weights among the tensors."""

    run: Callable
    sizes: Callable
    weights: Tuple[int, ...] = (1,)


def _like_first(weight: int) -> Callable:
    """One result, with as many features as the weight at this place has rows."""
    return lambda facts, tensors: [_like(tensors[0], tensors[weight].shape[0])]


# A module in its own file adds its kind here.
KINDS: Dict[str, Kind] = {
    "linear": Kind(_linear, _like_first(1)),
    "norm_linear": Kind(_norm_linear, _like_first(3), (3,)),
    "mlp": Kind(_mlp, _like_first(5), (3, 5)),
    "shared_linear": Kind(
        _shared_linear,
        lambda facts, tensors: [_like(tensors[0], tensors[3 + 2 * at].shape[0]) for at in range(len(facts["names"]))],
        (3, 5, 7),
    ),
    "gated_linear": Kind(_gated_linear, _like_first(2), (2,)),
    "grouped_linear": Kind(
        _grouped_linear, lambda facts, tensors: [tensors[0].new_empty((tensors[0].shape[0], tensors[1].shape[1]))]
    ),
    "scaled": Kind(
        _scaled,
        lambda facts, tensors: [
            _like(tensors[0], tensors[1].shape[0]), tensors[0].new_empty((2,), dtype=torch.float32)
        ],
    ),
    "weight_only": Kind(_weight_only, lambda facts, tensors: [_like(tensors[0], facts["sizes"][0])]),
    "frozen": Kind(_frozen, _like_first(1)),
}


def _run(tensors: Sequence[torch.Tensor], what: str) -> List[torch.Tensor]:
    layer = _parsed(what)
    return layer.run(*layer.all_tensors(tensors))


def _run_alone(tensors: List[torch.Tensor], what: str) -> List[torch.Tensor]:
    with torch.no_grad():
        return _run(tensors, what)


library.impl("layer", _run_alone, "CPU")
library.impl("layer", _run_alone, "CUDA")


@torch.library.register_fake("ingot::layer")
def _(tensors, what):
    layer = _parsed(what)
    return layer.sizes(layer.facts, layer.all_tensors(tensors))


def _note(ctx, inputs, output) -> None:
    tensors, ctx.what = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grads):
    inputs = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
    with torch.enable_grad():
        outputs = _run(inputs, ctx.what)
    wanted = [each for each in inputs if each.requires_grad]
    pairs = [(output, grad) for output, grad in zip(outputs, grads) if output.requires_grad and grad is not None]
    results, of_results = [output for output, _ in pairs], [grad for _, grad in pairs]
    by_input = iter(torch.autograd.grad(results, wanted, of_results, allow_unused=True))
    return [next(by_input) if each.requires_grad else None for each in inputs], None


torch.library.register_autograd("ingot::layer", _backward, setup_context=_note)

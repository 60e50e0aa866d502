"""convert(): a whole model in FP8 by one call, fused where its modules allow it, and restore(), which undoes it."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from ..torch._errors import LinearError
from ..torch._gains import expected_gain
from ..torch._model_weights import float8_experts, layers_line, other_lines, other_weights, OtherWeight, users_of_parameters
from ..torch._module_calls import check_module_recipe
from ..torch._modules import (
    CONVERSION, clear_hooks, is_ingot_layer, leave_fast_paths, order_of, reason_against_replacing, reason_of_weight, take_hooks
)
from ._checkpoint_names import check_model, check_replacing
from ._float8_linear import Float8Linear
from ._fused_parts import FirstOfShared, FusedNorm, PyTorchNorm, refer_to_norm
from ._mlp import GatedMlp, Mlp
from ._norm_linear import LayerNormLinear, RMSNormLinear
from ._parts import norm_options
from ._recognise import FoundMlp, calls_otherwise, find_mlp, readers_of_norms
from ._transposed_linear import TransposedLinear, is_transposed_linear

Filter = Callable[[torch.nn.Module, str], bool]
Example = Union[torch.Tensor, Sequence[Any], Mapping[str, Any]]
_HEADS = ("lm_head", "head", "output", "embed_out", "score", "classifier")


@dataclasses.dataclass(frozen=True)
class ConvertReport:
    """What convert() did: the linear layers that are FP8 now, by name, with the module that computes each; those it left
    alone, with the reason; each norm, with what computes it now or why it stays by itself; the expected gain of layers for
    which one was asked; the weights that are in no linear layer; and the modules of stacked experts that are FP8."""

    converted: Dict[str, str]
    left_alone: Dict[str, str]
    norms: Dict[str, str]
    gains: Dict[str, float]
    others: Tuple[OtherWeight, ...] = ()
    recipe: str = ""
    experts: Tuple[str, ...] = ()

    def __str__(self) -> str:
        total = len(self.converted) + len(self.left_alone)
        gain = lambda name: f" (gain {self.gains[name]:.2f})" if name in self.gains else ""
        what = "FP8" if self.recipe != "high_precision" else "converted, in high precision"
        lines = [layers_line(len(self.converted), total, what)]
        lines += [f"  {name}: {what}{gain(name)}" for name, what in self.converted.items()]
        lines += [f"  {name}: stays, {reason}{gain(name)}" for name, reason in self.left_alone.items()]
        lines += [f"  {name}: {what}" for name, what in self.norms.items()]
        return "\n".join([*lines, *other_lines(self.others, self.experts)])


@dataclasses.dataclass
class _Plan:
    """What takes the place of which module, before anything in the model is changed."""

    model: torch.nn.Module
    recipe: str
    history_length: int
    names: Dict[torch.nn.Module, str]
    reasons: Dict[torch.nn.Module, str] = dataclasses.field(default_factory=dict)  # of linear layers that stay
    gains: Dict[torch.nn.Module, float] = dataclasses.field(default_factory=dict)
    mlps: Dict[torch.nn.Module, FoundMlp] = dataclasses.field(default_factory=dict)
    made: Dict[torch.nn.Module, torch.nn.Module] = dataclasses.field(default_factory=dict)
    norms: Dict[str, str] = dataclasses.field(default_factory=dict)
    converted: Dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def options(self) -> Dict[str, Any]:
        return {"recipe": self.recipe, "history_length": self.history_length}

    def becomes_float8(self, layer: torch.nn.Module) -> bool:
        return layer in self.names and layer not in self.reasons


def convert(
    model: torch.nn.Module,
    recipe: str = "tensorwise",
    *,
    tokens: Optional[int] = None,
    gpu: Optional[str] = None,
    example: Optional[Example] = None,
    filter_fn: Optional[Filter] = None,
    head: bool = False,
    fuse: bool = True,
    history_length: int = 16,
) -> ConvertReport:
    """Converts the linear layers of a model to FP8 in place, at any depth, and returns what became of each.

    recipe: one of ingot.torch.RECIPES, or "delayed" (with history_length). Parameters stay the same objects under the same
    names, so optimizers, checkpoints and FSDP see no change; a model may be on meta, and loaded later. Convert before
    fully_shard() and torch.compile().

    With tokens, the rows that a layer gets in one step, a layer that FP8 is not expected to make faster on `gpu` ("h200"; by
    default the GPU at hand) stays; where nothing was measured it is converted. The head (the output embedding, or a layer
    called lm_head, head, output, embed_out, score or classifier) stays unless head=True, because it decides the loss; so does
    every layer of which filter_fn(layer, name) is False.

    fuse: MLPs, gated or not, whose forward computes nothing else become Mlp and GatedMlp. A norm that only one MLP, or one to
    three linear layers read is computed within their cast; which read it is seen in two forwards of the model without values,
    in training and in evaluation. That takes example inputs: `example`, a tensor, a tuple of arguments or a dict of keyword
    arguments, which models of transformers bring along themselves. Without them, or where the forward needs values, norms
    stay by themselves, and the report says why. A norm of another library that stays by itself is computed by
    torch.nn.functional.rms_norm or layer_norm where input and weight have one dtype. What is called in another way than in
    these forwards (with inputs of another kind, by a hook, or by PEFT as the base of an adapter) has to stay apart:
    fuse=False. restore() undoes it all.

    Raises LinearError for an unknown recipe, for a model whose layers are sharded or compiled already, and for one that
    is itself a linear layer; nothing is changed then. A second call leaves alone what is FP8 already.
    """
    _check(model, recipe, tokens, filter_fn)
    plan = _planned(model, recipe, history_length, tokens, gpu, filter_fn, head)
    if fuse:
        plan.mlps = _mlps(plan)
        _fuse(plan, example)
        _replace_mlps(plan)
    for layer, name in plan.names.items():
        if layer not in plan.made and layer not in plan.reasons and name not in plan.converted:
            _plan_linear(plan, layer)
    _put(plan)
    left = {plan.names[layer]: reason for layer, reason in plan.reasons.items()}
    gains = {plan.names[layer]: gain for layer, gain in plan.gains.items()}
    converted = {name: plan.converted[name] for name in plan.names.values() if name in plan.converted}
    return ConvertReport(converted, left, plan.norms, gains, other_weights(model), recipe, float8_experts(model))


def _check(model: Any, recipe: str, tokens: Any, filter_fn: Any) -> None:
    check_replacing("convert", "convert", model, filter_fn, "Float8Linear")
    check_module_recipe("convert", recipe)
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise LinearError(f"convert tokens: is {tokens!r}, expected a number of rows from 1")
    for layer, (name, text) in order_of(model, keeps_parameters=True).items():
        if filter_fn is None or filter_fn(layer, name):
            raise LinearError(f"convert: {text}")


# ---- which layers ----


def _planned(model, recipe, history_length, tokens, gpu, filter_fn, head) -> _Plan:
    names = {layer: name for name, layer in model.named_modules() if _is_linear(layer)}
    plan = _Plan(model, recipe, history_length, names)
    users, heads = users_of_parameters(model), _heads(model)
    for layer, name in names.items():
        reason = _reason(layer, users)
        if not reason and filter_fn is not None and not filter_fn(layer, name):
            reason = "filter_fn leaves it out"
        if not reason and not head and (layer in heads or name.rpartition(".")[2] in _HEADS):
            reason = "it is the head: head=True converts it"
        if not reason and tokens is not None:
            gain, _ = expected_gain(recipe, tokens, *_sizes(layer), gpu)
            if gain is not None:
                plan.gains[layer] = gain
                reason = "" if gain > 1 else f"FP8 is not expected to make it faster with {tokens} tokens"
        if reason:
            plan.reasons[layer] = reason
    return plan


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or is_transposed_linear(module)


def _sizes(layer: torch.nn.Module) -> Tuple[int, int]:
    """(in_features, out_features)"""
    return tuple(layer.weight.shape) if is_transposed_linear(layer) else (layer.in_features, layer.out_features)


def _reason(layer: torch.nn.Module, users: Dict[int, Dict[torch.nn.Module, str]]) -> str:
    """Why the layer has to stay, or ""."""
    if is_ingot_layer(layer):
        return "is FP8 already: restore() the model first to change that" if isinstance(layer, Float8Linear) else (
            f"is a {type(layer).__name__} of Ingot already"
        )  # fmt: skip
    reason = reason_of_weight(layer) if is_transposed_linear(layer) else reason_against_replacing(layer) or reason_of_weight(layer)
    others = [] if reason else [name for user, name in users[id(layer.weight)].items() if not _is_linear(user)]
    return f"shares its weight with {others[0]}" if others else reason


def _heads(model: torch.nn.Module) -> Set[torch.nn.Module]:
    """What transformers calls the output embeddings."""
    found = set()
    for module in model.modules():
        output = getattr(module, "get_output_embeddings", None)
        try:
            found.add(output() if callable(output) else None)
        except Exception:  # a model that has none may say so so
            continue
    return found


# ---- what is fused ----


def _mlps(plan: _Plan) -> Dict[torch.nn.Module, FoundMlp]:
    """The MLPs of the model, all of whose layers become FP8."""
    found = {}
    for module in plan.model.modules():
        mlp = None if is_ingot_layer(module) or module is plan.model else find_mlp(module)
        if mlp is not None and all(plan.becomes_float8(module._modules[name]) for name in mlp.parts):
            found[module] = mlp
    return found


def _fuse(plan: _Plan, example: Optional[Example]) -> None:
    """Plans the layers that compute the norm in front of them."""
    names = {module: name for name, module in plan.model.named_modules()}
    norms = {module for module in names if _is_norm(module)}
    if not plan.names or not (norms or plan.mlps):
        return
    readers: Dict[torch.nn.Module, List[torch.nn.Module]] = {}
    try:
        args, kwargs = _example_of(plan.model, example)
        readers, called, by_name = readers_of_norms(plan.model, norms, {*plan.names, *plan.mlps}, args, kwargs)
        for module, found in list(plan.mlps.items()):
            if module in by_name or called.intersection(_layers_of(found)):  # a function calls its layers without it
                del plan.mlps[module]
        why = "other modules read it too, or it is not called once"
    except Exception as error:  # of the model's own code
        text = str(error).strip().split("\n")[0]
        if type(error).__name__.startswith(("DataDependent", "DynamicOutputShape")):
            text = "its code asks for a value, as of an attention_mask in example=, a branch, or a loss of a router's logits"
        why = f"the model could not be run without values ({type(error).__name__}: {text[:200]})"
    for norm in sorted(norms, key=lambda each: names[each]):
        reason = _fuse_one(plan, norm, names, readers[norm]) if norm in readers else why
        if reason:
            plan.norms[names[norm]] = f"stays by itself{_plan_alone(plan, norm, names[norm])}: {reason}"


def _layers_of(found: FoundMlp) -> List[torch.nn.Module]:
    return [found.module._modules[name] for name in found.parts]


def _is_norm(module: torch.nn.Module) -> bool:
    """May it be one? What it computes is tried when it is fused."""
    weight = module._parameters.get("weight")
    return (
        not is_ingot_layer(module) and not isinstance(module, (FusedNorm, PyTorchNorm)) and not module._modules
        and isinstance(weight, torch.nn.Parameter) and weight.dim() == 1 and "Norm" in type(module).__name__
        and not calls_otherwise(module)
    )  # fmt: skip


def _example_of(model: torch.nn.Module, example: Optional[Example]) -> Tuple[tuple, Dict[str, Any]]:
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if example is not None:
        return tuple(example), {}
    dummy = getattr(model, "dummy_inputs", None)
    if not isinstance(dummy, Mapping):
        raise LinearError("there are no example inputs: pass example=")
    inputs, config = dict(dummy), getattr(model, "config", None)
    if hasattr(config, "use_cache"):
        inputs["use_cache"] = False
    # The loss of a router's logits needs values, and no norm's.
    if getattr(config, "output_router_logits", False) and "output_router_logits" in inspect.signature(model.forward).parameters:
        inputs["output_router_logits"] = False
    return (), inputs


def _zero_centred(norm: torch.nn.Module, features: int, subject: str) -> bool:
    """Does it multiply by its weight + 1? Raises LinearError if it is no norm that Ingot computes."""
    try:
        norm_options(norm, features, False, subject)
        return False
    except LinearError:
        norm_options(norm, features, True, subject)
        return True


def _fuse_one(plan: _Plan, norm: torch.nn.Module, names: Dict[torch.nn.Module, str], readers: List[torch.nn.Module]) -> str:
    """Plans what computes this norm. Returns why nothing does, or ""."""
    readers_names = ", ".join(names[reader] for reader in readers)
    if any(reader not in plan.mlps and not plan.becomes_float8(reader) for reader in readers):
        return f"a layer that stays in high precision reads it ({readers_names})"
    is_mlp = readers[0] in plan.mlps
    most = 1 if is_mlp or any(map(is_transposed_linear, readers)) else 3
    if len(readers) > most or any(reader in plan.mlps for reader in readers[1:]):
        return f"more read it than one module computes ({readers_names})"
    try:
        first = readers[0]._modules[plan.mlps[readers[0]].gate] if is_mlp else readers[0]
        features = _sizes(first)[0]
        centred = _zero_centred(norm, features, f'convert "{names[norm]}"')
        place = FusedNorm.of(norm, readers_names)
        if is_mlp:
            _plan_mlp(plan, plan.mlps[readers[0]], names[readers[0]], norm, place, centred)
        elif len(readers) == 1:
            _plan_norm_linear(plan, readers[0], norm, place, centred)
        else:
            _plan_shared(plan, readers, norm, place, centred)
    except LinearError as error:
        return str(error)
    plan.made[norm] = _replacing(norm, place)
    plan.norms[names[norm]] = f"is computed within {readers_names}"
    return ""


def _plan_alone(plan: _Plan, norm: torch.nn.Module, name: str) -> str:
    """Plans PyTorch's function for a norm of another library that nothing else computes. Returns that, or ""."""
    nothing_changes = not plan.mlps and not any(map(plan.becomes_float8, plan.names))
    if nothing_changes or isinstance(norm, (torch.nn.LayerNorm, torch.nn.RMSNorm)) or norm.weight.numel() < 2:
        return ""
    try:
        options = norm_options(norm, norm.weight.numel(), False, f'convert "{name}"')
    except LinearError:  # 1 + weight too, which a weight in bfloat16 would round
        return ""
    new = PyTorchNorm.of(norm, options)
    plan.made[norm] = _replacing(norm, new)
    return f" as torch.nn.functional.{new.function}"


def _plan_mlp(plan: _Plan, found: FoundMlp, name: str, norm=None, place: Optional[FusedNorm] = None, centred=False) -> None:
    module, linear = found.module, lambda part: found.module._modules[part]
    options = {**plan.options, "activation": found.activation, "zero_centred": centred, "layer_name": name}
    if found.gated:
        first = linear(found.gate) if found.up is None else (linear(found.gate), linear(found.up))
        new = GatedMlp.from_parts(first, linear(found.down), norm, **options)
        roles = {"gate_proj" if found.up else "gate_up_proj": found.gate, "up_proj": found.up, "down_proj": found.down}
    else:
        new = Mlp.from_parts(linear(found.gate), linear(found.down), norm, **options)
        roles = {"up_proj": found.gate, "down_proj": found.down}
    refer_to_norm(new, place)
    new.take_names({role: part for role, part in roles.items() if part is not None}, list(module._modules))
    new.training = module.training
    take_hooks(module, new)
    plan.made[module] = _replacing(module, new)
    after = "" if place is None else f" after {_name_in(plan.model, norm)}"
    for part in found.parts:
        plan.converted[plan.names[linear(part)]] = f"{type(new).__name__} {name} ({found.activation}){after}"


def _name_in(model: torch.nn.Module, wanted: torch.nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)


def _plan_linear(plan: _Plan, layer: torch.nn.Module) -> None:
    name = plan.names[layer]
    if is_transposed_linear(layer):
        return _plan_norm_linear(plan, layer, None, None, False)
    plan.made[layer] = _replacing(layer, Float8Linear.from_float(layer, plan.recipe, name, plan.history_length))
    plan.converted[name] = "Float8Linear"


def _plan_norm_linear(plan: _Plan, layer, norm, place: Optional[FusedNorm], centred: bool) -> None:
    options = {**plan.options, "layer_name": plan.names[layer], "zero_centred": centred}
    if is_transposed_linear(layer):
        new = TransposedLinear.of(layer, norm, **options)
    else:
        kind = norm_options(norm, layer.in_features, centred, f'convert "{plan.names[layer]}"').kind
        new = (LayerNormLinear if kind == "layer" else RMSNormLinear).from_parts(norm, layer, **options)
    refer_to_norm(new, place)
    plan.made[layer] = _replacing(layer, new)
    after = "" if norm is None else f" after {_name_in(plan.model, norm)}"
    plan.converted[plan.names[layer]] = type(new).__name__ + after


def _plan_shared(plan: _Plan, layers: Sequence[torch.nn.Linear], norm, place: FusedNorm, centred: bool) -> None:
    named = {plan.names[layer]: layer for layer in layers}
    parts = FirstOfShared.make(named, norm, zero_centred=centred, **plan.options)
    refer_to_norm(parts[0], place)
    for layer, part in zip(layers, parts):
        part.training = layer.training
        plan.made[layer] = _replacing(layer, part)
        plan.converted[plan.names[layer]] = f"together with {', '.join(each for each in named if each != plan.names[layer])} " + (
            f"after {_name_in(plan.model, norm)}"
        )


def _replace_mlps(plan: _Plan) -> None:
    """Plans the MLPs that compute no norm."""
    names = {module: name for name, module in plan.model.named_modules()}
    for module, found in plan.mlps.items():
        if module not in plan.made:
            try:
                _plan_mlp(plan, found, names[module])
            except LinearError:  # a hook, or a layer that is wrapped: its layers are converted one by one, if they can be
                continue


# ---- the change, and back ----

_REPLACED = "_ingot_replaced"


def _replacing(old: torch.nn.Module, new: torch.nn.Module) -> torch.nn.Module:
    new.__dict__[_REPLACED] = old
    return new


def _put(plan: _Plan) -> None:
    for parent in list(plan.model.modules()):
        for key, child in parent._modules.items():
            if child in plan.made:
                parent._modules[key] = plan.made[child]
    # FSDP frees parameters that nothing else holds.
    for old, new in plan.made.items():
        for part in old.modules():
            part._parameters = dict.fromkeys(part._parameters)
        clear_hooks(old)
        old.__dict__["forward"] = new  # for a call by what holds it besides the modules around it, such as a list
        if isinstance(new, PyTorchNorm):
            new.share_parameters()
    if plan.made:
        leave_fast_paths(plan.model)


def is_converted(model: torch.nn.Module) -> bool:
    """Has it modules that convert() has put there?"""
    return any(_REPLACED in vars(module) for module in model.modules())


def restore(model: torch.nn.Module) -> int:
    """Undoes convert(): puts the modules that the model had in the places of those that convert() put there, with the
    parameters that these have now, trained ones too. Undoes convert_experts_() of ingot.integrations.experts as well: the
    model's own implementation computes its experts again, and their delayed scales are gone. Returns how many modules it put
    back or undid. Raises LinearError for a model that has neither, and for one that FSDP has sharded since; nothing is changed
    then."""
    check_model("restore", model)
    experts = [module for module in model.modules() if CONVERSION in vars(module)]
    if not experts and not is_converted(model):
        raise LinearError(
            "restore model: has no module that convert() has put there, and no experts that convert_experts_() has converted"
        )
    count = restore_layers(model)
    for module in experts:
        vars(module)[CONVERSION].undo(module)
    return count + len(experts)


def restore_layers(model: torch.nn.Module) -> int:
    """restore() of what convert() has put there, if there is any; experts stay as they are."""
    for name, module in model.named_modules():
        if isinstance(module, (FSDPModule, FullyShardedDataParallel)):
            raise LinearError(
                f"restore model: {name or 'it'} is sharded by FSDP, which holds the modules that are there now: restore a "
                "model that is made anew, and load a checkpoint into it"
            )
        if _REPLACED in vars(module) and "forward" in vars(module):
            raise LinearError(
                f"restore model: the forward of {name} was replaced since, as accelerate's offloading does: undo that first "
                "(accelerate.hooks.remove_hook_from_submodules)"
            )
    count = 0
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is not None and _REPLACED in vars(child):
                parent._modules[key] = _taken_back(child)
                count += 1
    return count


def _taken_back(module: torch.nn.Module) -> torch.nn.Module:
    """The module that this one replaced, with its parameters, hooks and mode."""
    old = vars(module)[_REPLACED]
    vars(old).pop("forward", None)
    for name, part in old.named_modules():
        if part._parameters:
            now = module.get_submodule(name)._parameters
            part._parameters = {key: now[key] for key in part._parameters}
    old.train(module.training)
    take_hooks(module, old)
    return old

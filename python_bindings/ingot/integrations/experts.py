"""transformers' mixtures of experts with experts in FP8:

    from ingot.integrations.experts import convert_experts_, quantize_experts_
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
    print(convert_experts_(model, "rowwise"))    # trains in FP8, or
    print(quantize_experts_(model))              # has FP8 weights, for inference and for adapters around them, or
    print(quantize_experts_(model, "e2m1fn"))    # MXFP4 weights by activations in 16 bits, for decoding

Each module of stacked experts (gate_up_proj or up_proj, and down_proj, as transformers 5 has them) runs as the experts
implementation "ingot": rows sorted by their experts, two grouped GEMMs, and the sum of each token's experts in the order that
the router chose, so that bits repeat, those of gradients too. A SwiGLU whose weights are in high precision is
ingot.torch.experts_mlp(), as is gpt-oss's clamped one in a model that convert_experts_() converted; others are
ingot.torch.grouped_linear() twice. Nothing is padded and the host never waits. Needs transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, NoReturn, Optional, Sequence, Set, Tuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from .. import _core
from ..nn import ExpertScales
from ..nn._scale_buffers import computing_device
from ..torch._checked_index import checked_index
from ..torch._checks import check_recipe_of_experts, check_sizes_of_experts
from ..torch._errors import LinearError
from ..torch._experts import SWIGLU, mlp_of_rows, routed
from ..torch._gathered_weight import is_gathered
from ..torch._grouped_linear import grouped_linear
from ..torch._linear import LinearOptions
from ..torch._module_calls import DelayedScales, scales_of_layer
from ..torch._model_weights import is_stack
from ..torch._modules import CONVERSION
from ..torch._operators import HIGH_PRECISION
from ..torch._quantize_operators import FORMATS, quantize_rows
from ..torch._stored_experts import (
    FLOAT8, check_format, divided_of, has_all_experts, is_weight_only, multiply_stored, run_stored, store_experts
)

__all__ = ["convert_experts_", "quantize_experts_"]

try:
    from transformers.integrations.moe import _default_apply_gate
except ImportError:  # a private name: without it no activation is known, and modules compute their own
    _default_apply_gate = None

NAME = "ingot"
_WEIGHTS = ("gate_up_proj", "up_proj", "down_proj")
_SCALES = "ingot_scales"  # of the recipe "delayed"
_SILUS = (torch.nn.SiLU, SiLUActivation)
_DEFAULT = LinearOptions("rowwise", "experts")  # of a model whose implementation was set by name
_E4M3 = FORMATS.index(torch.float8_e4m3fn)
_Kind = tuple  # what products of the same kernels have in common: sizes, dtypes of rows and weights, the recipe, what is fast


def _stacks_of(model: torch.nn.Module, caller: str, of_layers: str) -> Dict[str, torch.nn.Module]:
    stacks = {name: module for name, module in model.named_modules() if is_stack(module)}
    if not stacks:
        raise LinearError(
            f"{caller}: {type(model).__name__} has no stacked experts, which are modules with gate_up_proj or up_proj, and "
            f"down_proj of three dimensions, as transformers 5 has them; linear layers are {of_layers}'s of ingot.nn"
        )
    return stacks


def _check_stacks(stacks: Dict[str, torch.nn.Module], caller: str) -> None:
    for name, module in stacks.items():
        weight = module.down_proj
        hidden, intermediate = reversed(weight.shape[1:]) if module.is_transposed else weight.shape[1:]
        check_sizes_of_experts(f"{caller} {name or type(module).__name__}:", hidden, intermediate, weight.device)


def stacks_to_convert(model: torch.nn.Module, caller: str = "convert_experts_") -> Dict[str, torch.nn.Module]:
    """What convert_experts_() converts, with all its checks of the model."""
    stacks = _stacks_of(model, caller, "convert()")
    for name, module in stacks.items():
        if hasattr(module, "down_proj_scale_inv"):
            raise LinearError(f"{caller} {name or type(module).__name__}: has FP8 weights, which do not train: load the model's own weights")
    _check_stacks(stacks, caller)
    return stacks


def convert_experts_(
    model: torch.nn.Module,
    recipe: str = "rowwise",
    fast_gradients: bool = False,
    fast_math: bool = False,
    history_length: int = 16,
) -> List[str]:
    """Has the stacked experts of a transformers model compute in FP8, forward and backward, in place. Returns their names. The
    parameters stay as they are, under their names, so optimizers, checkpoints and `ingot.nn.convert()` know nothing of it;
    frozen ones get no gradient. recipe: "tensorwise", "delayed", "rowwise" or "blockwise" (grouped_linear()); another name
    calls again. fast_gradients and fast_math: as LinearOptions and experts_mlp() have them. With "delayed" each module gets an
    ingot.nn.ExpertScales, `ingot_scales`, whose buffers are in its state_dict(), with histories of history_length steps;
    checkpoints load with and without them, and the training loop has to call ingot.nn.sync_amax_history(model). Another call
    with "delayed" keeps them, and has to give their history_length; one with another recipe drops them. Weights that are stored
    (experts, K, N), as gpt-oss has them, are copied to (experts, N, K) in each forward, and in a backward that casts them
    again, and their gradients back; their main_grad is not used. It is the implementation of the model's config, so all experts
    whose modules have the same config object run by it. `ingot.nn.restore(model)` undoes it, back to the implementation that
    the config had: "ingot" stays if a program had set it by name, or converted another stack of the same config in a call of
    its own; `model.set_experts_implementation("grouped_mm")` alone switches the computation, and leaves `ingot_scales` where
    they are. Raises LinearError for a model without stacked experts, for one whose experts are FP8 already, for another recipe,
    for a history_length that its histories do not have, for hidden and intermediate sizes that are no multiples of 16, and for
    a model on a GPU other than Hopper, before it changes anything."""
    stacks = stacks_to_convert(model)
    check_recipe_of_experts("convert_experts_", recipe, fast_gradients)
    names = {name: name or type(module).__name__ for name, module in stacks.items()}
    # All that may raise, before anything changes.
    scales = {name: _scales_of(module, names[name], history_length) for name, module in stacks.items() if recipe == "delayed"}
    clamped = {name: _is_clamped(module) for name, module in stacks.items()}
    former = _former_implementations(stacks)  # they may share a config
    for name, module in stacks.items():
        _note_conversion(module, former[name])
        if recipe == "delayed":
            scales[name].layer_name = names[name]  # kept ones may have that of a stack that was converted alone
            module.add_module(_SCALES, scales[name])
        else:
            module._modules.pop(_SCALES, None)
        module.ingot_options = LinearOptions(recipe, names[name], fast_gradients=fast_gradients)
        module.ingot_fast_math = fast_math
        module.ingot_is_clamped = clamped[name]
        module.config._experts_implementation = NAME
    return list(stacks)


def quantize_experts_(model: torch.nn.Module, format: str = "float8") -> List[str]:
    """Casts the stacked experts of a transformers model to e4m3fn, in place, with a scale_inv for each row, and has them run by
    "ingot". Returns their names. The weights become buffers: codes (experts, N, K) under their own names, and
    `<name>_scale_inv`, float32 (experts, N). Biases, routers and shared experts stay. A second call changes nothing. The model's
    save_pretrained() is refused from then on, since from_pretrained() would read codes as values: state_dict() and
    `ingot.nn.save_float8_checkpoint()` save it. Gradients pass through the frozen experts to what is before them, adapters of
    linear layers for one.

    format: "float8", or that of weights whose activations stay in bfloat16 or float16, for decoding: "e2m1fn" (MXFP4), "e2m3fn",
    "e3m2fn", "e4m3fn", "e5m2" or a fnuz one, with a scale_inv for each 32 of a row in 4 and 6 bits and for each row in FP8
    (grouped_weight_only_linear()). Buffers are then bytes (experts, 1, bytes of an expert), packed for tensor cores, a
    `<name>_scale_inv` and a `<name>_packing`; state_dict() alone saves them, gradients do not pass, GPUs from sm_80 on run it, and
    sizes are any. load_float8_checkpoint() fills those of "e2m1fn" from a checkpoint in MXFP4, such as gpt-oss's, bit for bit.

    Raises LinearError for a model without stacked experts, for experts that have adapters themselves or are sharded (DTensors), for
    another format or one that the experts do not have already, and for sizes and GPUs as convert_experts_() does."""
    stacks = _stacks_of(model, "quantize_experts_", "quantize_()")
    check_format(stacks, format)
    if format == FLOAT8:
        _check_stacks(stacks, "quantize_experts_")
    _refuse_adapters_of_parameters(model)
    _refuse_sharded(stacks)
    for module in stacks.values():
        if CONVERSION in vars(module):
            vars(module)[CONVERSION].forget(module)
        for name in _WEIGHTS:
            weight = module._parameters.get(name)
            if weight is not None:
                values = weight.detach()
                rows = values.transpose(1, 2) if module.is_transposed else values
                _replace(module, name, rows) if format == FLOAT8 else store_experts(module, name, rows, format)
        module.config._experts_implementation = NAME
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and any(map(is_stack, module.modules())):  # not PEFT's, which saves adapters
            module.save_pretrained = _refuse_save_pretrained
    return list(stacks)


@dataclasses.dataclass
class _Conversion:
    """What convert_experts_() leaves on a module, for restore() of ingot.nn to undo."""

    former: Optional[str]  # the implementation of its config
    hook: RemovableHandle

    def forget(self, module: torch.nn.Module) -> None:
        """All but the implementation, which others may have set since."""
        module._modules.pop(_SCALES, None)
        self.hook.remove()
        for name in ("ingot_options", "ingot_fast_math", "ingot_is_clamped", CONVERSION):
            vars(module).pop(name, None)

    def undo(self, module: torch.nn.Module) -> None:
        self.forget(module)
        if module.config._experts_implementation == NAME:
            module.config._experts_implementation = self.former


def _former_implementations(stacks: Dict[str, torch.nn.Module]) -> Dict[str, Optional[str]]:
    """What restore() gives back to each one's config, which a stack that was converted alone may have switched already."""
    converted = [(module.config, vars(module)[CONVERSION].former) for module in stacks.values() if CONVERSION in vars(module)]
    others = {id(config): former for config, former in converted if former != NAME}
    now = {name: module.config._experts_implementation for name, module in stacks.items()}
    return {name: others.get(id(stacks[name].config), NAME) if each == NAME else each for name, each in now.items()}


def _note_conversion(module: torch.nn.Module, implementation: Optional[str]) -> None:
    conversion = vars(module).get(CONVERSION)
    if conversion is None:
        hook = module.register_load_state_dict_pre_hook(_drop_scales)
        vars(module)[CONVERSION] = _Conversion(implementation, hook)
    else:  # another one may have been set since
        conversion.former = implementation


def _drop_scales(module: torch.nn.Module, state_dict: Dict[str, torch.Tensor], prefix: str, *others) -> None:
    """Experts of another recipe load a state of delayed ones, as layers do. A hook before load_state_dict()."""
    if _SCALES not in module._modules:
        for name in [name for name in state_dict if name.startswith(f"{prefix}{_SCALES}.")]:
            del state_dict[name]


def _refuse_adapters_of_parameters(model: torch.nn.Module) -> None:
    """PEFT adds what its target_parameters learn to the parameter, which would be to codes. Known without PEFT: it may be absent."""
    for name, module in model.named_modules():
        if type(module).__name__ == "ParamWrapper" and any(map(is_stack, module.modules())):
            raise LinearError(
                f"quantize_experts_ {name}: has PEFT's adapter on its {module.parameter_name} (target_parameters), which would be added "
                "to FP8 codes: train it with convert_experts_(), whose experts stay in high precision, or merge_and_unload() it first"
            )


def _refuse_sharded(stacks: Dict[str, torch.nn.Module]) -> None:
    for name, module in stacks.items():
        if any(isinstance(module._parameters.get(weight), DTensor) for weight in _WEIGHTS):
            raise LinearError(
                f"quantize_experts_ {name or type(module).__name__}: is sharded (a DTensor): quantize before fully_shard() or expert parallelism"
            )


def _refuse_save_pretrained(*arguments, **named) -> NoReturn:
    """In the place of a model's own, which push_to_hub() calls too. A function without the model: copies and pickles have it, and
    the model stays out of cycles."""
    raise LinearError(
        "save_pretrained: quantize_experts_() made FP8 codes of this model's experts, which from_pretrained() would read as their "
        "values: write ingot.nn.save_float8_checkpoint(model, folder), or torch.save(model.state_dict(), file); to read it, call "
        "quantize_experts_() and then ingot.nn.load_float8_checkpoint(), or load_state_dict()"
    )


def _replace(module: torch.nn.Module, name: str, rows: torch.Tensor) -> None:
    experts, n, k = rows.shape
    codes, scale_inv = quantize_rows(rows.reshape(experts * n, k), _E4M3, 0)
    del module._parameters[name]
    module.register_buffer(name, codes.view(experts, n, k))
    module.register_buffer(f"{name}_scale_inv", scale_inv.view(experts, n))


def _scales_of(module: torch.nn.Module, name: str, history_length: int) -> ExpertScales:
    """For convert_experts_(): those that the module has, or new ones."""
    _refuse_divided(module, name)
    scales = module._modules.get(_SCALES)
    if scales is None:
        weight = module.down_proj
        return ExpertScales(weight.shape[0], 2, history_length, device=computing_device(weight), name=name)
    _refuse_scales_of_others(module, scales)
    if type(history_length) is not int or scales.history_length != history_length:
        raise LinearError(
            f'convert_experts_ history_length: is {history_length!r}, but the histories of experts "{name}" have {scales.history_length} '
            f'steps: give history_length={scales.history_length} to keep them, or drop them first by convert_experts_() with another recipe'
        )
    return scales


def _refuse_divided(module: torch.nn.Module, name: str) -> None:
    """Maxima of experts are reduced over ranks by their number, which expert parallelism gives to others on each rank."""
    divided = divided_of(module, module.down_proj.shape[0])
    if divided:
        raise LinearError(f'experts "{name}": {divided}, which "delayed" does not take: take "tensorwise"')


def _forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """transformers' experts function: hidden_states (tokens, hidden), of each token its experts and their weights (tokens, k). An
    index from the number of experts on, as expert parallelism has them of other ranks, counts as none. Only where a module has all of
    its experts is one wrong, if INGOT_CHECK_EXPERTS asks."""

    experts = self.down_proj.shape[0]
    has_all = has_all_experts(self, experts)
    options = getattr(self, "ingot_options", _DEFAULT)
    if has_all:
        top_k_index = checked_index(top_k_index, experts, options)
    has_all = has_all and torch.is_grad_enabled()
    activation = _activation_of(self)
    fused = _fused_activation(self, getattr(self, "ingot_is_clamped", False))
    if fused is not None:
        weights, biases = _operands_of_mlp(self)
        fast_math = getattr(self, "ingot_fast_math", False)
        delayed = _delayed_scales(self, hidden_states)
        return mlp_of_rows(hidden_states, top_k_index, top_k_weights, *weights, options, fast_math, has_all, biases, fused, delayed)
    delayed = _delayed_scales(self, hidden_states)
    first = lambda rows, of_rows, ends: _product(
        self, "gate_up_proj" if self.has_gate else "up_proj", rows, of_rows, ends, delayed=scales_of_layer(delayed, 0)
    )

    def second(hidden, of_rows, ends):
        if activation is None:
            hidden = self._apply_gate(hidden) if self.has_gate else self.act_fn(hidden)
        return _product(self, "down_proj", hidden, of_rows, ends, activation, scales_of_layer(delayed, 1))

    return routed(hidden_states, top_k_index, top_k_weights, experts, first, second, has_all)


def _delayed_scales(self, hidden_states: torch.Tensor) -> Optional[DelayedScales]:
    """Of a module whose recipe is "delayed"."""
    scales = self._modules.get(_SCALES)
    if scales is None:
        return None
    _refuse_scales_of_others(self, scales)
    return scales(hidden_states)


def _refuse_scales_of_others(module: torch.nn.Module, scales: ExpertScales) -> None:
    experts = module.down_proj.shape[0]
    if scales.experts != experts:
        raise LinearError(
            f'experts "{scales.layer_name}": has {experts} experts, but scales of {scales.experts}: expert parallelism has divided them, '
            'which "delayed" does not take: take "tensorwise"'
        )


def _activation_of(self) -> Optional[str]:
    """What the second product's cast can compute of the first one's output: a SwiGLU of two halves."""
    if _default_apply_gate is None or not self.has_gate:
        return None
    is_swiglu = type(self)._apply_gate is _default_apply_gate and isinstance(self.act_fn, _SILUS)
    return SWIGLU if is_swiglu and not hasattr(self, "down_proj_scale_inv") else None


def _has_numbers(module: torch.nn.Module) -> bool:
    """Are alpha and limit numbers? Tensors may train, and reading them would have the host wait."""
    return all(isinstance(getattr(module, name, None), (int, float)) for name in ("alpha", "limit"))


@torch.no_grad()
def _is_clamped(module: torch.nn.Module) -> bool:
    """Does it compute gpt-oss's activation of gate and up, which take turns in its columns, of numbers of all sizes?"""
    if not _has_numbers(module) or not module.has_gate or not module.has_bias:
        return False
    alpha, limit = float(module.alpha), float(module.limit)
    with unset_fake_temporarily():  # numbers, also where a model is recorded
        largest = 3 * max(abs(limit), 1)  # where the limit is 0, others are 0 at 0 as well
        sizes = torch.linspace(-largest, largest, 61, dtype=torch.float32, device="cpu")
        gate, up = torch.meshgrid(sizes, sizes, indexing="ij")
        found = module._apply_gate(torch.stack((gate, up), -1).flatten(1))
        clamped = gate.clamp(max=limit)
        expected = clamped * torch.sigmoid(alpha * clamped) * (up.clamp(-limit, limit) + 1)
        return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def _clamped_gate(module: torch.nn.Module) -> Optional[str]:
    """gpt-oss's activation as an expression, with the numbers that the module has now; None if no expression has them."""
    if not _has_numbers(module):
        return None
    # As texts: a compiler that has seen other numbers takes them for symbols, which no expression may have.
    return _clamped_of(float(module.alpha).hex(), float(module.limit).hex())


@torch.compiler.assume_constant_result
def _clamped_of(alpha: str, limit: str) -> Optional[str]:
    of_alpha, of_limit = float.fromhex(alpha), float.fromhex(limit)
    largest = torch.finfo(torch.float32).max
    is_expressible = abs(of_alpha) <= largest and 0 <= of_limit <= largest  # torch.clamp() takes the upper of crossed limits
    return _core.torch_clamped_swiglu(of_alpha, of_limit) if is_expressible else None


def _fused_activation(self, is_clamped: bool) -> Optional[str]:
    """What experts_mlp() computes between the products; None for other modules, and for weights that FSDP2 gathers in FP8, of
    which no columns are put in another order. is_clamped: of _is_clamped(), which convert_experts_() asks."""
    if hasattr(self, "down_proj_scale_inv"):
        return None
    return _clamped_gate(self) if is_clamped and not is_gathered(self.gate_up_proj) else _activation_of(self)


def _operands_of_mlp(self) -> Tuple[Tuple[torch.Tensor, torch.Tensor], Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]]:
    """Both weights (experts, N, K), and the biases. Of pairs of gate and up, (experts, 2, N / 2, K), and all gates' biases first."""
    gate_up, down = (_weight_of(self, name) for name in ("gate_up_proj", "down_proj"))
    bias, down_bias = (getattr(self, name) if self.has_bias else None for name in ("gate_up_proj_bias", "down_proj_bias"))
    if getattr(self, "ingot_is_clamped", False):
        gate_up = gate_up.unflatten(1, (-1, 2)).transpose(1, 2)
        bias = bias.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1)
    return (gate_up, down), (bias, down_bias)


def _weight_of(self, name: str) -> torch.Tensor:
    """(experts, N, K), in high precision."""
    weight = getattr(self, name)
    return weight.transpose(1, 2) if self.is_transposed else weight


def _product(
    self,
    name: str,
    rows: torch.Tensor,
    of_rows: torch.Tensor,
    ends: torch.Tensor,
    activation: Optional[str] = None,
    delayed: Optional[DelayedScales] = None,
) -> torch.Tensor:
    weight, scale_inv = getattr(self, name), getattr(self, f"{name}_scale_inv", None)
    if is_weight_only(self, name):
        return multiply_stored(self, name, rows, ends)
    if scale_inv is not None:
        if weight.dtype not in FORMATS:
            raise LinearError(
                f"{name}: is {weight.dtype}, but quantize_experts_() made FP8 codes of it: a conversion such as model.bfloat16() has "
                "destroyed them: convert the model first, then quantize it"
            )
        out = grouped_linear(rows, weight, scale_inv, ends)
    else:
        options = getattr(self, "ingot_options", _DEFAULT)
        bias = getattr(self, f"{name}_bias") if self.has_bias else None
        how = {"options": options, "activation": activation, "bias": bias, "delayed": delayed}
        return grouped_linear(rows, _weight_of(self, name), ends=ends, **how)
    if self.has_bias:
        out = out + getattr(self, f"{name}_bias")[of_rows.clamp(max=ends.numel() - 1)].to(out.dtype)
    return out


def run_products(model: torch.nn.Module, tokens: Sequence[int], dtype: torch.dtype, recipe: Optional[str]) -> None:
    """Runs the products of each kind of a model's stacked experts on tensors whose values are undefined, for ingot.record: forward
    and backward by a recipe, or with FP8 weights as quantize_experts_() makes them (None). Weights may be on meta. A model without
    such experts does nothing."""
    seen: Set[_Kind] = set()
    for module in filter(is_stack, model.modules()):
        for fast in (False, True):
            clamped = recipe is not None and _is_clamped(module)  # as if it were converted
            _run_stack(module, tokens, (dtype, dtype), recipe, clamped, (fast and recipe != "blockwise", fast), seen)


def run_converted(model: torch.nn.Module, tokens: Sequence[int], dtype: Optional[torch.dtype]) -> None:
    """As run_products(), of the experts that convert_experts_() or quantize_experts_() converted, as these compute, and forward
    alone where gradients are off, for ingot.torch.prepare(). dtype: the rows'; None for the weights', or with codes the model's
    own."""
    seen: Set[_Kind] = set()
    of_model = next((each.dtype for each in model.parameters() if each.dtype in HIGH_PRECISION), torch.bfloat16)
    for module in map(model.get_submodule, converted_of(model)):
        quantized = hasattr(module, "down_proj_scale_inv")
        options = getattr(module, "ingot_options", _DEFAULT)
        fast = options.fast_gradients, getattr(module, "ingot_fast_math", False)
        dtypes = dtype or of_model if quantized else dtype or module.down_proj.dtype, module.down_proj.dtype
        clamped = getattr(module, "ingot_is_clamped", False)
        _run_stack(module, tokens, dtypes, None if quantized else options.recipe, clamped, fast, seen)


def converted_of(model: torch.nn.Module) -> List[str]:
    """The names of the modules of stacked experts that run by Ingot."""
    modules = model.named_modules()
    return [name for name, module in modules if is_stack(module) and module.config._experts_implementation == NAME]


def _run_stack(
    module: torch.nn.Module,
    tokens: Sequence[int],
    dtypes: Tuple[torch.dtype, torch.dtype],
    recipe: Optional[str],
    is_clamped: bool,
    fast: Tuple[bool, bool],
    seen: Set[_Kind],
) -> None:
    chosen = getattr(module.config, "num_experts_per_tok", 1)
    fused = _fused_activation(module, is_clamped) if recipe is not None else None
    if fused is not None:
        kind = (*_weight_of(module, "down_proj").shape, chosen, dtypes, recipe, fast, module.has_bias, fused)
        if kind not in seen:
            seen.add(kind)
            _run_mlp(kind, tokens)
        return
    for name in _WEIGHTS:
        weight = getattr(module, name, None)
        if weight is None:
            continue
        if is_weight_only(module, name):
            run_stored(module, name, [count * chosen for count in tokens], dtypes[0], seen)
            continue
        is_transposed = module.is_transposed and not hasattr(module, f"{name}_scale_inv")
        experts, n, k = weight.transpose(1, 2).shape if is_transposed else weight.shape
        activation = _activation_of(module) if name == "down_proj" else None
        kind = experts, n, k, chosen, activation, dtypes, recipe, fast, module.has_bias
        if kind not in seen:
            seen.add(kind)
            _run_product(kind, tokens)


def _scales_to_run(recipe: Optional[str], experts: int, layers: int) -> List[Optional[DelayedScales]]:
    """Of each state whose steps launch different kernels."""
    if recipe != "delayed":
        return [None]
    sizes = layers, 3, experts
    return [DelayedScales(torch.ones(sizes), torch.zeros(sizes), starts) for starts in (True, False)]


def _run_mlp(kind: _Kind, tokens: Sequence[int]) -> None:
    experts, features, intermediate, chosen, (dtype, of_weights), recipe, (fast_gradients, fast_math), has_bias, activation = kind
    gate_up = torch.empty(experts, 2 * intermediate, features, dtype=of_weights, requires_grad=True)
    down = torch.empty(experts, features, intermediate, dtype=of_weights, requires_grad=True)
    options = LinearOptions(recipe, "experts", fast_gradients=fast_gradients)
    biased = [torch.empty(each.shape[:2], dtype=of_weights, requires_grad=True) if has_bias else None for each in (gate_up, down)]
    for count in tokens:
        hidden = torch.empty(count, features, dtype=dtype, requires_grad=True)
        weights = torch.empty(count, chosen, dtype=dtype, requires_grad=True)
        index = torch.zeros(count, chosen, dtype=torch.int64)
        for delayed in _scales_to_run(recipe, experts, 2):
            arguments = hidden, index, weights, gate_up, down, options, fast_math, True, tuple(biased), activation, delayed
            with torch.no_grad():
                mlp_of_rows(*arguments)
            if torch.is_grad_enabled():
                output = mlp_of_rows(*arguments)
                inputs = hidden, weights, gate_up, down, *(each for each in biased if each is not None)
                torch.autograd.grad(output, inputs, torch.empty_like(output))


def _run_product(kind: _Kind, tokens: Sequence[int]) -> None:
    experts, n, k, chosen, activation, (dtype, of_weights), recipe, (fast_gradients, _), has_bias = kind
    ends = torch.zeros(experts, dtype=torch.int32)
    weight = torch.empty(experts, n, k, dtype=of_weights, requires_grad=recipe is not None)
    if recipe is None:
        codes, scale_inv = weight, torch.empty(experts * n)
        if of_weights not in FORMATS:
            codes, scale_inv = quantize_rows(weight.view(experts * n, k), _E4M3, 0)
        codes, scale_inv = codes.view(experts, n, k), scale_inv.view(experts, n)
    for count in tokens:
        rows = count * chosen
        if recipe is None:
            input = torch.empty(rows, k, dtype=dtype, requires_grad=torch.is_grad_enabled())
            output = grouped_linear(input, codes, scale_inv, ends)
            if torch.is_grad_enabled():
                torch.autograd.grad(output, input, torch.empty_like(output))
            continue
        columns = 2 * k if activation is not None else k
        input = torch.empty(rows, columns, dtype=dtype, requires_grad=True)
        options = LinearOptions(recipe, "experts", fast_gradients=fast_gradients)
        bias = torch.empty(experts, n, dtype=of_weights, requires_grad=True) if has_bias else None
        for delayed in _scales_to_run(recipe, experts, 1):
            how = {"options": options, "activation": activation, "bias": bias, "delayed": delayed}
            with torch.no_grad():
                grouped_linear(input, weight, ends=ends, **how)
            if torch.is_grad_enabled():
                output, inputs = grouped_linear(input, weight, ends=ends, **how), (input, weight) if bias is None else (input, weight, bias)
                torch.autograd.grad(output, inputs, torch.empty_like(output))


ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)

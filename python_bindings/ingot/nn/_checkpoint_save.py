"""save_float8_checkpoint(): FP8 weights written in the layouts of public models."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import re
from typing import Any, Callable, Iterator, Optional, Union

import torch
from torch.distributed.fsdp import FSDPModule

from .._arrays import file_name
from .._core import Error
from .._text import counted, printable, some_of
from ..torch import _codes
from ..torch._errors import LinearError
from ..torch._operators import HIGH_PRECISION
from ..torch._progress import progress
from ..torch._saying import warn
from ..torch._stored_experts import FLOAT8, divided_of, format_of
from ._checkpoint_files import NAMES, write_folder, write_tensors
from ._checkpoint_names import Place, check_model, is_adapted, places, unwrapped
from ._checkpoint_ranks import Ranks, gathered_dtype, is_sharded, whole
from ._checkpoint_renames import OF_EXPERTS, FileNames
from ._checkpoint_stacks import has_stacks_in_float8
from ._delayed import KeepsScales
from ._float8_linear import Float8Linear
from ._fused_parts import SharedPart
from ._frozen_linear import RECIPE_OF, FrozenFloat8Linear
from ._norm_linear import _NormLinear
from ._parts import LinearParameters
from ._stored_linear import StoredLinear
from ._weight_only import WeightOnlyLinear

_SCALE_OF_RECIPE = {
    "tensorwise": "tensor",
    "delayed": "tensor",
    "rowwise": "row",
    "rowwise_folded": "row",
    "rowwise_with_gw_hp": "row",
    "blockwise": "128x128",
}
_SCALE_NAMES = ("weight_scale", "weight_scale_inv")
_SUBJECT = "save_float8_checkpoint"
_LAYERS = (torch.nn.Linear, LinearParameters, _NormLinear)
# from_pretrained() would take the codes of a stack for values, without a word. compressed-tensors raises for this, and shows it.
_FOR_US = "for ingot.nn.load_float8_checkpoint() alone"


@dataclasses.dataclass
class _Float8:
    """A weight that is stored in FP8: codes and scale_inv that are there (scale_inv), or a weight to cast."""

    names: tuple[str, ...]  # the file's of the layer, and the model's if it is another one; the file's of the module of experts
    weight: torch.Tensor
    kind: str  # what shares a factor
    pow2: bool = False
    scale_inv: Optional[torch.Tensor] = None
    rounds_to: Optional[torch.dtype] = None  # before the cast, as FSDP's mixed precision does
    is_static: bool = False  # has the layer's input a static scale?
    of_experts: bool = False


@dataclasses.dataclass
class _Contents:
    """What a file gets, in its order and by the model's names: tensors as they are, and weights in FP8. stored: what the file calls
    each of them, a list for the layers that it has of a stack of experts or of one layer."""

    tensors: dict[str, Union[torch.Tensor, _Float8]] = dataclasses.field(default_factory=dict)
    stored: dict[str, Union[str, list[str]]] = dataclasses.field(default_factory=dict)
    ignored: list[tuple[str, ...]] = dataclasses.field(default_factory=list)  # the names of layers in high precision
    ignored_experts: list[str] = dataclasses.field(default_factory=list)

    @property
    def float8(self) -> list[_Float8]:
        return [each for each in self.tensors.values() if isinstance(each, _Float8)]

    @property
    def has_stacks(self) -> bool:
        """Of codes of experts, not divided into layers."""
        of_experts = [name for name, each in self.tensors.items() if isinstance(each, _Float8) and each.of_experts]
        return any(isinstance(self.stored[name], str) for name in of_experts)


def _trained_with(module: torch.nn.Module, recipes: dict[torch.nn.Module, str]) -> tuple[Optional[str], bool]:
    """Returns how training casts the weight, so that the stored codes are those that it multiplied by: what shares a
    factor, None for high precision, and whether scales are powers of two. recipes: of the weights that a module around
    them multiplies by."""
    if hasattr(module, "_cast_of_weight"):  # a layer of ingot.float8
        return module._cast_of_weight()
    recipe = recipes.get(module)
    if recipe is None and isinstance(module, (Float8Linear, _NormLinear)):
        recipe = module.options.recipe
    if isinstance(module, SharedPart):
        recipe = module.computed_by.options.recipe
    kind = _SCALE_OF_RECIPE.get(recipe or "")
    return kind, kind == "row"


def _of_training(module: torch.nn.Module, key: str) -> bool:
    """Is this a buffer of delayed or static scales?"""
    return isinstance(module, KeepsScales) and key.startswith("fp8_") and key in module._buffers


def _is_layer(module: torch.nn.Module) -> bool:
    """Do readers have this module as a linear layer? Routers of transformers 5 multiply by a weight of their own."""
    if isinstance(module, _LAYERS):
        return True
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() == 2 and not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))


class _Collector:
    def __init__(self, model: torch.nn.Module, scale: Optional[str], names: FileNames) -> None:
        self._scale, self._names = scale, names
        self._recipes: dict[torch.nn.Module, str] = {}
        self._seen: set[int] = set()
        self.contents = _Contents()
        self._kept = tuple(getattr(unwrapped(model), "_keep_in_fp32_modules", None) or ())
        all_places = list(places(model))
        self._tied = {
            id(parameter)
            for place in all_places
            if not isinstance(place.module, _LAYERS)
            for parameter in place.module._parameters.values()
            if parameter is not None
        }
        modules: set[torch.nn.Module] = set()
        for place in all_places:
            if place.module not in modules:
                modules.add(place.module)
                self._take(place)

    def _take(self, place: Place) -> None:
        module, contents = place.module, self.contents
        if is_adapted(place):
            raise LinearError(
                f'{_SUBJECT} "{printable(place.name)}": has adapters of PEFT, which such a checkpoint has no place for: '
                "save them by the PEFT model's save_pretrained(), and pass its unload() here, or merge them first"
            )
        recipe = getattr(getattr(module, "options", None), "recipe", None)
        for part in module._modules.values():
            if isinstance(part, LinearParameters) and recipe is not None:
                self._recipes[part] = recipe
        stored = self._float8_of(place)
        if stored is not None:
            self._put(place, "weight", stored)
            if stored.is_static:
                self._put(place, "input_scale", module.input_scale)
        elif _is_layer(module):
            contents.ignored.append(self._names_of(place))
        stacks = self._stacks_of(place)
        for key, each in stacks.items():
            self._put(place, key, each)
        quantized = isinstance(module, StoredLinear)
        for key, tensor in [*module._parameters.items(), *({} if quantized else module._buffers).items()]:
            if tensor is None or key in module._non_persistent_buffers_set or _of_training(module, key):
                continue
            if key.removesuffix("_scale_inv") in stacks:
                continue
            if id(tensor) not in self._seen and not (stored is not None and key == "weight"):
                self._seen.add(id(tensor))
                self._put(place, key, tensor)

    def _put(self, place: Place, key: str, each: Union[torch.Tensor, _Float8]) -> None:
        name = place.prefix + key
        self.contents.tensors[name] = each
        parts = self._names.of_parts(place, key, each.weight if isinstance(each, _Float8) else each)
        self.contents.stored[name] = parts or self._names.of(name)

    def _names_of(self, place: Place) -> tuple[str, ...]:
        """A layer's for config.json: as its tensors are called in the file, which engines know, and as transformers has the layer,
        whose compressed-tensors looks among its modules."""
        name = self._names.of_layer(place.name)
        return (name, place.name) if name != place.name and isinstance(place.module, _LAYERS) else (name,)

    def _stacks_of(self, place: Place) -> dict[str, _Float8]:
        """Stacks of experts in FP8, by their keys."""
        module, name = place.module, self._names.of_layer(place.name)
        if not has_stacks_in_float8(_SUBJECT, place):
            stacks = {key: each for key in OF_EXPERTS if (each := module._parameters.get(key)) is not None and each.dim() == 3}
            self._refuse_divided(place, stacks)
            has_layers = all(self._names.of_experts(place, key, each) for key, each in stacks.items())
            if self._scale is not None and has_layers and hasattr(module, "ingot_options"):  # of convert_experts_()
                made = functools.partial(_Float8, (name,), kind=self._scale, of_experts=True)
                return {key: made(weight=each, rounds_to=gathered_dtype(each)) for key, each in stacks.items()}
            if stacks:
                self.contents.ignored_experts.append(name)
            return {}
        if format_of(module) != FLOAT8:
            raise LinearError(
                f'{_SUBJECT} "{printable(place.name)}": has {format_of(module)} weights by activations in 16 bits, which this does '
                "not write: save the model's state_dict()"
            )
        buffers = module._buffers
        found = {key: each for key, each in buffers.items() if f"{key}_scale_inv" in buffers}
        self._refuse_divided(place, found)
        made = functools.partial(_Float8, (name,), kind="row", of_experts=True)
        return {key: made(weight=each, scale_inv=buffers[f"{key}_scale_inv"]) for key, each in found.items()}

    @staticmethod
    def _refuse_divided(place: Place, stacks: dict[str, torch.Tensor]) -> None:
        """DTensors have the sizes of the whole, and are gathered."""
        divided = divided_of(place.module, stacks["down_proj"].shape[0]) if "down_proj" in stacks else None
        if divided:
            raise LinearError(
                f'{_SUBJECT} "{printable(place.name)}": {divided}, and the file would number each rank\'s from 0: divide them as DTensors '
                "(Shard(0)), which are gathered here, or bring all of them together first"
            )

    def _float8_of(self, place: Place) -> Optional[_Float8]:
        module, names = place.module, self._names_of(place)
        if isinstance(module, FrozenFloat8Linear):
            is_static = module.input_scale is not None
            return _Float8(names, module.codes(), module.scale, scale_inv=module.weight_scale, is_static=is_static)
        if isinstance(module, WeightOnlyLinear):
            if module.weight_dtype not in ("e4m3fn", "e5m2") or module.scale not in (*RECIPE_OF, "1x128"):
                raise LinearError(
                    f'{_SUBJECT} "{printable(place.name)}": has {module.weight_dtype} weights with scale={module.scale}, which '
                    "this does not write: save its state_dict()"
                )
            codes = module.codes().view(_codes.FLOAT8[module.weight_dtype])
            return _Float8(names, codes, module.scale, scale_inv=module.weight_scale)
        if not isinstance(module, (Float8Linear, LinearParameters, _NormLinear)):
            return None
        own, pow2 = _trained_with(module, self._recipes)
        kind = self._scale or own
        if kind is None or id(module.weight) in self._tied:  # what an embedding shares is stored once, as it is
            return None
        if f".{place.name}".endswith(tuple(f".{kept}" for kept in self._kept)):  # readers take codes of it for values
            return None
        return _Float8(names, module.weight, kind, pow2, rounds_to=gathered_dtype(module.weight))


def _fault(contents: _Contents) -> Optional[str]:
    """Why these tensors cannot be written; None if they can."""
    for name, each in contents.tensors.items():
        tensor = each.weight if isinstance(each, _Float8) else each
        where = f'{_SUBJECT} "{printable(name)}"'
        if tensor.is_meta:
            return f"{where}: is on meta, without values: load the model first"
        if tensor.layout != torch.strided or tensor.is_nested:
            return f"{where}: is no plain tensor ({tensor.layout}), which safetensors files lack: call .to_dense() on it"
        if tensor.dtype not in NAMES:
            return f"{where}: is {tensor.dtype}, which safetensors files lack"
        if isinstance(each, _Float8) and each.scale_inv is None and tensor.dtype not in HIGH_PRECISION:
            return f"{where}: is {tensor.dtype}, but FP8 is cast from float32, float16 and bfloat16: convert it with .to()"
    if not contents.float8:
        return (
            f"{_SUBJECT} model: has no layer that is stored in FP8: quantize_() it first, or quantize_experts_() for stacks of "
            "experts, train with a recipe that casts the weights, or pass scale= for modules of ingot.nn in high precision "
            "and experts of convert_experts_()"
        )
    return None


def float8_quantization_config(scale: str, ignored: list[str], static: bool = False) -> dict[str, Any]:
    """What config.json says of a model whose linear layers have such scale_inv, for transformers and inference engines:
    quant_method "fp8" for blocks, else compressed-tensors' float-quantized. `ignored` are linear layers in high
    precision; static: activations have an input_scale."""
    if scale == "128x128":
        return {
            "quant_method": "fp8",
            "activation_scheme": "static" if static else "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": list(ignored),
        }
    return _of_groups({"group_0": _group(scale, ["Linear"], static)}, ignored)


def _group(scale: str, targets: list[str], static: bool) -> dict[str, Any]:
    """A group of compressed-tensors' config: layers with scale_inv of one kind."""
    number = {"num_bits": 8, "type": "float", "symmetric": True}
    weights: dict[str, Any] = {
        "tensor": {"strategy": "tensor"},
        "row": {"strategy": "channel"},
        "1x128": {"strategy": "group", "group_size": 128},
        "128x128": {"strategy": "block", "block_structure": [128, 128]},
    }[scale]
    inputs = {"tensor": {"strategy": "tensor"}, "row": {"strategy": "token"}}.get(scale, {"strategy": "group", "group_size": 128})
    if static:
        inputs = {"strategy": "tensor"}
    return {
        "targets": targets,
        "weights": {**number, **weights, "dynamic": False},
        "input_activations": {**number, **inputs, "dynamic": not static},
    }


def _of_groups(groups: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(ignored),
    }


def _config_of(contents: _Contents) -> dict[str, Any]:
    """Of layers with scale_inv of several kinds, each kind is a group of compressed-tensors' config that names them."""
    static_kinds = {each.kind for each in contents.float8 if each.is_static}
    kinds: dict[tuple[str, bool], dict[str, None]] = {}
    for each in contents.float8:
        static = each.kind in static_kinds and not each.of_experts
        names = map(_all_of, each.names) if each.of_experts else each.names
        kinds.setdefault((each.kind, static), {}).update(dict.fromkeys(names))
    if {kind for kind, _ in kinds} == {"128x128"} and len(kinds) == 1:
        ignored = [*(names[0] for names in contents.ignored), *contents.ignored_experts]
    else:
        ignored = [*(name for names in contents.ignored for name in names), *map(_all_of, contents.ignored_experts)]
    if len(kinds) == 1:
        ((kind, static),) = kinds
        return float8_quantization_config(kind, ignored, static)
    groups = {f"group_{at}": _group(kind, [*kinds[kind, static]], static) for at, (kind, static) in enumerate(sorted(kinds))}
    return _of_groups(groups, ignored)


def _all_of(experts: str) -> str:
    """compressed-tensors' name for the layers of each expert of a module."""
    return f"re:{re.escape(experts)}\\..*"


def save_float8_checkpoint(
    model: torch.nn.Module,
    path: Union[str, os.PathLike],
    *,
    scale: Optional[str] = None,
    scale_name: Optional[str] = None,
    published_names: bool = True,
) -> dict[str, Any]:
    """Writes a model: FP8 layers as codes and scale_inv, all other tensors as they are. Returns its quantization_config.

    Stored in FP8 are FrozenFloat8Linear, WeightOnlyLinear of e4m3fn and e5m2, and the weights of trained Float8Linear
    layers and of the modules of several parts (GatedMlp ...), cast as their recipe casts them, or with `scale` ("tensor",
    "row" or "128x128"). Experts that ingot.integrations.experts.quantize_experts_() made are written as they are, with a scale_inv for
    each row; those that convert_experts_() has trained are cast with `scale`, where files of their family have a layer of each, and
    stay in high precision without. Other linear layers, those that share their weight with an embedding, and trained ones that a model of
    transformers keeps in float32 (`_keep_in_fp32_modules`) stay as they are; with experts and routers in high precision they are
    listed as not converted. path: a .safetensors file, or a folder,
    which gets model.safetensors and a config.json, that of the model's `config` or what was there, with
    quantization_config, and generation_config.json for a model that has one.

    Names are those of the model without wrappers (torch.compile, checkpoint_wrapper, DDP). Of a mixture of experts whose family
    docs/checkpoints.md has (config.model_type) they are those of its published files, as transformers' save_pretrained() writes them:
    the layers of each expert instead of a stack, Mixtral's block_sparse_moe; those of the model with published_names=False. scale_name:
    weight_scale or weight_scale_inv; default: as engines expect for the layout. All bits of codes and scale_inv come back by
    load_float8_checkpoint(), those of quantized experts after quantize_experts_(). Extra state of modules (get_extra_state()), which is no
    tensor of the model, is not written; a warning names them.

    A save that fails or is killed leaves the old checkpoint or the new one, whole; what the new one replaces in a folder,
    also model-xxxxx-of-xxxxx.safetensors and their index, is then removed, as by transformers' save_pretrained(). With
    sharded parameters (fully_shard, DTensor) all ranks call this; each tensor is gathered, and the lowest rank writes.
    Layers with scale_inv of several kinds (a model of several recipes) make a config of compressed-tensors with a group for
    each kind, which names its layers. That of stacks of experts in FP8, which gpt-oss, GraniteMoe and Hunyuan 4 have, and others with
    published_names=False, has a quantization_status for which from_pretrained() raises. Raises LinearError for a model without
    layers in FP8, for adapters of PEFT, for experts of which expert parallelism has left a part in the module (DTensors are
    whole), and for ranks whose models differ.
    """
    check_model(_SUBJECT, model)
    for what, value, known in (("scale", scale, tuple(RECIPE_OF)), ("scale_name", scale_name, _SCALE_NAMES)):
        if value is not None and value not in known:
            raise LinearError(f"{_SUBJECT} {what}: {printable(value)!r} is not one of {', '.join(known)}")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # else it may hold a gathered copy, in 16 bits
    ranks = Ranks([*model.parameters(), *model.buffers()])
    contents, fault = _Contents(), None
    try:
        contents = _Collector(model, scale, FileNames(model, published_names)).contents
        fault = _fault(contents)
    except LinearError as error:
        fault = str(error)
    ranks.agree(_SUBJECT, {name: _facts(each) for name, each in contents.tensors.items()}, fault)
    _warn_of_extra_state(model)
    config = _config_of(contents)
    if contents.has_stacks:
        config["quantization_status"] = _FOR_US
    if config["quant_method"] == "compressed-tensors":
        scale_name = scale_name or "weight_scale"
    with progress("weights are cast", len(contents.tensors) if ranks.writes else 0) as step:
        tensors, fault = _gathered(contents, scale_name, ranks, step)
    if ranks.writes and fault is None:
        try:
            _write(pathlib.Path(file_name(path, f"{_SUBJECT} path")), tensors, unwrapped(model), config)
        except Error as error:
            fault = str(error)
        except Exception as error:  # the other ranks wait for its end
            if not ranks.several:
                raise
            fault = f"{_SUBJECT}: {error}"
    ranks.raise_first(fault)
    return config


def _warn_of_extra_state(model: torch.nn.Module) -> None:
    of_none = torch.nn.Module.get_extra_state
    names = {place.module: place.name or "the model" for place in places(model) if type(place.module).get_extra_state is not of_none}
    if names:
        what = f"{counted(len(names), 'module has', 'modules have')} ({some_of(names.values())})"
        warn(f"{_SUBJECT}: the extra state that {what} is not written: save the model's state_dict()")


def _facts(each: Union[torch.Tensor, _Float8]) -> str:
    """Returns what ranks that gather a tensor together must agree on."""
    tensor = each.weight if isinstance(each, _Float8) else each
    text = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if isinstance(each, _Float8):
        text += f", FP8 with scale={each.kind}" + (", powers of two" if each.pow2 else "")
        text += f", rounded to {str(each.rounds_to).removeprefix('torch.')}" if each.rounds_to else ""
    return text + (f", {getattr(tensor, 'placements')}" if is_sharded(tensor) else "")


def _gathered(contents: _Contents, scale_name: Optional[str], ranks: Ranks, step: Callable[[], object]):
    """The file's tensors on the host, of the rank that writes, and what has gone wrong with one of them. Every rank
    takes part in each gathering, also after an error."""
    tensors: dict[str, torch.Tensor] = {}
    fault: Optional[str] = None
    for name, each in contents.tensors.items():
        value = whole(each.weight if isinstance(each, _Float8) else each)
        scale_inv = whole(each.scale_inv) if isinstance(each, _Float8) and each.scale_inv is not None else None
        step()
        if not ranks.writes or fault is not None:
            continue
        try:
            for stored, part, of_part in _parts(contents.stored[name], value, scale_inv):
                if isinstance(each, _Float8) and of_part is None:
                    part, of_part = _cast(each, name, part)
                tensors[stored] = _on_host(part)
                if of_part is not None:
                    tensors[_name_of_scale(stored, each.kind, scale_name)] = _on_host(of_part)
        except Exception as error:
            if not ranks.several:
                raise
            fault = str(error) if isinstance(error, LinearError) else f'{_SUBJECT} "{printable(name)}": {error}'
    return tensors, fault


def _cast(each: _Float8, name: str, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale_inv = _codes.cast(value.to(each.rounds_to or value.dtype), "e4m3fn", each.kind, each.pow2, each.names[0])
    if not scale_inv.isfinite().all():
        raise LinearError(
            f'{_SUBJECT} "{printable(name)}": has values that are Inf or NaN, which would spoil all that share their factor: mend the '
            "weight first"
        )
    return codes.view(torch.float8_e4m3fn), scale_inv


def _parts(
    names: Union[str, list[str]], value: torch.Tensor, scale_inv: Optional[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, Optional[torch.Tensor]]]:
    """What the file has of a tensor. Layers of experts are parts of a stack's rows, and each row's scale_inv a row of its own."""
    if isinstance(names, str):
        yield names, value, scale_inv
        return
    count = len(names)
    is_stack = count % value.shape[0] == 0  # of experts; else of rows
    rows = value.flatten(0, 1) if is_stack else value
    scales = [None] * count if scale_inv is None else scale_inv.reshape(count, -1, 1).unbind()
    yield from zip(names, rows.unflatten(0, (count, -1)).unbind(), scales)


def _name_of_scale(weight: str, kind: str, given: Optional[str]) -> str:
    """A stack of experts by another name has its scale_inv as a buffer of the model has it."""
    prefix, is_weight, rest = weight.rpartition("weight")
    if not is_weight or rest:
        return f"{weight}_scale_inv"
    return prefix + (given or ("weight_scale_inv" if kind == "128x128" else "weight_scale"))


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def _write(path: pathlib.Path, tensors: dict[str, torch.Tensor], model: torch.nn.Module, quantization) -> None:
    if path.suffix == ".safetensors":
        write_tensors(path, tensors)
        return

    def changes(old: Optional[dict[str, Any]]) -> dict[str, Any]:
        config, own = dict(old or {}), getattr(model, "config", None)
        if hasattr(own, "to_diff_dict"):
            config = json.loads(own.to_json_string())
            config["architectures"] = config.get("architectures") or [type(model).__name__]
            dtype = getattr(model, "dtype", None)  # as save_pretrained(): .to() leaves the config's as it was
            if dtype in (torch.float32, torch.bfloat16, torch.float16):
                config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
        return {**config, "quantization_config": quantization}

    write_folder(path, tensors, changes, _generation_of(model))


def _generation_of(model: torch.nn.Module) -> Optional[dict[str, Any]]:
    """The defaults of generate(), of a model of transformers that has them."""
    config = getattr(model, "generation_config", None)
    if not hasattr(config, "to_json_string") or not getattr(model, "can_generate", lambda: True)():
        return None
    return json.loads(config.to_json_string())

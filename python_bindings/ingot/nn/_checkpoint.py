"""load_float8_checkpoint(): FP8 checkpoints in the layouts of public models, loaded whole or not at all.

First everything is looked up and checked, then all values are read, and only then the model changes; an error on the way
takes the changes back. Files are read by the core (docs/checkpoints.md), so that no other package is needed.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Iterable, Optional, Union

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedTensorMixin

from .._arrays import file_name
from .._text import printable, some_of
from ..torch import _codes
from ..torch._errors import LinearError
from ..torch._modules import take_hooks
from ._checkpoint_files import Reader
from ._checkpoint_layouts import SCALES, check_quantization, read_scales, scale_kind, scale_of, spread
from ._checkpoint_names import Place, check_model, places, put, trains_a_copy
from ._checkpoint_ranks import is_gathered_in_float8, is_sharded
from ._delayed import KeepsScales
from ._float8_linear import Float8Linear
from ._frozen_linear import FrozenFloat8Linear
from ._mlp import GatedMlp
from ._stored_linear import StoredLinear
from ._weight_only import WeightOnlyLinear

_OF_WEIGHT_ONLY = (torch.bfloat16, torch.float16)
_KINDS = {"weight_only": WeightOnlyLinear, "frozen": FrozenFloat8Linear}
_OF_INPUT = ("input_scale", "activation_scale")
_OF_CACHE = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_output_scale")
_SUBJECT = "load_float8_checkpoint"


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """What load_float8_checkpoint() did. str() is a few lines.

    layers: those that are FP8 now. missing: tensors that the model wanted and the checkpoint lacks; they include
    buffers on meta that no checkpoint has, which the caller has to make. unexpected: tensors that the model has no
    place for. decoded: weights that the checkpoint has in FP8 and the model in high precision, with their values. note:
    what the caller has yet to do ("" if nothing).
    """

    layers: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    decoded: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers are FP8: {some_of(self.layers)}" if self.layers else "no layer is FP8"]
        for what, names in (
            ("FP8 weights decoded into weights of higher precision", self.decoded),
            ("tensors of the model that the checkpoint lacks", self.missing),
            ("tensors of the checkpoint that the model has no place for", self.unexpected),
        ):
            if names:
                lines.append(f"{len(names)} {what}: {some_of(names)}")
        return "\n".join([*lines, *([self.note] if self.note else [])])


# ---- the plan: what goes where -------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Target:
    """A parameter or buffer, and the tensors of the file that are its values, one below the other."""

    place: Place
    key: str
    tensor: torch.Tensor
    sources: list[str]

    @property
    def is_parameter(self) -> bool:
        return self.key in self.place.module._parameters


class _Plan:
    """What a load will do. Making it reads nothing but names, shapes and dtypes, and raises what does not fit."""

    def __init__(self, model: torch.nn.Module, reader: Reader, kind: type) -> None:
        self.reader, self._kind = reader, kind
        self.used: set[str] = set()
        self.layers: dict[torch.nn.Module, list[Place]] = {}
        self.targets: list[_Target] = []
        self.missing: list[str] = []
        self.decoded: list[str] = []
        self.scales_of: dict[torch.nn.Module, dict[str, str]] = {}  # buffers of delayed scales: own names, and the file's
        self.left_on_meta: list[str] = []
        self.places = list(places(model))
        for place in self.places:
            self._check(place)
        self._find_layers()
        loaded: set[int] = set()  # parameters may be tied: one name is enough
        for place in self.places:
            if place.module not in self.layers:
                self._find_tensors(place, loaded)
        tensors = dict(self._named_parameters())
        self.missing = [name for name in self.missing if id(tensors.get(name)) not in loaded]

    def _named_parameters(self):
        for place in self.places:
            for key, tensor in place.module._parameters.items():
                if tensor is not None and place.module not in self.layers:
                    yield place.prefix + key, tensor

    def _check(self, place: Place) -> None:
        for key, tensor in [*place.module._parameters.items(), *place.module._buffers.items()]:
            if isinstance(tensor, UninitializedTensorMixin):
                raise LinearError(
                    f'{_SUBJECT} "{printable(place.prefix + key)}": has no shape yet: run the model once before'
                )
            if tensor is not None and is_sharded(tensor):
                raise LinearError(
                    f'{_SUBJECT} "{printable(place.prefix + key)}": is sharded (a DTensor): load before fully_shard() or '
                    "parallelize_module()"
                )
        if trains_a_copy(place.module):
            raise LinearError(
                f'{_SUBJECT} "{printable(place.name)}": PEFT trains a copy of this module, which would keep its values: load '
                "before get_peft_model()"
            )

    def loads(self, module: torch.nn.Module) -> bool:
        """Does this load give the module, or a part of it, any tensor?"""
        return any(module in (target.place.module, target.place.parent) for target in self.targets)

    # ---- layers that become FP8 ----

    def _find_layers(self) -> None:
        codes = _codes.FLOAT8.values()
        wanted = [
            place
            for place in self.places
            if _is_replaceable(place) and self.reader.dtype(place.prefix + "weight") in codes
        ]
        linear = {place.module for place in wanted}
        alone: set[int] = set()  # weights that another module needs too, and that the file has under no name of its
        for place in self.places:
            if place.module not in linear:
                for key, tensor in place.module._parameters.items():
                    if tensor is not None and place.prefix + key not in self.reader.names:
                        alone.add(id(tensor))
        for place in wanted:
            if id(place.module._parameters.get("weight")) in alone:
                continue  # its values go to the weight that both share
            if place.parent is None:
                raise LinearError(f"{_SUBJECT} model: is a linear layer, which cannot be replaced in place")
            if place.module not in self.layers:
                self._check_layer(place)
            self.layers.setdefault(place.module, []).append(place)
            names = ["weight", *SCALES, *_OF_INPUT] + (["bias"] if place.module.bias is not None else [])
            self.used.update(place.prefix + name for name in names)

    def _check_layer(self, place: Place) -> None:
        reader, prefix, module = self.reader, place.prefix, place.module
        where = reader.where(prefix + "weight")
        shape = reader.facts(prefix + "weight")[1]
        if shape != (module.out_features, module.in_features):
            raise LinearError(
                f"{where}: has shape {shape}, but the model's layer has ({module.out_features}, {module.in_features})"
            )
        scales = scale_of(reader, prefix + "weight")
        scale_kind(reader, scales, *shape)
        reader.one_of(prefix, _OF_INPUT)
        if module.bias is not None:
            if prefix + "bias" not in reader.names:
                raise LinearError(
                    f'{reader.path}: has no tensor "{printable(prefix)}bias", which the model\'s layer asks for'
                )
            self._check_tensor(prefix + "bias", module.bias)

    def layer_of(self, place: Place, device) -> torch.nn.Module:
        reader, prefix, module = self.reader, place.prefix, place.module
        device = device or ("cpu" if module.weight.is_meta else module.weight.device)
        dtype = getattr(module, "values_dtype", module.weight.dtype)
        codes, scales = reader.read(prefix + "weight").to(device), scale_of(reader, prefix + "weight")
        scale_inv, kind = read_scales(reader, scales), scale_kind(reader, scales, *codes.shape)
        bias = None if module.bias is None else reader.read(prefix + "bias").to(device=device, dtype=dtype)
        options = {"scale": kind, "dtype": dtype, "layer_name": place.name or "linear"}
        layer = self._kind.from_codes(codes, scale_inv.to(device), bias, **options)
        input_scale = reader.one_of(prefix, _OF_INPUT)
        if input_scale is not None and self._kind is FrozenFloat8Linear:
            layer.input_scale = reader.read(input_scale).reshape(1).to(device=device, dtype=torch.float32)
        return layer.train(module.training)

    # ---- all other tensors ----

    def _find_tensors(self, place: Place, loaded: set[int]) -> None:
        module = place.module
        keeps_scales = isinstance(module, KeepsScales)
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            name = place.prefix + key
            if tensor is None:
                continue
            if keeps_scales and key.startswith("fp8_"):
                found = self.scales_of.setdefault(module, {})
                if name in self.reader.names:
                    found[key] = name
                    self._check_tensor(name, tensor)
                    self.used.add(name)
            elif key in module._non_persistent_buffers_set:
                if tensor.is_meta:
                    self.left_on_meta.append(name)
            elif isinstance(module, StoredLinear) and name in self.reader.names:
                self._refuse_quantized(place)
            elif sources := self._sources(place, key):
                self._check_tensor(sources, tensor)
                self.targets.append(_Target(place, key, tensor, sources))
                loaded.add(id(tensor))
                self.used.update(sources)
            else:
                self.missing.append(name)

    def _sources(self, place: Place, key: str) -> list[str]:
        """Returns the file's tensors for this one; none if it lacks them. What a GatedMlp has as one weight may be two
        there."""
        name = place.prefix + key
        if name in self.reader.names:
            return [name]
        if isinstance(place.parent, GatedMlp) and place.key == "gate_up_proj":
            above = place.name.removesuffix("gate_up_proj")
            parts = [f"{above}{part}.{key}" for part in ("gate_proj", "up_proj")]
            if all(part in self.reader.names for part in parts):
                return parts
        return []

    def _refuse_quantized(self, place: Place) -> None:
        name = place.prefix + "weight"
        stored = self.reader.facts(name)[0] if name in self.reader.names else None
        raise LinearError(
            f"{self.reader.where(name)}: is {'missing' if stored is None else str(stored).removeprefix('torch.')}, but the "
            f"model's layer is a {type(place.module).__name__}: load what state_dict() has saved by load_state_dict(), and a "
            "checkpoint in high precision before quantize_()"
        )

    def _check_tensor(self, names: Union[str, list[str]], tensor: torch.Tensor) -> None:
        names = [names] if isinstance(names, str) else names
        shapes = []
        for name in names:
            dtype, shape = self.reader.facts(name)
            shapes.append(shape)
            if dtype in _codes.FLOAT8.values() and dtype != tensor.dtype:
                if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
                    self._refuse_dtype(name, dtype, tensor)
                scales = scale_of(self.reader, name)
                self._check_scales(scales)
                self.used.update([scales, *(name.removesuffix("weight") + each for each in _OF_INPUT)])
                self.decoded.append(name)
            elif dtype != tensor.dtype and not (_is_high(dtype) and _is_high(tensor.dtype)):
                integers = not (dtype.is_floating_point or tensor.dtype.is_floating_point)
                if not integers or torch.bool in (dtype, tensor.dtype):
                    self._refuse_dtype(name, dtype, tensor)
        shape = shapes[0]
        if len(shapes) > 1:
            same = all(each and each[1:] == shape[1:] for each in shapes)
            shape = (sum(each[0] for each in shapes), *shape[1:]) if same else shapes
        if shape != tuple(tensor.shape):
            raise LinearError(
                f"{self.reader.where(names[0])}: has shape {shape}, but the model has {tuple(tensor.shape)}"
            )

    def _check_scales(self, name: str) -> None:
        dtype = self.reader.facts(name)[0]
        if not _is_high(dtype) and dtype != torch.float8_e8m0fnu:
            found = str(dtype).removeprefix("torch.")
            raise LinearError(f"{self.reader.where(name)}: is {found}, but scale_inv are F32, BF16, F16 or F8_E8M0")

    def _refuse_dtype(self, name: str, dtype: torch.dtype, tensor: torch.Tensor) -> None:
        raise LinearError(
            f"{self.reader.where(name)}: is {str(dtype).removeprefix('torch.')}, but the model has "
            f"{str(tensor.dtype).removeprefix('torch.')}, to which that is not converted"
        )

    def value_of(self, target: _Target) -> torch.Tensor:
        """On the host, in the model's dtype."""
        parts = [self._part(name, target.tensor.dtype) for name in target.sources]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        value = self.reader.read(name)
        if value.dtype in _codes.FLOAT8.values() and value.dtype != dtype:
            scales = scale_of(self.reader, name)
            scale_inv = spread(read_scales(self.reader, scales).float(), tuple(value.shape), self.reader.where(scales))
            value = value.float() * scale_inv
        return value.to(dtype)


def _is_high(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize >= 2


def _is_replaceable(place: Place) -> bool:
    """Would a layer of codes compute the same as this one?"""
    module = place.module
    if isinstance(module, StoredLinear):
        return True
    if not isinstance(module, torch.nn.Linear) or "weight" not in module._parameters or "forward" in vars(module):
        return False
    if isinstance(module, Float8Linear):
        return not getattr(module.options, "activation", "")
    if isinstance(module, NonDynamicallyQuantizableLinear):  # torch.nn.MultiheadAttention multiplies by its weight itself
        return False
    return type(module).forward is torch.nn.Linear.forward


# ---- changing the model --------------------------------------------------------------------------------------------


class _Changes:
    """Changes of a model that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def take_back(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def replace(self, place: Place, layer: torch.nn.Module) -> None:
        def undo() -> None:
            take_hooks(layer, place.module)
            put(place, place.module)

        take_hooks(place.module, layer)
        self._undo.append(undo)
        put(place, layer)

    def assign(self, tensors: dict[str, Any], key: str, value: torch.Tensor) -> None:
        old = tensors[key]
        self._undo.append(lambda: tensors.__setitem__(key, old))
        tensors[key] = value

    def copy(self, tensor: torch.Tensor, value: torch.Tensor, where: str) -> None:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            old = tensor.detach().to("cpu", copy=True)

            def undo() -> None:
                with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                    tensor.copy_(old)

            try:
                tensor.copy_(value)
            except RuntimeError as error:
                raise LinearError(f"{where}: cannot be written into the model's tensor: {error}") from None
            self._undo.append(undo)

    def load_scales(self, module: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
        """As load_state_dict() does: scales that the checkpoint has are restored, others start anew."""
        before = {**vars(module), "_buffers": module._buffers}

        def undo() -> None:
            vars(module).clear()
            vars(module).update(before)

        self._undo.append(undo)
        of_scales = {key: each for key, each in module._buffers.items() if key.startswith("fp8_") and each is not None}
        module._buffers = {**module._buffers, **{key: each.clone() for key, each in of_scales.items()}}
        if any(each.is_meta for each in of_scales.values()):
            module._reset_scales()
        errors: list[str] = []
        module._load_from_state_dict(state or {"": torch.empty(0)}, "", {}, False, [], [], errors)
        if errors:
            raise LinearError(f"{_SUBJECT}: {errors[0]}")


def _change(plan: _Plan, layers: dict[torch.nn.Module, torch.nn.Module], values: list[torch.Tensor], scales) -> None:
    changes = _Changes()
    try:
        made: dict[torch.Tensor, torch.Tensor] = {}  # in the place of those on meta, which several modules may have
        for target, value in zip(plan.targets, values):
            if target.tensor.is_meta:
                made[target.tensor] = value
            else:
                changes.copy(target.tensor, value, plan.reader.where(target.sources[0]))
        for place in plan.places:
            for tensors in (place.module._parameters, place.module._buffers):
                for key, tensor in list(tensors.items()):
                    if tensor is not None and tensor in made:
                        changes.assign(tensors, key, made[tensor])
        for module, state in scales.items():
            changes.load_scales(module, state)
        for module, of_module in plan.layers.items():
            for place in of_module:
                changes.replace(place, layers[module])
    except BaseException:
        changes.take_back()
        raise


def _made(target: _Target, value: torch.Tensor, device) -> torch.Tensor:
    """Returns the tensor that replaces one on meta."""
    value = value.to(device or "cpu")
    if not target.is_parameter:
        return value
    if is_gathered_in_float8(target.tensor):  # FSDP will gather it in FP8
        value = target.tensor._like(value)
    parameter = torch.nn.Parameter(value, requires_grad=target.tensor.requires_grad)
    vars(parameter).update({key: each for key, each in vars(target.tensor).items() if key not in vars(parameter)})
    return parameter


def _refuse_rest(reader: Reader, missing: list[str], unexpected: list[str]) -> None:
    if not missing and unexpected and all(name.rpartition(".")[2] in _OF_CACHE for name in unexpected):
        raise LinearError(
            f"{reader.path}: has scales of the KV cache, {some_of(unexpected)}, which the model has no place for: "
            "strict=False ignores them"
        )
    if missing or unexpected:
        what, which = ("lacks", missing) if missing else ("has no place in the model for", unexpected)
        raise LinearError(f"{reader.path}: {what} {some_of(which)}: give the model it was made for, or strict=False")


@torch.inference_mode(False)  # what is loaded may be trained, or saved for backward
def load_float8_checkpoint(
    model: torch.nn.Module,
    path: Union[str, os.PathLike],
    *,
    layers: str = "weight_only",
    device: Optional[Union[str, torch.device]] = None,
    strict: bool = True,
) -> CheckpointReport:
    """Loads a checkpoint into `model`, whose linear layers become FP8 where the checkpoint has FP8 codes of them.

    path: a .safetensors file, its index, or a folder (model.safetensors, or else the index); a config.json there says how
    the weights are stored (fp8, compressed-tensors' float-quantized, fbgemm_fp8, modelopt's FP8), and what the files hold
    decides each layer: one factor, rows, 128 x 128 blocks or groups of 128, as weight_scale or weight_scale_inv; the one
    factor of a weight of one block or row is that of a block or row if config.json, or else the name, says so. layers:
    "weight_only" makes WeightOnlyLinear, "frozen" FrozenFloat8Linear, each with the hooks of the layer whose place it
    takes. Layers stay on their device, or go to `device`; those on meta need it, or go to the CPU.

    Other tensors are loaded as load_state_dict() does, and FP8 codes of them (of modules of several parts, embeddings,
    stacked experts, layers with an activation) with their scale_inv multiplied in. Names are those of the model without
    wrappers (torch.compile, checkpoint_wrapper, DDP, PEFT, whose adapters stay as they are).

    A load is whole or nothing: all is checked and read first, and an error leaves the model as it was. A model on meta
    needs no memory but the checkpoint's; another one needs both until the end. Raises LinearError, an ingot.Error that
    names file and tensor, for what does not fit, and with strict also for tensors that are missing or have no place.
    """
    check_model(_SUBJECT, model)
    if not isinstance(layers, str) or layers not in _KINDS:
        raise LinearError(f"{_SUBJECT} layers: {printable(layers)!r} is not one of {', '.join(_KINDS)}")
    reader = Reader(file_name(path, f"{_SUBJECT} path"))
    check_quantization(reader.config, reader.path)
    plan = _Plan(model, reader, _KINDS[layers])
    unexpected = sorted(reader.names - plan.used)
    if strict:
        _refuse_rest(reader, plan.missing, unexpected)
    made = {module: plan.layer_of(of_module[0], device) for module, of_module in plan.layers.items()}
    values = []
    for target in plan.targets:
        value = plan.value_of(target)
        values.append(_made(target, value, device) if target.tensor.is_meta else value)
    scales = {
        module: {key: reader.read(name) for key, name in names.items()}
        for module, names in plan.scales_of.items()
        if names or plan.loads(module)
    }
    _change(plan, made, values, scales)
    names = tuple(of_module[0].name for of_module in plan.layers.values())
    missing = (*plan.missing, *plan.left_on_meta)
    return CheckpointReport(names, missing, tuple(unexpected), tuple(plan.decoded), _note(plan, made.values()))


def _note(plan: _Plan, layers: Iterable[torch.nn.Module]) -> str:
    notes = []
    if any(isinstance(each, WeightOnlyLinear) and each.activation_dtype not in _OF_WEIGHT_ONLY for each in layers):
        notes.append("these layers take bfloat16 or float16: call .bfloat16() on the model, or use torch.autocast")
    if plan.left_on_meta:
        notes.append(f"no checkpoint has these buffers, and they are on meta: make them: {some_of(plan.left_on_meta)}")
    return "\n".join(notes)

"""load_float8_checkpoint(): FP8 checkpoints in the layouts of public models, loaded whole or not at all.

First everything is looked up and checked, then all values are read, and only then the model changes; an error on the way
takes the changes back. Files are read by the core (docs/checkpoints.md), so that no other package is needed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from typing import Iterable, Optional, Union

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedTensorMixin

from .._arrays import file_name
from .._text import counted, printable, some_of
from ..torch._errors import LinearError
from ..torch._progress import progress
from ..torch._stored_experts import is_weight_only
from ._checkpoint_changes import Changes, ScalesLoad
from ._checkpoint_config import check_quantization
from ._checkpoint_files import Reader
from ._checkpoint_layouts import StoredWeight, StoredWeights, is_ignored, is_mark, may_be_codes
from ._checkpoint_names import Place, check_model, places, trains_a_copy, unwrapped
from ._checkpoint_ranks import is_gathered_in_float8, is_sharded
from ._checkpoint_renames import parts_after_stack, parts_of_layer, parts_of_stack, renames
from ._checkpoint_stacks import find_codes, find_rows, has_stacks_in_float8, read_codes
from ._checkpoint_values import read_operands, read_values
from ._delayed import KeepsScales
from ._expert_scales import ExpertScales
from ._float8_linear import Float8Linear
from ._frozen_linear import FrozenFloat8Linear
from ._stored_linear import StoredLinear
from ._weight_only import WeightOnlyLinear

_OF_WEIGHT_ONLY = (torch.bfloat16, torch.float16)
_KINDS = {"weight_only": WeightOnlyLinear, "frozen": FrozenFloat8Linear}
_OF_INPUT = ("input_scale", "activation_scale")
_SUBJECT = "load_float8_checkpoint"
_OF_EXPERT = re.compile(r"((?:.*\.)?experts\.\d+)\.")  # a layer of one of several
_STACKED = "which ingot.integrations.experts has computed in FP8 by quantize_experts_(), or convert_experts_() to train"


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """What load_float8_checkpoint() did. str() is a few lines.

    layers: those that are FP8 now. missing: tensors that the model wanted and the checkpoint lacks; they include buffers on
    meta that no checkpoint has, which the caller has to make. unexpected: tensors that the model has no place for. decoded:
    weights that the checkpoint has in few bits and the model in high precision, with their values; stacked: those of them that
    are stacks of experts in high precision in the model; by the checkpoint's names, so of each expert where it has them apart.
    ignored: scales of activations and of the KV cache, and buffers of delayed scales, of which the model makes no use. experts:
    modules whose stacks quantize_experts_() made, and the checkpoint has in their format. note: what the caller has yet to do
    ("" if nothing).
    """

    layers: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    decoded: tuple[str, ...] = ()
    note: str = ""
    stacked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()

    def __str__(self) -> str:
        as_stored = "" if self.decoded else ": all values were loaded as they are"  # layers may still train in FP8
        lines = [] if self.layers or self.experts else [f"no layer has FP8 weights now{as_stored}"]
        for one, many, rest, names in (
            ("layer is", "layers are", "FP8", self.layers),
            ("module of experts has", "modules of experts have", "codes", self.experts),
            ("FP8 or MX weight", "FP8 or MX weights", "decoded into higher precision", self.decoded),
            ("of these belongs to a stack of experts,", "of these belong to stacks of experts,", _STACKED, self.stacked),
            ("tensor", "tensors", "of the model that the checkpoint lacks", self.missing),
            ("tensor", "tensors", "of the checkpoint that the model has no place for", self.unexpected),
            ("scale", "scales", "of activations, the KV cache and delayed scaling ignored", self.ignored),
        ):
            if names:
                lines.append(f"{counted(len(names), one, many)} {rest}: {some_of(names)}")
        return "\n".join([*lines, *([self.note] if self.note else [])])


# ---- the plan: what goes where -------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Target:
    """A parameter or buffer, and the tensors of the file that are its values, one below the other."""

    place: Place
    key: str
    tensor: torch.Tensor
    sources: list[str]
    transposed: bool = False

    @property
    def is_parameter(self) -> bool:
        return self.key in self.place.module._parameters


class _Plan:
    """What a load will do. Making it reads nothing but names, shapes and dtypes, and raises what does not fit."""

    def __init__(self, model: torch.nn.Module, reader: Reader, kind: type, unscaled: bool) -> None:
        self.reader, self._kind = reader, kind
        self.places = list(places(model))
        tensors = ((place, {**place.module._parameters, **place.module._buffers}) for place in self.places)
        own = {place.prefix + key for place, of_module in tensors for key, tensor in of_module.items() if tensor is not None}
        self._weights = StoredWeights(reader, unscaled, own)
        self.used: set[str] = set()
        self.layers: dict[torch.nn.Module, list[Place]] = {}
        self.targets: list[_Target] = []
        self.missing: list[str] = []
        self.decoded: list[str] = []
        self.stacked: list[str] = []
        self.experts: dict[torch.nn.Module, str] = {}
        self.codes_of: list[tuple[Place, str, list[StoredWeight]]] = []  # stacks of experts that get a file's codes
        self.scales_of: dict[torch.nn.Module, dict[str, str]] = {}  # buffers of delayed scales: own names, and the file's
        self.left_on_meta: list[str] = []
        self._twice: list[tuple[str, str]] = []  # names that the file has for one tensor
        for place in self.places:
            self._check(place)
        reader.rename(renames(reader.names, self.places))
        self._refuse_more_experts()
        self._find_layers()
        loaded: set[int] = set()  # parameters may be tied, and modules have two names: one is enough
        for place in self.places:
            if place.module not in self.layers:
                self._find_tensors(place, loaded)
        tensors = dict(self._named_tensors())
        self.missing = [name for name in self.missing if id(tensors.get(name)) not in loaded]

    def _named_tensors(self):
        for place in self.places:
            for key, tensor in [*place.module._parameters.items(), *place.module._buffers.items()]:
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

    def _refuse_more_experts(self) -> None:
        """Experts of one rank, which expert parallelism has numbered from 0, would all get the file's first ones."""
        listed = {match[1]: name for name in self.reader.names if (match := _OF_EXPERT.match(name))}
        for place in self.places:
            module, more = place.module, None
            numbers = [*module._modules]
            if numbers and isinstance(module, torch.nn.ModuleList) and numbers == [*map(str, range(len(numbers)))]:
                more = listed.get(f"{place.prefix}{len(numbers)}")
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                after = parts_after_stack(place, key, tensor) if tensor is not None else []
                if after and not self._has(place.prefix + key):
                    more = more or next(filter(self._has, after), None)
            if more:
                stored = printable(self.reader.stored(more))
                raise LinearError(
                    f'{_SUBJECT} "{printable(place.name)}": has fewer experts than the file ("{stored}"), which does not say which of '
                    "its own they are: load all experts on each rank, and divide them after that"
                )

    def loads(self, module: torch.nn.Module) -> bool:
        """Does this load give the module, or a part of it, any tensor?"""
        return any(module in (target.place.module, target.place.parent) for target in self.targets)

    def scales(self) -> dict[torch.nn.Module, ScalesLoad]:
        """Of each module whose delayed scales the load restores, or may have start anew."""
        found = {}
        given = {id(target.tensor) for target in self.targets}
        for module, names in self.scales_of.items():
            of_experts = isinstance(module, ExpertScales)
            around = next(place.parent for place in self.places if place.module is module) if of_experts else module
            if around is not None and (names or of_experts or self.loads(module)):
                lacking = frozenset(name for name, each in module.weights_in(around).items() if id(each) not in given)
                found[module] = ScalesLoad({key: self.reader.read(name) for key, name in names.items()}, around, lacking)
        return found

    # ---- layers that become FP8 ----

    def _has(self, name: str) -> bool:
        return name in self.reader.names or self._weights.of(name) is not None

    def _find_layers(self) -> None:
        wanted = {}
        for place in self.places:
            if _is_replaceable(place):
                weight = self._weights.of(place.prefix + "weight")
                if weight is not None:
                    wanted[place] = weight
        linear = {place.module for place in wanted}
        alone: set[int] = set()  # weights that another module needs too, and that the file has under no name of its
        for place in self.places:
            if place.module not in linear:
                for key, tensor in place.module._parameters.items():
                    if tensor is not None and not self._has(place.prefix + key):
                        alone.add(id(tensor))
        for place, weight in wanted.items():
            if id(place.module._parameters.get("weight")) in alone:
                continue  # its values go to the weight that both share
            if place.parent is None:
                raise LinearError(f"{_SUBJECT} model: is a linear layer, which cannot be replaced in place")
            if place.module not in self.layers:
                self._check_layer(place, weight)
            self.layers.setdefault(place.module, []).append(place)
            self.used.update(weight.names)
        for place in self.places:  # a module may have names that the file lacks
            of_module = self.layers.get(place.module)
            if of_module is not None and place not in of_module:
                self._refuse_values(place, of_module[0])
                of_module.append(place)
        for module, of_module in self.layers.items():
            self._compare([place.prefix + "weight" for place in of_module if place in wanted])
            self._compare([scale for place in of_module if (scale := self._input_scale(place)) is not None])
            if module.bias is not None:
                self._compare([name for place in of_module if self._has(name := place.prefix + "bias")])

    def _compare(self, names: list[str]) -> None:
        """Makes use of all names that the file has for a tensor of a layer, whose values must be the same."""
        self.used.update(name for name in names if name in self.reader.names)
        self._twice += [(names[0], name) for name in names[1:]]

    def compare(self) -> None:
        """Reads what the file has twice. Raises LinearError where the second has other values."""
        for first, name in self._twice:
            self._refuse_other(first, name, self._part(first, torch.float32), self._part(name, torch.float32))

    def _refuse_other(self, first: str, name: str, value: torch.Tensor, other: torch.Tensor) -> None:
        """NaN is the same as one of the same bits."""
        bits = [each.contiguous().flatten().view(torch.uint8) for each in (value, other)]
        if not torch.equal(*bits):
            raise LinearError(
                f'{self.reader.where(name)}: has other values than "{printable(self.reader.stored(first))}", but the model has one '
                "tensor for both: untie them in the model, or leave one of them out of the file"
            )

    def _refuse_values(self, place: Place, first: Place) -> None:
        name = place.prefix + "weight"
        if name in self.reader.names:
            raise LinearError(
                f"{self.reader.where(name)}: is {str(self.reader.facts(name)[0]).removeprefix('torch.')}, but the "
                f'file has codes of "{printable(self.reader.stored(first.prefix + "weight"))}", and both are the weight of one layer of the '
                "model: leave one of them out of the file"
            )

    def _check_layer(self, place: Place, weight: StoredWeight) -> None:
        reader, prefix, module = self.reader, place.prefix, place.module
        where = reader.where(weight.codes)
        if weight.shape != (module.out_features, module.in_features):
            raise LinearError(
                f"{where}: has shape {weight.shape}, but the model's layer has ({module.out_features}, {module.in_features})"
            )
        if self._weights.kind(weight) == "mx" and self._kind is FrozenFloat8Linear:
            raise LinearError(
                f"{where}: has MX scales, whose values do not serve the gradient of the input: load with layers=\"weight_only\""
            )
        reader.one_of(prefix, _OF_INPUT)
        if module.bias is not None:
            if prefix + "bias" not in reader.names:
                raise LinearError(
                    f'{reader.path}: has no tensor "{printable(prefix)}bias", which the model\'s layer asks for'
                )
            self._check_tensor(prefix + "bias", module.bias)

    def _input_scale(self, place: Place) -> Optional[str]:
        """A static scale of the input, if the layer keeps one."""
        name = self.reader.one_of(place.prefix, _OF_INPUT) if self._kind is FrozenFloat8Linear else None
        return name if name is not None and math.prod(self.reader.facts(name)[1]) == 1 else None

    def layer_of(self, place: Place, device) -> torch.nn.Module:
        reader, prefix, module = self.reader, place.prefix, place.module
        device = device or ("cpu" if module.weight.is_meta else module.weight.device)
        dtype = getattr(module, "values_dtype", module.weight.dtype)
        weight = self._weights.of(prefix + "weight")
        codes, scale_inv = read_operands(reader, weight)
        bias = None if module.bias is None else self._part(prefix + "bias", dtype).to(device)
        options = {"scale": self._weights.kind(weight), "dtype": dtype, "layer_name": place.name or "linear"}
        if weight.is_packed:
            options.update(weight_dtype=weight.dtype, in_features=weight.shape[1])
        layer = self._kind.from_codes(codes.to(device), scale_inv.to(device), bias, **options)
        input_scale = self._input_scale(place)
        if input_scale is not None:
            layer.input_scale = reader.read(input_scale).reshape(1).to(device=device, dtype=torch.float32)
        return layer.train(module.training)

    # ---- all other tensors ----

    def _find_tensors(self, place: Place, loaded: set[int]) -> None:
        module = place.module
        keeps_scales = isinstance(module, KeepsScales)
        if has_stacks_in_float8(_SUBJECT, place):
            self.experts.setdefault(module, place.name)
        rows = find_rows(self.reader, self._weights, place)
        for key, weights in rows.items():
            self._take_codes(place, key, weights, loaded)
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            name = place.prefix + key
            if tensor is None or key.removesuffix("_scale_inv") in rows:
                continue
            if keeps_scales and key.startswith("fp8_"):
                found = self.scales_of.setdefault(module, {})
                if name in self.reader.names:
                    self._check_tensor(name, tensor)
                    first = found.setdefault(key, name)
                    self._compare([first] if first == name else [first, name])
            elif key in module._non_persistent_buffers_set:
                if tensor.is_meta:
                    self.left_on_meta.append(name)
            elif is_weight_only(module, key):
                if self._has_stack(place, key) or not (id(tensor) in loaded or self._is_elsewhere(place, key)):
                    self._take_codes(place, key, find_codes(self.reader, self._weights, place, key), loaded)
            elif is_weight_only(module, key.removesuffix("_scale_inv").removesuffix("_packing")):
                continue  # with its codes
            elif isinstance(module, StoredLinear) and name in self.reader.names:
                self._refuse_quantized(place)
            elif f"{key}_scale_inv" in module._buffers and (values := self._values(place, key, tensor)):
                self._refuse_dtype(values, self.reader.dtype(values), tensor, ": load first, then quantize_experts_()")
            elif sources := self._sources(place, key, tensor):
                transposed = self._is_transposed(place, sources, tensor)
                self._check_tensor(sources, tensor, transposed, of_layers=sources != [name])
                self.targets.append(_Target(place, key, tensor, sources, transposed))
                loaded.add(id(tensor))
                self.used.update(source for source in sources if source in self.reader.names)
            else:
                self.missing.append(name)

    def _has_stack(self, place: Place, key: str) -> bool:
        return any(map(self._has, [place.prefix + key, *parts_of_stack(place, key, place.module._buffers[key])]))

    def _is_elsewhere(self, place: Place, key: str) -> bool:
        """Has the file this stack under another name of its module?"""
        return any(each.module is place.module and self._has_stack(each, key) for each in self.places)

    def _take_codes(self, place: Place, key: str, weights: list[StoredWeight], loaded: set[int]) -> None:
        self.codes_of.append((place, key, weights))
        buffers = place.module._buffers
        loaded.update(id(buffers[name]) for name in (key, f"{key}_scale_inv") if name in buffers)
        for weight in weights:
            self.used.update(weight.names)

    def values(self) -> Iterable[tuple[_Target, torch.Tensor]]:
        """What tensors get, each once, read from the file: on the host, in the model's dtype."""
        of_tensors: dict[int, _Target] = {}
        for target in self.targets:
            first, value = of_tensors.setdefault(id(target.tensor), target), self._value_of(target)
            if first is target:
                yield target, value
            else:
                self._refuse_other(first.sources[0], target.sources[0], self._value_of(first), value)
        of_stacks: dict[tuple[torch.nn.Module, str], list[StoredWeight]] = {}
        for place, key, weights in self.codes_of:
            first, values = of_stacks.setdefault((place.module, key), weights), read_codes(self.reader, weights, place, key)
            earlier = values if first is weights else read_codes(self.reader, first, place, key)
            for name, value in values.items():
                if first is weights:
                    yield _Target(place, name, place.module._buffers[name], [weights[0].codes]), value
                else:
                    self._refuse_other(first[0].codes, weights[0].codes, earlier[name], value)

    def _sources(self, place: Place, key: str, tensor: torch.Tensor) -> list[str]:
        """Returns the file's tensors for this one; none if it lacks them. What a GatedMlp has as one weight may be two
        there, convolutions three, and a stack of experts the weights of their layers."""
        name = place.prefix + key
        if self._has(name):
            return [name]
        parts = parts_of_layer(place, key)
        if parts and all(self._has(part) for part in parts):
            return parts
        parts = parts_of_stack(place, key, tensor) if _is_high(tensor.dtype) else []
        return parts if all(self._has(part) for part in parts) else []

    def _values(self, place: Place, key: str, codes: torch.Tensor) -> Optional[str]:
        """The first tensor that the file has in high precision for a stack of codes."""
        names = [place.prefix + key, *parts_of_stack(place, key, codes)]
        return next((name for name in names if name in self.reader.names and _is_high(self.reader.dtype(name))), None)

    def _is_transposed(self, place: Place, sources: list[str], tensor: torch.Tensor) -> bool:
        """Stacks of codes, gpt-oss's blocks too, are (experts, N, K) in files, and transformers has some as (experts, K, N). A square
        one is as the module's others are."""
        weight = self._stored(sources[0], tensor)
        if weight is None or len(weight.shape) != 3:
            return False
        if weight.shape[1] != weight.shape[2]:
            return tuple(tensor.shape) == (weight.shape[0], weight.shape[2], weight.shape[1])
        for key, other in place.module._parameters.items():
            stored = self._stored(place.prefix + key, other) if other is not None else None
            if stored is not None and len(stored.shape) == 3 and stored.shape[-1] != stored.shape[-2]:
                return tuple(other.shape) != stored.shape
        return weight.in_blocks

    def _stored(self, name: str, tensor: torch.Tensor) -> Optional[StoredWeight]:
        """How the file has this tensor in few bits; None if it has the model's dtype."""
        return None if self.reader.dtype(name) == tensor.dtype else self._weights.of(name)

    def _refuse_quantized(self, place: Place) -> None:
        name = place.prefix + "weight"
        stored = self.reader.facts(name)[0] if name in self.reader.names else None
        raise LinearError(
            f"{self.reader.where(name)}: is {'missing' if stored is None else str(stored).removeprefix('torch.')}, but the "
            f"model's layer is a {type(place.module).__name__}: load what state_dict() has saved by load_state_dict(), and a "
            "checkpoint in high precision before quantize_()"
        )

    def _check_tensor(
        self, names: Union[str, list[str]], tensor: torch.Tensor, transposed: bool = False, of_layers: bool = False
    ) -> None:
        """of_layers: the file has layers of each expert, or of a single one, where the model has a stack."""
        names = [names] if isinstance(names, str) else names
        shapes = []
        for name in names:
            weight = self._stored(name, tensor)
            if weight is None:
                dtype, shape = self.reader.facts(name)
                self._check_dtype(name, dtype, tensor)
            else:
                if not _is_high(tensor.dtype):
                    self._refuse_dtype(weight.codes, self.reader.facts(weight.codes)[0], tensor)
                shape = (*weight.shape[:-2], weight.shape[-1], weight.shape[-2]) if transposed else weight.shape
                self.used.update(weight.names)
                self.decoded.append(self.reader.stored(name))
                if len(tensor.shape) == 3:
                    self.stacked.append(self.reader.stored(name))
            shapes.append(shape)
        shape = shapes[0]
        if len(tensor.shape) == 3 and of_layers and len(shape) != 3:
            experts, rows, columns = tensor.shape
            expected = (rows * experts // len(shapes), columns)
            for name, each in zip(names, shapes):
                if each != expected:
                    raise LinearError(f"{self.reader.where(name)}: has shape {each}, but the model's stack asks for {expected}")
            return
        if len(shapes) > 1:
            same = all(each and each[1:] == shape[1:] for each in shapes)
            shape = (sum(each[0] for each in shapes), *shape[1:]) if same else shapes
        if shape != tuple(tensor.shape):
            stored = self._stored(names[0], tensor)
            where = self.reader.where(names[0] if stored is None else stored.codes)
            raise LinearError(f"{where}: has shape {shape}, but the model has {tuple(tensor.shape)}")

    def _check_dtype(self, name: str, dtype: torch.dtype, tensor: torch.Tensor) -> None:
        if dtype != tensor.dtype and not (_is_high(dtype) and _is_high(tensor.dtype)):
            integers = not (dtype.is_floating_point or tensor.dtype.is_floating_point)
            if not integers or torch.bool in (dtype, tensor.dtype):
                self._refuse_dtype(name, dtype, tensor)

    def _refuse_dtype(self, name: str, dtype: torch.dtype, tensor: torch.Tensor, remedy: str = "") -> None:
        raise LinearError(
            f"{self.reader.where(name)}: is {str(dtype).removeprefix('torch.')}, but the model has "
            f"{str(tensor.dtype).removeprefix('torch.')}, to which that is not converted{remedy}"
        )

    def _value_of(self, target: _Target) -> torch.Tensor:
        parts = [self._part(name, target.tensor.dtype, target.transposed) for name in target.sources]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(target.tensor.shape)

    def _part(self, name: str, dtype: torch.dtype, transposed: bool = False) -> torch.Tensor:
        weight = None if self.reader.dtype(name) == dtype else self._weights.of(name)
        if weight is not None:
            return read_values(self.reader, weight, dtype, transposed)
        return self.reader.read(name).to(dtype)


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


def _change(
    plan: _Plan, layers: dict[torch.nn.Module, torch.nn.Module], values: list[tuple[_Target, torch.Tensor]], scales, device
) -> None:
    changes = Changes()
    try:
        made: dict[torch.Tensor, torch.Tensor] = {}  # in the place of those on meta, which several modules may have
        for target, value in values:
            if target.tensor.is_meta:
                made[target.tensor] = value
            else:
                changes.copy(target.tensor, value, plan.reader.where(target.sources[0]))
        for place in plan.places:
            for tensors in (place.module._parameters, place.module._buffers):
                for key, tensor in list(tensors.items()):
                    if tensor is not None and tensor in made:
                        changes.assign(tensors, key, made[tensor])
        for module, load in scales.items():
            changes.load_scales(module, load, torch.device(device or "cpu"))
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


def _refuse_rest(reader: Reader, model: torch.nn.Module, missing: list[str], unexpected: list[str]) -> None:
    if not missing and not unexpected:
        return
    what, which = ("lacks", missing) if missing else ("has no place in the model for", unexpected)
    text = f"{reader.path}: {what} {some_of(which)}: give the model it was made for, or strict=False"
    if missing and unexpected:
        family = getattr(getattr(unwrapped(model), "config", None), "model_type", None)
        text += f"; the model has no place for {some_of(unexpected)}"
        if family:
            text += f": files of {printable(family)!r} that have other names than its modules are from_pretrained()'s to read"
    raise LinearError(text)


@torch.inference_mode(False)  # what is loaded may be trained, or saved for backward
def load_float8_checkpoint(
    model: torch.nn.Module,
    path: Union[str, os.PathLike],
    *,
    layers: str = "weight_only",
    device: Optional[Union[str, torch.device]] = None,
    strict: bool = True,
    unscaled: bool = False,
) -> CheckpointReport:
    """Loads a checkpoint into `model`, whose linear layers become FP8 where the checkpoint has FP8 codes of them.

    path: a .safetensors file, its index, a folder (model.safetensors, or else the index), or the id of a model ("org/name") that
    the hub's local cache has. The layouts are those of docs/checkpoints.md: FP8 with one scale_inv, for rows, blocks or groups,
    MXFP8, MXFP6 and MXFP4, of compressed-tensors, DeepSeek, FBGEMM, ModelOpt, Quark, gpt-oss, torchao and ComfyUI; a config.json
    may name one, and what the files hold decides each layer. layers: "weight_only" makes WeightOnlyLinear, "frozen"
    FrozenFloat8Linear (without MX), each with the hooks of the layer whose place it takes. Layers stay on their device, or go
    to `device`; those on meta need it, or go to the CPU. unscaled: FP8 codes without scale_inv are the values themselves.

    Other tensors are loaded as load_state_dict() does, and codes of them (of modules of several parts, embeddings, stacked
    experts, layers with an activation) with their scale_inv multiplied in. Scales of activations, of the KV cache and of delayed scaling are
    ignored where the model has no place for them. Names are those of the model without wrappers (torch.compile,
    checkpoint_wrapper, DDP, PEFT, whose adapters stay as they are), or those that files of mixtures of experts have for them, as
    transformers' save_pretrained() writes Mixtral's.

    A load is whole or nothing: all is checked and read first, and an error leaves the model as it was. A model on meta
    needs no memory but the checkpoint's; another one needs both until the end. Raises LinearError, an ingot.Error that
    names file and tensor, for what does not fit, and with strict also for tensors that are missing or have no place. A module with
    fewer experts than the file does not fit: expert parallelism numbers each rank's from 0. Nor do different values under two names of
    one layer or tensor; equal ones do.
    """
    check_model(_SUBJECT, model)
    if not isinstance(layers, str) or layers not in _KINDS:
        raise LinearError(f"{_SUBJECT} layers: {printable(layers)!r} is not one of {', '.join(_KINDS)}")
    reader = Reader(file_name(path, f"{_SUBJECT} path"))
    check_quantization(reader.config, reader.path)
    plan = _Plan(model, reader, _KINDS[layers], unscaled)
    rest = sorted(reader.stored(name) for name in reader.names - plan.used if not is_mark(name))
    unexpected, ignored = ([name for name in rest if is_ignored(name) is each] for each in (False, True))
    if strict:
        _refuse_rest(reader, model, plan.missing, unexpected)
    made: dict[torch.nn.Module, torch.nn.Module] = {}
    values = []
    with progress("weights are loaded", len(plan.layers) + len(plan.targets)) as step:
        for module, of_module in plan.layers.items():
            made[module] = plan.layer_of(of_module[0], device)
            step()
        plan.compare()
        for target, value in plan.values():
            values.append((target, _made(target, value, device) if target.tensor.is_meta else value))
            step()
    plan.targets = [target for target, _ in values]
    _change(plan, made, values, plan.scales(), device)
    names = tuple(of_module[0].name for of_module in plan.layers.values())
    missing = (*plan.missing, *plan.left_on_meta)
    return CheckpointReport(
        names,
        missing,
        tuple(unexpected),
        tuple(plan.decoded),
        _note(plan, made.values()),
        tuple(plan.stacked),
        tuple(ignored),
        tuple(plan.experts.values()),
    )


def _lacks_codes(reader: Reader) -> bool:
    """Does the config promise codes where no tensor has a dtype of codes?"""
    return reader.config.get("quantization_config") is not None and not any(may_be_codes(reader.dtype(name)) for name in reader.names)


def _note(plan: _Plan, layers: Iterable[torch.nn.Module]) -> str:
    notes = []
    if any(isinstance(each, WeightOnlyLinear) and each.activation_dtype not in _OF_WEIGHT_ONLY for each in layers):
        notes.append("these layers take bfloat16 or float16: call .bfloat16() on the model, or use torch.autocast")
    trained = sum(isinstance(each, Float8Linear) for each in plan.layers)
    if trained:
        notes.append(
            f"{trained:,} of these layers trained and {'has' if trained == 1 else 'have'} frozen weights now: to train on, load before "
            "convert(), and call dequantize_() and requires_grad_(True) between the two"
        )
    if _lacks_codes(plan.reader):
        notes.append(
            "the config has a quantization_config, but the files have no codes: if the model was trained since, save it again after "
            "`del model.config.quantization_config`"
        )
    if plan.left_on_meta:
        notes.append(f"no checkpoint has these buffers, and they are on meta: make them: {some_of(plan.left_on_meta)}")
    return "\n".join(notes)

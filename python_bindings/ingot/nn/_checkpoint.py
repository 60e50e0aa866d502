"""FP8 checkpoints in the layouts of public models: loaded into layers with quantized weights, and written from them.

Files are read and written by the core (docs/checkpoints.md), so that no other package is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, Optional, Union

import torch

from .. import _core
from ..float8.config import ScalingGranularity
from ..float8.float8_linear import Float8Linear as TorchaoFloat8Linear
from ..torch._errors import LinearError
from . import _codes
from ._float8_linear import Float8Linear
from ._frozen_linear import RECIPE_OF, FrozenFloat8Linear
from ._weight_only import WeightOnlyLinear

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_SCALE_OF_RECIPE = {
    "tensorwise": "tensor",
    "rowwise": "row",
    "rowwise_folded": "row",
    "rowwise_with_gw_hp": "row",
    "blockwise": "128x128",
}
_OF_INPUT = ("input_scale", "activation_scale")


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """What load_float8_checkpoint() did: layers in FP8, tensors that the model wanted and the checkpoint lacks, and
    those that the model has no place for."""

    layers: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


class _Reader:
    """The tensors of a checkpoint, by name."""

    def __init__(self, path: str) -> None:
        self._files = _core.SafetensorsCheckpoint(path)
        self.path = path
        self.names = set(self._files.names())

    def dtype(self, name: str) -> Optional[torch.dtype]:
        """None for a tensor that is not there."""
        return _TYPES.get(self._files.facts(name)[0]) if name in self.names else None

    def read(self, name: str) -> torch.Tensor:
        kind, shape, size = self._files.facts(name)
        dtype = _TYPES.get(kind)
        if dtype is None:
            raise LinearError(f'{self.path} tensor "{name}": has the type {kind}, which PyTorch lacks')
        tensor = torch.empty(shape, dtype=dtype)
        self._files.read_into(name, tensor.data_ptr(), size)
        return tensor

    def one_of(self, prefix: str, names: tuple[str, ...]) -> Optional[str]:
        found = [prefix + name for name in names if prefix + name in self.names]
        if len(found) > 1:
            raise LinearError(f'{self.path} tensor "{found[0]}": "{found[1]}" is there too: leave one of them')
        return found[0] if found else None


def _scale_kind(shape: tuple[int, ...], codes: torch.Tensor, where: str) -> str:
    rows, columns = codes.shape
    if all(size == 1 for size in shape) and len(shape) <= 2:
        return "tensor"
    if tuple(shape) == (rows,):
        return "row"
    for scale in ("row", "128x128", "1x128"):
        if tuple(shape) == _codes.scale_shape(scale, rows, columns):
            return scale
    raise LinearError(
        f"{where}: has shape {tuple(shape)}, but a weight {tuple(codes.shape)} has one factor, one for each row, each "
        "128 x 128 block or each 128 elements of a row"
    )


def _quantization(path: pathlib.Path) -> dict[str, Any]:
    """The quantization_config of the config.json beside the files; {} if there is none."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LinearError(f"{file}: is no JSON: {error}") from None
    return found.get("quantization_config") or {}


def _check_quantization(config: dict[str, Any], where: str) -> None:
    """Refuses what this does not read. What the files hold decides the rest."""
    method = config.get("quant_method", "fp8")
    if method == "fp8":
        block = config.get("weight_block_size")
        if block is not None and list(block) != [128, 128]:
            raise LinearError(f"{where} weight_block_size: is {block}, but blocks are [128, 128]")
    elif method == "compressed-tensors":
        kind = config.get("format")
        if kind != "float-quantized":
            raise LinearError(f'{where} format: is {kind!r}, but of compressed-tensors "float-quantized" is read')
    elif method != "fbgemm_fp8":
        raise LinearError(f"{where} quant_method: {method!r} is none of fp8, compressed-tensors, fbgemm_fp8")


def _layer_of(reader: _Reader, prefix: str, module: torch.nn.Module, kind: type, device, dtype) -> torch.nn.Module:
    where = f'{reader.path} tensor "{prefix}weight"'
    codes = reader.read(prefix + "weight")
    if codes.dim() != 2 or tuple(codes.shape) != (module.out_features, module.in_features):
        raise LinearError(
            f"{where}: has shape {tuple(codes.shape)}, but the model's layer has ({module.out_features}, "
            f"{module.in_features})"
        )
    scale_name = reader.one_of(prefix, ("weight_scale", "weight_scale_inv"))
    if scale_name is None:
        raise LinearError(f"{where}: comes without factors: neither weight_scale nor weight_scale_inv is there")
    scales = reader.read(scale_name)
    scale = _scale_kind(tuple(scales.shape), codes, f'{reader.path} tensor "{scale_name}"')
    bias = reader.read(prefix + "bias") if prefix + "bias" in reader.names else None
    if bias is None and module.bias is not None:
        raise LinearError(f'{reader.path}: has no tensor "{prefix}bias", which the model\'s layer asks for')
    options = {"scale": scale, "dtype": dtype, "layer_name": prefix[:-1] or "linear"}
    codes, scales = codes.to(device), scales.to(device)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    layer = kind.from_codes(codes, scales, bias, **options)
    input_scale = reader.one_of(prefix, _OF_INPUT)
    if input_scale is not None and kind is FrozenFloat8Linear:
        layer.input_scale = reader.read(input_scale).reshape(1).to(device=device, dtype=torch.float32)
    return layer.train(module.training)


def load_float8_checkpoint(
    model: torch.nn.Module,
    path: Union[str, os.PathLike],
    *,
    layers: str = "weight_only",
    device: Optional[Union[str, torch.device]] = None,
    strict: bool = True,
) -> CheckpointReport:
    """Loads a checkpoint into `model`, whose linear layers become FP8 where the checkpoint has FP8 codes of them.

    path: a .safetensors file, its index, or a folder; a config.json there says how the weights are stored (fp8,
    compressed-tensors' float-quantized, fbgemm_fp8), and what the files hold decides each layer: one factor, rows, 128
    x 128 blocks or groups of 128, as weight_scale or weight_scale_inv. layers: "weight_only" makes WeightOnlyLinear,
    "frozen" FrozenFloat8Linear. Layers stay on their device, or go to `device`; those on meta need it, or go to the
    CPU. Other tensors are loaded as load_state_dict() does. Raises LinearError, an ingot.Error that names file and
    tensor, for what does not fit, and with strict also for tensors that are missing or have no place.
    """
    kinds = {"weight_only": WeightOnlyLinear, "frozen": FrozenFloat8Linear}
    if layers not in kinds:
        raise LinearError(f"load_float8_checkpoint layers: {layers!r} is none of {', '.join(kinds)}")
    reader = _Reader(os.fspath(path))
    _check_quantization(_quantization(pathlib.Path(path)), f"{path} quantization_config")
    used: set[str] = set()
    made: dict[torch.nn.Module, torch.nn.Module] = {}
    names: list[str] = []
    for name, module in list(model.named_modules(remove_duplicate=False)):
        prefix = f"{name}." if name else ""
        own = isinstance(module, (torch.nn.Linear, WeightOnlyLinear))
        if not own or reader.dtype(prefix + "weight") not in _codes.FLOAT8.values():
            continue
        if not name:
            raise LinearError("load_float8_checkpoint model: is a linear layer, which cannot be replaced in place")
        if module not in made:
            place = device or ("cpu" if module.weight.is_meta else module.weight.device)
            dtype = getattr(module, "compute_dtype", getattr(module, "activation_dtype", module.weight.dtype))
            made[module] = _layer_of(reader, prefix, module, kinds[layers], place, dtype)
            names.append(name)
        parent, _, key = name.rpartition(".")
        setattr(model.get_submodule(parent), key, made[module])
        used.update(prefix + part for part in ("weight", "weight_scale", "weight_scale_inv", "bias", *_OF_INPUT))
    missing = _load_others(model, reader, set(made.values()), used, device)
    unexpected = sorted(reader.names - used)
    if strict and (missing or unexpected):
        what, which = ("lacks", missing) if missing else ("has no place in the model for", unexpected)
        shown = ", ".join(which[:3]) + (f" and {len(which) - 3} more" if len(which) > 3 else "")
        raise LinearError(f"{path}: {what} {shown}: give the model it was made for, or strict=False")
    return CheckpointReport(tuple(names), tuple(missing), tuple(unexpected))


def _load_others(model, reader: _Reader, made: set, used: set[str], device) -> list[str]:
    """Loads all tensors outside of the layers in FP8. Returns the names that are missing."""
    missing: list[str] = []
    replaced: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    loaded: set[int] = set()  # parameters may be tied: one name is enough
    for name, module in model.named_modules(remove_duplicate=False):
        if module in made:
            continue
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            full = f"{name}.{key}" if name else key
            if tensor is None or key in module._non_persistent_buffers_set:
                continue
            if full not in reader.names:
                missing.append(full)
                continue
            used.add(full)
            value = reader.read(full)
            if value.shape != tensor.shape:
                raise LinearError(
                    f'{reader.path} tensor "{full}": has shape {tuple(value.shape)}, but the model has '
                    f"{tuple(tensor.shape)}"
                )
            loaded.add(id(tensor))
            if not tensor.is_meta:
                with torch.no_grad():
                    tensor.copy_(value)
                continue
            value = value.to(device=device or "cpu", dtype=tensor.dtype)
            if key in module._parameters:
                value = replaced[tensor] = torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
                module._parameters[key] = value
            else:
                module._buffers[key] = value
    for module in model.modules():  # what is tied to a parameter that was on meta
        for key, tensor in module._parameters.items():
            if tensor is not None and tensor in replaced:
                module._parameters[key] = replaced[tensor]
                loaded.add(id(replaced[tensor]))
    tensors = dict(model.named_parameters(remove_duplicate=False))
    return [name for name in missing if name not in tensors or id(tensors[name]) not in loaded]


# ---- saving --------------------------------------------------------------------------------------------------------


def _trained_with(module: Union[Float8Linear, TorchaoFloat8Linear]) -> tuple[Optional[str], bool]:
    """How training casts the weight, so that what is stored has the codes that it multiplied by: what shares a factor,
    None for high precision, and whether scales are powers of two."""
    if isinstance(module, Float8Linear):
        kind = _SCALE_OF_RECIPE.get(module.options.recipe)
        return kind, kind == "row"
    config = module.config
    rows = config.cast_config_weight.scaling_granularity == ScalingGranularity.AXISWISE
    return "row" if rows else "tensor", config.round_scales_to_power_of_2


def _float8_of(module: torch.nn.Module, name: str, scale: Optional[str]):
    """(codes, factors, scale kind, input scale) of a layer that is stored in FP8; None for others."""
    if isinstance(module, FrozenFloat8Linear):
        return module.codes(), module.weight_scale, module.scale, module.input_scale
    if isinstance(module, WeightOnlyLinear):
        if module.weight_dtype not in ("e4m3fn", "e5m2") or module.scale not in (*RECIPE_OF, "1x128"):
            raise LinearError(
                f'save_float8_checkpoint "{name}": has {module.weight_dtype} weights with scale={module.scale}, for '
                "which there is no public layout: save its state_dict()"
            )
        return module.codes().view(_codes.FLOAT8[module.weight_dtype]), module.weight_scale, module.scale, None
    if not isinstance(module, (Float8Linear, TorchaoFloat8Linear)):
        return None
    own, pow2 = _trained_with(module)
    kind = scale or own
    if kind is None:
        return None
    codes, factors = _codes.cast(module.weight, "e4m3fn", kind, pow2, name)
    return codes.view(torch.float8_e4m3fn), factors, kind, None


def float8_quantization_config(scale: str, ignored: list[str], static: bool = False) -> dict[str, Any]:
    """What config.json says of a model whose linear layers have such factors, for transformers and inference engines:
    quant_method "fp8" for blocks, else compressed-tensors' float-quantized. `ignored` are linear layers in high
    precision; static: activations have an input_scale."""
    if scale == "128x128":
        return {
            "quant_method": "fp8",
            "activation_scheme": "static" if static else "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": list(ignored),
        }
    number = {"num_bits": 8, "type": "float", "symmetric": True}
    rows = scale == "row"
    weights = {**number, "strategy": "channel" if rows else "tensor", "dynamic": False}
    inputs = {**number, "strategy": "token" if rows and not static else "tensor", "dynamic": not static}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
        "ignore": list(ignored),
    }


def save_float8_checkpoint(
    model: torch.nn.Module,
    path: Union[str, os.PathLike],
    *,
    scale: Optional[str] = None,
    scale_name: Optional[str] = None,
) -> dict[str, Any]:
    """Writes a model: FP8 layers as codes and factors, all other tensors as they are. Returns its quantization_config.

    Stored in FP8 are FrozenFloat8Linear, WeightOnlyLinear of e4m3fn and e5m2, and trained Float8Linear layers, whose
    weight is cast as their recipe casts it, or with `scale` ("tensor", "row" or "128x128"). path: a .safetensors file,
    or a folder, which gets model.safetensors and a config.json with quantization_config, beside what was in it or in
    the model's `config`. scale_name: weight_scale or weight_scale_inv; default: as engines expect for the layout. All
    bits of codes and factors come back by load_float8_checkpoint(). Raises LinearError for layers of several layouts,
    or of none.
    """
    tensors: dict[str, torch.Tensor] = {}
    scales: dict[str, str] = {}
    ignored: list[str] = []
    static = False
    in_float8: dict[torch.nn.Module, Any] = {}
    seen: set[int] = set()
    if scale is not None and scale not in RECIPE_OF:
        raise LinearError(f"save_float8_checkpoint scale: {scale!r} is none of {', '.join(RECIPE_OF)}")
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        stored = _float8_of(module, name, scale)
        if stored is not None:
            codes, factors, kind, input_scale = in_float8[module] = stored
            scales[name] = kind
            tensors[prefix + "weight"] = codes
            tensors[prefix + (scale_name or ("weight_scale_inv" if kind == "128x128" else "weight_scale"))] = factors
            if input_scale is not None:
                tensors[prefix + "input_scale"] = input_scale
                static = True
            if module.bias is not None:
                tensors[prefix + "bias"] = module.bias
            continue
        if isinstance(module, torch.nn.Linear):
            ignored.append(name)
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None or key in module._non_persistent_buffers_set or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            tensors[prefix + key] = tensor
    kinds = set(scales.values())
    if not kinds:
        raise LinearError("save_float8_checkpoint model: has no FP8 layer: convert or quantize some of its layers first")
    if len(kinds) > 1:
        raise LinearError(
            f"save_float8_checkpoint model: has FP8 layers with factors of {' and of '.join(sorted(kinds))}, expected one "
            "kind: quantize all of them with the same scale"
        )
    config = float8_quantization_config(kinds.pop(), ignored, static)
    path = pathlib.Path(path)
    if path.suffix == ".safetensors":
        _write(path, tensors)
        return config
    path.mkdir(parents=True, exist_ok=True)
    _write(path / "model.safetensors", tensors)
    _write_config(path / "config.json", model, config)
    return config


def _write(file: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    kept = []  # as long as their addresses are used
    entries = []
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise LinearError(f'save_float8_checkpoint "{name}": is {tensor.dtype}, which safetensors files lack')
        if tensor.is_meta:
            raise LinearError(f'save_float8_checkpoint "{name}": is on meta, without values')
        on_host = tensor.detach().cpu().contiguous()
        kept.append(on_host)
        bytes_of = on_host.numel() * on_host.element_size()
        entries.append((name, _NAMES[tensor.dtype], list(on_host.shape), on_host.data_ptr(), bytes_of))
    _core.write_safetensors(os.fspath(file), entries, {"format": "pt"})


def _write_config(file: pathlib.Path, model: torch.nn.Module, quantization: dict[str, Any]) -> None:
    config: dict[str, Any] = {}
    own = getattr(model, "config", None)
    if file.exists():
        config = json.loads(file.read_text(encoding="utf-8"))
    elif hasattr(own, "to_diff_dict"):
        config = json.loads(own.to_json_string())
    config["quantization_config"] = quantization
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

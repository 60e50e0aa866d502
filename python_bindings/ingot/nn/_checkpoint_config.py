"""What the config of a checkpoint says of its layout: the ones that are read, and others refused by name. The files' contents
decide each weight; the config decides where they fit two layouts."""

from __future__ import annotations

from typing import Any, Iterator, Optional

from .._text import printable
from ..torch._errors import LinearError

_BLOCKS = {(128, 128): "128x128", (1, 128): "1x128", (1, 32): "mx"}
_STRATEGIES = {"tensor": "tensor", "channel": "row", "block": "128x128"}  # of compressed-tensors
_COMPRESSED = (
    "float-quantized",
    "naive-quantized",
    "mxfp8-quantized",
    "mxfp6-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
_MODELOPT = {
    "FP8": None,
    "FP8_PER_CHANNEL_PER_TOKEN": "row",
    "FP8_PB_WO": "128x128",
    "FP8_PB_REAL": "128x128",
    "MXFP8": "mx",
    "MXFP4": "mx",
    "W4A8_MXFP4_FP8": "mx",
    "MIXED_PRECISION": None,
}
_QUARK = {
    ("fp8_e4m3", "per_tensor"): "tensor",
    ("fp8_e5m2", "per_tensor"): "tensor",
    ("fp8_e4m3", "per_channel"): "row",
    ("fp8_e5m2", "per_channel"): "row",
    ("fp4", "per_group"): "mx",
}
# Those that make layers compute something else than their codes' values; others only choose the codes.
_QUARK_ALGORITHMS = {
    "rotation": "may rotate the layers' inputs",
    "quarot": "may rotate the layers' inputs",
    "svdquant": "scales the layers' inputs and adds products of low rank",
}
_METHODS = ("fp8", "mxfp8", "mxfp4", "compressed-tensors", "modelopt", "fbgemm_fp8", "torchao", "quark")


def check_quantization(config: dict[str, Any], where: str) -> None:
    """Refuses, by name, layouts that are not read."""
    found = config.get("quantization_config")
    where = f"{where} quantization_config"
    if found is None:
        return
    if not isinstance(found, dict):
        raise LinearError(f"{where}: is {printable(found)!r}, expected an object")
    method = _method(found)
    if method == "fp8":
        block = found.get("weight_block_size")
        if block is not None and _block(block) is None:
            raise LinearError(f"{where} weight_block_size: is {printable(block)}, but blocks are [128, 128] or [1, 32]")
    elif method == "compressed-tensors":
        _check_compressed(found, where)
    elif method == "quark":
        _check_quark(found, where)
    elif method == "modelopt":
        algorithm = _algorithm(found)
        if not isinstance(algorithm, str) or algorithm not in _MODELOPT:
            raise LinearError(
                f"{where} quant_algo: is {printable(algorithm)!r}, but of ModelOpt's layouts these are read: "
                f"{', '.join(_MODELOPT)}"
            )
    elif method not in _METHODS:
        raise LinearError(f"{where} quant_method: {printable(method)!r} is not one of {', '.join(_METHODS)}")


def configured_kind(config: dict[str, Any]) -> Optional[str]:
    """Returns what shares a scale_inv according to a checked config; None if it does not say."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    method = _method(found)
    if method == "fp8":
        return _block(found.get("weight_block_size"))
    if method == "compressed-tensors":
        kinds = {_STRATEGIES.get(str(weights.get("strategy"))) for _, weights in _groups(found)}
        return kinds.pop() if len(kinds) == 1 else None
    if method == "quark":
        kinds = {_QUARK.get(_quark_kind(weights)) for _, weights in _quark_weights(found)}
        return kinds.pop() if len(kinds) == 1 else None
    if method == "modelopt":
        return _MODELOPT.get(str(_algorithm(found)))
    return {"fbgemm_fp8": "row", "mxfp8": "mx", "mxfp4": "mx"}.get(method)


def _method(found: dict[str, Any]) -> Any:
    method = found.get("quant_method", "fp8")
    return "modelopt" if isinstance(method, str) and method.startswith("modelopt") else method


def _algorithm(found: dict[str, Any]) -> Any:
    inner = found.get("quantization")
    algorithm = (inner if isinstance(inner, dict) else found).get("quant_algo")
    return algorithm.upper() if isinstance(algorithm, str) else algorithm


def _block(block: Any) -> Optional[str]:
    whole = isinstance(block, (list, tuple)) and all(type(size) is int for size in block)
    return _BLOCKS.get(tuple(block)) if whole else None


def _groups(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The groups of layers of compressed-tensors, each with what it says of weights."""
    groups = found.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield name, weights


def _check_compressed(found: dict[str, Any], where: str) -> None:
    kinds = {"format": found.get("format")}
    groups = found.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and group.get("format") is not None:
            kinds[f"config_groups {printable(name)} format"] = group["format"]
    for what, kind in kinds.items():
        if kind not in _COMPRESSED:
            raise LinearError(
                f"{where} {what}: is {printable(kind)!r}, but of compressed-tensors these are read: {', '.join(_COMPRESSED)}"
            )
    for name, weights in _groups(found):
        if weights.get("type", "float") != "float":
            raise LinearError(
                f"{where} config_groups {printable(name)}: its weights are of type {printable(weights['type'])!r}, but only "
                "float is read"
            )
    sparsity = found.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity and sparsity.get("format") != "dense":
        raise LinearError(
            f"{where} sparsity_config: weights are stored as {printable(sparsity.get('format'))!r}, but only dense ones are read"
        )
    transforms = found.get("transform_config")
    if isinstance(transforms, dict) and transforms.get("config_groups"):
        raise LinearError(
            f"{where} transform_config: the layers' inputs are to be rotated, which no layer of Ingot does: use a checkpoint "
            "without transforms"
        )


def _quark_weights(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What Quark says of weights: of all layers, of those by name, and of those by type."""
    of_all = {"global_quant_config": found.get("global_quant_config")}
    by_name = {
        f"{key} {printable(name)}": each
        for key in ("layer_quant_config", "layer_type_quant_config")
        if isinstance(found.get(key), dict)
        for name, each in found[key].items()
    }
    for where, each in {**of_all, **by_name}.items():
        weights = each.get("weight") if isinstance(each, dict) else None
        if weights is not None:
            yield where, weights


def _quark_kind(weights: Any) -> tuple[str, str]:
    weights = weights if isinstance(weights, dict) else {}  # a list: scales have scales, as in NVFP4
    return str(weights.get("dtype")), str(weights.get("qscheme"))


def _check_quark(found: dict[str, Any], where: str) -> None:
    for what, weights in _quark_weights(found):
        kind = _quark_kind(weights)
        if kind not in _QUARK:
            said = " ".join(kind) if isinstance(weights, dict) else "more than one quantization"
            raise LinearError(
                f"{where} {what}: its weights have {printable(said)!r}, but of Quark's layouts these are read: "
                f"{', '.join(map(' '.join, _QUARK))}"
            )
    algorithms = found.get("algo_config") or []
    for each in algorithms if isinstance(algorithms, list) else [algorithms]:
        name = str(each.get("name")) if isinstance(each, dict) else ""
        does = next((does for part, does in _QUARK_ALGORITHMS.items() if part in name), None)
        if does is not None:
            raise LinearError(
                f"{where} algo_config: {printable(name)!r} {does}, which no layer of Ingot does: use a checkpoint without it"
            )

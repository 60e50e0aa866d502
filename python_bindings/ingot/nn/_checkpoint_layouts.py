"""The contents of public FP8 checkpoints: the supported layouts (others are refused by name), and the scale_inv of
codes."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from .._text import printable
from ..torch import _codes
from ..torch._errors import LinearError
from ._checkpoint_files import Reader

SCALES = ("weight_scale", "weight_scale_inv")
_KIND_OF_STRATEGY = {"tensor": "tensor", "channel": "row", "block": "128x128"}  # of compressed-tensors


def check_quantization(config: dict[str, Any], where: str) -> None:
    """Refuses, by name, layouts that are not supported. The contents of the files decide the rest."""
    found = config.get("quantization_config")
    where = f"{where} quantization_config"
    if found is None:
        return
    if not isinstance(found, dict):
        raise LinearError(f"{where}: is {printable(found)!r}, expected an object")
    method = found.get("quant_method", "fp8")
    if method == "fp8":
        block = found.get("weight_block_size")
        if block == [1, 32]:
            raise LinearError(
                f"{where} weight_block_size: [1, 32] is MXFP8, which is not loaded: MXWeightOnlyConfig() makes such layers "
                "of weights in high precision"
            )
        if block not in (None, [128, 128]):
            raise LinearError(f"{where} weight_block_size: is {printable(block)}, but blocks are [128, 128]")
    elif method == "compressed-tensors":
        kind = found.get("format")
        if kind != "float-quantized":
            raise LinearError(
                f'{where} format: is {printable(kind)!r}, but of compressed-tensors "float-quantized" is read'
            )
    elif method == "modelopt":
        algorithm = found.get("quant_algo")
        if algorithm != "FP8":
            raise LinearError(f'{where} quant_algo: is {printable(algorithm)!r}, but of ModelOpt\'s layouts "FP8" is read')
    elif method != "fbgemm_fp8":
        raise LinearError(
            f"{where} quant_method: {printable(method)!r} is not one of fp8, compressed-tensors, modelopt, fbgemm_fp8"
        )


def configured_kind(config: dict[str, Any]) -> Optional[str]:
    """Returns what shares a factor according to a checked config.json; None if it does not say."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    method = found.get("quant_method", "fp8")
    if method == "fp8":
        return "128x128" if found.get("weight_block_size") else None
    if method == "compressed-tensors":
        groups = found.get("config_groups")
        groups = list(groups.values()) if isinstance(groups, dict) else []
        weights = [each.get("weights") for each in groups if isinstance(each, dict)]
        found_kinds = {_KIND_OF_STRATEGY.get(str(each.get("strategy"))) for each in weights if isinstance(each, dict)}
        return found_kinds.pop() if len(found_kinds) == 1 else None
    return "row" if method == "fbgemm_fp8" else None


def scale_of(reader: Reader, name: str) -> str:
    """The name of the scale_inv of the FP8 codes that have this name."""
    prefix, is_weight, _ = name.rpartition("weight")
    names = SCALES if is_weight and name.endswith("weight") else (f"{name}_scale", f"{name}_scale_inv")
    prefix = prefix if names is SCALES else ""
    found = reader.one_of(prefix, names)
    if found is not None:
        return found
    if prefix + "scale_weight" in reader.names:
        raise LinearError(
            f'{reader.where(name)}: has its factor as "{printable(prefix)}scale_weight", a layout of diffusion models, which '
            "is not loaded: name it weight_scale"
        )
    raise LinearError(
        f"{reader.where(name)}: comes without scale_inv: neither {' nor '.join(names)} is there; codes that are the values "
        f"themselves have a {names[0]} of 1"
    )


def scale_kind(reader: Reader, name: str, rows: int, columns: int) -> str:
    """What shares a factor, by the shape of the scale_inv. One factor may also be that of a weight with one block or one row,
    whose activations are cast as other layers' are: then config.json decides, or else the name."""
    shape, where = reader.facts(name)[1], reader.where(name)
    if all(size == 1 for size in shape) and len(shape) <= 2:
        by_name = "128x128" if len(shape) == 2 and name.endswith("weight_scale_inv") else "tensor"
        kind = configured_kind(reader.config) or by_name
        return kind if math.prod(_codes.scale_shape(kind, rows, columns)) == 1 else "tensor"
    if shape == (rows,):
        return "row"
    for scale in ("row", "128x128", "1x128"):
        if shape == _codes.scale_shape(scale, rows, columns):
            return scale
    mx = shape == _codes.scale_shape("mx", rows, columns)
    raise LinearError(
        f"{where}: has shape {shape}, but a weight {(rows, columns)} has one factor, one for each row, each 128 x 128 "
        "block or each 128 elements of a row" + (" (this is MXFP8, which is not loaded)" if mx else "")
    )


def read_scales(reader: Reader, name: str) -> torch.Tensor:
    """Factors, on the host, where looking at their values waits for no device. A factor of 0 is that of zeros."""
    scales = reader.read(name)
    values = scales.float()
    if not ((values >= 0) & (values < math.inf)).all():
        raise LinearError(
            f"{reader.where(name)}: has scale_inv that are NaN, Inf or negative, but a factor is finite and at least 0: the "
            "file is damaged, or stores something else by this name"
        )
    return scales


def spread(scales: torch.Tensor, shape: tuple[int, ...], where: str) -> torch.Tensor:
    """Factors for each element of codes of any rank: along a dimension there is one, one for each index, or one for each
    128. Those of fewer dimensions belong to the first."""
    if scales.numel() == 1:
        return scales.reshape((1,) * len(shape))
    given = tuple(scales.shape)
    if len(given) <= len(shape):
        scales = scales.reshape(*given, *(1,) * (len(shape) - len(given)))
        fits = [have in (1, size, -(-size // 128)) for have, size in zip(scales.shape, shape)]
        if all(fits):
            for dim, (have, size) in enumerate(zip(scales.shape, shape)):
                if have not in (1, size):
                    scales = scales.repeat_interleave(128, dim).narrow(dim, 0, size)
            return scales
    raise LinearError(
        f"{where}: has shape {given}, but FP8 codes {shape} have along each dimension one factor, one for "
        "each index or one for each 128"
    )

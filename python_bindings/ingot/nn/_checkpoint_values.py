"""The values of a checkpoint's weights in few bits: codes and scale_inv for a layer of such codes, or decoded for a parameter of
higher precision. All are read on the host, where looking at scale_inv waits for no device."""

from __future__ import annotations

import functools
import json
import math

import torch

from .._text import printable
from ..torch import _codes
from ..torch._errors import LinearError
from ._checkpoint_files import Reader
from ._checkpoint_layouts import StoredWeight, matrix_of

_COMFY = ("float8_e4m3fn", "float8_e5m2")


def read_operands(reader: Reader, weight: StoredWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, float8 or packed rows, and scale_inv; those of MX are e8m0. Raises LinearError for scale_inv that cannot be."""
    _look_at_notes(reader, weight)
    codes = reader.read(weight.codes)
    if weight.in_blocks:
        codes = codes.flatten(-2)
    scale_inv = _read_scales(reader, weight)
    return codes, scale_inv if weight.is_mx else scale_inv.float()


def read_values(reader: Reader, weight: StoredWeight, dtype: torch.dtype, transposed: bool) -> torch.Tensor:
    """Values code * scale_inv, rounded to float32 and then to `dtype`. transposed: with the last two dimensions exchanged.
    Each matrix of a stack is decoded by itself, so that no more than one is in memory as float32."""
    codes, scale_inv = read_operands(reader, weight)
    where = reader.where(weight.scales or weight.codes)
    scale_inv = _fitted(scale_inv, weight.shape, where)
    if len(weight.shape) < 3:
        return _decoded(codes, scale_inv, weight.dtype, weight.shape, where).to(dtype)
    shape = (*weight.shape[:-2], weight.shape[-1], weight.shape[-2]) if transposed else weight.shape
    out = torch.empty(shape, dtype=dtype, device="cpu")
    for at, each in enumerate(codes):
        own = scale_inv[at if scale_inv.shape[0] > 1 else 0]
        values = _decoded(each, own, weight.dtype, weight.shape[1:], where)
        out[at] = values.transpose(-2, -1) if transposed else values
    return out


def _look_at_notes(reader: Reader, weight: StoredWeight) -> None:
    for name in weight.notes:
        if name.endswith("_zero_point"):
            if reader.read(name).float().any():
                raise LinearError(f"{reader.where(name)}: has values other than 0, but codes of floats have no zero points")
            continue
        try:
            found = json.loads(bytes(reader.read(name).view(torch.uint8).flatten().tolist()))
        except ValueError:
            found = None
        kind = found.get("format") if isinstance(found, dict) else None
        if kind not in _COMFY or found.get("convrot"):
            raise LinearError(f"{reader.where(name)}: says {printable(found)!r}, but of ComfyUI's formats {', '.join(_COMFY)} are read")


def _read_scales(reader: Reader, weight: StoredWeight) -> torch.Tensor:
    """A scale_inv of 0 is that of zeros."""
    if weight.scales is None:
        return torch.ones(1, device="cpu")
    scales = reader.read(weight.scales)
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    values = scales.float()
    if not ((values >= 0) & (values < math.inf)).all():
        raise LinearError(
            f"{reader.where(weight.scales)}: has scale_inv that are NaN, Inf or negative, but a scale_inv is finite and at least "
            "0: the file is damaged, or stores something else by this name"
        )
    if weight.swizzled:
        return _unswizzled(scales, weight.shape)
    return scales.reshape(matrix_of(tuple(scales.shape)))


def _unswizzled(scales: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Blackwell's matrix units read scale_inv of 128 rows and 4 columns as a tile: the row modulo 32, then the row's quarter of
    the tile, then the column."""
    rows, columns = shape[0], -(-shape[1] // 32)
    tiles = scales.view(torch.uint8).reshape(-(-rows // 128), -(-columns // 4), 32, 4, 4)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(-(-rows // 128) * 128, -(-columns // 4) * 4)
    return plain[:rows, :columns].contiguous().view(torch.float8_e8m0fnu)


def _fitted(scales: torch.Tensor, shape: tuple[int, ...], where: str) -> torch.Tensor:
    """float32 scale_inv with as many dimensions as the codes; those of fewer belong to the first, or, of a stack, to its columns
    if there are as many. Raises LinearError where along a dimension there is not one, one for each index or one for each 128;
    along the last one also for each 64 or 32."""
    scales = scales.float()
    if scales.numel() == 1:
        return scales.reshape((1,) * len(shape))
    given = tuple(scales.shape)
    if len(shape) == 3 and given == (shape[0], shape[2]) != tuple(shape[:2]):
        return scales[:, None]
    if len(given) <= len(shape):
        scales = scales.reshape(*given, *(1,) * (len(shape) - len(given)))
        last = len(shape) - 1
        sizes = [(128, 64, 32) if dim == last else (128,) for dim in range(len(shape))]
        if all(
            have in (1, size, *(-(-size // each) for each in of)) for have, size, of in zip(scales.shape, shape, sizes)
        ):
            return scales
    raise LinearError(
        f"{where}: has shape {given}, but FP8 codes {shape} have along each dimension one scale_inv, one for "
        "each index or one for each 128, and along the last also one for each 64 or 32"
    )


def spread(scales: torch.Tensor, shape: tuple[int, ...], where: str) -> torch.Tensor:
    """scale_inv for each element of codes of any rank; a dimension of which all elements have the same stays 1."""
    scales = _fitted(scales, shape, where)
    for dim, (have, size) in enumerate(zip(scales.shape, shape)):
        if have not in (1, size):
            of = next(each for each in (128, 64, 32) if have == -(-size // each))
            scales = scales.repeat_interleave(of, dim).narrow(dim, 0, size)
    return scales


@functools.lru_cache(maxsize=None)
def _pairs() -> torch.Tensor:
    """The two values of FP4 in each byte."""
    singles = torch.arange(256, dtype=torch.uint8, device="cpu")[:, None]
    return _codes.code_values(singles, "e2m1fn", 2)


def _decoded(
    codes: torch.Tensor, scales: torch.Tensor, dtype: str, shape: tuple[int, ...], where: str
) -> torch.Tensor:
    if dtype == "e2m1fn":
        values = _pairs()[codes.to(torch.int64)].reshape(shape)
    elif codes.dtype == torch.uint8:
        values = _codes.code_values(codes.reshape(-1, codes.shape[-1]), dtype, shape[-1]).reshape(shape)
    else:
        values = codes.float()
    return values * spread(scales, shape, where)

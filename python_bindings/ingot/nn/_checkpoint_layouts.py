"""How public checkpoints store a weight in 8, 6 or 4 bits: by the names, dtypes and shapes of its tensors.

Of a weight "proj.weight", value = code * scale_inv, a file has one of

  proj.weight (float8) with proj.weight_scale, proj.weight_scale_inv or proj.scale_weight, or proj.scale where none of these is
                                                    there and the model has none itself (DeepSeek-V4); or alone, if codes are values
  proj.weight (uint8, two codes of FP4 to a byte) with proj.weight_scale (e8m0, of 32)         ModelOpt
  proj.weight_packed (uint8, FP4 or FP6) with proj.weight_scale                                compressed-tensors
  proj.weight_blocks (uint8, [..., N, K / 32, 16]) with proj.weight_scales                     gpt-oss
  proj._weight_qdata with proj._weight_scale, and an entry of the file's metadata              torchao

Parameters by other names, such as stacked experts, have the same: experts.down_proj with experts.down_proj_scale.
"""

from __future__ import annotations

import json
import math
from typing import AbstractSet, NamedTuple, Optional

import torch

from .._text import printable, some_of
from ..torch import _codes
from ..torch._errors import LinearError
from ._checkpoint_config import configured_kind
from ._checkpoint_files import Reader

_E8M0 = (torch.float8_e8m0fnu, torch.uint8)  # uint8: its bits
_OF_FLOATS = (torch.float32, torch.bfloat16, torch.float16, *_E8M0)
_OF_WEIGHT = ("weight_scale", "weight_scale_inv", "scale_weight")
_OF_DEEPSEEK_V4 = "scale"  # which many modules have of their own, so only where these have none and none of the others is there
_OF_OTHERS = ("_scale", "_scale_inv", "_weight_scale")
_BITS = {"e2m1fn": 4, "e2m3fn": 6}
_MARKS = ("scaled_fp8",)  # of ComfyUI: says that the file has codes
_IGNORED = (
    "input_scale", "activation_scale", "output_scale", "scale_input", "input_scale_ub", "activation_scale_ub",
    "input_global_scale", "k_scale", "v_scale", "q_scale", "kv_scale", "prob_output_scale",
    "fp8_amax", "fp8_amax_history", "fp8_scale",
)  # fmt: skip


def is_ignored(name: str) -> bool:
    """Is this a scale of activations or of the KV cache, or what a layer or experts with delayed scales keep? Stacked experts
    have theirs as down_proj_input_scale."""
    last = name.rpartition(".")[2]
    return last in _IGNORED or last.endswith(tuple(f"_{each}" for each in _IGNORED[:2]))


def is_mark(name: str) -> bool:
    return name.rpartition(".")[2] in _MARKS


def may_be_codes(dtype: Optional[torch.dtype]) -> bool:
    """None: of a type that PyTorch lacks. Bytes have two codes of FP4, or some of FP6."""
    return dtype is None or dtype == torch.uint8 or dtype in _codes.FLOAT8.values()


class StoredWeight(NamedTuple):
    """A weight of a file in few bits."""

    name: str  # as the model calls it
    codes: str  # the tensor of codes
    scales: Optional[str]  # that of scale_inv; None if the codes are the values
    dtype: str  # "e4m3fn" ...
    shape: tuple[int, ...]  # of the values
    is_mx: bool = False  # a scale_inv is e8m0, for 32 codes
    in_blocks: bool = False  # as gpt-oss has it
    swizzled: bool = False  # scale_inv are in the order that Blackwell's matrix units read
    notes: tuple[str, ...] = ()  # tensors that are looked at when values are read

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors of the file that this weight is made of."""
        return (self.codes, *([self.scales] if self.scales else []), *self.notes)

    @property
    def is_packed(self) -> bool:
        return self.dtype in _BITS


class StoredWeights:
    """The weights of a file that are stored in few bits. unscaled: float8 codes without scale_inv are values. own: the names of the
    model's tensors."""

    def __init__(self, reader: Reader, unscaled: bool, own: AbstractSet[str]) -> None:
        self._reader, self._unscaled, self._own = reader, unscaled, own
        self._found: dict[str, Optional[StoredWeight]] = {}

    def of(self, name: str) -> Optional[StoredWeight]:
        """None if the file has no weight of this name in few bits. Raises LinearError for one that is incomplete."""
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Optional[StoredWeight]:
        reader = self._reader
        if name in reader.names:
            dtype = reader.dtype(name)
            if dtype in _codes.FLOAT8.values():
                return self._float8(name, dtype)
            return self._packed(name, name) if dtype == torch.uint8 and self._is_packed(name) else None
        prefix, dot, key = name.rpartition(".")
        if f"{prefix}{dot}_{key}_qdata" in reader.names:
            return self._torchao(name, f"{prefix}{dot}_{key}_")
        if f"{name}_packed" in reader.names:
            return self._packed(name, f"{name}_packed")
        for joint in ("_", "."):
            blocks, scales = f"{name}{joint}blocks", f"{name}{joint}scales"
            if blocks in reader.names or (scales in reader.names and reader.dtype(scales) == torch.uint8):
                return self._blocks(name, blocks, scales)
        return None

    def _is_packed(self, name: str) -> bool:
        """Does a tensor of bytes hold codes? A WeightOnlyLinear's state does not: it comes with its packing."""
        prefix = name.removesuffix("weight")
        if prefix + "packing" in self._reader.names:
            return False
        scales = self._scales_of(name)
        return scales is not None and self._reader.dtype(scales) in (*_E8M0, torch.float8_e4m3fn)

    @staticmethod
    def _names_of_scales(name: str) -> tuple[str, ...]:
        prefix = _prefix_of_weight(name)
        return tuple(name + each for each in _OF_OTHERS) if prefix is None else tuple(prefix + each for each in _OF_WEIGHT)

    def _scales_of(self, name: str) -> Optional[str]:
        """The tensor of scale_inv of a weight, or None."""
        found = self._reader.one_of("", self._names_of_scales(name))
        prefix = _prefix_of_weight(name)
        if found or prefix is None or prefix + _OF_DEEPSEEK_V4 in self._own:
            return found
        return self._reader.one_of(prefix, (_OF_DEEPSEEK_V4,))

    def _float8(self, name: str, dtype: torch.dtype) -> StoredWeight:
        reader, scales = self._reader, self._scales_of(name)
        if scales is None and not self._unscaled:
            short = [each.rpartition(".")[2] for each in self._names_of_scales(name)[:2]]
            raise LinearError(
                f"{reader.where(name)}: comes without scale_inv: neither {' nor '.join(short)} is there; if the codes are the "
                "values themselves, load with unscaled=True"
            )
        shape = reader.facts(name)[1]
        is_mx = False
        if scales is not None:
            self._check_scales(scales)
            given = reader.facts(scales)[1]
            of_32 = len(shape) > 1 and given == (*shape[:-1], -(-shape[-1] // 32))
            known = shape[-1:] > (32,) or configured_kind(reader.config) == "mx"  # else these are rows
            is_mx = of_32 and known and reader.facts(scales)[0] in _E8M0
        form = next(name for name, each in _codes.FLOAT8.items() if each == dtype)
        return StoredWeight(name, name, scales, form, shape, is_mx, notes=self._notes(name))

    def _notes(self, name: str) -> tuple[str, ...]:
        prefix = name.removesuffix("weight")
        if f"{prefix}pre_quant_scale" in self._reader.names:
            raise LinearError(
                f"{self._reader.where(f'{prefix}pre_quant_scale')}: multiplies the layer's input, which no layer of Ingot does: use "
                "a checkpoint without it"
            )
        notes = (f"{name}_zero_point", f"{prefix}comfy_quant")
        return tuple(each for each in notes if each in self._reader.names)

    def _packed(self, name: str, codes: str) -> StoredWeight:
        """FP4, or compressed-tensors' FP6, several codes to a byte, in rows."""
        reader = self._reader
        dtype, shape = reader.facts(codes)
        if dtype != torch.uint8:
            found = str(dtype).removeprefix("torch.")
            raise LinearError(f"{reader.where(codes)}: is {found}, but packed codes of FP4 and FP6 are uint8")
        scales = self._scales_of(name)
        if scales is None:
            raise LinearError(
                f"{reader.where(codes)}: comes without scale_inv: no {printable(name.rpartition('.')[2])}_scale is there"
            )
        found, given = reader.facts(scales)
        if found == torch.float8_e4m3fn:
            raise LinearError(
                f"{reader.where(scales)}: is float8_e4m3fn: this is NVFP4, which no layer of Ingot has; of FP4, MXFP4 is read"
            )
        of_24 = codes != name and given and shape[-1:] == (24 * given[-1],)  # bytes for 32 codes; of FP4 16
        form = "e2m3fn" if of_24 else "e2m1fn"
        values = (*shape[:-1], shape[-1] * 8 // _BITS[form]) if shape else shape
        return self._checked_mx(StoredWeight(name, codes, scales, form, values, True, notes=self._notes(name)))

    def _blocks(self, name: str, codes: str, scales: str) -> StoredWeight:
        reader = self._reader
        for have, lacking in ((codes, scales), (scales, codes)):
            if lacking not in reader.names:
                what = lacking.removeprefix(name).lstrip("._")
                raise LinearError(f'{reader.where(have)}: comes without its {what}: "{printable(lacking)}" is not there')
        dtype, shape = reader.facts(codes)
        if dtype != torch.uint8 or len(shape) < 3 or shape[-1] != 16:
            found = f"{str(dtype).removeprefix('torch.')} of shape {shape}"
            raise LinearError(f"{reader.where(codes)}: is {found}, but blocks of MXFP4 are uint8 (..., N, K / 32, 16)")
        values = (*shape[:-2], shape[-2] * 32)
        return self._checked_mx(StoredWeight(name, codes, scales, "e2m1fn", values, True, in_blocks=True))

    def _checked_mx(self, weight: StoredWeight) -> StoredWeight:
        reader = self._reader
        dtype, shape = reader.facts(weight.scales)
        if dtype not in _E8M0:
            found = str(dtype).removeprefix("torch.")
            raise LinearError(f"{reader.where(weight.scales)}: is {found}, but MX scales are F8_E8M0 or its bits in uint8")
        if weight.swizzled:
            rows, columns = math.prod(weight.shape[:-1]), -(-weight.shape[-1] // 32)
            fits = math.prod(shape) == -(-rows // 128) * 128 * -(-columns // 4) * 4 and len(weight.shape) == 2
        else:
            fits = len(weight.shape) > 1 and shape == (*weight.shape[:-1], -(-weight.shape[-1] // 32))
        if not fits:
            raise LinearError(
                f"{reader.where(weight.scales)}: has shape {shape}, but MX codes of shape {weight.shape} have one scale_inv for "
                "each 32 of a row"
            )
        return weight

    def _torchao(self, name: str, prefix: str) -> StoredWeight:
        """A tensor of torchao's, as its flatten_tensor_state_dict() stores it."""
        reader, codes, scales = self._reader, f"{prefix}qdata", f"{prefix}scale"
        where = reader.where(codes)
        try:
            entry = json.loads(reader.metadata().get(reader.stored(name), "null"))
        except ValueError:
            entry = None
        kind, data = (entry.get("_type"), entry.get("_data")) if isinstance(entry, dict) else (None, None)
        if kind not in ("Float8Tensor", "MXTensor") or not isinstance(data, dict):
            what = "has no entry of torchao in the file's metadata" if kind is None else f"is a {printable(kind)} of torchao"
            raise LinearError(f"{where}: {what}, but a Float8Tensor or an MXTensor is read")
        if scales not in reader.names:
            raise LinearError(f'{where}: comes without scale_inv: "{printable(scales)}" is not there')
        others = [each for each in reader.names if each.startswith(prefix) and each not in (codes, scales)]
        if others:
            raise LinearError(f"{where}: comes with {some_of(sorted(others))}, which is not read")
        dtype, shape = reader.facts(codes)
        form = next((name for name, each in _codes.FLOAT8.items() if each == dtype), None)
        if kind == "Float8Tensor" and form:
            self._check_scales(scales)
            return StoredWeight(name, codes, scales, form, shape)
        elements = data.get("elem_dtype")
        elements = str(elements.get("_data") if isinstance(elements, dict) else elements)
        if form is None and dtype == torch.uint8 and elements == "float4_e2m1fn_x2":
            form, shape = "e2m1fn", (*shape[:-1], 2 * shape[-1])
        if kind != "MXTensor" or form is None or data.get("block_size") != 32:
            raise LinearError(
                f"{where}: is {printable(elements)} in blocks of {printable(data.get('block_size'))}, but FP8 and MXFP4 are read"
            )
        swizzled = data.get("is_swizzled_scales") is True
        return self._checked_mx(StoredWeight(name, codes, scales, form, shape, True, swizzled=swizzled))

    def _check_scales(self, name: str) -> None:
        dtype = self._reader.facts(name)[0]
        if dtype not in _OF_FLOATS:
            found = str(dtype).removeprefix("torch.")
            raise LinearError(f"{self._reader.where(name)}: is {found}, but scale_inv are F32, BF16, F16 or F8_E8M0")

    def kind(self, weight: StoredWeight) -> str:
        """What shares a scale_inv of a matrix, as layers call it, by the shape. One scale_inv may also be that of a weight with
        one block or one row, whose activations are cast as other layers' are: then the config decides, or else the name."""
        if weight.is_mx:
            return "mx"
        if weight.scales is None:
            return "tensor"
        reader, (rows, columns) = self._reader, weight.shape
        shape, where = matrix_of(reader.facts(weight.scales)[1]), reader.where(weight.scales)
        if all(size == 1 for size in shape) and len(shape) <= 2:
            by_name = "128x128" if len(shape) == 2 and weight.scales.endswith("weight_scale_inv") else "tensor"
            kind = configured_kind(reader.config) or by_name
            fits = kind != "mx" and math.prod(_codes.scale_shape(kind, rows, columns)) == 1
            return kind if fits else "tensor"
        if shape == (rows,):
            return "row"
        for scale in ("row", "128x128", "1x128", "1x64", "1x32"):
            if shape == _codes.scale_shape(scale, rows, columns):
                return scale
        raise LinearError(
            f"{where}: has shape {shape}, but a weight {(rows, columns)} has one scale_inv, one for each row, each 128 x 128 "
            "block or each 128, 64 or 32 elements of a row"
        )


def _prefix_of_weight(name: str) -> Optional[str]:
    """Returns "proj." of "proj.weight", and None of a tensor by another name."""
    prefix, is_weight, rest = name.rpartition("weight")
    return prefix if is_weight and not rest and prefix[-1:] in ("", ".") else None


def matrix_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """ModelOpt stores scale_inv of blocks as (N / 128, 1, K / 128, 1)."""
    return shape[::2] if len(shape) == 4 and shape[1] == shape[3] == 1 else shape

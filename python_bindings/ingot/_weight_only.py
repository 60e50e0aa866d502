"""WeightOnlyLinear: a linear layer for inference that stores its weight in 8, 6 or 4 bits."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from . import _core
from ._arrays import FROM_LONG_NAME, PACKED_BITS, arrays_of, dtype_name, file_name, option
from ._context import Context, context_for, context_of
from ._operations import read_input


class WeightOnlyLinear(_core.WeightOnlyLinear):
    """y[M, N] = x[M, K] @ weight[N, K]^T + bias, with x in bfloat16 or float16 and the weight in FP8, FP6 or FP4.

    The GEMM decodes the weight exactly, sums and applies scale_inv in float32, and rounds once. quantize(), from_codes()
    and load() make a layer; the first two on the device of their arrays.

    dtype: "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e3m2fn", "e2m3fn" or "e2m1fn". scale: "tensor", "row", "1x128",
    "1x64", "1x32" or "128x128" (float32 scale_inv), or "mx" (a power of two for each 32 elements along K).
    batch_invariant: a row of y does not depend on how many other rows there are. epilogue: an expression, as in cast(),
    of x = the sum plus bias: "silu(x)". layout: "packed" has codes in the order that tensor cores take; "packed_f16" is
    the same for layers whose x is float16, where FP8 then takes fewer instructions (FP6 and FP4 are the same in both);
    "row_major" has plain rows. Each layout works with either dtype of x, with the same results. These options are
    attributes, and so are in_features, out_features, device and weight_bytes, the memory of codes and scale_inv.
    Raises ingot.Error for options that do not go together, and for arrays that do not fit.
    """

    @classmethod
    def quantize(
        cls,
        weight: Any,
        dtype: Any = "e4m3fn",
        *,
        scale: str = "row",
        pow2: bool = False,
        layout: str = "packed",
        batch_invariant: bool = False,
        epilogue: str | None = None,
        context: Context | None = None,
    ) -> WeightOnlyLinear:
        """Makes a layer from values [N, K] (float32, bfloat16 or float16), with scales as in cast(). FP6 and FP4 need
        scale="mx"."""
        what = "WeightOnlyLinear weight"
        arrays = arrays_of(weight, what)
        code_dtype = dtype_name(dtype)
        if code_dtype in PACKED_BITS and scale != "mx":
            raise _core.Error(f'WeightOnlyLinear dtype: {code_dtype} is made only with MX scales: set scale="mx"')
        options = _options(code_dtype, scale, pow2, layout, batch_invariant, epilogue)
        context = context_of(context, arrays.device)
        bits, in_dtype = read_input(arrays, weight, what)
        return cls(context, bits, in_dtype, options, arrays.stream)

    @classmethod
    def from_codes(
        cls,
        codes: Any,
        scales: Any,
        dtype: Any = None,
        *,
        scale: str = "row",
        convention: str = "dequantize",
        in_features: int | None = None,
        layout: str = "packed",
        batch_invariant: bool = False,
        epilogue: str | None = None,
        context: Context | None = None,
    ) -> WeightOnlyLinear:
        """Makes a layer from a checkpoint's codes [N, K] and scales.

        scales: [1] for "tensor", [N] or [N, 1] for "row", [N, ceil(K / g)] for "1xg", [ceil(N / 128), ceil(K / 128)] for
        "128x128"; float32, bfloat16, float16 or float8_e8m0fnu. For "mx" they are float8_e8m0fnu, or its bits in uint8.

        convention: "dequantize" (value = code * scale, as Hugging Face's weight_scale and weight_scale_inv) or "quantize"
        (value = code / scale). dtype: the dtype of the codes, if they are given as bits in uint8. Codes smaller than a
        byte are packed rows of uint8, lowest bits first, as quantize_mx() and pack_codes() make them; in_features is K,
        if rows hold more codes than that.
        """
        arrays = arrays_of(codes, "WeightOnlyLinear codes")
        code_dtype = dtype_name(dtype if dtype is not None else arrays.dtype(codes, "WeightOnlyLinear codes"))
        _check_codes(arrays, codes, code_dtype)
        options = _options(code_dtype, scale, False, layout, batch_invariant, epilogue)
        arrays.own(scales, "WeightOnlyLinear scales")
        if len(scales.shape) == 0:
            scales = scales.reshape(1)
        if in_features is None:
            in_features = codes.shape[-1] * 8 // PACKED_BITS.get(code_dtype, 8) if len(codes.shape) else 0
        elif code_dtype not in PACKED_BITS and in_features != codes.shape[-1]:
            raise _core.Error(f"WeightOnlyLinear in_features: is {in_features}, but codes have {codes.shape[-1]} columns")
        context = context_of(context, arrays.device)
        return cls(
            context, arrays.bits(codes, "WeightOnlyLinear codes"), arrays.bits(scales, "WeightOnlyLinear scales"),
            _scale_dtype(arrays, scales, scale),
            option(convention, str, "WeightOnlyLinear convention"),
            option(in_features, int, "WeightOnlyLinear in_features"), options, arrays.stream,
        )  # fmt: skip

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str],
        name: str = "",
        *,
        device: str = "auto",
        batch_invariant: bool = False,
        epilogue: str | None = None,
        context: Context | None = None,
    ) -> WeightOnlyLinear:
        """Loads a layer that save() wrote, onto the device ("auto", "cpu" or "cuda:N"). Raises ingot.Error
        for a file that is damaged or has no such layer."""
        context = context_for(device) if context is None else context_of(context, device)
        name = option(name, str, "WeightOnlyLinear name")
        return cls(context, file_name(file, "WeightOnlyLinear file"), name, batch_invariant, epilogue or "", 0)

    def save(self, file: str | os.PathLike[str], name: str = "") -> None:
        """Writes a .safetensors file with weight, weight_scale and their metadata (src/nn/weights/weight_only.h). `name` is
        a prefix of these names: "layers.0.wq.". Raises ingot.Error if the file cannot be written."""
        self._save(file_name(file, "WeightOnlyLinear file"), option(name, str, "WeightOnlyLinear name"), 0)

    def with_layout(self, layout: str) -> WeightOnlyLinear:
        """Returns a layer with the same codes and scale_inv in another layout: "packed", "packed_f16" or
        "row_major". Raises ingot.Error for another name."""
        return type(self)(self, option(layout, str, "WeightOnlyLinear layout"), 0)

    def __call__(
        self,
        x: Any,
        bias: Any = None,
        *,
        out_dtype: Any = None,
        out: Any = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Returns y [..., N] for x [..., K] in bfloat16 or float16.

        bias: [N] of x's dtype. out_dtype: x's dtype (default) or "f32". out: an array [M, N] of one of these dtypes to
        write to, so that nothing is allocated. inputs: the epilogue's inputs by name.
        """
        what = "WeightOnlyLinear x"
        arrays = arrays_of(x, what)
        in_dtype = arrays.dtype(x, what)
        wanted = dtype_name(out_dtype) if out_dtype is not None else in_dtype
        rows = x if len(x.shape) < 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        added = None if bias is None else read_input(arrays, bias, "WeightOnlyLinear bias")
        if out is None:
            y = arrays.empty((rows.shape[0] if len(rows.shape) else 0, self.out_features), wanted)
            to = arrays.bits(y)
        else:
            allowed = (wanted,) if out_dtype is not None else (in_dtype, "f32")
            y, to = out, arrays.output(out, allowed, "WeightOnlyLinear out")
            wanted = arrays.dtype(out)
        names = [name for name, _ in _core.expression_inputs(self.epilogue)[1]] if self.epilogue else []
        given = inputs or {}
        if not set(names) <= set(given):
            raise _core.Error(f"WeightOnlyLinear inputs: the epilogue reads {names}, but given are {list(given)}")
        if not set(given) <= set(names):
            unknown = sorted(set(given) - set(names))
            raise _core.Error(f"WeightOnlyLinear inputs: {unknown} are not among the epilogue's, which are {names}")
        self._forward(
            arrays.bits(rows, what), in_dtype, to, wanted, added,
            [read_input(arrays, given[name], f"WeightOnlyLinear input {name}") for name in names], arrays.stream,
        )  # fmt: skip
        return y if len(x.shape) == 2 or out is not None else y.reshape(*x.shape[:-1], self.out_features)

    def __repr__(self) -> str:
        return (
            f"WeightOnlyLinear({self.in_features} -> {self.out_features}, {self.dtype}, scale={self.scale!r}, "
            f"layout={self.layout!r}, {self.device})"
        )


def _options(dtype: str, scale: Any, pow2: Any, layout: Any, batch_invariant: Any, epilogue: Any) -> Any:
    return _core.WeightOnlyOptions(
        dtype,
        option(scale, str, "WeightOnlyLinear scale"),
        option(pow2, bool, "WeightOnlyLinear pow2"),
        option(layout, str, "WeightOnlyLinear layout"),
        option(batch_invariant, bool, "WeightOnlyLinear batch_invariant"),
        option(epilogue or "", str, "WeightOnlyLinear epilogue"),
    )


def _check_codes(arrays: Any, codes: Any, code_dtype: str) -> None:
    """Checks that codes have their own dtype, or are bits in uint8. (PyTorch packs two e2m1fn codes into an element.)"""
    own = str(codes.dtype).removeprefix("torch.")
    if own == "uint8" or (own == "float4_e2m1fn_x2" and code_dtype == "e2m1fn"):
        return
    own = FROM_LONG_NAME.get(own, own)
    what = f"WeightOnlyLinear codes: is {own}{list(codes.shape)} on {arrays.device}"
    if own != code_dtype:
        raise _core.Error(
            f"{what}; the options say {code_dtype}: set dtype to what the codes are, or give their bits in uint8"
        )
    if own in PACKED_BITS:
        raise _core.Error(f"{what}, a code to a byte; give the bytes of packed rows, which pack_codes() makes")


def _scale_dtype(arrays: Any, scales: Any, scale: str) -> str:
    name = str(getattr(scales, "dtype", "")).removeprefix("torch.")
    if name == "float8_e8m0fnu" or (scale == "mx" and name == "uint8"):
        return "e8m0fnu"
    return arrays.dtype(scales, "WeightOnlyLinear scales")

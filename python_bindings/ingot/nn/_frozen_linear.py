"""FrozenFloat8Linear: a linear layer whose weight is FP8 codes and factors, and which passes gradients to its input."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import _codes
from ..torch._checks import is_transformed, layer_error, refuse_transforms
from ..torch._errors import LinearError
from ..torch._exported import export_layer, is_exporting
from ..torch._modules import take_the_rest
from ..torch._names import register
from ..torch._operators import HIGH_PRECISION
from ..torch._stored_linear import run_frozen
from ._weight_values import (
    ShowsWeight,
    align_assigned,
    align_state,
    apply_to_codes,
    checked_linear,
    clear,
    dtype_after,
    frozen_bias,
)

# The recipe that reads a weight's factors in both directions (docs/checkpoints.md), by what shares a factor.
RECIPE_OF = {"tensor": "tensorwise", "row": "rowwise_folded", "128x128": "blockwise"}
_CODES = ("weight", "weight_scale", "input_scale")


class FrozenFloat8Linear(ShowsWeight, torch.nn.Linear):
    """torch.nn.Linear with a weight in FP8 that is not trained: y = x @ weight.T + bias, with both GEMMs in FP8,
    forward and for the gradient of x. There is no copy of the weight in high precision, and no gradient of it.

    Takes x (..., in_features) of float32, float16 or bfloat16. weight_dtype: "e4m3fn" or "e5m2". scale: what shares a
    factor: "tensor", "row" or "128x128"; activations and gradients get dynamic scales of that kind. `dtype` is that of
    the bias, of adapters that PEFT adds to the layer (`compute_dtype`), and of the values that the attribute `weight`
    shows, which other code may read and not write.

    state_dict() is a layer of public checkpoints: weight (float8, shape (out_features, in_features)), weight_scale
    (float32) and bias; weight_scale_inv loads as well. from_float(), from_codes(), quantize_() and
    load_float8_checkpoint() make layers with values; a new one has zeros. Raises ingot.Error that names the layer.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        weight_dtype="e4m3fn",
        scale: str = "row",
        layer_name: str = "linear",
    ) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        self.layer_name = layer_name
        register(self)
        self.compute_dtype = dtype or torch.get_default_dtype()
        form = _codes.weight_format(weight_dtype, scale, False, "row_major", False, self._subject)
        if form.dtype not in ("e4m3fn", "e5m2"):
            raise LinearError(
                f"{self._subject} weight_dtype: {form.dtype!r} is not one of e4m3fn, e5m2: WeightOnlyLinear has it"
            )
        if scale not in RECIPE_OF:
            raise LinearError(
                f"{self._subject} scale: {scale!r} is not one of {', '.join(RECIPE_OF)}, whose factors serve the gradient "
                "of the input too: WeightOnlyLinear has it"
            )
        self.weight_dtype, self.scale = form.dtype, scale
        codes = torch.zeros((out_features, in_features), dtype=torch.uint8, device=device)
        self.register_buffer("weight", codes.view(_codes.FLOAT8[form.dtype]))
        shape = _codes.scale_shape(scale, out_features, in_features)
        self.register_buffer("weight_scale", torch.zeros(shape, dtype=torch.float32, device=device))
        self.register_buffer("input_scale", None)  # a checkpoint's static scale: kept for saving, not used
        if bias:
            values = torch.zeros(out_features, dtype=self.compute_dtype, device=device)
            self.bias = torch.nn.Parameter(values, requires_grad=False)
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_float(
        cls,
        module: torch.nn.Linear,
        weight_dtype="e4m3fn",
        scale: str = "row",
        *,
        pow2: bool = False,
        layer_name: str = "linear",
    ) -> "FrozenFloat8Linear":
        """Casts the weight of a linear layer, on its device, and takes its hooks, mode, and whatever else was set on it.
        pow2 rounds scales to powers of two. Raises LinearError for what is no torch.nn.Linear of float32, float16 or
        bfloat16, or computes its weight."""
        bias = checked_linear(module, f'FrozenFloat8Linear.from_float "{layer_name}"')
        sizes = (module.in_features, module.out_features)
        new = cls._empty(*sizes, module.weight.dtype, bias, weight_dtype, scale, layer_name)
        new.train(module.training)
        codes, factors = _codes.cast(module.weight, new.weight_dtype, scale, pow2, layer_name)
        new._take(codes, factors, bias)
        take_the_rest(module, new)
        return new

    @classmethod
    def from_codes(
        cls,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: Optional[torch.Tensor] = None,
        *,
        scale: str = "row",
        dtype: Optional[torch.dtype] = None,
        layer_name: str = "linear",
    ) -> "FrozenFloat8Linear":
        """Makes a layer of a checkpoint's float8 codes (out_features, in_features) and scales, value = code * scale.
        Raises LinearError for codes and scales that do not fit."""
        subject = f'FrozenFloat8Linear.from_codes "{layer_name}"'
        if codes.dim() != 2 or codes.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise LinearError(
                f"{subject} codes: is {codes.dtype} of shape {tuple(codes.shape)}, expected float8_e4m3fn or "
                "float8_e5m2 (out_features, in_features)"
            )
        factors = _codes.float_factors(scales, scale, *codes.shape, subject)
        new = cls._empty(codes.shape[1], codes.shape[0], dtype, bias, codes.dtype, scale, layer_name)
        new._take(_codes.aligned(codes.detach().contiguous()), factors.to(codes.device), bias)
        return new

    @classmethod
    def _empty(cls, in_features, out_features, dtype, bias, weight_dtype, scale, layer_name) -> "FrozenFloat8Linear":
        dtype = dtype if bias is None or dtype is not None else bias.dtype
        options = {"weight_dtype": weight_dtype, "scale": scale, "layer_name": layer_name}
        return cls(in_features, out_features, bias is not None, device="meta", dtype=dtype, **options)

    @torch.inference_mode(False)
    def _take(self, codes, factors, bias) -> None:
        self.weight = codes.view(_codes.FLOAT8[self.weight_dtype])
        self.weight_scale = factors
        if bias is not None:
            self.bias = frozen_bias(bias, codes.device)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        input = self._checked(input, HIGH_PRECISION, "float32, float16 or bfloat16: convert it with .to()")
        if is_transformed(input, self.bias):
            refuse_transforms(self._subject)
        tensors, key = (input, self._stored(), self.weight_scale, self.bias), (RECIPE_OF[self.scale], self.weight_dtype)
        if torch.compiler.is_compiling():
            if is_exporting():
                return export_layer("frozen", tensors, name=self.layer_name, key=key)[0]
            return run_frozen(*tensors, None, key)
        try:
            return run_frozen(*tensors, self.layer_name, key)
        except RuntimeError as error:
            if self._mended(_codes.FLOAT8[self.weight_dtype]):
                return self.forward(input)
            raise layer_error(error, self._subject) from None

    def codes(self) -> torch.Tensor:
        """The codes as they are stored: float8 (out_features, in_features)."""
        return self._stored()

    def dequantize(self) -> torch.Tensor:
        """The weight's values: float32 (out_features, in_features)."""
        codes = self._stored().view(torch.uint8)
        return _codes.dequantized(codes, self.weight_scale, self.weight_dtype, self.scale, self.in_features)

    def reset_parameters(self) -> None:
        """Sets zeros, as a new layer has: values come from a cast or a checkpoint."""
        clear(self)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.weight_dtype}, scale={self.scale}"

    @property
    def values_dtype(self) -> torch.dtype:
        """The dtype of the attribute `weight`: that of the bias and of adapters."""
        return self.compute_dtype

    @property
    def _subject(self) -> str:
        return f'FrozenFloat8Linear "{self.layer_name}"'

    def __getstate__(self):
        """Only torch.save() can pickle PyTorch's float8 tensors, so codes are pickled as bytes."""
        state = self.__dict__.copy()
        state["_buffers"] = {**self._buffers, "weight": self._stored().view(torch.uint8)}
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._buffers["weight"] = self._buffers["weight"].view(_codes.FLOAT8[self.weight_dtype])
        register(self)

    def _apply(self, fn, recurse: bool = True):
        dtype = dtype_after(fn, self.compute_dtype, self._stored().device)
        apply_to_codes(self, _CODES, lambda: super(FrozenFloat8Linear, self)._apply(fn, recurse))
        self.compute_dtype = dtype
        return self

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, error_msgs):
        align_state(state_dict, prefix)
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dtype != self._stored().dtype:
            error_msgs.append(
                f"{self._subject} {prefix}weight: is {weight.dtype}, but the layer's codes are {self._stored().dtype}: "
                "make the layer with from_float() of a layer that has loaded it"
            )
            return
        if prefix + "weight_scale" not in state_dict and prefix + "weight_scale_inv" in state_dict:
            state_dict[prefix + "weight_scale"] = state_dict.pop(prefix + "weight_scale_inv")
        scale = state_dict.get(prefix + "weight_scale")
        if weight is not None and scale is None:
            error_msgs.append(f"{self._subject} {prefix}weight: comes without weight_scale, which its codes need")
            return
        if scale is not None and scale.numel() == self.weight_scale.numel():
            state_dict[prefix + "weight_scale"] = scale.reshape(self.weight_scale.shape).to(torch.float32)
        align_assigned(state_dict, prefix, local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, error_msgs)

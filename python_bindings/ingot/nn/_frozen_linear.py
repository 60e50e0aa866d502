"""FrozenFloat8Linear: a linear layer whose weight is FP8 codes and scale_inv, and which passes gradients to its input."""

from __future__ import annotations

from typing import Optional

import torch

from ..torch import _codes
from ..torch._errors import LinearError
from ..torch._operators import HIGH_PRECISION
from ..torch._stored_linear import run_frozen
from ._stored_linear import StoredLinear

# The recipe that reads a weight's scale_inv in both directions (docs/checkpoints.md), by what shares a factor.
RECIPE_OF = {"tensor": "tensorwise", "row": "rowwise_folded", "128x128": "blockwise"}


class FrozenFloat8Linear(StoredLinear, torch.nn.Linear):
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

    _kind, _exported_as, _dtype_name = "FrozenFloat8Linear", "frozen", "compute_dtype"
    _inputs, _expected = HIGH_PRECISION, "float32, float16 or bfloat16: convert it with .to()"

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
        self._name(in_features, out_features, layer_name)
        self.compute_dtype = dtype or torch.get_default_dtype()
        form = _codes.weight_format(weight_dtype, scale, False, "row_major", False, self._subject)
        if form.dtype not in ("e4m3fn", "e5m2"):
            raise LinearError(
                f"{self._subject} weight_dtype: {form.dtype!r} is not one of e4m3fn, e5m2: WeightOnlyLinear has it"
            )
        if scale not in RECIPE_OF:
            raise LinearError(
                f"{self._subject} scale: {scale!r} is not one of {', '.join(RECIPE_OF)}, whose scale_inv serve the gradient "
                "of the input too: WeightOnlyLinear has it"
            )
        self.weight_dtype, self.scale = form.dtype, scale
        codes = torch.zeros((out_features, in_features), dtype=torch.uint8, device=device)
        self._make_zeros(codes.view(self._stored_dtype), bias)
        self.register_buffer("input_scale", None)  # a checkpoint's static scale: kept for saving, not used

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
        return cls._of_float(module, pow2, False, weight_dtype=weight_dtype, scale=scale, layer_name=layer_name)

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
        scale_inv = _codes.float_scale_inv(scales, scale, *codes.shape, subject)
        dtype = dtype if bias is None or dtype is not None else bias.dtype
        options = {"weight_dtype": codes.dtype, "scale": scale, "layer_name": layer_name}
        new = cls(codes.shape[1], codes.shape[0], bias is not None, "meta", dtype, **options)
        new._take(_codes.aligned(codes.detach().contiguous()), scale_inv.to(codes.device), bias)
        return new

    @torch.inference_mode(False)
    def _take(self, codes, scale_inv, bias) -> None:
        super()._take(codes.view(self._stored_dtype), scale_inv, bias)

    def _facts_to_export(self):
        return {"key": (RECIPE_OF[self.scale], self.weight_dtype)}

    def _run_traced(self, tensors) -> torch.Tensor:
        return run_frozen(*tensors, None, (RECIPE_OF[self.scale], self.weight_dtype))

    def _run(self, tensors) -> torch.Tensor:
        return run_frozen(*tensors, self.layer_name, (RECIPE_OF[self.scale], self.weight_dtype))

    def codes(self) -> torch.Tensor:
        """The codes as they are stored: float8 (out_features, in_features)."""
        return self._stored()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.weight_dtype}, scale={self.scale}"

    @property
    def _stored_dtype(self) -> torch.dtype:
        return _codes.FLOAT8[self.weight_dtype]

    def __getstate__(self):
        """Only torch.save() can pickle PyTorch's float8 tensors, so codes are pickled as bytes."""
        state = super().__getstate__()
        state["_buffers"]["weight"] = self._stored().view(torch.uint8)
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._buffers["weight"] = self._buffers["weight"].view(self._stored_dtype)

    def _take_state(self, state_dict, prefix: str) -> str:
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dtype != self._stored_dtype:
            return (
                f"is {weight.dtype}, but the layer's codes are {self._stored_dtype}: make the layer with from_float() of a "
                "layer that has loaded it"
            )
        if prefix + "weight_scale" not in state_dict and prefix + "weight_scale_inv" in state_dict:
            state_dict[prefix + "weight_scale"] = state_dict.pop(prefix + "weight_scale_inv")
        scale = state_dict.get(prefix + "weight_scale")
        if weight is not None and scale is None:
            return "comes without weight_scale, which its codes need"
        if scale is not None and scale.numel() == self.weight_scale.numel():
            state_dict[prefix + "weight_scale"] = scale.reshape(self.weight_scale.shape).to(torch.float32)
        return ""

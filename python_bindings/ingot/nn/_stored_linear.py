"""What layers share whose weight is codes and scale_inv: WeightOnlyLinear and FrozenFloat8Linear."""

from __future__ import annotations

from typing import Any, Collection, Optional

import torch

from ..torch import _codes
from ..torch._checks import check_dense, in_one_place, is_dense, is_transformed, layer_error, refuse_places, refuse_transforms
from ..torch._errors import LinearError
from ..torch._exported import export_layer, is_exporting
from ..torch._linear import in_autocasts_dtype
from ..torch._modules import IngotLayer, check_replaceable, take_the_rest
from ..torch._names import register
from ..torch._operators import HIGH_PRECISION
from ._weight_values import WeightValues

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _is_misaligned(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and tensor.data_ptr() % 16 != 0


def _checked_linear(module: torch.nn.Module, subject: str) -> Optional[torch.Tensor]:
    """The bias of a linear layer whose weight can be cast. Raises LinearError for anything else."""
    if not isinstance(module, torch.nn.Linear):
        raise LinearError(f"{subject}: takes a torch.nn.Linear, got a {type(module).__name__}")
    check_replaceable(subject, module)
    weight = module._parameters.get("weight")
    if weight is None:
        raise LinearError(f"{subject} module: its weight is no parameter: remove the hook that computes it")
    if weight.dtype not in HIGH_PRECISION:
        raise LinearError(f"{subject} weight: is {weight.dtype}, expected float32, float16 or bfloat16")
    if weight.is_meta:
        raise LinearError(f"{subject} weight: is on meta, without values: load the model first")
    return module.bias


class StoredLinear(IngotLayer, torch.nn.Module):
    """A layer whose buffer `weight` holds codes, and whose attribute `weight` shows their values. The codes as they are
    stored are in state_dict() and named_buffers(), and are `weight.codes`; codes() returns them in plain rows. A layer has
    its own _run(), _run_traced(), _facts_to_export(), _stored_dtype and _take_state(), which makes a state's tensors the
    layer's, or returns why it cannot."""

    _kind: str  # its name in messages
    _exported_as: str
    _dtype_name: str  # of the attribute that has the dtype of `weight`
    _inputs: Collection[torch.dtype]  # what it multiplies
    _expected: str  # in messages
    in_features: int
    out_features: int
    layer_name: str
    weight_dtype: str
    scale: str

    # ---- making ----

    def _name(self, in_features: int, out_features: int, layer_name: str) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.layer_name = layer_name
        register(self)

    def _make_zeros(self, codes: torch.Tensor, bias: bool) -> None:
        """codes: zeros, on the layer's device."""
        self.register_buffer("weight", codes)
        shape = _codes.scale_shape(self.scale, self.out_features, self.in_features)
        kind = torch.uint8 if self.scale == "mx" else torch.float32
        self.register_buffer("weight_scale", torch.zeros(shape, dtype=kind, device=codes.device))
        zeros = torch.zeros(self.out_features, dtype=self.values_dtype, device=codes.device) if bias else None
        self.register_parameter("bias", None if zeros is None else torch.nn.Parameter(zeros, requires_grad=False))

    @classmethod
    def _of_float(cls, module: torch.nn.Linear, pow2: bool, of_bias: bool, **options: Any):
        """from_float(); options: of __init__(). of_bias: the layer's dtype is the bias's, if there is one."""
        bias = _checked_linear(module, f'{cls._kind}.from_float "{options["layer_name"]}"')
        dtype = module.weight.dtype if bias is None or not of_bias else bias.dtype
        dtype = dtype if dtype in HIGH_PRECISION else None
        new = cls(module.in_features, module.out_features, bias is not None, "meta", dtype, **options)
        new.train(module.training)
        codes, scale_inv = _codes.cast(module.weight, new.weight_dtype, new.scale, pow2, new.layer_name)
        new._take(codes, scale_inv, bias)
        take_the_rest(module, new)
        return new

    @torch.inference_mode(False)
    def _take(self, codes: torch.Tensor, scale_inv: torch.Tensor, bias: Optional[torch.Tensor]) -> None:
        self.weight, self.weight_scale = codes, scale_inv
        if bias is not None:
            values = bias.detach().to(codes.device)
            values = values.clone() if values.is_inference() else values
            self.bias = torch.nn.Parameter(values, requires_grad=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets zeros, as a new layer has: values come from a cast or a checkpoint."""
        self._stored().view(torch.uint8).zero_()
        self.weight_scale.zero_()
        if self.bias is not None:
            self.bias.zero_()

    # ---- the weight ----

    @property
    def weight(self) -> torch.Tensor:
        if self._buffers.get("weight") is None:
            raise AttributeError("weight")
        dtype = self.values_dtype
        if torch.compiler.is_compiling():
            return self.dequantize().to(dtype)
        if "_hf_hook" in self.__dict__ and self._stored().is_meta:
            return self._stored()  # accelerate asks what to put back in its place
        like = torch.empty(self.out_features, self.in_features, dtype=dtype, device="meta")
        return WeightValues(self, like, lambda: self.dequantize().to(dtype), self._stored())

    def _stored(self) -> torch.Tensor:
        """The buffer of codes. What moves `weight` itself to a device, as accelerate does, has put its view there."""
        codes = self._buffers["weight"]
        if type(codes) is WeightValues:
            codes = self._buffers["weight"] = codes.codes
        return codes

    def dequantize(self) -> torch.Tensor:
        """The weight's values: float32 (out_features, in_features)."""
        codes = self.codes().view(torch.uint8)
        return _codes.dequantized(codes, self.weight_scale, self.weight_dtype, self.scale, self.in_features)

    @torch.no_grad()
    def cast_again(self, values: torch.Tensor) -> None:
        """Casts new values (out_features, in_features) of float32, float16 or bfloat16 into the layer's own memory, with scales
        of the same kind (powers of two where all are). Raises LinearError for another shape or dtype."""
        shape = (self.out_features, self.in_features)
        if not isinstance(values, torch.Tensor) or values.shape != shape or values.dtype not in HIGH_PRECISION:
            found = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise LinearError(f"{self._subject} weight: is given {found}, expected float32, float16 or bfloat16 {shape}")
        kept = self._stored(), self.weight_scale
        pow2 = self.scale != "mx" and bool((torch.frexp(kept[1])[0].abs() == 0.5).all())
        self._take(*_codes.cast(values.to(kept[0].device), self.weight_dtype, self.scale, pow2, self.layer_name), None)
        for old, new in zip(kept, (self._stored(), self.weight_scale)):
            old.view(torch.uint8).copy_(new.view(torch.uint8))
        self._buffers["weight"], self._buffers["weight_scale"] = kept

    @property
    def values_dtype(self) -> torch.dtype:
        """The dtype of the attribute `weight`."""
        return getattr(self, self._dtype_name)

    @property
    def _subject(self) -> str:
        return f'{self._kind} "{self.layer_name}"'

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weight with the layer's name."""
        return [(self.layer_name, self._stored())]

    # ---- computing ----

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns (..., out_features) for (..., in_features)."""
        input = self._checked(input)
        bias = self.bias
        tensors = (input, self._stored(), self.weight_scale, bias)
        if is_transformed(input, bias, records=self._records(input, bias)):
            refuse_transforms(self._subject)
        if torch.compiler.is_compiling():
            if is_exporting():
                return export_layer(self._exported_as, tensors, name=self.layer_name, **self._facts_to_export())[0]
            return self._run_traced(tensors)
        try:
            return self._run(tensors)
        except RuntimeError as error:
            self._refuse_converted()
            if self._realigned():
                return self.forward(input)
            raise layer_error(error, self._subject) from None

    def _records(self, input: torch.Tensor, bias: Optional[torch.Tensor]) -> Optional[bool]:
        """As is_transformed() takes it."""
        return None

    def _checked(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the input, in autocast's dtype if that is on. Refuses one that cannot be multiplied."""
        if not is_dense(input):
            check_dense(self._subject, "input", input)
        input = in_autocasts_dtype(input)
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise LinearError(
                f"{self._subject} input: has shape {tuple(input.shape)}, expected (..., {self.in_features})"
            )
        if input.dtype not in self._inputs:
            raise LinearError(f"{self._subject} input: is {input.dtype}, expected {self._expected}")
        codes, scale_inv, bias = self._stored(), self.weight_scale, self.bias
        if not in_one_place(input, codes, scale_inv, bias):
            refuse_places(self._subject, input, weight=codes, weight_scale=scale_inv, bias=bias)
        return input

    def _refuse_converted(self) -> None:
        """After an error: refuses buffers whose .data was converted, so that the values are lost."""
        for name, expected in (("weight", (self._stored_dtype,)), ("weight_scale", (torch.float32, torch.uint8))):
            found = self._buffers[name].dtype
            if found not in expected:
                raise LinearError(
                    f"{self._subject} {name}: was converted to {found}, and is to stay {expected[0]}: leave the buffers alone "
                    "(MixedPrecision of FullyShardedDataParallel without buffer_dtype), and load the layer's state again"
                )

    def _realigned(self) -> bool:
        """After an error: copies buffers that do not begin at a multiple of 16 bytes, such as slices of a larger tensor.
        Was there one? A captured graph would own the copy."""
        if self._stored().is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        found = [key for key, each in self._buffers.items() if each is not None and _is_misaligned(each)]
        for key in found:
            self._buffers[key] = self._buffers[key].detach().clone()
        return bool(found)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, torch.Tensor):
            value = self._codes_of(value)
        super().__setattr__(name, value)

    def _codes_of(self, value: torch.Tensor) -> torch.Tensor:
        """Returns what becomes the buffer. Refuses a weight of values, such as tie_weights() sets."""
        if isinstance(value, WeightValues) and value._layer is self and value.codes is not None:
            return value.codes
        codes = self._buffers.get("weight")
        is_plain = not isinstance(value, (torch.nn.Parameter, WeightValues))
        if codes is None or (is_plain and value.dtype == codes.dtype):
            return value
        raise LinearError(
            f"{self._subject} weight: is a buffer of codes ({codes.dtype}), and cannot become a {type(value).__name__} of "
            f"{value.dtype}: put a torch.nn.Linear in the layer's place, and tie its weight before quantize_(), which "
            "leaves tied layers alone"
        )

    # ---- being moved, loaded and copied ----

    def _apply(self, fn, recurse: bool = True):
        """.to(dtype), .half() and their like must not convert codes and scale_inv, but move them: they look like integers."""
        after = fn(torch.empty(0, dtype=self.values_dtype, device=self._stored().device)).dtype
        dtypes = {}
        for name in ("weight", "weight_scale", "input_scale"):
            buffer = self._buffers.get(name)
            if buffer is not None and buffer.dtype.is_floating_point:
                dtypes[name] = buffer.dtype
                self._buffers[name] = buffer.view(_INTEGERS[buffer.element_size()])
        try:
            super()._apply(fn, recurse)
        finally:
            for name, dtype in dtypes.items():
                self._buffers[name] = self._buffers[name].view(dtype)
        if after in HIGH_PRECISION:
            setattr(self, self._dtype_name, after)
        return self

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, error_msgs):
        for name in ("weight", "weight_scale"):  # safetensors files place tensors anywhere, where kernels cannot read
            tensor = state_dict.get(prefix + name)
            if type(tensor) is torch.Tensor and _is_misaligned(tensor):
                state_dict[prefix + name] = tensor.clone()
        problem = self._take_state(state_dict, prefix)
        if problem:
            error_msgs.append(f"{self._subject} {prefix}weight: {problem}")
            return
        if local_metadata.get("assign_to_params_buffers"):  # assign=True makes tensors of a file the layer's own
            for key in (f"{prefix}weight", f"{prefix}weight_scale", f"{prefix}bias"):
                if key in state_dict:
                    state_dict[key] = _codes.aligned(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, error_msgs)

    def __getstate__(self):
        """A shallow copy has its own dict of buffers."""
        return {**self.__dict__, "_buffers": dict(self._buffers)}

    def __setstate__(self, state):
        super().__setstate__(state)
        register(self)

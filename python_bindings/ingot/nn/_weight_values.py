"""The weight of a quantized layer as other code reads it: `layer.weight` has the shape, device and high-precision dtype of
the weight that the codes stand for, and any operation on it computes with the decoded values. It cannot be written: the
values are decoded for each operation, so a write would be lost."""

from __future__ import annotations

from typing import Any, Callable, Collection, NoReturn, Optional

import torch
from torch.utils._pytree import tree_map_only

from ..torch import _codes
from ..torch._checks import check_dense, in_one_place, is_dense, refuse_places
from ..torch._errors import LinearError
from ..torch._linear import in_autocasts_dtype
from ..torch._modules import IngotLayer, check_replaceable
from ..torch._operators import HIGH_PRECISION

_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class WeightValues(torch.Tensor):
    """The values of a layer's codes, decoded when an operation asks for them. Views of it are such tensors too, and
    results of other operations plain ones.

    Its class has a __torch_function__, by which torch.nn.TransformerEncoderLayer sees that its fast path cannot take it.
    """

    @staticmethod
    def __new__(
        cls,
        layer: torch.nn.Module,
        like: torch.Tensor,
        read: Callable[[], torch.Tensor],
        codes: Optional[torch.Tensor] = None,
    ) -> "WeightValues":
        """like: a tensor, perhaps on meta, with the shape, strides and dtype. codes: the layer's; None for a view."""
        device = like.device if codes is None else codes.device
        return torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )

    def __init__(
        self,
        layer: torch.nn.Module,
        like: torch.Tensor,
        read: Callable[[], torch.Tensor],
        codes: Optional[torch.Tensor] = None,
    ) -> None:
        self._layer, self._like, self._read, self.codes = layer, like, read, codes

    def dequantize(self) -> torch.Tensor:
        """The values as a plain tensor."""
        with torch.no_grad():
            return self._read()

    def _refuse(self) -> NoReturn:
        raise LinearError(
            f"{self._layer._subject} weight: is codes and factors, and cannot be written as values: put a "
            "torch.nn.Linear with the values of the layer's dequantize() in its place, as for merging adapters into it"
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__set__" and isinstance(args[0], cls):
            args[0]._refuse()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _refuse_writes(func._schema, args, kwargs)
        if func in _SAME:
            source = args[0]
            return cls(source._layer, source._like, source._read, source.codes)
        if func is torch.ops.aten._to_copy.default and args[0].codes is not None:
            source = args[0]
            if kwargs.get("dtype") in (None, source.dtype) and kwargs.get("device") is not None:
                moved = source.codes.to(kwargs["device"])
                return cls(source._layer, source._like, lambda: source._read().to(moved.device), moved)
        result = func(*tree_map_only(cls, cls.dequantize, args), **tree_map_only(cls, cls.dequantize, kwargs))
        if func._schema.is_mutable or not any(each.alias_info is not None for each in func._schema.returns):
            return result
        layer = next(each for each in (*args, *kwargs.values()) if isinstance(each, cls))._layer
        return tree_map_only(torch.Tensor, lambda view: cls(layer, view, lambda: view), result)

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.dequantize()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.dequantize().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:
        return f"WeightValues({self.dequantize()!r})"

    def numpy(self, *, force: bool = False) -> Any:
        return self.dequantize().numpy(force=force)

    def tolist(self) -> Any:
        return self.dequantize().tolist()


def _refuse_writes(schema: Any, args: Any, kwargs: Any) -> None:
    if not schema.is_mutable:
        return
    for at, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, WeightValues):
                each._refuse()


def is_misaligned(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and tensor.data_ptr() % 16 != 0


def align_state(state_dict: dict, prefix: str) -> None:
    """Copies a layer's tensors where kernels cannot read them: safetensors files place them anywhere."""
    for name in ("weight", "weight_scale"):
        tensor = state_dict.get(prefix + name)
        if type(tensor) is torch.Tensor and is_misaligned(tensor):
            state_dict[prefix + name] = tensor.clone()


def align_assigned(state_dict, prefix: str, local_metadata) -> None:
    """For load_state_dict(assign=True), which makes tensors of a file the layer's own."""
    if local_metadata.get("assign_to_params_buffers"):
        for key in (f"{prefix}weight", f"{prefix}weight_scale", f"{prefix}bias"):
            if key in state_dict:
                state_dict[key] = _codes.aligned(state_dict[key])


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def clear(module: torch.nn.Module) -> None:
    """Sets the buffers of a layer's codes and factors, and its bias, to zeros."""
    module._stored().view(torch.uint8).zero_()
    module.weight_scale.zero_()
    if module.bias is not None:
        module.bias.zero_()


def frozen_bias(bias: torch.Tensor, device: torch.device) -> torch.nn.Parameter:
    """A bias that is not trained."""
    values = bias.detach().to(device)
    return torch.nn.Parameter(values.clone() if values.is_inference() else values, requires_grad=False)


def apply_to_codes(module: torch.nn.Module, names: tuple[str, ...], apply) -> None:
    """Runs nn.Module._apply while these buffers look like integers: .to(dtype), .half() and their like must not convert
    codes and factors, but move them."""
    dtypes = {}
    for name in names:
        buffer = module._buffers.get(name)
        if buffer is not None and buffer.dtype.is_floating_point:
            dtypes[name] = buffer.dtype
            module._buffers[name] = buffer.view(_INTEGERS[buffer.element_size()])
    try:
        apply()
    finally:
        for name, dtype in dtypes.items():
            module._buffers[name] = module._buffers[name].view(dtype)


def dtype_after(apply_function, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Returns the dtype that _apply's function converts this one to, if layers support it."""
    after = apply_function(torch.empty(0, dtype=dtype, device=device)).dtype
    return after if after in HIGH_PRECISION else dtype


def checked_linear(module: torch.nn.Module, subject: str) -> Optional[torch.Tensor]:
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


class ShowsWeight(IngotLayer, torch.nn.Module):
    """A layer whose buffer `weight` holds codes, and whose attribute `weight` shows their values. The codes as they are
    stored are in state_dict() and named_buffers(), and are `weight.codes`; codes() returns them in plain rows."""

    in_features: int
    out_features: int
    layer_name: str
    values_dtype: torch.dtype

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

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weight with the layer's name."""
        return [(self.layer_name, self._stored())]

    def _checked(self, input: torch.Tensor, dtypes: Collection[torch.dtype], expected: str) -> torch.Tensor:
        """Returns the input, in autocast's dtype if that is on. Refuses one that cannot be multiplied. expected: says
        which dtypes can be."""
        if not is_dense(input):
            check_dense(self._subject, "input", input)
        input = in_autocasts_dtype(input)
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise LinearError(
                f"{self._subject} input: has shape {tuple(input.shape)}, expected (..., {self.in_features})"
            )
        if input.dtype not in dtypes:
            raise LinearError(f"{self._subject} input: is {input.dtype}, expected {expected}")
        codes, factors, bias = self._stored(), self.weight_scale, self.bias
        if not in_one_place(input, codes, factors, bias):
            refuse_places(self._subject, input, weight=codes, weight_scale=factors, bias=bias)
        return input

    def _mended(self, codes: torch.dtype) -> bool:
        """After an error: can the call be repeated? Refuses buffers whose values are lost."""
        self._refuse_converted(codes)
        return self._realigned()

    def _refuse_converted(self, codes: torch.dtype) -> None:
        """After an error: refuses buffers whose .data was converted, so that the values are lost."""
        for name, expected in (("weight", (codes,)), ("weight_scale", (torch.float32, torch.uint8))):
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
        found = [key for key, each in self._buffers.items() if each is not None and is_misaligned(each)]
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

"""The weight of a quantized layer as other code reads it: `layer.weight` has the shape, device and high-precision dtype of
the weight that the codes stand for, and any operation on it computes with the decoded values. New values as a whole, which
`.data = values`, `+=` and `-=` give (PEFT merges adapters so), are cast again. Other writes are refused: the values are
decoded for each operation, so a write would be lost."""

from __future__ import annotations

import warnings
from typing import Any, Callable, NoReturn, Optional

import torch
from torch.utils._pytree import tree_map_only

from ..torch._errors import LinearError

_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class WeightValues(torch.Tensor):
    """The values of a layer's codes, decoded when an operation asks for them. Views of it are such tensors too, and
    results of other operations plain ones.

    Its class has a __torch_function__, by which torch.nn.TransformerEncoderLayer sees that its fast path cannot take it.
    """

    @staticmethod
    def __new__(
        cls, layer: torch.nn.Module, like: torch.Tensor, read: Any, codes: Optional[torch.Tensor] = None
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
            f"{self._layer._subject} weight: is codes and scale_inv, and cannot be written in place: assign all values to "
            "weight.data, which casts them again, or put a torch.nn.Linear with the layer's dequantize() in its place"
        )

    def _write(self, value: Any) -> None:
        if isinstance(value, WeightValues) and value._layer is self._layer and value.codes is not None:
            return  # what += has written already
        if self.codes is None:
            self._refuse()  # a part of it, or its transpose
        self._layer.cast_again(value)
        warnings.warn(  # one text, which Python shows once for all layers
            f"{self._layer._kind} weight: new values were cast to {self._layer.weight_dtype} again, and rounded; "
            "ingot.nn.dequantize_(model) before keeps them",
            stacklevel=4,
        )

    def __iadd__(self, other: Any) -> "WeightValues":  # type: ignore[override, misc]
        self._write(self.dequantize() + other)
        return self

    def __isub__(self, other: Any) -> "WeightValues":  # type: ignore[override, misc]
        self._write(self.dequantize() - other)
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if isinstance(args[0] if args else None, cls):
            if name == "__set__" and func.__self__.__name__ == "data":
                return args[0]._write(args[1])
            if name == "__set__":
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

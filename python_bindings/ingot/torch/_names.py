"""What layers are called where a plan's number does not say it. Equal blocks share a compiled graph, so a graph's plans
have no names: a layer is found by the memory of its weight, when a message, a monitor or a profiler asks for its name."""

from __future__ import annotations

import threading
import weakref
from typing import Callable, Optional, Sequence

import torch

from .. import _core

# What stands in the place of names in a plan's texts.
PLACEHOLDERS: tuple[str, ...] = _core.torch_placeholders
# Names that a layer has when it was given none.
UNNAMED = ("", "linear", "mlp", "norm_linear", "Float8Linear", "experts")

_LAYERS: weakref.WeakSet = weakref.WeakSet()
_found: dict[int, tuple] = {}  # by the address of a weight: a reference to its layer, and the weight's place in it
_lock = threading.RLock()


def register(layer: torch.nn.Module) -> None:
    """From now on, as long as it lives, the layer is found by its weights, which its named_weights() lists as
    (name, tensor)."""
    with _lock:
        _LAYERS.add(layer)


def all_layers() -> list[torch.nn.Module]:
    """Those that are registered and live."""
    with _lock:
        return list(_LAYERS)


def name_where(is_wanted: Callable[[torch.Tensor], bool]) -> Optional[str]:
    """The name of the first layer with such a weight that was given a name."""
    for layer in all_layers():
        try:
            found = layer.named_weights() if layer.layer_name not in UNNAMED else ()
        except Exception:  # it is being changed, or taken apart
            continue
        for name, weight in found:
            if weight is not None and is_wanted(weight):
                return name
    return None


def with_names(text: str, names: Sequence[str]) -> str:
    for placeholder, name in zip(PLACEHOLDERS, names):
        text = text.replace(placeholder, name)
    return text


def _address(weight: Optional[torch.Tensor]) -> int:
    """Returns the address of the memory that an operator gets; 0 if there is none."""
    while weight is not None and type(weight) not in (torch.Tensor, torch.nn.Parameter):
        inner = (getattr(weight, name, None) for name in ("_local_tensor", "_data", "_tensor", "codes"))
        weight = next((each for each in inner if isinstance(each, torch.Tensor)), None)
    return 0 if weight is None or weight.is_meta else weight.data_ptr()


def _name_at(address: int) -> Optional[str]:
    layer, place = _found.get(address, (None, 0))
    layer = layer() if layer is not None else None
    if layer is None:
        return None
    try:
        name, weight = layer.named_weights()[place]
    except Exception:
        return None
    return name if _address(weight) == address else None  # what was there may be elsewhere by now


def _look_at_all_layers() -> None:
    _found.clear()
    for layer in list(_LAYERS):
        try:
            weights = layer.named_weights()
        except Exception:  # it is being changed, or taken apart: others have their names still
            continue
        for place, (_, weight) in enumerate(weights):
            address = _address(weight)
            if address:
                _found.setdefault(address, (weakref.ref(layer), place))


def names_of_weights(addresses: Sequence[int], count: int) -> list[str]:
    """The names of the layers whose weights are at these addresses, in their order; none if no layer is known there.
    count: how many there should be."""
    with _lock:
        names = [name for name in map(_name_at, addresses) if name is not None]
        if len(names) < count:
            _look_at_all_layers()
            names = [name for name in map(_name_at, addresses) if name is not None]
        return names

"""The delayed scales of experts, for layers that are functions: grouped_linear() and experts_mlp()."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from ..torch import DelayedScales
from ..torch._checks import refuse
from ._delayed import KeepsScales
from ._scale_buffers import has_scale

_OPERANDS = 3  # input, weight, grad_output


def check_counts(subject: str, **counts: int) -> None:
    """Raises LinearError for what is no number from 1 on."""
    for what, count in counts.items():
        if type(count) is not int or count < 1:
            refuse(subject, f"{what}: is {count!r}, expected a number, 1 or more")


class _Options(NamedTuple):
    name: str
    recipe: str = "delayed"

    @property
    def subject(self) -> str:
        return f'ExpertScales "{self.name}"'


class ExpertScales(KeepsScales):
    """The delayed scales of layers of experts, each expert's own: of its weight, of the rows that it multiplies, and of
    the gradients of their outputs. A module for a model of your own to hold, so that state_dict() saves them and
    `sync_amax_history(model)` makes them, once in every step:

        self.scales = ingot.nn.ExpertScales(experts, layers=2)           # in __init__()
        y = experts_mlp(x, index, weights, gate_up, down, LinearOptions("delayed"), delayed=self.scales(x))

    layers: 2 for experts_mlp(), whose layers are gate_up and down; 1 for grouped_linear(). name: in messages. Put it into the
    module that has the weights as its own parameters, or after the module in it that has them: a checkpoint that has all of
    them and no scales starts the scales anew, and one that lacks any leaves them as they are (before that module, only after a first
    sync_amax_history(); until then any load without scales starts them anew). Loads are the files of one checkpoint until a forward with
    gradients, eagerly, or sync_amax_history().

    Buffers, float32: `fp8_amax` (layers, 3, experts), the maxima since the last sync_amax_history(), for input, weight and
    grad_output; `fp8_amax_history` (layers, 3, experts, history_length), the newest first; `fp8_scale` (layers, 3, experts), where 1
    is a scale that is not made yet. An expert without rows notes a maximum of 0, and keeps its scale once its whole history is
    0, as every delayed scale does. One that has had none yet has no scale: it starts with the maxima of the first rows it
    gets. While the host knows of any expert of a layer without a scale, and so always if one never has rows, all rows of that layer and
    the gradients of its outputs are read twice, for these maxima and for the cast. The host looks in calls 1, 2, 3, 16, 64, 256,
    and so on of sync_amax_history(), so the second reading goes on until the next one after the first rows."""

    # What the module around this one has of weights, by its names. None: the first sync_amax_history() has yet to look for them.
    _weights: Optional[FrozenSet[str]] = None
    # Is one of them in a module that loads after this one? Then a file is noted when all has loaded: its buffers and their prefix.
    _loads_first = False
    _loaded: Optional[Tuple[FrozenSet[str], str]] = None

    def __init__(
        self,
        experts: int,
        layers: int = 1,
        history_length: int = 16,
        device: Optional[torch.device] = None,
        name: str = "experts",
    ) -> None:
        super().__init__()
        self.options = _Options(name)
        check_counts(self.options.subject, experts=experts, layers=layers)
        self.experts = experts
        self._device = torch.get_default_device() if device is None else torch.device(device)
        self._keep_scales(self.options.subject, history_length, layers)

    @property
    def layer_name(self) -> str:
        """What messages call the layers."""
        return self.options.name

    @layer_name.setter
    def layer_name(self, name: str) -> None:
        self.options = _Options(name)

    def named_weights(self) -> Sequence[Tuple[str, torch.Tensor]]:
        """None: the experts' weights are those of another module."""
        return ()

    def scales_of_weights(self) -> Sequence[torch.Tensor]:
        """The delayed scales of each layer's weight, (experts,): views of the buffer."""
        return self.fp8_scale[:, 1].unbind()

    def extra_repr(self) -> str:
        return f"experts={self.experts}, layers={self._rows}, history_length={self.history_length}"

    def forward(self, input: torch.Tensor) -> DelayedScales:
        """The scales for a call of which this is the input."""
        if self.fp8_amax.is_meta and not input.is_meta:  # parameters came with a checkpoint that has no scales
            self.to_empty(device=input.device)
        return self._delayed(input)

    # ---- what differs from a layer with parameters ----

    def _place(self) -> torch.Tensor:
        scales = self._buffers.get("fp8_scale")
        return torch.empty(0, device=self._device) if scales is None else scales

    def _sizes(self) -> Sequence[int]:
        return self._rows, _OPERANDS, self.experts

    def _missing(self, told: Sequence[Sequence[float]]) -> List[int]:
        (scales,) = told
        lacks = lambda at: not all(map(has_scale, scales[at * self.experts : (at + 1) * self.experts]))
        return [sum(1 << at for at in range(_OPERANDS) if lacks(_OPERANDS * layer + at)) for layer in range(self._rows)]

    def _lacking(self, state_dict: Mapping[str, torch.Tensor], prefix: str, missing: Sequence[str]) -> Optional[FrozenSet[str]]:
        """Weights are those of the module around this one. PyTorch tells it only what has its own prefix, and which entries of what
        loads before it, the module around it first, are missing."""
        if prefix == "":  # loaded by itself
            return None
        around = prefix[: prefix.rfind(".", 0, -1) + 1]
        return self._weights_of(frozenset(key[len(around) :] for key in missing if key.startswith(around)))

    def _note_weights(
        self, loaded: FrozenSet[str], state_dict: Mapping[str, torch.Tensor], prefix: str, missing: Sequence[str]
    ) -> None:
        if self._loads_first and prefix:
            self._loaded = loaded, prefix
        else:
            super()._note_weights(loaded, state_dict, prefix, missing)

    def _note_all(self, around: torch.nn.Module, keys: Any) -> None:
        """A hook after load_state_dict() of the module around this one, which knows what modules after this one lack."""
        if self._loaded is not None:
            (loaded, prefix), self._loaded = self._loaded, None
            super()._note_weights(loaded, {}, prefix, keys.missing_keys)

    def _note_sync(self, model: torch.nn.Module) -> None:
        super()._note_sync(model)
        if self._weights is None:
            around = next((each for each in model.modules() if self in each._modules.values()), None)
            if around is not None:
                self._look_for_weights(around)

    def _look_for_weights(self, around: torch.nn.Module) -> None:
        self._weights = frozenset(self.weights_in(around))
        names, modules = list(around._modules), list(around._modules.values())
        after = names[modules.index(self) :]
        if any(name.partition(".")[0] in after for name in self._weights):
            self._loads_first = True
            around.register_load_state_dict_post_hook(self._note_all)

    def _weights_of(self, missing: FrozenSet[str]) -> FrozenSet[str]:
        """Of entries of the module around this one, those of weights. As long as they are not known its own ones are, if it has
        any, and else all that the modules in it have."""
        if self._weights:
            return missing & self._weights
        return frozenset(key for key in missing if "." not in key) or missing

    def weights_in(self, around: torch.nn.Module) -> Dict[str, torch.Tensor]:
        """The experts' weights, by names: all of the module's own tensors, with biases, but where only modules in it have stacks of
        this many experts, these. Adapters and routers that are modules in it do not count."""
        own, stacks = {}, {}
        for name, module in around.named_modules():
            kept = {key: each for key, each in module._buffers.items() if key not in module._non_persistent_buffers_set}
            for key, tensor in {**module._parameters, **kept}.items():
                if tensor is None or key.startswith("fp8_"):  # scales
                    continue
                if name == "":
                    own[key] = tensor
                elif self._is_stack(tensor):
                    stacks[f"{name}.{key}"] = tensor
        return own if not stacks or any(map(self._is_stack, own.values())) else stacks

    def _is_stack(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == 3 and tensor.shape[0] == self.experts

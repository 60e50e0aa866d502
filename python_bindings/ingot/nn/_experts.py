"""GroupedLinear and ExpertsMlp: the linear layers and the gated MLPs of many experts in FP8, as modules around grouped_linear() and
experts_mlp()."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch

from ..torch import DelayedScales, LinearOptions, experts_mlp, grouped_linear
from ..torch._checks import SubjectOfExperts, check_bias_of_experts, check_dense, check_recipe_of_experts, refuse
from ..torch._experts import SWIGLU
from ..torch._modules import held
from ..torch._names import register
from ._expert_scales import ExpertScales, check_counts
from ._parts import NamedLayer, check_dtype_of_parameters
from ._scale_buffers import computing_device

_Tensors = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _ExpertsLayer(NamedLayer, torch.nn.Module):
    """Weights (experts, N, K) by their names, each perhaps with a bias (experts, N), and their delayed scales."""

    _weights: Tuple[str, ...] = ()
    _kind = ""  # what messages call it

    def _settle(
        self, recipe: str, layer_name: str, history_length: int, fast_gradients: bool, activation: Optional[str], fast_math: bool = False
    ) -> None:
        """To be called when the parameters are there."""
        self.options = LinearOptions(recipe, layer_name, fast_gradients=fast_gradients)
        self.activation, self.fast_math = activation, fast_math
        self.scales: Optional[ExpertScales] = None
        if recipe == "delayed":  # after the weights, so that a load of them finds it in its place
            place = computing_device(self._parameters[self._weights[0]])
            self.scales = ExpertScales(self.experts, len(self._weights), history_length, place, layer_name)
        register(self)

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        register(self)

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """A state of delayed scales loads into a module of another recipe, as it does into all layers."""
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        if self.scales is None:
            unexpected[:] = [key for key in unexpected if not key.startswith(f"{prefix}scales.fp8_")]

    def _make_parameters(self, shapes: Dict[str, Tuple[int, int, int]], bias: bool, device, dtype) -> None:
        for name, shape in shapes.items():
            for key, size in ((name, shape), (self._bias_of(name), shape[:2])):
                made = torch.nn.Parameter(torch.empty(size, device=device, dtype=dtype)) if key == name or bias else None
                self.register_parameter(key, made)

    @staticmethod
    def _bias_of(weight: str) -> str:
        return "bias" if weight == "weight" else f"{weight}_bias"

    def reset_parameters(self) -> None:
        """Initialises each expert as torch.nn.Linear initialises itself, and the delayed scales."""
        for name in self._weights:
            columns = self._parameters[name].shape[2]
            bound = columns**-0.5 if columns else 0.0
            for key in (name, self._bias_of(name)):
                if self._parameters[key] is not None:
                    torch.nn.init.uniform_(self._parameters[key], -bound, bound)
        if self.scales is not None:
            self.scales.reset_parameters()

    @property
    def layer_name(self) -> str:
        """What messages call the layer."""
        return self.options.name

    @layer_name.setter
    def layer_name(self, name: str) -> None:
        NamedLayer.layer_name.fset(self, name)
        if self.scales is not None:
            self.scales.layer_name = name

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weights, each with the name of the layer."""
        return [(self.options.name, held(self, name)) for name in self._weights]

    def _delayed(self, input: torch.Tensor) -> Optional[DelayedScales]:
        return None if self.scales is None else self.scales(input)

    def _repr_of_options(self) -> str:
        options = self.options
        bias = self._parameters[self._bias_of(self._weights[0])] is not None
        text = f"bias={bias}, recipe={options.recipe}" + (f", activation={self.activation!r}" if self.activation else "")
        fast = {"fast_gradients": options.fast_gradients, "fast_math": self.fast_math}
        return text + "".join(f", {name}=True" for name, is_set in fast.items() if is_set)

    @classmethod
    def _check(cls, experts: int, recipe: str, layer_name: str, fast_gradients: bool, dtype: Optional[torch.dtype]) -> None:
        subject = f'{cls._kind} "{layer_name}"'
        check_counts(subject, experts=experts)
        check_recipe_of_experts(subject, recipe, fast_gradients)
        check_dtype_of_parameters(subject, dtype)


class GroupedLinear(_ExpertsLayer):
    """The linear layers of many experts with their GEMMs in FP8, as ingot.torch.grouped_linear() computes them: rows that are sorted by
    expert, each times the transpose of its expert's weight.

    Parameters: `weight` (experts, out_features, in_features) and, with bias=True, `bias` (experts, out_features), of float32, float16
    or bfloat16. Each expert begins as a torch.nn.Linear does. recipe: "tensorwise", "rowwise", "blockwise", or "delayed", whose scales
    for each expert an ingot.nn.ExpertScales keeps, `scales`, of the last history_length steps: call ingot.nn.sync_amax_history(model)
    once in every step. activation: an expression of the input (docs/pointwise.md) that its cast computes, such as "silu(x) * up",
    with which the input is (M, 2 * in_features). fast_gradients: as LinearOptions has it. layer_name: the name in messages.

    Raises ingot.Error for no experts, for another recipe or dtype, and in forward for what grouped_linear() refuses.
    """

    _weights, _kind = ("weight",), "grouped linear"

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        recipe: str = "rowwise",
        layer_name: str = "experts",
        history_length: int = 16,
        activation: Optional[str] = None,
        fast_gradients: bool = False,
    ) -> None:
        super().__init__()
        self._check(experts, recipe, layer_name, fast_gradients, dtype)
        self.experts, self.in_features, self.out_features = experts, in_features, out_features
        self._make_parameters({"weight": (experts, out_features, in_features)}, bias, device, dtype)
        self._settle(recipe, layer_name, history_length, fast_gradients, activation)
        self.reset_parameters()

    def forward(self, input: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Returns (M, out_features), in the input's dtype or autocast's. input: (M, in_features), the rows of expert 0, then of expert 1,
        and so on. ends: int32 (experts,) on the input's device, the row at which each expert's rows end, which the host does not read.
        Rows from ends[-1] on have any values."""
        return grouped_linear(
            input,
            self.weight,
            ends=ends,
            options=self.options,
            activation=self.activation,
            bias=self.bias,
            delayed=self._delayed(input),
        )

    def extra_repr(self) -> str:
        return (
            f"experts={self.experts}, in_features={self.in_features}, out_features={self.out_features}, {self._repr_of_options()}"
        )


class ExpertsMlp(_ExpertsLayer):
    """The gated MLPs of a mixture of experts in FP8, from tokens to tokens, as ingot.torch.experts_mlp() computes them: the sum over a
    token's experts of its router weight * ((silu(gate) * up) @ down^T), with gate, up = token @ gate_up^T.

    Parameters, named as transformers' experts name them: `gate_up_proj` (experts, 2 * intermediate, hidden), an expert's gate, then its
    up; `down_proj` (experts, hidden, intermediate); with bias=True `gate_up_proj_bias` (experts, 2 * intermediate) and `down_proj_bias`
    (experts, hidden). They are float32, float16 or bfloat16, and each expert begins as a torch.nn.Linear does. from_gate_and_up() takes
    gate and up as two tensors, and gate_and_up() returns them so. recipe, history_length, fast_gradients and layer_name: as
    GroupedLinear has them. activation: an expression of x, the gate, and up (docs/pointwise.md). fast_math: it uses the GPU's own exp.

    Raises ingot.Error for no experts, for another recipe or dtype, and in forward for what experts_mlp() refuses.
    """

    _weights, _kind = ("gate_up_proj", "down_proj"), "experts"

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        bias: bool = False,
        device=None,
        dtype: Optional[torch.dtype] = None,
        *,
        recipe: str = "rowwise",
        layer_name: str = "experts",
        history_length: int = 16,
        activation: str = SWIGLU,
        fast_math: bool = False,
        fast_gradients: bool = False,
    ) -> None:
        super().__init__()
        self._check(experts, recipe, layer_name, fast_gradients, dtype)
        self.experts, self.hidden, self.intermediate = experts, hidden, intermediate
        shapes = {"gate_up_proj": (experts, 2 * intermediate, hidden), "down_proj": (experts, hidden, intermediate)}
        self._make_parameters(shapes, bias, device, dtype)
        self._settle(recipe, layer_name, history_length, fast_gradients, activation, fast_math)
        self.reset_parameters()

    @classmethod
    def from_gate_and_up(
        cls,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: torch.Tensor,
        biases: Optional[_Tensors] = None,
        *,
        recipe: str = "rowwise",
        layer_name: str = "experts",
        history_length: int = 16,
        activation: str = SWIGLU,
        fast_math: bool = False,
        fast_gradients: bool = False,
    ) -> "ExpertsMlp":
        """Returns a module with these weights: gate and up (experts, intermediate, hidden), and down (experts, hidden, intermediate), such
        as w1, w3 and w2 of torchtitan. gate and up are copied, here and once, into one new parameter, which an optimizer has to be
        given; a parameter `down` stays the same one. biases: of gate and up (experts, intermediate), and of down (experts, hidden).
        Each trains if it required gradients, gate and up if either did. Raises LinearError for other shapes, dtypes and devices."""
        subject = f'{cls._kind} "{layer_name}"'
        _check_of_parts(subject, gate, up, down, biases)
        check_recipe_of_experts(subject, recipe, fast_gradients)
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new.experts, new.intermediate, new.hidden = gate.shape
        of_gate, of_up, of_down = biases or (None, None, None)
        new.gate_up_proj = _joined(gate, up)
        new.register_parameter("gate_up_proj_bias", None if biases is None else _joined(of_gate, of_up))
        new.down_proj = _parameter(down)
        new.register_parameter("down_proj_bias", None if biases is None else _parameter(of_down))
        new._settle(recipe, layer_name, history_length, fast_gradients, activation, fast_math)
        return new

    def gate_and_up(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """The two halves of gate_up_proj, each (experts, intermediate, hidden): views of the parameter, for programs and files that have
        them apart."""
        gate, up = self.gate_up_proj.chunk(2, 1)
        return gate, up

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """Returns (tokens, hidden), in the dtype of hidden_states (tokens, hidden). top_k_index and top_k_weights, (tokens, k): each
        token's experts, integers, as torch.topk() gives them, and the router's weights. An index that no expert has counts as none."""
        return experts_mlp(
            hidden_states,
            top_k_index,
            top_k_weights,
            self.gate_up_proj,
            self.down_proj,
            self.options,
            self.fast_math,
            gate_up_bias=self.gate_up_proj_bias,
            down_bias=self.down_proj_bias,
            activation=self.activation,
            delayed=self._delayed(hidden_states),
        )

    def extra_repr(self) -> str:
        return f"experts={self.experts}, hidden={self.hidden}, intermediate={self.intermediate}, {self._repr_of_options()}"


def _parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    return torch.nn.Parameter(tensor.detach(), tensor.requires_grad)


def _joined(gate: torch.Tensor, up: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.cat((gate.detach(), up.detach()), 1), gate.requires_grad or up.requires_grad)


def _check_of_parts(subject: str, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, biases: Optional[_Tensors]) -> None:
    who = f"{subject} from_gate_and_up:"
    for name, each in (("gate", gate), ("up", up), ("down", down)):
        check_dense(who, name, each)
        check_dtype_of_parameters(f"{who} {name}", each.dtype)
        if (each.dtype, each.device) != (gate.dtype, gate.device):
            refuse(who, f"{name}: is {each.dtype} on {each.device}, but gate is {gate.dtype} on {gate.device}: convert one with .to()")
    if gate.dim() != 3:
        refuse(who, f"gate: has the shape {tuple(gate.shape)}, expected (experts, intermediate, hidden)")
    experts, intermediate, hidden = gate.shape
    for name, each, expected in (("up", up, gate.shape), ("down", down, (experts, hidden, intermediate))):
        if tuple(each.shape) != tuple(expected):
            refuse(who, f"{name}: has the shape {tuple(each.shape)} for gate {tuple(gate.shape)}, expected {tuple(expected)}")
    if biases is None:
        return
    if len(biases) != 3:
        refuse(who, f"biases: has {len(biases)}, expected those of gate, up and down, or None")
    for name, bias, weight in zip(("gate", "up", "down"), biases, (gate, up, down)):
        check_bias_of_experts(who, f"bias of {name}", bias, weight)

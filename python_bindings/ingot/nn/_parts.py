"""The parts of modules that compute several layers at once: their parameters, under the names that PyTorch's own
modules give them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Optional

import torch
from torch.distributed.tensor import DTensor

from ..torch import NormOptions
from ..torch._checks import refuse
from ..torch._modules import IngotLayer, check_replaceable, held
from ..torch._operators import HIGH_PRECISION

NormModule = torch.nn.Module  # a LayerNorm or RMSNorm, or another library's that computes the same


class KeepsWeightCodes(IngotLayer):
    """A module whose options say whether it keeps its weights' codes."""

    def keep_weight_codes(self, keep: Optional[bool] = True) -> None:
        """From now on forward keeps the weights' FP8 codes for backward, 2 bytes for each element (True), or keeps none,
        and backward casts the weights again (False). None, which every layer begins with, decides it by the tokens of a
        call: ingot.torch.LinearOptions. Results are the same bits."""
        self.options = dataclasses.replace(self.options, keep_weight_codes=keep)


class NamedLayer(KeepsWeightCodes):
    """A module whose options hold the name that messages, monitors and traces call it by."""

    def named_weights(self) -> list[tuple[str, Optional[torch.Tensor]]]:
        """The weights, each with the name of its layer."""
        return [(self.options.name, held(self))]

    @property
    def layer_name(self) -> str:
        return self.options.name

    @layer_name.setter
    def layer_name(self, name: str) -> None:
        self.options = dataclasses.replace(self.options, name=name)


def check_dtype_of_parameters(subject: str, dtype: Optional[torch.dtype]) -> None:
    """Of a module that casts them. None: the default dtype."""
    if dtype is not None and dtype not in HIGH_PRECISION:
        refuse(subject, f"dtype: is {dtype}, expected float32, float16 or bfloat16, from which its GEMMs cast")


class LinearParameters(torch.nn.Module):
    """The weight and bias of a torch.nn.Linear, which the module around it multiplies by.

    It is not a torch.nn.Linear, so that code which replaces those leaves it alone, and it cannot be called.
    """

    _division = None  # where several ranks divide it

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device=None, dtype=None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias", torch.nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    @classmethod
    def of(cls, linear: torch.nn.Linear, subject: str) -> "LinearParameters":
        """With the parameters of a torch.nn.Linear. Raises LinearError for another module and for one with hooks."""
        require_linear(linear, subject)
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new.in_features, new.out_features = linear.in_features, linear.out_features
        new.weight = linear.weight
        new.register_parameter("bias", linear.bias)
        return new

    def reset_parameters(self) -> None:
        """As torch.nn.Linear does."""
        torch.nn.Linear.reset_parameters(self)

    def forward(self, *_):
        refuse("LinearParameters", "has no forward: call the module that contains it, or leave it apart by fuse=False of ingot.nn.convert()")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def linear_with(weight: torch.nn.Parameter, bias: Optional[torch.nn.Parameter]) -> torch.nn.Linear:
    """A torch.nn.Linear with these parameters."""
    rows, columns = weight.shape
    new = torch.nn.Linear(columns, rows, bias=bias is not None, device="meta")
    new.weight, new.bias = weight, bias
    return new


def _require_no_hooks(module: torch.nn.Module, subject: str) -> None:
    if any(value for name, value in vars(module).items() if name.endswith("_hooks")):
        refuse(subject, f"from_parts: the {type(module).__name__} has hooks, which would not run any more: remove them")


def require_linear(linear: torch.nn.Module, subject: str) -> None:
    if not isinstance(linear, torch.nn.Linear):
        refuse(subject, f"from_parts: takes a torch.nn.Linear, got a {type(linear).__name__}")
    check_replaceable(f"{subject} from_parts:", linear)
    if not isinstance(linear._parameters.get("weight"), torch.nn.Parameter):
        refuse(subject, "from_parts: the layer's weight is no parameter: remove the hook that computes it")
    _require_no_hooks(linear, subject)


def norm_options(norm: Optional[torch.nn.Module], features: int, zero_centred: bool, subject: str):
    """The options of a torch.nn.LayerNorm or RMSNorm, or of a module of another library that computes what one of them
    does. Raises LinearError for other modules, and for another size."""
    if norm is None:
        return None
    kinds = {torch.nn.LayerNorm.forward: "layer", torch.nn.RMSNorm.forward: "rms"}
    shape = _norm_shape(norm, subject)
    if shape != (features,):
        refuse(subject, f"from_parts: the norm is over {shape}, expected ({features},), the layer's input")
    if zero_centred and norm.weight is None:
        refuse(subject, "zero_centred: is set, but the norm has no weight: give it one with elementwise_affine=True")
    _require_no_hooks(norm, subject)
    if type(norm).forward in kinds and isinstance(norm, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
        return NormOptions(kinds[type(norm).forward], norm.eps, zero_centred)
    return NormOptions(_kind_by_trial(norm, features, zero_centred, subject), _eps_of(norm), zero_centred)


def _eps_of(norm: torch.nn.Module) -> Optional[float]:
    """Returns eps, by the names that PyTorch, transformers and others have for it."""
    found = (getattr(norm, name, None) for name in ("eps", "variance_epsilon", "epsilon"))
    return next((each for each in found if isinstance(each, float)), None)


def _norm_shape(norm: torch.nn.Module, subject: str) -> tuple[int, ...]:
    if isinstance(norm, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
        return tuple(norm.normalized_shape)
    weight = norm._parameters.get("weight")
    if weight is None or _eps_of(norm) is None:
        refuse(
            subject,
            "from_parts: takes a torch.nn.LayerNorm or torch.nn.RMSNorm as norm, or a module with a parameter `weight` "
            f"and a number `eps` or `variance_epsilon` that computes the same, got a {type(norm).__name__}",
        )
    return tuple(weight.shape)


@torch.no_grad()
def _kind_by_trial(norm: torch.nn.Module, features: int, zero_centred: bool, subject: str) -> str:
    """Finds what a module of another library computes by trying a copy of it in float32."""
    name, weight = type(norm).__name__, norm.weight
    if hasattr(weight, "device_mesh"):
        refuse(subject, f"from_parts: cannot try what a {name} with a DTensor as weight computes: do this before it is sharded")
    trial = copy.deepcopy(norm)
    trial = (trial.to_empty(device="cpu") if weight.is_meta else trial).float()
    # Whatever the default device and dtype are.
    place = {"generator": torch.Generator().manual_seed(0), "device": "cpu", "dtype": torch.float32}
    for values in (*trial.parameters(), *(each for each in trial.buffers() if each.is_floating_point())):
        values.copy_(torch.rand(values.shape, **place) + 0.5)
    eps, bias = _eps_of(norm), getattr(trial, "bias", None)
    # The second row is as small as eps, the third has a mean. Three dimensions, so that a norm over another one differs.
    x = torch.randn(1, 3, features, **place)
    x[:, 1] *= eps**0.5
    x[:, 2] += 3
    x = x.to(trial.weight.device)
    try:
        found = trial.train(not norm.training)(x)
        again = trial.train(norm.training)(x)
    except Exception as error:  # code of another library
        refuse(subject, f"from_parts: a {name} cannot be tried with an input ({type(error).__name__}: {str(error)[:200]})")
    if not isinstance(found, torch.Tensor) or found.shape != x.shape:
        refuse(subject, f"from_parts: a {name} does not return a tensor of its input's shape")
    if not torch.equal(found, again):
        refuse(subject, f"from_parts: a {name} computes another thing in training than in evaluation, or each time")
    for centred, gamma in ((False, trial.weight), (True, trial.weight + 1)):
        results = {"layer": torch.nn.functional.layer_norm(x, (features,), gamma, bias, eps)}
        if bias is None:
            results["rms"] = torch.nn.functional.rms_norm(x, (features,), gamma, eps)
        for kind, expected in results.items():
            if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4):
                continue
            if centred != zero_centred:
                how = "its weight + 1" if centred else "its weight"
                refuse(subject, f"zero_centred: is {zero_centred}, but a {name} multiplies by {how}: set it to {centred}")
            return kind
    refuse(subject, f"from_parts: a {name} computes something else than a torch.nn.LayerNorm and a torch.nn.RMSNorm do")


def norm_parameters(norm: Optional[NormModule], options):
    """Returns a norm's weight and bias, or None. options: those of the module around it, whose name errors give."""
    if norm is None:
        return None, None
    if norm._forward_pre_hooks:
        _require_parameter(norm, options)
    return norm.weight, getattr(norm, "bias", None)


def parameters_of(part: torch.nn.Module, options):
    """Returns the weight and bias of a part that is never called itself, as its parametrizations compute them. Raises
    LinearError for a weight that a hook would have to compute. options: as norm_parameters() takes them."""
    parameters = part._parameters
    # torch.nn.Module finds a parameter by slow Python code (__getattr__).
    if not torch.compiler.is_compiling() and "weight" in parameters and "bias" in parameters:
        weight = parameters["weight"]
        if type(weight) is not DTensor:  # else a property of the class may gather it
            return weight, parameters["bias"]
    if part._forward_pre_hooks:
        _require_parameter(part, options)
    return part.weight, part.bias


def _require_parameter(part: torch.nn.Module, options) -> None:
    if "weight" in part._parameters or "parametrizations" in part._modules:
        return
    hooks = ", ".join(getattr(type(hook), "__name__", "hook") for hook in part._forward_pre_hooks.values())
    refuse(
        options.subject,
        f"weight: a hook of the {type(part).__name__} computes it ({hooks}), and does not run, since the module around it "
        "computes all parts itself: use torch.nn.utils.parametrizations, or make pruning permanent with prune.remove()",
    )


def make_norm(
    kind: Optional[str], features: int, eps: Optional[float], zero_centred: bool, device, dtype
) -> Optional[NormModule]:
    """A norm with a weight (and as a LayerNorm a bias), or none; eps: None is PyTorch's default. A zero-centred weight
    begins at 0."""
    if kind is None:
        return None
    if kind == "layer":
        norm: NormModule = torch.nn.LayerNorm(features, 1e-5 if eps is None else eps, device=device, dtype=dtype)
    elif kind == "rms":
        norm = torch.nn.RMSNorm(features, eps, device=device, dtype=dtype)
    else:
        refuse("norm", f'{kind!r} is not one of "layer", "rms": give one of them, or None')
    if zero_centred:
        torch.nn.init.zeros_(norm.weight)
    return norm

"""What the matrix of situations (test_situations.py) needs: every module of ingot.nn and ingot.float8 by name, made anew
for each situation, its formula in float64, and one training step of it."""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional

import torch
import torch.nn.functional as F

from ingot import float8
from ingot.nn import (
    Float8Linear,
    FrozenFloat8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
    sync_amax_history,
)
from torch_module_cases import sqnr

IN, OUT, TOKENS = 32, 48, 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A module: how it is made of in_features, out_features and a dtype, and what it computes of x with the tensors of
    its state_dict. `delayed`: its scales have a state."""

    make: Callable[..., torch.nn.Module]
    formula: Callable[[dict, torch.Tensor], object]
    trains: bool = True
    delayed: bool = False
    package: str = "nn"


def _linear(state, x, name=""):
    return F.linear(x, state[f"{name}weight"], state.get(f"{name}bias"))


def _rms(state, x):
    return F.rms_norm(x, x.shape[-1:], state["norm.weight"], 1e-5)


def _layer_norm(state, x):
    return F.layer_norm(x, x.shape[-1:], state["norm.weight"], state["norm.bias"], 1e-5)


def _gated(state, x):
    gate, up = _linear(state, x, "gate_up_proj.").chunk(2, -1)
    return _linear(state, F.silu(gate) * up, "down_proj.")


def _parts(state, x):
    return _linear(state, F.silu(_linear(state, x, "gate_proj.")) * _linear(state, x, "up_proj."), "down_proj.")


def _frozen(state, x):
    return F.linear(x, state["dequantized"], state.get("bias"))


def _nn(kind, formula=_linear, **options):
    def make(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
        return kind(n_in, n_out, dtype=dtype, device=device, layer_name=name, **options)

    return Kind(make, formula, delayed=options.get("recipe") == "delayed")


def _gated_of_parts(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
    gate, up, down = (
        torch.nn.Linear(a, b, False, device, dtype) for a, b in ((n_in, n_out), (n_in, n_out), (n_out, n_in))
    )
    return GatedMlp.from_parts((gate, up), down, recipe="rowwise", layer_name=name)


def _shared(recipe):
    def make(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
        outputs = {"q": n_out, "k": n_out}
        return SharedInputLinears(n_in, outputs, dtype=dtype, device=device, recipe=recipe, layer_name=name)

    return Kind(make, lambda state, x: tuple(_linear(state, x, f"{n}.") for n in "qk"), delayed=recipe == "delayed")


def _torchao(config, delayed=False):
    def make(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
        model = torch.nn.Sequential(torch.nn.Linear(n_in, n_out, dtype=dtype, device=device))
        return float8.convert_to_float8_training(model, config=config)[0]

    return Kind(make, _linear, delayed=delayed, package="float8")


def _quantized(kind, **options):
    def make(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
        if device is not None:
            return kind(n_in, n_out, dtype=dtype, device=device, layer_name=name, **options)
        linear = torch.nn.Linear(n_in, n_out, dtype=dtype)
        return kind.from_float(linear, layer_name=name, **options)

    return Kind(make, _frozen, trains=False)


_RECIPES = float8.Float8LinearConfig.from_recipe_name
_STATE = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
_DELAYED = float8.Float8LinearConfig(
    cast_config_input=_STATE, cast_config_weight=_STATE, cast_config_grad_output=_STATE
)
KINDS = {
    **{
        f"Float8Linear {recipe}": _nn(Float8Linear, recipe=recipe)
        for recipe in (
            "tensorwise",
            "rowwise",
            "rowwise_folded",
            "rowwise_with_gw_hp",
            "blockwise",
            "high_precision",
            "delayed",
        )
    },
    "Float8Linear silu": _nn(Float8Linear, lambda s, x: F.silu(_linear(s, x)), recipe="rowwise", activation="silu"),
    "RMSNormLinear": _nn(RMSNormLinear, lambda s, x: _linear(s, _rms(s, x)), recipe="rowwise", eps=1e-5),
    "RMSNormLinear delayed": _nn(RMSNormLinear, lambda s, x: _linear(s, _rms(s, x)), recipe="delayed", eps=1e-5),
    "LayerNormLinear": _nn(LayerNormLinear, lambda s, x: _linear(s, _layer_norm(s, x)), recipe="tensorwise"),
    "Mlp": _nn(Mlp, lambda s, x: _linear(s, F.gelu(_linear(s, x, "up_proj.")), "down_proj."), recipe="tensorwise"),
    "GatedMlp": _nn(GatedMlp, lambda s, x: _gated(s, _rms(s, x)), recipe="rowwise", norm="rms", eps=1e-5),
    "GatedMlp delayed": _nn(GatedMlp, _gated, recipe="delayed"),
    "GatedMlp of parts": Kind(_gated_of_parts, _parts),
    "SharedInputLinears": _shared("rowwise"),
    "SharedInputLinears delayed": _shared("delayed"),
    "float8 tensorwise": _torchao(float8.Float8LinearConfig()),
    "float8 rowwise": _torchao(_RECIPES("rowwise")),
    "float8 rowwise_with_gw_hp": _torchao(_RECIPES("rowwise_with_gw_hp")),
    "float8 delayed": _torchao(_DELAYED, delayed=True),
    "FrozenFloat8Linear": _quantized(FrozenFloat8Linear),
    "WeightOnlyLinear": _quantized(WeightOnlyLinear),
    "WeightOnlyLinear e2m1fn": _quantized(WeightOnlyLinear, weight_dtype="e2m1fn", scale="mx"),
}


def training() -> list[str]:
    return [name for name, kind in KINDS.items() if kind.trains]


def make(kind: str, seed: int = 0, **options) -> torch.nn.Module:
    torch.manual_seed(seed)
    module = KINDS[kind].make(**options)
    return module if "device" in options else module.to(DEVICE)


def state_of(module) -> dict:
    """The module's tensors in float64, for the formula."""
    state = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
    if hasattr(module, "dequantize"):
        state = {"dequantized": module.dequantize().double()}
        if module.bias is not None:
            state["bias"] = module.bias.detach().double()
    return state


def tokens(count=TOKENS, dtype=torch.bfloat16, features=IN, seed=1) -> torch.Tensor:
    values = torch.randn(count, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return values.to(DEVICE, dtype)


def outputs_of(module, x) -> tuple:
    y = module(x)
    return y if isinstance(y, tuple) else (y,)


def gradients_of(outputs) -> list[torch.Tensor]:
    """What the loss gives each output: random, and the same in every call."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(y.shape, generator=generator, dtype=torch.float32).to(DEVICE, y.dtype) for y in outputs]


def step(module, x, call: Optional[Callable] = None, input_grad: bool = True) -> dict:
    """Forward and backward of one step: outputs and gradients by name. call(module, x) stands in for module(x)."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_(input_grad)
    outputs = (call or (lambda of, given: of(given)))(module, x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if any(y.requires_grad for y in outputs):
        torch.autograd.backward(outputs, gradients_of(outputs))
    results = {f"output {at}": y.detach() for at, y in enumerate(outputs)}
    if input_grad:
        results["input"] = x.grad
    return results | {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def sync(module) -> None:
    """Ends a step of a module whose scales have a state."""
    sync_amax_history(module)
    float8.sync_float8_amax_and_scale_history(module)


def expected_step(name: str, module, x) -> dict:
    """As step(), by the module's formula in float64."""
    state = {key: value.requires_grad_() for key, value in state_of(module).items()}
    x = x.detach().double().requires_grad_()
    outputs = KINDS[name].formula(state, x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, [grad.double() for grad in gradients_of(outputs)])
    results = {f"output {at}": y.detach() for at, y in enumerate(outputs)} | {"input": x.grad}
    if KINDS[name].trains:
        results |= {key: value.grad for key, value in state.items()}
    return results


def assert_close(expected: dict, actual: dict, bound: float = 15.0) -> None:
    """`actual` has all of `expected`, each within so many decibels; where that is all zeros, so is it."""
    for name, want in expected.items():
        got = actual.get(name)
        assert got is not None, f"{name} is missing: {sorted(actual)}"
        assert got.shape == want.shape, f"{name}: {tuple(got.shape)} instead of {tuple(want.shape)}"
        if want.numel() and want.abs().max() > 0:
            assert sqnr(want, got) > bound, f"{name}: {sqnr(want, got):.1f} dB"
        else:
            assert not got.numel() or got.abs().max() == 0, f"{name}: is not 0"


def assert_equal(expected: dict, actual: dict) -> None:
    assert sorted(expected) == sorted(actual), f"{sorted(expected)} and {sorted(actual)}"
    for name, want in expected.items():
        assert torch.equal(want, actual[name]), f"{name} differs: {sqnr(want, actual[name]):.1f} dB"

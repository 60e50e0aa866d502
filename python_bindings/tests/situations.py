"""Helpers of the matrix of situations (test_situations.py): every module of ingot.nn and ingot.float8 by name, made
anew for each situation, its formula in float64, and one training step of it."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import math
import pathlib
import traceback
from typing import Callable, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ingot import Error, float8
from ingot.nn import (
    ExpertScales,
    ExpertsMlp,
    Float8Linear,
    FrozenFloat8Linear,
    GatedMlp,
    GroupedLinear,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
    save_float8_checkpoint,
    sync_amax_history,
)
from ingot.torch import LinearOptions, experts_mlp
from torch_module_cases import sqnr

IN, OUT, TOKENS = 32, 48, 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A module: how it is made of in_features, out_features and a dtype, and what it computes of x with the tensors of
    its state_dict. `delayed`: its scales have a state. `without`: situations of layers, which functions of a program's own
    module are not in."""

    make: Callable[..., torch.nn.Module]
    formula: Callable[[dict, torch.Tensor], object]
    trains: bool = True
    delayed: bool = False
    package: str = "nn"
    without: tuple[str, ...] = ()


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


class Experts(torch.nn.Module):
    """A program's own mixture of experts, whose tokens go to two of three, by their places: functions, and their scales."""

    def __init__(self, n_in, n_out, dtype, device, name):
        super().__init__()
        weight = lambda rows, cols: torch.nn.Parameter(
            torch.nn.init.uniform_(torch.empty(3, rows, cols, dtype=dtype, device=device), -1, 1) / max(cols, 1) ** 0.5
        )
        self.gate_up, self.down = weight(2 * n_out, n_in), weight(n_in, n_out)
        self.options, self.scales = LinearOptions("delayed", name=name), ExpertScales(3, 2, device=device, name=name)

    @staticmethod
    def routed(rows, device):
        return (torch.arange(rows, device=device)[:, None] + torch.arange(2, device=device)) % 3

    def forward(self, x):
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        weights = rows.new_tensor([0.75, 0.5]).expand(rows.shape[0], 2)
        index = self.routed(rows.shape[0], x.device)
        return experts_mlp(rows, index, weights, self.gate_up, self.down, self.options, delayed=self.scales(x)).view(x.shape)


def _experts(state, x):
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    total = torch.zeros_like(rows)
    for weight, expert in zip((0.75, 0.5), Experts.routed(rows.shape[0], x.device).unbind(1)):
        of_row = lambda name: state[name][expert]
        gate, up = (of_row("gate_up") @ rows[..., None])[..., 0].chunk(2, -1)
        total = total + weight * (of_row("down") @ (F.silu(gate) * up)[..., None])[..., 0]
    return total.view(x.shape)


class RoutedMlp(Experts):
    """The same by a module, whose biases and weights have the module's names."""

    def __init__(self, n_in, n_out, dtype, device, name, recipe):
        torch.nn.Module.__init__(self)
        self.moe = ExpertsMlp(3, n_in, n_out, dtype=dtype, device=device, layer_name=name, recipe=recipe)

    def forward(self, x):
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        weights = rows.new_tensor([0.75, 0.5]).expand(rows.shape[0], 2)
        return self.moe(rows, self.routed(rows.shape[0], x.device), weights).view(x.shape)


def _routed_mlp(state, x):
    return _experts({"gate_up": state["moe.gate_up_proj"], "down": state["moe.down_proj"]}, x)


class SortedRows(torch.nn.Module):
    """Rows that are sorted by expert: of the first, none of the second, and the rest of the third."""

    def __init__(self, n_in, n_out, dtype, device, name, recipe):
        super().__init__()
        self.rows = GroupedLinear(3, n_in, n_out, True, device, dtype, layer_name=name, recipe=recipe)

    def forward(self, x):
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        ends = torch.tensor([rows.shape[0] // 3] * 2 + [rows.shape[0]], dtype=torch.int32, device=x.device)
        return self.rows(rows, ends).view(*x.shape[:-1], self.rows.out_features)


def _sorted_rows(state, x):
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    first = rows.shape[0] // 3
    parts = [F.linear(each, state["rows.weight"][e], state["rows.bias"][e]) for e, each in ((0, rows[:first]), (2, rows[first:]))]
    return torch.cat(parts).view(*x.shape[:-1], -1)


def _module_of_experts(kind, formula, recipe):
    def make(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
        return kind(n_in, n_out, dtype, device, name, recipe)

    return Kind(make, formula, delayed=recipe == "delayed", package="experts", without=_OF_LAYERS)


def _of_experts(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
    return Experts(n_in, n_out, dtype, device, name)


def _quantized(kind, **options):
    def make(n_in=IN, n_out=OUT, dtype=torch.bfloat16, device=None, name="case"):
        if device is not None:
            return kind(n_in, n_out, dtype=dtype, device=device, layer_name=name, **options)
        linear = torch.nn.Linear(n_in, n_out, dtype=dtype)
        return kind.from_float(linear, layer_name=name, **options)

    return Kind(make, _frozen, trains=False)


_OF_LAYERS = "autocast_with_f32_weights", "exported", "prepared", "optimizer_made_before", "flops_counted", "unclear_inputs"
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
    "experts delayed": Kind(_of_experts, _experts, delayed=True, package="experts", without=_OF_LAYERS),
    "ExpertsMlp rowwise": _module_of_experts(RoutedMlp, _routed_mlp, "rowwise"),
    "GroupedLinear delayed": _module_of_experts(SortedRows, _sorted_rows, "delayed"),
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


def plain_parts(name: str) -> list[torch.nn.Module]:
    """The layers of PyTorch that from_parts() makes the module of."""
    torch.manual_seed(5)
    place = {"dtype": torch.bfloat16, "device": DEVICE}
    first, down = torch.nn.Linear(IN, OUT, **place), torch.nn.Linear(OUT, IN, **place)
    norm = torch.nn.RMSNorm(IN, 1e-5, **place)
    if name.startswith("RMSNormLinear"):
        return [norm, first]
    if name == "LayerNormLinear":
        return [torch.nn.LayerNorm(IN, **place), first]
    if name == "Mlp":
        return [first, down]
    if name in ("GatedMlp", "GatedMlp delayed"):
        joined = torch.nn.Linear(IN, 2 * OUT, **place)
        return [joined, down, norm] if name == "GatedMlp" else [joined, down]
    if name == "GatedMlp of parts":
        return [*(torch.nn.Linear(IN, OUT, False, **place) for _ in range(2)), down]
    if name.startswith("SharedInputLinears"):
        return [first, torch.nn.Linear(IN, OUT, **place)]
    return [first]


def from_parts(name: str, parts: list[torch.nn.Module]) -> torch.nn.Module:
    """The module of those layers, with the options that make() gives it."""
    like = make(name)
    kind = type(like)
    if KINDS[name].package == "float8":
        return float8.convert_to_float8_training(torch.nn.Sequential(*parts), config=like.config)[0]
    if not KINDS[name].trains:
        options = {"weight_dtype": like.weight_dtype, "scale": like.scale} if kind is WeightOnlyLinear else {}
        return kind.from_float(*parts, **options)
    recipe = like.options.recipe
    if kind is Float8Linear:
        return kind.from_float(*parts, recipe, activation=getattr(like.options, "activation", ""))
    if kind is SharedInputLinears:
        return kind.from_parts(dict(zip("qk", parts, strict=True)), recipe=recipe)
    if name == "GatedMlp of parts":
        return kind.from_parts(parts[:2], *parts[2:], recipe=recipe)
    return kind.from_parts(*parts, recipe=recipe)


def sync(module) -> None:
    """Ends a step of a module whose scales have a state."""
    sync_amax_history(module)


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


def run_rank(rank: int, folder: str) -> None:
    """What each of two processes runs for ranks_that_loaded_other_states(): its results by module, as JSON in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60)
    )
    results = {}
    for at, name in enumerate(KINDS):
        try:
            _on_rank(rank, name, f"{folder}/{at}")
            results[name] = "right"
        except Exception as error:
            results[name] = f"rank {rank}: {type(error).__name__}: {error} {traceback.format_exc()[-600:]}"
    with open(f"{folder}/{rank}", "w") as file:
        json.dump(results, file)
    dist.destroy_process_group()


def _by_all(value) -> list:
    """The values of all ranks, each printed."""
    found = [None] * 2
    dist.all_gather_object(found, str(value))
    return found


def _same_on_both(tensors) -> None:
    for tensor in tensors:
        low, high = tensor.float(), tensor.float()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        assert torch.equal(low, high)


def _on_rank(rank: int, name: str, folder: str) -> None:
    """Rank 0 goes on with what a module has learnt in two steps; rank 1 begins, with the same weights."""
    x, trained = tokens(seed=rank), make(name)
    for _ in range(2):
        step(trained, 4 * x)
        sync_amax_history(trained, reduce=False)
    state = copy.deepcopy(trained.state_dict())

    def loaded():
        module = make(name)
        if rank == 0:
            module.load_state_dict(state)
        return module

    module = loaded()
    for _ in range(3):
        assert_close(expected_step(name, module, x), step(module, x))
        sync(module)
    if any(parameter.requires_grad for parameter in module.parameters()):
        parallel = DistributedDataParallel(loaded())
        for _ in range(2):
            got = step(parallel.module, x, lambda _, given: parallel(given))
            want = {key: value for key, value in expected_step(name, trained, x).items() if key not in got}
            assert not want, f"DDP lacks {sorted(want)}"
            assert_close({"output 0": expected_step(name, trained, x)["output 0"]}, got)
            _same_on_both([got[key] for key, _ in parallel.module.named_parameters()])
            sync(parallel.module)
    whole = loaded()
    if not KINDS[name].trains:  # gloo sends no FP8
        whole.load_state_dict(state)
    sharded = fully_shard(whole)
    if KINDS[name].trains:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(sharded, dict(state) if rank == 0 else {}, options=options)
    _saved_by_both(rank, sharded, trained, folder)
    for _ in range(2):
        want = expected_step(name, trained, x)
        assert_close({key: value for key, value in want.items() if "put" in key}, step(sharded, x))
        sync(sharded)
    _same_on_both([each for key, each in sharded.named_buffers() if key.startswith("fp8_scale")])


def _saved_by_both(rank: int, sharded, whole, folder: str) -> None:
    """One checkpoint with the bytes that one process writes, or one error on both."""
    results = []
    for model, path in ((sharded, f"{folder}-both.safetensors"), (whole, f"{folder}-one.safetensors")):
        try:
            if model is sharded or rank == 0:
                save_float8_checkpoint(torch.nn.Sequential(model), path)
            results.append("saved")
        except Error as error:
            results.append(str(error))
    found = _by_all(results[0])
    assert len(set(found)) == 1, found
    if rank == 0:
        assert results[0] == results[1], results
        if results[0] == "saved":
            one, both = (pathlib.Path(f"{folder}-{by}.safetensors").read_bytes() for by in ("one", "both"))
            assert one == both, "the file differs from that of one process"


def assert_close(expected: dict, actual: dict, bound: float = 15.0) -> None:
    """`actual` has all of `expected`, each within `bound` decibels; where that is all zeros, so is it."""
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

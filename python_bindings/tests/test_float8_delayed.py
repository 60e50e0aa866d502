"""Delayed and static scaling: the buffers, the step that keeps them up, and checkpoints."""

import copy
import logging

import pytest

torch = pytest.importorskip("torch")
from counted_operations import CountedOperations
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ingot
import ingot.float8 as float8
from ingot.float8 import CastConfig, DelayedScalingConfig, Float8LinearConfig, ScalingType, StatefulFloat8Linear
from ingot.float8.float8_utils import amax_to_scale, compute_error

ROLES = ("input", "weight", "grad_output")


def cast(kind):
    return CastConfig(scaling_type=kind, static_scale=torch.tensor(1.0) if kind is ScalingType.STATIC else None)


def config_of(*kinds, history_len=4, **options):
    casts = [cast(kind) for kind in kinds or (ScalingType.DELAYED,) * 3]
    return Float8LinearConfig(
        *casts[:1], None, casts[1], None, casts[2], delayed_scaling_config=DelayedScalingConfig(history_len), **options
    )


def convert(layer, config):
    return float8.convert_to_float8_training(layer, config=config)


KINDS = (ScalingType.DYNAMIC, ScalingType.DELAYED, ScalingType.STATIC)


@pytest.mark.parametrize("kinds", [(a, b, c) for a in KINDS for b in KINDS for c in KINDS], ids=str)
def test_close_to_linear(kinds):
    torch.manual_seed(0)
    layer = nn.Linear(16, 32)
    new = convert(layer, config_of(*kinds))
    x = torch.randn(3, 8, 16)
    for _ in range(2):
        layer.zero_grad()
        expected = layer(x)
        expected.sum().backward()
        expected_grad = layer.weight.grad.clone()
        layer.zero_grad()
        y = new(x)
        y.sum().backward()
        if ScalingType.DELAYED in kinds:
            float8.sync_float8_amax_and_scale_history(new)
    assert compute_error(expected, y) >= 18
    assert compute_error(expected_grad, new.weight.grad) >= 17


class Seen(TorchDispatchMode):
    """Notes the operators of Ingot that run."""

    def __enter__(self):
        super().__enter__()
        self.names = []
        return self.names

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith("ingot."):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keeps_codes", [False, True])
@pytest.mark.parametrize("kinds", [(a, b, c) for a in KINDS for b in KINDS for c in KINDS][1:], ids=str)
def test_operators_do_what_pytorch_does(kinds, keeps_codes, weight_dtype):
    """The same casts, and so the same buffers, as layers of PyTorch's operations; only sums may differ."""
    torch.manual_seed(0)
    plain = nn.Linear(48, 32).to(weight_dtype)
    layer = convert(copy.deepcopy(plain), config_of(*kinds))
    layer.keep_weight_codes(keeps_codes)
    composed = convert(plain, config_of(*kinds))
    composed._operator_casts = None
    for size in (1.0, 4.0, 0.5):
        results = []
        x = (size * torch.randn(3, 8, 48)).bfloat16()
        grad_output = size * torch.randn(3, 8, 32).bfloat16()
        for each in (layer, composed):
            given = x.clone().requires_grad_()
            with Seen() as names:
                y = each(given)
                results.append((y, *torch.autograd.grad(y, (given, each.weight, each.bias), grad_output)))
            if each is layer:
                assert names == ["ingot.linear_forward.default", "ingot.linear_backward.default"]
            if ScalingType.DELAYED in kinds:
                float8.sync_float8_amax_and_scale_history(each)
        for got, wanted in zip(*results, strict=True):
            assert got.dtype == wanted.dtype
            assert compute_error(wanted.double(), got.double()) > 45
        for (name, got), (_, wanted) in zip(layer.named_buffers(), composed.named_buffers(), strict=True):
            assert torch.equal(got, wanted), (name, size)


def test_without_gradients_maxima_are_noted():
    layer = convert(nn.Linear(16, 8), config_of())
    with torch.no_grad():
        layer(torch.full((4, 16), 3.0))
    assert layer.fp8_amax_input.item() == 3
    assert layer.fp8_amax_weight.item() == layer.weight.abs().max().item()


def test_the_first_step_is_as_dynamic():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    x = torch.randn(4, 16)
    expected = float8.Float8Linear.from_float(layer)(x)
    # The same codes; fast accumulation of the tensor cores, which the CPU follows, keeps fewer bits of the sum.
    torch.testing.assert_close(convert(layer, config_of())(x), expected, rtol=0, atol=1e-3)
    plain = convert(layer, config_of(enable_amax_init=False))
    plain(x)
    assert plain.fp8_scale_input.item() == 1


def test_history_and_scales():
    torch.manual_seed(0)
    layer = convert(nn.Linear(16, 8, bias=False), config_of())
    assert layer.fp8_amax_input.item() == 448 and layer.fp8_amax_grad_output.item() == 57344
    maxima = []
    for index in range(6):
        x = torch.randn(4, 16) * (10 if index == 1 else 1)
        maxima.append(x.abs().max().item())
        scale = layer.fp8_scale_input.item()
        layer(x).sum().backward()
        if index > 0:  # the codes were made with the scale that was there
            assert layer.fp8_scale_input.item() == scale
        assert layer.fp8_amax_input.item() == maxima[-1]
        float8.sync_float8_amax_and_scale_history(layer)
        history = ([0.0] * 4 + [maxima[0]] + maxima)[::-1][:4]
        if index == 0:
            history = [maxima[0], maxima[0], 0.0, 0.0]
        assert layer.fp8_amax_history_input.tolist() == history
        largest = torch.tensor(max(history), dtype=torch.float64)
        assert layer.fp8_scale_input.item() == (448 / largest).to(torch.float32).item()
        assert layer.fp8_amax_history_grad_output[0].item() == 1


def test_scales_of_codes_that_are_kept_do_not_change():
    """A step between a forward and its backward, as with pipelines, changes no gradient."""
    torch.manual_seed(0)
    layer = convert(nn.Linear(16, 8), config_of())
    x = torch.randn(4, 16, requires_grad=True)
    layer(x).sum().backward()
    float8.sync_float8_amax_and_scale_history(layer)
    layer.zero_grad()
    layer(x).sum().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    y = layer(x)
    with torch.no_grad():
        layer.fp8_scale_input.fill_(3)
    y.sum().backward()
    assert torch.equal(layer.weight.grad, expected)


def test_buffers_stay_f32():
    layer = convert(nn.Linear(16, 8), config_of(ScalingType.DELAYED, ScalingType.STATIC, ScalingType.DELAYED))
    for converted in (layer.to(torch.bfloat16), layer.half()):
        assert {buffer.dtype for buffer in converted.buffers()} == {torch.float32}
        assert converted(torch.randn(2, 16, dtype=converted.weight.dtype)).dtype == converted.weight.dtype
    names = {f"fp8_{what}_{role}" for role in ROLES for what in ("amax", "amax_history", "scale")}
    assert {name for name, _ in layer.named_buffers()} == names | {"fp8_static_scale_weight"}
    layer.reset_parameters()
    assert layer.fp8_scale_input.item() == 1


def test_checkpoints_load_both_ways():
    torch.manual_seed(0)
    trained = convert(nn.Linear(16, 8), config_of())
    x = torch.randn(4, 16)
    trained(x).sum().backward()
    float8.sync_float8_amax_and_scale_history(trained)
    state = trained.state_dict()
    other = convert(nn.Linear(16, 8), config_of())
    other.load_state_dict(state, strict=True)
    assert other.is_amax_initialized and torch.equal(other(x * 2), trained(x * 2))
    plain = nn.Linear(16, 8)
    other = convert(nn.Linear(16, 8), config_of())
    other.load_state_dict(plain.state_dict(), strict=True)
    assert not other.is_amax_initialized
    float8.Float8Linear(16, 8).load_state_dict(state, strict=True)


@pytest.mark.parametrize("files", [("scale", "weight"), ("weight", "scale"), ("all",)], ids="-".join)
def test_files_of_static_scales_into_a_model_on_meta(files, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    make = lambda: nn.Sequential(convert(nn.Linear(16, 32), config_of(ScalingType.STATIC, *[ScalingType.DYNAMIC] * 2)))
    state = make().state_dict()
    state["0.fp8_static_scale_input"] += 1  # not the config's
    parts = {"all": state, "scale": {key: each for key, each in state.items() if "fp8_" in key}}
    parts["weight"] = {key: each for key, each in state.items() if "fp8_" not in key}
    model = make().to("meta")
    for file in files:
        save_file(parts[file], tmp_path / "model.safetensors")
        ingot.nn.load_float8_checkpoint(model, tmp_path / "model.safetensors", strict=False)
    assert all(torch.equal(each, state[key]) for key, each in model.state_dict().items())


def test_layers_with_different_histories_and_formats():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    convert(model, config_of(history_len=4))
    model[1] = convert(nn.Linear(16, 16), config_of(history_len=2, round_scales_to_power_of_2=True))
    model[2] = convert(nn.Linear(16, 16), config_of(ScalingType.STATIC, ScalingType.STATIC, ScalingType.STATIC))
    model(torch.randn(4, 16)).sum().backward()
    float8.sync_float8_amax_and_scale_history(model, float8.get_float8_layers(model))
    exponent = torch.log2(model[1].fp8_scale_weight)
    assert exponent == exponent.round()
    assert model[0].is_amax_initialized and not model[2].has_any_delayed_scaling
    for layer in model[:2]:
        for role, dtype in zip(ROLES, (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2)):
            amax, history, scale = (getattr(layer, f"fp8_{name}_{role}") for name in ("amax", "amax_history", "scale"))
            assert history[0] == amax > 0
            assert scale == amax_to_scale(history.max(), dtype, layer.config.round_scales_to_power_of_2), role


def relative(got, expected):
    return ((got.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("operators", [True, False])
def test_a_tensor_has_no_scale_before_it_has_values(operators):
    """Each by itself: a weight of zeros, gradients that overflow, then small values; the layer had not run at all before
    the first step. Float64 is the reference."""
    torch.manual_seed(0)
    layer = convert(nn.Linear(32, 32, bias=False), config_of())
    if not operators:
        layer._operator_casts = None
    nn.init.zeros_(layer.weight)
    x, g = torch.randn(64, 32), torch.randn(64, 32)
    float8.sync_float8_amax_and_scale_history(layer)
    assert not layer.fp8_amax_history_input.any() and not layer.is_amax_initialized
    layer(x).backward(torch.full_like(g, float("inf")))
    float8.sync_float8_amax_and_scale_history(layer)
    assert not layer.is_amax_initialized and not layer.fp8_amax_history_grad_output.any()
    with torch.no_grad():
        layer.weight.normal_(0, 1e-4)
    loaded = convert(nn.Linear(32, 32, bias=False), config_of())
    loaded.load_state_dict(layer.state_dict())
    assert loaded._starts.shape == layer._starts.shape == (2 + 0b110, 0)
    for step in range(3):
        for each in (layer, loaded):
            each.zero_grad()
            y = each(x)
            y.backward(1e-6 * g)
            assert relative(y.detach(), x.double() @ each.weight.detach().double().T) < 0.05
            assert relative(each.weight.grad, (1e-6 * g).double().T @ x.double()) < 0.1
            float8.sync_float8_amax_and_scale_history(each)
            assert each.is_amax_initialized
    # A history of zeros leaves the scale; later steps of zeros are no step without it.
    scale = layer.fp8_scale_grad_output.clone()
    for _ in range(5):
        layer(x).backward(0 * g)
        float8.sync_float8_amax_and_scale_history(layer)
    assert torch.equal(layer.fp8_scale_grad_output, scale) and not layer.fp8_amax_history_grad_output.any()


def test_a_second_call_enters_the_same_maxima():
    layer = convert(nn.Linear(16, 8), config_of())
    layer(torch.full((4, 16), 3.0)).sum().backward()
    for _ in range(2):
        float8.sync_float8_amax_and_scale_history(layer)
    assert layer.fp8_amax_history_input.tolist() == [3.0, 3.0, 3.0, 0.0]


def test_memory_without_values():
    """From meta, and in the middle of training."""
    kinds = (ScalingType.DELAYED, ScalingType.STATIC, ScalingType.DELAYED)
    with torch.device("meta"):
        meta = nn.Linear(16, 8)
    layer = convert(meta, config_of(*kinds))
    fresh = convert(nn.Linear(16, 8), config_of(*kinds))
    layer.to_empty(device="cpu")
    assert all(map(torch.equal, layer.buffers(), fresh.buffers()))
    with torch.device("meta"):
        meta = nn.Linear(16, 8)
    assigned = convert(meta, config_of(*kinds))
    assigned.load_state_dict(nn.Linear(16, 8).state_dict(), assign=True)
    assert all(map(torch.equal, assigned.buffers(), fresh.buffers()))
    nn.init.ones_(layer.weight), nn.init.ones_(layer.bias)
    layer(torch.randn(4, 16)).sum().backward()
    float8.sync_float8_amax_and_scale_history(layer)
    before = [each.clone() for each in layer.buffers()]
    layer.to_empty(device="cpu")
    assert all(map(torch.equal, layer.buffers(), before)) and layer.is_amax_initialized
    layer.reset_parameters()
    assert all(map(torch.equal, layer.buffers(), fresh.buffers())) and not layer.is_amax_initialized


def test_sync_is_a_few_operations_for_all_layers():
    """What a GPU would launch does not grow with the model, nor before its layers have scales."""

    def operations(count, starts):
        layers = [convert(nn.Linear(8, 8), config_of(enable_amax_init=starts)) for _ in range(count)]
        with CountedOperations() as counted:
            float8.sync_float8_amax_and_scale_history(nn.ModuleList(layers))
        return counted.calls

    assert operations(2, False) == operations(9, False) <= 14
    assert operations(2, True) == operations(9, True) <= 40


def test_one_call_makes_the_scales_of_both_packages():
    """By either name, with the numbers of calls for each layer by itself."""
    torch.manual_seed(0)
    layers = [ingot.nn.Float8Linear(16, 16, recipe="delayed"), convert(nn.Linear(16, 16), config_of()), nn.Linear(16, 16)]
    model = nn.Sequential(*layers)
    alone, by_name, by_list = (copy.deepcopy(model) for _ in range(3))
    for size in (1.0, 4.0, 0.5, 0.0):
        for each in (model, alone, by_name, by_list):
            each(size * torch.ones(4, 16)).sum().backward()
        ingot.nn.sync_amax_history(model)
        float8.sync_float8_amax_and_scale_history(by_name)
        float8.sync_float8_amax_and_scale_history(by_list, float8.get_float8_layers(by_list))
        ingot.nn.sync_amax_history(alone[0])
        float8.sync_float8_amax_and_scale_history(alone[1])
        for each in (model, by_name, by_list):
            assert all(map(torch.equal, each.buffers(), alone.buffers()))
            assert each[0].scales_started and each[1].scales_started
    assert model[0].fp8_amax_history[0, 1] == 0.5 and model[1].fp8_amax_history_input[0] > 0


def test_a_state_without_scales_begins_anew():
    """Also one of a layer that has not run: its histories say that there is no scale."""
    x, layer = torch.randn(4, 16), convert(nn.Linear(16, 8), config_of())
    states = [copy.deepcopy(layer.state_dict()), {"weight": layer.weight.detach(), "bias": layer.bias.detach()}]
    for state in states:
        layer(x).sum().backward()
        float8.sync_float8_amax_and_scale_history(layer)
        assert layer.scales_started
        layer.load_state_dict(state)
        assert not layer.scales_started and layer.fp8_scale_input.item() == 1 and not layer.fp8_amax_history_input.any()


def test_sync_without_layers_warns(caplog):
    with caplog.at_level(logging.WARNING):
        float8.sync_float8_amax_and_scale_history(nn.Linear(4, 4))
    assert "there is no layer with delayed scaling" in caplog.text


def test_different_functions_are_refused():
    layers = [convert(nn.Linear(4, 4), config_of()) for _ in range(2)]
    object.__setattr__(layers[1].config.delayed_scaling_config, "scale_fn_name", "mean")
    with pytest.raises(
        ValueError, match=r"All layers must have the same scale_fn recipe, got \['max', 'mean'\]"
    ) as caught:
        float8.sync_float8_amax_and_scale_history(nn.ModuleList(layers))
    assert isinstance(caught.value, ingot.Error)


def test_kind_and_meta():
    assert type(convert(nn.Linear(4, 4), config_of())) is StatefulFloat8Linear
    with torch.device("meta"):
        layer = convert(nn.Linear(16, 8), config_of())
    assert layer.fp8_scale_input.is_meta

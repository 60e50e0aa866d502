"""ingot.nn.Float8Linear with delayed scales: the steps, the buffers and checkpoints."""

import copy
import io
import types
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
from counted_operations import CountedOperations
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import ingot
import ingot.float8 as float8
from ingot.nn import Float8Linear, sync_amax_history
from ingot.torch import _operators as operators
from torch_module_cases import equal, graphs_of_delayed_steps


def delayed(*sizes, **options):
    torch.manual_seed(0)
    return Float8Linear(*(sizes or (24, 40)), recipe="delayed", layer_name="fc", **options)


def step(layer, x, call=None):
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = (layer if call is None else call)(x)
    y.square().sum().backward()
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


def batch(at, size=1.0, dtype=torch.float32):
    return size * torch.randn(3, 8, 24, generator=torch.Generator().manual_seed(at)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_step_is_as_dynamic(dtype):
    layer = delayed(dtype=dtype)
    dynamic = Float8Linear.from_float(layer, "tensorwise")
    x = batch(0, dtype=dtype)
    for _ in range(2):  # two micro-batches before the first sync
        got, expected = step(layer, x), step(dynamic, x)
        assert equal(got, expected)
        x = 2 * x


def test_steps_are_those_of_ingot_float8():
    """Another implementation of the same rule, with its own buffers."""
    cast = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    config = float8.Float8LinearConfig(
        cast_config_input=cast,
        cast_config_weight=cast,
        cast_config_grad_output=cast,
        delayed_scaling_config=float8.DelayedScalingConfig(history_len=3),
    )
    layer = delayed(history_length=3)
    other = float8.convert_to_float8_training(torch.nn.Linear(24, 40), config=config)
    with torch.no_grad():
        other.weight.copy_(layer.weight)
        other.bias.copy_(layer.bias)
    other.keep_weight_codes()
    for at, size in enumerate((1, 4, 0.5, 0.5, 0.5, 0.5)):
        assert equal(step(layer, batch(at, size)), step(other, batch(at, size)))
        sync_amax_history(layer)
        float8.sync_float8_amax_and_scale_history(other)
        for row, role in enumerate(("input", "weight", "grad_output")):
            _, history, scale = other._of(role)
            assert torch.equal(layer.fp8_amax_history[row], history), (at, role)
            assert torch.equal(layer.fp8_scale[row : row + 1], scale), (at, role)
        assert torch.equal(layer.fp8_amax, torch.zeros(3))


def test_scales_by_hand():
    layer = delayed(history_length=2)
    maxima = []
    for at, size in enumerate((4.0, 1.0, 1.0)):
        x = batch(at, size)
        step(layer, x)
        maxima.append(x.abs().max().item())
        sync_amax_history(layer)
        newest = maxima[::-1][:2]
        assert layer.fp8_amax_history[0].tolist() == (newest + [layer.fp8_amax_history[0, 1].item()])[:2]
        expected = torch.tensor(448 / max(newest), dtype=torch.float64).float()
        assert layer.fp8_scale[0] == expected


def test_maxima_are_those_of_all_micro_batches():
    layer = delayed()
    sync_amax_history(layer)
    for at, size in enumerate((1.0, 9.0, 2.0)):
        step(layer, batch(at, size))
    assert layer.fp8_amax[0] == batch(1, 9.0).abs().max()
    assert layer.fp8_amax[1] == layer.weight.abs().max()
    sync_amax_history(layer)
    assert layer.fp8_amax_history[0, 0] == batch(1, 9.0).abs().max()


def test_scales_that_are_never_made_are_a_warning(monkeypatch, recwarn):
    monkeypatch.setattr("ingot.nn._delayed._MANY_RUNS", 5)
    monkeypatch.setattr("ingot.nn._delayed._WARNED", [])
    cast = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    config = float8.Float8LinearConfig(cast_config_input=cast, cast_config_weight=cast, cast_config_grad_output=cast)
    layers = [delayed(), float8.convert_to_float8_training(torch.nn.Linear(24, 40), config=config)]
    for _ in range(4):  # in time
        for _ in range(4):
            layers[0](batch(0))
        sync_amax_history(layers[0])
    with torch.no_grad():
        for _ in range(9):
            layers[0](batch(0))
    assert not recwarn
    for layer in layers:
        for _ in range(9):
            layer(batch(0))
    assert len(recwarn) == 1
    text = 'Float8Linear "fc" recipe: is "delayed", and 5 forwards have run without sync_amax_history(model), which makes its scales'
    assert str(recwarn[0].message).startswith(text)


def test_a_step_without_data_keeps_the_scales():
    layer = delayed(history_length=2)
    step(layer, batch(0))
    sync_amax_history(layer)
    scale = layer.fp8_scale.clone()
    for _ in range(4):
        sync_amax_history(layer)
    assert torch.equal(layer.fp8_scale, scale)
    assert torch.equal(layer.fp8_amax_history, torch.zeros(3, 2))


def test_without_gradients_nothing_is_noted():
    layer = delayed()
    step(layer, batch(0))
    sync_amax_history(layer)
    before = copy.deepcopy(layer.state_dict())
    with torch.no_grad():
        y = layer(batch(1, 50.0))
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    # Values above the scale's range saturate.
    assert y.abs().max() < layer(batch(1, 50.0) / 50).abs().max() * 50


def test_trains():
    torch.manual_seed(0)
    target, x = torch.randn(64, 24) @ torch.randn(24, 40), torch.randn(64, 24)
    losses = {}
    for recipe in ("high_precision", "delayed"):
        torch.manual_seed(1)
        layer = Float8Linear(24, 40, recipe=recipe)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            loss = (layer(x) - target).square().mean()
            loss.backward()
            sync_amax_history(layer)
            optimizer.step()
        losses[recipe] = loss.item()
    assert losses["delayed"] < 1.3 * losses["high_precision"], losses


def test_one_update_for_all_layers():
    def operations(count):
        model = torch.nn.Sequential(*(delayed(24, 24) for _ in range(count)), Float8Linear(24, 24))
        model(batch(0)).sum().backward()
        with CountedOperations() as counted:
            sync_amax_history(model)
        assert all((layer.fp8_scale != 1).all() and layer.scales_started for layer in model[:-1])
        return counted.calls

    assert operations(2) == operations(9) <= 16
    sync_amax_history(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("count, expected", [(1, 1), (2, 6), (9, 6)])
def test_operations_of_a_steady_step(count, expected):
    """Inf and NaN take no further pass. What several layers have is stacked (three operations), updated and copied
    back, and their maxima are cleared."""
    model = torch.nn.Sequential(*(delayed(24, 24) for _ in range(count)))
    for at in range(2):
        model(batch(at)).sum().backward()
        with CountedOperations() as counted:
            sync_amax_history(model)
    assert counted.calls == expected


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("starts", [False, True])
def test_a_maximum_that_is_not_finite_counts_as_0(starts, count):
    """Also in a first step, whose maxima enter the history twice."""
    model = torch.nn.Sequential(*(delayed(24, 24, history_length=3) if starts else trained() for _ in range(count)))
    for layer in model:
        layer._has_run = True
        layer.fp8_amax_history[:, 0] = 0.0 if starts else 0.5
        layer.fp8_amax_history[:, 1:] = 0.0
        layer.fp8_scale.fill_(3.0)
        layer.fp8_amax.copy_(torch.tensor([float("inf"), 2.0, float("nan")]))
    sync_amax_history(model)
    for layer in model:
        expected = [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]] if starts else [[0.0, 0.5], [2.0, 0.5], [0.0, 0.5]]
        assert layer.fp8_amax_history[:, :2].tolist() == expected
        assert torch.equal(layer.fp8_amax_history[:, 2:], torch.zeros_like(layer.fp8_amax_history[:, 2:]))
        assert layer.fp8_scale.tolist() == ([3.0, 224.0, 3.0] if starts else [896.0, 224.0, 114688.0])
        assert torch.equal(layer.fp8_amax, torch.zeros(3)) and layer.scales_started


def test_histories_of_different_lengths():
    model = torch.nn.Sequential(delayed(24, 24, history_length=2), delayed(24, 24, history_length=5))
    alone = copy.deepcopy(model)
    for at in range(3):
        for each in (model, alone):
            each(batch(at, 1 + at)).sum().backward()
        sync_amax_history(model)
        for layer in alone:
            sync_amax_history(layer)
    assert equal(model.state_dict().values(), alone.state_dict().values())


def trained():
    layer = delayed()
    for at in range(3):
        step(layer, batch(at, 1 + at))
        sync_amax_history(layer)
    return layer


def test_checkpoints():
    layer = trained()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert {"fp8_amax", "fp8_amax_history", "fp8_scale"} < set(state)
    other = delayed()
    other.load_state_dict(state, strict=True)
    assert other.scales_started
    assert equal(step(other, batch(7)), step(layer, batch(7)))
    # Without the buffers: a new start.
    fresh = delayed()
    fresh.load_state_dict(torch.nn.Linear(24, 40).state_dict(), strict=True)
    assert not fresh.scales_started
    # And with buffers that a layer has no use for.
    Float8Linear(24, 40, recipe="rowwise").load_state_dict(state, strict=True)


def trained_of_torchao():
    torch.manual_seed(0)
    cast = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    config = float8.Float8LinearConfig(cast_config_input=cast, cast_config_weight=cast, cast_config_grad_output=cast)
    layer = float8.convert_to_float8_training(torch.nn.Sequential(torch.nn.Linear(24, 40)), config=config)[0]
    for at in range(3):
        step(layer, batch(at, 1 + at))
        sync_amax_history(layer)
    return layer


@pytest.mark.parametrize("weight_at", [0, 1, 9])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("make", [trained, trained_of_torchao], ids=["nn", "float8"])
def test_checkpoints_whose_files_divide_the_scales(make, order, weight_at):
    """Each buffer has a file to itself, before or after that of the weight. A checkpoint after it starts the scales anew."""
    layer = make()
    state, expected = copy.deepcopy(layer.state_dict()), step(copy.deepcopy(layer), batch(7))
    step(layer, batch(0, 50))
    sync_amax_history(layer)
    weights = {name: value for name, value in state.items() if not name.startswith("fp8_")}
    files = [name for name in state if name not in ("weight", "bias")][::order]
    assert len(files) >= 3
    files[weight_at:weight_at] = ["weight"]
    for _ in range(2):  # a second checkpoint, too
        for name in (*files, "bias"):
            layer.load_state_dict({name: state[name]}, strict=False)
        assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
        assert layer.scales_started and equal(step(copy.deepcopy(layer), batch(7)), expected)
    layer.load_state_dict(weights)
    assert not layer.scales_started
    layer.load_state_dict(state)
    step(layer, batch(7))
    layer.load_state_dict({name: value for name, value in weights.items() if name == "weight"}, strict=False)
    assert not layer.scales_started


def test_buffers_stay_float32():
    layer = trained()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer.bfloat16()
    assert layer.weight.dtype == torch.bfloat16
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == torch.float32 and torch.equal(buffer, before[name])
    assert layer(batch(0, dtype=torch.bfloat16)).dtype == torch.bfloat16
    layer.reset_parameters()
    assert torch.equal(layer.fp8_scale, torch.ones(3)) and not layer.scales_started


def test_autocast_and_float32_weights():
    layer = delayed()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(batch(0))
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32


def test_checkpointing():
    layer = trained()
    other = copy.deepcopy(layer)
    expected = step(layer, batch(5))
    assert equal(step(other, batch(5), lambda x: checkpoint(other, x, use_reentrant=False)), expected)
    assert torch.equal(other.fp8_amax, layer.fp8_amax)


def test_a_layer_called_twice():
    layer = trained()
    layer.zero_grad()
    (layer(batch(1)).square().sum() + layer(2 * batch(1)).square().sum()).backward()
    together = layer.weight.grad.clone()
    assert torch.allclose(together, step(layer, batch(1))[2] + step(layer, 2 * batch(1))[2], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_whole_graph(backend):
    inputs = [batch(rows)[:, :1].repeat(1, rows, 1) for rows in (8, 24, 40, 200)]
    counts = graphs_of_delayed_steps(delayed(), backend, inputs, step)
    assert counts[1:] == [counts[1]] * 3  # one graph for the first step, and one for those after it


@pytest.mark.parametrize("keep", [0, 3])
def test_opcheck(keep):
    x, w, b = torch.randn(20, 96), torch.randn(80, 96), torch.randn(80)
    facts = operators.add_plan("delayed", "checked", 96, 80, *(torch.float32,) * 3, True)
    scales = {"input_scale": torch.tensor([2.0]), "weight_scale": torch.tensor([4.0])}
    torch.library.opcheck(operators.linear_forward, (x, w, b, facts.number, keep), scales)
    if keep:
        _, saved, codes, amaxes = operators.linear_forward(x, w, b, facts.number, keep, **scales)
        assert amaxes.tolist() == [x.abs().max().item(), w.abs().max().item()]
        arguments, scale = (torch.randn(20, 80), x, w, saved, codes, facts.number, 7), torch.tensor([2.0])
        torch.library.opcheck(operators.linear_backward, arguments, {"grad_output_scale": scale})


def test_made_in_inference_mode():
    """Its scales are written by steps outside of that mode, as those of torchao's layers."""
    config = float8.Float8LinearConfig(**dict.fromkeys(
        ("cast_config_input", "cast_config_weight", "cast_config_grad_output"),
        float8.CastConfig(scaling_type=float8.ScalingType.DELAYED),
    ))  # fmt: skip
    with torch.inference_mode():
        made = delayed()
        of_torchao = float8.convert_to_float8_training(torch.nn.Linear(24, 16), config=config)
    with torch.no_grad():
        made(batch(0))
        sync_amax_history(made)
        of_torchao(batch(0))
        float8.sync_float8_amax_and_scale_history(of_torchao)
    assert of_torchao.fp8_amax_history_input.max() == batch(0).abs().max()


def test_messages():
    x, w, b = torch.randn(20, 96), torch.randn(80, 96), torch.randn(80)
    facts = operators.add_plan("delayed", "wq", 96, 80, *(torch.float32,) * 3, True)
    one = torch.ones(1)
    for wrong in (torch.ones(2), torch.ones(1, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match='linear "wq" scale of weight: must be float32 of one element on the'):
            operators.linear_forward(x, w, b, facts.number, 0, input_scale=one, weight_scale=wrong)
    with pytest.raises(ingot.Error, match='linear "fc" history_length: is 0, expected a number of steps, 1 or more'):
        delayed(history_length=0)
    with pytest.raises(ingot.Error, match=r'linear "fc" input: has shape \(3, 8, 23\), expected \(\.\.\., 24\)'):
        delayed()(batch(0)[..., :23])
    with pytest.raises(ingot.Error, match="has no gradient itself"):
        x = batch(0).requires_grad_()
        torch.autograd.grad(delayed()(x).sum(), x, create_graph=True)
    with pytest.raises(ingot.Error, match='linear "fc" cannot run under torch.func transforms'):
        torch.vmap(trained())(batch(0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    on_cpu = delayed(256, 384, dtype=torch.bfloat16)
    on_gpu = copy.deepcopy(on_cpu).cuda()
    for at in range(4):
        x = torch.randn(130, 256, generator=torch.Generator().manual_seed(at)).bfloat16() * (1 + at)
        expected, got = step(on_cpu, x), step(on_gpu, x.cuda())
        for a, b in zip(got, expected, strict=True):
            error = (a.cpu().double() - b.double()).norm() / b.double().norm()
            assert error < 2**-7, (at, float(error))
        sync_amax_history(on_cpu)
        sync_amax_history(on_gpu)
        # Input and weight are the same on both; grad_output comes of sums in another order.
        assert torch.equal(on_gpu.fp8_scale[:2].cpu(), on_cpu.fp8_scale[:2])
        assert torch.allclose(on_gpu.fp8_scale.cpu(), on_cpu.fp8_scale, rtol=2**-6)
        # With another scale every code of grad_output would be another, by up to half a step.
        for a, b in zip(on_cpu.buffers(), on_gpu.buffers(), strict=True):
            a.copy_(b.cpu())


def test_the_step_of_slots():
    """The operator below sync_amax_history(), on its own."""
    amax, scale = torch.tensor([2.0, 0.0, float("nan"), float("inf")]), torch.tensor([1.0, 5.0, 1.0, 6.0])
    history = torch.tensor([[1.0, 7.0], [0.0, 3.0], [1.0, 1.0], [0.0, 9.0]])
    formats = torch.tensor([[448.0, 448.0, 57344.0, 448.0], [1.0, 0.0, 0.0, 0.0]])
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments = [each.clone() for each in (amax, history, scale, formats)]
    torch.library.opcheck(operators.sync_amax_history, tuple(arguments), test_utils=checks)
    operators.sync_amax_history(amax, history, scale, formats)
    assert torch.equal(amax, torch.zeros(4))
    assert history.tolist() == [[2.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    # 448 / 2 as a power of two; where all is 0 the scale stays; NaN and Inf count as 0.
    assert scale.tolist() == [128.0, 5.0, 57344.0, 6.0]

    def message(*tensors):
        with pytest.raises(RuntimeError) as caught:
            operators.sync_amax_history(*tensors)
        return str(caught.value)

    assert message(amax, history.t(), scale, formats) == (
        "ingot: sync_amax_history history: is not contiguous: give one that is"
    )
    assert message(amax, history, scale[:2], formats) == (
        "ingot: sync_amax_history: has maxima of 4 slots, scales of 2, 8 numbers of formats and 8 of histories: expected "
        "two numbers and a history for each slot"
    )
    assert "scale: must be float32" in message(amax, history, scale.double(), formats)


def delayed_of_float8():
    delayed = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    config = float8.Float8LinearConfig(
        cast_config_input=delayed, cast_config_weight=delayed, cast_config_grad_output=delayed, enable_amax_init=False
    )
    return float8.convert_to_float8_training(torch.nn.Sequential(torch.nn.Linear(16, 32)), config=config)[0]


@pytest.mark.parametrize("make", [lambda: Float8Linear(16, 32, recipe="delayed"), delayed_of_float8], ids=["nn", "float8"])
def test_scales_start_anew_where_an_offloaded_layer_computes(make):
    """FSDP2's CPUOffloadPolicy keeps the shards of a mesh of GPUs, for which meta stands, on the CPU."""
    layer = make()
    state = {name: value for name, value in layer.state_dict().items() if "fp8" not in name}
    scales = [name for name, _ in layer.named_buffers() if name.startswith("fp8_")]
    mesh = types.SimpleNamespace(device_type="meta")
    shard = mock.Mock(spec=DTensor, is_meta=False, device=torch.device("cpu"), device_mesh=mesh, dim=lambda: 2)
    layer._parameters = {"weight": shard, "bias": None}
    with mock.patch.object(torch.nn.Module, "_load_from_state_dict"):
        layer._load_from_state_dict(state, "", {}, True, [], [], [])
    assert scales and all(layer._buffers[name].is_meta for name in scales)

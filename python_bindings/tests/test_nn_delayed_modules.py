"""Delayed scales of modules made of several parts: norms, activations, MLPs and layers that share an input."""

import copy
import dataclasses
import io

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint
from torch_module_cases import equal, noted_calls, sqnr

import ingot
from ingot.nn import (
    Float8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    RMSNormLinear,
    SharedInputLinears,
    load_float8_checkpoint,
    shared_input,
    sync_amax_history,
)
from ingot.torch import DelayedScales, NormLinearOptions, SharedLinearOptions, norm_linear, shared_linear

K = 48


def gate_and_up(recipe, **options):
    gate, up = torch.nn.Linear(K, 80, bias=False), torch.nn.Linear(K, 80, bias=False)
    return GatedMlp.from_parts(
        (gate, up), torch.nn.Linear(80, K, bias=False), torch.nn.RMSNorm(K), recipe=recipe, **options
    )


MODULES = {
    "layer norm": lambda recipe, **o: LayerNormLinear(K, 64, recipe=recipe, **o),
    "RMS norm, activation": lambda recipe, **o: RMSNormLinear(K, 64, activation="silu", recipe=recipe, **o),
    "activation": lambda recipe, **o: Float8Linear(K, 64, activation="gelu", recipe=recipe, **o),
    "MLP": lambda recipe, **o: Mlp(K, 80, norm="layer", recipe=recipe, **o),
    "gated MLP": lambda recipe, **o: GatedMlp(K, 80, norm="rms", recipe=recipe, **o),
    "gate and up": gate_and_up,
    "shared": lambda recipe, **o: SharedInputLinears(K, {"q": 64, "k": 32, "v": 32}, norm="rms", recipe=recipe, **o),
}
LAYERS = {"MLP": 2, "gated MLP": 2, "gate and up": 3, "shared": 3}


def module_of(name, recipe="delayed", dtype=torch.float32, **options):
    torch.manual_seed(0)
    return MODULES[name](recipe, **options).to(dtype)


def batch(at, size=1.0, dtype=torch.float32, rows=40):
    return size * torch.randn(2, rows, K, generator=torch.Generator().manual_seed(at)).to(dtype)


def step(module, x, call=None):
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    outputs = (module if call is None else call)(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(y.float().square().sum() for y in outputs).backward()
    return [*(y.detach() for y in outputs), x.grad, *(parameter.grad.clone() for parameter in module.parameters())]


def trained(name, **options):
    module = module_of(name, **options)
    for at in range(3):
        step(module, batch(at, 1 + at))
        sync_amax_history(module)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_the_first_steps_are_as_dynamic(name, dtype):
    module, dynamic = module_of(name, dtype=dtype), module_of(name, "tensorwise", dtype)
    x = batch(0, dtype=dtype)
    for _ in range(2):  # two micro-batches before the first sync
        assert equal(step(module, x), step(dynamic, x))
        with torch.no_grad():
            assert equal(outputs_of(module(x)), outputs_of(dynamic(x)))
        x = 2 * x


@pytest.mark.parametrize("name", MODULES)
def test_a_step_of_the_same_data_is_as_the_first(name):
    module = module_of(name)
    first = step(module, batch(0))
    sync_amax_history(module)
    assert equal(step(module, batch(0)), first)


def outputs_of(result):
    return result if isinstance(result, tuple) else (result,)


def in_float8(values, scale, dtype):
    limit = torch.finfo(dtype).max
    return (values * scale).clamp(-limit, limit).to(dtype).double() / scale.double()


def test_scales_of_a_norm_by_hand():
    """A step with the scales of other data, against float64."""
    module = module_of("layer norm", history_length=2)
    step(module, batch(0))
    sync_amax_history(module)
    x = batch(1, 3.0)
    scale_x, scale_w, scale_g = module.fp8_scale.clone()
    values = F.layer_norm(x, (K,))  # its weight is ones, its bias zeros
    first = F.layer_norm(batch(0), (K,))
    assert torch.allclose(scale_x, 448 / first.abs().max(), rtol=1e-6)
    assert scale_w == (448 / module.weight.detach().abs().max().double()).float()
    y, grad_x, *grads = step(module, x)
    codes_x = in_float8(values, scale_x, torch.float8_e4m3fn).view(-1, K)
    codes_w = in_float8(module.weight.detach(), scale_w, torch.float8_e4m3fn)
    expected = codes_x @ codes_w.T + module.bias.double()
    assert sqnr(expected.detach(), y.view(-1, 64)) > 60
    codes_g = in_float8(2 * y.view(-1, 64), scale_g, torch.float8_e5m2)
    assert sqnr(codes_g.T @ codes_x, grads[0]) > 60  # the weight's gradient
    assert module.fp8_amax[0] == pytest.approx(values.abs().max().item(), rel=1e-6)
    assert module.fp8_amax[1] == module.weight.abs().max()
    assert module.fp8_amax[2] == (2 * y).abs().max()


@pytest.mark.parametrize("name", MODULES)
def test_maxima_and_buffers(name):
    module = trained(name, history_length=5)
    sizes = (LAYERS[name], 3) if name in LAYERS else (3,)
    assert module.fp8_scale.shape == module.fp8_amax.shape == sizes
    assert module.fp8_amax_history.shape == (*sizes, 5)
    used = module.fp8_scale.reshape(-1, 3) != 1
    used[1:, 0] |= name in ("shared",)  # an input that is shared has the first layer's
    if name == "gate and up":
        used[1, 0] = True
    assert used.all(), module.fp8_scale
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with torch.no_grad():
        module(batch(9, 50.0))
    assert equal(module.state_dict().values(), before.values())  # a forward without gradients notes nothing
    module.bfloat16()
    for key, buffer in module.named_buffers():
        assert buffer.dtype == torch.float32 and torch.equal(buffer, before[key])


@pytest.mark.parametrize("name", MODULES)
def test_checkpoints_and_checkpointing(name):
    module = trained(name)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = module_of(name)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert other.scales_started
    expected = step(module, batch(5))
    assert equal(step(other, batch(5), lambda x: checkpoint(other, x, use_reentrant=False)), expected)
    assert torch.equal(other.fp8_amax, module.fp8_amax)
    plain = {key: value for key, value in module.state_dict().items() if "fp8_" not in key}
    fresh = module_of(name)
    fresh.load_state_dict(plain, strict=True)
    assert not fresh.scales_started
    module_of(name, "rowwise").load_state_dict(module.state_dict(), strict=True)
    assert equal(step(copy.deepcopy(module), batch(6)), step(module, batch(6)))


@pytest.mark.parametrize("name", MODULES)
def test_weights_cast_again_have_the_scale_of_forward(name):
    found = []
    for keep in (True, False):
        module = trained(name)
        module.keep_weight_codes(keep)
        x = batch(7).requires_grad_()
        outputs = outputs_of(module(x))
        module.fp8_scale[..., :2].mul_(0.5)
        module.fp8_scale[..., 2].mul_(0.25)
        sum(y.square().sum() for y in outputs).backward()
        found.append([x.grad, *(parameter.grad for parameter in module.parameters())])
    assert equal(*found)


@pytest.mark.parametrize("name", MODULES)
def test_main_grad(name):
    module, plain = trained(name), trained(name)
    weights = [parameter for parameter in module.parameters() if parameter.dim() == 2]
    weights[0].main_grad = torch.ones_like(weights[0])
    step(plain, batch(3))
    x = batch(3).requires_grad_()
    module.zero_grad()
    sum(y.square().sum() for y in outputs_of(module(x))).backward()
    of_plain = [parameter for parameter in plain.parameters() if parameter.dim() == 2]
    assert torch.allclose(weights[0].main_grad, of_plain[0].grad + 1, rtol=1e-6)
    assert equal([w.grad for w in weights[1:]], [w.grad for w in of_plain[1:]])
    assert torch.equal(module.fp8_amax, plain.fp8_amax)


@pytest.mark.parametrize("name", MODULES)
def test_whole_graph(name):
    torch._dynamo.reset()
    eager = module_of(name)
    module = copy.deepcopy(eager)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for rows in (8, 24, 40):
        x = batch(rows, rows=rows)
        assert equal(step(module, x, compiled), step(eager, x))
        assert equal(module.buffers(), eager.buffers())
        sync_amax_history(module)
        sync_amax_history(eager)
        assert equal(module.buffers(), eager.buffers())
        counts.append(counter.frame_count)
    assert counts[1] == counts[2]  # one graph for the first step, and one for those after it


@pytest.mark.parametrize("starts, name", [(False, name) for name in MODULES] + [(True, "gated MLP")])
def test_opcheck(monkeypatch, name, starts):
    module = module_of(name) if starts else trained(name)
    calls = noted_calls(monkeypatch)
    step(module, batch(2))
    assert len(calls) == (4 if name == "gate and up" else 2)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for operator, arguments, named in calls:
        torch.library.opcheck(operator, arguments, named, test_utils=checks)


def test_a_model_of_all_kinds_is_updated_at_once():
    models = [torch.nn.ModuleList(module_of(name) for name in MODULES) for _ in range(2)]
    models[0].append(Float8Linear(K, 8, recipe="delayed"))
    for at in range(3):
        for model in models:
            for module in model:
                torch.manual_seed(at)
                step(module, batch(at, 1 + at))
        sync_amax_history(models[0])
        for module in models[1]:
            sync_amax_history(module)
    for a, b in zip(models[0][:-1], models[1], strict=True):
        assert equal(a.state_dict().values(), b.state_dict().values())


@pytest.mark.parametrize("name", ["RMS norm, activation", "gated MLP", "shared"])
def test_trains(name):
    """The loss of delayed scales ends near that of dynamic ones."""
    losses = {}
    for recipe in ("tensorwise", "delayed"):
        module = module_of(name, recipe)
        targets = [torch.randn(y.shape, generator=torch.Generator().manual_seed(3)) for y in outputs_of(module(batch(0)))]
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            outputs = outputs_of(module(batch(0)))
            loss = sum((y - t).square().mean() for y, t in zip(outputs, targets, strict=True))
            loss.backward()
            sync_amax_history(module)
            optimizer.step()
        losses[recipe] = loss.item()
    assert losses["delayed"] < 1.2 * losses["tensorwise"], losses


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_has_not_run_starts_later(name):
    """An expert that no token came to, for example: its first step is as dynamic too."""
    module, dynamic = module_of(name), module_of(name, "tensorwise")
    for _ in range(2):
        sync_amax_history(module)
    with torch.no_grad():
        module(batch(0))
    sync_amax_history(module)
    assert not module.scales_started
    assert equal(step(module, batch(1, 1e-4)), step(dynamic, batch(1, 1e-4)))
    sync_amax_history(module)
    assert module.scales_started and (module.fp8_amax_history[..., 1] != 0).any()


@pytest.mark.parametrize("name", MODULES)
def test_parameters_and_scales_may_come_later(name):
    """On meta first: with a whole checkpoint, with one that has no scales, or by initialising every module."""
    whole = trained(name)
    state = whole.state_dict()
    plain = {key: value for key, value in state.items() if "fp8_" not in key}
    for given in (state, plain):
        with torch.device("meta"):
            module = module_of(name)
        module.load_state_dict({key: value.clone() for key, value in given.items()}, strict=True, assign=True)
        other = module_of(name)
        other.load_state_dict(given, strict=True)
        assert equal(step(module, batch(5)), step(other, batch(5)))
        sync_amax_history(module)
        sync_amax_history(other)
        assert equal(module.state_dict().values(), other.state_dict().values())
    with torch.device("meta"):
        module = module_of(name)
    module.to_empty(device="cpu")
    for each in module.buffers():
        each.fill_(float("nan"))
    module.load_state_dict(plain, strict=True)
    assert torch.equal(module.fp8_scale, torch.ones_like(module.fp8_scale))
    for each in module.buffers():
        each.fill_(float("nan"))
    for each in module.modules():
        if hasattr(each, "reset_parameters"):
            each.reset_parameters()
    assert torch.equal(module.fp8_scale, torch.ones_like(module.fp8_scale)) and not module.scales_started
    assert all(each.isfinite().all() for each in step(module, batch(0)))
    # A checkpoint of before the first step begins anew.
    whole.load_state_dict(module_of(name).state_dict(), strict=True)
    assert not whole.scales_started


@pytest.mark.parametrize("load", ["load_state_dict", "load_float8_checkpoint"])
@pytest.mark.parametrize("name", MODULES)
def test_checkpoints_of_files_in_any_order(name, load, tmp_path):
    """Scales stay that some file has. Without, they start anew with the last of the weights, and norms and biases are none."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "fc": module_of(name)})
    for at in range(2):
        step(model["fc"], batch(at))
        sync_amax_history(model)
    state = copy.deepcopy(model.state_dict())
    scales = [key for key in state if ".fp8_" in key]
    weights = [key for key in state if key.startswith("fc.") and key not in scales and state[key].dim() == 2]
    rest = [key for key in state if key not in (*weights, *scales)]
    files = {"scales": scales, "rest": rest, "last": weights[-1:], **({"first": weights[:-1]} if weights[1:] else {})}
    kept = lambda: all(torch.equal(model.state_dict()[key], state[key]) for key in scales)

    def load_file(name):
        tensors = {key: state[key].contiguous() for key in files[name]}
        if load == "load_state_dict":
            model.load_state_dict(tensors, strict=False)
        else:
            save_file(tensors, tmp_path / "model.safetensors")
            load_float8_checkpoint(model, tmp_path / "model.safetensors", strict=False)

    orders = [("scales", "rest", "first", "last"), ("last", "scales", "rest", "first"), ("rest", "last", "first", "scales")]
    for order in orders:  # one checkpoint after the other
        for file in filter(files.__contains__, order):
            load_file(file)
        assert kept() and model["fc"].scales_started
    for file in filter(files.__contains__, ("rest", "first", "last")):
        assert kept()
        load_file(file)
    assert not model["fc"].scales_started and (model["fc"].fp8_scale == 1).all()


@pytest.mark.parametrize("files", [("scales", "weights"), ("weights", "scales"), ("all",)], ids="-".join)
@pytest.mark.parametrize("load", ["load_state_dict", "load_float8_checkpoint"])
@pytest.mark.parametrize("name", ["layer norm", "gate and up"])
def test_files_into_a_model_on_meta(name, load, files, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    trained = torch.nn.ModuleDict({"fc": module_of(name)})
    step(trained, batch(0), call=trained["fc"])
    sync_amax_history(trained)
    state = trained.state_dict()
    parts = {"all": state, "scales": {key: each for key, each in state.items() if "fp8_" in key}}
    parts["weights"] = {key: each for key, each in state.items() if "fp8_" not in key}
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"fc": module_of(name)})
    for file in files:
        if load == "load_state_dict":
            model.load_state_dict(copy.deepcopy(parts[file]), strict=False, assign=True)
        else:
            save_file({key: each.contiguous() for key, each in parts[file].items()}, tmp_path / "model.safetensors")
            load_float8_checkpoint(model, tmp_path / "model.safetensors", strict=False)
    assert all(torch.equal(each, state[key]) for key, each in model.state_dict().items())
    assert model["fc"].scales_started
    assert equal(step(model["fc"], batch(1)), step(trained["fc"], batch(1)))


@pytest.mark.parametrize("name", MODULES)
def test_an_overflow_leaves_no_trace(name):
    """A step whose gradients are Inf, which a trainer skips: those after it are as if it had not been."""
    module, other = trained(name, history_length=4), trained(name, history_length=4)
    x = batch(3)
    outputs = outputs_of(module(x))
    (sum(y.square().sum() for y in outputs) * float("inf")).backward()
    with torch.no_grad():
        outputs_of(module(x * float("nan")))
    sync_amax_history(module)
    assert all(buffer.isfinite().all() for buffer in module.buffers())
    step(other, x)
    sync_amax_history(other)
    # The weight and the input of the step were seen in both.
    scales = [each.fp8_scale[0, :2] if name in LAYERS else each.fp8_scale[:2] for each in (module, other)]
    assert torch.equal(*scales)
    assert all(each.isfinite().all() for each in step(module, batch(4)))


def relative(got, expected):
    return ((got.double() - expected).norm() / expected.norm()).item()


def test_a_tensor_has_no_scale_before_it_has_values():
    """Each by itself: a weight of zeros, gradients that overflow, then small values. Float64 is the reference."""
    layer = Float8Linear(K, 64, bias=False, recipe="delayed")
    torch.nn.init.zeros_(layer.weight)
    x, g = batch(0), torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(9))
    layer(x).backward(torch.full_like(g, float("inf")))
    sync_amax_history(layer)
    assert not layer.scales_started and layer.fp8_scale[1:].tolist() == [1.0, 1.0] != layer.fp8_scale[:2].tolist()
    with torch.no_grad():
        layer.weight.normal_(0, 1e-4)
    for _ in range(3):
        layer.zero_grad()
        layer(x).backward(1e-6 * g)
        with torch.no_grad():
            assert relative(layer(x), x.double() @ layer.weight.double().T) < 0.05
        assert relative(layer.weight.grad, (1e-6 * g).view(-1, 64).double().T @ x.view(-1, K).double()) < 0.1
        sync_amax_history(layer)
    assert layer.scales_started and (layer.fp8_scale > 1000).tolist() == [False, True, True]


@pytest.mark.parametrize("name", MODULES)
def test_tokens_after_empty_batches(name):
    """And after a forward without gradients, with activation checkpointing, in a model that is frozen in part."""
    module, dynamic = module_of(name), module_of(name, "tensorwise")
    for _ in range(2):
        step(module, batch(0)[:, :0])
        with torch.no_grad():
            module(batch(0))
        sync_amax_history(module)
    assert not module.scales_started and (module.fp8_scale[..., ::2] == 1).all()  # a weight is cast without tokens, too
    for each in (module, dynamic):
        next(each.parameters()).requires_grad_(False)

    def checkpointed_step(module):
        x = batch(1, 1e-4).requires_grad_()
        outputs = outputs_of(checkpoint(module, x, use_reentrant=False))
        sum(y.float().square().sum() for y in outputs).backward()
        return [*(y.detach() for y in outputs), x.grad, *(p.grad for p in module.parameters() if p.requires_grad)]

    assert equal(checkpointed_step(module), checkpointed_step(dynamic))
    sync_amax_history(module)
    assert module.scales_started


class Model(torch.nn.Module):
    """Dynamo of PyTorch 2.7 takes the sizes of what is in a torch.nn.Sequential for constants."""

    def __init__(self, *modules):
        super().__init__()
        self.first, self.second = modules

    def forward(self, x):
        return self.second(self.first(x))


def test_a_graph_serves_every_state_of_scales():
    """One that starts late, and then all that have started: no other graph."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Model(RMSNormLinear(K, K, recipe="delayed"), Float8Linear(K, K, bias=False, recipe="delayed"))
    torch.nn.init.zeros_(eager.second.weight)
    model = copy.deepcopy(eager)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for at in range(4):
        for each, call in ((eager, eager), (model, compiled)):
            each.zero_grad()
            (call(batch(at)) - batch(9)).square().sum().backward()
            sync_amax_history(each)
            with torch.no_grad():
                for parameter in each.parameters():
                    parameter.add_(1e-3 * parameter.grad.sign())
        assert equal(model.state_dict().values(), eager.state_dict().values())
        assert model.second.scales_started == (at > 0)
    assert counter.frame_count == 1


def test_scales_are_read_while_some_are_missing_and_ever_rarer(monkeypatch):
    reads = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(1) or tolist(tensor))
    used, unused, zeros = (Float8Linear(K, 8, bias=False, recipe="delayed") for _ in range(3))
    torch.nn.init.zeros_(zeros.weight)
    model = torch.nn.ModuleList([used, unused, zeros])

    def syncs(count, *modules):
        reads.clear()
        for at in range(count):
            for module in modules:
                step(module, batch(at))
            sync_amax_history(model)
        return len(reads)

    assert syncs(2, used, zeros) == 2 and used.scales_started
    assert syncs(200, used, zeros) == 3  # of the third step, the 16th and the 64th
    assert syncs(50, used) == 0
    assert not unused.scales_started and not zeros.scales_started
    assert syncs(1, unused) == 1 and unused.scales_started  # the first run that has tokens is looked at
    model = used
    assert syncs(30, used) == 0


def test_a_call_is_a_step():
    """Twice: a step without data. After one of two micro-batches: the other one counts for the next step."""
    module = trained("layer norm", history_length=3)
    before = module.fp8_amax_history.clone()
    sync_amax_history(module)
    assert torch.equal(module.fp8_amax_history[:, 1:], before[:, :-1]) and not module.fp8_amax_history[:, 0].any()
    module = Float8Linear(K, 8, recipe="delayed", history_length=3)
    maxima = []
    for at, size in enumerate((1.0, 4.0, 2.0)):
        step(module, batch(at, size))
        maxima.insert(0, batch(at, size).abs().max().item())
        if at == 0:
            sync_amax_history(module)
            maxima.append(maxima[0])  # the first one counts as that of the step before, too
    sync_amax_history(module)
    assert module.fp8_amax_history[0].tolist() == [max(maxima[:2]), *maxima[2:]]


def test_states_in_the_middle_of_training():
    """Conversions, copies and checkpoints of all kinds, with a slot that has no scale yet; and what f5f3807c saved."""
    layer = Float8Linear(K, 8, bias=False, recipe="delayed", history_length=3)
    torch.nn.init.zeros_(layer.weight)
    step(layer, batch(0))
    sync_amax_history(layer)  # the output is 0, and so its gradient
    assert layer.fp8_scale[0] != 1 and layer.fp8_scale[1:].tolist() == [1.0, 1.0]
    with torch.no_grad():
        layer.weight.normal_(0, 1e-4)
    expected = step(layer, batch(1))
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    assigned = Float8Linear(K, 8, bias=False, recipe="delayed", history_length=3)
    assigned.load_state_dict({key: value.clone() for key, value in state.items()}, assign=True)
    loaded = Float8Linear(K, 8, bias=False, recipe="delayed", history_length=3)
    loaded.load_state_dict(state)
    rounded = Float8Linear(K, 8, bias=False, recipe="delayed", history_length=3)
    rounded.load_state_dict({key: value.double() for key, value in state.items()}, assign=True)
    rounded.float()
    for other in (copy.deepcopy(layer), assigned, loaded, rounded, copy.deepcopy(layer).double().float()):
        assert not other.scales_started and other.fp8_scale.dtype == torch.float32
        assert equal(step(other, batch(1)), expected)
        for key in ("fp8_scale", "fp8_amax_history"):
            assert torch.equal(other.state_dict()[key], state[key])
    for each in (layer, loaded):
        sync_amax_history(each)
    assert layer.scales_started and equal(layer.state_dict().values(), loaded.state_dict().values())
    # Memory without values leaves the state, or gives that of before the first step.
    layer.to_empty(device="cpu")
    assert torch.equal(layer.fp8_scale, loaded.fp8_scale) and layer.scales_started
    layer.to(device="meta").to_empty(device="cpu")
    assert layer.fp8_scale.tolist() == [1.0] * 3 and not layer.fp8_amax_history.any() and not layer.fp8_amax.any()
    assert not layer.scales_started


def test_a_layer_made_anew_without_delayed_scales_has_no_buffers():
    layer = Float8Linear.from_float(trained("activation"), "rowwise")
    assert not list(layer.buffers()) and "fp8_amax" not in layer.state_dict()
    assert equal(step(layer, batch(0)), step(Float8Linear.from_float(layer, "rowwise"), batch(0)))


def test_messages():
    def message(call):
        with pytest.raises(ingot.Error) as caught:
            call()
        return str(caught.value)

    assert message(lambda: module_of("MLP", history_length=0)) == (
        'MLP "mlp" history_length: is 0, expected a number of steps, 1 or more'
    )
    assert "history_length: is '16', expected" in message(lambda: module_of("activation", history_length="16"))
    assert message(lambda: Float8Linear(24, 40, recipe="delay")).endswith("rowwise_with_gw_hp, blockwise, delayed")
    assert message(lambda: RMSNormLinear(24, 40, recipe="rowwize")).endswith("rowwise_with_gw_hp, blockwise, delayed")
    x, w = torch.randn(4, 24), torch.randn(40, 24)
    changed = RMSNormLinear(24, 40)
    changed.options = dataclasses.replace(changed.options, recipe="delayed")
    assert 'recipe: was set to "delayed" after the module was made' in message(lambda: changed(x))
    options = NormLinearOptions("delayed", "fc", None)
    assert message(lambda: norm_linear(x, None, None, w, None, options)) == (
        'linear "fc" delayed: is missing, but the recipe is "delayed": give DelayedScales, or use a module of ingot.nn, '
        "which keeps them"
    )
    wrong = DelayedScales(torch.ones(2), torch.zeros(3))
    assert message(lambda: norm_linear(x, None, None, w, None, options, wrong)) == (
        'linear "fc" delayed scale: must be contiguous float32 of 3 elements on the layer\'s device, for input, weight and '
        "grad_output of each layer"
    )
    wrong = DelayedScales(torch.ones(3), torch.zeros(6)[::2])
    assert message(lambda: norm_linear(x, None, None, w, None, options, wrong)).startswith(
        'linear "fc" delayed amax: must be contiguous float32 of 3 elements'
    )
    two = SharedLinearOptions("delayed", ("q", "k"))
    rows = DelayedScales(torch.ones(2, 3), torch.zeros(2, 6)[:, :3])
    assert "delayed amax: must be contiguous float32 of 6 elements" in message(
        lambda: shared_linear(x, (w, w), options=two, delayed=rows)
    )
    elsewhere = DelayedScales(torch.ones(3), torch.zeros(3, device="meta"))
    assert message(lambda: norm_linear(x, None, None, w, None, options, elsewhere)).startswith(
        'linear "fc" delayed amax: is on meta and the input on cpu: load its values'
    )
    scales = DelayedScales(torch.ones(3), torch.zeros(3))
    assert message(lambda: norm_linear(x, None, None, w, None, NormLinearOptions(norm=None), scales)) == (
        'linear "norm_linear" delayed: is given, but the recipe is tensorwise, whose scales have no state: omit it'
    )
    layers = [Float8Linear(K, 8, recipe="delayed", layer_name=name) for name in ("q", "k")]
    assert message(lambda: shared_input(batch(0), *layers)) == (
        'shared_input takes layers whose scales have no state, those of "q" are delayed: SharedInputLinears.from_parts() '
        "makes one module of such layers"
    )
    module = module_of("layer norm", layer_name="fc")
    x = batch(0).requires_grad_()
    assert message(lambda: torch.autograd.grad(module(x).sum(), x, create_graph=True)) == (
        'LayerNorm linear "fc" backward: the gradient of an FP8 GEMM has no gradient itself (create_graph=True): use '
        "PyTorch's own modules for this layer"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", MODULES)
def test_on_a_gpu(name):
    """Steps of the same data have the bits of dynamic scaling, and others are those of the CPU except for the order of
    sums."""
    on_cpu, dynamic = module_of(name, dtype=torch.bfloat16), module_of(name, "tensorwise", torch.bfloat16).cuda()
    on_gpu = copy.deepcopy(on_cpu).cuda()
    x = batch(0, 1, torch.bfloat16).cuda()
    expected = step(dynamic, x)
    for _ in range(2):
        assert equal(step(on_gpu, x), expected)
        sync_amax_history(on_gpu)
    on_gpu.keep_weight_codes(False)
    assert equal(step(on_gpu, x), expected)
    step(on_cpu, x.cpu())
    sync_amax_history(on_cpu)
    for at in range(3):
        # A sum in another order may move a code by half a step: both go on with the same scales.
        on_gpu.load_state_dict(on_cpu.state_dict())
        x = batch(at, 1 + at, torch.bfloat16)
        for a, b in zip(step(on_gpu, x.cuda()), step(on_cpu, x), strict=True):
            assert sqnr(b.double(), a.cpu()) > 20, at
        sync_amax_history(on_cpu)
        sync_amax_history(on_gpu)
        assert torch.allclose(on_gpu.fp8_scale.cpu(), on_cpu.fp8_scale, rtol=2**-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_serves_every_state_of_scales():
    """A CUDA graph of a step whose weight was zeros: its replays have the bits of eager steps, before and after it starts."""
    torch.manual_seed(0)
    layer = Float8Linear(64, 64, bias=False, recipe="delayed", history_length=3, dtype=torch.bfloat16).cuda()
    torch.nn.init.zeros_(layer.weight)
    eager = copy.deepcopy(layer)
    x, g = (torch.randn(32, 64).bfloat16().cuda() for _ in range(2))

    def whole_step(layer):
        y = layer(x)
        (grad,) = torch.autograd.grad(y, layer.weight, g)
        sync_amax_history(layer)
        return y.detach(), grad

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        whole_step(layer)
    torch.cuda.current_stream().wait_stream(side)
    whole_step(eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = whole_step(layer)
    for at in range(4):
        x.copy_(torch.randn(32, 64))
        weight = 1e-4 * (1 + at) * torch.randn(64, 64)
        with torch.no_grad():
            layer.weight.copy_(weight)
            eager.weight.copy_(weight)
        graph.replay()
        assert equal(results, whole_step(eager))
        assert equal(layer.buffers(), eager.buffers())
    assert eager.scales_started and not layer.scales_started

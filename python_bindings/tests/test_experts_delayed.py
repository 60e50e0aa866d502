"""Delayed scales of experts: by hand in float64, steps, micro-batches, checkpoints, recomputation and graphs, and messages."""

import copy
import io
import pickle
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint

import ingot
from ingot.nn import ExpertScales, Float8Linear, float8_all_gather, load_float8_checkpoint, sync_amax_history
from ingot.nn._scale_buffers import is_time_to_look
from ingot.torch import DelayedScales, LinearOptions, experts_mlp, grouped_linear, linear
from ingot.torch._module_operators import masks_of
from torch_module_cases import equal, graphs_of_delayed_steps, sqnr

EXPERTS, K, N, ROWS = 4, 32, 48, 40
ENDS = torch.tensor([9, 9, 24, 37], dtype=torch.int32)  # the second has no rows, and three rows have no expert
OPTIONS = LinearOptions("delayed", name="moe")
FORMATS = (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float8_e5m2)  # of input, weight and grad_output
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*sizes, seed=0, size=1.0):
    return size * torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class Layer(torch.nn.Module):
    def __init__(self, history_length=16, experts=EXPERTS):
        super().__init__()
        self.weight = torch.nn.Parameter(normal(experts, N, K, seed=1) / K**0.5)
        self.scales = ExpertScales(experts, history_length=history_length, name="moe")

    def forward(self, x, ends=ENDS, **options):
        return grouped_linear(x, self.weight, ends=ends, options=OPTIONS, delayed=self.scales(x), **options)


class Mlp(torch.nn.Module):
    """Its last expert has no tokens."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.gate_up = torch.nn.Parameter((normal(EXPERTS, 2 * N, K, seed=1) / K**0.5).to(dtype))
        self.down = torch.nn.Parameter((normal(EXPERTS, K, N, seed=2) / N**0.5).to(dtype))
        self.scales = ExpertScales(EXPERTS, 2, name="moe")

    def forward(self, x, options=OPTIONS):
        index = (torch.arange(x.shape[0], device=x.device)[:, None] + torch.arange(2, device=x.device)) % (EXPERTS - 1)
        weights = x.new_tensor([0.75, 0.5]).expand(x.shape[0], 2)
        delayed = self.scales(x) if options.recipe == "delayed" else None
        return experts_mlp(x, index, weights, self.gate_up, self.down, options, delayed=delayed)


def step(module, x, grad=None, call=None):
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = (module if call is None else call)(x)
    y.backward(normal(*y.shape, seed=9).to(y) if grad is None else grad)
    return [y.detach(), x.grad, *(each.grad.clone() for each in module.parameters())]


def rows_of(expert):
    return slice(0 if expert == 0 else int(ENDS[expert - 1]), int(ENDS[expert]))


def scale_of(amax, format):
    return torch.tensor(torch.finfo(format).max / max(float(amax), 1e-12), dtype=torch.float32)


def fake_quantized(values, scale, format):
    largest = torch.finfo(format).max
    codes = (values.float() * scale).clamp(-largest, largest).to(format)
    return codes.double() * (1 / scale).double()


def by_hand(weight, x, grad, scales):
    """Output and both gradients in float64. scales: (3, experts), 1 for one that starts with its own rows."""
    y, grad_x, grad_weight = torch.zeros(ROWS, N), torch.zeros(ROWS, K), torch.zeros_like(weight)
    for expert in range(EXPERTS):
        rows = rows_of(expert)
        tensors = x[rows], weight[expert].detach(), grad[rows]
        cast = []
        for at, (values, format) in enumerate(zip(tensors, FORMATS)):
            scale = scales[at][expert]
            if scale == 1 and values.numel():
                scale = scale_of(values.abs().max(), format)
            cast.append(fake_quantized(values, scale, format))
        y[rows], grad_x[rows] = (cast[0] @ cast[1].T).float(), (cast[2] @ cast[1]).float()
        grad_weight[expert] = (cast[2].T @ cast[0]).float()
    return y, grad_x, grad_weight


def close(found, expected, rows=slice(0, int(ENDS[-1]))):
    found = [found[0][rows], found[1][rows], *found[2:]]
    expected = [expected[0][rows], expected[1][rows], *expected[2:]]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item()) for a, b in zip(found, expected, strict=True))


def test_scales_by_hand():
    """Each expert's own, of earlier steps; data that have grown saturate, as with every delayed scale."""
    layer = Layer(history_length=3)
    histories = [[[] for _ in range(EXPERTS)] for _ in range(3)]
    scales = torch.ones(3, EXPERTS)
    for at, size in enumerate((1.0, 1.5, 0.25, 0.5, 0.125)):
        x, grad = normal(ROWS, K, seed=10 + at, size=size), normal(ROWS, N, seed=20 + at, size=2 * size)
        x[ENDS[-1]:] = grad[ENDS[-1]:] = float("nan")  # what no expert has is not read
        assert close(step(layer, x, grad), by_hand(layer.weight, x, grad, scales)), at
        for tensor, values in enumerate((x, layer.weight.detach(), grad)):
            for expert in range(EXPERTS):
                own = values[expert] if tensor == 1 else values[rows_of(expert)]
                amax = own.abs().max().item() if own.numel() else 0.0
                history = histories[tensor][expert]
                history[:] = [amax, *(history or [amax])][:3]
                assert layer.scales.fp8_amax[0, tensor, expert] == torch.tensor(amax)
                if max(history) > 0:
                    scales[tensor, expert] = scale_of(max(history), FORMATS[tensor])
        sync_amax_history(layer)
        assert torch.equal(layer.scales.fp8_scale[0], scales)
        assert not layer.scales.fp8_amax.any()
    assert (scales[::2, 1] == 1).all() and (scales[::2, 0] != 1).all()  # the second expert had no rows


def test_one_expert_has_the_bits_of_a_linear_layer():
    """Over several steps, and from a checkpoint."""
    plain = Float8Linear(K, N, bias=False, recipe="delayed")
    model = Layer(experts=1)
    ends = torch.tensor([ROWS], dtype=torch.int32)
    plain.weight.data.copy_(model.weight.data[0])
    for at in range(4):
        x, y = (normal(ROWS, each, seed=seed + at, size=1 + at) for each, seed in ((K, 20), (N, 40)))
        ours, theirs = step(model, x, y, lambda x: model(x, ends)), step(plain, x, y)
        assert all(torch.equal(*each) for each in zip((*ours[:2], ours[2][0]), theirs, strict=True))
        for each in (model, plain):
            sync_amax_history(each)
        assert all(torch.equal(mine.flatten(), of_plain.flatten()) for mine, of_plain in zip(model.scales.buffers(), plain.buffers(), strict=True))
        assert model.scales.scales_started and plain.scales_started
        state, model = model.state_dict(), Layer(experts=1)
        model.load_state_dict(state)


def test_an_expert_without_rows_keeps_its_scale():
    """Zeros enter its history, as Transformer Engine has it, and a history of zeros alone changes nothing."""
    layer = Layer(history_length=2)
    all_have_some = torch.tensor([10, 20, 30, 40], dtype=torch.int32)
    step(layer, normal(ROWS, K), call=lambda x: layer(x, all_have_some))
    sync_amax_history(layer)
    kept = layer.scales.fp8_scale.clone()
    assert (kept != 1).all() and layer.scales.scales_started
    for _ in range(3):
        step(layer, normal(ROWS, K, size=8))
        sync_amax_history(layer)
    assert not layer.scales.fp8_amax_history[0, 0, 1].any()
    assert torch.equal(layer.scales.fp8_scale[0, :, 1], kept[0, :, 1])
    assert (layer.scales.fp8_scale[0, 0, [0, 2, 3]] < kept[0, 0, [0, 2, 3]]).all()


def test_when_the_host_sees_a_late_scale():
    """What docs/experts.md says of an expert whose first rows come late: rows and gradients are read twice until the next look."""
    layer = Layer()
    with_rows = torch.tensor([9, 12, 24, 37], dtype=torch.int32)
    for call in range(1, 17):
        step(layer, normal(ROWS, K), call=lambda x: layer(x, with_rows if call >= 5 else ENDS))
        sync_amax_history(layer)
        assert bool((layer.scales.fp8_scale != 1).all()) == (call >= 5)
        assert masks_of(layer.scales._starts) == ((0b101,) if call < 16 else (0,))  # of input and grad_output, not the weight
        assert layer.scales.scales_started == (call == 16)
    later = range(1, 20000)
    assert [call for call in later if is_time_to_look(call)] == [1, 2, 3, 16, 64, 256, 1024, 4096, 16384]


def test_no_tokens():
    module = Mlp()
    got = step(module, normal(0, K))
    assert got[0].shape == (0, K) and not got[2].any() and not got[3].any()
    sync_amax_history(module)
    assert (module.scales.fp8_scale[:, ::2] == 1).all() and (module.scales.fp8_scale[:, 1] != 1).all()
    step(module, normal(24, K))
    sync_amax_history(module)
    kept = module.scales.fp8_scale.clone()
    step(module, normal(0, K))
    sync_amax_history(module)
    assert torch.equal(module.scales.fp8_scale, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mlp_steps(dtype):
    """The first step, and others of the same data, have the same bits; float64 is near."""
    module, x = Mlp(dtype), normal(24, K, seed=3).to(dtype)
    first = step(module, x)
    exact = copy.deepcopy(module).double()
    expected = step(exact, x.double(), call=lambda x: formula(exact, x))
    assert all(sqnr(want, got) > 15 for want, got in zip(expected, first, strict=True))
    for _ in range(2):
        sync_amax_history(module)
        assert equal(step(module, x), first)
    used = torch.arange(EXPERTS) < EXPERTS - 1
    assert ((module.scales.fp8_scale != 1) == (used | torch.tensor([False, True, False])[:, None])).all()


def formula(module, x):
    index = (torch.arange(x.shape[0])[:, None] + torch.arange(2)) % (EXPERTS - 1)
    total = 0
    for weight, expert in zip((0.75, 0.5), index.unbind(1)):
        gate, up = torch.einsum("tk,tnk->tn", x, module.gate_up[expert]).chunk(2, -1)
        total = total + weight * torch.einsum("tn,tkn->tk", torch.nn.functional.silu(gate) * up, module.down[expert])
    return total


@pytest.mark.parametrize("keep", [True, False])
def test_weights_that_are_cast_again_have_the_scale_of_their_forward(keep):
    """A backward after the next step's scales are made, as some pipelines have it."""
    layer = Layer()
    options = LinearOptions("delayed", name="moe", keep_weight_codes=keep)
    call = lambda x: grouped_linear(x, layer.weight, ends=ENDS, options=options, delayed=layer.scales(x))
    step(layer, normal(ROWS, K), call=call)
    sync_amax_history(layer)
    expected = step(copy.deepcopy(layer), normal(ROWS, K, seed=5))
    x = normal(ROWS, K, seed=5).requires_grad_()
    y = call(x)
    layer.scales.fp8_scale[:, 1] *= 3
    layer.zero_grad()
    y.backward(normal(ROWS, N, seed=9))
    assert torch.equal(x.grad[: ENDS[-1]], expected[1][: ENDS[-1]])


def test_maxima_are_those_of_all_micro_batches():
    layer, x = Layer(), normal(ROWS, K)
    step(layer, 2 * x)
    step(layer, x)
    assert layer.scales.fp8_amax[0, 0, 0] == 2 * x[rows_of(0)].abs().max()
    with torch.no_grad():
        layer(100 * x)
    with torch.inference_mode():
        layer(100 * x)
    assert layer.scales.fp8_amax[0, 0, 0] == 2 * x[rows_of(0)].abs().max()  # without gradients nothing is noted


def test_main_grad():
    layer, x = Layer(), normal(ROWS, K)
    expected = step(copy.deepcopy(layer), x)[2]
    layer.weight.main_grad = torch.ones_like(layer.weight)
    layer(x.requires_grad_()).backward(normal(ROWS, N, seed=9))
    assert layer.weight.grad is None and torch.allclose(layer.weight.main_grad, 1 + expected)
    assert layer.scales.fp8_amax[0, 2].any()


def test_an_overflow_counts_as_0():
    layer, x = Layer(), normal(ROWS, K)
    step(layer, x)
    sync_amax_history(layer)
    kept = layer.scales.fp8_scale.clone()
    x[0] = float("inf")
    y = step(layer, x)[0]
    assert y[0].isnan().all() and y[rows_of(2)].isfinite().all()  # it shows, and reaches no other expert
    sync_amax_history(layer)
    assert layer.scales.fp8_scale.isfinite().all() and layer.scales.fp8_scale[0, 0, 0] == kept[0, 0, 0]


def trained():
    module = Mlp()
    for at in range(3):
        step(module, normal(24, K, seed=at, size=1 + at))
        sync_amax_history(module)
    return module


def test_checkpoints():
    module = trained()
    after = copy.deepcopy(module)
    expected = step(after, normal(24, K, seed=7))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    assert {"scales.fp8_amax", "scales.fp8_amax_history", "scales.fp8_scale"} < set(state)
    with torch.device("meta"):
        on_meta = Mlp()
    on_meta.load_state_dict(state, assign=True)
    for loaded in (Mlp(), on_meta, pickle.loads(pickle.dumps(module))):
        loaded.load_state_dict(state)
        assert equal(step(loaded, normal(24, K, seed=7)), expected)
        assert equal(loaded.scales.buffers(), after.scales.buffers())
    without = {name: value for name, value in state.items() if "fp8_" not in name}
    module.load_state_dict(without)  # strictly: they start anew
    assert (module.scales.fp8_scale == 1).all() and not module.scales.fp8_amax_history.any()
    assert equal(step(module, normal(24, K)), step(with_weights(without), normal(24, K)))
    with torch.device("meta"):
        on_meta = Mlp()
    on_meta.load_state_dict(without, assign=True)  # parameters alone
    assert equal(step(on_meta, normal(24, K)), step(with_weights(without), normal(24, K)))


def test_scales_of_weights():
    module = trained()
    found = module.scales.scales_of_weights()
    assert [each.shape for each in found] == [(EXPERTS,)] * 2
    for scales, weight in zip(found, (module.gate_up, module.down), strict=True):
        assert torch.equal(scales, torch.stack([scale_of(each.abs().max(), FORMATS[1]) for each in weight.detach()]))
    found[1].zero_()
    assert not module.scales.fp8_scale[1, 1].any()  # views


def test_loads_of_other_parts_leave_scales():
    """A checkpoint of the layer's weights starts them anew, one of something else does not."""
    inner = trained()
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "moe": inner, "last": torch.nn.Linear(2, 2)})
    kept = {name: each.clone() for name, each in inner.scales.named_buffers()}
    is_kept = lambda: all(torch.equal(each, kept[name]) for name, each in inner.scales.named_buffers())
    state = {name: each.clone() for name, each in model.state_dict().items()}
    of_head = {name: each for name, each in state.items() if name.startswith("head.")}
    other = model.load_state_dict(of_head, strict=False)
    assert is_kept() and inner.scales.scales_started is False  # the last expert has none
    assert "moe.gate_up" in other.missing_keys and not any("fp8_" in each for each in other.missing_keys)
    for strange in ({}, {"elsewhere.gate_up": state["moe.gate_up"]}, {"moe.gate_up": state["moe.gate_up"]}):
        model.load_state_dict(strange, strict=False)
        assert is_kept()
    inner.scales.load_state_dict({})
    assert is_kept()
    of_moe = {name: each for name, each in state.items() if name.startswith("moe.") and "fp8_" not in name}
    model.load_state_dict(of_moe, strict=False)
    assert (inner.scales.fp8_scale == 1).all() and not inner.scales.fp8_amax_history.any()
    model.load_state_dict({name: each for name, each in state.items() if "moe." in name}, strict=False)
    assert is_kept()


def started_anew(module):
    return bool((module.scales.fp8_scale == 1).all()) and not module.scales.fp8_amax_history.any()


def copied(module, kind):
    return copy.deepcopy(module) if kind == "copy" else pickle.loads(pickle.dumps(module)) if kind == "pickle" else module


@pytest.mark.parametrize("order, kind", [(("gate_up", "down"), "copy"), (("down", "gate_up"), "same"), (("down", "gate_up"), "pickle")])
def test_checkpoints_of_two_files(order, kind):
    """Each loaded by itself: the last of the layer's weights starts the scales anew, and what loads after it does nothing more."""
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "moe": trained()})
    torch._dynamo.reset()
    for _ in range(2):  # a second checkpoint, too
        for at, name in enumerate(order):
            model.load_state_dict({f"moe.{name}": getattr(model["moe"], name) * 100}, strict=False)
            assert started_anew(model["moe"]) == (at == 1)
            model.load_state_dict({"head.bias": torch.zeros(2)}, strict=False)
            model = copied(model, kind)
        expected = step(with_weights(model["moe"].state_dict()), normal(24, K))
        compiled = torch.compile(model["moe"], backend="eager", fullgraph=True)
        assert equal(step(model["moe"], normal(24, K), call=compiled), expected)
        sync_amax_history(model)
        model.load_state_dict({"head.bias": torch.zeros(2)}, strict=False)
        model.load_state_dict({f"moe.{order[1]}": getattr(model["moe"], order[1]).detach()}, strict=False)  # of another checkpoint
        assert not started_anew(model["moe"])
        sync_amax_history(model)


ALL, APART = [("gate_up", "down")], [("down",), ("gate_up",)]


@pytest.mark.parametrize("files, compiled", [(ALL, False), (ALL, True), (APART, False)])
def test_a_checkpoint_after_a_step_without_sync(files, compiled):
    """The maxima of the former checkpoint's weights go. Of a compiled step the host knows nothing, but this one is whole."""
    torch._dynamo.reset()
    model = torch.nn.ModuleDict({"moe": Mlp()})
    weights = {name: getattr(model["moe"], name).detach().clone() for name in ("gate_up", "down")}
    run = torch.compile(model["moe"], backend="eager", fullgraph=True) if compiled else model["moe"]
    for size in (100, 1):
        for names in files:
            assert size == 100 or model["moe"].scales.fp8_amax.any()
            model.load_state_dict({f"moe.{name}": weights[name] * size for name in names}, strict=False)
        step(model["moe"], normal(24, K), call=run)
    assert model["moe"].scales.fp8_amax[:, 1].max() < 10  # of weights, which were 100 times as large


# In some order, and whether each of the scales' buffers has a file to itself.
FILES = [((0, 1, 2), False), ((2, 0, 1), False), ((0, 2, 1), False), ((2, 1, 0), False)]
FILES += [((0, 1, 2, 3, 4), True), ((4, 3, 2, 1, 0), True), ((2, 4, 0, 1, 3), True), ((3, 0, 2, 1, 4), True)]


@pytest.mark.parametrize("order, apart", FILES)
def test_checkpoints_of_files_with_scales(order, apart):
    """Scales stay, whichever file has them. A checkpoint after it starts them anew."""
    model = torch.nn.ModuleDict({"moe": trained()})
    state = copy.deepcopy(model.state_dict())
    scales = [name for name in state if "fp8_" in name]
    files = [["moe.gate_up"], ["moe.down"], *([name] for name in scales)] if apart else [["moe.gate_up"], ["moe.down"], scales]
    step(model["moe"], normal(24, K, size=50))
    sync_amax_history(model)
    for _ in range(2):  # a second checkpoint, too
        for at in order:
            model.load_state_dict({name: state[name] for name in files[at]}, strict=False)
        after = model.state_dict()
        assert all(torch.equal(after[name], value) for name, value in state.items())
        assert list(masks_of(model["moe"].scales._starts)) == model["moe"].scales._missing([state["moe.scales.fp8_scale"].view(-1).tolist()])
    model.load_state_dict({name: value for name, value in state.items() if name not in scales})
    assert started_anew(model["moe"])


@pytest.mark.parametrize("with_history", [True, False])
def test_a_checkpoint_after_one_with_some_of_the_scales(with_history):
    """As of an older version, which ends with its weights in one file."""
    model = torch.nn.ModuleDict({"moe": trained()})
    state = copy.deepcopy(model.state_dict())
    weights = {name: value for name, value in state.items() if "fp8_" not in name}
    kept = "fp8_amax_history" if with_history else "fp8_scale"
    model.load_state_dict({name: value for name, value in state.items() if "fp8_" not in name or kept in name}, strict=False)
    assert torch.equal(model.state_dict()[f"moe.scales.{kept}"], state[f"moe.scales.{kept}"])
    model.load_state_dict(weights)
    assert started_anew(model["moe"])


def test_checkpoints_without_an_adapter():
    """It is a module of its own, and no weight of the experts."""
    module = trained()
    module._modules = {"adapter": torch.nn.Linear(2, 2), **module._modules}  # loads before the scales
    weights = {name: getattr(module, name).detach() * 100 for name in ("gate_up", "down")}
    for state, starts in (({}, False), ({"adapter.bias": torch.zeros(2)}, False), (weights, True)):
        assert set(module.load_state_dict(state, strict=False).missing_keys) == {"gate_up", "down", "adapter.weight", "adapter.bias"} - set(state)
        assert started_anew(module) == starts


class Apart(torch.nn.Module):
    """Its experts' weights, a router and an adapter are modules in it, and it has no tensors itself."""

    def __init__(self, scales_first=False):
        super().__init__()
        self.router, self.experts = torch.nn.Linear(2, 2, bias=False), Mlp()
        del self.experts.scales
        self.scales, self.adapter = ExpertScales(EXPERTS, 2, name="moe"), torch.nn.Linear(2, 2, bias=False)
        if scales_first:
            self._modules = {"scales": self.scales, **self._modules}

    def forward(self, x):
        vars(self.experts)["scales"] = self.scales
        return self.experts(x)


@pytest.mark.parametrize("synced, scales_first", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("load, kind", [("load_state_dict", "same"), ("load_state_dict", "copy"), ("load_state_dict", "pickle"), ("load_float8_checkpoint", "same")])
def test_checkpoints_of_weights_in_another_module(synced, scales_first, load, kind, tmp_path):
    """Also before a first sync_amax_history() has seen the model, as after a resumption, where the scales come after that module."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "moe": Apart(scales_first)})

    def load_into(names):
        tensors = {f"moe.{name}": state[f"moe.{name}"] for name in names} | {"head.bias": torch.zeros(2)}
        if load == "load_state_dict":
            model.load_state_dict(tensors, strict=False)
        else:
            save_file(tensors, tmp_path / "model.safetensors")
            load_float8_checkpoint(model, tmp_path / "model.safetensors", strict=False)

    if synced:
        model["moe"](normal(24, K)).sum().backward()
        sync_amax_history(model)
    else:
        model["moe"].scales.fp8_scale.fill_(2)
    model = copied(model, kind)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    for names in ((), ("router.weight",), ("adapter.weight",), ("experts.down",)):
        load_into(names)
        assert not started_anew(model["moe"])
    load_into(("experts.gate_up",))
    assert started_anew(model["moe"])  # the last of two files
    load_into([name.removeprefix("moe.") for name in state if "moe." in name])
    assert not started_anew(model["moe"])
    load_into(["router.weight"] * (not synced) + ["experts.gate_up", "experts.down"])
    assert started_anew(model["moe"])
    load_into([name.removeprefix("moe.") for name in state if "moe." in name])
    assert not started_anew(model["moe"])
    model["moe"].scales.load_state_dict({})  # by itself
    load_into(["scales.fp8_amax", "scales.fp8_amax_history", "scales.fp8_scale"])
    load_into(["experts.gate_up", "experts.down"])
    assert not started_anew(model["moe"])  # the scales' file came first


def test_weights_are_looked_for_once():
    """A walk over a large model takes long. Other scales are no weights, though they have as many rows as there are experts."""
    model = torch.nn.ModuleDict({"scales": torch.nn.ModuleList(ExpertScales(2, 2) for _ in range(2))})
    first = model["scales"][0]
    assert not first.weights_in(model["scales"])
    with mock.patch.object(ExpertScales, "weights_in", autospec=True, side_effect=ExpertScales.weights_in) as looks:
        for _ in range(3):
            sync_amax_history(model)
    assert looks.call_count == 2


def with_weights(state):
    module = Mlp()
    module.load_state_dict(state)
    return module


def test_buffers_stay_float32():
    module = trained().bfloat16()
    assert all(each.dtype == torch.float32 for each in module.scales.buffers())
    with torch.autocast("cpu", torch.bfloat16):
        assert module(normal(24, K)).dtype == torch.float32
    module.scales.reset_parameters()
    assert (module.scales.fp8_scale == 1).all()


def test_recomputation():
    """A forward that runs again has the same scales, and its maxima count once."""
    for module in (Mlp(), trained()):
        other, x = copy.deepcopy(module), normal(24, K, seed=5)
        expected = step(module, x)
        assert equal(step(other, x, call=lambda x: checkpoint(other, x, use_reentrant=False)), expected)
        assert equal(module.scales.buffers(), other.scales.buffers())
        for each in (module, other):
            sync_amax_history(each)
        assert equal(module.scales.buffers(), other.scales.buffers())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_whole_graph(backend):
    inputs = [normal(tokens, K, seed=tokens) for tokens in (24, 40, 56)]
    counts = graphs_of_delayed_steps(Mlp(), backend, inputs, lambda module, x, call: step(module, x, call=call))
    assert counts[2] == counts[1] <= 2


def test_opcheck():
    from ingot.torch import _grouped_layer as of_layer
    from ingot.torch._module_operators import starts_of

    layer, x = Layer(), normal(ROWS, K)
    rest = torch.float32, torch.float32, True, False, False, "", False
    plan, _ = of_layer._PLANS.plan("moe", "delayed", (EXPERTS, N, K), *rest)
    scales = lambda: {"scale": layer.scales.fp8_scale.clone(), "starts": starts_of((7,), x.device), "amax": torch.zeros(1, 3, EXPERTS)}
    operator = torch.ops.ingot.grouped_linear_forward.in_place
    operands = x, layer.weight.detach(), ENDS
    checks = {"test_utils": ("test_schema", "test_faketensor")}  # what lies between the parts of saved memory has no values
    torch.library.opcheck(operator, (*operands, plan, 3), scales(), **checks)
    _, saved, codes = operator(*operands, plan, 3, **scales())
    arguments = normal(ROWS, N), None, None, ENDS, saved, codes, plan, 3
    torch.library.opcheck(torch.ops.ingot.grouped_linear_backward.in_place, arguments, scales(), **checks)


def refusal(call):
    with pytest.raises(ingot.Error) as caught:
        call()
    return str(caught.value)


def test_messages():
    layer, mlp, x = Layer(), Mlp(), normal(ROWS, K)
    assert 'ExpertScales "moe" experts: is 0, expected a number' in refusal(lambda: ExpertScales(0, name="moe"))
    assert 'ExpertScales "moe" layers: is None' in refusal(lambda: ExpertScales(2, None, name="moe"))
    assert "history_length: is 0" in refusal(lambda: ExpertScales(2, history_length=0))
    assert "history_length: is True, expected a number of steps, 1 or more" in refusal(lambda: ExpertScales(2, history_length=True))
    assert "experts: is True" in refusal(lambda: ExpertScales(True)) and "layers: is True" in refusal(lambda: ExpertScales(2, True))
    weight, ends = layer.weight, ENDS
    assert 'grouped linear "moe" delayed: is missing, but the recipe is "delayed"' in refusal(
        lambda: grouped_linear(x, weight, ends=ends, options=OPTIONS)
    )
    rowwise = LinearOptions("rowwise", name="moe")
    assert 'grouped linear "moe" delayed: is given, but the recipe is rowwise' in refusal(
        lambda: grouped_linear(x, weight, ends=ends, options=rowwise, delayed=layer.scales(x))
    )
    assert 'experts "moe" delayed: is given, but the recipe is rowwise' in refusal(
        lambda: experts_mlp(x, torch.zeros(ROWS, 1, dtype=torch.int64), x[:, :1], mlp.gate_up, mlp.down, rowwise, delayed=mlp.scales(x))
    )
    others = DelayedScales(torch.ones(1, 3, EXPERTS + 1), torch.zeros(1, 3, EXPERTS + 1))
    assert "delayed scale: must be contiguous float32 of 12 elements on the layer's device" in refusal(
        lambda: grouped_linear(x, weight, ends=ends, options=OPTIONS, delayed=others)
    )
    assert "of each expert" in refusal(lambda: grouped_linear(x, weight, ends=ends, options=OPTIONS, delayed=others))
    assert "grouped_linear delayed: is given, but FP8 weights take none" in refusal(
        lambda: grouped_linear(x, weight.detach().to(torch.float8_e4m3fn), torch.ones(EXPERTS), ends, delayed=layer.scales(x))
    )
    assert 'recipe: is "delayed", whose scales have a state' in refusal(lambda: linear(x, weight[0], None, OPTIONS))
    assert "is not one of" in refusal(lambda: LinearOptions("later"))
    assert "on meta" in refusal(lambda: grouped_linear(x, weight, ends=ends, options=OPTIONS, delayed=ExpertScales(4, device="meta")(x.to("meta"))))


def test_export():
    mlp = Mlp().eval()
    with torch.no_grad(), pytest.raises(Exception, match="with which two grouped layers, as an exported program has them, would compute"):
        torch.export.export(mlp, (normal(24, K),))
    layer = Layer()
    step(layer, normal(ROWS, K))
    sync_amax_history(layer)
    layer.eval()
    with torch.no_grad():
        program = torch.export.export(layer, (normal(ROWS, K), ENDS)).module()
        x = normal(ROWS, K, seed=4)
        assert torch.equal(program(x, ENDS)[: ENDS[-1]], layer(x)[: ENDS[-1]])


def test_gathers_stay_in_high_precision(caplog):
    """FSDP2's FP8 gathers know one scale for a weight."""
    module = Mlp()
    with caplog.at_level("INFO", logger="ingot"):
        assert float8_all_gather(module, experts=lambda name, weight: "delayed" if weight.dim() == 3 else None) == ()
    assert "each of its experts has a delayed scale" in caplog.text


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_on_a_gpu():
    """What the CPU computes, in the first step and in the next; and a captured step."""
    on_cpu = Mlp(torch.bfloat16)
    on_gpu = copy.deepcopy(on_cpu).to(DEVICE)
    for at in range(3):
        x = normal(96, K, seed=at).bfloat16()
        for want, got in zip(step(on_cpu, x), step(on_gpu, x.to(DEVICE)), strict=True):
            assert sqnr(want.double(), got.cpu()) > 30, at
        for module in (on_cpu, on_gpu):
            sync_amax_history(module)
        for want, got in zip(on_cpu.scales.buffers(), on_gpu.scales.buffers(), strict=True):
            assert torch.allclose(want, got.cpu(), rtol=0.02), at  # of what sums in another order gave
        assert torch.equal(on_cpu.scales.fp8_scale[0, :2], on_gpu.scales.fp8_scale[0, :2].cpu())  # input and weight
    layer = Layer().to(DEVICE)
    ends, x = ENDS.to(DEVICE), normal(ROWS, K).to(DEVICE)
    expected = step(layer, x, call=lambda x: layer(x, ends))
    sync_amax_history(layer)
    graph, given = torch.cuda.CUDAGraph(), x.clone().requires_grad_()
    grad = normal(ROWS, N, seed=9).to(DEVICE)

    def train():
        layer.zero_grad()
        given.grad = None
        y = layer(given, ends)
        y.backward(grad)
        return y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        train()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        y = train()
    graph.replay()
    rows = slice(0, int(ENDS[-1]))
    assert torch.equal(y[rows], expected[0][rows]) and torch.equal(layer.weight.grad, expected[2])

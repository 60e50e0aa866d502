"""GroupedLinear and ExpertsMlp: against float32 by a product for each expert, and bit for bit against the functions. The situations
of all modules are in test_situations.py."""

import copy
import io
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")
from conftest import devices_of_grouped_gemm
from safetensors.torch import save_file
from torch.utils.checkpoint import checkpoint
from torch_module_cases import equal, sqnr

import ingot
from ingot.float8 import conversion_report
from ingot.nn import (
    ExpertScales, ExpertsMlp, Float8Linear, Float8WeightOnlyConfig, GroupedLinear, convert, load_float8_checkpoint, quantize_,
    save_float8_checkpoint, sync_amax_history
)
from ingot.torch import LinearError, LinearOptions, experts_mlp, grouped_linear
from ingot.torch._checks import RECIPES_OF_EXPERTS
from ingot.torch._layers import name_layers
from ingot.torch._prepare import recording_of, recording_of_call

EXPERTS, HIDDEN, INNER, TOKENS, CHOSEN = 4, 48, 64, 40, 2
ENDS = [9, 9, 24, 40]
KINDS = ("GroupedLinear", "ExpertsMlp")
OF_GPT_OSS = "(min(up, 7) + 1) * min(x, 7) * sigmoid(1.702 * x)"


def normal(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def made(kind, recipe="rowwise", bias=True, dtype=torch.float32, device="cpu", **options):
    torch.manual_seed(0)
    module = getattr(ingot.nn, kind)(EXPERTS, HIDDEN, INNER, bias, dtype=dtype, recipe=recipe, layer_name="moe", **options)
    return module.to(device)


def operands(kind, tokens=TOKENS, device="cpu", dtype=torch.float32, which=None):
    """The input, and what says which expert it is for; which: the only expert of all."""
    x = normal(tokens, HIDDEN, seed=1).to(device, dtype)
    if kind == "GroupedLinear":
        ends = [tokens * end // TOKENS for end in ENDS] if which is None else [0 if e < which else tokens for e in range(EXPERTS)]
        return x, torch.tensor(ends, dtype=torch.int32, device=device)
    index = (torch.arange(tokens)[:, None] + torch.arange(CHOSEN)) % (EXPERTS - 1)  # the last expert has no tokens
    index = index if which is None else torch.full_like(index, which)
    return x, index.to(device), normal(tokens, CHOSEN, seed=2).abs().to(device, dtype)


def step(module, given, call=None):
    """Output and all gradients."""
    module.zero_grad()
    given = [each.detach().clone().requires_grad_(each.is_floating_point()) for each in given]
    y = (module if call is None else call)(*given)
    y.backward(normal(*y.shape, seed=3).to(y))
    return [y.detach(), *(each.grad for each in (*given, *module.parameters()) if each.requires_grad)]


def by_function(module):
    """A call of the function with the module's parameters."""
    options = LinearOptions(module.options.recipe, "moe", fast_gradients=module.options.fast_gradients)
    delayed = lambda x: None if module.scales is None else module.scales(x)
    if isinstance(module, GroupedLinear):
        return lambda x, ends: grouped_linear(
            x, module.weight, ends=ends, options=options, bias=module.bias, activation=module.activation, delayed=delayed(x)
        )
    biases = {"gate_up_bias": module.gate_up_proj_bias, "down_bias": module.down_proj_bias}
    weights = module.gate_up_proj, module.down_proj, options, module.fast_math
    return lambda x, index, factors: experts_mlp(
        x, index, factors, *weights, **biases, activation=module.activation, delayed=delayed(x)
    )


def by_expert(module):
    """The same in high precision by torch.nn.functional.linear of each expert."""
    linear = torch.nn.functional.linear
    bias = lambda name, e: None if getattr(module, name) is None else getattr(module, name)[e]
    if isinstance(module, GroupedLinear):

        def grouped(x, ends):
            rows = torch.tensor_split(x, ends.tolist()[:-1])
            return torch.cat([linear(each, module.weight[e], bias("bias", e)) for e, each in enumerate(rows)])

        return grouped

    def mlp(x, index, factors):
        total = torch.zeros_like(x)
        for e in range(module.experts):
            gate, up = linear(x, module.gate_up_proj[e], bias("gate_up_proj_bias", e)).chunk(2, -1)
            y = linear(torch.nn.functional.silu(gate) * up, module.down_proj[e], bias("down_proj_bias", e))
            total = total + y * (factors * (index == e)).sum(1, keepdim=True)
        return total

    return mlp


def assert_close(found, exact, bound=18):
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.shape == theirs.shape and ours.isfinite().all()
        assert sqnr(theirs, ours) > bound if theirs.any() else not ours.any()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", RECIPES_OF_EXPERTS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_the_functions_bits(kind, recipe, bias, device):
    """In the first steps and later, for ragged experts, one that has all rows, and no tokens at all."""
    module = made(kind, recipe, bias, device=device)
    twin = copy.deepcopy(module)
    for given in (operands(kind, device=device), operands(kind, device=device, which=1), operands(kind, 0, device), operands(kind, device=device)):
        found = step(module, given)
        assert equal(found, step(twin, given, by_function(twin)))
        assert_close(found, step(module, given, by_expert(module)))
        for each in (module, twin):
            sync_amax_history(each)
    if recipe == "delayed":
        assert isinstance(module.scales, ExpertScales) and module.scales.fp8_scale.shape == (len(module._weights), 3, EXPERTS)
        assert equal(module.state_dict().values(), twin.state_dict().values())
        assert module.scales.fp8_amax_history.count_nonzero() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_options_reach_the_functions(kind):
    activation = {"GroupedLinear": "silu(x) * up", "ExpertsMlp": OF_GPT_OSS}[kind]
    fast = {"fast_math": True} if kind == "ExpertsMlp" else {}
    module = made(kind, "tensorwise", activation=activation, fast_gradients=True, **fast)
    given = operands(kind)
    if kind == "GroupedLinear":
        given = torch.cat((given[0], given[0].flip(0)), 1), *given[1:]
    found = step(module, given)
    assert equal(found, step(module, given, by_function(module)))
    module.activation = None if kind == "GroupedLinear" else "silu(x) * up"
    assert not torch.equal(found[0], module(given[0][:, :HIDDEN], *given[1:]))
    assert module.options.fast_gradients and "fast_gradients=True" in repr(module)
    module.keep_weight_codes(False)
    module.activation = activation
    assert module.options.keep_weight_codes is False and equal(found, step(module, given))


def test_printed():
    assert repr(GroupedLinear(2, 16, 32)) == "GroupedLinear(experts=2, in_features=16, out_features=32, bias=False, recipe=rowwise)"
    text = repr(ExpertsMlp(2, 16, 32, True, recipe="delayed", history_length=4, fast_math=True))
    assert text.split("\n")[1:3] == [
        "  experts=2, hidden=16, intermediate=32, bias=True, recipe=delayed, activation='silu(x) * up', fast_math=True",
        "  (scales): ExpertScales(experts=2, layers=2, history_length=4)",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_expert_begins_as_a_linear_layer(kind):
    module = made(kind, "delayed")
    step(module, operands(kind))
    sync_amax_history(module)
    module.reset_parameters()
    assert (module.scales.fp8_scale == 1).all() and not module.scales.fp8_amax_history.any()
    for name, each in module.named_parameters():
        weight = module.get_parameter({"bias": "weight"}.get(name, name.removesuffix("_bias")))
        bound = torch.nn.Linear(weight.shape[2], 4).in_features ** -0.5  # as that documents
        for expert in each.detach():
            assert 0.8 * bound < expert.abs().max() <= bound and abs(expert.std() * 3**0.5 / bound - 1) < 0.2, name
    assert all(not torch.equal(one, other) for one, other in zip(module.parameters(), made(kind, "delayed").parameters()))


def pickled(module):
    return pickle.loads(pickle.dumps(module))


def saved(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    new = made(type(module).__name__, module.options.recipe)
    new.reset_parameters()
    new.load_state_dict(torch.load(file))
    return new


def on_meta(module):
    with torch.device("meta"):
        new = made(type(module).__name__, module.options.recipe, device="meta")
    new.to_empty(device="cpu").load_state_dict(module.state_dict())
    return new


def assigned(module):
    new = made(type(module).__name__, module.options.recipe, device="meta")
    new.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)
    return new


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved, on_meta, assigned])
@pytest.mark.parametrize("recipe", ["rowwise", "delayed"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_on(kind, recipe, copied):
    """With the bits of the module, and apart from it."""
    module, given = made(kind, recipe), operands(kind)
    for _ in range(2):
        step(module, given)
        sync_amax_history(module)
    other = copied(module)
    assert list(other.state_dict()) == list(module.state_dict())
    for _ in range(2):
        assert equal(step(module, given), step(other, given))
        sync_amax_history(module), sync_amax_history(other)
    assert equal(module.state_dict().values(), other.state_dict().values())
    next(other.parameters()).data.zero_()
    assert next(module.parameters()).any()


@pytest.mark.parametrize("kind", KINDS)
def test_delayed_scales_start_anew_and_are_dropped(kind):
    """By a state without scales, as one of another recipe is; a module of that takes a state that has them."""
    delayed, plain, given = made(kind, "delayed"), made(kind), operands(kind)
    step(delayed, given)
    sync_amax_history(delayed)
    plain.load_state_dict(delayed.state_dict())
    assert plain.scales is None and equal(step(plain, given), step(made(kind), given))
    delayed.load_state_dict(plain.state_dict())
    assert (delayed.scales.fp8_scale == 1).all() and not delayed.scales.fp8_amax.any()
    with pytest.raises(RuntimeError, match='Unexpected key.*"scales.other"'):
        plain.load_state_dict({**delayed.state_dict(), "scales.other": torch.zeros(1)})


@pytest.mark.parametrize("recipe", ["rowwise", "delayed"])
@pytest.mark.parametrize("kind", KINDS)
def test_inference(kind, recipe):
    """Without gradients, in inference mode and of a module that was made in it, in both modes; nothing is noted."""
    module, given = made(kind, recipe), operands(kind)
    step(module, given)
    sync_amax_history(module)
    with torch.no_grad():
        expected = module(*given)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    with torch.inference_mode():
        assert torch.equal(module.eval()(*given), expected) and torch.equal(module.train()(*given), expected)
        inside = made(kind, recipe)
        inside.load_state_dict(module.state_dict())
        assert torch.equal(inside(*given), expected)
    assert equal(before.values(), module.state_dict().values())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recipe", RECIPES_OF_EXPERTS)
@pytest.mark.parametrize("kind", KINDS)
def test_first_step_under_checkpointing(kind, recipe, reentrant):
    module, given = made(kind, recipe), operands(kind)
    twin = copy.deepcopy(module)
    for _ in range(2):
        found = step(module, given, lambda *given: checkpoint(module, *given, use_reentrant=reentrant))
        assert equal(found, step(twin, given))
        sync_amax_history(module), sync_amax_history(twin)
    assert equal(module.state_dict().values(), twin.state_dict().values())


@pytest.mark.parametrize("recipe", RECIPES_OF_EXPERTS)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind, recipe):
    """Whole graphs, which equal layers share, with the bits of eager steps; another number of tokens too."""
    torch._dynamo.reset()
    module = made(kind, recipe)
    alike = [copy.deepcopy(module) for _ in range(2)]
    alike[1].layer_name = "another"
    graphs = []
    keep = lambda graph, _: graphs.append(graph) or graph.forward
    runs = [torch.compile(each, backend=keep, fullgraph=True, dynamic=False) for each in alike]
    for tokens in (TOKENS, TOKENS, 24):
        given = operands(kind, tokens)
        expected = step(module, given)
        for each, run in zip(alike, runs):
            assert equal(step(each, given, run), expected)
        for each in (module, *alike):
            sync_amax_history(each)
    assert len(graphs) == 2  # of each number of tokens
    for each in alike:
        assert equal(each.state_dict().values(), module.state_dict().values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_step_asks_for_the_kernels_of_an_eager_one(kind):
    """In their order."""
    torch._dynamo.reset()
    module, given = made(kind, dtype=torch.bfloat16, fast_gradients=True), operands(kind, dtype=torch.bfloat16)
    run = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
    eager, compiled = (recording_of_call(lambda: step(module, given, call), "h200") for call in (module, run))
    assert eager == compiled and eager.count("grouped_gemm") >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", RECIPES_OF_EXPERTS)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_by_inductor(kind, recipe):
    torch._dynamo.reset()
    module, given = made(kind, recipe), operands(kind)
    twin, run = copy.deepcopy(module), torch.compile(module, fullgraph=True)
    for _ in range(3):
        for ours, theirs in zip(step(module, given, run), step(twin, given), strict=True):
            assert sqnr(theirs, ours) > 40
        sync_amax_history(module), sync_amax_history(twin)


@pytest.mark.parametrize("recipe", ["blockwise", "delayed"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_threads(kind, recipe):
    module, given = made(kind, recipe), operands(kind)
    step(module, given)
    sync_amax_history(module)
    expected = module(*given).detach()
    found = []
    start = threading.Barrier(2)

    def work():
        start.wait(10)
        for _ in range(8):
            y = module(*given)
            y.sum().backward()
            found.append(torch.equal(y, expected))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert found == [True] * 16


@pytest.mark.parametrize("kind", KINDS)
def test_accumulated_gradients_and_main_grad(kind):
    module, given = made(kind), operands(kind)
    names = list(dict(module.named_parameters()))
    once = dict(zip(names, step(module, given)[-len(names) :]))
    once = {name: each.clone() for name, each in once.items()}
    module(*given).backward(normal(*module(*given).shape, seed=3))
    assert all(torch.equal(each.grad, 2 * once[name]) for name, each in module.named_parameters())
    module.zero_grad()
    weights = {name: each for name, each in module.named_parameters() if each.dim() == 3}
    for each in weights.values():
        each.main_grad, each.grad_added_to_main_grad = torch.ones(each.shape), False
    module(*given).backward(normal(*module(*given).shape, seed=3))
    for name, each in weights.items():
        assert each.grad_added_to_main_grad and sqnr(once[name], each.main_grad - 1) > 60


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_and_autocast(kind, dtype):
    module, given = made(kind, dtype=dtype), operands(kind, dtype=dtype)
    found = step(module, given)
    assert all(each.dtype == dtype for each in found)
    assert_close(found, step(copy.deepcopy(module).float(), [each.float() if each.is_floating_point() else each for each in given]), 16)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(*given)
    assert y.dtype == (dtype if kind == "ExpertsMlp" else torch.bfloat16) and sqnr(found[0], y.to(dtype)) > 15


@pytest.mark.parametrize("bias", [False, True])
def test_gate_and_up_as_two_tensors(bias):
    """They are copied once, into one parameter; `down` stays the parameter that it is."""
    module = made("ExpertsMlp", bias=bias)
    halves = [each.detach().clone() for each in module.gate_and_up()]
    gate, up, down = (torch.nn.Parameter(each.detach().clone()) for each in (*halves, module.down_proj))
    biases = None
    if bias:
        biases = *(each.clone() for each in module.gate_up_proj_bias.detach().chunk(2, 1)), module.down_proj_bias.detach().clone()
    new = ExpertsMlp.from_gate_and_up(gate, up, down, biases, recipe="rowwise", layer_name="moe")
    assert repr(new) == repr(module) and new.down_proj is down and new.gate_up_proj.requires_grad
    assert equal(new.state_dict().values(), module.state_dict().values())
    given = operands("ExpertsMlp")
    new.requires_grad_()
    assert equal(step(new, given), step(module, given))
    gate.data.zero_()
    assert new.gate_up_proj[:, :INNER].any()
    for half, expected in zip(new.gate_and_up(), halves):
        assert torch.equal(half, expected) and half._base is new.gate_up_proj
    frozen = ExpertsMlp.from_gate_and_up(gate.detach(), up.detach(), down.detach(), recipe="delayed")
    assert not any(each.requires_grad for each in frozen.parameters()) and frozen.scales.fp8_scale.shape == (2, 3, EXPERTS)


@pytest.mark.parametrize("arguments, message", [
    ({"gate": torch.zeros(4, 8)}, 'gate: has the shape (4, 8), expected (experts, intermediate, hidden)'),
    ({"up": torch.zeros(4, 8, 8)}, "up: has the shape (4, 8, 8) for gate (4, 8, 16), expected (4, 8, 16)"),
    ({"down": torch.zeros(4, 8, 16)}, "down: has the shape (4, 8, 16) for gate (4, 8, 16), expected (4, 16, 8)"),
    ({"up": torch.zeros(4, 8, 16).half()}, "up: is torch.float16 on cpu, but gate is torch.float32 on cpu: convert one with .to()"),
    ({"down": torch.zeros(4, 16, 8, device="meta")}, "down: is torch.float32 on meta, but gate is torch.float32 on cpu: convert one with .to()"),
    ({"gate": torch.zeros(4, 8, 16).char()}, "gate dtype: is torch.int8, expected float32, float16 or bfloat16, from which its GEMMs cast"),
    ({"gate": [1]}, "gate: is a list, expected a torch.Tensor: torch.as_tensor() makes one"),
    ({"biases": (torch.zeros(4, 8),)}, "biases: has 1, expected those of gate, up and down, or None"),
    ({"biases": (torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(4, 8))}, "bias of down: has the shape (4, 8), expected (4, 16), a row for each expert"),
])  # fmt: skip
def test_messages_of_from_gate_and_up(arguments, message):
    given = {"gate": torch.zeros(4, 8, 16), "up": torch.zeros(4, 8, 16), "down": torch.zeros(4, 16, 8), **arguments}
    with pytest.raises(LinearError) as raised:
        ExpertsMlp.from_gate_and_up(**given, layer_name="moe")
    assert str(raised.value) == f'experts "moe" from_gate_and_up: {message}'


@pytest.mark.parametrize("kind, subject", [*zip(KINDS, ("grouped linear", "experts"))])
def test_messages_of_the_constructors(kind, subject):
    module = getattr(ingot.nn, kind)
    for options, message in (
        ({"recipe": "rowwise_with_gw_hp"}, "recipe: 'rowwise_with_gw_hp' is not one of tensorwise, delayed, rowwise, blockwise, which grouped GEMMs take"),
        ({"recipe": "blockwise", "fast_gradients": True}, "fast_gradients: is set, but blockwise sums each 128 of a product separately, by their scales: leave it out"),
        ({"dtype": torch.float64}, "dtype: is torch.float64, expected float32, float16 or bfloat16, from which its GEMMs cast"),
        ({"recipe": "delayed", "history_length": 0}, "history_length: is 0, expected a number of steps, 1 or more"),
    ):  # fmt: skip
        with pytest.raises(LinearError) as raised:
            module(4, 16, 32, layer_name="moe", **options)
        where = 'ExpertScales "moe"' if "history_length" in options else f'{subject} "moe"'
        assert str(raised.value) == f"{where} {message}"
    for experts in (0, True, 2.0):
        with pytest.raises(LinearError) as raised:
            module(experts, 16, 32, layer_name="moe")
        assert str(raised.value) == f'{subject} "moe" experts: is {experts!r}, expected a number, 1 or more'


def test_messages_of_forward():
    """Those of the functions; the layer's name is its path once name_layers() has given it that."""
    model = torch.nn.ModuleDict({"up": GroupedLinear(EXPERTS, HIDDEN, INNER), "moe": ExpertsMlp(EXPERTS, HIDDEN, INNER, recipe="delayed")})
    assert name_layers(model) == ("up", "moe") and model["moe"].scales.layer_name == "moe"
    x, ends = operands("GroupedLinear")
    for call, message in (
        (lambda: model["up"](x, ends.long()), 'grouped linear "up" ends: must be int32: convert it with .to()'),
        (lambda: model["up"](x, ends[:2]), 'grouped linear "up" ends: has 2 elements, expected one for each of 4 experts'),
        (lambda: model["up"](x, None), "grouped_linear input: has the shape (40, 48): give ends, the row at which each expert's rows end"),
        (lambda: model["up"](x, ends.flip(0)), "grouped_gemm ends: say that expert 1 ends at row 24, but the one before ends at row 40"),
        (lambda: model["up"](x[:, :16], ends), f"grouped_linear weight: has the shape {(EXPERTS, INNER, HIDDEN)}, expected (experts, N, 16)"),
        (lambda: model["up"](x.view(2, 20, HIDDEN), ends), "grouped_linear input: has the shape (2, 20, 48): give counts"),
        (lambda: model["up"](x, ends.to("meta")), "grouped_linear ends: is on meta and the input on cpu: load its values first"),
        (lambda: model["moe"](*operands("ExpertsMlp")[::2], x), "experts_mlp top_k_index: is torch.float32, expected integers"),
        (lambda: model["moe"](x.long(), *operands("ExpertsMlp")[1:]), "experts_mlp hidden_states: is torch.int64, expected float32"),
        (lambda: model["moe"](None, *operands("ExpertsMlp")[1:]), "experts_mlp hidden_states: is a NoneType, expected a torch.Tensor"),
    ):
        with pytest.raises(LinearError) as raised:
            call()
        assert message in str(raised.value)


def small_model(recipe="rowwise"):
    torch.manual_seed(0)
    moe, rows = ExpertsMlp(EXPERTS, HIDDEN, INNER, recipe=recipe), GroupedLinear(EXPERTS, HIDDEN, INNER, True, recipe=recipe)
    return torch.nn.ModuleDict({"head": torch.nn.Linear(HIDDEN, 32, bias=False), "moe": moe, "rows": rows})


def test_conversions_leave_them_alone():
    """And reports name them, among no linear layers."""
    model = small_model()
    moe, rows = model["moe"], model["rows"]
    for report in (convert(model, head=True), quantize_(small_model(), Float8WeightOnlyConfig()), conversion_report(model)):
        lines = str(report).split("\n")
        assert {"1 of 1 linear layer is FP8", "1 of 1 linear layer was quantized"}.intersection(lines), lines
        assert "2 modules of experts are FP8: moe, rows" in lines and not any("high precision" in line for line in lines)
    assert model["moe"] is moe and model["rows"] is rows and moe.layer_name == "experts"
    quantized = small_model()
    quantize_(quantized, Float8WeightOnlyConfig())
    assert quantized["moe"].gate_up_proj.dtype == torch.float32


def test_prepare_leaves_them_out():
    recording, layers, left_out = recording_of(small_model(), 64, "h200")
    reason = "how many rows its experts have is the router's to say: a recording of a run has its kernels"
    assert layers == [] and left_out == [("moe", reason), ("rows", reason)] and recording.splitlines() == ["# Ingot recording"]


@pytest.mark.parametrize("scale", [None, "row"])
@pytest.mark.parametrize("recipe", ["rowwise", "delayed"])
def test_float8_checkpoints(tmp_path, recipe, scale):
    """Experts stay in high precision, and their scales are in the state alone."""
    model = small_model(recipe)
    convert(model, "rowwise", head=True)
    given = operands("ExpertsMlp")
    step(model["moe"], given)
    sync_amax_history(model)
    path = tmp_path / "model.safetensors"
    save_float8_checkpoint(model, path, scale=scale)
    other = small_model(recipe)
    for each in other.values():
        each.reset_parameters()
    report = load_float8_checkpoint(other, path)
    assert "moe" not in str(report.layers)
    for name in ("moe", "rows"):
        expected = {key: each for key, each in model[name].state_dict().items() if "fp8_" not in key}
        assert equal([other[name].state_dict()[key] for key in expected], expected.values())
    if recipe == "delayed":
        assert (other["moe"].scales.fp8_scale == 1).all()


def test_a_file_of_each_experts_layers_is_loaded(tmp_path):
    """As transformers writes them; gate and up become one parameter."""
    module = made("ExpertsMlp", bias=False)
    gate, up = (each.detach() for each in module.gate_and_up())
    tensors = {}
    for e in range(EXPERTS):
        for name, each in (("gate_proj", gate), ("up_proj", up), ("down_proj", module.down_proj.detach())):
            tensors[f"moe.{e}.{name}.weight"] = each[e].contiguous()
    torch.manual_seed(5)
    other = torch.nn.ModuleDict({"moe": ExpertsMlp(EXPERTS, HIDDEN, INNER)})
    save_file(tensors, tmp_path / "experts.safetensors")
    load_float8_checkpoint(other, tmp_path / "experts.safetensors")
    assert equal(other["moe"].state_dict().values(), module.state_dict().values())

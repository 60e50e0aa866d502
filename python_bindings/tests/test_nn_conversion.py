"""Conversion of layers of other modules and libraries: encoder layers, tied weights, hooks, what nothing can
replace, wrapped models, norms of other libraries, and the weights that the reports count."""

import copy
import gc
import pickle

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

import ingot
from ingot import float8
from ingot.nn import (
    Float8Linear,
    Float8WeightOnlyConfig,
    FrozenFloat8Config,
    FrozenFloat8Linear,
    GatedMlp,
    LayerNormLinear,
    Mlp,
    MXWeightOnlyConfig,
    RMSNormLinear,
    SharedInputLinears,
    WeightOnlyLinear,
    quantize_,
    shared_input,
)
from torch_module_cases import PYTORCH_2_7

CONFIGS = [Float8WeightOnlyConfig(), FrozenFloat8Config()]
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def plain(n=24, k=32, dtype=torch.bfloat16, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(k, n, dtype=dtype)


def close(actual, expected, bound):
    """No NaN passes."""
    actual, expected = actual.detach().double(), expected.detach().double()
    return bool((actual - expected).norm() <= bound * expected.norm())


@pytest.mark.parametrize("how", ["convert", "by hand"])
def test_encoder_layers_run_in_float8_in_every_mode(how):
    """The linear layers are called: what they give is changed by a hook, which a fast path would not run."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True), 2)
    model.bfloat16().eval()
    x = torch.randn(2, 5, 32).bfloat16()
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    with torch.no_grad():
        expected = model(x)
    if how == "convert":
        float8.convert_to_float8_training(model)
    else:
        for layer in model.layers:
            for name in ("linear1", "linear2"):
                setattr(layer, name, Float8Linear.from_float(getattr(layer, name), "tensorwise"))
    copies = (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    for each in copies:
        each = each.eval()
        with torch.enable_grad():
            trained = each(x)
        for mode in MODES:
            with mode():
                found = each(x)
                assert close(found, expected, 0.1) and close(found, trained, 0.02)
                assert not close(found, expected, 0.002), mode.__name__
                nested = how == "by hand" and mode is not torch.enable_grad and each.use_nested_tensor
                if nested:  # the encoder looks at its first layer alone
                    with pytest.raises(ingot.Error, match="a torch.nn.TransformerEncoder .* use_nested_tensor = False"):
                        each(x, src_key_padding_mask=mask)
                    each.use_nested_tensor = False
                assert close(each(x, src_key_padding_mask=mask)[0], found[0], 0.05)
    attention = nn.MultiheadAttention(32, 2)
    for kind in (Float8Linear, float8.Float8Linear, WeightOnlyLinear, FrozenFloat8Linear):
        with pytest.raises(ingot.Error, match="torch.nn.MultiheadAttention multiplies by its weight itself"):
            kind.from_float(attention.out_proj)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.up, self.again = plain(32, 32), plain(32, 32)
        self.head = nn.Linear(32, 16, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.again(self.up(self.embed(tokens))))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_tied_layers_stay(config):
    torch.manual_seed(0)
    model = Tied().bfloat16().eval()
    model.again.weight = model.up.weight
    report = quantize_(model, config)
    assert report.converted == () and model.head.weight is model.embed.weight
    assert report.left_alone == {
        "up": "shares its weight with again: give it a copy to quantize it",
        "again": "shares its weight with up: give it a copy to quantize it",
        "head": "shares its weight with embed: give it a copy to quantize it",
    }
    model.again.weight = nn.Parameter(model.up.weight.detach().clone())
    expected = model(torch.arange(8))
    assert quantize_(model, config).converted == ("up", "again")
    model.tie()
    assert close(model(torch.arange(8)), expected, 0.1)


CONVERSIONS = {
    "nn.Float8Linear": lambda layer: Float8Linear.from_float(layer),
    "nn.Float8Linear delayed": lambda layer: Float8Linear.from_float(layer, "delayed"),
    "float8.Float8Linear": lambda layer: float8.Float8Linear.from_float(layer),
    "convert": lambda layer: float8.convert_to_float8_training(nn.Sequential(layer))[0],
    "WeightOnlyLinear": lambda layer: WeightOnlyLinear.from_float(layer),
    "FrozenFloat8Linear": lambda layer: FrozenFloat8Linear.from_float(layer),
    "quantize_": lambda layer: quantize_by_name(layer),
}


def quantize_by_name(layer):
    model = nn.Sequential(layer)
    assert quantize_(model, Float8WeightOnlyConfig()).converted
    return model[0]


@pytest.mark.parametrize("name", CONVERSIONS)
def test_hooks_are_kept_and_alive(name):
    seen = []
    note = lambda what, result=None: lambda *_, **__: seen.append(what) or result
    layer = plain()
    layer.register_forward_pre_hook(note("pre"))
    layer.register_forward_pre_hook(note("pre with kwargs"), with_kwargs=True)
    layer.register_forward_hook(note("forward"), always_call=True)
    gone = layer.register_forward_hook(note("removed"))
    layer.register_full_backward_pre_hook(note("backward pre"))
    layer.register_full_backward_hook(note("backward"))
    layer.register_state_dict_pre_hook(note("state pre"))
    layer.register_state_dict_post_hook(note("state post"))
    layer.register_load_state_dict_pre_hook(lambda module, *_: seen.append(type(module)))
    layer.register_load_state_dict_post_hook(lambda module, _: seen.append(module))
    layer.note, layer.count = "of the layer", torch.zeros(1)
    layer.register_buffer("scratch", torch.ones(1), persistent=False)
    old = copy.copy(layer)
    new = CONVERSIONS[name](layer)
    del layer, old
    gc.collect()
    gone.remove()
    assert new.note == "of the layer" and new.scratch.item() == 1 and "scratch" not in new.state_dict()
    seen.clear()
    new.load_state_dict(new.state_dict())
    assert seen == ["state pre", "state post", type(new), new]
    seen.clear()
    new(torch.randn(2, 32, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert seen == ["pre", "pre with kwargs", "forward", "backward pre", "backward"]


def pruned(layer):
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def patched(layer):
    layer.forward = lambda x: x
    return layer


def compiled(layer):
    layer.compile(backend="eager")
    return layer


ODD = {
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(plain()), "its weight is no parameter"),
    "pruned": (lambda: pruned(plain()), "weight is no parameter"),
    "own forward": (lambda: OwnForward(32, 24, dtype=torch.bfloat16), "OwnForward has its own forward"),
    "patched": (lambda: patched(plain()), "has its own forward"),
    "compiled": (lambda: compiled(plain()), r"is compiled already: convert before compile\(\)"),
    "lazy": (lambda: nn.LazyLinear(4), "its weight has no shape yet: run the model once before"),
    "quantized": (lambda: FrozenFloat8Linear.from_float(plain()), "quantized already|its weight is no parameter"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("odd", ODD)
def test_layers_that_nothing_can_replace(odd):
    """Right, or refused: a pruned layer's hook goes on in those that train."""
    make, reason = ODD[odd]
    parts = {
        "LayerNormLinear": lambda layer: LayerNormLinear.from_parts(nn.LayerNorm(32), layer),
        "Mlp": lambda layer: Mlp.from_parts(plain(48, 32), layer),
        "SharedInputLinears": lambda layer: SharedInputLinears.from_parts({"q": plain(), "k": layer}),
    }
    for name, conversion in {**CONVERSIONS, **parts}.items():
        if name in ("convert", "quantize_"):
            continue  # these report it
        layer = make()
        if odd == "pruned" and name.endswith(("Float8Linear", "delayed")) and not name.startswith("Frozen"):
            x = torch.randn(8, 32, dtype=torch.bfloat16)
            assert close(conversion(layer)(x), F.linear(x, layer.weight_orig * layer.weight_mask, layer.bias), 0.06)
            continue
        with pytest.raises(ingot.Error, match=reason):
            conversion(layer)


def test_an_activation_is_kept_or_refused():
    layer = Float8Linear.from_float(plain(), "tensorwise", activation="silu")
    x = torch.randn(8, 32, dtype=torch.bfloat16)
    expected = F.silu(plain()(x))
    assert close(Float8Linear.from_float(layer, "rowwise")(x), expected, 0.06)
    model = nn.Sequential(layer)
    assert "its activation 'silu' would be lost" in quantize_(model, Float8WeightOnlyConfig()).left_alone["0"]
    assert close(float8.convert_to_float8_training(model)(x), expected, 0.06)
    for make in (
        lambda: Float8Linear.from_float(layer, activation="relu"),
        lambda: float8.Float8Linear.from_float(layer),
        lambda: WeightOnlyLinear.from_float(layer),
        lambda: FrozenFloat8Linear.from_float(layer),
        lambda: RMSNormLinear.from_parts(nn.RMSNorm(32), layer),
    ):
        with pytest.raises(ingot.Error, match="its activation 'silu' would be lost: make a torch.nn.Linear of its weight"):
            make()


def test_parts_with_hooks_are_refused():
    for register in ("register_forward_hook", "register_load_state_dict_pre_hook", "register_state_dict_post_hook"):
        layer = plain()
        getattr(layer, register)(lambda *_: None)
        with pytest.raises(ingot.Error, match="the Linear has hooks, which would not run any more: remove them"):
            RMSNormLinear.from_parts(nn.RMSNorm(32), layer)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.stacked = nn.Parameter(torch.zeros(4, 32, 8))
        self.table = nn.Parameter(torch.zeros(32, 2))
        self.scale = nn.Parameter(torch.ones(32))


class Conv1D(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(32, 8)), nn.Parameter(torch.zeros(8))


def everything():
    gate, up, down = plain(48, 32), plain(48, 32), plain(32, 48)
    return nn.ModuleDict(
        {
            "embed": nn.Embedding(16, 32),
            "linear": plain(),
            "trained": Float8Linear.from_float(plain(), "rowwise"),
            "exact": Float8Linear.from_float(plain(), "high_precision"),
            "mlp": GatedMlp.from_parts((gate, up), down, nn.RMSNorm(32), recipe="rowwise"),
            "norm": LayerNormLinear(32, 24, recipe="rowwise"),
            "qkv": SharedInputLinears(32, {"q": 32, "k": 16}, norm="rms", recipe="blockwise"),
            "attention": nn.MultiheadAttention(32, 2),
            "conv": nn.Conv1d(4, 8, 3),
            "gpt2": Conv1D(),
            "bilinear": nn.Bilinear(4, 5, 6),
            "experts": Experts(),
        }
    ).bfloat16()


OTHERS = {
    "embed.weight": (512, "is looked up, not multiplied"),
    "attention.in_proj_weight": (3072, "torch.nn.modules.activation.MultiheadAttention multiplies by it itself"),
    "conv.weight": (96, "is a convolution's"),
    "gpt2.weight": (256, "a Conv1D has its weight transposed"),
    "bilinear.weight": (120, "has 3 dimensions"),
    "experts.stacked": (1024, "has 3 dimensions"),
    "experts.table": (64, "Experts multiplies by it itself"),
}


def check_others(report):
    assert [each.name for each in report.others] == list(OTHERS)
    for each in report.others:
        count, reason = OTHERS[each.name]
        assert (each.parameters, each.bytes) == (count, 2 * count) and reason in each.reason
        assert f"  {each.name}: {count:,} parameters, {2 * count:,} bytes: {each.reason}" in str(report)
    assert "5,144 parameters (10,288 bytes) are in no linear layer and stay in high precision" in str(report)


def test_the_report_of_a_conversion_counts_every_weight():
    model = everything()
    report = float8.conversion_report(model, tokens=4096, gpu="h200")
    rows = {row.name: row for row in report.layers}
    fp8 = ("trained", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "norm", "qkv.q", "qkv.k")
    assert [name for name, row in rows.items() if row.is_float8] == list(fp8)
    assert all(rows[name].gain_note for name in fp8)
    assert (rows["mlp.down_proj"].in_features, rows["mlp.down_proj"].out_features) == (48, 32)
    assert rows["linear"].reason == "not converted" and rows["exact"].reason == "its recipe is high_precision"
    assert rows["attention.out_proj"].reason == "torch.nn.MultiheadAttention multiplies by its weight itself"
    assert str(report).endswith("7 of 10 linear layers are FP8")
    check_others(report)
    float8.convert_to_float8_training(model)
    assert type(model["trained"]) is Float8Linear and type(model["exact"]) is Float8Linear
    quantized = nn.Sequential(WeightOnlyLinear.from_float(plain()), FrozenFloat8Linear.from_float(plain()))
    rows = float8.conversion_report(quantized, tokens=4096, gpu="h200").layers
    assert rows[0].reason == "its weight is quantized to e4m3fn, and its activations are not"
    assert rows[1].is_float8 and rows[1].gain_note == "its weight is not trained"


def test_the_report_of_quantize_counts_every_weight():
    model = everything()
    report = quantize_(model, Float8WeightOnlyConfig())
    assert report.converted == (
        "linear", "trained", "exact", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "norm.linear", "qkv.q", "qkv.k",
    )  # fmt: skip
    assert list(report.left_alone) == ["attention.out_proj"]
    assert str(report).startswith("9 of 10 linear layers were quantized")
    check_others(report)


MODULES = {
    "layer norm": lambda **o: LayerNormLinear(32, 24, activation="gelu", **o),
    "rms norm": lambda **o: RMSNormLinear(32, 24, bias=False, zero_centred=True, **o),
    "mlp": lambda **o: Mlp(32, 48, norm="layer", activation="gelu_tanh", **o),
    "gated": lambda **o: GatedMlp(32, 48, norm="rms", zero_centred=True, **o),
    "of two": lambda **o: GatedMlp.from_parts((nn.Linear(32, 48, **of(o)), nn.Linear(32, 48, **of(o))), nn.Linear(48, 32, **of(o)), recipe=o["recipe"]),
    "shared": lambda **o: SharedInputLinears(32, {"a": 24, "b": 8}, norm="layer", **o),
}


def of(options):
    return {"dtype": options["dtype"]}


@pytest.mark.parametrize("kind", MODULES)
def test_modules_are_taken_apart(kind):
    """They compute the same, and their layers are quantized."""
    torch.manual_seed(0)
    model = nn.Sequential(MODULES[kind](dtype=torch.bfloat16, recipe="high_precision"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append("hook"))
    x = torch.randn(5, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = model(x)
        report = quantize_(model, Float8WeightOnlyConfig())
        found = model(x)
    assert not report.left_alone and report.converted and seen == ["hook"] * 2
    for one, other in zip(*((each,) if torch.is_tensor(each) else each for each in (found, expected))):
        assert one.dtype == torch.bfloat16 and close(one, other, 0.06)
    again = quantize_(model, Float8WeightOnlyConfig())
    assert not again.converted and set(again.left_alone.values()) == {"is quantized already"}


def test_modules_that_stay_whole():
    model = nn.ModuleDict({"mlp": Mlp(32, 48, activation="x * 2"), "gated": GatedMlp(32, 48)})
    report = quantize_(model, Float8WeightOnlyConfig(), lambda layer, name: "gated" not in name)
    assert not report.converted
    expression = "a Mlp of ingot.nn multiplies by it: its activation 'x * 2' is an expression of Ingot, which no other module computes"
    assert report.left_alone["mlp.up_proj"] == expression
    assert report.left_alone["gated.down_proj"] == "a GatedMlp of ingot.nn multiplies by it: filter_fn leaves it out"
    itself = quantize_(GatedMlp(32, 48), Float8WeightOnlyConfig())
    assert set(itself.left_alone.values()) == {
        "a GatedMlp of ingot.nn multiplies by it: it is the model itself, whose place nothing can take: put it into another module"
    }


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(32, 32), nn.ReLU()), nn.Linear(32, 16)).bfloat16()


REPLACE = {
    "convert": lambda model: float8.convert_to_float8_training(model),
    "quantize_": lambda model: quantize_(model, Float8WeightOnlyConfig()),
}


@pytest.mark.parametrize("how", ["whole", "in place", "block"])
@pytest.mark.parametrize("replace", REPLACE)
def test_models_that_ran_compiled(replace, how):
    if how == "in place" and PYTORCH_2_7:
        pytest.skip("PyTorch 2.7 makes a module's sizes symbolic when it compiles again")
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    expected = blocks()
    REPLACE[replace](expected)
    torch._dynamo.reset()
    model = blocks()
    if how == "in place":
        model.compile(backend="eager")
    elif how == "block":
        model[0] = torch.compile(model[0], backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = model(x)
        REPLACE[replace](model)
        assert torch.equal(model(x), expected(x)) and not torch.equal(before, expected(x))


def test_a_linear_layer_compiled_by_itself():
    for replace, word in zip(REPLACE.values(), ("convert", "quantize")):
        model = nn.Sequential(plain(), torch.compile(plain(), backend="eager"))
        with pytest.raises(ingot.Error, match=rf"1 is compiled already: {word} before torch.compile\(\)"):
            replace(model)
        with pytest.raises(ingot.Error, match="the model is compiled already"):
            replace(torch.compile(plain(), backend="eager"))


class OthersLinear(nn.Linear):
    """Of another library, and with an attribute that Ingot's layers have, too."""

    layer_name = "wq"

    def forward(self, x):
        return 2 * super().forward(x)


class OwnFloat8Linear(Float8Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_forward_of_its_own_is_not_lost():
    for kind in (OthersLinear, OwnFloat8Linear):
        layer, x = kind(32, 24), torch.randn(8, 32)
        for replace in (
            Float8Linear.from_float,
            WeightOnlyLinear.from_float,
            FrozenFloat8Linear.from_float,
            lambda each: Mlp.from_parts(each, nn.Linear(24, 32)),
            lambda each: SharedInputLinears.from_parts({"q": each, "k": nn.Linear(32, 24)}),
        ):
            with pytest.raises(ingot.Error, match=f"{kind.__name__} has its own forward"):
                replace(layer)
        model = nn.Sequential(layer)
        want, report = model(x), quantize_(model, FrozenFloat8Config())
        assert not report.converted and torch.equal(model(x), want)
    left_alone = quantize_(nn.Sequential(OthersLinear(32, 24)), FrozenFloat8Config()).left_alone
    assert "OthersLinear has its own forward" in left_alone["0"]
    patched = Float8Linear(32, 24)
    patched.forward = lambda x: x
    for each in (layer, patched):
        with pytest.raises(ingot.Error, match='"linear" has its own forward'):
            shared_input(x, Float8Linear(32, 24), each)
    block = nn.Sequential(Float8Linear(32, 24))
    block.layer_name = "block 3"
    with ingot.torch.monitor(nn.ModuleDict({"b": block})) as monitor:
        block(x)
    assert {record["layer"] for record in monitor.records()} == {"b.0"}


class LibraryRMSNorm(nn.Module):
    """As transformers has them: LlamaRMSNorm, or with `centred` GemmaRMSNorm."""

    def __init__(self, centred=False, power=2):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32) + 0.5)
        self.variance_epsilon, self.centred, self.power = 1e-5, centred, power

    def forward(self, x):
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.abs().pow(self.power).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight + 1 if self.centred else self.weight) * x32.to(x.dtype)


@pytest.mark.parametrize("centred", [False, True])
def test_norms_of_other_libraries(centred):
    norm = LibraryRMSNorm(centred)
    x = torch.randn(8, 32)
    layer = nn.Linear(32, 24)
    made = RMSNormLinear.from_parts(norm, layer, zero_centred=centred, recipe="high_precision")
    assert made.norm is norm and close(made(x), layer(norm(x)), 0.001)
    mlp = GatedMlp.from_parts(
        (layer, nn.Linear(32, 24)), nn.Linear(24, 32), norm, zero_centred=centred, recipe="rowwise"
    )
    assert mlp.options.norm.eps == 1e-5 and "norm.weight" in dict(mlp.named_parameters())
    with pytest.raises(ingot.Error, match=f"zero_centred: is {not centred}, but a LibraryRMSNorm multiplies by its weight"):
        RMSNormLinear.from_parts(norm, layer, zero_centred=not centred)
    with pytest.raises(ingot.Error, match="takes a torch.nn.LayerNorm, got a LibraryRMSNorm"):
        LayerNormLinear.from_parts(norm, layer, zero_centred=centred)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            RMSNormLinear.from_parts(norm, layer, zero_centred=centred)
    finally:
        torch.set_default_dtype(torch.float32)
    made.reset_parameters()
    assert (norm.weight == (0 if centred else 1)).all()


def test_norms_that_compute_something_else():
    with pytest.raises(ingot.Error, match="a LibraryRMSNorm computes something else than a torch.nn.LayerNorm and a"):
        RMSNormLinear.from_parts(LibraryRMSNorm(power=1), plain())
    assert RMSNormLinear.from_parts(LibraryRMSNorm().to("meta"), plain()).options.norm.kind == "rms"
    sharded = LibraryRMSNorm()
    sharded.weight.device_mesh = None
    with pytest.raises(ingot.Error, match="cannot try what a LibraryRMSNorm with a DTensor as weight computes"):
        RMSNormLinear.from_parts(sharded, plain())
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    for kind in (LlamaRMSNorm, T5LayerNorm, GemmaRMSNorm):
        norm = kind(32, eps=1e-5)
        layer, x = nn.Linear(32, 24), torch.randn(8, 32)
        made = RMSNormLinear.from_parts(norm, layer, zero_centred=kind is GemmaRMSNorm, recipe="high_precision")
        assert close(made(x), layer(norm(x)), 0.001)


DELAYED = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)


@pytest.mark.parametrize("config", [Float8WeightOnlyConfig(), MXWeightOnlyConfig(), FrozenFloat8Config()], ids=repr)
@pytest.mark.parametrize(
    "options", [{"cast_config_input": DELAYED}, {"enable_fsdp_float8_all_gather": True}], ids=["delayed", "gathered"]
)
def test_layers_trained_with_any_scales_are_quantized(config, options):
    plain = nn.Sequential(nn.Linear(64, 32))
    trained = copy.deepcopy(plain)
    float8.convert_to_float8_training(trained, config=float8.Float8LinearConfig(**options))
    assert quantize_(trained, config).converted == quantize_(plain, config).converted == ("0",)
    assert trained.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(trained[0].dequantize(), plain[0].dequantize())


def test_layers_on_meta_are_left_alone():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        float8.convert_to_float8_training(model, module_filter_fn=lambda layer, name: name == "0")
    reason = "its weight is on meta, without values"
    assert quantize_(model, Float8WeightOnlyConfig()).left_alone == {"0": reason, "1": reason}
    with pytest.raises(ingot.Error, match="config: is the class Float8WeightOnlyConfig, expected"):
        quantize_(model, Float8WeightOnlyConfig)

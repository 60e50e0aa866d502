"""convert_to_float8_training() and its kin: which layers of a model change, what they keep, and the report."""

import copy
import gc
import importlib.util
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn

import ingot
import ingot.float8 as float8
from ingot.float8 import Float8Linear, Float8LinearConfig, float8_linear_utils
from ingot.float8.float8_linear_utils import (
    _auto_filter_for_recipe,
    _auto_filter_for_rowwise,
    _auto_filter_for_tensorwise,
)
from ingot.nn import Float8WeightOnlyConfig, quantize_


class Mlp(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def test_in_place_and_filtered():
    model = nn.Sequential(Mlp(), nn.Linear(16, 16), Mlp())
    result = float8.convert_to_float8_training(
        model, module_filter_fn=lambda layer, name: name not in ("0.down", "2.up")
    )
    assert result is model
    kinds = {name: type(layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    assert [name for name, kind in kinds.items() if kind is nn.Linear] == ["0.down", "2.up"]
    assert all(kind in (nn.Linear, Float8Linear) for kind in kinds.values())
    assert model[1].layer_name == "1" and model[2].down.layer_name == "2.down"


def test_a_linear_layer_itself():
    layer = nn.Linear(3, 3)
    new = float8.convert_to_float8_training(layer)
    assert type(new) is Float8Linear and new.weight is layer.weight and new.bias is layer.bias
    assert float8.convert_to_float8_training(layer, module_filter_fn=lambda *_: False) is layer
    layer.child = nn.ReLU()
    with pytest.raises(AssertionError, match="Does not support a root nn.Linear with children") as caught:
        float8.convert_to_float8_training(layer)
    assert isinstance(caught.value, ingot.Error)


def test_everything_of_a_layer_is_kept():
    layer = nn.Linear(4, 4).eval()
    layer.weight.requires_grad_(False)
    layer.weight.main_grad = "of the weight"
    layer.note = "of the layer"
    layer.register_buffer("count", torch.zeros(1))
    calls = []
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    layer.register_forward_pre_hook(lambda *_: calls.append("pre"))
    layer.register_full_backward_hook(lambda *_: calls.append("backward"))
    model = float8.convert_to_float8_training(nn.Sequential(layer))
    new = model[0]
    assert isinstance(new, Float8Linear) and not new.training
    assert new.weight is layer.weight and new.weight.main_grad == "of the weight" and new.note == "of the layer"
    assert new.count is layer.count
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert calls == ["pre", "forward", "backward"]
    new.register_forward_hook(lambda *_: None)
    assert len(layer._forward_hooks) == 1


def test_twice_is_once():
    model = float8.convert_to_float8_training(nn.Sequential(nn.Linear(4, 4)))
    first = model[0]
    float8.convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise"))
    assert model[0] is first and first.config == Float8LinearConfig()


def test_shared_layers_and_weights():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": nn.Linear(4, 4), "block": nn.Sequential()})
    model["c"].weight = shared.weight
    model["again"] = model["b"]
    float8.convert_to_float8_training(model)
    assert model["a"] is model["b"][0] is model["again"][0]
    assert model["c"].weight is model["a"].weight


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class NoForward(nn.Linear):
    pass


def left_alone():
    patched = nn.Linear(4, 4)
    patched.forward = lambda x: x
    hooked = nn.utils.weight_norm(nn.Linear(4, 4), dim=0) if hasattr(nn.utils, "weight_norm") else None
    compiled = nn.Linear(4, 4)
    compiled.compile()
    integer = nn.Linear(4, 4)
    integer.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    return {
        "attention": (nn.MultiheadAttention(8, 2), "torch.nn.MultiheadAttention multiplies by its weight itself"),
        "own": (OwnForward(4, 4), "OwnForward has its own forward"),
        "patched": (patched, "torch.nn.modules.linear.Linear has its own forward"),
        "hooked": (hooked, "its weight is no parameter"),
        "parametrized": (
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            "its weight is no parameter",
        ),
        "compiled": (compiled, "is compiled already: convert before compile()"),
        "lazy": (nn.LazyLinear(4), "its weight has no shape yet"),
        "float64": (nn.Linear(4, 4, dtype=torch.float64), "its weight is float64"),
        "integer": (integer, "its weight is int8"),
        "float8": (Float8Linear(4, 4), "is FP8 already"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", left_alone())
def test_left_alone_with_the_reason(name):
    module, reason = left_alone()[name]
    before = list(module.modules())
    holder = nn.ModuleDict({name: module})
    float8.convert_to_float8_training(holder)
    assert list(module.modules()) == before
    report = float8.conversion_report(holder)
    if name == "float8":
        assert report.layers[0].is_float8
    else:
        (row,) = report.left_alone
        assert row.reason.startswith(reason) or reason in row.reason
        assert row.reason in str(report)


def test_a_subclass_without_a_forward_is_converted():
    assert type(float8.convert_to_float8_training(nn.Sequential(NoForward(4, 4)))[0]) is Float8Linear


def test_attention_still_works():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    expected = attention(x, x, x)[0]
    assert torch.equal(float8.convert_to_float8_training(attention)(x, x, x)[0], expected)


def test_tied_weights_are_not_gathered_in_float8():
    model = nn.ModuleDict({"embedding": nn.Embedding(32, 16), "head": nn.Linear(16, 32), "other": nn.Linear(16, 16)})
    model["head"].weight = model["embedding"].weight
    both = copy.deepcopy(model)
    float8.convert_to_float8_training(both)
    assert isinstance(both["head"], Float8Linear) and both["head"].weight is both["embedding"].weight
    float8.convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
    (row,) = float8.conversion_report(model).left_alone
    assert row.name == "head" and row.reason.startswith("shares its weight with embedding")
    assert isinstance(model["other"].weight, float8.WeightWithDynamicFloat8CastTensor)


def test_report():
    model = nn.Sequential(nn.Linear(4096, 4096, device="meta"), nn.ReLU(), nn.Linear(4096, 8, device="meta"))
    assert [row.reason for row in float8.conversion_report(model).layers] == ["not converted"] * 2
    float8.convert_to_float8_training(model, module_filter_fn=lambda layer, name: name == "0")
    report = float8.conversion_report(model)
    assert [row.name for row in report.converted] == ["0"] and [row.name for row in report.left_alone] == ["2"]
    lines = str(report).splitlines()
    assert lines[0].split() == ["layer", "in", "out", "FP8", "gain", "remark"]
    assert lines[1].split() == ["0", "4096", "4096", "yes"]
    assert lines[2].split() == ["2", "4096", "8", "no", "module_filter_fn", "leaves", "it", "out"]
    assert lines[3] == "1 of 2 linear layers is FP8"
    assert copy.deepcopy(model) is not None


@pytest.mark.skipif(not hasattr(ingot._core, "expected_gain"), reason="the module ingot._core is older")
def test_expected_gain():
    def gain_of(config, **options):
        model = float8.convert_to_float8_training(nn.Sequential(nn.Linear(4096, 4096, device="meta")), config=config)
        return float8.conversion_report(model, **options).layers[0]

    gains = [
        gain_of(Float8LinearConfig.from_recipe_name(name), tokens=8192, gpu="h200").gain
        for name in ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    ]
    assert 1.1 < gains[1] < gains[0] < 2.5 and gains[2] > 1
    delayed = float8.CastConfig(scaling_type=float8.ScalingType.DELAYED)
    config = Float8LinearConfig(cast_config_input=delayed, cast_config_weight=delayed, cast_config_grad_output=delayed)
    assert gain_of(config, tokens=8192, gpu="h200").gain > gains[0]
    mixed = Float8LinearConfig(cast_config_input=float8.CastConfig(target_dtype=torch.float8_e5m2))
    assert gain_of(mixed, tokens=8192, gpu="h200").gain_note == "no estimate for casts that are no recipe's"
    if not torch.cuda.is_available():
        row = gain_of(None, tokens=8192)
        assert row.gain is None and row.gain_note.startswith("there is no GPU here")
    with pytest.raises(ingot.Error, match="h300"):
        gain_of(None, tokens=8192, gpu="h300")
    with pytest.raises(ValueError, match="tokens: is 0, expected a number of rows from 1"):
        gain_of(None, tokens=0, gpu="h200")


def test_swap_with_a_function_of_ones_own():
    model = nn.Sequential(nn.Linear(4, 4), OwnForward(4, 4))
    float8.swap_linear_layers(model, lambda layer: nn.Identity(), module_filter_fn=lambda layer, name: name == "1")
    assert type(model[0]) is nn.Linear and type(model[1]) is nn.Identity


def test_swap_by_its_older_name():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8))
    float8.swap_linear_with_float8_linear(
        model, Float8Linear, emulate=True, skip_fqn_list=["0"], linear_layer_filter=lambda layer: layer.out_features > 8
    )
    assert [type(layer) for layer in model] == [nn.Linear, Float8Linear, nn.Linear]
    assert model[1].config.emulate
    assert float8.get_float8_layers(model) == [model[1]]


SIZES = {
    # (inputs, outputs): kept by tensorwise, by rowwise
    (8192, 2048): (True, False),
    (4096, 1024): (False, False),
    (4112, 1024): (True, False),
    (4096, 1040): (True, False),
    (4096, 2064): (True, True),
    (1024, 8192): (True, False),
    (1040, 4112): (True, True),
    (2048, 4096): (True, False),
    (2064, 4096): (True, True),
    (8192, 8200): (False, False),
}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_auto_filters(sizes):
    layer = nn.Linear(*sizes, device="meta")
    for recipe, function, keeps in zip(
        ("tensorwise", "rowwise"), (_auto_filter_for_tensorwise, _auto_filter_for_rowwise), SIZES[sizes]
    ):
        assert _auto_filter_for_recipe(recipe, [])(layer, "a.layer") is keeps
        assert function(layer, "a.layer", ["embed", "norm"]) is keeps
        assert function(layer, "model.embedding.layer", ["embed", "norm"]) is False
        assert function(nn.ReLU(), "a.layer", []) is False


@pytest.mark.parametrize(
    "function, what",
    [
        (float8.convert_to_float8_training, "convert_to_float8_training module"),
        (float8_linear_utils.swap_linear_with_float8_linear, "convert_to_float8_training module"),
        (float8.conversion_report, "conversion_report model"),
        (lambda model: float8_linear_utils.swap_linear_layers(model, nn.Identity), "swap_linear_layers module"),
    ],
)
def test_what_is_no_model(function, what):
    with pytest.raises(ingot.Error, match=f"^{what}: is a NoneType, expected a torch.nn.Module$"):
        function(None)


def test_filters_that_are_no_function():
    expected = "is a str, expected a function that says of a layer whether to convert it"
    for name in ("module_filter_fn", "linear_layer_filter"):
        with pytest.raises(ingot.Error, match=f"^swap_linear_with_float8_linear {name}: {expected}"):
            float8_linear_utils.swap_linear_with_float8_linear(Mlp(), **{name: "up"})
    with pytest.raises(ingot.Error, match=f"^convert_to_float8_training module_filter_fn: {expected}"):
        float8.convert_to_float8_training(Mlp(), module_filter_fn="up")


def test_auto_filters_refused():
    with pytest.raises(NotImplementedError, match="ROWWISE_WITH_GW_HP: there are limits of tensorwise"):
        _auto_filter_for_recipe("rowwise_with_gw_hp", [])
    with pytest.raises(ValueError, match="fast"):
        _auto_filter_for_recipe("fast", [])


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_lora_layers_keep_their_forward():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(Mlp(), LoraConfig(target_modules=["up"]))
    float8.convert_to_float8_training(model)
    assert model(torch.randn(2, 16)).shape == (2, 16)


def test_a_config_that_is_a_name():
    message = r"config: is a str, expected a Float8LinearConfig: Float8LinearConfig.from_recipe_name\('rowwise'\) makes one"
    with pytest.raises(TypeError, match="convert_to_float8_training " + message):
        float8.convert_to_float8_training(nn.Sequential(nn.Linear(16, 16)), config="rowwise")
    with pytest.raises(ingot.Error, match="Float8Linear.from_float " + message):
        Float8Linear.from_float(nn.Linear(16, 16), config="rowwise")


GATHERED = Float8LinearConfig(enable_fsdp_float8_all_gather=True)


def tied():
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize("holder", [None, weakref.ref], ids=["free", "held"])
def test_a_weight_to_gather_stays_the_same_parameter(holder):
    """That of tied layers, of an optimizer, and of hooks. Where a weak reference forbids it, all layers get the new one."""
    model, calls = tied(), []
    weight = model[0].weight
    weight.no_decay, weight.grad = True, torch.ones(16, 16)
    weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
    handle = weight.register_hook(lambda _: calls.append("gradient"))
    held = holder and holder(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    float8.convert_to_float8_training(model, config=GATHERED)
    assert isinstance(model[0].weight, float8.WeightWithDynamicFloat8CastTensor)
    assert model[2].weight is model[0].weight and model[0].weight.no_decay and model[0].weight.grad.sum() == 256
    assert held is not None or model[0].weight is weight
    before = model[0].weight.detach().clone()
    model(torch.randn(4, 16)).sum().backward()
    assert calls == ["gradient", "accumulated"]
    handle.remove()
    model(torch.randn(4, 16)).sum().backward()
    assert calls == ["gradient", "accumulated", "accumulated"]
    if held is None:
        optimizer.step()
        assert not torch.equal(model[0].weight.detach(), before)


def test_a_weight_to_gather_that_a_layer_left_alone_has_too():
    model = tied()
    float8.convert_to_float8_training(model, config=GATHERED, module_filter_fn=lambda layer, name: name != "2")
    report = float8.conversion_report(model)
    assert not report.converted and "shares its weight with 2, which" in report.layers[0].reason
    assert type(model[0].weight) is nn.Parameter


def test_an_assigned_weight_is_gathered_too():
    state = nn.Sequential(nn.Linear(16, 8)).state_dict()
    with torch.device("meta"):
        model = float8.convert_to_float8_training(nn.Sequential(nn.Linear(16, 8)), config=GATHERED)
    model.load_state_dict(state, assign=True)
    assert isinstance(model[0].weight, float8.WeightWithDynamicFloat8CastTensor)
    assert torch.equal(model[0].weight._tensor, state["0.weight"])


def test_scales_that_a_layer_keeps_are_not_ignored():
    """A Float8Linear has no buffers for them, and computed with dynamic scales."""
    config = Float8LinearConfig(cast_config_input=float8.CastConfig(scaling_type=float8.ScalingType.DELAYED))
    for make in (Float8Linear.from_float, lambda _, config: Float8Linear(16, 16, config=config)):
        with pytest.raises(ingot.Error, match="has delayed or static scales, which a StatefulFloat8Linear keeps"):
            make(nn.Linear(16, 16), config=config)
    assert float8.StatefulFloat8Linear.from_float(nn.Linear(16, 16), config).fp8_scale_input == 1


def test_old_layers_and_their_weights_go_at_once():
    """Not when Python collects garbage: fully_shard() frees the whole weights of a layer before it takes the next one's."""
    gc.collect()
    gc.disable()
    try:
        for convert in (float8.convert_to_float8_training, lambda model: quantize_(model, Float8WeightOnlyConfig())):
            model = nn.Sequential(nn.Sequential(nn.Linear(16, 16)), nn.Linear(16, 32))
            weights = [weakref.ref(layer) for layer in model.modules() if isinstance(layer, nn.Linear)]
            convert(model)
            assert [old() for old in weights] == [None, None]
            weights = [weakref.ref(parameter) for parameter in model.parameters()]
            del model
            assert not any(old() is not None for old in weights)
    finally:
        gc.enable()

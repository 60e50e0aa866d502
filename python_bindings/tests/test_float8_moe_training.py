"""ingot.float8.moe_training: torchao's names for training mixtures of experts, against float64."""

import copy
import importlib.util
import inspect
import time

import pytest

torch = pytest.importorskip("torch")
import ingot
import ingot.nn
from ingot.float8 import conversion_report
from ingot.float8.moe_training import (
    Float8TrainingOpConfig, Float8TrainingRecipe, _quantize_then_scaled_grouped_mm, _to_fp8_rowwise_then_scaled_grouped_mm,
    register_with_torchao,
)
from ingot.integrations.grouped_experts import convert_grouped_experts_
from ingot.torch import LinearError
from ingot.torch._prepare import recording_of_call
from test_grouped_experts import Block, Geglu, GroupedExperts, OfOneSize, sqnr
from torch import nn

ENDS, EXPERTS, N, K = [7, 7, 40, 41, 64], 5, 48, 80


class Experts(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, 32, 16))


def test_grouped_mm():
    """Any sizes of groups, with and without the wish for padding; both gradients."""
    torch.manual_seed(0)
    a, b, grad = torch.randn(64, K), torch.randn(EXPERTS, N, K) / K**0.5, torch.randn(64, N)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    exact_a, exact_b = a.double().requires_grad_(), b.double().requires_grad_()
    rows = torch.tensor_split(exact_a, ENDS[:-1])
    exact = torch.cat([each @ weight.T for each, weight in zip(rows, exact_b)])
    wanted = [exact.detach(), *torch.autograd.grad(exact, (exact_a, exact_b), grad.double())]
    for call in (
        lambda a, b_t: _to_fp8_rowwise_then_scaled_grouped_mm(a, b_t, offs),
        lambda a, b_t: _to_fp8_rowwise_then_scaled_grouped_mm(a, b_t, offs, torch.float32, pad_token_groups_for_grouped_mm=False),
        lambda a, b_t: _quantize_then_scaled_grouped_mm(a, b_t, Float8TrainingOpConfig(), offs),
    ):
        x, weight = a.clone().requires_grad_(), b.clone().requires_grad_()
        y = call(x, weight.transpose(-2, -1))
        found = [y.detach(), *torch.autograd.grad(y, (x, weight), grad.to(y.dtype))]
        assert all(sqnr(*each) > 24 for each in zip(wanted, found)), [*map(sqnr, wanted, found)]
        assert found[1].dtype == torch.float32 and y.dtype in (torch.bfloat16, torch.float32)


def test_sums_are_fast():
    """As torchao's are, in the GEMMs of both gradients too, which a module of a converted model asks for as well."""
    offs, x = torch.tensor([3, 8], dtype=torch.int32), torch.zeros(8, 64, requires_grad=True)
    weight, grad = torch.zeros(2, 48, 64, requires_grad=True), torch.zeros(8, 48)
    block = Block(GroupedExperts())
    ingot.nn.quantize_(block, Float8TrainingOpConfig())
    asked = {}
    for name, call in (
        ("function", lambda: _to_fp8_rowwise_then_scaled_grouped_mm(x, weight.transpose(1, 2), offs, torch.float32)),
        ("module", lambda: block.experts(x, torch.tensor([3, 0, 3, 1, 1]))),
    ):
        products = lambda: torch.autograd.grad(output := call(), (x, *block.parameters(), weight), torch.empty_like(output), allow_unused=True)
        lines = recording_of_call(products, "h200").splitlines()
        asked[name] = [line for line in lines if line.startswith("grouped_gemm")]
        assert any("along=k" in line for line in asked[name]) and all(" fast " in line for line in asked[name]), lines
        assert all("pow2" in line for line in lines if line.startswith("cast"))
    exact = Block(GroupedExperts())
    convert_grouped_experts_(exact)
    call = lambda: torch.autograd.grad(output := exact.experts(x, torch.tensor([3, 0, 3, 1, 1])), (x, *exact.parameters()), torch.empty_like(output))
    assert any("along=k" in line and " fast " not in line for line in recording_of_call(call, "h200").splitlines())


def test_quantize():
    """Experts and linear layers of what the filter takes, with all that is in it."""
    model = nn.ModuleDict({"one": Block(GroupedExperts()), "two": Block(GroupedExperts()), "head": nn.Linear(64, 32)})
    model["one"].shared = nn.Linear(64, 64)
    names = list(model.state_dict())
    report = ingot.nn.quantize_(model, Float8TrainingOpConfig(), filter_fn=lambda module, name: name == "one")
    assert report.experts == ("one.experts",) and [each.name for each in report.converted] == ["one.shared"]
    assert {each.name for each in report.left_alone} == {"head"} and sum("two" in each.name for each in report.others) == 3
    assert model["one"].experts.ingot_options.fast_gradients and list(model.state_dict()) == names
    again = ingot.nn.quantize_(model, Float8TrainingOpConfig(float8_linear_recipe="tensorwise"))
    assert again.experts == ("one.experts", "two.experts") and len(again.converted) == 2
    model["one"].experts(torch.randn(64, 64), torch.tensor([3, 0, 40, 1, 20])).sum().backward()
    assert model["one"].experts.w2.grad.norm() > 0


def test_quantize_of_transformers_experts():
    pytest.importorskip("transformers.integrations.moe")
    from test_experts import model_of

    model = model_of("Qwen3Moe")
    with pytest.raises(LinearError, match="^quantize_ filter_fn: takes model.layers.1.mlp.experts and leaves model.layers.0.mlp.experts out"):
        ingot.nn.quantize_(model, Float8TrainingOpConfig(), filter_fn=lambda module, name: name == "model.layers.1.mlp.experts")
    report = ingot.nn.quantize_(model, Float8TrainingOpConfig(), filter_fn=lambda module, name: name.endswith("mlp.experts"))
    assert report.experts == ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts") and report.converted == ()
    assert all(model.get_submodule(name).ingot_options.fast_gradients for name in report.experts)


def test_parameters_that_are_no_experts():
    """A position embedding has three dimensions, of which the first is 1, as those of a single expert have, which is known by its name."""
    block = Block(GroupedExperts())
    block.position = nn.Parameter(torch.zeros(1, 10, 16))
    assert ingot.nn.quantize_(block, Float8TrainingOpConfig(), filter_fn=lambda *_: True).experts == ("experts",)
    plain = nn.Module()
    plain.weight = nn.Parameter(torch.zeros(1, 32, 16))
    for single in (nn.ModuleDict({"shared_experts": plain}), Experts(1)):
        with pytest.raises(LinearError, match=r"^quantize_ \w*[eE]xperts: multiplies by its weight \(1, 32, 16\) itself, in a way that is not known"):
            ingot.nn.quantize_(single, Float8TrainingOpConfig(), filter_fn=lambda *_: True)


def test_experts_that_were_converted_before():
    """What does not run with small experts is taken by its own call first, as the message says."""
    block = Block(OfOneSize())
    with pytest.raises(LinearError, match=r"^quantize_ experts: its forward does not run .*call convert_grouped_experts_\(model, trusted=True\)$"):
        ingot.nn.quantize_(block, Float8TrainingOpConfig())
    convert_grouped_experts_(block, trusted=True)
    assert ingot.nn.quantize_(block, Float8TrainingOpConfig()).experts == ("experts",) and block.experts.ingot_options.fast_gradients


def test_many_modules():
    """20,000 take less than a second; comparing each with all would take a minute."""
    model = nn.ModuleDict({"left": nn.Linear(16, 16), "taken": nn.Sequential(*map(nn.Identity, range(20000)), nn.Linear(16, 16))})
    begin = time.monotonic()
    report = ingot.nn.quantize_(model, Float8TrainingOpConfig(), filter_fn=lambda module, name: name.startswith("taken."))
    assert time.monotonic() - begin < 5 and [each.name for each in report.converted] == ["taken.20000"]


def test_nothing_is_changed_by_what_is_refused():
    """Experts are checked before linear layers are converted."""
    pytest.importorskip("transformers.integrations.moe")
    from ingot.integrations.experts import quantize_experts_
    from test_experts import model_of

    quantized = model_of("Qwen3Moe")
    quantize_experts_(quantized)
    for model, message in (
        (model_of("Qwen3Moe", moe_intermediate_size=24), "has a hidden size of 64 and an intermediate size of 24, but FP8 grouped GEMMs need"),
        (quantized, "has FP8 weights, which do not train: load the model's own weights"),
    ):
        before = [type(each) for each in model.modules()], model.config._experts_implementation
        with pytest.raises(LinearError, match=f"^quantize_ model.layers.0.mlp.experts:? {message}"):
            ingot.nn.quantize_(model, Float8TrainingOpConfig())
        assert ([type(each) for each in model.modules()], model.config._experts_implementation) == before


def test_torchaos_quantize_of_transformers_experts():
    """It shows one module after the other: the experts of one layer would switch those of all."""
    pytest.importorskip("transformers.integrations.moe")
    quantize_ = pytest.importorskip("torchao.quantization").quantize_
    from test_experts import model_of

    register_with_torchao()
    model, config = model_of("Qwen3Moe"), Float8TrainingOpConfig()
    before = model.config._experts_implementation
    with pytest.raises(LinearError, match=r"^quantize_ Qwen3MoeExperts: runs by its config's implementation, .*: call ingot.nn.quantize_\(model, con"):
        quantize_(model, config, filter_fn=lambda module, name: name == "model.layers.0.mlp.experts")
    with pytest.raises(LinearError, match="^quantize_ mlp.experts: runs by its config's implementation"):
        ingot.nn.quantize_(model.model.layers[0], config)
    assert model.config._experts_implementation == before and conversion_report(model).experts == ()
    quantize_(model, config, filter_fn=lambda module, name: name == "model.layers.1.self_attn")
    assert [each.name for each in conversion_report(model).converted] == [f"model.layers.1.self_attn.{each}_proj" for each in "qkvo"]
    quantize_(model, config, filter_fn=lambda module, name: name == "")
    report = conversion_report(model)
    assert report.experts == ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts") and report.left_alone == ()
    assert model.model.layers[1].mlp.experts.ingot_options.name == report.experts[1]
    model.set_experts_implementation("grouped_mm")
    report = conversion_report(model)
    assert report.experts == () and sum("experts" in each.name for each in report.others) == 4


def test_signatures_are_torchaos():
    """Their text, since torchao's module takes long to import."""
    spec = importlib.util.find_spec("torchao")
    if spec is None:
        pytest.skip("torchao is not installed")
    folder = f"{spec.submodule_search_locations[0]}/prototype/moe_training"
    for function, file in ((_to_fp8_rowwise_then_scaled_grouped_mm, "fp8_grouped_mm"), (_quantize_then_scaled_grouped_mm, "utils")):
        with open(f"{folder}/{file}.py", encoding="utf-8") as source:
            arguments = source.read().split(f"def {function.__name__}(")[1].split(") ->")[0]
        theirs = [line.split(":")[0].strip() for line in arguments.split(",\n") if ":" in line]
        assert list(inspect.signature(function).parameters) == theirs


def test_configs():
    config = Float8TrainingOpConfig.from_recipe(Float8TrainingRecipe.FP8_ROWWISE)
    assert config == Float8TrainingOpConfig() and hash(config) == hash(copy.deepcopy(config))
    assert config != Float8TrainingOpConfig(pad_token_groups_for_grouped_mm=True)


def test_messages():
    offs, a, b = torch.tensor([3, 8], dtype=torch.int32), torch.zeros(8, 16), torch.zeros(2, 16, 32)
    quantize = lambda module, config=Float8TrainingOpConfig(): ingot.nn.quantize_(module, config, filter_fn=lambda *_: True)
    for act, message in (
        (lambda: Float8TrainingOpConfig(float8_dtype=torch.float8_e5m2), r"^Float8TrainingOpConfig float8_dtype: is torch.float8_e5m2, expected"),
        (lambda: Float8TrainingOpConfig(out_dtype=torch.float64), "out_dtype: is torch.float64, expected bfloat16, float32, float16 or None"),
        (lambda: Float8TrainingOpConfig(float8_linear_recipe="blocks"), "blocks"),
        (lambda: Float8TrainingOpConfig.from_recipe("fp8"), "recipe: is 'fp8', expected Float8TrainingRecipe.FP8_ROWWISE"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b, None), r"offs: is missing, expected int32 \(experts,\), the row at which"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(None, b, offs), "^_to_fp8_rowwise_then_scaled_grouped_mm A: is a NoneType, expected a torch"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, None, offs), "grouped_mm B_t: is a NoneType, expected a torch.Tensor"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b, [3, 8]), "grouped_mm offs: is a list, expected a torch.Tensor"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b, offs.long()), r"mm offs: is torch.int64 of the shape \(2,\), expected int32 \(2,\), the row "
         r"at which each expert's rows end: convert it with .to\(torch.int32\)"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b, offs[:1]), r"mm offs: is torch.int32 of the shape \(1,\), expected int32 \(2,\)"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b.to("meta"), offs), r"grouped_mm B_t: is on meta and A on cpu: move one with .to\(\)"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b.to(torch.float8_e4m3fn), offs), "grouped_mm B_t: is torch.float8_e4m3fn, expected bfl"),
        (lambda: _to_fp8_rowwise_then_scaled_grouped_mm(a, b[0], offs), r"A and B_t: have the shapes \(8, 16\) and \(16, 32\), expected \(M, K\)"),
        (lambda: _quantize_then_scaled_grouped_mm(a, b, "rowwise", offs), "config: is a str, expected a Float8TrainingOpConfig"),
        (lambda: _quantize_then_scaled_grouped_mm(a, b, Float8TrainingOpConfig(), offs, a), "bias: is given, but FP8 experts have none"),
        (lambda: quantize(None), "^quantize_ model: is a NoneType, expected a torch.nn.Module"),
        (lambda: ingot.nn.quantize_(None, Float8TrainingOpConfig(), device="cpu"), "^quantize_ model: is a NoneType, expected a torch.nn.Module"),
        (lambda: Float8TrainingOpConfig().convert_(None), "^quantize_ model: is a NoneType, expected a torch.nn.Module"),
        (lambda: ingot.nn.quantize_(Block(Experts()), Float8TrainingOpConfig(), filter_fn="x"), "^quantize_ filter_fn: is a str, expected a function"),
        (lambda: quantize(nn.Linear(16, 16)), "^quantize_ model: is itself a linear layer, which cannot be replaced in place"),
        (lambda: quantize(nn.ModuleDict({"moe": Experts()})), r"^quantize_ moe: multiplies by its weight \(4, 32, 16\) itself, in a way that is "
         r"not known, and would stay in high precision: call _to_fp8_rowwise_then_scaled_grouped_mm\(\)"),
        (lambda: quantize(Block(Geglu())), r"^quantize_ experts: does not compute w2\(silu\(w1\(x\)\) \* w3\(x\)\)"),
    ):  # fmt: skip
        with pytest.raises(ingot.Error, match=message):
            act()

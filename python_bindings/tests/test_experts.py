"""Stacked experts of transformers in FP8: tiny models of each form against the same models in high precision."""

import copy
import importlib
import io
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.integrations.moe")
import ingot.float8
import ingot.nn
import ingot.torch
import transformers
from conftest import devices_of_grouped_gemm, in_ci
from ingot.integrations import experts
from ingot.torch import LinearError
from gathered_models import said
from ingot.torch import _checked_index, _prepare
from ingot.torch._model_weights import float8_experts, is_stack, other_weights
from ingot.torch._prepare import recording_of, recording_of_call
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "num_experts_per_tok": 2,
}  # fmt: skip
# One with gate and up after each other, one with biases, weights (experts, K, N) and gate and up in turns, and others.
MODELS = {
    "Qwen3Moe": {"num_experts": 6, "moe_intermediate_size": 48, "intermediate_size": 96},
    "GptOss": {"num_local_experts": 6, "intermediate_size": 48, "layer_types": ["full_attention"] * 2, "sliding_window": 16},
    "Mixtral": {"num_local_experts": 6, "intermediate_size": 48},
    "Olmoe": {"num_experts": 6, "intermediate_size": 48},
}


def model_of(name, **others):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **MODELS[name], **others})
    made = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in made.parameters():  # experts that matter, and biases that are not 0
        if parameter.dim() == 3 or (parameter.dim() == 2 and parameter.shape[0] == 6):
            torch.nn.init.normal_(parameter, std=0.2)
    return made.eval()


@torch.no_grad()
@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("name", in_ci(lambda name: name in ("Qwen3Moe", "GptOss"), MODELS))
def test_models(name, device):
    plain = model_of(name).to(device)
    model = copy.deepcopy(plain)
    names = experts.quantize_experts_(model)
    assert len(names) == 2 and names[0].startswith("model.layers.0.mlp")
    assert all(module.gate_up_proj.dtype == torch.float8_e4m3fn for module in map(model.get_submodule, names))
    assert not any("_proj" in each and "experts" in each and "bias" not in each for each, _ in model.named_parameters())
    hidden, index = torch.randn(40, 64, device=device), torch.rand(40, 6, device=device).argsort(1)[:, :2]
    weights = torch.rand(40, 2, device=device)
    for at in names:
        ours, theirs = (each.get_submodule(at)(hidden, index, weights) for each in (model, plain))
        assert 0.005 < (ours - theirs).norm() / theirs.norm() < 0.08, at  # operands of two products with three bits each
    torch._dynamo.reset()  # it stops compiling one function for more than eight modules
    compiled = torch.compile(model.get_submodule(names[0]), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(hidden, index, weights), model.get_submodule(names[0])(hidden, index, weights))
    tokens = torch.arange(24, device=device).view(2, 12) * 3
    found = model(tokens).logits
    assert torch.equal(model(tokens).logits, found) and (found - plain(tokens).logits).norm() < 0.3 * found.norm()
    state = model.state_dict()
    assert experts.quantize_experts_(model) == names and torch.equal(model(tokens).logits, found)
    other = copy.deepcopy(plain)
    experts.quantize_experts_(other)
    other.load_state_dict({each: torch.zeros_like(value) for each, value in state.items()})
    other.load_state_dict(state)
    assert torch.equal(other(tokens).logits, found)
    length = model.generate(tokens[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0).shape[1]
    assert length == 7


@torch.no_grad()
def test_experts_of_other_ranks_and_none_at_all():
    """As transformers' own implementation."""
    module = model_of("Qwen3Moe").model.layers[0].mlp.experts
    experts.quantize_experts_(module)
    hidden = torch.randn(5, 64)
    weights = torch.rand(5, 2)
    index = torch.tensor([[0, 6], [6, 6], [3, 3], [5, 0], [1, 2]])
    found = module(hidden, index, weights)
    assert found.isfinite().all() and found[1].count_nonzero() == 0
    alone = module(hidden[:1], index[:1, :1], weights[:1, :1])
    torch.testing.assert_close(found[:1], alone)
    assert module(hidden[:0], index[:0], weights[:0]).shape == (0, 64)


@torch.no_grad()
@pytest.mark.parametrize("convert", [experts.quantize_experts_, experts.convert_experts_])
def test_the_checking_mode_knows_experts_of_other_ranks(convert, monkeypatch):
    """A module that has all experts of its config refuses a number of none; of one that has a part, these are other ranks'."""
    whole = model_of("Qwen3Moe").model.layers[0].mlp.experts
    part = copy.deepcopy(whole)
    for name in ("gate_up_proj", "down_proj"):
        setattr(part, name, torch.nn.Parameter(getattr(whole, name).detach()[:4].clone()))
    hidden, weights, index = torch.randn(2, 64), torch.rand(2, 2), torch.tensor([[0, 3], [6, 2]])
    for module in (whole, part):
        convert(module)
    found = part(hidden, index.clamp(max=4), weights)
    monkeypatch.setattr(_checked_index, "_of_process", lambda: True)
    assert torch.equal(part(hidden, index.clamp(max=4), weights), found)
    with pytest.raises(LinearError, match='^experts ".*" top_k_index: says that token 1 has expert 6, but there are 6 experts: give 0 to 5'):
        whole(hidden, index, weights)
    assert whole(hidden, index.clamp(max=5), weights).isfinite().all()


@pytest.mark.parametrize("name, count", [("Qwen3Moe", "num_experts"), ("GptOss", "num_local_experts")])
def test_a_single_expert(name, count, tmp_path):
    """Trains, is in the report, and its FP8 weights are saved and loaded."""
    plain, tokens = model_of(name, num_experts_per_tok=1, **{count: 1}), torch.arange(24).view(2, 12) * 3
    model = copy.deepcopy(plain)
    names = experts.convert_experts_(model, "delayed")
    for _ in range(2):
        model.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        ingot.nn.sync_amax_history(model)
    assert ingot.float8.conversion_report(model).experts == tuple(names)
    plain(input_ids=tokens, labels=tokens).loss.backward()
    for at in names:
        ours, theirs = ([each.grad for _, each in sorted(one.get_submodule(at).named_parameters())] for one in (model, plain))
        assert all(sqnr(wanted, found) > 12 for wanted, found in zip(theirs, ours, strict=True)), at
    assert all(model.get_submodule(at).ingot_scales.scales_started for at in names)
    experts.quantize_experts_(model)
    ingot.nn.save_float8_checkpoint(model, tmp_path)
    experts.quantize_experts_(plain)
    ingot.nn.load_float8_checkpoint(plain, tmp_path)
    with torch.no_grad():
        assert torch.equal(plain(tokens).logits, model(tokens).logits)


def test_messages():
    assert "ingot" in ALL_EXPERTS_FUNCTIONS
    with pytest.raises(LinearError, match=r"quantize_experts_: Linear has no stacked experts, .*quantize_\(\)'s of ingot.nn") as caught:
        experts.quantize_experts_(torch.nn.Linear(2, 2))
    assert isinstance(caught.value, ingot.Error)


def decoded(model):
    """In float64, with the values of the codes."""
    state = {each: value.double() for each, value in model.state_dict().items()}
    for each in [each for each in state if each.endswith("_scale_inv")]:
        at = each.removesuffix("_scale_inv")
        state[at] *= state.pop(each)[..., None]
        if "experts" in at and model.get_submodule(at.rpartition(".")[0]).is_transposed:
            state[at] = state[at].transpose(1, 2)
    exact = type(model)(copy.deepcopy(model.config)).double().eval()
    exact.set_experts_implementation("eager")
    exact.load_state_dict(state)
    return exact


def rank_of_two(modules, **others):
    peft = pytest.importorskip("peft")
    return peft, peft.LoraConfig(r=2, target_modules=modules, init_lora_weights=False, **others)


@pytest.mark.parametrize("name", in_ci(lambda name: name == "Qwen3Moe", MODELS))
def test_adapters_around_frozen_experts(name, tmp_path):
    """PEFT's, of attention: their gradients come through the experts of both layers; against float64 with the decoded weights. Every
    token has all experts, since a rounding may change its choice."""
    model, tokens = model_of(name, num_experts_per_tok=6), torch.arange(32).view(2, 16) * 3
    experts.quantize_experts_(model)
    exact = decoded(model)
    peft, config = rank_of_two(["q_proj", "v_proj"])
    adapted, reference = (peft.get_peft_model(each, config) for each in (model, exact))
    reference.load_state_dict({each: value for each, value in adapted.state_dict().items() if "lora" in each}, strict=False)
    found, wanted = (
        {each: value.grad for each, value in one.named_parameters() if value.requires_grad}
        for one in (adapted, reference)
        if one(input_ids=tokens, labels=tokens).loss.backward() is None
    )
    assert len(found) == 8 and found.keys() == wanted.keys()
    assert all(sqnr(wanted[each], found[each]) > 9 for each in wanted), [sqnr(wanted[each], found[each]) for each in wanted]
    optimizer = torch.optim.AdamW([each for each in adapted.parameters() if each.requires_grad], lr=2e-2)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append(adapted(input_ids=tokens, labels=tokens).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.05
    adapted.save_pretrained(tmp_path)  # adapters alone: the codes are not among them
    again = model_of(name, num_experts_per_tok=6)
    experts.quantize_experts_(again)
    again = peft.PeftModel.from_pretrained(again, tmp_path)
    with torch.no_grad():
        assert torch.equal(again(input_ids=tokens).logits, adapted.eval()(input_ids=tokens).logits)


def test_adapters_of_experts():
    """PEFT's target_parameters: experts in high precision train them, and codes have none."""
    tokens = torch.arange(32).view(2, 16) * 3
    peft, config = rank_of_two([], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    plain = peft.get_peft_model(model_of("Qwen3Moe", num_experts_per_tok=6), config)
    model = copy.deepcopy(plain)
    with pytest.raises(
        LinearError,
        match=r"^quantize_experts_ base_model.model.model.layers.0.mlp.experts: has PEFT's adapter on its down_proj "
        r"\(target_parameters\), which would be added to FP8 codes: train it with convert_experts_\(\), .* or merge_and_unload\(\)",
    ):
        experts.quantize_experts_(model)
    experts.convert_experts_(model)
    plain.set_experts_implementation("eager")
    found, wanted = (
        {each: value.grad for each, value in one.named_parameters() if value.requires_grad}
        for one in (model, plain)
        if one(input_ids=tokens, labels=tokens).loss.backward() is None
    )
    assert len(found) == 8 and all(sqnr(wanted[each], found[each]) > 15 for each in wanted)


@torch.no_grad()
def test_saving_as_transformers_does(tmp_path):
    """It would write codes that from_pretrained() takes for values. What else copies and saves a model works."""
    model, tokens = model_of("Qwen3Moe"), torch.arange(24).view(2, 12) * 3
    experts.quantize_experts_(model)
    expected = model(tokens).logits
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = copy.deepcopy(model), torch.load(buffer, weights_only=False)
    wants = r"read as their values: write ingot.nn.save_float8_checkpoint\(model, folder\), or torch.save\(model.state_dict\(\), file\)"
    for each in (model, model.model, *copies):
        with pytest.raises(LinearError, match=rf"^save_pretrained: .*{wants}; to read it, call quantize_experts_\(\) and then"):
            each.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(each(tokens).logits, expected) for each in copies)
    trained = model_of("Qwen3Moe")
    experts.convert_experts_(trained)
    trained.save_pretrained(tmp_path)
    found = type(trained).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(found[name], value) for name, value in trained.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
@pytest.mark.parametrize("with_layers", [False, True])
def test_checkpoints(tmp_path, name, with_layers):
    """Codes and scale_inv come back to the bit, of experts alone too."""
    model, tokens = model_of(name), torch.arange(24).view(2, 12) * 3
    names = experts.quantize_experts_(model)
    if with_layers:
        ingot.nn.quantize_(model, ingot.nn.FrozenFloat8Config(scale="row"))
    config = ingot.nn.save_float8_checkpoint(model, tmp_path)
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"] and ("lm_head" in config["ignore"]) != with_layers
    with torch.device("meta"):
        empty = type(model)(model.config)
    for loaded in (model_of(name), empty):
        with torch.no_grad():
            for parameter in loaded.parameters():
                parameter.zero_()
        experts.quantize_experts_(loaded)
        report = ingot.nn.load_float8_checkpoint(loaded, tmp_path, layers="frozen")
        assert report.experts == tuple(names) and bool(report.layers) == with_layers
        assert f"{len(names)} modules of experts have codes: {names[0]}" in str(report) and "no layer has" not in str(report)
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        for each, value in model.state_dict().items():
            assert state[each].dtype == value.dtype and torch.equal(state[each].view(torch.uint8), value.view(torch.uint8)), each
        if loaded is not empty:  # which lacks rotary frequencies
            assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    if name == "Qwen3Moe":
        plain = model_of(name)
        report = ingot.nn.load_float8_checkpoint(plain, tmp_path)
        assert len(report.stacked) == 2 * 3 * plain.config.num_experts and report.experts == ()
        at = f"{names[0]}.down_proj"
        codes, scale_inv = (model.get_buffer(at + suffix) for suffix in ("", "_scale_inv"))
        assert torch.equal(plain.get_parameter(at), codes.float() * scale_inv[..., None])


def test_checkpoints_messages(tmp_path):
    with pytest.raises(LinearError, match=r"quantize_\(\) it first, or quantize_experts_\(\) for stacks of experts"):
        ingot.nn.save_float8_checkpoint(model_of("Qwen3Moe"), tmp_path)
    model = model_of("Qwen3Moe")
    experts.quantize_experts_(model)
    ingot.nn.save_float8_checkpoint(model, tmp_path / "saved")
    spoiled = copy.deepcopy(model).bfloat16()
    wants = r'"model.layers.0.mlp.experts.gate_up_proj": is bfloat16, but quantize_experts_\(\) made FP8 codes of it: a conversion'
    with pytest.raises(LinearError, match=f"^save_float8_checkpoint {wants}"):
        ingot.nn.save_float8_checkpoint(spoiled, tmp_path)
    with pytest.raises(LinearError, match=f"^load_float8_checkpoint {wants}"):
        ingot.nn.load_float8_checkpoint(spoiled, tmp_path / "saved")
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("apart", [False, True], ids=["stacks", "layers of each expert"])
def test_quantized_experts_refuse_values(tmp_path, apart):
    save_file = pytest.importorskip("safetensors.torch").save_file
    plain = model_of("Qwen3Moe").bfloat16()
    if apart:
        plain.save_pretrained(tmp_path)
    else:
        save_file({name: value.contiguous() for name, value in plain.state_dict().items()}, tmp_path / "model.safetensors")
    model = model_of("Qwen3Moe").bfloat16()
    experts.quantize_experts_(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    name = "0.gate_proj.weight" if apart else "gate_up_proj"
    with pytest.raises(
        LinearError,
        match=rf'experts.{name}": is bfloat16, but the model has float8_e4m3fn, to which that is not converted: load first, then '
        r"quantize_experts_\(\)$",
    ):
        ingot.nn.load_float8_checkpoint(model, tmp_path)
    assert all(torch.equal(value.view(torch.uint8), before[name].view(torch.uint8)) for name, value in model.state_dict().items())


def sqnr(exact, found):
    return 20 * torch.log10(exact.norm() / (exact - found).norm()).item()


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "delayed", "blockwise"])
@pytest.mark.parametrize("name", in_ci(lambda name: name in ("Qwen3Moe", "GptOss"), MODELS))
def test_gradients(name, recipe, device):
    """Near those of high precision; the same bits again, and in a compiled graph."""
    plain = model_of(name).to(device).model.layers[0].mlp.experts
    module = copy.deepcopy(plain)
    assert len(experts.convert_experts_(module, recipe)) == 1
    torch.manual_seed(1)
    hidden, grad = torch.randn(2, 40, 64, device=device)
    index, weights = torch.rand(40, 6, device=device).argsort(1)[:, :2], torch.rand(40, 2, device=device)

    def step(call, of):
        of.zero_grad()
        x, w = hidden.clone().requires_grad_(), weights.clone().requires_grad_()
        y = call(x, index, w)
        y.backward(grad)
        return [y.detach(), x.grad, w.grad, *(each.grad.clone() for each in of.parameters())]

    exact, found = step(plain, plain), step(module, module)
    assert all(sqnr(*each) > (18 if recipe in ("tensorwise", "delayed") else 22) for each in zip(exact, found)), [*map(sqnr, exact, found)]
    torch._dynamo.reset()  # it stops compiling one function for more than eight modules
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for again in (step(module, module), step(compiled, module)):
        assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
def test_training(device):
    """A whole model's loss, with checkpointing: it falls as that of the model in high precision."""
    tokens = torch.arange(32, device=device).view(2, 16) * 3
    losses = {}
    for recipe in (None, "rowwise", "delayed", "tensorwise", "blockwise"):
        model = model_of("Qwen3Moe").to(device).train()
        names = list(model.state_dict())
        if recipe is not None:
            assert len(experts.convert_experts_(model, recipe)) == 2
            assert [each for each in model.state_dict() if "ingot_scales.fp8_" not in each] == names
            assert not any("gate_up_proj" in each.name for each in other_weights(model))
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses[recipe] = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            ingot.nn.sync_amax_history(model)
            losses[recipe].append(loss.item())
    for recipe in ("rowwise", "delayed", "tensorwise", "blockwise"):
        assert losses[recipe][0] == pytest.approx(losses[None][0], rel=0.02)
        assert losses[recipe][-1] < 0.85 * losses[recipe][0] and losses[recipe][-1] == pytest.approx(losses[None][-1], rel=0.05)
    with torch.autocast(device, torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    assert loss.item() == pytest.approx(losses["tensorwise"][-1], rel=0.2)
    model.set_experts_implementation("eager")
    assert model(tokens).logits.isfinite().all() and model.config._experts_implementation == "eager"


def test_delayed_scales_of_a_model():
    """In state dicts; gone with another recipe; kept while a model's own implementation computes."""
    model, tokens = model_of("Mixtral").train(), torch.arange(32).view(2, 16) * 3
    plain = model.state_dict()
    experts.convert_experts_(model, "delayed", history_length=4)
    scales = model.model.layers[0].mlp.experts.ingot_scales
    assert scales.fp8_amax_history.shape == (2, 3, 6, 4)
    for _ in range(2):
        model(tokens, labels=tokens).loss.backward()
        ingot.nn.sync_amax_history(model)
    assert (scales.fp8_scale[:, 1] != 1).all()
    other = model_of("Mixtral").train()
    experts.convert_experts_(other, "delayed", history_length=4)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(tokens).logits, model(tokens).logits)
    other.load_state_dict(plain)  # of a model without scales, which start anew
    assert (other.model.layers[0].mlp.experts.ingot_scales.fp8_scale == 1).all()
    divided = model.model.layers[1].mlp.experts
    divided.down_proj = torch.nn.Parameter(divided.down_proj.detach()[:3].clone())
    with pytest.raises(LinearError, match="has 3 experts, but scales of 6: expert parallelism has divided them, which \"delayed\" does"):
        model(tokens)
    with pytest.raises(LinearError, match="has 3 of the 6 experts of its config: expert parallelism has divided them"):
        experts.convert_experts_(model, "delayed", history_length=4)
    for convert in (lambda: experts.convert_experts_(other, "rowwise"), lambda: experts.quantize_experts_(other)):
        experts.convert_experts_(other, "delayed", history_length=4)
        convert()
        assert not any("ingot_scales" in each for each in other.state_dict())


ON_META = [("trained",), ("weights", "scales"), ("scales", "weights"), ("scales", "down", "rest"), ("down", "scales", "rest")]


@pytest.mark.parametrize("on_meta", [(), *ON_META], ids="-".join)
def test_delayed_scales_and_float8_checkpoints(tmp_path, on_meta):
    """A checkpoint of all weights starts them anew, also one of two files; one with scales restores them; an error leaves all."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model, tokens = model_of("Mixtral").train(), torch.arange(32).view(2, 16) * 3
    names = experts.convert_experts_(model, "delayed", history_length=4)
    model(tokens, labels=tokens).loss.backward()
    ingot.nn.sync_amax_history(model)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value * (100 if "experts" in name else 1) for name, value in trained.items() if "fp8_" not in name}
    halves = [{name: value for name, value in weights.items() if ("down_proj" in name) == is_down} for is_down in (True, False)]
    wrong = {**weights, f"{names[0]}.ingot_scales.fp8_scale": torch.ones(2)}
    files = {"weights": weights, "down": halves[0], "rest": halves[1], "trained": trained, "wrong": wrong}
    files["scales"] = {name: value for name, value in trained.items() if "fp8_" in name}
    for name, tensors in files.items():
        save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / f"{name}.safetensors")

    def load(*of_files, into=None, **options):
        if into is None:
            into = copy.deepcopy(model)
        for each in of_files:
            ingot.nn.load_float8_checkpoint(into, tmp_path / f"{each}.safetensors", **options)
        return into, [into.get_submodule(name).ingot_scales for name in names]

    if on_meta:
        with torch.device("meta"):
            empty = type(model)(copy.deepcopy(model.config))
        experts.convert_experts_(empty, "delayed", history_length=4)
        loaded, _ = load(*on_meta, into=empty, strict=len(on_meta) == 1)
        expected = trained if on_meta == ("trained",) else {**weights, **files["scales"]}
        assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
        return
    for of_files in (("weights",), ("down", "rest"), ("rest", "down")):
        loaded, scales = load(*of_files, strict=False)
        assert all((each.fp8_scale == 1).all() and not each.fp8_amax_history.any() for each in scales), of_files
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in weights.items())
    for of_files in (("weights", "trained"), ("down", "trained")):
        loaded, _ = load(*of_files, strict=False)
        assert all(torch.equal(value, trained[name]) for name, value in loaded.state_dict().items())
    for each in ("down", "rest"):
        loaded, _ = load(each, strict=False)
        assert all(torch.equal(value, trained[name]) for name, value in loaded.state_dict().items() if "fp8_" in name), each
    with pytest.raises(LinearError, match="fp8_scale"):
        load("wrong", into=model)
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("recipe", ["delayed", "rowwise"])
def test_restore(recipe, tmp_path):
    """Names, bits, files and implementation as of a model that was never converted; layers and experts together are counted."""
    plain, tokens = model_of("Mixtral"), torch.arange(32).view(2, 16) * 3
    model = copy.deepcopy(plain)
    untouched = {name: set(vars(module)) for name, module in model.named_modules()}
    former = model.config._experts_implementation
    assert former not in (None, "ingot")
    experts.convert_experts_(model.model.layers[1].mlp.experts, recipe)  # alone first: they share one config
    names = experts.convert_experts_(model, recipe)
    report = ingot.nn.convert(model, "delayed", fuse=False)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for each in (model, copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert ingot.nn.restore(each) == len(report.converted) + len(names)
        assert each.config._experts_implementation == former
        assert torch.equal(each(tokens).logits, plain(tokens).logits)
        assert list(each.state_dict()) == list(plain.state_dict())
        assert {name: set(vars(module)) for name, module in each.named_modules()} == untouched
        assert float8_experts(each) == () and not any(module._load_state_dict_pre_hooks for module in each.modules())
        plain.load_state_dict(each.state_dict())
        with pytest.raises(LinearError, match="restore model: has no module that convert.. has put there, and no experts that convert_ex"):
            ingot.nn.restore(each)
    model.save_pretrained(tmp_path)
    _, told = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not told["unexpected_keys"] and not told["missing_keys"]
    experts.convert_experts_(model, recipe, history_length=8)  # of other steps than before: nothing is left of them
    assert model.config._experts_implementation == "ingot"


def test_restore_leaves_what_was_chosen_since():
    model = model_of("Mixtral")
    names = experts.convert_experts_(model, "delayed")
    model.set_experts_implementation("eager")
    assert any("ingot_scales" in name for name in model.state_dict())
    assert ingot.nn.restore(model) == len(names) and model.config._experts_implementation == "eager"
    assert list(model.state_dict()) == list(model_of("Mixtral").state_dict())
    experts.convert_experts_(model)
    model.set_experts_implementation("batched_mm")
    experts.convert_experts_(model)
    ingot.nn.restore(model)
    assert model.config._experts_implementation == "batched_mm"
    # Nothing undoes quantize_experts_(), and layers that are quantized leave experts that train.
    experts.convert_experts_(model, "delayed")
    ingot.nn.convert(model, "rowwise", fuse=False)
    ingot.nn.quantize_(model, ingot.nn.Float8WeightOnlyConfig(), filter_fn=lambda layer, name: "q_proj" in name)
    assert model.config._experts_implementation == "ingot" and any("ingot_scales" in name for name in model.state_dict())
    experts.quantize_experts_(model)
    with pytest.raises(LinearError, match="restore model: has no module that convert"):
        ingot.nn.restore(model)
    assert model.config._experts_implementation == "ingot"


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("alone", [(1,), (0,), (0, 1), (1, 0)])
def test_restore_of_one_stack_after_another_was_converted_alone(alone, at):
    """They share a config, which the first conversion had switched."""
    model = model_of("Mixtral")
    former, stacks = model.config._experts_implementation, [layer.mlp.experts for layer in model.model.layers]
    for each in alone:
        experts.convert_experts_(stacks[each])
    experts.convert_experts_(model, "delayed")
    experts.convert_experts_(model)
    assert ingot.nn.restore(stacks[at]) == 1 and model.config._experts_implementation == former
    assert ingot.nn.restore(model) == 1 and model.config._experts_implementation == former


def test_restore_leaves_ingot_to_a_program_that_set_it_by_name():
    model = model_of("Mixtral")
    untouched = copy.deepcopy(model)
    for each in (model, untouched):
        each.set_experts_implementation("ingot")
    experts.convert_experts_(model, "tensorwise")
    tokens = torch.arange(32).view(2, 16) * 3
    assert not torch.equal(model(tokens).logits, untouched(tokens).logits)
    assert ingot.nn.restore(model) == 2 and model.config._experts_implementation == "ingot"
    assert torch.equal(model(tokens).logits, untouched(tokens).logits)


def test_an_error_of_restore_changes_no_experts():
    model = model_of("Mixtral")
    experts.convert_experts_(model, "delayed")
    ingot.nn.convert(model, "rowwise", fuse=False)
    names, layer = list(model.state_dict()), model.model.layers[0].self_attn.q_proj
    layer.forward = layer.forward
    with pytest.raises(LinearError, match="restore model: the forward of .*q_proj was replaced since"):
        ingot.nn.restore(model)
    assert list(model.state_dict()) == names and model.config._experts_implementation == "ingot"


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise", "blockwise"])
def test_a_state_of_delayed_experts_loads_into_those_of_another_recipe(recipe):
    """Strictly, as into layers; what has none of our code refuses it."""
    model = model_of("Mixtral")
    experts.convert_experts_(model, "delayed")
    state = model.state_dict()
    other = model_of("Mixtral")
    experts.convert_experts_(other, recipe)
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    for into in (other, copy.deepcopy(other)):
        told = into.load_state_dict(state)
        assert not told.missing_keys and not told.unexpected_keys
        assert all(torch.equal(value, state[name]) for name, value in into.state_dict().items())
        assert not any("ingot_scales" in name for name in into.state_dict())
    stack = other.model.layers[0].mlp.experts
    stack.load_state_dict(model.model.layers[0].mlp.experts.state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key.*ingot_scale"):
        model_of("Mixtral").load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key.*other"):
        other.load_state_dict({**state, "model.layers.0.mlp.experts.other": torch.ones(1)})


def test_a_folder_of_delayed_experts_loads_into_others(tmp_path):
    """save_pretrained() of a model that is still converted: other models count its scales as ignored."""
    model = model_of("Qwen3Moe")
    names = experts.convert_experts_(model, "delayed")
    ingot.nn.convert(model, "delayed", fuse=False, filter_fn=lambda layer, name: name == "model.layers.0.self_attn.q_proj")
    model.save_pretrained(tmp_path)
    state = model.state_dict()
    rowwise = model_of("Qwen3Moe")
    experts.convert_experts_(rowwise)
    for into in (model_of("Qwen3Moe"), rowwise):
        with torch.no_grad():
            for each in into.parameters():
                each.zero_()
        report = ingot.nn.load_float8_checkpoint(into, tmp_path)
        assert set(report.ignored) == {name for name in state if "fp8_" in name} and len(report.ignored) == 3 * (len(names) + 1)
        assert "9 scales of activations, the KV cache and delayed scaling ignored: model.layers.0.mlp.experts.ingot_scales" in str(report)
        assert all(torch.equal(value, state[name]) for name, value in into.state_dict().items())
    experts.convert_experts_(rowwise, "delayed")
    assert len(ingot.nn.load_float8_checkpoint(rowwise, tmp_path).ignored) == 3


def test_another_conversion_keeps_delayed_scales():
    model, tokens = model_of("Mixtral").train(), torch.arange(32).view(2, 16) * 3
    names = experts.convert_experts_(model, "delayed", history_length=4)
    model(tokens, labels=tokens).loss.backward()
    ingot.nn.sync_amax_history(model)
    scales = [model.get_submodule(name).ingot_scales for name in names]
    before = copy.deepcopy(model.state_dict())
    assert experts.convert_experts_(model, "delayed", fast_gradients=True, history_length=4) == names
    assert [model.get_submodule(name).ingot_scales for name in names] == scales
    assert model.get_submodule(names[0]).ingot_options.fast_gradients
    refused = (
        'convert_experts_ history_length: is 16, but the histories of experts "model.layers.0.mlp.experts" have 4 steps: give '
        "history_length=4 to keep them, or drop them first by convert_experts_() with another recipe"
    )
    with pytest.raises(LinearError, match=f"^{re.escape(refused)}$"):
        experts.convert_experts_(model, "delayed", fast_gradients=True)
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
    experts.convert_experts_(model, "rowwise")
    state = {name: vars(model.get_submodule(name)).copy() for name in names}
    with pytest.raises(LinearError, match='^ExpertScales "model.layers.0.mlp.experts" history_length: is 0, expected a number of steps'):
        experts.convert_experts_(model, "delayed", history_length=0)
    assert {name: vars(model.get_submodule(name)) for name in names} == state and list(model.state_dict()) == list(model_of("Mixtral").state_dict())
    experts.convert_experts_(model, "delayed", history_length=1)
    for wrong in (True, 1.0):
        with pytest.raises(LinearError, match=f'history_length: is {wrong}, but the histories of experts "{names[0]}" have 1 steps'):
            experts.convert_experts_(model, "delayed", history_length=wrong)
    experts.convert_experts_(model, "rowwise")
    fresh = model_of("GptOss")
    fresh.model.layers[1].mlp.experts._apply_gate = lambda gate_up: gate_up @ gate_up  # raises when it is tried
    with pytest.raises(RuntimeError):
        experts.convert_experts_(fresh, "delayed")
    assert list(fresh.state_dict()) == list(model_of("GptOss").state_dict()) and fresh.config._experts_implementation != "ingot"
    experts.convert_experts_(model, "delayed", history_length=4)
    divided = model.get_submodule(names[1])
    divided.down_proj = torch.nn.Parameter(divided.down_proj.detach()[:3].clone())
    divided.config = copy.deepcopy(divided.config)
    divided.config.num_local_experts = 3
    with pytest.raises(LinearError, match="has 3 experts, but scales of 6"):
        experts.convert_experts_(model, "delayed", history_length=4)


def test_gathers_in_float8():
    """The stacks of converted experts, by name; those stored (experts, K, N) are gathered in high precision."""
    for name, why in (("Qwen3Moe", ""), ("GptOss", "it is stored as (experts, K, N), and codes of (experts, N, K) are gathered")):
        model = model_of(name)
        assert ingot.nn.float8_all_gather(model) == ()
        names = experts.convert_experts_(model, "tensorwise")
        weights = [f"{each}.{key}" for each in names for key in ("gate_up_proj", "down_proj")]
        with said() as lines:
            found = ingot.nn.float8_all_gather(model)
        assert found == (() if why else tuple(weights))
        assert lines == ([f'experts "{each}": FSDP gathers its weight in high precision: {why}' for each in weights] if why else [])
        tokens = torch.arange(12).view(1, 12)
        assert torch.equal(model(tokens).logits, experts_of_copy(model_of(name))(tokens).logits)


def experts_of_copy(model):
    experts.convert_experts_(model, "tensorwise")
    return model


def test_reports():
    """Say which experts are FP8, and how others become so."""
    model = model_of("Qwen3Moe")
    leave = lambda layer, name: False
    report = ingot.nn.quantize_(model, ingot.nn.FrozenFloat8Config(), leave)
    assert report.experts == () and "itself: convert_experts_() of ingot.integrations.experts has it compute in FP8" in str(report)
    for convert in (experts.convert_experts_, experts.quantize_experts_):
        names = tuple(convert(model))
        reports = (
            ingot.nn.quantize_(model, ingot.nn.FrozenFloat8Config(), leave),
            ingot.nn.convert(model, "rowwise", filter_fn=leave, fuse=False),
            ingot.float8.conversion_report(model),
        )
        for report in reports:
            assert report.experts == names and f"2 modules of experts are FP8: {', '.join(names)}" in str(report)
            assert not any("experts" in each.name for each in report.others)
        if convert is experts.convert_experts_:
            model.set_experts_implementation("grouped_mm")
            report = ingot.float8.conversion_report(model)
            assert report.experts == () and sum("experts" in each.name for each in report.others) == 4


def test_training_with_experts_of_other_ranks():
    """A rank's part of the experts: their gradients are those of the whole module with the other experts' weights 0."""
    whole = model_of("Qwen3Moe").model.layers[0].mlp.experts
    part = copy.deepcopy(whole)
    for name in ("gate_up_proj", "down_proj"):
        setattr(part, name, torch.nn.Parameter(getattr(whole, name).detach()[:4].clone()))
    torch.manual_seed(1)
    hidden, weights = torch.randn(9, 64), torch.rand(9, 2)
    index = torch.rand(9, 6).argsort(1)[:, :2]
    results = []
    for module in (part, whole):
        experts.convert_experts_(module)
        local = index.clamp(max=4) if module is part else index  # as transformers marks them
        x = hidden.clone().requires_grad_()
        y = module(x, local, weights * (index < 4))
        y.backward(torch.ones_like(y))
        results.append((y.detach(), x.grad, module.gate_up_proj.grad[:4], module.down_proj.grad[:4]))
    for ours, exact in zip(*results):
        assert ours.isfinite().all() and sqnr(exact, ours) > 20


def test_prepare():
    """A converted model's products are part of what prepare() compiles: those of its own options, and in its own dtypes."""
    asked = lambda model, dtype=None: set(recording_of(model, 200, "h200", dtype)[0].splitlines()[1:])
    model = model_of("Qwen3Moe").bfloat16()
    assert asked(model) == set()
    names = experts.convert_experts_(model, "rowwise")
    exact = asked(model)
    assert any(line.startswith("grouped_gemm e4m3fn*e4m3fn->bf16") and "along=k" in line for line in exact)
    assert not any(line.startswith(("cast", "elementwise")) and line.endswith("fast") for line in exact)
    experts.convert_experts_(model, "rowwise", fast_gradients=True, fast_math=True)
    fast = asked(model)
    assert any(line.startswith("cast bf16->e4m3fn of=x*sigmoid(x)*up") and line.endswith("fast") for line in fast)
    assert not any("along=k" in line and "fast" not in line for line in fast)
    recorded = recording_of_call(lambda: experts.run_products(model, [200], torch.bfloat16, "rowwise"), "h200").splitlines()
    assert exact | fast == set(recorded[1:])
    with torch.no_grad():
        assert asked(model) < fast and not any("along=k" in line for line in asked(model))
    experts.convert_experts_(model, "tensorwise")
    assert not any("row" in line and line.startswith("grouped") for line in asked(model))
    experts.convert_experts_(model, "delayed")
    delayed = asked(model)
    assert any(line.startswith("cast") and line.endswith("given experts") for line in delayed)
    assert any(line.startswith("amax_history") for line in delayed)  # of the first steps
    recorded = recording_of_call(lambda: experts.run_products(model, [200], torch.bfloat16, "delayed"), "h200").splitlines()
    assert delayed < set(recorded[1:])
    experts.convert_experts_(model, "tensorwise")
    of_float32 = asked(model.float(), torch.bfloat16)
    assert any(line.startswith("cast f32->e4m3fn") for line in of_float32) and any("->bf16" in line for line in of_float32)
    experts.quantize_experts_(model.bfloat16())
    with torch.no_grad():
        quantized = asked(model)
    assert quantized and not any("along=k" in line or "f32->" in line for line in quantized)
    assert any("scale=row,tensor" in line for line in asked(model) - quantized)  # the gradient of rows
    model.set_experts_implementation("grouped_mm")
    assert asked(model) == set()
    other = model_of("GptOss").bfloat16()
    found = experts.convert_experts_(other)
    assert any("grouped_gemm" in line for line in asked(other)) and len(found) == len(names) == 2


def test_reports_of_an_implementation_that_was_set_by_name():
    model = model_of("Qwen3Moe")
    names = ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")
    assert float8_experts(model) == () and sum("experts" in each.name for each in other_weights(model)) == 4
    model.set_experts_implementation("ingot")
    assert float8_experts(model) == names and not any("experts" in each.name for each in other_weights(model))
    model.set_experts_implementation("grouped_mm")
    assert float8_experts(model) == ()


def test_gpt_oss_is_one_operator_each_way():
    """Its gate and biases are known by what they compute; another gate is not."""
    module = model_of("GptOss").model.layers[0].mlp.experts
    experts.convert_experts_(module)
    assert experts._fused_activation(module, module.ingot_is_clamped) == "min(x, 7) * sigmoid(1.702 * min(x, 7)) * (max(min(up, 7), -7) + 1)"
    other = model_of("GptOss").model.layers[0].mlp.experts
    other._apply_gate = lambda gate_up: gate_up[..., ::2] * gate_up[..., 1::2]
    for other.limit in (7.0, 0.0):
        experts.convert_experts_(other)
        assert experts._fused_activation(other, other.ingot_is_clamped) is None
    plain = model_of("GptOss")
    recorded = recording_of_call(lambda: experts.run_products(plain, [16], torch.bfloat16, "rowwise"), "h200")
    assert "sigmoid" in recorded and not any(hasattr(each, "ingot_is_clamped") for each in plain.modules())  # which records, and converts nothing
    torch.manual_seed(1)
    hidden, index, weights = torch.randn(40, 64).requires_grad_(), torch.rand(40, 6).argsort(1)[:, :2], torch.rand(40, 2).requires_grad_()
    given = (hidden, weights, *module.parameters())

    def step():
        y = module(hidden, index, weights)
        return y, *torch.autograd.grad(y.square().sum(), given)

    fused = step()
    module.ingot_is_clamped = False  # two grouped layers
    assert all(sqnr(*each) > 18 for each in zip(step(), fused)), [*map(sqnr, step(), fused)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gpt_oss_computes_with_the_numbers_that_it_has_now(compiled):
    """alpha and limit are attributes that a program may change after the conversion."""
    torch._dynamo.reset()
    module = model_of("GptOss").model.layers[0].mlp.experts
    plain = copy.deepcopy(module)
    experts.convert_experts_(module)
    call = torch.compile(module, backend="eager", fullgraph=True) if compiled else module
    hidden, index, weights = torch.randn(40, 64), torch.rand(40, 6).argsort(1)[:, :2], torch.rand(40, 2)
    numbers = ((1.702, 7.0), (-1.0, 0.25), (3, 1), (1.702, 0.0))
    no_expressions = ((1.702, float("inf")), (1.702, -1.0), (float("inf"), 7.0))  # two grouped layers
    for alpha, limit in (*numbers[compiled:], *no_expressions[compiled:], numbers[0]):
        for each in (module, plain):
            each.alpha, each.limit = alpha, limit
        assert (experts._fused_activation(module, module.ingot_is_clamped) is None) == ((alpha, limit) in no_expressions)
        assert sqnr(plain(hidden, index, weights), call(hidden, index, weights)) > 20, (alpha, limit)
    module.alpha = float("nan")
    assert call(hidden, index, weights).isnan().all()


@pytest.mark.parametrize("kind, when", [("buffer", "before"), ("parameter", "after")])
def test_gpt_oss_with_tensors_for_numbers(kind, when):
    """when: before or after the conversion. They are read by the module's own gate, in one graph, and a trainable one has its gradient."""
    torch._dynamo.reset()
    module = model_of("GptOss").model.layers[0].mlp.experts
    plain = copy.deepcopy(module)
    if when == "after":
        experts.convert_experts_(module)
    for each in (module, plain):
        del each.alpha
        if kind == "buffer":
            each.register_buffer("alpha", torch.tensor(1.5))
        else:
            each.alpha = torch.nn.Parameter(torch.tensor(1.5))
    if when == "before":
        experts.convert_experts_(module)
        assert not module.ingot_is_clamped
    torch.manual_seed(1)
    hidden, index, weights = torch.randn(40, 64), torch.rand(40, 6).argsort(1)[:, :2], torch.rand(40, 2)

    def step(call, of):
        of.zero_grad()
        y = call(hidden, index, weights)
        y.square().sum().backward()
        return [y.detach(), *(each.grad.clone() for each in of.parameters())]

    found, wanted = step(module, module), step(plain, plain)
    assert all(sqnr(*each) > 18 for each in zip(wanted, found, strict=True)), [*map(sqnr, wanted, found)]
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert all(torch.equal(*each) for each in zip(step(compiled, module), found, strict=True))


def test_a_stack_that_is_given_alone_has_its_class_name():
    """Until it is converted with its model; its delayed scales too."""
    model = model_of("Qwen3Moe")
    stack = model.model.layers[0].mlp.experts
    assert experts.convert_experts_(stack, "delayed") == [""]
    scales = stack.ingot_scales
    assert stack.ingot_options.name == scales.layer_name == "Qwen3MoeExperts"
    names = experts.convert_experts_(model, "delayed")
    assert stack.ingot_scales is scales and stack.ingot_options.name == scales.layer_name == names[0] == "model.layers.0.mlp.experts"
    assert scales.options.subject == f'ExpertScales "{names[0]}"'


def test_prepare_compiles_for_hopper(tmp_path, monkeypatch):
    model = model_of("Qwen3Moe").bfloat16()
    names = experts.convert_experts_(model)
    monkeypatch.setattr(_prepare._core, "prepare", lambda *arguments: None)
    prepared = ingot.torch.prepare(model, 64, gpu="h200")
    assert prepared.layers == tuple(names) and prepared.left_out == ()
    prepared = ingot.torch.prepare(model, 64, gpu="a100")
    assert prepared.layers == () and [name for name, _ in prepared.left_out] == names
    assert all("grouped GEMMs have no other kernel" in reason for _, reason in prepared.left_out)


def test_conversions_messages():
    model = model_of("Qwen3Moe")
    experts.quantize_experts_(model)
    with torch.no_grad(), pytest.raises(LinearError, match=r"gate_up_proj: is torch.bfloat16, but quantize_experts_\(\) made FP8 codes"):
        model.bfloat16()(torch.arange(4)[None])
    with pytest.raises(LinearError, match=r"convert_experts_: Linear has no stacked experts, .*convert\(\)'s of ingot.nn"):
        experts.convert_experts_(torch.nn.Linear(2, 2))
    model = model_of("Qwen3Moe")
    with pytest.raises(LinearError, match="^convert_experts_ recipe: 'rowwise_folded' is not one of tensorwise, delayed, rowwise, blockwise, which grouped GEMMs take$"):
        experts.convert_experts_(model, "rowwise_folded")
    with pytest.raises(LinearError, match="^convert_experts_ fast_gradients: is set, but blockwise sums each 128 of a product separately, by their sc"):
        experts.convert_experts_(model, "blockwise", fast_gradients=True)
    experts.quantize_experts_(model)
    with pytest.raises(LinearError, match="convert_experts_ model.layers.0.mlp.experts: has FP8 weights, which do not train: load the model's own"):
        experts.convert_experts_(model)


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
@pytest.mark.parametrize("convert", [experts.convert_experts_, experts.quantize_experts_])
def test_sizes_and_gpus_that_grouped_gemms_do_not_take(convert, name, monkeypatch):
    """A refusal changes nothing."""
    of_intermediate = "moe_intermediate_size" if name == "Qwen3Moe" else "intermediate_size"
    at = "model.layers.0.mlp.experts"

    def made(**sizes):
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **MODELS[name], **sizes})
        return getattr(transformers, f"{name}ForCausalLM")(config)

    def refused(model, message):
        implementation = model.config._experts_implementation
        with pytest.raises(LinearError, match=f"^{convert.__name__} {message}: leave this model's experts as they are$"):
            convert(model)
        assert model.config._experts_implementation == implementation != "ingot"
        assert isinstance(model.get_submodule(at).gate_up_proj, torch.nn.Parameter)

    with torch.device("meta"):
        wants = "but FP8 grouped GEMMs need multiples of 16"
        refused(made(**{of_intermediate: 40}), f"{at}: has a hidden size of 64 and an intermediate size of 40, {wants}")
        refused(made(hidden_size=72), f"{at}: has a hidden size of 72 and an intermediate size of 48, {wants}")
        model = made()
    with FakeTensorMode():
        for module in filter(is_stack, model.modules()):
            module.down_proj = torch.nn.Parameter(torch.empty(module.down_proj.shape, device="cuda"))
        for capability in ((8, 0), (10, 0)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
            number = ".".join(map(str, capability))
            refused(model, f"{at}: is on cuda:0, a GPU of compute capability {number}, but FP8 grouped GEMMs need Hopper's 9.0")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        if convert is experts.convert_experts_:
            assert len(convert(model)) == 2


def test_a_version_without_the_gate_by_its_private_name(monkeypatch):
    """Nothing is known to be a SwiGLU then; experts compute it by their own module, near what one operator computes."""
    module = model_of("Qwen3Moe").model.layers[0].mlp.experts
    experts.convert_experts_(module)
    torch.manual_seed(1)
    hidden, index, weights = torch.randn(40, 64), torch.rand(40, 6).argsort(1)[:, :2], torch.rand(40, 2)

    def step():
        x = hidden.clone().requires_grad_()
        y = module(x, index, weights)
        return y.detach(), *torch.autograd.grad(y.square().sum(), (x, *module.parameters()))

    known, by_name = step(), experts._default_apply_gate
    assert experts._fused_activation(module, None) is not None
    try:
        with monkeypatch.context() as patch:
            patch.delattr("transformers.integrations.moe._default_apply_gate")
            importlib.reload(experts)
            assert experts._default_apply_gate is None and experts._fused_activation(module, None) is None
            found = step()
    finally:
        importlib.reload(experts)
    assert experts._default_apply_gate is by_name and experts._fused_activation(module, None) is not None
    assert all(sqnr(*each) > 20 for each in zip(known, found)), [*map(sqnr, known, found)]
    assert not torch.equal(known[0], found[0])  # the router's weights multiply what the cast reads, or what experts return

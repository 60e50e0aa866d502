"""Models of transformers, made from small configs, with their linear layers in FP8 by ingot.float8: forward and
backward, hooks, checkpoints, and the report of what was converted."""

import copy
import dataclasses
import importlib
import logging

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import ingot.float8 as float8

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "delayed"]


def llama():
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def sam_encoder():
    """The vision encoder of Segment Anything: windowed attention in its first layer, global in its second."""
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    config = transformers.SamVisionConfig(
        hidden_size=32,
        output_channels=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=16,
        window_size=2,
        global_attn_indexes=[1],
        mlp_dim=64,
        num_pos_feats=8,
    )
    return SamVisionEncoder(config)


def run_llama(model):
    tokens = torch.arange(24, device=model.device).view(2, 12) % 64
    output = model(input_ids=tokens, labels=tokens, use_cache=False)
    return output.logits, output.loss


def run_sam(model):
    device = next(model.parameters()).device
    pixels = torch.linspace(-1, 1, 2 * 3 * 64 * 64, device=device).sin().view(2, 3, 64, 64)
    hidden = model(pixels).last_hidden_state
    # A sum of squares would have no gradient after a norm.
    return hidden, (hidden * torch.linspace(0, 50, hidden.numel(), device=device).cos().view_as(hidden)).sum()


MODELS = {"llama": (llama, run_llama), "sam": (sam_encoder, run_sam)}


def made(name, device):
    """In f32, with weights large enough that every layer matters, and the same for every call."""
    torch.manual_seed(0)
    model = MODELS[name][0]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
            parameter.copy_(parameter.bfloat16())  # to which Ingot rounds a bias with f32 inputs
    return model.to(device).train()


def config_of(recipe, package=float8, **more):
    if recipe != "delayed":
        return dataclasses.replace(package.Float8LinearConfig.from_recipe_name(recipe), **more)
    cast = package.CastConfig(scaling_type=package.ScalingType.DELAYED)
    casts = dict.fromkeys(("cast_config_input", "cast_config_weight", "cast_config_grad_output"), cast)
    return package.Float8LinearConfig(**casts, **more)


def keep(layer, name):
    return isinstance(layer, torch.nn.Linear) and name != "lm_head"


def convert(model, recipe="tensorwise"):
    return float8.convert_to_float8_training(model, config=config_of(recipe), module_filter_fn=keep)


def emulated(model, recipe):
    """The same casts around PyTorch's f32 GEMMs: by torchao, where it is installed and has the recipe."""
    try:
        package = float8 if recipe == "delayed" else importlib.import_module("torchao.float8")
    except ImportError:
        package = float8
    config = config_of(recipe, package, emulate=True)
    return package.convert_to_float8_training(model, config=config, module_filter_fn=keep)


def step(name, model):
    model.zero_grad()
    output, loss = MODELS[name][1](model)
    loss.backward()
    return output.detach(), {key: parameter.grad for key, parameter in model.named_parameters()}


def error(actual, expected):
    actual, expected = actual.double().cpu(), expected.double().cpu()
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(name, recipe, device):
    """On the CPU what emulation of the same casts gives, and near the model in high precision. A GPU's GEMMs sum in
    another order and with fewer bits, which changes codes of the layers after: there the distance to the model in high
    precision is that of the emulation."""
    model = made(name, device)
    exact, exact_grads = step(name, copy.deepcopy(model))
    expected, expected_grads = step(name, emulated(copy.deepcopy(model), recipe))
    output, grads = step(name, convert(model, recipe))
    assert output.shape == exact.shape and output.dtype == exact.dtype

    def near(actual, emulated, exact):
        if device == "cpu":
            return error(actual, emulated) < 1e-4
        return error(actual, exact) < 1.25 * error(emulated, exact) + 0.01

    # The casts are there, and do not destroy the result. This is the emulation's own error, which Ingot has no part in:
    # SAM's encoder has 0.07 on the CPU, and up to 0.154 was seen on a GPU, where sums and therefore codes differ.
    assert 0.01 < error(expected, exact) < 0.2
    assert near(output, expected, exact)
    assert list(grads) == list(expected_grads)
    for key, grad in grads.items():
        if exact_grads[key] is None:
            assert grad is None, key
        elif "rel_pos" not in key:  # sums whose terms cancel
            assert error(expected_grads[key], exact_grads[key]) < 0.45, key
            assert near(grad, expected_grads[key], exact_grads[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_report(name):
    model = made(name, "cpu")
    linear = [key for key, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    assert len(linear) == (15 if name == "llama" else 8)
    convert(model)
    report = float8.conversion_report(model, tokens=4096, gpu="h200")
    assert [row.name for row in report.layers] == linear
    assert [row.name for row in report.left_alone] == [key for key in linear if key == "lm_head"]
    assert all(row.gain_note for row in report.converted)
    if name == "llama":
        assert report.left_alone[0].reason == "module_filter_fn leaves it out"
    assert str(report).splitlines()[-1] == f"{len(report.converted)} of {len(linear)} linear layers are FP8"


@pytest.mark.parametrize("name", MODELS)
def test_hooks_and_mode_are_kept(name):
    model = made(name, "cpu").eval()
    watched = next(key for key, layer in model.named_modules() if isinstance(layer, torch.nn.Linear))
    seen = []
    layer = model.get_submodule(watched)
    layer.register_forward_hook(lambda _module, inputs, output: seen.append(("forward", output.shape[-1])))
    layer.register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(("backward", outputs[0].shape[-1])))
    convert(model)
    new = model.get_submodule(watched)
    assert isinstance(new, float8.Float8Linear) and not new.training
    step(name, model)
    assert seen == [("forward", new.out_features), ("backward", new.out_features)]


@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_are_those_of_the_model(name, tmp_path):
    plain = made(name, "cpu")
    converted = convert(copy.deepcopy(plain))
    assert list(converted.state_dict()) == list(plain.state_dict())
    converted.save_pretrained(tmp_path)
    loaded = type(plain).from_pretrained(tmp_path, dtype=torch.float32)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), plain.state_dict().values(), strict=True)
    )


def test_gradient_checkpointing():
    """transformers' own switch: layers run again in backward, with the same gradients."""
    model = convert(made("llama", "cpu"))
    _, expected = step("llama", model)
    expected = {key: grad.clone() for key, grad in expected.items()}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, grads = step("llama", model)
    assert all(torch.equal(grads[key], expected[key]) for key in expected)


def test_generate():
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = convert(made("llama", "cpu").eval())
    tokens = torch.tensor([[3, 1, 4]])
    found = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=5, do_sample=False, pad_token_id=0
    )
    assert torch.equal(found[:, :3], tokens) and 3 < found.shape[1] <= 8
    with torch.no_grad():  # without the cache of keys and values
        for position in range(3, found.shape[1]):
            logits = model(input_ids=found[:, :position]).logits[0, -1]
            # One scale for all tokens changes codes of earlier ones; the choice stays among the best.
            assert logits[found[0, position]] >= logits.max() - 0.3 * logits.std()

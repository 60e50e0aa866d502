"""Stacked experts of transformers with weights in 4 and 8 bits by activations in 16: tiny models against the same models with the
decoded weights."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.integrations.moe")
import ingot.nn
import ingot.torch
import numpy as np
from checkpoint_layouts import exponents, save
from ingot.integrations import experts
from ingot.torch import ExpertWeights, LinearError
from ingot.torch._model_weights import float8_experts
from ingot.torch._prepare import recording_of
from ingot.torch._stored_experts import stored
from test_experts import model_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
STACK = "model.layers.0.mlp.experts"


def decoded(plain, model):
    """`plain` with what `model`'s codes say."""
    plain = copy.deepcopy(plain)
    for name, module in model.named_modules():
        for key in ("gate_up_proj", "down_proj"):
            if hasattr(module, f"{key}_packing"):
                values = stored(module, key).dequantize(torch.bfloat16)
                target = getattr(plain.get_submodule(name), key)
                target.data.copy_(values.transpose(1, 2) if module.is_transposed else values)
    return plain


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", ["e2m1fn", "e4m3fn"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
def test_models(name, format, device):
    plain = model_of(name).bfloat16().to(device)
    model = copy.deepcopy(plain)
    names = experts.quantize_experts_(model, format)
    assert len(names) == 2 and not float8_experts(model)
    exact = decoded(plain, model)
    hidden, index = torch.randn(40, 64, device=device).bfloat16(), torch.rand(40, 6, device=device).argsort(1)[:, :2]
    weights = torch.rand(40, 2, device=device).bfloat16()
    for at in names:
        ours, theirs, before = (each.get_submodule(at)(hidden, index, weights) for each in (model, exact, plain))
        assert (ours - theirs).norm() / theirs.norm() < 0.02, at  # bf16's rounding between the products
        assert (ours - before).norm() / before.norm() < (0.3 if format == "e2m1fn" else 0.1), at
    torch._dynamo.reset()  # it stops compiling one function for more than eight modules
    compiled = torch.compile(model.get_submodule(names[0]), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(hidden, index, weights), model.get_submodule(names[0])(hidden, index, weights))
    tokens = torch.arange(24, device=device).view(2, 12) * 3
    found = model(tokens).logits
    assert torch.equal(model(tokens).logits, found)
    assert experts.quantize_experts_(model, format) == names
    assert model.generate(tokens[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0).shape[1] == 7
    other = copy.deepcopy(plain)
    experts.quantize_experts_(other, format)
    other.load_state_dict({each: torch.zeros_like(value) for each, value in model.state_dict().items() if "packing" not in each}, strict=False)
    other.load_state_dict(model.state_dict())
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(tokens).logits, found)


def test_kernels_are_recorded():
    model = model_of("GptOss").bfloat16()
    experts.quantize_experts_(model, "e2m1fn")
    lines = recording_of(model, 8, "h200")[0].splitlines()
    of_experts = [line for line in lines if line.startswith("dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu bias")]
    assert len(of_experts) >= 2 and all(" experts " in line for line in of_experts)  # both products
    assert not any(line.startswith("grouped_gemm") for line in lines)


def gpt_oss(tmp_path):
    """A checkpoint of one layer's experts in MXFP4, and its stack."""
    from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    random, tensors = np.random.default_rng(7), {}
    for name, n in (("gate_up_proj", 128), ("down_proj", 64)):
        tensors[f"{name}_blocks"] = ("U8", random.integers(0, 256, (3, n, 2, 16)).astype(np.uint8))
        tensors[f"{name}_scales"] = ("U8", exponents(3, n, 2))
        tensors[f"{name}_bias"] = ("BF16", np.zeros((3, n), np.uint16))
    save(tmp_path, tensors, {"quant_method": "mxfp4"})

    def made(device="cpu"):
        with torch.device(device):
            return GptOssExperts(GptOssConfig(hidden_size=64, intermediate_size=64, num_local_experts=3)).bfloat16()

    return made, tensors


@torch.no_grad()
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gpt_oss_goes_straight_into_codes(tmp_path, device):
    made, tensors = gpt_oss(tmp_path)
    stack, plain = made(device), made()
    experts.quantize_experts_(stack, "e2m1fn")
    report = ingot.nn.load_float8_checkpoint(stack, tmp_path)
    assert report.experts == ("",) and not report.missing and not report.decoded
    ingot.nn.load_float8_checkpoint(plain, tmp_path)
    for name in ("gate_up_proj", "down_proj"):
        weight = stored(stack, name)
        assert torch.equal(weight.dequantize(torch.bfloat16), getattr(plain, name).transpose(1, 2))
        blocks = torch.from_numpy(tensors[f"{name}_blocks"][1]).flatten(-2)
        given = ExpertWeights.from_codes(blocks, torch.from_numpy(tensors[f"{name}_scales"][1]), "e2m1fn")
        assert torch.equal(weight.codes, given.codes) and torch.equal(weight.scale_inv, given.scale_inv)
    hidden, index, weights = torch.randn(9, 64).bfloat16(), torch.randint(0, 3, (9, 2)), torch.rand(9, 2).bfloat16()
    found, exact = stack(hidden, index, weights), plain(hidden, index, weights)
    assert (found - exact).norm() <= 0.02 * exact.norm()


def message(call):
    with pytest.raises(LinearError) as error:
        call()
    return str(error.value)


def test_what_is_refused(tmp_path):
    made, _ = gpt_oss(tmp_path)
    assert message(lambda: experts.quantize_experts_(made(), "fp4")).startswith(
        "quantize_experts_ format: is 'fp4', expected 'float8' or one of e4m3fn, "
    )
    assert message(lambda: experts.quantize_experts_(made().float(), "e2m1fn")) == (
        "quantize_experts_ GptOssExperts: is torch.float32, but activations of e2m1fn weights are bfloat16 or float16: load the model "
        "with dtype=torch.bfloat16"
    )
    stack = made()
    experts.quantize_experts_(stack, "e4m3fn")
    assert message(lambda: experts.quantize_experts_(stack, "float8")) == (
        "quantize_experts_ GptOssExperts: has e4m3fn weights, not float8: load the model again, and quantize it once"
    )
    assert "quantize the model with the checkpoint's format" in message(lambda: ingot.nn.load_float8_checkpoint(stack, tmp_path))
    arguments = torch.randn(4, 64).bfloat16(), torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1).bfloat16()
    assert "has no gradients" in message(lambda: stack(arguments[0].requires_grad_(), *arguments[1:]))
    assert "has e4m3fn weights by activations in 16 bits, which this does not write" in message(
        lambda: ingot.nn.save_float8_checkpoint(stack, tmp_path / "out")
    )
    other = made()
    experts.quantize_experts_(other, "e2m1fn")
    assert "is stored as [3, 0, 0, 1] and the model as [3, 0, 6, 6]" in message(lambda: other.load_state_dict(stack.state_dict()))
    with torch.no_grad():
        assert "a conversion such as model.bfloat16() has destroyed them" in message(lambda: stack.bfloat16()(*arguments))
    other.gate_up_proj = other.gate_up_proj.float()
    with torch.no_grad():
        assert message(lambda: other(*arguments)).startswith("gate_up_proj: is torch.float32, but quantize_experts_() made codes")

"""ingot.nn.convert(): whole models, whose unconverted forward says what is right, and restore()."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")
import two_processes
from conftest import in_ci
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import ingot
from ingot.nn import (
    Float8Linear,
    Float8WeightOnlyConfig,
    GatedMlp,
    Mlp,
    RMSNormLinear,
    convert,
    float8_all_gather,
    load_float8_checkpoint,
    precompute_float8_all_gather,
    quantize_,
    restore,
    save_float8_checkpoint,
    sync_amax_history,
)
from ingot.nn._fused_parts import FirstOfShared, FusedNorm, SharedPart
from ingot.nn._recognise import find_mlp
from ingot.nn._transposed_linear import TransposedLinear
from ingot.torch._prepare import recording_of

RECIPES = ("tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "delayed", "high_precision")


# ---- models of transformers ----

_SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
_HEADS = {"head_dim": 8}
_OF_DEEPSEEK = {
    "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
# By the name of the config: its arguments, how many linear layers are converted, and how many norms are fused.
# transformers 5 has experts as stacks of three dimensions: IN_LAYERS has what transformers 4 adds.
FAMILIES = {
    "Llama": ({}, 14, 4),
    "Mistral": ({}, 14, 4),
    "Qwen2": ({}, 14, 4),
    "Qwen3": (_HEADS, 14, 4),
    "Gemma": (_HEADS, 14, 4),
    "Gemma2": (_HEADS, 14, 4),
    "Gemma3Text": (_HEADS, 14, 4),
    "Phi": ({}, 12, 0),  # attention and MLP read one norm
    "Phi3": ({"pad_token_id": 0}, 8, 4),  # q, k and v are one layer, gate and up another
    "GPTNeoX": ({"num_key_value_heads": None}, 8, 4),
    "GPT2": ({}, 8, 4),  # weights are transposed
    "DeepseekV3": (_OF_DEEPSEEK, 16, 5),  # the router needs values
    "Qwen3Moe": ({**_HEADS, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}, 8, 2),
    "Nemotron": ({}, 12, 4),  # layer norms that multiply by weight + 1
}
IN_LAYERS = {"DeepseekV3": (12, 2), "Qwen3Moe": (26, 0)}
_IN_CI = ("Llama", "Gemma2", "Phi", "Phi3", "GPT2", "DeepseekV3")


def made(family="Llama", **more):
    transformers = pytest.importorskip("transformers")
    sizes = {key: value for key, value in {**_SIZES, **FAMILIES[family][0], **more}.items() if value is not None}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 and not parameter.is_meta:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(rows=2):
    return torch.randint(0, 64, (rows, 16), generator=torch.Generator().manual_seed(1))


def trained(model, ids):
    """The loss, and all gradients by name."""
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def distance(one, other):
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize("family", in_ci(lambda family: family in _IN_CI, FAMILIES))
def test_families(family):
    """In high precision a converted model computes the same; names and parameters are the model's own, and go back."""
    model, ids = made(family), tokens()
    expected, grads = trained(model, ids)
    logits = model(input_ids=ids).logits
    own = [(name, id(each)) for name, each in model.named_parameters()]
    kinds = [type(module) for module in model.modules()]
    report = convert(model, "high_precision")
    layers, norms = FAMILIES[family][1:]
    if family in IN_LAYERS and pytest.importorskip("transformers").__version__ < "5":
        layers, norms = layers + IN_LAYERS[family][0], norms + IN_LAYERS[family][1]
    assert (len(report.converted), sum("is computed" in text for text in report.norms.values())) == (layers, norms)
    assert own == [(name, id(each)) for name, each in model.named_parameters()]
    loss, found = trained(model, ids)
    assert distance(model(input_ids=ids).logits, logits) < 1e-5 and abs(loss - expected) < 1e-5
    assert found.keys() == grads.keys() and max(distance(found[name], grads[name]) for name in found) < 1e-4
    assert convert(model, "rowwise").converted == {}  # is FP8 already
    restore(model)
    assert kinds == [type(module) for module in model.modules()]
    assert own == [(name, id(each)) for name, each in model.named_parameters()]
    assert torch.equal(model(input_ids=ids).logits, logits)


def test_a_router_whose_logits_have_a_loss():
    """transformers' loss of them counts by values; what reads a norm is seen without it. In training it is there."""
    if int(pytest.importorskip("transformers").__version__.split(".")[0]) < 5:
        pytest.skip("its experts are layers")
    model, plain, ids = made("Qwen3Moe", output_router_logits=True), made("Qwen3Moe"), tokens()
    expected = model(input_ids=ids, labels=ids, use_cache=False)
    assert convert(model, "high_precision").norms == convert(plain, "high_precision").norms
    found = model(input_ids=ids, labels=ids, use_cache=False)
    assert model.config.output_router_logits and abs(found.aux_loss - expected.aux_loss) < 1e-5 and abs(found.loss - expected.loss) < 1e-5
    model = made("Qwen3Moe", output_router_logits=True)
    report = convert(model, "rowwise", example={"input_ids": ids, "output_router_logits": False})
    assert any("is computed" in text for text in report.norms.values())
    report = convert(made("Qwen3Moe", output_router_logits=True).bfloat16(), "rowwise", example={"input_ids": ids})
    asks = "asks for a value, as of an attention_mask in example=, a branch, or a loss of a router's logits)"  # 5.24 asks no more
    assert all(text.endswith(asks) for text in report.norms.values()) or report.norms == convert(made("Qwen3Moe").bfloat16(), "rowwise", example={"input_ids": ids}).norms


@pytest.mark.parametrize("recipe", in_ci(lambda recipe: recipe == "delayed", RECIPES))
def test_recipes(recipe):
    """Three steps of training, eager, compiled as one graph, and with each kind of checkpointing: the same bits."""
    torch._dynamo.reset()
    ids, results = tokens(), []
    reference = made()
    expected = [trained(reference, ids)[0] for _ in range(3)]
    for way in ("eager", "compiled", "reentrant", "not reentrant"):
        model = made().train()
        convert(model, recipe)
        if way.endswith("reentrant"):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": way == "reentrant"})
        runs = torch.compile(model, fullgraph=True, backend="aot_eager") if way == "compiled" else model
        steps = []
        for _ in range(3):
            loss, grads = trained(runs, ids)
            sync_amax_history(model)
            steps.append((loss, *(grad.clone() for grad in grads.values())))
        results.append(steps)
    for steps in results[1:]:
        assert all(torch.equal(*each) for step, first in zip(steps, results[0]) for each in zip(step, first))
    assert max(abs(step[0] - loss) / loss for step, loss in zip(results[0], expected)) < 0.02


def test_equal_blocks_share_a_graph():
    counters = torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()
    counters.clear()
    model = made(num_hidden_layers=4)
    convert(model, "rowwise")
    for layer in model.model.layers:
        layer.compile(fullgraph=True, backend="aot_eager")
    for _ in range(2):
        trained(model, tokens())
    assert counters["unique_graphs"] == 1


def test_before_it_is_loaded():
    model = made()
    with torch.device("meta"):
        empty = made()
    convert(model, "rowwise"), convert(empty, "rowwise")
    assert [type(each) for each in model.modules()] == [type(each) for each in empty.modules()]
    empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict())
    empty.model.rotary_emb = model.model.rotary_emb  # whose buffer is in no checkpoint
    assert torch.equal(empty(input_ids=tokens()).logits, model(input_ids=tokens()).logits)


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_kernels_of_a_model_without_memory(family):
    """What a converted model asks for is known of one on meta, and the same as of one with values."""
    recordings = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            model = made(family).bfloat16()
        convert(model, "rowwise")
        text, layers, left_out = recording_of(model, 8192, "h200")
        recordings.append(text)
        assert not left_out and len(layers) == (6 if family == "Llama" else 8)
    assert recordings[0] == recordings[1] and ("norm_backward " + ("rms" if family == "Llama" else "layer")) in recordings[0]


def test_copies_files_and_generation(tmp_path):
    model, ids = made(), tokens()
    convert(model, "rowwise")
    logits = model(input_ids=ids).logits
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(input_ids=ids).logits, logits)
        restore(other)
    assert model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 19)
    with torch.inference_mode():
        assert torch.equal(model(input_ids=ids).logits, logits)
    model.bfloat16()
    written = save_float8_checkpoint(model, tmp_path)
    assert written["ignore"] == ["lm_head"]
    fresh = made().bfloat16()
    assert "14 layers are FP8" in str(load_float8_checkpoint(fresh, tmp_path))
    assert distance(fresh(input_ids=ids).logits, model(input_ids=ids).logits) < 0.04
    assert len(quantize_(model, Float8WeightOnlyConfig(), lambda layer, name: "lm_head" not in name).converted) == 14
    assert distance(model(input_ids=ids).logits, fresh(input_ids=ids).logits) < 0.04


def test_adapters():
    peft = pytest.importorskip("peft")
    model = made()
    convert(model, "rowwise")
    with pytest.raises(ValueError, match="FirstOfShared.* is not supported"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    model = made()
    convert(model, "rowwise", fuse=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    trained(adapted, tokens())


def test_the_head_the_filter_and_the_gain():
    report = convert(made(), "rowwise", head=True, filter_fn=lambda layer, name: "down_proj" not in name)
    assert report.left_alone == {f"model.layers.{at}.mlp.down_proj": "filter_fn leaves it out" for at in (0, 1)}
    assert report.converted["lm_head"] == "Float8Linear" and report.converted["model.layers.0.mlp.gate_proj"].startswith("together")
    tied = convert(made(tie_word_embeddings=True), "rowwise", head=True)
    assert tied.left_alone == {"lm_head": "shares its weight with model.embed_tokens"}
    few = convert(made(), "rowwise", tokens=512, gpu="h200")
    assert not few.converted and few.gains["model.layers.0.mlp.gate_proj"] < 1
    assert few.left_alone["model.layers.0.self_attn.q_proj"] == "FP8 is not expected to make it faster with 512 tokens"
    net = nn.Sequential(nn.Linear(8192, 8192, device="meta"), nn.Linear(8192, 256, device="meta"))
    large = convert(net, "tensorwise", tokens=8192, gpu="h200")
    assert list(large.converted) == ["0"] and large.gains["0"] > 1.3
    assert "0: Float8Linear (gain 1." in str(large) and "1: stays, FP8 is not expected" in str(large)


# ---- models of one's own ----


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, width, drop=0.0):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.last(self.act(self.first(x))))


class Block(nn.Module):
    def __init__(self, width, drop=0.0):
        super().__init__()
        self.ln_1, self.attention, self.ln_2, self.feed = nn.LayerNorm(width), Attention(width), nn.RMSNorm(width), Feed(width, drop)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.feed(self.ln_2(x))


def own(drop=0.0):
    torch.manual_seed(0)
    return nn.Sequential(Block(32, drop), Block(32, drop), nn.LayerNorm(32), nn.Linear(32, 8))


def test_a_model_of_ones_own():
    x = torch.randn(2, 5, 32)
    for example in (x, (x,), {"input": x}):
        model = own()
        expected = model(x)
        report = convert(model, "high_precision", example=example)
        assert distance(model(x), expected) < 1e-5
        assert report.norms == {
            "0.ln_1": "is computed within 0.attention.q, 0.attention.k, 0.attention.v",
            "0.ln_2": "is computed within 0.feed",
            "1.ln_1": "is computed within 1.attention.q, 1.attention.k, 1.attention.v",
            "1.ln_2": "is computed within 1.feed",
            "2": "is computed within 3",
        }
    assert isinstance(model[0].feed, Mlp) and list(model[0].feed._modules) == ["first", "last"]
    assert isinstance(model[0].ln_1, FusedNorm) and isinstance(model[0].attention.q, FirstOfShared)
    assert report.converted["0.feed.first"] == "Mlp 0.feed (gelu) after 0.ln_2"
    assert report.converted["3"] == "LayerNormLinear after 2"
    assert "computed within 0.feed" in repr(model) and "recipe=high_precision, layers=3" in repr(model)
    text = "stays by itself: the model could not be run without values (LinearError: there are no example inputs: pass example=)"
    assert set(convert(own(), "rowwise").norms.values()) == {text}
    plain = own()
    assert convert(plain, "rowwise", fuse=False).norms == {} and isinstance(plain[0].feed.first, Float8Linear)


def test_dropout_is_not_lost():
    model = own(0.5)
    report = convert(model, "rowwise", example=torch.randn(2, 5, 32))
    assert isinstance(model[0].feed, Feed) and isinstance(model[0].feed.first, RMSNormLinear)
    assert report.norms["0.ln_2"] == "is computed within 0.feed.first"


class Reads(nn.Module):
    """A norm, a layer, and what else reads the norm."""

    def __init__(self, how):
        super().__init__()
        self.norm, self.layer, self.other, self.how = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), how

    def forward(self, x):
        y = self.norm(x)
        z = self.layer(y)
        if self.how == "a sum":
            return self.other(z + y)
        if self.how == "the result":
            return z, y
        if self.how == "a keyword":
            return self.other(input=y) + z
        if self.how == "the weight":
            return F.linear(y, self.other.weight) + z
        if self.how == "the norm twice":
            return self.other(self.norm(z))
        if self.how == "the layer twice":
            return self.layer(z)
        if self.how == "a slice":
            return z + self.other(y[:2]).sum()
        if self.how == "the transpose":
            return z, y.mT.contiguous()
        assert y.shape == x.shape and y.dtype == x.dtype and y.size(0) == len(x)
        return self.other(z)


_HOWS = ("a sum", "the result", "a keyword", "the weight", "the norm twice", "the layer twice", "a slice", "the transpose")


@pytest.mark.parametrize("how", (*_HOWS, "nothing else"))
def test_what_else_reads_a_norm(how):
    model, x = Reads(how), torch.randn(4, 8)
    expected = model(x)
    report = convert(model, "high_precision", example=x)
    where = "is computed within layer" if how == "nothing else" else "stays by itself: other modules read it too, or it is not called once"
    assert report.norms == {"norm": where}
    found = model(x)
    for one, other in zip(*((each,) if torch.is_tensor(each) else each for each in (found, expected))):
        assert distance(one, other) < 1e-5


class NoMlp(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.a, self.b, self.c, self.how = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8), how
        if how == "a parameter":
            self.act = nn.PReLU()
        if how == "its own parameter":
            self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x, y=None):
        if self.how == "two inputs":
            return self.c(self.a(x) * self.b(y))
        if self.how == "a residual":
            return self.c(F.silu(self.a(x)) * self.b(x)) + x
        if self.how == "a parameter":
            return self.c(self.act(self.a(x)) * self.b(x))
        if self.how == "its own parameter":
            return self.c(F.silu(self.a(x)) * self.b(x) * self.scale)
        if self.how == "another function":
            return self.c(torch.sin(self.a(x)) * self.b(x))
        if self.how == "a branch":
            return self.c(F.silu(self.a(x)) * self.b(x)) if x.sum() > 0 else x
        if self.how == "a layer twice":
            return self.c(F.silu(self.a(x)) * self.a(x) + 0 * self.b(x))
        return self.c(F.silu(self.a(x)) * self.b(x) / 2)


_NO_MLPS = ("two inputs", "a residual", "a parameter", "its own parameter", "another function", "a branch", "a layer twice", "half")


@pytest.mark.parametrize("how", _NO_MLPS)
def test_what_is_no_mlp(how):
    module = nn.Sequential(NoMlp(how))
    assert find_mlp(module[0]) is None
    assert set(convert(module, "rowwise").converted.values()) == {"Float8Linear"}


def test_parts_of_a_sequential_keep_their_numbers():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    assert find_mlp(model[0]) is None
    convert(model, "rowwise")
    assert [type(part) for part in model[0]] == [Float8Linear, nn.GELU, Float8Linear]


class SwiGlu(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.w1, self.w2, self.w3, self.activation = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16), activation

    def forward(self, x):
        return self.w2(self.w3(x) * self.activation(self.w1(x)))


@pytest.mark.parametrize(
    "name, activation",
    [
        ("silu", F.silu),
        ("silu", lambda x: x * torch.sigmoid(x)),
        ("gelu", F.gelu),
        ("gelu_tanh", nn.GELU(approximate="tanh").forward),
        ("relu", torch.relu),
        ("squared_relu", lambda x: torch.relu(x) ** 2),
        ("tanh", torch.tanh),
        ("sigmoid", torch.sigmoid),
        ("mish", F.mish),
    ],
)
def test_gated_mlps(name, activation):
    model, x = nn.Sequential(SwiGlu(activation)), torch.randn(4, 8)
    expected = model(x)
    names = [key for key, _ in model.named_parameters()]
    report = convert(model, "high_precision")
    assert isinstance(model[0], GatedMlp) and report.converted["0.w1"] == f"GatedMlp 0 ({name})"
    assert names == [key for key, _ in model.named_parameters()] and distance(model(x), expected) < 1e-5


# ---- layers that share an input ----


def shared():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), Attention(8))
    convert(model, "high_precision", example=torch.randn(1, 4, 8))
    return model[1].q, model[1].k, model[1].v


def test_results_wait_for_the_same_input_only():
    q, k, v = shared()
    assert isinstance(k, SharedPart) and k.computed_by is q
    x, other = torch.randn(3, 8), torch.randn(3, 8)
    expected = [part(x.clone()) for part in (q, k, v)]
    assert torch.equal(q(x), expected[0]) and torch.equal(v(x), expected[2]) and torch.equal(k(x), expected[1])
    assert q._waiting is None  # nothing is kept that will not be asked for
    assert torch.equal(k(x), expected[1])  # in another order
    assert torch.equal(q(x), expected[0])
    q(x)
    assert not torch.equal(k(other), expected[1])  # another input
    q(x)
    x.mul_(2)
    doubled = k(x.clone())
    q(x.div_(2)), x.mul_(2)
    assert torch.equal(k(x), doubled)  # an input that was written since
    with torch.no_grad():
        q(x)
    assert k(x).requires_grad  # gradients were off
    q(x)
    assert copy.deepcopy(q)._waiting is None


def test_layers_are_called_by_their_names():
    q, _, _ = shared()
    with pytest.raises(ingot.Error, match='linear "1.q" input: has shape'):
        q(torch.randn(3, 7))
    assert [name for name, _ in q.named_weights()] == ["1.q", "1.k", "1.v"] and q.layer_name == "1.q"


def test_a_transposed_layer():
    transformers = pytest.importorskip("transformers")
    model = nn.Sequential(transformers.pytorch_utils.Conv1D(24, 8))
    x, expected = torch.randn(4, 8), None
    expected = model(x)
    assert convert(model, "rowwise").converted == {"0": "TransposedLinear"}
    assert isinstance(model[0], TransposedLinear) and "in_features=8, out_features=24" in repr(model)
    assert model[0].weight.shape == (8, 24) and distance(model(x), expected) < 0.1
    model(x).sum().backward()
    assert model[0].weight.grad.shape == (8, 24)


# ---- what is refused ----


def test_refusals():
    with pytest.raises(ingot.Error, match="convert model: is a list, expected a torch.nn.Module"):
        convert([nn.Linear(4, 4)])
    with pytest.raises(ingot.Error, match="convert model: is itself a linear layer.*use Float8Linear.from_float"):
        convert(nn.Linear(4, 4))
    with pytest.raises(ingot.Error, match="convert recipe: 'fp8' is not one of high_precision, tensorwise"):
        convert(own(), "fp8")
    for wrong in (0, -1, 1.5, "8192"):
        with pytest.raises(ingot.Error, match="convert tokens: is .*, expected a number of rows from 1"):
            convert(own(), tokens=wrong)
    with pytest.raises(ingot.Error, match="convert filter_fn: is a str, expected a function"):
        convert(own(), filter_fn="lm_head")
    with pytest.raises(ingot.Error, match="h300"):
        convert(own(), tokens=4096, gpu="h300")
    with pytest.raises(ingot.Error, match="restore model: has no module that convert.. has put there, and no experts that"):
        restore(own())
    with pytest.raises(ingot.Error, match="restore model: is a str"):
        restore("model")
    model = own()
    with pytest.raises(ingot.Error, match="history_length: is 0"):
        convert(model, "delayed", history_length=0)
    assert all(type(module).__module__.startswith(("torch.", __name__)) for module in model.modules())
    compiled = nn.Sequential(torch.compile(nn.Linear(4, 4)))
    with pytest.raises(ingot.Error, match="convert: 0 is compiled already: convert before torch.compile"):
        convert(compiled)


def test_what_hooks_and_modes_become():
    model, seen = own(), []
    model[0].feed.first.register_forward_hook(lambda *_: seen.append("first"))
    model[0].attention.o.register_forward_hook(lambda *_: seen.append("o"))
    model[1].feed.register_forward_hook(lambda *_: seen.append("feed"))
    model[1].eval()
    report = convert(model, "rowwise", example=torch.randn(1, 2, 32))
    seen.clear()  # they have run in convert() too
    model(torch.randn(1, 2, 32))
    assert seen == ["o", "first", "feed"]  # a part with a hook is called by itself
    assert report.norms["0.ln_2"].startswith("stays by itself: ") and "has hooks" in report.norms["0.ln_2"]
    assert not model[1].feed.training and model[0].attention.o.training
    restore(model)
    model(torch.randn(1, 2, 32))
    assert seen == ["o", "first", "feed"] * 2


def test_trained_weights_go_back():
    model, x = own(), torch.randn(2, 5, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # made before
    convert(model, "delayed", example=x)
    before = {name: each.clone() for name, each in model.named_parameters()}
    for _ in range(2):
        model(x).square().sum().backward()
        sync_amax_history(model)
        optimizer.step()
    trained_to = {name: each.clone() for name, each in model.named_parameters()}
    restore(model)
    assert not any(name.rpartition(".")[2].startswith("fp8_") for name in model.state_dict())
    for name, each in model.named_parameters():
        assert torch.equal(each, trained_to[name]) and not torch.equal(each, before[name])


# ---- FSDP2 ----


def check_fsdp(rank):
    """A converted model under FSDP2 trains with the same losses with FP8 gathers as without, and cannot be restored."""
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(rank))
    for recipe in ("rowwise", "delayed"):
        losses = []
        for gathers in (False, True):
            model = own()
            convert(model, recipe, example=x)
            if gathers:
                assert len(float8_all_gather(model)) == 13
            for block in model[:2]:
                fully_shard(block)
            fully_shard(model)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            steps = []
            for _ in range(3):
                loss = model(x).square().mean()
                loss.backward()
                sync_amax_history(model)
                optimizer.step()
                optimizer.zero_grad()
                if gathers:
                    precompute_float8_all_gather(model)
                steps.append(loss.detach())
            losses.append(steps)
        assert all(map(torch.equal, *losses)), (recipe, losses)
    try:
        restore(model)
    except ingot.Error as error:
        assert "restore model: it is sharded by FSDP" in str(error)
    else:
        raise AssertionError("restored")


CHECKS = [check_fsdp]
folder = two_processes.fixture(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_processes(check, folder):
    two_processes.passed(check, folder)

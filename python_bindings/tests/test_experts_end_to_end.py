"""Mixtures of experts as their users have them, from start to end: a model of transformers is converted, trains, is saved with
FP8 experts, loaded into a fresh model, and generates, on a GPU from a captured graph."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.integrations.moe")
import ingot.nn
import transformers
from conftest import devices_of_grouped_gemm, in_ci
from ingot.integrations.experts import convert_experts_, quantize_experts_

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 96, "moe_intermediate_size": 48, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "attention_dropout": 0.0,
}  # fmt: skip
MODELS = {
    "Qwen3Moe": {"num_experts": 6, "head_dim": 16, "norm_topk_prob": True},
    "DeepseekV3": {
        "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32,
        "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "head_dim": 16,
    },
}  # fmt: skip
STEPS = 50


def model_of(name, device):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model.to(device)


def train(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def generate(model, tokens, count, captured=True):
    """Greedy, from the last `length` tokens each time, so that a captured graph has one shape; on a GPU, unless PyTorch's own
    experts, which read ends on the host, cannot be captured."""
    captured = captured and tokens.is_cuda
    length, step = tokens.shape[1], lambda given: model(input_ids=given, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
    given = tokens.clone()
    if captured:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            eager = step(given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step(given)
    for _ in range(count):
        if captured:
            graph.replay()
            following = result.clone()
        else:
            following = step(given)
        tokens = torch.cat((tokens, following), 1)
        given.copy_(tokens[:, -length:])
    if captured:
        assert torch.equal(tokens[:, length : length + 1], eager)
    return tokens


@pytest.mark.parametrize("device", devices_of_grouped_gemm())
@pytest.mark.parametrize("name", in_ci(lambda name: name == "DeepseekV3", MODELS))
def test_from_a_model_to_its_tokens(name, device, tmp_path):
    plain = model_of(name, device)
    tokens = torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(1)).to(device)
    exact = train(copy.deepcopy(plain), tokens)

    model = copy.deepcopy(plain)
    assert convert_experts_(model, "rowwise")
    ingot.nn.convert(model, "rowwise")
    losses = train(model, tokens)
    assert losses[-1] < 0.1 * losses[0] and all(abs(ours - theirs) < 0.1 * exact[0] for ours, theirs in zip(losses, exact))
    trained = {each: value for each, value in model.state_dict().items()}
    assert list(trained) == list(plain.state_dict())  # a checkpoint of the model itself

    # For serving: FP8 experts, saved, and loaded into a fresh model.
    served = model_of(name, device)
    served.load_state_dict(trained)
    names = quantize_experts_(served)
    torch.save(served.state_dict(), tmp_path / "served.pt")
    loaded = model_of(name, device)
    assert quantize_experts_(loaded) == names
    loaded.load_state_dict(torch.load(tmp_path / "served.pt", weights_only=True))
    found = generate(loaded.eval(), tokens[:, :8], 12)
    assert torch.equal(found, generate(served.eval(), tokens[:, :8], 12))
    # It knows the sequences by heart, with experts in FP8 as without.
    untouched = model_of(name, device)
    untouched.load_state_dict(trained)
    plain_tokens = generate(untouched.eval(), tokens[:, :8], 12, captured=False)
    known = lambda given: (given[:, 8:] == tokens[:, 8:20]).float().mean()
    assert known(found) > 0.9 * known(plain_tokens)

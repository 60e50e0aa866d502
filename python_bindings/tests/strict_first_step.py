"""A model of a config.json trains one step with a recipe, and decodes in weight-only form, for test_record.py: in the mode
strict, where a kernel that `ingot warm --config` has not made is an error. Stacked experts are converted too, and decode in FP8.

    python strict_first_step.py config.json rowwise 512 1,8"""

import importlib.util
import os
import sys

import torch
import transformers

from ingot.nn import Float8WeightOnlyConfig, convert, quantize_

HAS_STACKS = importlib.util.find_spec("transformers.integrations.moe") is not None


def make(file, device):
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(file)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(torch.bfloat16), HAS_STACKS and hasattr(config, "num_experts")


def ids(count, device):
    return torch.randint(256, (1, count), device=device)


def train(file, recipe, tokens, device):
    """Returns the loss, and the gradients by name."""
    model, mixture = make(file, device)
    convert(model.train(), recipe, tokens=tokens)
    if mixture:
        from ingot.integrations.experts import convert_experts_

        assert len(convert_experts_(model, recipe)) == model.config.num_hidden_layers
    loss = model(input_ids=ids(tokens, device), labels=ids(tokens, device)).loss
    loss.backward()
    return loss, {name: each.grad for name, each in model.named_parameters()}


def decode(file, counts, device):
    """Returns the logits of each count."""
    model, mixture = make(file, device)
    quantize_(model.eval(), Float8WeightOnlyConfig())
    if mixture:
        from ingot.integrations.experts import quantize_experts_

        assert len(quantize_experts_(model)) == model.config.num_hidden_layers
    with torch.no_grad():
        return [model(input_ids=ids(count, device)).logits for count in counts]


if __name__ == "__main__":
    assert os.environ["INGOT_CACHE_MODE"] == "strict" and os.environ["INGOT_CUDA_ROOT"] == "none"  # no NVRTC, no cuBLASLt
    file, recipe, tokens, decoded = sys.argv[1], sys.argv[2], int(sys.argv[3]), map(int, sys.argv[4].split(","))
    loss, gradients = train(file, recipe, tokens, "cuda")
    assert torch.isfinite(loss) and all(torch.isfinite(each).all() for each in gradients.values() if each is not None)
    assert sum(each is not None for each in gradients.values()) > len(gradients) // 2
    assert all(torch.isfinite(logits).all() for logits in decode(file, decoded, "cuda"))
    print(f"loss {loss.item():.4f}")

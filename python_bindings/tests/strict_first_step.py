"""A model of a config.json trains one step with a recipe, and decodes in weight-only form, for test_record.py: in the mode
strict, where a kernel that `ingot warm --config` has not made is an error.

    python strict_first_step.py config.json rowwise 512 1,8"""

import os
import sys

import torch
import transformers

from ingot.nn import Float8WeightOnlyConfig, convert, quantize_

assert os.environ["INGOT_CACHE_MODE"] == "strict" and os.environ["INGOT_CUDA_ROOT"] == "none"  # no NVRTC, no cuBLASLt
file, recipe, tokens, decoded = sys.argv[1], sys.argv[2], int(sys.argv[3]), map(int, sys.argv[4].split(","))


def make():
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(file))
    return model.to(torch.bfloat16)


def ids(count):
    return torch.randint(256, (1, count), device="cuda")


model = make().train()
convert(model, recipe, tokens=tokens)
loss = model(input_ids=ids(tokens), labels=ids(tokens)).loss
loss.backward()
assert torch.isfinite(loss) and all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)
model = make().eval()
quantize_(model, Float8WeightOnlyConfig())
with torch.no_grad():
    for count in decoded:
        assert torch.isfinite(model(input_ids=ids(count)).logits).all()
print(f"loss {loss.item():.4f}")

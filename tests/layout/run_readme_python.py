"""Runs the Python examples of the documents, each on its own: those of DOCUMENTS, of a whole page or below one heading. With the
word "slow" it runs those of SLOW instead: the examples that import transformers or PEFT, with a small mixture of experts as the
model "folder". What needs a package that is not there is skipped."""

import atexit
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
WHOLE = ""
DOCUMENTS = (
    *(("README.md", WHOLE), ("docs/python.md", WHOLE), ("docs/pytorch.md", "Quick start")),
    *(("docs/experts.md", WHOLE), ("docs/first_hour.md", WHOLE), ("docs/serving.md", WHOLE)),
)
SLOW = (
    *(("docs/transformers.md", WHOLE), ("docs/lora.md", WHOLE)),
    *(("docs/pytorch_inference.md", "Checkpoints"), ("docs/experts.md", WHOLE)),
)
NEEDS_A_MODEL = re.compile(r'"gpt-oss-20b"')
IS_SLOW = re.compile(r"^(import|from) (transformers|peft)\b", re.MULTILINE)
PACKAGES = ("torch", "transformers", "peft")


def blocks_of(name, heading):
    text = (ROOT / name).read_text(encoding="utf-8")
    if heading != WHOLE:
        text = re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    found = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no Python example"
    return found


def make_folder():
    """The models "folder" and, with FP8 linear layers, "folder-fp8" of the examples, in a working folder that they may write into."""
    from ingot.nn import Float8WeightOnlyConfig, quantize_, save_float8_checkpoint
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tempfile.tempdir = tempfile.mkdtemp()  # what the examples put into temporary folders goes with it, too
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
    os.chdir(tempfile.tempdir)
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 32}
    counts = {"vocab_size": 256, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **counts)).bfloat16()
    model.save_pretrained("folder")
    quantize_(model, Float8WeightOnlyConfig())
    save_float8_checkpoint(model, "folder-fp8")


lacking = [each for each in PACKAGES if importlib.util.find_spec(each) is None]
slow = sys.argv[1:] == ["slow"]
if slow and "transformers" not in lacking:
    make_folder()
for name, heading in SLOW if slow else DOCUMENTS:
    for block in blocks_of(name, heading):
        if NEEDS_A_MODEL.search(block) or bool(IS_SLOW.search(block)) != slow:
            continue
        needs = [each for each in lacking if re.search(rf"^(import|from) {each}\b", block, re.MULTILINE)]
        if needs:
            print(f"{name}: an example is skipped, because {needs[0]} is not installed")
            continue
        print(f"{name}:", flush=True)
        exec(compile(block, name, "exec"), {})

"""Runs the Python examples of the documents, each on its own: every ```python block of README.md and docs/python.md, that of
docs/pytorch.md below "Quick start", and those of docs/experts.md that need no model. Blocks that import torch need PyTorch."""

import importlib.util
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
WHOLE = ""
DOCUMENTS = (("README.md", WHOLE), ("docs/python.md", WHOLE), ("docs/pytorch.md", "Quick start"), ("docs/experts.md", WHOLE))
NEEDS_A_MODEL = re.compile(r"import (convert|quantize)_experts_|\(model, \"folder")


def blocks_of(name, heading):
    text = (ROOT / name).read_text(encoding="utf-8")
    if heading != WHOLE:
        text = re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    found = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no Python example"
    return found


has_torch = importlib.util.find_spec("torch") is not None
for name, heading in DOCUMENTS:
    for block in blocks_of(name, heading):
        if NEEDS_A_MODEL.search(block):
            continue
        if re.search(r"^import torch\b", block, re.MULTILINE) and not has_torch:
            print(f"{name}: an example is skipped, because PyTorch is not installed")
            continue
        print(f"{name}:", flush=True)
        exec(compile(block, name, "exec"), {})

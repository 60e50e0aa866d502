"""Runs the Python examples of the documents, each on its own: those of DOCUMENTS, of a whole page or below one heading. With the
word "slow" it runs those of SLOW instead, which need transformers and PEFT. What needs a package that is not there is skipped."""

import importlib.util
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
WHOLE = ""
DOCUMENTS = (
    *(("README.md", WHOLE), ("docs/python.md", WHOLE), ("docs/pytorch.md", "Quick start")),
    *(("docs/experts.md", WHOLE), ("docs/first_hour.md", WHOLE), ("docs/serving.md", WHOLE)),
)
SLOW = (("docs/transformers.md", "A model that you have"), ("docs/lora.md", WHOLE))
NEEDS_A_MODEL = re.compile(r"import (convert|quantize)_experts_|^quantize_experts_\(model\)|\(model, \"folder")
PACKAGES = ("torch", "transformers", "peft")


def blocks_of(name, heading):
    text = (ROOT / name).read_text(encoding="utf-8")
    if heading != WHOLE:
        text = re.split(r"^## ", text.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    found = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no Python example"
    return found


lacking = [each for each in PACKAGES if importlib.util.find_spec(each) is None]
for name, heading in SLOW if sys.argv[1:] == ["slow"] else DOCUMENTS:
    for block in blocks_of(name, heading):
        if NEEDS_A_MODEL.search(block):
            continue
        needs = [each for each in lacking if re.search(rf"^(import|from) {each}\b", block, re.MULTILINE)]
        if needs:
            print(f"{name}: an example is skipped, because {needs[0]} is not installed")
            continue
        print(f"{name}:", flush=True)
        exec(compile(block, name, "exec"), {})

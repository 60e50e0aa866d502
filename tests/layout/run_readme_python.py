"""Runs every ```python block of README.md and docs/python.md, each on its own."""

import pathlib
import re

root = pathlib.Path(__file__).parents[2]
for name in ("README.md", "docs/python.md"):
    blocks = re.findall(r"^```python\n(.*?)^```", (root / name).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"{name} has no Python example"
    for block in blocks:
        exec(compile(block, name, "exec"), {})

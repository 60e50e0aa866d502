"""Runs every ```python block of README.md."""

import pathlib
import re

readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
assert blocks, "README.md has no Python example"
for block in blocks:
    exec(compile(block, "README.md", "exec"), {})

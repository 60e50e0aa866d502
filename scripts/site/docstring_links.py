"""An extension of Griffe, which reads the Python package for the API pages: docstrings get links where they name a document
(docs/gemm.md) or a public name with its module (ingot.nn.convert)."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import griffe

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from public_names import PACKAGES, names_of

NAMES = {f"{package}.{name}" for package in PACKAGES for name in names_of(package)}
DOCUMENT = re.compile(r"\bdocs/([a-z0-9_/]+)\.md\b")
NAME = re.compile(r"(?<![\w.`/])(ingot(?:\.\w+)+)(\(\))?")


class DocstringLinks(griffe.Extension):
    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = "\n".join(self.linked(line) for line in obj.docstring.value.split("\n"))

    def linked(self, line: str) -> str:
        if line.startswith("    "):  # code
            return line
        line = DOCUMENT.sub(r"[docs/\1.md](../\1.md)", line)
        return NAME.sub(lambda match: f"[{match[0]}][{match[1]}]" if match[1] in NAMES else match[0], line)

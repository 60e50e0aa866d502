#!/usr/bin/env python3
"""The form of the files in bench/results: a head that says what ran where, then one case on a line, so that a new
measurement is a diff of its cases. The Python benchmarks write by it; bench/program.cpp does the same for those in C++.

    python3 bench/results_form.py FILE...            # brings files of any other writer into the form
    python3 bench/results_form.py --check FOLDER     # exit code 1 if a file of the folder lacks the head or the form
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

WIDTH = 120  # characters of a line that is not a case
CASE = 20000  # characters of a case; a longer one gets a line for each of its parts
HEAD = ("benchmark", "device", "driver", "date", "commit")
VERSIONS = ("ingot", "nvrtc", "cublaslt", "torch", "compiler")  # one of them at least
LINES = 2000  # of a file


def _lines(before: str, value: Any, after: str, depth: int) -> Iterator[str]:
    line = " " * depth + before + json.dumps(value, ensure_ascii=False, separators=(",", ":")) + after
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    plain = not any(isinstance(each, (dict, list)) for each in values)  # a curve, or a case's times by kernel
    if depth > 0 and (not values or (plain and depth > 1) or len(line) <= (WIDTH if depth == 1 else CASE)):
        yield line
        return
    names = (json.dumps(name, ensure_ascii=False) + ": " for name in value) if isinstance(value, dict) else None
    opening, closing = ("[", "]") if names is None else ("{", "}")
    yield " " * depth + before + opening
    for at, each in enumerate(values, 1):
        yield from _lines(next(names) if names else "", each, "," if at < len(values) else "", depth + 1)
    yield " " * depth + closing + after


def text_of(found: dict[str, Any]) -> str:
    return "\n".join(_lines("", found, "", 0)) + "\n"


def write(path: str | pathlib.Path, found: dict[str, Any]) -> None:
    pathlib.Path(path).write_text(text_of(found), encoding="utf-8")


def problems(path: pathlib.Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    head = {**found, **found.get("machine", {})}  # examples/train_gpt.py has its machine in a field
    lacking = [name for name in HEAD if not head.get(name)]
    if lacking or not any(head.get(name) for name in VERSIONS):
        yield f"{path}: its head lacks {', '.join(lacking) or 'a version'}"
    lines, expected = text.count("\n"), text_of(found).count("\n")
    if lines != expected:
        yield f"{path}: has {lines} lines instead of {expected}: run bench/results_form.py on it"
    if lines > LINES:
        yield f"{path}: has {lines} lines, at most {LINES}: keep what a page or a cost model is made from"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] != "--check":
        for path in map(pathlib.Path, arguments):
            write(path, json.loads(path.read_text(encoding="utf-8")))
        return 0
    files = [path for folder in arguments[1:] for path in sorted(pathlib.Path(folder).glob("*.json"))]
    found = [problem for path in files for problem in problems(path)]
    print("\n".join(found or [f"{len(files)} files have a head and the form"]))
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

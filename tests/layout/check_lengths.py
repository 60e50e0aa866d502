#!/usr/bin/env python3
"""check_lengths.py <source tree>
Files of the library have less than 520 lines, and its functions less than 60: longer ones do more than one job."""

import re
import sys
from pathlib import Path

MOST_LINES_OF_A_FILE = 519
MOST_LINES_OF_A_FUNCTION = 59
OPENS = re.compile(r"^ *[^#/ ].*\{$")
NO_FUNCTION = re.compile(r"^ *(?:(?:inline )?namespace|class|struct|union|enum|extern|template)\b|= *\{$|^ *\}|constexpr [^()]*\{$|^ *\w+\{$")


def first_line(lines: list[str], last: int) -> int:
    """Of the head that ends in line `last`: parentheses that close there may have been opened before."""
    first, depth = last, 0
    while True:
        depth += lines[first].count(")") - lines[first].count("(")
        if depth <= 0 or first == 0:
            return first
        first -= 1


def functions(text: str) -> list[tuple[int, int]]:
    """(first line, number of lines) of the outermost blocks that are no type and no namespace, within these."""
    lines = text.splitlines()
    found = []
    at = 0
    while at < len(lines):
        if not OPENS.match(lines[at]) or NO_FUNCTION.search(lines[at]):
            at += 1
            continue
        first = first_line(lines, at)
        while lines[first].startswith("      ") or lines[first].lstrip().startswith(":"):  # a constructor's initialisers
            first = first_line(lines, first - 1)
        while lines[first].lstrip().startswith("//"):
            first += 1
        indent = " " * (len(lines[first]) - len(lines[first].lstrip()))
        end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith(indent + "}")), len(lines) - 1)
        found.append((first + 1, end - first + 1))
        at = end + 1
    return found


def faults(path: str, text: str) -> list[str]:
    lines = text.count("\n")
    told = [f"{path}: {lines} lines, at most {MOST_LINES_OF_A_FILE}"] if lines > MOST_LINES_OF_A_FILE else []
    for first, length in functions(text):
        if length > MOST_LINES_OF_A_FUNCTION:
            told.append(f"{path}:{first}: a function of {length} lines, at most {MOST_LINES_OF_A_FUNCTION}")
    return told


def self_check() -> None:
    short = "namespace a {\nclass B {\n  int f(int x) {\n    return x;\n  }\n};\nint g(int y) {\n  return y;\n}\n}\n"
    assert functions(short) == [(3, 3), (7, 3)], functions(short)
    made = "A::A(int x,\n     int y)\n    : x_(x),\n      y_(y) {\n  run();\n}\nconstexpr int kTable[]{\n  1,\n};\n"
    assert functions(made) == [(1, 6)], functions(made)
    long = "namespace a {\nvoid f(int x) {\n" + "  x = 1;\n" * 58 + "}\n}\n"
    assert faults("a.cpp", long) == ["a.cpp:2: a function of 60 lines, at most 59"], faults("a.cpp", long)
    assert faults("b.h", "int x;\n" * 520) == ["b.h: 520 lines, at most 519"]
    assert not faults("c.h", short)


def main() -> int:
    self_check()
    root = Path(sys.argv[1])
    told, count = [], 0
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in (".h", ".cpp"):
            text = path.read_text()
            count += len(functions(text))
            told += faults(str(path.relative_to(root)), text)
    print("\n".join(told) if told else f"{count} functions")
    return 1 if told or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""check_names.py <source tree>
A type's name stands for one type in all of the library: two headers that define one name each compile, until a file
includes both, and until then the linker may take one type's functions for the other's."""

import re
import sys
from collections import defaultdict
from pathlib import Path

NAMESPACE = re.compile(r"^namespace ([\w:]+) \{|^\}  // namespace ([\w:]+)$", re.M)
TYPE = re.compile(r"^(?:class|struct|enum class) (?:INGOT_API )?(\w+)(?: final)?(?: : [^;{]+)? \{", re.M)


def types_of(text: str) -> list[str]:
    """The types that a header defines, with their namespace; no members, and no nested or specialised types."""
    marks = [(each.start(), each.group(1)) for each in NAMESPACE.finditer(text)]
    names = []
    for found in TYPE.finditer(text):
        open_ones = []
        for at, opened in marks:
            if at > found.start():
                break
            open_ones = [*open_ones, opened] if opened else open_ones[:-1]
        names.append("::".join([*open_ones, found.group(1)]))
    return names


def duplicates(headers: dict[str, str]) -> list[str]:
    files = defaultdict(list)
    for path, text in sorted(headers.items()):
        for name in types_of(text):
            files[name].append(path)
    twice = {name: " and by ".join(paths) for name, paths in files.items() if len(paths) > 1}
    return [f"{name} is defined by {paths}: rename one" for name, paths in twice.items()]


def self_check() -> None:
    within = "namespace ingot {{\n{}}}  // namespace ingot\n".format
    one = within("class Gpu final : public A<int> {\n};\nstruct Other::Part {\n};\nclass Later;\n")
    two = within("namespace cuda {\nstruct Late {\n};\n}  // namespace cuda\nstruct INGOT_API Gpu {\n};\n")
    assert types_of(one) == ["ingot::Gpu"] and types_of(two) == ["ingot::cuda::Late", "ingot::Gpu"]
    assert duplicates({"a.h": one, "b.h": two}) == ["ingot::Gpu is defined by a.h and by b.h: rename one"]
    assert not duplicates({"a.h": one})


def main() -> int:
    self_check()
    root = Path(sys.argv[1])
    headers = {str(path.relative_to(root)): path.read_text() for path in (root / "src").rglob("*.h")}
    faults = duplicates(headers)
    print("\n".join(faults) if faults else f"{sum(len(types_of(text)) for text in headers.values())} types")
    return 1 if faults or not headers else 0


if __name__ == "__main__":
    sys.exit(main())

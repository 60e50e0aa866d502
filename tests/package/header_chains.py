"""header_chains.py <include folder>: the installed headers in as few lines as it finds, each a chain.

A header of a chain includes all that stand before it in its line, by itself or through others. So whatever the compiler
has read when it comes to a header, that header includes too: a translation unit of a line shows of each of its headers
whether it compiles on its own, and the standard library is read once for all of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](ingot/[^>"]+)[>"]', re.MULTILINE)


def included(root: Path) -> dict[str, set[str]]:
    """What each header includes, by itself or through others."""
    own = {}
    for path in sorted(root.rglob("*.h")):
        own[str(path.relative_to(root))] = set(INCLUDE.findall(path.read_text()))
    closed: dict[str, set[str]] = {}

    def close(name: str) -> set[str]:
        if name not in closed:
            closed[name] = set()
            closed[name] = own.get(name, set()).union(*(close(other) for other in own.get(name, ())))
        return closed[name]

    return {name: close(name) for name in own}


def chains(of: dict[str, set[str]]) -> list[list[str]]:
    """As few chains as there can be: a maximum matching of headers with the next one in their chain."""
    following: dict[str, str] = {}
    before: dict[str, str] = {}

    def match(name: str, seen: set[str]) -> bool:
        for other, includes in of.items():
            if name not in includes or other in seen:
                continue
            seen.add(other)
            if other not in before or match(before[other], seen):
                following[name], before[other] = other, name
                return True
        return False

    for name in of:
        match(name, set())
    lines = []
    for name in of:
        if name not in before:
            line = [name]
            while line[-1] in following:
                line.append(following[line[-1]])
            lines.append(line)
    return lines


if __name__ == "__main__":
    for line in chains(included(Path(sys.argv[1]))):
        print(*line)

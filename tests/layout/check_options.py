#!/usr/bin/env python3
"""check_options.py <source tree>
The table in docs/install.md has every build option of CMakeLists.txt, with its default, and no other."""

import re
import sys
from pathlib import Path

OPTION = re.compile(r'^option\((\w+) "[^"]*" (\S+)\)$', re.MULTILINE)
VARIABLE = re.compile(r'^set\((\w+) "([^"]*)" CACHE \w+ "[^"]*"\)$', re.MULTILINE)
ANY = re.compile(r"^(?:option\(|set\(\w+ .*CACHE)", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*) \|", re.MULTILINE)
WORDS = {"ON": "on", "OFF": "off", "${PROJECT_IS_TOP_LEVEL}": "on its own", "${INGOT_QUICK_BUILD}": "as `INGOT_QUICK_BUILD`"}


def options(cmake: str) -> dict[str, str]:
    found = {name: WORDS.get(default, default) for name, default in OPTION.findall(cmake)}
    found |= {name: default or "empty" for name, default in VARIABLE.findall(cmake)}
    assert len(found) == len(ANY.findall(cmake)), "an option of CMakeLists.txt is written in a way that this check cannot read"
    return found


def documented(page: str) -> dict[str, str]:
    section = page.split("## Build options\n", 1)[1].split("\n## ", 1)[0]
    return dict(ROW.findall(section))


def main() -> int:
    root = Path(sys.argv[1])
    wanted = options((root / "CMakeLists.txt").read_text())
    told = documented((root / "docs/install.md").read_text())
    faults = [f"{name}: CMakeLists.txt says {wanted.get(name)}, docs/install.md {told.get(name)}"
              for name in sorted(wanted | told) if wanted.get(name) != told.get(name)]
    print("\n".join(faults) if faults else f"{len(wanted)} options")
    return 1 if faults or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())

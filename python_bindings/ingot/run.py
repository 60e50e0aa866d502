"""python3 -m ingot.run: a program that uses torchao.float8 runs with Ingot's layers, without a change of its code.

    python3 -m ingot.run train.py --epochs 3            # as python3 train.py --epochs 3
    python3 -m ingot.run -m package.train               # as python3 -m package.train
    torchrun --nproc_per_node 8 -m ingot.run train.py
    accelerate launch --mixed_precision fp8 -m ingot.run train.py

`import torchao.float8` gives ingot.float8 (ingot.float8.replace_torchao()). Where torchao is not installed, what asks for its
version, as accelerate does, is told that of the interface that Ingot has.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
import sys
from typing import Any, Iterator, List, Optional

INTERFACE = "0.18.0"  # of torchao.float8, which ingot.float8 has


class _Distribution(importlib.metadata.Distribution):
    """What is known of an installed torchao, where there is none."""

    def read_text(self, filename: str) -> Optional[str]:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: torchao\nVersion: {INTERFACE}\nSummary: ingot.float8 in the place of torchao\n"

    def locate_file(self, path: Any) -> Any:
        return path


class _Finder(importlib.metadata.DistributionFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        if context is None or context.name in (None, "torchao"):
            yield _Distribution()


def in_place_of_torchao() -> None:
    """From now on this process has Ingot's torchao.float8, installed or not. A second call does nothing."""
    is_missing = importlib.util.find_spec("torchao") is None
    from .float8 import replace_torchao

    replace_torchao()
    if is_missing:
        sys.meta_path.append(_Finder())


def main(arguments: List[str]) -> None:
    """Runs a program in this process, as __main__."""
    is_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if is_module else arguments
    if not rest or rest[0].startswith("-"):
        print("usage: python3 -m ingot.run [-m] PROGRAM [ARGUMENT...]", file=sys.stderr)
        sys.exit(0 if rest[:1] in (["-h"], ["--help"]) else 2)
    in_place_of_torchao()
    sys.argv = rest
    if is_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = rest[0].rpartition("/")[0]
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])

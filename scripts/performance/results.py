"""The files of a folder of benchmark results, and how figures are written on the page."""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from performance import ages

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ("tensorwise", "delayed", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")
LAYER = "layernorm, linear, sigmoid"  # what is compared with torch.compile
CARDS = ("h200", "h100")  # whose figures stand in one row, in this order

Json = dict[str, Any]


class Results:
    """The files of one folder, and what they are called on the page."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.link = "../bench/results/" if folder.resolve() == ROOT / "bench/results" else ""

    def named(self, file: str) -> str:
        return f"[{file}]({self.link}{file})"

    def source(self, file: str, found: Json) -> str:
        """Where figures come from: device, commit, date and file, and how often what they time has changed since."""
        parts = [found.get("device", ""), found.get("torch", ""), found.get("commit", ""), found.get("date", "")]
        labels = ("", "PyTorch ", "commit ", "")
        told = ", ".join(label + str(part) for label, part in zip(labels, parts, strict=True) if part)
        age = ages.mark(ROOT, str(found.get("benchmark", "")), str(found.get("commit", ""))) if self.link else ""
        return f"{told}{age} ({self.named(file)})"

    def noted(self, file: str, found: Json) -> str:
        """The same, and the file's note."""
        return self.source(file, found) + (f"; {found['note']}" if "note" in found else "")

    def sources(self, of: Iterable[tuple[str, str, Json]], noted: bool = False) -> list[str]:
        """The line under a table that has the figures of each card in one row; with the files' notes."""
        told = "; ".join((self.noted if noted else self.source)(file, found) for _, file, found in of) + "."
        return [" ".join([told, *self.lacking(told)]), ""]

    def lacking(self, told: str) -> list[str]:
        """"No H100 result." under figures of an H200 alone, if the folder has others of an H100."""
        here = [card for card in CARDS if any(self.folder.glob(f"*_{card}.json"))]
        named = [card for card in here if f"NVIDIA {card.upper()}" in told]
        sentences = [f"No {card.upper()} result." for card in here if named and card not in named]
        return [sentence for sentence in sentences if sentence not in told]

    def of(self, name: str) -> list[tuple[str, str, Json]]:
        """(device, file name, content) of each file <name>_<device>.json, the newer card first, or of bench_<name>.json."""
        found = []
        for path in sorted(self.folder.glob(f"{name}_*.json")) + sorted(self.folder.glob(f"bench_{name}.json")):
            match = re.fullmatch(rf"{name}_([a-z]+[0-9]+[a-z0-9]*|cpu)\.json", path.name)
            if match or path.name == f"bench_{name}.json":
                device = match[1] if match else ""
                found.append((device, path.name, json.loads(path.read_text(encoding="utf-8"))))
        return sorted(found, key=lambda each: each[0], reverse=True)

    def of_device(self, name: str, device: str) -> Json | None:
        """The results of another benchmark on the same device."""
        return next((content for of, _, content in self.of(name) if of == device), None)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows] + [""]


def joined(cells: Iterable[str]) -> str:
    """The figures of each card; one "-" where none has one."""
    cells = list(cells)
    return " · ".join(cells) if any(cell != "-" for cell in cells) else "-"


def by_card(name: str, of: Iterable[tuple[str, str, Json]]) -> str:
    """The head of a table's first column, with the cards in their order."""
    cards = [device.upper() for device, _, _ in of if device]
    return f"{name} ({' · '.join(cards)})" if cards else name


def percent(share: float, sign: str = "", digits: int = 2) -> str:
    return f"{100 * share:{sign}.{digits}f} %"


def times(ratio: float | None, digits: int = 2) -> str:
    """Of a ratio that is better the larger it is: cut, never rounded up."""
    if ratio is None:
        return "-"
    scale = 10**digits
    return f"{math.floor(ratio * scale + 1e-6) / scale:.{digits}f}"


def geometric(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def median(case: Json) -> float | None:
    return case["us"]["median"] if "us" in case else None


def plot(results: Results, file: str, words: str) -> list[str]:
    """A picture of docs/, shown on the page."""
    return [f"![{words}]({file})", ""] if results.link and (ROOT / "docs" / file).exists() else []

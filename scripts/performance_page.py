#!/usr/bin/env python3
"""Writes docs/performance.md: the figures of a folder of benchmark results, in tables, each with the device, commit and
date of its run. Nothing in it is written by hand, and what the folder lacks is left out.

    scripts/performance_page.py                            # docs/performance.md from bench/results
    scripts/performance_page.py --check                    # exit code 1 if it is not what the script writes
    scripts/performance_page.py --results DIR --page FILE  # of other results, such as those of gpu_check.sh

A file is found by its name: cast_h200.json, cast_h100.json (one table for each device), or bench_cast.json, as
gpu_check.sh names it. cast_again_h200.json has the casts that changed after cast_h200.json, for a table of their own.
Of gemm_untuned_h200.json, gemm_untuned_2_h200.json and so on, the newest list of a device counts.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, Optional

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = (
    *("tensor fast", "row fast", "tensor accurate", "row accurate"),
    *("blocks", "blocks read", "groups", "groups read"),
)
RECIPES = ("tensorwise", "delayed", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")
BESIDE = "layernorm, linear, sigmoid"  # the layer that torch.compile has too
WIDTH = 120  # characters of a line of prose
WORST = 12  # lines of the list of what is behind

Json = dict[str, Any]


class Results:
    """The files of one folder, and what they are called on the page."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.link = "../bench/results/" if folder.resolve() == ROOT / "bench/results" else ""

    def named(self, file: str) -> str:
        return f"[{file}]({self.link}{file})"

    def source(self, file: str, found: Json) -> str:
        """Where figures come from: device, commit, date and file."""
        parts = [found.get("device", ""), found.get("torch", ""), found.get("commit", ""), found.get("date", "")]
        labels = ("", "PyTorch ", "commit ", "")
        told = ", ".join(label + str(part) for label, part in zip(labels, parts, strict=True) if part)
        return f"{told} ({self.named(file)})"

    def of(self, name: str) -> list[tuple[str, str, Json]]:
        """(device, file name, content) of each file <name>_<device>.json, or of bench_<name>.json."""
        found = []
        for path in sorted(self.folder.glob(f"{name}_*.json")) + sorted(self.folder.glob(f"bench_{name}.json")):
            match = re.fullmatch(rf"{name}_([a-z]+[0-9]+[a-z0-9]*)\.json", path.name)
            if match or path.name == f"bench_{name}.json":
                device = match[1] if match else ""
                found.append((device, path.name, json.loads(path.read_text(encoding="utf-8"))))
        return found

    def beside(self, name: str, device: str) -> Json | None:
        """The results of another benchmark on the same device."""
        return next((content for of, _, content in self.of(name) if of == device), None)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows] + [""]


def percent(share: float, sign: str = "", digits: int = 2) -> str:
    return f"{100 * share:{sign}.{digits}f} %"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def geometric(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def median(case: Json) -> float | None:
    return case["us"]["median"] if "us" in case else None


def plot(results: Results, file: str, words: str) -> list[str]:
    """A picture of docs/, on the page beside it."""
    return [f"![{words}]({file})", ""] if results.link and (ROOT / "docs" / file).exists() else []


# ---- casts -----------------------------------------------------------------------------------------------------------


def casts(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("cast"):
        torch = results.beside("cast_torch", device)
        compiled = {(c["case"], c["rows"]): median(c) for c in torch["cases"]} if torch else {}
        rows = []
        for case in found["cases"]:
            us = median(case)
            if us is None or (case["rows"], case["cols"]) != (8192, 8192):
                continue
            theirs = compiled.get((case["case"], 8192))
            target = case.get("target")
            rows.append(
                (
                    case["case"],
                    f"{us:.1f}",
                    f"{case['of_copy_ceiling']:.3f}",
                    "-" if target is None else f"{target:.2f}",
                    times(theirs / us if theirs else None),
                )
            )
        lines += [results.source(file, found) + "; 8192 x 8192, bf16 to e4m3fn:", ""]
        lines += table(("work", "us", "of a copy's speed", "target", "times as fast as torch.compile"), rows)
        lines += ["All sizes, of a copy's speed; transposed codes of 2998, 3000 and 3001 rows start at any address:", ""]
        lines += casts_by_size(found["cases"])
        lines += casts_again(results, device)
    return lines


def casts_again(results: Results, device: str) -> list[str]:
    """Cases that a later commit changed, measured without the others: cast_again_<device>.json."""
    lines = []
    for of, file, found in results.of("cast_again"):
        if of == device:
            lines += [results.source(file, found) + "; what has changed since, of a copy's speed:", ""]
            lines += casts_by_size(found["cases"])
    return lines


def casts_by_size(cases: list[dict]) -> list[str]:
    """A column for each size, by columns; and the same beside copies of the same size, if they were measured."""
    lines = by_size(cases, "of_copy_ceiling")
    if any("of_same_size_copy" in case for case in cases):
        lines += ["The same, of the speed of a copy of as many bytes, timed in turns with each:", ""]
        lines += by_size(cases, "of_same_size_copy")
    return lines


def by_size(cases: list[dict], ratio: str) -> list[str]:
    rows: dict[str, dict[tuple[int, int], str]] = {}
    for case in cases:
        if median(case) is not None:
            rows.setdefault(case["case"], {})[case["rows"], case["cols"]] = f"{case[ratio]:.2f}"
    sizes = sorted({size for row in rows.values() for size in row}, key=lambda size: (size[1], size[0]))
    cells = ([work, *(row.get(size, "-") for size in sizes)] for work, row in rows.items())
    return table(("work", *(f"{m}x{n}" for m, n in sizes)), cells)


# ---- GEMMs -----------------------------------------------------------------------------------------------------------


def split(case: str) -> tuple[str, str]:
    shape, _, mode = case.partition(", ")
    return shape, mode


def gemm_times(case: Json) -> tuple[float | None, float | None]:
    """Ingot's time and that of cuBLASLt's best algorithm."""
    ours = [final["us"]["median"] for final in case["finals"] if final["kernel"].startswith("sm90") and "us" in final]
    theirs = [f["us"]["median"] for f in case["finals"] if f["kernel"].startswith("cublaslt") and "us" in f]
    return min(ours, default=None), min(theirs, default=None)


def gemms(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("gemm"):
        shapes: dict[str, dict[str, str]] = {}
        over_bf16: dict[str, list[float]] = {}
        for case in found["cases"]:
            shape, mode = split(case["case"])
            ours, theirs = gemm_times(case)
            if mode not in MODES or ours is None:
                continue
            fast = case["bf16_us"] / ours if "bf16_us" in case else None
            if fast is not None:
                over_bf16.setdefault(mode, []).append(fast)
            beside = f" ({theirs / ours:.2f})" if theirs is not None else ""
            shapes.setdefault(shape, {})[mode] = times(fast) + beside
        modes = [mode for mode in MODES if any(mode in row for row in shapes.values())]
        rows = [[shape, *(row.get(mode, "-") for mode in modes)] for shape, row in shapes.items()]
        rows.append(["geometric mean", *(times(geometric(over_bf16.get(mode, []))) for mode in modes)])
        lines += [results.source(file, found) + ":", ""]
        lines += table(("M x K x N", *modes), rows)
        lines += deep_gemm(results, device)
    return lines


def deep_gemm(results: Results, device: str) -> list[str]:
    theirs, ours = results.beside("deepgemm", device), results.beside("gemm_blocks", device)
    if theirs is None or ours is None:
        return []
    peers = {case["case"]: median(case) for case in theirs["cases"]}
    ratios = []
    for case in ours["cases"]:
        us, peer = gemm_times(case)[0], peers.get(case["case"])
        if us is not None and peer is not None:
            ratios.append(peer / us)
    if not ratios:
        return []
    return [
        f"Blocks beside DeepGEMM {theirs['deep_gemm']}, one after the other in a session: {times(geometric(ratios))} "
        f"of its speed on the geometric mean of {len(ratios)} shapes, {times(min(ratios))} at worst, "
        f"{times(max(ratios))} at best ({results.source(f'gemm_blocks_{device}.json', ours)}).",
        "",
    ]


def epilogues(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("gemm"):
        rows: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            shape, mode = split(case["case"])
            sums, comma, epilogue = mode.partition(", ")
            plain = next((median(f) for f in case["finals"] if f["kernel"] == "without epilogue"), None)
            ours = gemm_times(case)[0]
            if comma and plain is not None and ours is not None:
                rows.setdefault(epilogue, {})[f"{shape}, {sums}"] = f"{plain / ours:.3f}"
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        if rows:
            lines += [results.source(file, found) + ":", ""]
            cells = ([epilogue, *(row.get(column, "-") for column in columns)] for epilogue, row in rows.items())
            lines += table(("epilogue", *columns), cells)
    return lines


def choices(results: Results) -> list[str]:
    lines = []
    newest = {}  # of each device's lists
    for name in ("choice", "gemm_untuned", "gemm_untuned_2", "gemm_untuned_3"):
        newest |= {device: (file, found) for device, file, found in results.of(name)}
    for file, found in newest.values():
        summary = found["summary"]
        lines += [
            f"Without tuning, {summary['near']} of {summary['measured']} GEMMs that nothing was fitted on run within "
            f"{percent(1 - summary['limit'], digits=0)} of the best that tuning finds; "
            f"{times(summary['geometric'])} of it on the geometric mean, {times(summary['worst'])} at worst. "
            f"{results.source(file, found)}.",
            "",
        ]
    return lines


# ---- layers ----------------------------------------------------------------------------------------------------------


def gradients(results: Results) -> list[str]:
    """Ways in the order of bench_gradients: two launches, then one, if there can be one."""
    lines = []
    for _, file, found in results.of("gradients"):
        rows: dict[str, dict[str, str]] = {}
        for case in found["cases"]:
            size, kind = split(case["case"])
            apart = median(case["ways"][0])
            one = median(case["ways"][1]) if len(case["ways"]) > 1 else None
            if apart is None:
                continue
            cell = f"{apart:.1f}" if one is None else f"{apart:.1f} / {one:.1f} ({times(apart / one)})"
            chosen = next((at for at, way in enumerate(case["ways"]) if way["chosen"]), 0)
            rows.setdefault(size, {})[kind] = cell + (" *" if chosen else "")
        kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
        cells = ([size, *(row.get(kind, "-") for kind in kinds)] for size, row in rows.items())
        lines += [results.source(file, found) + ":", "", *table(("tokens x in x out", *kinds), cells)]
    return lines


def square(case: Json) -> bool:
    return case["work"] == BESIDE and case["tokens"] == case["in_features"] == case["out_features"]


def layers(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("linear"):
        torch = results.beside("torch_linear", device)
        compiled = {case["case"]: median(case) for case in torch["cases"]} if torch else {}
        rows = []
        for case in filter(square, found["cases"]):
            us = {r["recipe"]: median(r) for r in case["recipes"] if not r.get("side_stream") and "us" in r}
            theirs = compiled.get(case["case"])
            own = us.get("high_precision")
            rows.append(
                [
                    str(case["tokens"]),
                    f"{own:.0f}" if own else "-",
                    f"{theirs:.0f}" if theirs else "-",
                    *(f"{us[recipe]:.0f}" if us.get(recipe) else "-" for recipe in RECIPES),
                ]
            )
        apart = " (torch.compile in another session)" if torch else ""
        lines += [results.source(file, found) + f", one stream, us{apart}:", ""]
        lines += table(("n", "Ingot bf16", "torch.compile bf16", *RECIPES), rows)
        lines += plot(results, f"linear_{device}.svg", "speed over Ingot's bf16 by recipe and size")
    return lines


# ---- weight-only -----------------------------------------------------------------------------------------------------


def weight_only(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("weight_only"):
        shapes: dict[str, dict[int, str]] = {}
        for case in found["cases"]:
            us = median(case.get("ours", {}))
            if us is None or "e4m3fn" not in case["spec"] or "scale=row" not in case["spec"]:
                continue
            shapes.setdefault(split(case["case"])[0], {})[case["m"]] = (
                f"{case['bf16_us'] / us:.2f} ({case['read_us'] / us:.2f})"
            )
        tokens = sorted({m for row in shapes.values() for m in row})
        rows = [[shape, *(row.get(m, "-") for m in tokens)] for shape, row in shapes.items()]
        lines += [results.source(file, found) + ", e4m3fn with a factor for each row:", ""]
        lines += table(("weight", *(f"M = {m}" for m in tokens)), rows)
        lines += weight_only_peers(results, device, found)
    return lines


def weight_only_peers(results: Results, device: str, ours: Json) -> list[str]:
    lines = []
    for of, file, found in results.of("weight_only_torch"):
        if of != device:
            continue
        rows = []
        for case in found["cases"]:
            same = (c for c in ours["cases"] if all(c[extent] == case[extent] for extent in ("m", "n", "k")))
            us = next((median(c["ours"]) for c in same if "e4m3fn" in c["spec"] and "scale=row" in c["spec"]), None)
            theirs = median(case)
            if theirs is not None and us is not None:
                rows.append((f"{case['n']}x{case['k']}, M = {case['m']}", case["mode"], f"{theirs:.1f}", f"{us:.1f}"))
        lines += [results.source(file, found) + ", in another session:", ""]
        lines += table(("weight", "peer", "us", "Ingot, us"), rows)
    return lines


def decoding(results: Results) -> list[str]:
    lines = []
    for path in sorted(results.folder.glob("generate_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        plain = next((run["tokens_per_second"] for run in found["runs"] if run["weights"] == "bf16"), None)
        rows = [
            (
                run["weights"],
                f"{run['tokens_per_second']:.0f}",
                times(run["tokens_per_second"] / plain if plain else None),
                f"{run['gigabytes_per_second'] / 1000:.2f}",
            )
            for run in found["runs"]
        ]
        model = f"{found['layers']} layers of {found['hidden']} and {found['intermediate']}, batch {found['batch']}"
        lines += [results.source(path.name, found) + f", {model}:", ""]
        lines += table(("weights", "tokens/s", "over bf16", "TB/s of weights"), rows)
    return lines


def decoding_in_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("decode_torch"):
        rows = [(one["weights"], f"{one['tokens_per_second']:.0f}", times(one["of_bf16"])) for one in found["results"]]
        model = f"{found['model']['layers']} layers of {found['model']['hidden']} and {found['model']['intermediate']}"
        lines += [results.source(file, found) + f", {model}, batch 1:", ""]
        lines += table(("weights", "tokens/s", "of bf16"), rows)
    return lines


# ---- compiling and calling -------------------------------------------------------------------------------------------


def compiles(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("compile"):
        processor = {kernel["kernel"]: kernel["processor_ms"]["median"] for kernel in found["kernels"]}
        empty = processor.get("an empty kernel")
        rows = [
            (name, f"{ms:.0f}", f"{ms / empty:.1f}" if empty else "-")
            for name, ms in processor.items()
            if name != "an empty kernel"
        ]
        lines += [results.source(file, found) + f"; an empty kernel takes {empty:.0f} ms:" if empty else "", ""]
        lines += table(("kernel", "ms of a processor", "empty kernels"), rows)
    return lines


def host(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("linear"):
        costs = found.get("host_us_of_a_256_step")
        if isinstance(costs, dict):
            rows = [(recipe, f"{us:.1f}") for recipe, us in costs.items()]
            lines += [results.source(file, found) + ":", "", *table(("recipe", "us"), rows)]
    return lines


# ---- training --------------------------------------------------------------------------------------------------------


def speed(value: Optional[float]) -> str:
    """None where a run noted no speed: --shared-gpu."""
    return "-" if value is None else f"{value:.2f}"


def training(results: Results) -> list[str]:
    lines = []
    for path in sorted(results.folder.glob("train_sweep_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        recipes = [r for r in RECIPES if any(r in c["recipes"] for c in found["compared"])]
        rows = []
        for case in found["compared"]:
            cells = [f"{case['text']}, {case['blocks']} blocks", percent(case["bf16_spread"])]
            for recipe in recipes:
                one = case["recipes"].get(recipe)
                cells.append(f"{speed(one['speed'])} ({percent(one['gap'], '+')})" if one else "-")
            if case["recipes"]:
                rows.append(cells)
        lines += [results.source(path.name, found) + ":", ""]
        lines += table(("text, size", "bf16's seeds differ by", *recipes), rows)
    return lines


def losses_of_gpt(results: Results) -> list[str]:
    lines = []
    for device, file, found in results.of("train_gpt_losses"):
        by_variant: dict[str, list[Json]] = {}
        for run in found["runs"]:
            by_variant.setdefault(run["variant"], []).append(run)
        rows = []
        for variant, runs in by_variant.items():
            values = ", ".join(f"{run['validation_loss']:.4f}" for run in runs)
            rows.append((variant, values, f"{max(run['peak_bytes'] or 0 for run in runs) / 2**20:.0f}"))
        shape = found["settings"]["shape"]
        model = f"{shape['blocks']} blocks of {shape['width']}, {found['settings']['tokens_per_step']} tokens a step"
        lines += [results.source(file, {**found["machine"], **found}) + f"; {model}, losses by seed:", ""]
        lines += table(("variant", "validation loss", "peak MiB"), rows)
        lines += [f"- {'holds' if one['holds'] else 'FAILS'}: {one['line']}" for one in found["verdicts"]] + [""]
        lines += plot(results, f"train_gpt_losses_{device}.svg", "losses of a GPT in bf16 and with every recipe")
    return lines


def speeds_of_gpt(results: Results) -> list[str]:
    """One table for each device; a file has one width or more."""
    lines = []
    devices: dict[str, list[tuple[str, Json]]] = {}
    for path in sorted(results.folder.glob("train_gpt_speed_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        devices.setdefault(found["machine"]["device"], []).append((path.name, found))
    for files in devices.values():
        rows: dict[str, dict[int, str]] = {}
        for _, found in files:
            rates = {c["variant"]: c for c in found["cases"] if "tokens_per_second" in c}
            compiled = rates.get("torch:bf16+compile")
            for variant, case in rates.items():  # a ratio is one of the same run
                rate = case["tokens_per_second"]["median"]
                ratio = rate / compiled["tokens_per_second"]["median"] if compiled else None
                rows.setdefault(variant, {}).setdefault(case["width"], f"{rate:.0f} ({times(ratio)})")
        widths = sorted({width for row in rows.values() for width in row}, reverse=True)
        lines += [f"{files[0][1]['settings']['tokens']} tokens a step:", ""]
        lines += [f"- {results.source(name, found['machine'])}" for name, found in files] + [""]
        cells = ([variant, *(row.get(width, "-") for width in widths)] for variant, row in rows.items())
        lines += table(("variant", *(f"width {width}" for width in widths)), cells)
    return lines


def from_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("eager"):
        us: dict[str, dict[int, float]] = {}
        for case in found["cases"]:
            if case["work"] == BESIDE and "gpu_us" in case:
                us.setdefault(case["layer"], {})[case["size"]] = case["gpu_us"]["median"]
        sizes = sorted({size for row in us.values() for size in row})
        compiled = us.get("torch bf16, compiled", {})
        rows = []
        for layer, row in us.items():
            cells = (f"{row[n]:.0f} ({times(compiled.get(n, 0) / row[n])})" if n in row else "-" for n in sizes)
            rows.append([layer, *cells])
        lines += [results.source(file, found) + ":", "", *table(("layer", *(f"n = {n}" for n in sizes)), rows)]
    return lines


def host_from_pytorch(results: Results) -> list[str]:
    lines = []
    for _, file, found in results.of("torch_host"):
        rows = [
            (
                one["recipe"],
                f"{one['rank']}-D",
                "yes" if one["bias"] else "no",
                *(f"{one['parts'][part]:.0f}" for part in ("core", "operator", "autograd", "module")),
                f"{one['us']['ingot module']:.0f}",
                f"{one['us']['nn.Linear bf16']:.0f}",
                times(one["us"]["ingot module"] / one["us"]["nn.Linear bf16"]),
            )
            for one in found["results"]
            if "us" in one
        ]
        head = ("recipe", "input", "bias", "core", "operator", "autograd", "module", "us", "bf16, us", "of bf16's time")
        lines += [results.source(file, found) + ":", "", *table(head, rows)]
    return lines


# ---- what is behind --------------------------------------------------------------------------------------------------


def behind(results: Results) -> list[str]:
    """What is slower than its peer or misses its target, worst first."""
    found: list[tuple[float, str, str]] = []
    for _, file, content in results.of("gemm"):
        for case in content["cases"]:
            ours, theirs = gemm_times(case)
            if ours is not None and theirs is not None:
                found.append((theirs / ours, f"GEMM {case['case']}: gemm_sm90 over cuBLASLt's best", file))
    for _, file, content in results.of("cast"):
        for case in content["cases"]:
            if case.get("target") and "us" in case:
                ratio = case["of_copy_ceiling"] / case["target"]
                what = f"{case['case']} {case['rows']} x {case['cols']}: speed over its target"
                found.append((ratio, what, file))
    for device, file, content in results.of("linear"):
        torch = results.beside("torch_linear", device)
        compiled = {case["case"]: median(case) for case in torch["cases"]} if torch else {}
        for case in filter(square, content["cases"]):
            theirs = compiled.get(case["case"])
            for recipe in case["recipes"]:
                us = median(recipe)
                if theirs is None or us is None or recipe.get("side_stream") or case["tokens"] < 2048:
                    continue
                what = f"layer n = {case['tokens']}, {recipe['recipe']}: speed over torch.compile's bf16"
                found.append((theirs / us, what, file))
    rows = [(f"{ratio:.2f}", what, file) for ratio, what, file in sorted(found) if ratio < 0.995]
    if not rows:
        return []
    kept = [(ratio, what, results.named(file)) for ratio, what, file in rows[:WORST]]
    return [f"The worst {len(kept)} of {len(rows)} ratios below 1:", "", *table(("ratio", "of", "from"), kept)]


SECTIONS = (
    (
        "Layers",
        "LayerNorm, linear layer and sigmoid with n tokens, n inputs and n outputs, forward and backward, the weight "
        "cast in every step. More: [layer_speed.md](layer_speed.md).",
        layers,
    ),
    (
        "Layers from PyTorch",
        "The same step from PyTorch in one run: all take turns, in CUDA graphs, in an order that moves on. Microseconds, "
        "and in brackets times as fast as torch.compile's bf16. More: [pytorch.md](pytorch.md).",
        from_pytorch,
    ),
    (
        "GEMMs",
        "Times as fast as cuBLASLt's best bf16 kernel; in brackets over cuBLASLt's best for the same FP8 GEMM. What "
        "the columns mean: [gemm.md](gemm.md#speed).",
        gemms,
    ),
    (
        "Epilogues",
        "Speed as a share of the same kernel's without the epilogue. More: [notes/gemm.md](notes/gemm.md#epilogues).",
        epilogues,
    ),
    (
        "Gradients",
        "The GEMMs of a layer's two gradients, microseconds in two launches and in one, and in brackets how many times as "
        "fast one is; * where the library of that commit took one (since then neither of 1536 cubed in bf16 nor, with FP8, "
        "below 5e8 products). More: [notes/gemm.md](notes/gemm.md#two-gemms-in-one-launch).",
        gradients,
    ),
    ("Choice without tuning", "How tuning works: [tuning.md](tuning.md).", choices),
    ("Casts and norms", "What bounds them: [notes/casts.md](notes/casts.md), [notes/norms.md](notes/norms.md).", casts),
    (
        "Weight-only",
        "Times as fast as with a bf16 weight; in brackets the share of the speed at which the weight can be read at "
        "all. Other formats: [weight_only.md](weight_only.md#speed).",
        weight_only,
    ),
    ("Decoding", "A Llama in CUDA graphs. More: [decoding.md](decoding.md).", decoding),
    (
        "Decoding in PyTorch",
        "A Llama with WeightOnlyLinear in CUDA graphs, from eager and compiled, over bf16 run in the same way. More: "
        "[pytorch_inference.md](pytorch_inference.md).",
        decoding_in_pytorch,
    ),
    (
        "Training",
        "Tokens per second over Ingot's bf16, and in brackets how far the validation loss is from bf16's. How it is "
        "compared: [training_runs.md](training_runs.md).",
        training,
    ),
    (
        "Training in PyTorch: speed",
        "Tokens per second of a GPT, and in brackets times as fast as torch.compile's bf16; variants without +compile run "
        "from eager. More: [train_gpt.md](train_gpt.md).",
        speeds_of_gpt,
    ),
    (
        "Training in PyTorch: losses",
        "A GPT after 800 steps. More: [train_gpt.md](train_gpt.md).",
        losses_of_gpt,
    ),
    (
        "Compiling a kernel",
        "The first time; from then on it comes from the store. More: [notes/compile_time.md](notes/compile_time.md).",
        compiles,
    ),
    ("The host's share", "Of a layer's step, forward and backward, of 256 x 256 x 256.", host),
    (
        "The host's share from PyTorch",
        "Microseconds of a step from eager PyTorch, forward and backward, of a 256 x 256 layer.",
        host_from_pytorch,
    ),
    ("What is behind", "Computed from the same files.", behind),
)


def page(results: Results) -> str:
    lines = [
        "# Performance",
        "",
        "For everyone who asks how fast Ingot is, and beside what. `scripts/performance_page.py` writes this page from "
        "[bench/results](../bench/results), and a test compares the two: change results, not the page. How a time is "
        "taken: [benchmarks.md](benchmarks.md).",
        "",
    ]
    for title, words, section in SECTIONS:
        found = section(results)
        if found:
            lines += [f"## {title}", "", words, "", *found]
    return "\n".join(wrapped(lines)).rstrip("\n") + "\n"


def wrapped(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        prose = textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        yield line if line.startswith("|") else prose


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    written = page(Results(options.results))
    if not options.check:
        options.page.write_text(written, encoding="utf-8")
        return 0
    there = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    if there == written:
        return 0
    lines = zip(there.splitlines() + [""], written.splitlines() + [""], strict=False)
    first = next((number for number, (old, new) in enumerate(lines, 1) if old != new), 1)
    print(f"{options.page}:{first}: is not what scripts/performance_page.py writes: run it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""docs/comparison.md: recipes next to each other, and Ingot next to other libraries, with what they do better."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from performance.kernels import cast_cases, gemm_files, gemm_times, split
from performance.results import LAYER, RECIPES, Json, Results, geometric, median, percent, table, times

WINS = 1.0  # a ratio below it is the peer's win


class Duel(NamedTuple):
    """Two figures of one run. The ratio is above 1 where Ingot's is better."""

    subject: str
    what: str
    peer: str
    ours: str
    theirs: str
    ratio: float
    file: str


def fields_of_recipes(results: Results) -> dict[str, dict[str, float]]:
    """Of each recipe: its layer's speed over compiled bf16 by n, its loss over bf16's, its peak of memory over bf16's."""
    rows: dict[str, dict[str, float]] = {}
    for _, _, found in results.of("eager")[:1]:
        us = {(c["layer"], c["size"]): c["gpu_us"]["median"] for c in found["cases"] if c["work"] == LAYER and "gpu_us" in c}
        for (layer, size), time in us.items():
            if layer.startswith("ingot ") and ("torch bf16, compiled", size) in us:
                rows.setdefault(layer.removeprefix("ingot "), {})[f"n = {size}"] = us["torch bf16, compiled", size] / time
    for _, _, found in results.of("train_gpt_losses")[:1]:
        bf16 = {run["seed"]: run for run in found["runs"] if run["variant"] == "torch:bf16"}
        for run in found["runs"]:
            if run["variant"].startswith("ingot:") and run["seed"] in bf16:
                row = rows.setdefault(run["variant"].removeprefix("ingot:"), {})
                row["loss"] = run["validation_loss"] / bf16[run["seed"]]["validation_loss"] - 1
                row["memory"] = run["peak_bytes"] / bf16[run["seed"]]["peak_bytes"]
    return {recipe: rows[recipe] for recipe in RECIPES if recipe in rows}


def spread_of_bf16(found: Json) -> float:
    losses = [run["validation_loss"] for run in found["runs"] if run["variant"] == "torch:bf16"]
    return max(losses) / min(losses) - 1


def recipes(results: Results) -> list[str]:
    rows = fields_of_recipes(results)
    speeds = list(dict.fromkeys(name for row in rows.values() for name in row if name.startswith("n = ")))
    if not rows or not all("loss" in row for row in rows.values()):
        return []
    (_, eager, of_layers), (_, gpt, of_gpt) = results.of("eager")[0], results.of("train_gpt_losses")[0]
    spread = spread_of_bf16(of_gpt)
    near = all(abs(row["loss"]) <= spread for row in rows.values())
    cells = [
        (recipe, *(times(row.get(name)) for name in speeds), percent(row["loss"], "+"), f"{row['memory']:.3f}")
        for recipe, row in rows.items()
    ]
    return [
        f"Speed of LayerNorm, linear layer and sigmoid, forward and backward, with n tokens, inputs and outputs, over bf16 by "
        f"torch.compile: {results.source(eager, of_layers)}. Validation loss and peak of memory of a GPT after 800 steps over "
        f"bf16's of the same seed: {results.source(gpt, {**of_gpt['machine'], **of_gpt})}. bf16's own seeds are "
        f"{percent(spread)} apart{': no recipe is farther from bf16 than that' if near else ''}.",
        "",
        *table(("recipe", *speeds, "loss", "memory"), cells),
        *(["![speed, loss and memory of each recipe](recipes.svg)", ""] if results.link else []),
    ]


# ---- duels -----------------------------------------------------------------------------------------------------------


def layers(results: Results) -> Iterator[Duel]:
    for name, sized in (("eager", True), ("eager_up", False)):
        for _, file, found in results.of(name):
            cases = [case for case in found["cases"] if "gpu_us" in case]
            us = {(c["layer"], c["size"] if sized else c["case"]): c["gpu_us"]["median"] for c in cases}
            for (layer, size), theirs in us.items():
                recipe = layer.removeprefix("torchao ").removesuffix(", compiled")
                ours = us.get((f"ingot {recipe}", size))
                if layer.startswith("torchao ") and ours is not None:
                    what = f"n = {size}, {recipe}" if sized else f"{size}, {recipe}"
                    yield Duel("A layer, us", what, "torchao", f"{ours:.0f}", f"{theirs:.0f}", theirs / ours, file)


PAIRS = (
    ("llama_nn_one", "ingot.nn tensorwise, compiled", "torchao tensorwise, compiled"),
    ("llama_nn_one", "ingot.nn rowwise, compiled", "torchao rowwise, compiled"),
    ("fsdp_units_two", "ingot tensorwise, compiled, FP8 gather", "torchao tensorwise, compiled, FP8 gather"),
    ("tensor_parallel_two", "ingot tensorwise, eager, FP8 gathers", "torchao tensorwise, compiled, FP8 gathers"),
)
NAMES = {"llama_nn_one": "Llama", "fsdp_units_two": "Llama, 2 GPUs, FSDP2", "tensor_parallel_two": "MLP, 2 GPUs, tensor parallel"}


def models(results: Results) -> Iterator[Duel]:
    for name, one, other in PAIRS:
        for _, file, found in results.of(name):
            cases = {case["contender"]: case for case in found["cases"]}
            if one not in cases or other not in cases:
                continue
            ours, theirs = (cases[each]["ms"]["median"] for each in (one, other))
            what = f"{NAMES[name]}: {one.removeprefix('ingot ').removeprefix('ingot.nn ')}"
            yield Duel("A model's step, ms", what, "torchao", f"{ours:.1f}", f"{theirs:.1f}", theirs / ours, file)
            held = [cases[each]["memory"] for each in (one, other)]
            if all(each.get("held_before", 0) < 1e9 for each in held):
                ours, theirs = (each["peak"] / 1e9 for each in held)
                yield Duel("Peak of memory, GB", what, "torchao", f"{ours:.1f}", f"{theirs:.1f}", theirs / ours, file)


def trainers(results: Results) -> Iterator[Duel]:
    subject = "Training, tokens/s"
    for path in sorted(results.folder.glob("train_gpt_speed_*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rates = {(c["variant"], c["width"]): c["tokens_per_second"]["median"] for c in found["cases"] if "tokens_per_second" in c}
        for (variant, width), theirs in rates.items():
            ours = rates.get((variant.replace("torchao:", "ingot:"), width))
            if variant.startswith("torchao:") and ours is not None:
                what = f"GPT of width {width}: {variant.removeprefix('torchao:').replace('+compile', ', compiled')}"
                yield Duel(subject, what, "torchao", f"{ours:.0f}", f"{theirs:.0f}", ours / theirs, path.name)
    for _, file, found in results.of("trainers"):
        rates = {(c["trainer"], c["contender"]): c["tokens_per_s"] for c in found["cases"] if "tokens_per_s" in c}
        failed = {each["contender"] for each in found.get("verdicts", ()) if each["verdict"] == "FAILS"}
        for (trainer, contender), theirs in rates.items():
            ours = rates.get((trainer, contender.replace("torchao", "ingot")))
            if contender.startswith("torchao ") and ours is not None:
                mark = ", whose loss does not fall" if f"{trainer}, {contender}" in failed else ""
                what = f"Llama under {trainer}: {contender.removeprefix('torchao ')}"
                yield Duel(subject, what, "torchao" + mark, f"{ours:.0f}", f"{theirs:.0f}", ours / theirs, file)


def experts(results: Results) -> Iterator[Duel]:
    """Of two runs: each contender over compiled bf16 of its own."""
    ours = {c["case"]: c for _, _, found in results.of("experts") for c in found["cases"] if c["contender"] == "ingot rowwise, fast, compiled"}
    for _, file, found in results.of("experts_torchao"):
        for case in found["cases"]:
            if case["contender"] == "torchao rowwise, compiled" and case["case"] in ours:
                one = ours[case["case"]]
                speeds, peaks = [[each[key] for each in (one, case)] for key in ("over_bf16_compiled", "peak_bytes")]
                what = f"{case['case']}: rowwise"
                yield Duel("Experts, over bf16", what, "torchao", *(f"{each:.2f}" for each in speeds), speeds[0] / speeds[1], file)
                peaks_gb = (f"{each / 1e9:.1f}" for each in peaks)
                yield Duel("Peak of memory, GB", f"experts of {what}", "torchao", *peaks_gb, peaks[1] / peaks[0], file)


def kernels(results: Results) -> Iterator[Duel]:
    for (device, name, rows, cols), (file, case) in cast_cases(results).items():
        theirs = {c["case"]: median(c) for c in (results.of_device("cast_torch", device) or {"cases": ()})["cases"] if c["rows"] == rows}
        own, other = case["us"]["median"], theirs.get(name)
        if other is not None and rows == cols == 8192:
            yield Duel("A cast, us", name, "torch.compile", f"{own:.1f}", f"{other:.1f}", other / own, file)
    for device, file, found in results.of("gemm_blocks"):
        deep = {c["case"]: median(c) for c in (results.of_device("deepgemm", device) or {"cases": ()})["cases"]}
        for case in found["cases"]:
            other, own = deep.get(case["case"]), min((f["us"]["median"] for f in case["finals"] if "us" in f), default=None)
            if other is not None and own is not None:
                yield Duel("A GEMM of blocks, us", split(case["case"])[0], "DeepGEMM", f"{own:.1f}", f"{other:.1f}", other / own, file)
    for _, file, found in gemm_files(results):
        for case in found["cases"]:
            own, other = gemm_times(case)
            if own is not None and other is not None and split(case["case"])[1] in ("row fast", "tensor fast"):
                yield Duel("A GEMM, us", case["case"], "cuBLASLt", f"{own:.1f}", f"{other:.1f}", other / own, file)


def weights(results: Results) -> Iterator[Duel]:
    for device, file, found in results.of("weight_only_torch"):
        of_device = results.of_device("weight_only", device) or {"cases": ()}
        for case in found["cases"]:
            same = (c for c in of_device["cases"] if all(c[extent] == case[extent] for extent in ("m", "n", "k")))
            own = next((median(c["ours"]) for c in same if "e4m3fn" in c["spec"] and "scale=row" in c["spec"]), None)
            other = median(case)
            if own is not None and other is not None and "e4m3fn" in case["mode"]:
                what = f"{case['n']}x{case['k']}, M = {case['m']}, e4m3fn by rows"
                peer = case["mode"].removesuffix(" e4m3fn row")
                yield Duel("A weight-only matmul, us", what, peer, f"{own:.1f}", f"{other:.1f}", other / own, file)


def duels(results: Results) -> list[Duel]:
    return [each for kind in (layers, models, trainers, experts, kernels, weights) for each in kind(results)]


def peers(results: Results) -> list[str]:
    """A table for each subject; of kernels, of which there are many, what they come to."""
    found, lines = duels(results), []
    for subject in dict.fromkeys(each.subject for each in found):
        of = [each for each in found if each.subject == subject]
        files = ", ".join(results.named(file) for file in dict.fromkeys(each.file for each in of))
        ratios = [each.ratio for each in of]
        lost = sum(ratio < WINS for ratio in ratios)
        lines += [f"### {subject}", "", f"Ingot is {times(geometric(ratios))} times as good as the peer on the geometric mean, {times(min(ratios))} at "
                  f"worst; better or as good in {len(of) - lost} of {len(of)} ({files}).", ""]
        rows = [(each.what, each.peer, each.ours, each.theirs, bold(each.ratio)) for each in of]
        lines += table(("what", "peer", "Ingot", "peer's", "times as good"), rows)
    return lines


def bold(ratio: float) -> str:
    return f"**{times(ratio)}**" if ratio < WINS else times(ratio)


def picture(results: Results) -> str:
    """Bars of the table of recipes, as SVG: panels with a row for each recipe; a line where bf16 is."""
    rows = fields_of_recipes(results)
    panels = (
        ("speed, n = 4096", "n = 4096", 2.0, times),
        ("speed, n = 16384", "n = 16384", 2.0, times),
        ("peak of memory", "memory", 1.25, times),
        ("validation loss", "loss", 0.0127, lambda value: percent(value, "+")),
    )
    step, left, width, columns = 22, 150, 190, 2
    high, wide = 40 + step * len(rows), left + columns * (width + 20)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{2 * high}" viewBox="0 0 {wide} {2 * high}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, (title, key, most, text) in enumerate(panels):
        x, top = left + number % columns * (width + 20), number // columns * high
        mark = x + (width - 60) / most if key != "loss" else x
        lines.append(f'<text x="{x}" y="{top + 18}" font-weight="bold">{title}</text>')
        for at, (recipe, row) in enumerate(rows.items()):
            long, y = (width - 60) * min(row[key] / most, 1), top + 32 + step * at
            if number % columns == 0:
                lines.append(f'<text x="{x - 8}" y="{y + 12}" text-anchor="end">{recipe}</text>')
            lines.append(f'<rect x="{x}" y="{y}" width="{long:.1f}" height="15" fill="{"#b0bec5" if key == "loss" else "#546e7a"}"/>')
            lines.append(f'<text x="{max(x + long, mark) + 5:.1f}" y="{y + 12}">{text(row[key])}</text>')
        if key != "loss":
            ends = f'y1="{top + 28}" x2="{mark:.1f}" y2="{top + high - 6}"'
            lines.append(f'<line x1="{mark:.1f}" {ends} stroke="#d84315" stroke-dasharray="3 3"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


SECTIONS = (
    (
        "Recipes",
        "Speed, loss and memory next to each other, in PyTorch. Which to choose: [which_recipe.md](which_recipe.md).",
        recipes,
    ),
    (
        "Other libraries",
        "In each row Ingot and the peer do the same work with the same recipe, and were measured in one run (experts, casts, "
        "DeepGEMM and weights: in two). \"Times as good\" is how many times as good as the peer Ingot is, in speed or in memory: above 1 Ingot is "
        "better, and below 1, in bold, the peer. Of times and of memory it is the peer's figure over Ingot's, of speeds Ingot's over "
        "the peer's. torchao's layers are compiled by torch.compile; Ingot's run from eager where a row does "
        "not say compiled, and compiled under a trainer. GEMMs are those of Ingot's own kernel: where cuBLASLt is faster, the library "
        "may run that ([tuning.md](tuning.md)).",
        peers,
    ),
)
INTRODUCTION = (
    "For everyone who chooses between Ingot and another library, or between recipes. `scripts/performance_page.py` writes this page "
    "and its picture from [bench/results](../bench/results), and a test compares them. All figures: [performance.md](performance.md)."
)

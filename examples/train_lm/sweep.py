#!/usr/bin/env python3
"""Trains every combination of texts, numbers of blocks, seeds and recipes with train_lm, and compares the losses: one
JSON file, one plot (needs matplotlib). What an earlier call has trained is not trained again.

    python3 examples/train_lm/sweep.py --program build/release/examples/train_lm --text bible= --text code=FILE \\
        --seeds 1 2 3 --blocks 2 6 8 --recipes tensorwise blockwise --out bench/results/train_sweep_h200.json \\
        -- --size large --steps 600

A text without a file is train_lm's own, the King James Bible. Options behind -- go to every run.

Runs are compared by the validation loss, which is of the same windows for every run of a text. The spread of bf16 is
that of its seeds, (largest - smallest) / mean; a recipe's gap is the mean over the seeds of fp8 / bf16 - 1 with the same
seed. A gap within twice the spread, or within 0.5 % if that is more, is one that the seeds do not tell from nothing.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterable, Optional

SEEDS_AGREE = 0.01  # the spread of bf16 that lets a gap mean something
LEAST_BOUND = 0.005  # a gap below this is never held against a recipe


class SweepError(Exception):
    pass


def text_of(argument: str) -> tuple[str, str]:
    name, equals, path = argument.partition("=")
    if not equals or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=FILE (or NAME= for train_lm's own text)")
    if path and not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"{path!r}, the text {name!r}, is not a file")
    return name, path


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="train_lm")
    parser.add_argument("--text", dest="texts", action="append", type=text_of, metavar="NAME=FILE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--blocks", nargs="+", type=int, default=[2])
    parser.add_argument("--recipes", nargs="+", default=["tensorwise"])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the JSON file; the plot is beside it, as .svg")
    work = pathlib.Path("build/train_sweep")
    parser.add_argument("--work", type=pathlib.Path, default=work, help="the runs' folders")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("options", nargs="*", help="options for every run, behind --")
    parsed = parser.parse_args(arguments)
    parsed.texts = parsed.texts or [("bible", "")]
    if len({name for name, _ in parsed.texts}) < len(parsed.texts):
        parser.error("two texts have one name")
    return parsed


def command_of(parsed: argparse.Namespace, path: str, blocks: int, seed: int, model: str) -> list[str]:
    command = [parsed.program, *parsed.options, "--blocks", str(blocks), "--seed", str(seed)]
    if path:
        command += ["--text", path]
    return command + (["--only", "bf16"] if model == "bf16" else ["--only", "fp8", "--recipe", model])


def key_of(command: list[str], path: str) -> dict[str, Any]:
    """What a finished run was: another command or another text is another run."""
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() if path else ""
    return {"command": command[1:], "text_sha256": digest}


def read_json(path: pathlib.Path) -> Optional[Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def train(command: list[str], path: str, folder: pathlib.Path) -> dict[str, Any]:
    """The run's summary, from an earlier call if it is there."""
    key = key_of(command, path)
    summary = read_json(folder / "summary.json")
    if summary is not None and read_json(folder / "run.json") == key:
        return summary
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)
    (folder / "run.json").write_text(json.dumps(key), encoding="utf-8")
    with open(folder / "log", "w", encoding="utf-8") as log:
        code = subprocess.run([*command, "--out", str(folder)], stdout=log, stderr=subprocess.STDOUT).returncode
    summary = read_json(folder / "summary.json")
    if code != 0 or summary is None:
        last = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise SweepError(f"{' '.join(command)}: ended with {code}: {''.join(last)} (its output is in {folder / 'log'})")
    return summary


def number(value: Any) -> float:
    return math.nan if value is None else float(value)


def run_all(parsed: argparse.Namespace) -> list[dict[str, Any]]:
    runs = []
    models = ["bf16", *parsed.recipes]
    everything = list(itertools.product(parsed.texts, parsed.blocks, parsed.seeds, models))
    for done, ((name, path), blocks, seed, model) in enumerate(everything, 1):
        print(f"[{done}/{len(everything)}] {name}, {blocks} blocks, seed {seed}, {model}", file=sys.stderr, flush=True)
        command = command_of(parsed, path, blocks, seed, model)
        summary = train(command, path, parsed.work / name / f"blocks{blocks}" / f"seed{seed}" / model)
        (result,) = summary["runs"].values()
        facts = {key: summary.get(key) for key in ("device", "parameters", "steps", "settings")}
        runs.append({"text": name, "blocks": blocks, "seed": seed, "model": model, **result, **facts})
    return runs


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def losses_of(runs: list[dict[str, Any]], text: str, blocks: int, model: str) -> dict[int, dict[str, float]]:
    """seed -> its run."""
    return {
        run["seed"]: {key: number(run[key]) for key in ("validation_loss", "final_loss", "tokens_per_second")}
        for run in runs
        if (run["text"], run["blocks"], run["model"]) == (text, blocks, model)
    }


def compare(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each text and number of blocks: how far bf16's seeds are apart, and each recipe's gap."""
    compared = []
    for text, blocks in dict.fromkeys((run["text"], run["blocks"]) for run in runs):
        bf16 = losses_of(runs, text, blocks, "bf16")
        values = [one["validation_loss"] for one in bf16.values()]
        spread = (max(values) - min(values)) / mean(values)
        bound = max(2 * spread, LEAST_BOUND)
        case: dict[str, Any] = {"text": text, "blocks": blocks, "bf16_validation_loss": mean(values)}
        case |= {"bf16_spread": spread, "seeds_agree": len(values) > 1 and spread <= SEEDS_AGREE, "recipes": {}}
        for model in dict.fromkeys(run["model"] for run in runs if run["model"] != "bf16"):
            fp8 = losses_of(runs, text, blocks, model)
            gaps = {seed: one["validation_loss"] / bf16[seed]["validation_loss"] - 1 for seed, one in fp8.items()}
            gap = mean(gaps.values())
            speeds = (
                one["tokens_per_second"] / bf16[seed]["tokens_per_second"]
                for seed, one in fp8.items()
                if bf16[seed]["tokens_per_second"] > 0
            )
            case["recipes"][model] = {
                "gap": gap,
                "gaps": list(gaps.values()),
                "bound": bound,
                "within": abs(gap) <= bound,  # false for NaN
                "speed": mean(speeds),
            }
        compared.append(case)
    return compared


def without_nan(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    return [without_nan(each) for each in value] if isinstance(value, list) else value


def table(compared: list[dict[str, Any]]) -> str:
    lines = [f"{'text':<12} {'blocks':>6} {'bf16 loss':>10} {'spread':>8}  recipe: gap (allowed), speed"]
    for case in compared:
        recipes = "; ".join(
            f"{name} {100 * one['gap']:+.2f} % ({100 * one['bound']:.2f} %) {'ok' if one['within'] else 'OUTSIDE'}, "
            f"x {one['speed']:.2f}"
            for name, one in case["recipes"].items()
        )
        agree = " " if case["seeds_agree"] else "!"
        lines.append(
            f"{case['text']:<12} {case['blocks']:>6} {case['bf16_validation_loss']:>10.4f} "
            f"{100 * case['bf16_spread']:>6.2f} %{agree} {recipes}"
        )
    return "\n".join(lines)


def plot(compared: list[dict[str, Any]], title: str, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ingot"  # the same figures give the same file
    from matplotlib import pyplot

    texts = list(dict.fromkeys(case["text"] for case in compared))
    size = (5.5 * len(texts), 4.2)
    figure, axes = pyplot.subplots(1, len(texts), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, text in zip(axes[0], texts):
        cases = sorted((case for case in compared if case["text"] == text), key=lambda case: case["blocks"])
        blocks = [case["blocks"] for case in cases]
        spreads = [100 * case["bf16_spread"] for case in cases]
        axis.fill_between(blocks, [-one for one in spreads], spreads, color="#adb5bd", alpha=0.4, label="bf16's seeds")
        for model in cases[0]["recipes"]:
            points = [case["recipes"][model] for case in cases]
            (line,) = axis.plot(blocks, [100 * one["gap"] for one in points], marker="o", markersize=4, label=model)
            for x, one in zip(blocks, points):
                gaps = [100 * gap for gap in one["gaps"]]
                axis.plot([x] * len(gaps), gaps, ".", color=line.get_color(), alpha=0.5)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_xticks(blocks)
        axis.set_xlabel("blocks")
        axis.set_title(text, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("validation loss against bf16, %")
    axes[0][-1].legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    except OSError:  # no git
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def main(arguments: list[str]) -> int:
    parsed = parse(arguments)
    try:
        runs = run_all(parsed)
    except (SweepError, OSError) as error:
        print(f"sweep: error: {error}", file=sys.stderr)
        return 1
    compared = compare(runs)
    result = {
        "benchmark": "train_sweep",
        "date": datetime.date.today().isoformat(),
        "device": runs[0]["device"],
        "commit": commit(),
        "options": parsed.options,
        "compared": compared,
        "runs": runs,
    }
    parsed.out.parent.mkdir(parents=True, exist_ok=True)
    parsed.out.write_text(json.dumps(without_nan(result), indent=1) + "\n", encoding="utf-8")
    print(table(compared))
    if not parsed.no_plot:
        title = f"{result['device']}, train_lm ({result['commit']}), {result['date']}"
        plot(compared, title, parsed.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

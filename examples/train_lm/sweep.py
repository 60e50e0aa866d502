#!/usr/bin/env python3
"""Trains every combination of texts, seeds, numbers of blocks and recipes with train_lm, and compares the losses: one
JSON file, one plot, and a line that says whether it holds for each thing that is to hold. What an earlier call has
trained is not trained again, so a sweep that was stopped goes on by the same command.

    python3 examples/train_lm/sweep.py --program build/release/examples/train_lm --text bible= --text code=FILE \\
        --seeds 1 2 3 --train 4:every --train 2,6,8:tensorwise,blockwise --least-speed 1.4 --stop-after 500 \\
        --out bench/results/train_sweep_h200.json -- --size large --steps 600

A text without a file is train_lm's own, the King James Bible. --train BLOCKS:RECIPES may be given again and again;
`every` stands for all recipes. Options after -- go to every run. docs/training.md says what a whole sweep takes.

Runs are compared by the validation loss, which is of the same windows for every run of a text. The spread of bf16 is
that of its seeds, (largest - smallest) / mean; a recipe's gap is the mean over the seeds of fp8 / bf16 - 1 with the
same seed. A gap within twice the spread, or within 0.5 % if that is more, is one that the seeds do not distinguish from
nothing.

Exit codes: 0 when all is trained, whatever it shows (--strict: 1 if something does not hold), 3 after --stop-after (the
file and the plot then show what has been trained), 1 for errors, 2 for wrong options.
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
import time
from typing import Any, Optional

import sweep_plot
import sweep_report

RECIPES = ("tensorwise", "delayed", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")
DONE, FAILED, STOPPED = 0, 1, 3  # exit codes
KNOWN_HELP = "a file that an earlier sweep wrote, here or on another machine: its runs are not trained again"


class SweepError(Exception):
    pass


def text_of(argument: str) -> tuple[str, str]:
    name, equals, path = argument.partition("=")
    if not equals or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=FILE (or NAME= for train_lm's own text)")
    if path and not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"{path!r}, the text {name!r}, is not a file")
    return name, path


def trained_of(argument: str) -> list[tuple[int, str]]:
    """'2,6:tensorwise,blockwise' -> each number of blocks with each recipe."""
    blocks, colon, recipes = argument.partition(":")
    names = RECIPES if recipes == "every" else recipes.split(",")
    if not colon or not all(name in RECIPES for name in names) or not all(one.isdigit() for one in blocks.split(",")):
        raise argparse.ArgumentTypeError(
            f"{argument!r} is not BLOCKS:RECIPES, as 4:every or 2,6:tensorwise,blockwise; recipes: {', '.join(RECIPES)}"
        )
    return [(int(one), name) for one in blocks.split(",") for name in names]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="train_lm")
    parser.add_argument("--text", dest="texts", action="append", type=text_of, metavar="NAME=FILE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--train", action="append", type=trained_of, metavar="BLOCKS:RECIPES")
    parser.add_argument("--least-speed", type=float, help="tokens/s over bf16 that the fastest recipe is to have")
    parser.add_argument("--stop-after", type=float, default=math.inf, metavar="SECONDS", help="begin no run after this")
    parser.add_argument("--known", type=pathlib.Path, action="append", default=[], metavar="JSON", help=KNOWN_HELP)
    parser.add_argument("--shared-gpu", action="store_true", help="the GPU does other work as well: note no speeds")
    parser.add_argument("--strict", action="store_true", help="end with 1 if something does not hold")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the JSON file; the plot is next to it (.svg)")
    work = pathlib.Path("build/train_sweep")
    parser.add_argument("--work", type=pathlib.Path, default=work, help="the runs' folders")
    parser.add_argument("options", nargs="*", help="options for every run, after --")
    parsed = parser.parse_args(arguments)
    parsed.texts = parsed.texts or [("bible", "")]
    parsed.train = list(dict.fromkeys(itertools.chain(*(parsed.train or [[(2, "tensorwise")]]))))
    if len({name for name, _ in parsed.texts}) < len(parsed.texts):
        parser.error("two texts have one name")
    return parsed


def command_of(parsed: argparse.Namespace, path: str, blocks: int, seed: int, model: str) -> list[str]:
    command = [parsed.program, *parsed.options, "--blocks", str(blocks), "--seed", str(seed)]
    if path:
        command += ["--text", path]
    return command + (["--only", "bf16"] if model == "bf16" else ["--only", "fp8", "--recipe", model])


def identity_of(command: list[str], path: str) -> str:
    """What distinguishes a run from others: its options and its text's bytes, wherever program and text are."""
    options = ["TEXT" if path and option == path else option for option in command[1:]]
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() if path else ""
    return " ".join([*options, digest])


def read_json(path: pathlib.Path) -> Optional[Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def train(command: list[str], identity: str, folder: pathlib.Path) -> dict[str, Any]:
    """The run's summary, from an earlier call if it is there."""
    summary = read_json(folder / "summary.json")
    if summary is not None and read_json(folder / "run.json") == identity:
        return summary
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)
    (folder / "run.json").write_text(json.dumps(identity), encoding="utf-8")
    with open(folder / "log", "w", encoding="utf-8") as log:
        code = subprocess.run([*command, "--out", str(folder)], stdout=log, stderr=subprocess.STDOUT).returncode
    summary = read_json(folder / "summary.json")
    if code != 0 or summary is None:
        last = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise SweepError(f"{' '.join(command)}: ended with {code}: {''.join(last)} (its output is in {folder / 'log'})")
    return summary


Run = tuple[tuple[str, str], int, int, str]


def planned(parsed: argparse.Namespace) -> list[Run]:
    """(text, blocks, seed, model) of each run. All of bf16's come first: if its seeds do not agree, one sees it early."""
    blocks = list(dict.fromkeys(one for one, _ in parsed.train))
    models = {one: ["bf16", *(recipe for at, recipe in parsed.train if at == one)] for one in blocks}
    runs = [
        (text, one, seed, model)
        for text, one, seed in itertools.product(parsed.texts, blocks, parsed.seeds)
        for model in models[one]
    ]
    return sorted(runs, key=lambda run: run[-1] != "bf16")


def known_runs(files: list[pathlib.Path]) -> dict[str, dict[str, Any]]:
    """identity -> run, of the files that earlier sweeps wrote."""
    known = {}
    for file in files:
        try:
            runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
            known |= {run["identity"]: run for run in runs}
        except (ValueError, KeyError, TypeError) as error:
            raise SweepError(f"--known {file}: is not what a sweep wrote ({type(error).__name__}: {error})") from error
    return known


def run_all(parsed: argparse.Namespace, everything: list[Run]) -> list[dict[str, Any]]:
    """The runs: all that are planned, or as many as --stop-after allows."""
    runs: list[dict[str, Any]] = []
    known = known_runs(parsed.known)
    begin = time.monotonic()
    for done, ((name, path), blocks, seed, model) in enumerate(everything, 1):
        command = command_of(parsed, path, blocks, seed, model)
        identity = identity_of(command, path)
        if identity in known:
            runs.append(known[identity])
            continue
        if time.monotonic() - begin > parsed.stop_after:
            continue
        print(f"[{done}/{len(everything)}] {name}, {blocks} blocks, seed {seed}, {model}", file=sys.stderr, flush=True)
        summary = train(command, identity, parsed.work / name / f"blocks{blocks}" / f"seed{seed}" / model)
        (result,) = summary["runs"].values()
        if parsed.shared_gpu:
            result["tokens_per_second"] = None
        facts = {key: summary.get(key) for key in ("device", "parameters", "steps", "settings")}
        where = {"text": name, "blocks": blocks, "seed": seed, "model": model}
        runs.append({**where, "identity": identity, "commit": commit(), **result, **facts})
    return runs


def without_nan(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    return [without_nan(each) for each in value] if isinstance(value, list) else value


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    except OSError:  # no git
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def write(parsed: argparse.Namespace, runs: list[dict[str, Any]], planned_runs: int) -> list[dict[str, Any]]:
    """The JSON file and the plot of what has been trained; returns what holds."""
    compared = sweep_report.compare(runs)
    verdicts = sweep_report.verdicts(compared, parsed.least_speed)
    result = {
        "benchmark": "train_sweep",
        "date": datetime.date.today().isoformat(),
        "device": runs[0]["device"],
        "commit": commit(),
        "options": parsed.options,
        "planned_runs": planned_runs,
        "verdicts": verdicts,
        "compared": compared,
        "runs": runs,
    }
    parsed.out.parent.mkdir(parents=True, exist_ok=True)
    parsed.out.write_text(json.dumps(without_nan(result), indent=1) + "\n", encoding="utf-8")
    title = f"{result['device']}, train_lm ({result['commit']}), {result['date']}"
    if len(runs) < planned_runs:
        title += f", {len(runs)} of {planned_runs} runs"
    sweep_plot.plot(compared, title, parsed.out.with_suffix(".svg"))
    return verdicts


def main(arguments: list[str]) -> int:
    parsed = parse(arguments)
    everything = planned(parsed)
    try:
        runs = run_all(parsed, everything)
    except (SweepError, OSError) as error:
        print(f"sweep: error: {error}", file=sys.stderr)
        return FAILED
    verdicts = write(parsed, runs, len(everything)) if runs else []
    if verdicts:
        print(sweep_report.table(verdicts))
    if len(runs) < len(everything):
        print(f"sweep: stopped with {len(runs)} runs done; the same command goes on", file=sys.stderr)
        return STOPPED
    return FAILED if parsed.strict and not all(one["holds"] for one in verdicts) else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

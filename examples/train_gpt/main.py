"""The command line of train_gpt.py."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
import time
from typing import Any, Optional

from .errors import TrainGptError

# width, blocks, heads, window, tokens of a step, steps, warm-up, learning rate, batches for validation
SIZES = {
    "tiny": (32, 2, 4, 32, 256, 60, 6, 1e-2, 2),
    "small": (1024, 8, 16, 512, 8192, 800, 200, 6e-4, 32),
    "large": (2048, 6, 16, 512, 8192, 800, 200, 4e-4, 32),
}


def parse(arguments: list[str], about: Optional[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, metavar="PREFIX", help="writes PREFIX.json, .csv, .png and .svg")
    parser.add_argument("--text", type=pathlib.Path, help="a file to train on")
    parser.add_argument("--device", default="auto", help="cpu, cuda or cuda:N; default: the GPU if there is one")
    parser.add_argument("--variants", nargs="+", metavar="VARIANT", help="as ingot:rowwise+compile; the first is bf16")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model whose losses are compared")
    parser.add_argument("--steps", type=int, help="of a run; default: the size's")
    parser.add_argument("--seeds", type=int, default=3, help="of bf16, for its spread")
    parser.add_argument("--recipe-seeds", type=int, default=1, help="of each other variant")
    parser.add_argument("--compare", action="store_true", help="compare speeds by width, not losses")
    parser.add_argument("--widths", type=int, nargs="+", help="with --compare; default: 4096 2048 1024 768")
    parser.add_argument("--tokens", type=int, default=16384, help="with --compare: of a step")
    parser.add_argument("--rounds", type=int, default=5, help="with --compare: turns of each variant")
    parser.add_argument("--turn-steps", type=int, default=4, help="with --compare: steps of a turn")
    parser.add_argument("--quick", action="store_true", help="fewer steps, seeds, widths and turns: does it run")
    parser.add_argument("--stop-after", type=float, default=math.inf, metavar="SECONDS", help="begin no run after this")
    parser.add_argument("--compile-backend", default="inductor", help="torch.compile's")
    parser.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    parser.add_argument("--strict", action="store_true", help="end with 1 if something does not hold")
    parser.add_argument("--replot", type=pathlib.Path, metavar="JSON", help="draw a file's plot again")
    options = parser.parse_args(arguments)
    if options.replot is None and options.out is None:
        parser.error("--out PREFIX is missing")
    numbers = (options.seeds, options.recipe_seeds, options.rounds, options.turn_steps, options.tokens)
    if min(numbers) < 1 or (options.steps is not None and options.steps < 2):
        parser.error("--seeds, --recipe-seeds, --rounds, --turn-steps and --tokens are at least 1, --steps at least 2")
    return options


def main(arguments: list[str], about: Optional[str] = None) -> int:
    options = parse(arguments, about)
    try:
        if options.replot is not None:
            return replot(options.replot)
        return run(options)
    except TrainGptError as error:
        print(f"train_gpt: {error}", file=sys.stderr)
        return 1


def replot(file: pathlib.Path) -> int:
    from . import report

    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainGptError(f"--replot {file}: {error}") from None
    missing = report.plot(file.with_suffix(""), found)
    if missing:
        raise TrainGptError(missing)
    return 0


def device_of(torch: Any, name: str) -> Any:
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_gpu else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise TrainGptError(f"--device {name}: write cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not has_gpu:
        raise TrainGptError(f"--device {name}: PyTorch {torch.__version__} finds no GPU: give --device cpu")
    return device


def run(options: argparse.Namespace) -> int:
    try:
        import torch
    except ImportError as error:
        raise TrainGptError(f"PyTorch cannot be imported ({error}): pip install torch") from None
    from . import losses, report, speeds

    device = device_of(torch, options.device)
    found: dict[str, Any] = {
        "benchmark": "train_gpt, speeds" if options.compare else "train_gpt, losses",
        "machine": report.machine(torch, device, options.commit),
    }

    def write(**more: Any) -> None:
        found.update(more)
        report.write_json(options.out, found)

    if options.compare:
        compare_speeds(options, device, write)
        part, rows = speeds, speeds.csv_rows(found["cases"])
        print(speeds.table(found["cases"]))
    else:
        compare_losses(options, device, write)
        part, rows = losses, losses.csv_rows(found["runs"])
        print(losses.table(found["runs"]))
        for line in found["left_out"]:
            print(f"left out: {line}")
    verdicts = part.verdicts(found["cases"]) if options.compare else losses.compare(found["runs"])
    write(verdicts=verdicts)
    report.write_csv(options.out, rows)
    print(report.lines_of(verdicts))
    missing = report.plot(options.out, found)
    if missing:
        print(missing, file=sys.stderr)
    return 1 if options.strict and not all(one["holds"] for one in verdicts) else 0


def compare_losses(options: argparse.Namespace, device: Any, write: Any) -> None:
    """Trains bf16 with all seeds first, then the others with the first ones."""
    import torch

    from .model import Shape, make_model
    from .text import Text, read_text
    from .training import Schedule, train
    from .variants import Variant, loss_variants, prepare

    begin = time.perf_counter()
    width, blocks, heads, window, tokens, steps, warmup, lr, validation_batches = SIZES[options.size]
    steps = options.steps or (max(2, steps // 10) if options.quick else steps)
    shape = Shape(width, blocks, heads, window)
    schedule = Schedule(steps, min(warmup, max(1, steps // 4)), lr)
    variants = [Variant.read(name) for name in options.variants] if options.variants else loss_variants()
    batch = tokens // window
    text = Text.on(device, read_text(options.text), window)
    validation = text.validation_windows(batch, window, validation_batches)
    runs: list[dict[str, Any]] = []
    left_out: list[str] = []
    settings = {"shape": dataclasses.asdict(shape), "tokens_per_step": tokens, "schedule": dataclasses.asdict(schedule)}
    write(settings=settings, runs=runs, left_out=left_out)
    seeds_of_bf16 = min(2, options.seeds) if options.quick else options.seeds
    for variant in variants:
        seeds = options.recipe_seeds if variant.is_fp8 or variant.compiled else seeds_of_bf16
        for seed in range(1, seeds + 1):
            if time.perf_counter() - begin > options.stop_after:
                left_out.append(f"{variant}, seed {seed}: --stop-after")
                continue
            try:
                prepared = prepare(variant, make_model(shape, seed, device), options.compile_backend)
            except TrainGptError as error:
                left_out.append(str(error))
                break
            windows = text.windows(seed, steps, batch, window)
            done = train(prepared, windows, validation, schedule, device)
            runs.append({"variant": str(variant), "seed": seed, **dataclasses.asdict(done)})
            print(f"{variant}, seed {seed}: validation {done.validation_loss:.4f}", file=sys.stderr, flush=True)
            write(runs=runs, left_out=left_out)
            torch.compiler.reset()
    if not runs:
        raise TrainGptError(f"nothing was trained: {'; '.join(left_out)}")


def compare_speeds(options: argparse.Namespace, device: Any, write: Any) -> None:
    from . import speeds
    from .text import Text, read_text
    from .variants import Variant, speed_variants

    window = min(512, options.tokens)
    variants = [Variant.read(name) for name in options.variants] if options.variants else speed_variants()
    text = Text.on(device, read_text(options.text), window)
    rounds, steps = (2, 2) if options.quick else (options.rounds, options.turn_steps)
    widths = options.widths or ([1024] if options.quick else list(reversed(speeds.DEPTHS)))
    plan = speeds.Plan(window, options.tokens, rounds, steps, options.compile_backend)
    write(settings={**dataclasses.asdict(plan), "widths": widths}, cases=[])
    write(
        cases=speeds.measure(widths, variants, text, plan, device, options.stop_after, lambda cases: write(cases=cases))
    )

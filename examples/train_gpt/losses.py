"""The comparison of losses: bf16 with several seeds, then each FP8 variant with the same seeds."""

from __future__ import annotations

import math
from typing import Any, Optional

SEEDS_AGREE = 0.01  # the spread of bf16 that lets a gap mean something
LEAST_BOUND = 0.005  # a gap below this is never held against a recipe


def spread(values: list[float]) -> float:
    """How far apart values are, relative to their mean."""
    return (max(values) - min(values)) / (sum(values) / len(values))


def verdict(holds: bool, line: str) -> dict[str, Any]:
    return {"holds": bool(holds), "line": line}


def by_seed(runs: list[dict[str, Any]], variant: str) -> dict[int, dict[str, Any]]:
    return {run["seed"]: run for run in runs if run["variant"] == variant}


def compare(runs: list[dict[str, Any]], baseline: str = "torch:bf16") -> list[dict[str, Any]]:
    """What is to hold, in the order of the runs. A gap is the mean over the seeds of fp8 / bf16 - 1 of validation
    losses; it may be twice as large as bf16's seeds are apart, or 0.5 % if that is more. NaN never holds."""
    bf16 = by_seed(runs, baseline)
    if not bf16:
        return [verdict(False, f"{baseline} was not trained, so there is nothing to compare with")]
    apart = spread([run["validation_loss"] for run in bf16.values()])
    bound = max(2 * apart, LEAST_BOUND)
    found = [
        verdict(
            len(bf16) > 1 and apart <= SEEDS_AGREE,
            f"{baseline}: {len(bf16)} seeds are {100 * apart:.2f} % apart, at most {100 * SEEDS_AGREE:.2f} %",
        )
    ]
    for variant in dict.fromkeys(run["variant"] for run in runs if run["variant"] != baseline):
        pairs = [(run, bf16[seed]) for seed, run in by_seed(runs, variant).items() if seed in bf16]
        if not pairs:
            continue
        gap = sum(run["validation_loss"] / other["validation_loss"] - 1 for run, other in pairs) / len(pairs)
        speed = sum(run["tokens_per_second"] / other["tokens_per_second"] for run, other in pairs) / len(pairs)
        line = f"{variant}: loss {100 * gap:+.2f} % against bf16, at most {100 * bound:.2f} %; tokens/s x {speed:.2f}"
        found.append(verdict(math.isfinite(gap) and abs(gap) <= bound, line))
        memory = memory_verdict(variant, pairs)
        if memory is not None:
            found.append(memory)
    return found


def memory_verdict(variant: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Optional[dict[str, Any]]:
    if any(run["peak_bytes"] is None for pair in pairs for run in pair):
        return None
    share = max(run["peak_bytes"] / other["peak_bytes"] for run, other in pairs)
    return verdict(share <= 1.0, f"{variant}: peak memory x {share:.3f} of bf16's, at most 1.000")


def smooth(losses: list[float], keep: float = 0.95) -> list[float]:
    """An exponential mean, without the bias of its beginning."""
    value, made = 0.0, []
    for count, loss in enumerate(losses, 1):
        value = keep * value + (1 - keep) * loss
        made.append(value / (1 - keep**count))
    return made


def table(runs: list[dict[str, Any]]) -> str:
    lines = [f"{'variant':<34}{'seed':>5}{'last loss':>11}{'validation':>12}{'tokens/s':>11}{'peak MiB':>10}"]
    for run in runs:
        peak = "-" if run["peak_bytes"] is None else f"{run['peak_bytes'] / 2**20:.0f}"
        lines.append(
            f"{run['variant']:<34}{run['seed']:>5}{smooth(run['losses'])[-1]:>11.4f}{run['validation_loss']:>12.4f}"
            f"{run['tokens_per_second']:>11.0f}{peak:>10}"
        )
    return "\n".join(lines)


def csv_rows(runs: list[dict[str, Any]]) -> list[list[Any]]:
    head: list[Any] = ["variant", "seed", "step", "loss"]
    rows = [[run["variant"], run["seed"], step, loss] for run in runs for step, loss in enumerate(run["losses"])]
    return [head, *rows]

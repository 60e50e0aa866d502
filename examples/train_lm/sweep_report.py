"""The report on the runs of sweep.py: how far apart bf16's seeds are, each recipe's gap, how much faster it is, and
whether that is what was wanted, a line for each."""

from __future__ import annotations

import math
from typing import Any, Iterable, Optional

SEEDS_AGREE = 0.01  # the spread of bf16 that lets a gap mean something
LEAST_BOUND = 0.005  # a gap below this is never held against a recipe


def number(value: Any) -> float:
    return math.nan if value is None else float(value)


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


def compare_recipe(fp8: dict[int, dict[str, float]], bf16: dict[int, dict[str, float]], bound: float) -> dict[str, Any]:
    """Seed by seed, where both have been trained."""
    pairs = [(one, bf16[seed]) for seed, one in fp8.items() if seed in bf16]
    gaps = [one["validation_loss"] / other["validation_loss"] - 1 for one, other in pairs]
    speeds = [
        one["tokens_per_second"] / other["tokens_per_second"] for one, other in pairs if other["tokens_per_second"] > 0
    ]
    gap = mean(gaps)
    within = abs(gap) <= bound  # false for NaN
    return {"gap": gap, "gaps": gaps, "bound": bound, "within": within, "speed": mean(speeds)}


def compare(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each text and number of blocks: how far bf16's seeds are apart, and the gap of each recipe trained there."""
    compared = []
    for text, blocks in dict.fromkeys((run["text"], run["blocks"]) for run in runs):
        here = [run for run in runs if (run["text"], run["blocks"]) == (text, blocks)]
        bf16 = losses_of(here, text, blocks, "bf16")
        if not bf16:  # stopped before
            continue
        values = [one["validation_loss"] for one in bf16.values()]
        spread = (max(values) - min(values)) / mean(values)
        bound = max(2 * spread, LEAST_BOUND)
        case: dict[str, Any] = {"text": text, "blocks": blocks, "bf16_validation_loss": mean(values)}
        case |= {"bf16_spread": spread, "seeds_agree": len(values) > 1 and spread <= SEEDS_AGREE}
        models = dict.fromkeys(run["model"] for run in here if run["model"] != "bf16")
        case["recipes"] = {
            model: compare_recipe(losses_of(here, text, blocks, model), bf16, bound) for model in models
        }
        compared.append(case)
    return compared


def verdicts(compared: list[dict[str, Any]], least_speed: Optional[float]) -> list[dict[str, Any]]:
    """One for each thing that is to hold: {"holds": bool, "line": str}."""
    lines = []
    for case in compared:
        where = f"{case['text']}, {case['blocks']} blocks"
        spread = 100 * case["bf16_spread"]
        line = f"{where}: bf16's seeds are {spread:.2f} % apart, at most {100 * SEEDS_AGREE:.2f} %"
        lines.append({"holds": case["seeds_agree"], "line": line})
        for name, one in case["recipes"].items():
            line = f"{where}: {name} {100 * one['gap']:+.2f} % against bf16, at most {100 * one['bound']:.2f} %"
            speed = "" if math.isnan(one["speed"]) else f"; tokens/s x {one['speed']:.2f}"
            lines.append({"holds": one["within"], "line": line + speed})
        if least_speed is None or not case["recipes"]:
            continue
        speeds = {name: one["speed"] for name, one in case["recipes"].items() if not math.isnan(one["speed"])}
        fastest = max(speeds, key=lambda name: speeds[name], default="none")
        speed = speeds.get(fastest, math.nan)
        line = f"{where}: the fastest is {fastest}, tokens/s x {speed:.2f}, at least {least_speed:.2f}"
        lines.append({"holds": speed >= least_speed, "line": line})
    return lines


def table(found: list[dict[str, Any]]) -> str:
    lines = [f"{'holds' if one['holds'] else 'FAILS'}  {one['line']}" for one in found]
    held = sum(one["holds"] for one in found)
    return "\n".join([*lines, f"{held} of {len(found)} hold"])

#!/usr/bin/env python3
"""Plots the results of bench_linear --json: each recipe's speed relative to bf16 over the size of square layers, for
LayerNorm + Linear + sigmoid and for a plain Linear. Needs matplotlib.

    python3 bench/plot_linear.py bench/results/linear_h200.json docs/linear_h200.svg
"""

from __future__ import annotations

import json
import sys
from typing import Any

WORKS = ("layernorm, linear, sigmoid", "linear")


def curves(found: dict[str, Any], work: str) -> dict[str, list[tuple[int, float]]]:
    """Returns recipe -> (size, speed relative to bf16) for square layers with right results, on one stream."""
    made: dict[str, list[tuple[int, float]]] = {}
    for case in found["cases"]:
        size = case["tokens"]
        if case["work"] != work or not size == case["in_features"] == case["out_features"]:
            continue
        for recipe in case["recipes"]:
            if "over_bf16" in recipe and not recipe.get("side_stream", False):
                made.setdefault(recipe["recipe"], []).append((size, recipe["over_bf16"]))
    return {recipe: sorted(points) for recipe, points in made.items()}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ingot"  # the same figures give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters as text: less than half the file
    from matplotlib import pyplot

    with open(arguments[0], encoding="utf-8") as file:
        found = json.load(file)
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, work in zip(axes, WORKS):
        for recipe, points in curves(found, work).items():
            style = "--" if recipe == "high_precision" else "-"
            axis.plot(*zip(*points), style, marker="o", markersize=3.5, linewidth=1.3, label=recipe)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("tokens = features")
        axis.set_title(f"{work}, forward + backward", fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("times as fast as bf16")
    axes[1].legend(fontsize=8)
    figure.suptitle(f"{found['device']}, Ingot {found['ingot']} ({found['commit']}), {found['date']}", fontsize=9)
    figure.savefig(arguments[1], metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

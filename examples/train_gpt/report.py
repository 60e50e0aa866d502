"""The output of a comparison: a JSON file with all figures and the machine, a CSV file, and a plot (matplotlib)."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import json
import pathlib
import platform
import re
import subprocess
from typing import Any

from .losses import smooth


def driver_version() -> str:
    """NVIDIA's driver, or "" where there is none."""
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found.group() if found else ""


def commit() -> str:
    """The commit of the tree that this file is in, followed by "-dirty" where files differ, or "unknown"."""
    command = ("git", "describe", "--always", "--dirty")
    folder = pathlib.Path(__file__).parent
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else "unknown"


def version_of(package: str) -> str:
    """Returns "" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_of_ingot() -> str:
    """It may be used from a build tree, where it is not installed."""
    try:
        import ingot
    except ImportError:
        return ""
    return str(ingot.__version__)


def machine(torch: Any, device: Any, given_commit: str) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": given_commit or commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "driver": driver_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchao": version_of("torchao"),
        "triton": version_of("triton"),
        "ingot": version_of_ingot(),
    }


def beside(out: pathlib.Path, ending: str) -> pathlib.Path:
    return out.with_name(out.name + ending)


def write_json(out: pathlib.Path, found: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    beside(out, ".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def write_csv(out: pathlib.Path, rows: list[list[Any]]) -> None:
    with open(beside(out, ".csv"), "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def lines_of(verdicts: list[dict[str, Any]]) -> str:
    lines = [f"{'holds' if one['holds'] else 'FAILS'}  {one['line']}" for one in verdicts]
    return "\n".join([*lines, f"{sum(one['holds'] for one in verdicts)} of {len(verdicts)} hold"])


def draw_losses(axis: Any, runs: list[dict[str, Any]]) -> None:
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    for run in runs:
        number = variants.index(run["variant"])
        first = run["seed"] == next(one["seed"] for one in runs if one["variant"] == run["variant"])
        label = run["variant"] if first else None
        style = {"color": "black"} if number == 0 else {"color": f"C{(number - 1) % 10}"}
        axis.plot(smooth(run["losses"]), linewidth=1.0, label=label, **style)
    axis.set_xlabel("step")
    axis.set_ylabel("training loss, nats a byte, smoothed")
    axis.legend(fontsize=7)


def draw_speeds(axis: Any, cases: list[dict[str, Any]]) -> None:
    widths = list(dict.fromkeys(case["width"] for case in cases))
    timed = [case for case in cases if "tokens_per_second" in case]
    variants = list(dict.fromkeys(case["variant"] for case in timed))
    bar = 0.8 / max(1, len(variants))
    for number, variant in enumerate(variants):
        mine = [case for case in timed if case["variant"] == variant]
        places = [widths.index(case["width"]) - 0.4 + (number + 0.5) * bar for case in mine]
        axis.bar(places, [case["tokens_per_second"]["median"] for case in mine], bar, label=variant)
    axis.set_xticks(range(len(widths)), [str(width) for width in widths])
    axis.set_yscale("log")
    axis.set_xlabel("width")
    axis.set_ylabel("tokens/s")
    axis.legend(fontsize=7)


def plot(out: pathlib.Path, found: dict[str, Any]) -> str:
    """Writes PNG and SVG and returns "", or why not."""
    try:
        import matplotlib
    except ImportError:
        return f"no plot, because matplotlib is missing: later, train_gpt.py --replot {beside(out, '.json')}"
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "ingot"  # the same figures give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters as text: less than half the file
    matplotlib.rcParams["path.simplify_threshold"] = 0.5  # of a pixel
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 5), layout="constrained")
    if "runs" in found:
        draw_losses(axis, found["runs"])
    else:
        draw_speeds(axis, found["cases"])
    axis.grid(alpha=0.3)
    of = found["machine"]
    axis.set_title(
        f"{of['device']}, torch {of['torch']}, Ingot {of['ingot']} ({of['commit']}), {of['date']}", fontsize=9
    )
    figure.savefig(beside(out, ".png"), dpi=120)
    figure.savefig(beside(out, ".svg"), metadata={"Date": None})
    pyplot.close(figure)
    return ""

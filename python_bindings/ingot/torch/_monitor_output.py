"""What a monitor has seen as scalars of TensorBoard, and as a picture."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence, Tuple

from ._errors import LinearError

# Of a cast, by the names of Monitor.records(): a value that a heat map shows, its title, and is more of it better?
VALUES: Dict[str, Tuple[str, bool]] = {
    "sqnr_db": ("signal to quantization noise, dB", True),
    "saturated_fraction": ("fraction that saturates", False),
    "flushed_fraction": ("fraction that becomes 0", False),
    "amax": ("max |x|", True),
}


def _casts(records: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return [each for each in records if each["kind"] == "cast"]


def _row(cast: Dict[str, Any]) -> str:
    return f"{cast['layer']} {cast['tensor']} for {cast['gemms']}"


def write_scalars(records: Sequence[Dict[str, Any]], writer: Any, prefix: str) -> int:
    """Adds each value of each cast to a SummaryWriter, as prefix/value/layer/tensor/gemms at its step; what is not finite is left
    out. Returns how many."""
    count = 0
    for each in _casts(records):
        for value in VALUES:
            number = each.get(value)
            if number is not None and math.isfinite(number):
                tag = f"{prefix}/{value}/{each['layer']}/{each['tensor']}/{each['gemms'].replace(', ', '_and_')}"
                writer.add_scalar(tag, number, each["step"])
                count += 1
    return count


def heat_map(records: Sequence[Dict[str, Any]], path: Any, value: str) -> None:
    """Draws a value of all casts, layers and their tensors by steps, as a picture in the format that the path's ending names."""
    if value not in VALUES:
        raise LinearError(f"monitor.heat_map value: {value!r} is not one of {', '.join(VALUES)}")
    casts = _casts(records)
    if not casts:
        raise LinearError("monitor.heat_map: no cast was observed yet: run a step first, and keep several with history=")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LinearError(f"monitor.heat_map: needs matplotlib: pip install matplotlib ({error})") from None
    rows = list(dict.fromkeys(map(_row, casts)))
    steps = sorted({each["step"] for each in casts})
    cells = [[math.nan] * len(steps) for _ in rows]
    for each in casts:
        number = each.get(value)
        cells[rows.index(_row(each))][steps.index(each["step"])] = math.nan if number is None else number
    title, more_is_better = VALUES[value]
    figure = Figure(figsize=(4 + 0.35 * len(steps), 1.5 + 0.22 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="viridis" if more_is_better else "viridis_r")
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    shown = range(0, len(steps), max(1, len(steps) // 12))
    axes.set_xticks(shown, [str(steps[at]) for at in shown], fontsize=7)
    axes.set_xlabel("step")
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise LinearError(f"monitor.heat_map {path}: cannot be written: {error}") from None

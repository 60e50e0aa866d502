"""The comparison of speeds: at each width, all variants of one model train it round by round, in an order that moves on
by one each round. They share parameters and optimizer, so the load besides the linear layers is the same."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import sys
import time
from typing import Any, Callable, Optional

import torch

from .errors import TrainGptError
from .losses import verdict
from .model import Shape, make_model, twin
from .text import Text
from .training import MasterAdamW, PeakMemory, train_step, wait_for
from .variants import BF16, COMPILED_BF16, Prepared, Variant, prepare

# width -> blocks, heads
DEPTHS = {768: (12, 12), 1024: (8, 16), 2048: (6, 16), 4096: (4, 32)}
LR = 1e-5
LEAST_COMPILED_GAIN = 1.15


@dataclasses.dataclass(frozen=True)
class Plan:
    window: int
    tokens: int  # of a step
    rounds: int
    steps: int  # of a turn
    backend: str


def shape_of(width: int, window: int) -> Shape:
    blocks, heads = DEPTHS.get(width, (4, max(1, width // 128)))
    return Shape(width, blocks, heads, window)


class Contender:
    """A variant at work: what a turn does, and what it found."""

    def __init__(self, variant: Variant, prepared: Prepared, optimizer: MasterAdamW, device: torch.device) -> None:
        self.variant, self.prepared, self.optimizer, self.device = variant, prepared, optimizer, device
        self.seconds: list[float] = []
        self.peak_bytes: Optional[int] = None

    def first_loss(self, batch: Any) -> tuple[float, float]:
        """Loss and gradient norm without an update; kernels are compiled here."""
        loss = self.prepared.model(*batch)
        loss.backward()
        loss = loss.detach()
        norm = sum(float(p.grad.double().square().sum()) for p in self.prepared.model.parameters()) ** 0.5
        self.prepared.model.zero_grad()
        return float(loss), norm

    def turn(self, batch: Any, steps: int, timed: bool) -> None:
        step = lambda: train_step(self.prepared, self.optimizer, batch, LR)
        step()
        wait_for(self.device)
        peak, begin = PeakMemory(self.device), time.perf_counter()
        for _ in range(steps):
            step()
        wait_for(self.device)
        if timed:
            self.seconds.append((time.perf_counter() - begin) / steps)
            self.peak_bytes = max(self.peak_bytes or 0, peak.bytes() or 0) or None


def fault(found: tuple[float, float], expected: tuple[float, float]) -> str:
    """Names what is far from bf16's. A NaN is far."""
    for what, value, right, share in zip(("loss", "gradient norm"), found, expected, (0.02, 0.15)):
        if not abs(value / right - 1) < share:
            return f"{what} {value:.4g} is not within {100 * share:.0f} % of bf16's {right:.4g}"
    return ""


def measure_width(
    width: int, variants: list[Variant], text: Text, plan: Plan, device: torch.device
) -> list[dict[str, Any]]:
    shape = shape_of(width, plan.window)
    batch_size = max(1, plan.tokens // plan.window)
    batch = text.windows(0, 1, batch_size, plan.window)[0]
    base = make_model(shape, 0, device)
    optimizer = MasterAdamW(base.parameters())
    first_values = [parameter.detach().clone() for parameter in base.parameters()]
    contenders, cases = [], []
    expected: Optional[tuple[float, float]] = None
    for variant in dict.fromkeys([BF16, *variants]):
        case = {"width": width, "blocks": shape.blocks, "variant": str(variant)}
        print(f"width {width}: preparing {variant}", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        try:
            # The turn of the variant before has updated them.
            torch._foreach_copy_([parameter.data for parameter in base.parameters()], first_values)
            contender = Contender(variant, prepare(variant, twin(base), plan.backend), optimizer, device)
            found = contender.first_loss(batch)
            contender.turn(batch, 1, timed=False)
        except Exception as error:  # a package that fails here does not stop the others
            cases.append(
                {**case, "left_out": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            )
            base.zero_grad()
            continue
        expected = expected or found
        wrong = fault(found, expected)
        if wrong:
            cases.append({**case, "wrong": wrong})
            continue
        contenders.append((contender, {**case, "loss": found[0], "prepared_in_s": time.perf_counter() - begin}))
    del first_values
    for turn in range(plan.rounds):
        first = turn % len(contenders)
        for contender, _ in contenders[first:] + contenders[:first]:
            contender.turn(batch, plan.steps, timed=True)
    tokens = batch_size * plan.window
    for contender, case in contenders:
        rates = [tokens / seconds for seconds in contender.seconds]
        speed = {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}
        cases.append({**case, "tokens_per_second": speed, "peak_bytes": contender.peak_bytes})
    return cases


def measure(
    widths: list[int],
    variants: list[Variant],
    text: Text,
    plan: Plan,
    device: torch.device,
    stop_after: float,
    write: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """The cases of all widths. No width is begun after stop_after seconds; write() saves what there is after each."""
    begin = time.perf_counter()
    torch._dynamo.config.recompile_limit = 64  # all variants are compilations of one block's code
    cases: list[dict[str, Any]] = []
    for width in widths:
        if time.perf_counter() - begin > stop_after:
            print(f"width {width}: not begun, as --stop-after says", file=sys.stderr)
            continue
        cases += measure_width(width, variants, text, plan, device)
        write(cases)
        torch.compiler.reset()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if not cases:
        raise TrainGptError("--stop-after left no time for any width: give it more seconds")
    return cases


def rate(cases: list[dict[str, Any]], width: int, variant: str) -> Optional[float]:
    for case in cases:
        if case["width"] == width and case["variant"] == variant and "tokens_per_second" in case:
            return case["tokens_per_second"]["median"]
    return None


def verdicts(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At the largest width that was measured: Ingot's FP8 from eager is above compiled bf16, and compiled by 1.15; no
    variant of Ingot needs more memory than bf16 from eager."""
    width = max(case["width"] for case in cases)
    baseline = rate(cases, width, str(COMPILED_BF16))
    peak = next((c.get("peak_bytes") for c in cases if c["width"] == width and c["variant"] == str(BF16)), None)
    found = [
        verdict(False, f"width {case['width']}, {case['variant']}: {case['wrong']}")
        for case in cases
        if "wrong" in case
    ]
    for case in cases:
        variant = Variant.read(case["variant"])
        if case["width"] != width or variant.package not in ("ingot", "float8") or "tokens_per_second" not in case:
            continue
        if baseline is not None:
            least = LEAST_COMPILED_GAIN if variant.compiled else 1.0
            gain = case["tokens_per_second"]["median"] / baseline
            line = f"width {width}, {variant}: tokens/s x {gain:.3f} of {COMPILED_BF16}'s, at least {least:.2f}"
            found.append(verdict(gain >= least, line))
        if peak and case["peak_bytes"]:
            share = case["peak_bytes"] / peak
            line = f"width {width}, {variant}: peak memory x {share:.3f} of {BF16}'s, at most 1.000"
            found.append(verdict(share <= 1.0, line))
    return found


def table(cases: list[dict[str, Any]]) -> str:
    widths = list(dict.fromkeys(case["width"] for case in cases))
    lines = [
        "tokens/s, and how many times as fast as compiled bf16",
        f"{'variant':<30}" + "".join(f"{w:>19}" for w in widths),
    ]
    for variant in dict.fromkeys(case["variant"] for case in cases):
        cells = []
        for width in widths:
            value, baseline = rate(cases, width, variant), rate(cases, width, str(COMPILED_BF16))
            if value is None:
                case = next((c for c in cases if c["width"] == width and c["variant"] == variant), {})
                cells.append("WRONG" if "wrong" in case else "-")
            else:
                cells.append(f"{value:.0f}" + ("" if baseline is None else f" x{value / baseline:.2f}"))
        lines.append(f"{variant:<30}" + "".join(f"{cell:>19}" for cell in cells))
    for reason in dict.fromkeys(f"{c['variant']} is left out: {c['left_out']}" for c in cases if "left_out" in c):
        lines.append(reason)
    return "\n".join(lines)


def csv_rows(cases: list[dict[str, Any]]) -> list[list[Any]]:
    rows: list[list[Any]] = [["width", "blocks", "variant", "tokens_per_second", "peak_bytes"]]
    for case in cases:
        speed = case["tokens_per_second"]["median"] if "tokens_per_second" in case else ""
        rows.append([case["width"], case["blocks"], case["variant"], speed, case.get("peak_bytes") or ""])
    return rows

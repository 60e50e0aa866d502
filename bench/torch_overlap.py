"""Does a pass that is bound by memory gain time if it overlaps with an FP8 GEMM, which is bound by power? Times
torch._scaled_mm of n cubed (tensorwise e4m3fn, fast accumulation, bf16 output) and copies of n x n bf16, one after the
other and at the same time on two streams, in CUDA graphs that run round by round: with all SMs, and with some left to
the copies. Needs a Hopper GPU or later and PyTorch 2.8 or later; nothing of Ingot. Writes microseconds of a step.

    python bench/torch_overlap.py overlap.json
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
from typing import Any, Callable

import results_form
from torch_machine import machine
from torch_timing import Replay, rotated

CASES = ((4096, 1), (8192, 1), (8192, 2))  # n, copies in a step
SMS_LEFT = (0, 4, 8, 16, 24)
SETS = 4  # of operands that steps rotate through
ROUNDS = 9  # the order moves on from one to the next; the first warms up
GRAPH_US = 25000.0  # a replay is timed after another one, because the clock follows the power drawn before


def replays_of(torch: Any, n: int, copies: int, stream: Any, side: Any) -> dict[str, Replay]:
    def operands() -> dict[str, Any]:
        a, b = (torch.randn(n, n, device="cuda").clamp(-3, 3).to(torch.float8_e4m3fn) for _ in range(2))
        sources = [torch.randn(n, n, device="cuda").bfloat16() for _ in range(copies)]
        return {"a": a, "b": b.t(), "sources": sources, "targets": [torch.empty_like(source) for source in sources]}

    inputs = [operands() for _ in range(SETS)]
    scale = torch.ones((), device="cuda")
    out = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)

    def gemm(x: dict[str, Any]) -> None:
        torch._scaled_mm(
            x["a"], x["b"], scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True, out=out
        )

    def copy(x: dict[str, Any]) -> None:
        for source, target in zip(x["sources"], x["targets"]):
            target.copy_(source)

    def serial(x: dict[str, Any]) -> None:
        gemm(x)
        copy(x)

    def beside(x: dict[str, Any]) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy(x)
        gemm(x)
        torch.cuda.current_stream().wait_stream(side)

    def replay(step: Callable[[dict[str, Any]], None]) -> Replay:
        return Replay(torch, step, inputs, GRAPH_US, stream)

    replays = {"gemm": replay(gemm), "copy": replay(copy), "serial": replay(serial)}
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    try:
        for left in SMS_LEFT:
            torch._C._set_sm_carveout_experimental(left or None)
            replays[f"beside, {left} SMs left"] = replay(beside)
            if left:
                replays[f"gemm on {sms - left}"] = replay(gemm)
    finally:
        torch._C._set_sm_carveout_experimental(None)
    return replays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=pathlib.Path, help="the file to write")
    parser.add_argument("--commit", default="", help="the commit that was measured (default: git's)")
    options = parser.parse_args()
    import torch

    us: dict[str, dict[str, float]] = {}
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    for n, copies in CASES:
        replays = replays_of(torch, n, copies, stream, side)
        samples: dict[str, list[float]] = {name: [] for name in replays}
        for turn in range(ROUNDS):
            for name in rotated(list(replays), turn):
                sample = replays[name].measure()
                if turn > 0:
                    samples[name].append(sample)
        us[f"{n}, {copies}"] = {name: statistics.median(values) for name, values in samples.items()}
        print(n, copies, {name: round(value, 1) for name, value in us[f"{n}, {copies}"].items()})
    found = {"benchmark": "overlap", **machine(torch, "cuda", options.commit), "us": us}
    results_form.write(options.json, found)


if __name__ == "__main__":
    main()

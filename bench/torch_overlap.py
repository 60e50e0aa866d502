"""Does a pass that is bound by memory gain time beside an FP8 GEMM, which is bound by power? Times torch._scaled_mm of n
cubed (tensorwise e4m3fn, fast accumulation, bf16 output) and copies of n x n bf16, one after the other and beside each
other on two streams, in CUDA graphs that take turns: with all SMs, and with some left to the copies. Needs a Hopper GPU
or later and PyTorch 2.8 or later; nothing of Ingot. Writes microseconds of a step.

    python bench/torch_overlap.py overlap.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
from typing import Any, Callable

from torch_machine import machine

CASES = ((4096, 1), (8192, 1), (8192, 2))  # n, copies in a step
SMS_LEFT = (0, 4, 8, 16, 24)
STEPS = 12  # in a graph
ROUNDS = 9  # the order moves on from one to the next; the first warms up
GRAPH_SECONDS = 0.05  # of a measurement, at least: the clock follows the power drawn

Step = Callable[[int], None]


def capture(torch: Any, step: Step) -> Any:
    """The CUDA graph of STEPS steps."""
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        step(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(STEPS):
            step(i)
    return graph


def microseconds(torch: Any, graph: Any, replays: int) -> float:
    """Of a step, behind half as many replays that are not timed, because the clock follows the power drawn before."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(replays // 2):
        graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / (replays * STEPS)


def graphs_of(torch: Any, n: int, copies: int) -> dict[str, Any]:
    def codes() -> Any:
        return torch.randn(n, n, device="cuda").clamp(-3, 3).to(torch.float8_e4m3fn)

    a = [codes() for _ in range(3)]
    b = [codes().t() for _ in range(3)]
    sources = [torch.randn(n, n, device="cuda").bfloat16() for _ in range(4)]
    targets = [torch.empty_like(source) for source in sources]
    scale = torch.ones((), device="cuda")
    out = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def gemm(i: int) -> None:
        torch._scaled_mm(
            a[i % 3], b[i % 3], scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True, out=out
        )

    def copy(i: int) -> None:
        for k in range(copies):
            targets[(i + k) % 4].copy_(sources[(i + k) % 4])

    def serial(i: int) -> None:
        gemm(i)
        copy(i)

    def beside(i: int) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy(i)
        gemm(i)
        torch.cuda.current_stream().wait_stream(side)

    graphs = {"gemm": capture(torch, gemm), "copy": capture(torch, copy), "serial": capture(torch, serial)}
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    try:
        for left in SMS_LEFT:
            torch._C._set_sm_carveout_experimental(left or None)
            graphs[f"beside, {left} SMs left"] = capture(torch, beside)
            if left:
                graphs[f"gemm on {sms - left}"] = capture(torch, gemm)
    finally:
        torch._C._set_sm_carveout_experimental(None)
    return graphs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=pathlib.Path, help="the file to write")
    parser.add_argument("--commit", default="", help="the commit that was measured (default: git's)")
    options = parser.parse_args()
    import torch

    us: dict[str, dict[str, float]] = {}
    for n, copies in CASES:
        graphs = graphs_of(torch, n, copies)
        replays = max(2, round(GRAPH_SECONDS / (STEPS * 2 * n**3 / 1.3e15)))
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for turn in range(ROUNDS):
            order = list(graphs.items())
            for name, graph in order[turn:] + order[:turn]:
                sample = microseconds(torch, graph, replays)
                if turn > 0:
                    samples[name].append(sample)
        us[f"{n}, {copies}"] = {name: statistics.median(values) for name, values in samples.items()}
        print(n, copies, {name: round(value, 1) for name, value in us[f"{n}, {copies}"].items()})
    found = {"benchmark": "overlap", **machine(torch, "cuda", options.commit), "us": us}
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

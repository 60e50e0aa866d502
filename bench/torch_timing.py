"""Timing for compare_torch.py, as in src/runtime/measure/replay.h: CUDA graphs over rotated inputs, events around a
replay that follows another one, and medians over rounds in which the cases take turns."""

from __future__ import annotations

import statistics
from typing import Any, Callable

ENOUGH_BYTES = 512 << 20  # of buffers that calls rotate through: several times the largest L2
MOST_COPIES = 256
MOST_CALLS = 2000


def copies_for(working_set: int) -> int:
    return min(max(2, -(-ENOUGH_BYTES // working_set)), MOST_COPIES)


class Replay:
    """The CUDA graph of a call: runs on one copy of the input after the other, repeated to last about `graph_us`."""

    def __init__(
        self, torch: Any, call: Callable[[Any], Any], inputs: list[Any], graph_us: float, stream: Any
    ) -> None:
        """`stream`: of the warm-up and the capture, because libraries keep memory per stream. All contenders of a
        process share one: with seven more streams in use, each launch that overlaps begins 0.2 us later on an H200."""
        self.torch = torch
        self.inputs = inputs  # the graph reads them
        self.kept: list[Any] = []  # keeps outputs alive, so that each of the graph's calls writes to its own memory
        side = self.side = stream
        side.wait_stream(torch.cuda.current_stream())
        # Capture only once: memory that a library keeps from a first capture (cuBLAS's workspace) would be freed with it.
        with torch.cuda.stream(side):
            for x in inputs:
                call(x)  # compiles
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for x in inputs:
                call(x)
            end.record()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        of_all = begin.elapsed_time(end) * 1e3
        turns = max(1, min(round(graph_us / max(of_all, 0.01)), MOST_CALLS // len(inputs)))
        self.capture(call, inputs, turns * len(inputs))

    def capture(self, call: Callable[[Any], Any], inputs: list[Any], calls: int) -> None:
        self.calls = calls
        self.kept = [None] * len(inputs)  # keep the outputs of a copy until its next turn
        self.graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(self.graph, stream=self.side):
            for i in range(calls):
                self.kept[i % len(inputs)] = call(inputs[i % len(inputs)])

    def measure(self) -> float:
        """Returns the microseconds per call of a replay that follows another one."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.graph.replay()
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.calls


def rotated(items: list[Any], turn: int) -> list[Any]:
    """Each turn begins with another one."""
    first = turn % max(1, len(items))
    return items[first:] + items[:first]


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def take_turns(replays: dict[str, Replay], rounds: int) -> dict[str, dict[str, float]]:
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(rounds):
        for name in rotated(list(replays), turn):
            samples[name].append(replays[name].measure())
    return {name: summary(us) for name, us in samples.items()}

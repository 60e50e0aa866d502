"""What compare_fsdp.py --profile leaves of a contender: a trace of one step (chrome://tracing, Perfetto), a snapshot of
PyTorch's memory (pytorch.org/memory_viz), and from them the host's time in FSDP's hooks and what held the memory when
most was held."""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import pickle
import re
import shutil
import time
from typing import Any, Iterable, Iterator

from torch_ranks import Contender, Ranks, trace_of

MOST_EVENTS = 1_000_000  # of the allocator, that a snapshot keeps
GROUPS = 12  # lines of memory that are printed
OURS = (
    "/ingot/",
    "/torch/distributed/fsdp/",
    "/transformers/",
    "/torch/optim/",
    "/torchao/",
)  # where memory is said to be asked for


def file_name(contender: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", contender.lower()).strip("_")


# ---- the trace -------------------------------------------------------------------------------------------------------


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def host_times(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds of one step: on the GPU by kind of kernel, and of the host in each kind of FSDP's hooks (with what a
    hook calls, so hooks within hooks count twice) and in calls of CUDA's runtime that wait or ask for memory."""
    spans: dict[str, list[tuple[float, float]]] = {}
    hooks: dict[str, dict[str, float]] = {}
    calls: dict[str, dict[str, float]] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        name, begin, length = str(event["name"]), float(event["ts"]), float(event["dur"])
        if event.get("cat") == "kernel":
            spans.setdefault("nccl" if "nccl" in name.lower() else "compute", []).append((begin, begin + length))
        elif event.get("cat") in ("user_annotation", "cpu_op") and name.startswith("FSDP::"):
            _add(hooks, re.sub(r" (\(.*\)|for .*)$", "", name), length)
        elif event.get("cat") == "cuda_runtime" and re.search("Synchronize|Malloc|Free|HostAlloc", name):
            _add(calls, name, length)
    gpu = {f"{kind}_ms": _covered(of) / 1e3 for kind, of in spans.items()}
    gpu["busy_ms"] = _covered(span for of in spans.values() for span in of) / 1e3
    longest_first = lambda of: dict(sorted(of.items(), key=lambda item: -item[1]["ms"]))
    return {"gpu": gpu, "hooks": longest_first(hooks), "runtime": longest_first(calls)}


def _add(to: dict[str, dict[str, float]], name: str, microseconds: float) -> None:
    entry = to.setdefault(name, {"calls": 0, "ms": 0.0})
    entry["calls"] += 1
    entry["ms"] += microseconds / 1e3


# ---- the memory ------------------------------------------------------------------------------------------------------


def _asked_by(frames: list[dict[str, Any]]) -> str:
    """The innermost frame that says something, or the innermost one."""
    telling = next((frame for frame in frames if any(part in frame["filename"] for part in OURS)), None)
    frame = telling or next(iter(frames), None)
    if frame is None:
        return "no Python frame (backward)"
    return f"{'/'.join(pathlib.PurePath(frame['filename']).parts[-2:])}:{frame['line']} {frame['name']}"


def _totals(trace: list[dict[str, Any]]) -> Iterator[int]:
    """After each event, the bytes that are alive of those whose allocation the trace has."""
    sizes: dict[int, int] = {}
    total = 0
    for event in trace:
        if event["action"] == "alloc":
            sizes[event["addr"]] = event["size"]
            total += event["size"]
        elif event["action"] == "free_completed":
            total -= sizes.pop(event["addr"], 0)
        yield total


def at_peak(snapshot: dict[str, Any], device: int, since_us: float) -> dict[str, Any]:
    """Of the allocations that were alive when most was, from `since_us` on: the bytes by who asked for them. What was
    there before the history began, or is older than the history keeps, is in none."""
    trace = snapshot["device_traces"][device]
    judged = [event.get("time_us", since_us) >= since_us for event in trace]
    most, last = max(
        ((total, at) for at, total in enumerate(_totals(trace)) if judged[at] or not any(judged)), default=(0, -1)
    )
    alive: dict[int, dict[str, Any]] = {}
    for event in trace[: last + 1]:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    best: dict[str, int] = {}
    for event in alive.values():
        who = _asked_by(event.get("frames", []))
        best[who] = best.get(who, 0) + event["size"]
    return {"bytes": most, "by": dict(sorted(best.items(), key=lambda item: -item[1]))}


# ---- one contender ---------------------------------------------------------------------------------------------------


def profiled(ranks: Ranks, contender: Contender, warm_up: int, folder: pathlib.Path) -> dict[str, Any]:
    """Files of rank 0 in the folder, and what they say."""
    torch = ranks.torch
    ranks.free()
    memory = torch.cuda.memory
    writes = ranks.rank == 0
    if ranks.on_gpu and writes:
        memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
    running = contender.make()
    for _ in range(max(warm_up, 2)):
        running.step()
    ranks.wait()
    if ranks.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begin = time.time_ns() / 1e3
    running.step()
    ranks.wait()
    found: dict[str, Any] = {
        "contender": contender.name,
        "step_ms": (time.time_ns() / 1e3 - begin) / 1e3,
        **ranks.memory(),
    }
    path = folder / file_name(contender.name)
    if ranks.on_gpu and writes:
        snapshot = memory._snapshot()
        memory._record_memory_history(enabled=None)
        with gzip.open(f"{path}.memory.pickle.gz", "wb", compresslevel=5) as file:
            pickle.dump(snapshot, file)
        found["at_peak"] = at_peak(snapshot, ranks.device.index, begin)
        del snapshot
    trace = pathlib.Path(f"{path}.trace.json") if writes else None
    found.update(host_times(trace_of(torch, running.step, ranks.on_gpu, trace)))
    if trace is not None:
        with trace.open("rb") as plain, gzip.open(f"{trace}.gz", "wb", compresslevel=5) as packed:
            shutil.copyfileobj(plain, packed)
        trace.unlink()
        pathlib.Path(f"{path}.profile.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def text_of(found: dict[str, Any]) -> str:
    lines = [f"{found['contender']}: a step takes {found['step_ms']:.1f} ms"]
    if found["gpu"]["busy_ms"]:
        lines[0] += ", the GPU is busy for " + ", ".join(f"{ms:.1f} ({name[:-3]})" for name, ms in found["gpu"].items())
    for title, of in (("host, in hooks:", found["hooks"]), ("host, in CUDA's runtime:", found["runtime"])):
        lines += [f"  {title}"] * bool(of)
        lines += [f"    {each['ms']:>9.2f} ms {each['calls']:>5.0f} x  {name}" for name, each in of.items()]
    if "at_peak" in found:
        lines.append(
            f"  at the peak of {found['peak'] / 1e9:.2f} GB, of which {found['at_peak']['bytes'] / 1e9:.2f} were asked for by:"
        )
        lines += [f"    {size / 1e6:>10.1f} MB  {who}" for who, size in list(found["at_peak"]["by"].items())[:GROUPS]]
    return "\n".join(lines)


def run(ranks: Ranks, contenders: list[Contender], options: argparse.Namespace, folder: pathlib.Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for contender in contenders:
        ranks.say(f"{ranks.seconds():.0f} s: {contender.name}")
        found = profiled(ranks, contender, options.warm_up, folder)
        if ranks.rank == 0:
            print(text_of(found), flush=True)
    return 0


def self_check() -> None:
    assert file_name("ingot rowwise, eager, FP8 gather") == "ingot_rowwise_eager_fp8_gather"
    event = lambda name, cat, ts, dur: {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur}
    found = host_times(
        [
            event("ncclDevKernel_AllGather", "kernel", 0, 3000),
            event("gemm", "kernel", 2000, 2000),
            event("FSDP::pre_forward (layers.0)", "user_annotation", 0, 500),
            event("FSDP::pre_forward (layers.1)", "cpu_op", 600, 500),
            event("FSDP::backward_prefetch for layers.0", "user_annotation", 0, 100),
            event("cudaStreamSynchronize", "cuda_runtime", 0, 250),
            {"ph": "s", "name": "flow"},
        ]
    )
    assert found["gpu"] == {"nccl_ms": 3.0, "compute_ms": 2.0, "busy_ms": 4.0}, found
    assert found["hooks"] == {
        "FSDP::pre_forward": {"calls": 2, "ms": 1.0},
        "FSDP::backward_prefetch": {"calls": 1, "ms": 0.1},
    }
    assert found["runtime"] == {"cudaStreamSynchronize": {"calls": 1, "ms": 0.25}}
    inner = {"filename": "/x/torch/_tensor.py", "line": 1, "name": "new"}
    outer = {"filename": "/x/ingot/torch/_linear.py", "line": 7, "name": "forward"}
    did = lambda action, addr, size, at, *frames: {
        "action": action,
        "addr": addr,
        "size": size,
        "time_us": at,
        "frames": list(frames),
    }
    trace = [
        did("alloc", 1, 900, 1, inner),
        did("free_requested", 1, 900, 2),
        did("free_completed", 1, 900, 2),
        did("alloc", 2, 100, 3, inner, outer),
        did("alloc", 3, 50, 11, inner, outer),
        did("alloc", 4, 30, 12),
        did("free_completed", 2, 100, 13),
    ]
    peak = at_peak({"device_traces": [[], trace]}, 1, 10)
    assert peak == {"bytes": 180, "by": {"torch/_linear.py:7 forward": 150, "no Python frame (backward)": 30}}, peak
    assert at_peak({"device_traces": [trace]}, 0, 99)["bytes"] == 900
    found |= {"contender": "a", "step_ms": 5.0, "peak": 200, "at_peak": peak}
    assert (
        text_of(found).splitlines()[0]
        == "a: a step takes 5.0 ms, the GPU is busy for 3.0 (nccl), 2.0 (compute), 4.0 (busy)"
    )

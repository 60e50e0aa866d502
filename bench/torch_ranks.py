"""One rank of a benchmark that torchrun starts on several GPUs, or on the CPU over gloo to try it: contenders take
turns in one job, in rotated order. Each makes its model anew for its turn and frees it after, so that peaks of memory
are its own.

What crosses the wire is read from a profile of one step, which sees the collectives of FSDP, DDP, DTensor and compiled
graphs alike."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import gc
import importlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional

import results_form
import torch_machine
from torch_timing import rotated

NO_TIME = "no time was left"


class Running:
    """A contender's turn. step() enqueues one step and returns its loss, a tensor, or None where there is none."""

    def __init__(self, step: Callable[[], Any], note: str = "") -> None:
        self.step, self.note = step, note


class Contender(NamedTuple):
    """`make` may raise ImportError, where a package is missing, or whatever refuses the combination."""

    name: str
    make: Callable[[], Running]
    sets: tuple[str, ...]


class Ranks:
    """This rank among those of the job."""

    def __init__(self, torch: Any, device: str) -> None:
        if "RANK" not in os.environ:
            raise SystemExit(f"run it by torchrun --nproc_per_node <gpus> {sys.argv[0]}")
        self.torch, self.dist = torch, torch.distributed
        self.began = time.monotonic()
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = device != "cpu"
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if self.on_gpu else torch.device("cpu")
        options: dict[str, Any] = {"timeout": datetime.timedelta(seconds=300)}
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            options["device_id"] = self.device
        else:
            torch.set_num_threads(1)
        self.dist.init_process_group("nccl" if self.on_gpu else "gloo", **options)
        self.objects = self.dist.new_group(backend="gloo")  # keeps objects out of the GPU's memory

    def end(self) -> None:
        self.dist.destroy_process_group()

    def gathered(self, value: Any) -> list[Any]:
        """The value of each rank."""
        values = [None] * self.world
        self.dist.all_gather_object(values, value, group=self.objects)
        return values

    def of_first(self, value: Any) -> Any:
        return self.gathered(value)[0]

    def wait(self) -> None:
        """Until every rank has come here and its GPU is done."""
        if self.on_gpu:
            self.torch.cuda.synchronize()
        self.dist.barrier(group=self.objects)

    def seconds(self) -> float:
        """Since the job began, the same on every rank."""
        return self.of_first(time.monotonic() - self.began)

    def say(self, line: str) -> None:
        if self.rank == 0:
            print(line, file=sys.stderr, flush=True)

    def free(self) -> None:
        """Gives back what the last turn held, and forgets its peak."""
        gc.collect()
        if self.on_gpu:
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def memory(self) -> dict[str, int]:
        """Bytes of PyTorch's allocator, the most of any rank; nothing on the CPU."""
        if not self.on_gpu:
            return {}
        cuda = self.torch.cuda
        own = {
            "allocated": cuda.memory_allocated(),
            "peak": cuda.max_memory_allocated(),
            "reserved_peak": cuda.max_memory_reserved(),
        }
        every = self.gathered(own)
        return {name: max(each[name] for each in every) for name in own}


# ---- what crosses the wire -------------------------------------------------------------------------------------------

_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("bfloat16", "half", "short"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long", "long int"), 8),
}
# What a rank sends of its input where n ranks pass parts around a ring.
_SENT = {
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


def _kind(name: str) -> str:
    """NCCL's profiles say "_allgather_base", gloo's "gloo:all_gather"."""
    plain = name.lower().replace("_", "")
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"):
        if kind.replace("_", "") in plain:
            return kind
    return name


def _dtype(name: str) -> str:
    plain = name.removeprefix("c10::").lower()
    return {"byte": "uint8", "unsigned char": "uint8", "half": "float16", "float": "float32"}.get(plain, plain)


def _itemsize(name: str) -> int:
    plain = name.removeprefix("c10::").lower()
    return 1 if plain.startswith("float8") else _BYTES.get(plain, 0)


def _collectives(events: list[dict[str, Any]], world: int) -> Iterator[tuple[str, str, int, int]]:
    """Of each: its kind, dtype, bytes of this rank's input, and ranks."""
    for event in events:
        args = event.get("args", {})
        if event.get("name") == "record_param_comms":  # NCCL's
            elements = int(args.get("In msg nelems", 0))
            name, dtype, ranks = (
                args.get("Collective name", ""),
                args.get("dtype", ""),
                int(args.get("Group size", world)),
            )
        elif str(event.get("name", "")).startswith("gloo:"):
            dims, types = args.get("Input Dims") or [[]], args.get("Input type") or [""]
            elements = 1
            for size in dims[0]:
                elements *= size
            name, dtype, ranks = event["name"].removeprefix("gloo:"), types[0], world
        else:
            continue
        if elements > 0 and ranks > 1 and "wait" not in name and "barrier" not in name:
            yield _kind(name), dtype, elements * _itemsize(dtype), ranks


def wire(events: list[dict[str, Any]], world: int) -> dict[str, Any]:
    """Calls and bytes of this rank's inputs by collective and dtype, and the bytes that it sends in all if parts go
    around a ring. (gloo's reduce_scatter is an all_reduce.)"""
    found: dict[str, Any] = {}
    sent = 0.0
    for kind, dtype, size, ranks in _collectives(events, world):
        entry = found.setdefault(f"{kind} {_dtype(dtype)}", {"calls": 0, "bytes": 0})
        entry["calls"] += 1
        entry["bytes"] += size
        sent += size * _SENT.get(kind, lambda n: 1.0)(ranks)
    return {**{name: found[name] for name in sorted(found)}, "sent_bytes": round(sent)}


def trace_of(
    torch: Any, step: Callable[[], Any], gpu: bool, path: Optional[pathlib.Path] = None
) -> list[dict[str, Any]]:
    """The events of a profile of one call, whose trace is left at `path` if there is one."""
    kinds = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if gpu else [])
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profile:
        step()
        if gpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = path or pathlib.Path(folder, "trace.json")
        profile.export_chrome_trace(str(file))
        return json.loads(file.read_text(encoding="utf-8", errors="replace"))["traceEvents"]


# ---- turns -----------------------------------------------------------------------------------------------------------


def _graphs(torch: Any) -> int:
    return torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)


def turn(ranks: Ranks, contender: Contender, warm_up: int, steps: int, count: bool) -> dict[str, Any]:
    """Seconds of a step and of the host's part of it, until the calls of one have returned (of the slowest rank), memory,
    losses of every rank and, if `count`, what crosses the wire."""
    torch = ranks.torch
    ranks.free()
    held = ranks.memory().get("allocated")
    begin, losses = time.monotonic(), []
    running = contender.make()
    for _ in range(warm_up):
        losses.append(running.step())
    ranks.wait()
    ready_s = time.monotonic() - begin
    if ranks.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    graphs = _graphs(torch)
    ranks.wait()
    begin = time.monotonic()
    for _ in range(steps):
        losses.append(running.step())
    if ranks.on_gpu:
        torch.cuda.synchronize()
    own = (time.monotonic() - begin) / steps
    host = []
    for _ in range(3):
        ranks.wait()  # no GPU has work from before that the host could wait for
        begin = time.monotonic()
        running.step()
        host.append(time.monotonic() - begin)
    found: dict[str, Any] = {"s": max(ranks.gathered(own)), "ready_s": ready_s, "compilations": _graphs(torch) - graphs}
    found["host_s"] = max(ranks.gathered(statistics.median(host)))
    if held is not None:
        found["memory"] = {**ranks.memory(), "held_before": held}
    if running.note:
        found["note"] = running.note
    found["losses"] = ranks.gathered([each.item() for each in losses if each is not None])
    if count:
        found["wire"] = wire(trace_of(torch, running.step, ranks.on_gpu), ranks.world)
    return found


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def take_turns(
    ranks: Ranks,
    contenders: list[Contender],
    options: argparse.Namespace,
    write: Callable[[dict[str, list[dict[str, Any]]], dict[str, str]], None],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Rounds of all contenders, as many as options.rounds and options.seconds allow, and at least a part of the first:
    the turns of each, and of those that are left out why. `write` gets both after each turn."""
    turns: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contenders}
    left_out: dict[str, str] = {}
    for at in range(options.rounds):
        there = [each for each in contenders if each.name not in left_out]
        began = ranks.seconds()
        next_round = sum(turns[each.name][-1]["turn_s"] for each in there) if at else 0.0
        if at and (not there or began + next_round > options.seconds):
            break
        for contender in rotated(there, at) if there else []:
            if at == 0 and ranks.seconds() > options.seconds:
                left_out[contender.name] = NO_TIME
                continue
            ranks.say(f"round {at + 1}, {ranks.seconds():.0f} s: {contender.name}")
            begin, problem = time.monotonic(), ""
            try:
                found = turn(ranks, contender, options.warm_up, options.steps, count=at == 0)
            except Exception as error:  # what one contender cannot do stops no other
                if options.traceback:
                    raise
                problem = _one_line(error)
            problem = next(filter(None, ranks.gathered(problem)), "")
            if problem:
                left_out[contender.name] = problem
                turns[contender.name] = []
            else:
                seconds = time.monotonic() - begin
                again = min(found["ready_s"], 3.0 + 3 * options.warm_up * found["s"])  # without compiling
                found["turn_s"] = ranks.of_first(seconds - found["ready_s"] + again)
                turns[contender.name].append(found)
            write(turns, left_out)
    return turns, left_out


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def case_of(contender: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """What the turns of a contender found, as a case of the results; of losses those of rank 0."""
    case: dict[str, Any] = {"contender": contender, "ms": spread([each["s"] * 1e3 for each in turns])}
    case["host_ms"] = spread([each["host_s"] * 1e3 for each in turns])
    if "memory" in turns[0]:
        case["memory"] = {name: max(each["memory"][name] for each in turns) for name in turns[0]["memory"]}
    case["wire"] = turns[0]["wire"]
    if turns[0]["losses"][0]:
        case["losses"] = turns[0]["losses"][0]
    case["first_ready_s"] = round(turns[0]["ready_s"], 1)
    compilations = sum(each["compilations"] for each in turns)
    if compilations:
        case["compilations_while_timed"] = compilations
    if "note" in turns[0]:
        case["note"] = turns[0]["note"]
    return case


def ratio_and_peak(case: dict[str, Any]) -> tuple[str, str]:
    """The cells of a table, of what some cases lack: the speed over bf16's, and the peak of memory in GB."""
    ratio = f"{case['over_bf16_compiled']:.3f}" if "over_bf16_compiled" in case else "-"
    return ratio, f"{case['memory']['peak'] / 1e9:.2f}" if "memory" in case else "-"


# ---- losses ----------------------------------------------------------------------------------------------------------


def _differ_from(one: list[list[float]], other: list[list[float]]) -> int:
    """The first step at which a rank's losses differ (NaN does from itself), or the number of steps."""
    steps = min(len(of_rank) for of_rank in (*one, *other))
    return next((at for at in range(steps) if any(a[at] != b[at] for a, b in zip(one, other))), steps)


def same_losses(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[str, str]:
    """Has one contender the losses of the other, bit for bit, as far as each repeats its own from turn to turn? (On a
    GPU the backwards of attention and of embeddings add in any order, unless they are told otherwise.)"""
    steps = len(ours[0]["losses"][0])
    differ = _differ_from(ours[0]["losses"], theirs[0]["losses"])
    repeats = min(_differ_from(of[0]["losses"], each["losses"]) for of in (ours, theirs) for each in of)
    if differ == steps:
        return "holds", f"all {steps} losses are equal"
    pairs = [(a[differ], b[differ]) for a, b in zip(ours[0]["losses"], theirs[0]["losses"])]
    rank = next(at for at, (a, b) in enumerate(pairs) if a != b)
    text = f"losses differ from step {differ + 1} on (rank {rank}: {pairs[rank][0]:.9g} and {pairs[rank][1]:.9g})"
    if differ == 0 or (len(ours) > 1 and differ < repeats):
        return "FAILS", f"{text}, and each repeats its own to step {repeats}"
    if len(ours) == 1:
        return (
            "unclear",
            f"{text}: one round does not say whether each repeats its own: more rounds, or --deterministic",
        )
    return "holds", f"{text}, and so do those of each from turn to turn, from step {repeats + 1} on"


# ---- the program -----------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, sets: list[str]) -> None:
    parser.add_argument(
        "--contender",
        action="append",
        metavar="PATTERN",
        help="names or patterns of contenders (may be repeated), instead of --sets",
    )
    parser.add_argument(
        "--sets", default=sets[0], metavar="NAMES", help=f"with commas; of {', '.join(sets)}, all (default: {sets[0]})"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each contender (default: 3)")
    parser.add_argument(
        "--warm-up", type=int, default=4, metavar="N", help="steps before a turn's timed ones (default: 4)"
    )
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps of a turn (default: 10)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=480.0,
        metavar="N",
        help="begin no round, and in the first no turn, that would end later (default: 480)",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: over gloo, to try the program")
    parser.add_argument(
        "--compiler",
        default="inductor",
        metavar="NAME",
        help="torch.compile's backend; aot_eager to try the program (default: inductor)",
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="PyTorch's deterministic algorithms, and nothing that its compiler chooses by timing: to compare losses, not speeds",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to this file, after each turn")
    parser.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    parser.add_argument("--list", action="store_true", help="print the contenders and their sets; needs no GPU")
    parser.add_argument("--traceback", action="store_true", help="end with the first error of a contender")


def chosen(contenders: list[Contender], options: argparse.Namespace) -> list[Contender]:
    """Raises SystemExit where a name or a set has none."""
    if options.contender:
        for pattern in options.contender:
            if not any(fnmatch.fnmatchcase(each.name, pattern) for each in contenders):
                raise SystemExit(f"--contender: none is called {pattern!r}: --list prints all")
        return [each for each in contenders if any(fnmatch.fnmatchcase(each.name, at) for at in options.contender)]
    wanted = options.sets.split(",")
    for name in wanted:
        if name != "all" and not any(name in each.sets for each in contenders):
            raise SystemExit(f"--sets: there is no set {name!r}: --list prints all")
    return [each for each in contenders if "all" in wanted or set(wanted) & set(each.sets)]


def listed(contenders: list[Contender]) -> str:
    width = max(len(each.name) for each in contenders)
    return "\n".join(f"{each.name:<{width}}  {', '.join(each.sets)}" for each in contenders)


@contextlib.contextmanager
def started(torch: Any, options: argparse.Namespace) -> Iterator[Ranks]:
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"skipped: no CUDA device for PyTorch {torch.__version__}; --device cpu tries the program")
        raise SystemExit(77)
    ranks = Ranks(torch, options.device)
    for limit in ("recompile_limit", "accumulated_recompile_limit"):  # the contenders are compilations of the same code
        setattr(torch._dynamo.config, limit, 256)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by the next line
        torch.use_deterministic_algorithms(True)  # with warn_only attention's backward would stay as it is
        # A sum's order follows the block that the compiler finds fastest: each rank and contender may find another.
        inductor = importlib.import_module("torch._inductor.config")
        if hasattr(inductor, "deterministic"):
            inductor.deterministic = True
        else:  # older than that option
            ranks.say("--deterministic: this PyTorch's compiler still chooses by timing, so compiled losses may differ in their last bits")
    try:
        yield ranks
    finally:
        ranks.end()


def head(ranks: Ranks, benchmark: str, options: argparse.Namespace) -> dict[str, Any]:
    """The head of the results: what ran where."""
    named = ("rounds", "warm_up", "steps", "compiler", "deterministic")
    return {
        "benchmark": benchmark,
        **torch_machine.machine(ranks.torch, options.device, options.commit),
        "gpus": ranks.world,
        "options": {name: getattr(options, name) for name in named},
    }


def write_json(ranks: Ranks, path: Optional[str], found: dict[str, Any]) -> None:
    if path and ranks.rank == 0:
        results_form.write(path, found)


def left_out_lines(left_out: dict[str, str]) -> list[str]:
    return [f"left out: {name}: {reason}" for name, reason in left_out.items()]


REFUSED = (
    "ImportError",
    "ModuleNotFoundError",
    "AssertionError",
    "NotImplementedError",
    "Float8AssertionError",
    "Float8NotImplementedError",
)


def failed(verdicts: list[dict[str, Any]], left_out: dict[str, str]) -> bool:
    """A package that is not installed, a combination that one refuses and a time that is over are no failures."""
    errors = [reason for reason in left_out.values() if reason != NO_TIME and reason.split(":")[0] not in REFUSED]
    return bool(errors) or any(each["verdict"] == "FAILS" for each in verdicts)


def compare(
    ranks: Ranks,
    contenders: list[Contender],
    options: argparse.Namespace,
    found: dict[str, Any],
    read: Callable[[dict[str, list[dict[str, Any]]]], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Takes turns; adds to the results, which begin with their head, what `read` finds in the turns (cases, and verdicts
    if there are any), and prints them at the end as `table` has them. Returns the program's exit status."""

    def write(turns: dict[str, list[dict[str, Any]]], left_out: dict[str, str]) -> None:
        found.update(read(turns), left_out=left_out)
        write_json(ranks, options.json, found)

    take_turns(ranks, contenders, options, write)
    if ranks.rank == 0:
        print(table(found), flush=True)
    return 1 if failed(found.get("verdicts", []), found["left_out"]) else 0


def self_check() -> None:
    nccl = {"Collective name": "_allgather_base", "dtype": "Byte", "In msg nelems": 100, "Group size": 4}
    events = [
        {"name": "record_param_comms", "args": nccl},
        {"name": "record_param_comms", "args": {**nccl, "Collective name": "allreduce", "dtype": "Float"}},
        {"name": "record_param_comms", "args": {**nccl, "Collective name": "wait", "In msg nelems": 0}},
        {
            "name": "record_param_comms",
            "args": {**nccl, "Collective name": "reduce_scatter_tensor_coalesced", "dtype": "BFloat16"},
        },
        {"name": "gloo:all_gather", "args": {"Input Dims": [[4, 8]], "Input type": ["c10::BFloat16"]}},
        {"name": "gloo:all_gather", "args": {"Input Dims": [[4, 8]], "Input type": ["c10::BFloat16"]}},
        {"name": "aten::mm"},
    ]
    assert wire(events, 2) == {
        "all_gather bfloat16": {"calls": 2, "bytes": 128},
        "all_gather uint8": {"calls": 1, "bytes": 100},
        "all_reduce float32": {"calls": 1, "bytes": 400},
        "reduce_scatter bfloat16": {"calls": 1, "bytes": 200},
        "sent_bytes": 128 + 300 + 600 + 150,
    }, wire(events, 2)
    nan = float("nan")
    once, other = [{"losses": [[1.0, 2.0], [1.0, 3.0]]}], [{"losses": [[1.0, 2.0], [1.0, 4.0]]}]
    assert same_losses(once, once)[0] == "holds" and same_losses(once, other)[0] == "unclear"
    assert same_losses(once * 2, other * 2)[0] == "FAILS"
    assert same_losses(once + other, other + once) == (
        "holds",
        "losses differ from step 2 on (rank 1: 3 and 4), and so do those of each from turn to turn, from step 2 on",
    )
    assert same_losses([{"losses": [[nan, 1.0]]}] * 2, [{"losses": [[nan, 1.0]]}] * 2)[0] == "FAILS"
    made = [Contender(name, lambda: Running(lambda: None), ("main",)) for name in ("a, eager", "b, eager", "c")]
    options = argparse.Namespace(contender=["*, eager"], sets="main")
    assert [each.name for each in chosen(made, options)] == ["a, eager", "b, eager"] and rotated([1, 2, 3], 4) == [
        2,
        3,
        1,
    ]
    assert failed([], {"a": "ValueError: no"}) and not failed([], {"a": NO_TIME, "b": "ImportError: no torchao"})

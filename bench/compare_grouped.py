#!/usr/bin/env python3
"""The grouped GEMMs of a mixture of experts beside PyTorch's, on one GPU (Hopper): torch._grouped_mm in bf16 and
torch._scaled_grouped_mm in FP8 with a scale for each row, and Ingot's with the same operands, of rows and along K (the gradients
of weights). They take turns in one process, as CUDA graphs over operands that are not in the L2.

    python3 bench/compare_grouped.py --json grouped_torch.json
    python3 bench/compare_grouped.py --case 'Mixtral*' --kind 'grad*' --rounds 7
    python3 bench/compare_grouped.py --list                                # no GPU
    python3 bench/compare_grouped.py --device cpu --try                    # a tiny case, to try the program

Zipf's routing is ragged: the i-th expert's share of the rows is proportional to 1 / i. Ingot also multiplies the same rows with
each expert's padded to multiples of 16 and of 128, by zeros. torch._scaled_grouped_mm along K takes multiples of 16 only, and
gets padded rows where others are ragged. TFLOPS are of rows without padding.

Each result is compared with float64's for some experts and rows, after the graphs that are timed ran; ends with 1 if one is
wrong or Ingot failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import pathlib
import sys
import time
from typing import Any, Callable, NamedTuple

import results_form
import torch_machine
import torch_timing

CHECKED_ROWS = 64  # of each of some experts
BF16 = 1  # the output's number for torch.ops.ingot
PADDED = (16, 128)


class Case(NamedTuple):
    name: str
    experts: int
    rows: int  # of all experts
    n: int
    k: int


CASES = [
    Case("Mixtral up", 8, 16384, 14336, 4096),
    Case("DeepSeek-V3 up", 32, 32768, 2048, 7168),
    Case("DeepSeek-V3 down", 32, 32768, 7168, 2048),
    Case("Qwen3-235B up", 128, 16384, 3072, 4096),
    Case("few rows", 16, 1024, 4096, 7168),
    # Sizes that nothing was tuned at.
    Case("unlisted", 24, 9000, 1792, 5120),
    Case("unlisted", 60, 15000, 1408, 2048),
    Case("unlisted", 12, 9600, 2816, 3584),
    Case("unlisted", 40, 10001, 1536, 6144),
    Case("unlisted", 10, 15000, 4864, 1920),
    Case("unlisted", 50, 6000, 3584, 2816),
]
TINY = Case("tiny", 4, 67, 48, 64)
ROUTINGS = ("balanced", "zipf")


class Kind(NamedTuple):
    name: str
    fp8: bool
    along_k: bool
    fast: bool  # sums in the tensor core throughout; those of bf16 always are

    @property
    def bound(self) -> float:
        """For the relative error: bf16's own rounding is 1.7e-3."""
        return 2.0**-6 if self.fp8 and self.fast else 2.0**-8


# In the order in which they are timed.
KINDS = [
    Kind("row fast", fp8=True, along_k=False, fast=True),
    Kind("bf16", fp8=False, along_k=False, fast=True),
    Kind("grad row fast", fp8=True, along_k=True, fast=True),
    Kind("grad bf16", fp8=False, along_k=True, fast=True),
    Kind("row", fp8=True, along_k=False, fast=False),
    Kind("grad row", fp8=True, along_k=True, fast=False),
]


def counts_of(case: Case, routing: str) -> list[int]:
    """Rows of each expert."""
    shares = [1 / (e + 1) if routing == "zipf" else 1.0 for e in range(case.experts)]
    ends = [round(case.rows * sum(shares[: e + 1]) / sum(shares)) for e in range(case.experts)]
    return [end - begin for begin, end in zip([0, *ends], ends)]


def padded(counts: list[int], multiple: int) -> list[int]:
    return [math.ceil(count / multiple) * multiple for count in counts]


class Operands(NamedTuple):
    a: Any  # (rows, K), or along K (N, rows)
    b: Any  # (experts, N, K), or along K (K, rows)
    scale_a: Any
    scale_b: Any
    ends: Any


def ends_of(torch: Any, counts: list[int], device: str) -> Any:
    return torch.tensor(counts, device=device).cumsum(0).to(torch.int32)


def random_operand(torch: Any, kind: Kind, shape: tuple[int, ...], device: str) -> Any:
    values = torch.randn(shape, device=device, dtype=torch.bfloat16)
    return (values * 90).clamp_(-448, 448).to(torch.float8_e4m3fn) if kind.fp8 else values


def make_operands(torch: Any, case: Case, kind: Kind, counts: list[int], device: str) -> Operands:
    torch.manual_seed(1)
    scales = lambda *shape: torch.rand(shape, device=device) / 90 + 0.005 if kind.fp8 else None
    values = lambda *shape: random_operand(torch, kind, shape, device)
    e, n, k, ends = case.experts, case.n, case.k, ends_of(torch, counts, device)
    if kind.along_k:
        columns = math.ceil(case.rows / 16) * 16  # row strides of 16 bytes; the last ones are no expert's
        return Operands(values(n, columns), values(k, columns), scales(e * n), scales(e * k), ends)
    return Operands(values(case.rows, k), values(e, n, k), scales(case.rows), scales(e, n), ends)


def rows_moved(torch: Any, counts: list[int], wider: list[int], device: str) -> Any:
    """Where each row is if experts have `wider` rows."""
    shifts = torch.tensor([sum(wider[:e]) - sum(counts[:e]) for e in range(len(counts))])
    return (torch.arange(sum(counts)) + shifts.repeat_interleave(torch.tensor(counts))).to(device)


def pad(torch: Any, x: Operands, kind: Kind, counts: list[int], multiple: int) -> Operands:
    wider = padded(counts, multiple)
    at = rows_moved(torch, counts, wider, x.a.device)

    def moved(operand: Any, dim: int) -> Any:
        shape = [*operand.shape]
        shape[dim] = sum(wider)
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.float32}[operand.element_size()]
        found = torch.zeros(shape, dtype=operand.dtype, device=operand.device)
        found.view(bits).index_copy_(dim, at, operand.view(bits).narrow(dim, 0, sum(counts)))
        return found

    ends = ends_of(torch, wider, x.a.device)
    if kind.along_k:
        return x._replace(a=moved(x.a, 1), b=moved(x.b, 1), ends=ends)
    return x._replace(a=moved(x.a, 0), scale_a=moved(x.scale_a, 0) if kind.fp8 else None, ends=ends)


def torchs(torch: Any, kind: Kind) -> Callable[[Operands], Any]:
    """In the layouts that users have: along K, bf16's operands are views of matrices whose rows are tokens."""
    if not kind.fp8:
        return lambda x: torch._grouped_mm(x.a, x.b.transpose(-2, -1), offs=x.ends)
    return lambda x: torch._scaled_grouped_mm(
        x.a, x.b.transpose(-2, -1), x.scale_a, x.scale_b, offs=x.ends, out_dtype=torch.bfloat16, use_fast_accum=kind.fast
    )


def by_tokens(x: Operands) -> Operands:
    return x._replace(a=x.a.t().contiguous().t(), b=x.b.t().contiguous().t())


def ingots(torch: Any, kind: Kind) -> Callable[[Operands], Any]:
    multiply = torch.ops.ingot.grouped_gemm.default
    return lambda x: multiply(x.a, x.scale_a, x.b, x.scale_b, x.ends, BF16, int(kind.fast and kind.fp8))


def fault(torch: Any, case: Case, kind: Kind, x: Operands, found: Any) -> str:
    """Of the largest expert, the first and the last; "" if right. x: the operands that `found` is of."""
    ends = x.ends.tolist()
    begins = [0, *ends[:-1]]
    widest = max(range(case.experts), key=lambda e: ends[e] - begins[e])
    error = norm = 0.0
    value = lambda codes, scale: codes.double() if scale is None else codes.double() * scale.double()[:, None]
    for e in sorted({0, widest, case.experts - 1}):
        rows = slice(begins[e], ends[e])
        count = case.n if kind.along_k else ends[e] - begins[e]
        chosen = torch.arange(0, count, max(1, count // CHECKED_ROWS), device=found.device)
        if kind.along_k:
            of = lambda scale, size: None if scale is None else scale[e * size : (e + 1) * size]
            a, b = value(x.a[:, rows], of(x.scale_a, case.n))[chosen], value(x.b[:, rows], of(x.scale_b, case.k))
            ours = found[e][chosen]
        else:
            a = value(x.a[rows], None if x.scale_a is None else x.scale_a[rows])[chosen]
            b = value(x.b[e], None if x.scale_b is None else x.scale_b[e])
            ours = found[rows][chosen]
        exact = a @ b.T
        error += float((ours.double() - exact).square().sum())
        norm += float(exact.square().sum())
    relative = (error / norm) ** 0.5
    return "" if relative <= kind.bound else f"relative error {relative:.3g}, at most {kind.bound:.3g}"


class Way(NamedTuple):
    call: Callable[[Operands], Any]
    operands: Operands
    padded_to: int = 0


def ways_of(torch: Any, case: Case, kind: Kind, counts: list[int], device: str) -> dict[str, Way]:
    x = make_operands(torch, case, kind, counts, device)
    ragged = [multiple for multiple in PADDED if padded(counts, multiple) != counts]
    wider = {multiple: pad(torch, x, kind, counts, multiple) for multiple in ragged}
    aligns = kind.fp8 and kind.along_k and 16 in wider
    of_torch = wider[16] if aligns else by_tokens(x) if kind.along_k and not kind.fp8 else x
    ways = {"torch": Way(torchs(torch, kind), of_torch, 16 if aligns else 0), "ingot": Way(ingots(torch, kind), x)}
    return ways | {f"ingot, padded to {multiple}": Way(ingots(torch, kind), wider[multiple], multiple) for multiple in ragged}


def copies_of(torch: Any, x: Operands) -> list[Operands]:
    """Several, so that none is in the L2 when its turn comes; strides stay."""
    size = sum(each.numel() * each.element_size() for each in x if each is not None)
    clone = lambda each: None if each is None else each.clone(memory_format=torch.preserve_format)
    return [x, *(Operands(*map(clone, x)) for _ in range(torch_timing.copies_for(size) - 1))]


def prepare(torch: Any, case: Case, kind: Kind, way: Way, graph_us: float, stream: Any) -> tuple[Any, str]:
    """(the graph that is timed, why its results are wrong); without a GPU, no graph."""
    if stream is None:
        return None, fault(torch, case, kind, way.operands, way.call(way.operands))
    copies = copies_of(torch, way.operands)
    replay = torch_timing.Replay(torch, way.call, copies, graph_us, stream)
    for kept in replay.kept:
        kept.fill_(math.nan)
    replay.graph.replay()
    wrong = [fault(torch, case, kind, way.operands, kept) for kept in (replay.kept[0], replay.kept[-1])]
    return replay, next(filter(None, wrong), "")


def measure(torch: Any, case: Case, routing: str, kind: Kind, options: argparse.Namespace, stream: Any) -> dict[str, Any]:
    counts = counts_of(case, routing)
    found: dict[str, dict[str, Any]] = {}
    replays = {}
    for name, way in ways_of(torch, case, kind, counts, options.device).items():
        entry = found[name] = {"padded_to": way.padded_to} if way.padded_to else {}
        try:
            replay, wrong = prepare(torch, case, kind, way, options.graph_us, stream)
        except Exception as error:  # a contender that this version of PyTorch cannot run
            entry["error"] = f"{type(error).__name__}: {error}"[:160]
            continue
        if wrong:
            entry["wrong"] = wrong
        elif replay is not None:
            replays[name] = replay
    for name, us in torch_timing.take_turns(replays, options.rounds).items():
        found[name].update(us=us, tflops=round(2e-6 * case.rows * case.n * case.k / us["median"], 1))
    median = lambda name: found.get(name, {}).get("us", {}).get("median")
    for name, entry in found.items():
        if name != "torch" and "us" in entry and median("torch"):
            entry["over_torch"] = round(median("torch") / median(name), 4)
        if "padded" in name and "us" in entry and median("ingot"):
            entry["ragged_takes"] = round(median("ingot") / median(name), 4)  # times the padded rows' time
    return {**case._asdict(), "case": name_of(case, routing, kind), "routing": routing, "kind": kind.name, "ways": found}


def name_of(case: Case, routing: str, kind: Kind) -> str:
    return f"{case.name} {case.experts} x {case.rows}x{case.n}x{case.k}, {routing}, {kind.name}"


def table(found: dict[str, Any]) -> str:
    lines = []
    for name, way in found["ways"].items():
        result = way.get("error") or (f"WRONG {way['wrong']}" if "wrong" in way else "right")
        if "us" in way:
            result = f"{way['us']['median']:9.1f} us {way['tflops']:7.1f} TFLOPS  {way.get('over_torch', 1):6.3f}"
            result += f"  ragged takes {way['ragged_takes']:.3f} of it" if "ragged_takes" in way else ""
        padding = f" (padded to {way['padded_to']})" if name == "torch" and "padded_to" in way else ""
        lines.append(f"{found['case']:62} {name + padding:22} {result}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="a pattern of cases' names: 'Mixtral*', '*zipf*'")
    parser.add_argument("--kind", default="*", help=f"a pattern, of {', '.join(kind.name for kind in KINDS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--graph-us", type=float, default=4000, help="of one graph")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no case begins after these")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--try", dest="tries", action="store_true", help="a tiny case")
    parser.add_argument("--commit", default="", help="of the code that is timed, where there is no git")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    begin = time.monotonic()
    chosen = [
        (case, routing, kind)
        for kind in KINDS
        for case in ([TINY] if options.tries else CASES)
        for routing in ROUTINGS
        if fnmatch.fnmatch(name_of(case, routing, kind), f"{options.case}*") and fnmatch.fnmatch(kind.name, options.kind)
    ]
    if options.list:
        print("\n".join(name_of(*each) for each in chosen))
        return 0
    import torch

    import ingot.torch  # noqa: F401  its operators

    stream = torch.cuda.Stream() if options.device == "cuda" else None
    machine = torch_machine.machine(torch, options.device, options.commit)
    found: list[dict[str, Any]] = []
    for each in chosen:
        if time.monotonic() - begin > options.seconds:
            print(f"{len(chosen) - len(found)} cases are left out: {options.seconds:.0f} s are over", file=sys.stderr)
            break
        found.append(measure(torch, *each, options, stream))
        print(table(found[-1]), flush=True)
        if options.json:  # after each case: a run that is ended keeps those that it had
            results_form.write(options.json, {"benchmark": "grouped_gemm from PyTorch", **machine, "padded_to": PADDED, "cases": found})
        if stream is not None:
            torch.cuda.empty_cache()
    ways = [(name, way) for case in found for name, way in case["ways"].items()]
    bad = [way for name, way in ways if "wrong" in way or (name.startswith("ingot") and "error" in way)]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

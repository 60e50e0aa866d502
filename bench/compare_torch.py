#!/usr/bin/env python3
"""Times PyTorch on the work of Ingot's benchmarks, in the same way (torch_timing.py): the casts of bench_cast with
torch.compile, the GEMMs of bench_gemm with torch._scaled_mm, torch.mm and DeepGEMM (torch_gemm.py), the steps of
bench_linear (torch_linear.py), the same steps with Ingot's PyTorch package as well (torch_eager.py), and GEMMs with
weights in 8 and 4 bits (torch_weight_only.py).

    python3 bench/compare_torch.py                                        # PyTorch alone
    python3 bench/compare_torch.py --ingot cast.json --json torch.json    # with what bench_cast --json wrote
    python3 bench/compare_torch.py --gemm --ingot gemm.json --deepgemm ~/DeepGEMM    # with bench_gemm --json
    python3 bench/compare_torch.py --linear --ingot linear.json    # with bench_linear --json
    python3 bench/compare_torch.py --eager --ingot linear.json     # torch, torch.compile, torchao, Ingot: one run
    python3 bench/compare_torch.py --weight-only                          # with Ingot's Python module, and gemlite
    python3 bench/compare_torch.py --list                                 # the cases; no GPU
    python3 bench/compare_torch.py --self-check                           # tables, and formulas on the CPU; no GPU

Run it and Ingot's benchmark on the same machine, one after the other: figures from two machines cannot be compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics
import sys
import types
from typing import Any, Callable

import results_form
import torch_eager
import torch_gemm
import torch_host
import torch_linear
import torch_machine
import torch_weight_only
from torch_timing import Replay, copies_for, take_turns

SKIPPED = 77
SIZES = (4096, 8192, 16384)
FP8_MAX = 448.0


# ---- the work: what a PyTorch user would write, under the names of bench/cast_cases.cpp ---------------------------


def scale_inv_and_scale(torch: Any, amax: Any) -> tuple[Any, Any]:
    scale = (FP8_MAX / torch.clamp(amax.to(torch.float64), min=1e-12)).to(torch.float32)
    return 1.0 / scale, scale


def encode(torch: Any, x: Any, scale: Any) -> Any:
    return (x.to(torch.float32) * scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def works(torch: Any, device: str) -> dict[str, tuple[int, Callable[[Any], Any]]]:
    """Returns name -> (ideal bytes per element, function of x)."""
    given = torch.full((), 100.0, device=device)

    def rowwise(x: Any) -> Any:
        factor, scale = scale_inv_and_scale(torch, x.abs().amax(dim=1, keepdim=True))
        return encode(torch, x, scale), factor

    def rowwise_transposed(x: Any) -> Any:
        codes, factor = rowwise(x)
        return codes, codes.t().contiguous(), factor

    def both_directions(x: Any) -> Any:
        codes, factor = rowwise(x)
        column_scale_inv, column_scale = scale_inv_and_scale(torch, x.abs().amax(dim=0, keepdim=True))
        return codes, encode(torch, x, column_scale).t().contiguous(), factor, column_scale_inv

    def tensorwise(x: Any) -> Any:
        factor, scale = scale_inv_and_scale(torch, x.abs().amax())
        return encode(torch, x, scale), factor

    def tensorwise_transposed(x: Any) -> Any:
        codes, factor = tensorwise(x)
        return codes, codes.t().contiguous(), factor

    def given_scale_transposed(x: Any) -> Any:
        codes = encode(torch, x, given)
        return codes, codes.t().contiguous(), x.abs().amax()

    return {
        "rowwise codes": (3, rowwise),
        "rowwise codes+transposed": (6, rowwise_transposed),
        "row+column codes+transposed": (6, both_directions),
        "tensorwise codes": (5, tensorwise),
        "tensorwise codes+transposed": (6, tensorwise_transposed),
        "given scale codes+transposed, amax": (4, given_scale_transposed),
    }


# ---- timing --------------------------------------------------------------------------------------------------------


def random_inputs(torch: Any, size: int) -> list[Any]:
    copies = copies_for(2 * size * size)
    return [torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]


def case_names() -> list[str]:
    without_torch = types.SimpleNamespace(full=lambda *_, **__: None)
    return [f"{name} {size}x{size}" for size in SIZES for name in works(without_torch, "cpu")]


def copy_ceiling(torch: Any, rounds: int) -> float:
    """Returns the TB/s, read plus written, of PyTorch's elementwise kernel on 512 MiB of random data."""
    x = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.mul(x, 1.5, out=out)
        begin.record()
        for _ in range(4):
            torch.mul(x, 1.5, out=out)
        end.record()
        end.synchronize()
        found.append(4 * 2 * x.numel() * x.element_size() / begin.elapsed_time(end) * 1e-9)
    return statistics.median(found)


def measure(torch: Any, chosen: str, quick: bool) -> dict[str, Any]:
    rounds, graph_us = (5, 1000.0) if quick else (25, 4000.0)
    before = copy_ceiling(torch, rounds)
    stream = torch.cuda.Stream()
    cases = []
    for size in SIZES:
        inputs = random_inputs(torch, size)
        todo = {n: w for n, w in works(torch, "cuda").items() if chosen in f"{n} {size}x{size}"}
        replays = {}
        for name, (_, call) in todo.items():
            print(f"compiling {name} {size}x{size}", file=sys.stderr)
            replays[name] = Replay(torch, torch.compile(call, dynamic=False), inputs, graph_us, stream)
        for name, us in take_turns(replays, rounds).items():
            bytes_per_element = todo[name][0]
            cases.append(
                {
                    "case": name,
                    "rows": size,
                    "cols": size,
                    "ideal_bytes": bytes_per_element * size * size,
                    "us": us,
                    "tb_per_s": bytes_per_element * size * size / us["median"] * 1e-6,
                }
            )
        del inputs, replays
        torch.cuda.empty_cache()
    after = copy_ceiling(torch, rounds)
    return {
        "benchmark": "cast, torch.compile",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_ceiling": {"before": before, "after": after, "tb_per_s": max(before, after)},
        "cases": cases,
    }


# ---- the table -----------------------------------------------------------------------------------------------------


def key(case: dict[str, Any]) -> tuple[str, int, int]:
    return case["case"], case["rows"], case["cols"]


def table(found: dict[str, Any], ingot: dict[str, Any] | None) -> str:
    beside = {key(case): case for case in ingot["cases"]} if ingot else {}
    lines = [
        f"PyTorch {found['torch']}, {found['device']}, {found['date']}; "
        f"elementwise copy {found['copy_ceiling']['tb_per_s']:.3f} TB/s"
    ]
    if ingot:
        lines.append(
            f"Ingot {ingot['ingot']} ({ingot['commit']}), {ingot['device']}, {ingot['date']}; "
            f"copy {ingot['copy_ceiling']['tb_per_s']:.3f} TB/s"
        )
        if ingot["device"] != found["device"]:
            lines.append("the devices differ: the ratios below mean nothing")
    lines.append("")
    lines.append(f"{'case':<52}{'torch us':>10}{'TB/s':>7}{'ingot us':>10}{'TB/s':>7}{'faster':>8}")
    for case in found["cases"]:
        ours = beside.pop(key(case), None)
        lines.append(row(case, case["us"]["median"], case["tb_per_s"], ours))
    for case in beside.values():
        lines.append(row(case, None, None, case))
    return "\n".join(lines) + "\n"


def row(case: dict[str, Any], torch_us: float | None, torch_rate: float | None, ours: dict[str, Any] | None) -> str:
    name = f"{case['case']} {case['rows']}x{case['cols']}"
    theirs = f"{torch_us:>10.1f}{torch_rate:>7.2f}" if torch_us is not None else f"{'-':>10}{'-':>7}"
    if ours is None:
        return f"{name:<52}{theirs}{'-':>10}{'-':>7}{'-':>8}"
    if "us" not in ours:
        return f"{name:<52}{theirs}{'WRONG':>10}{'-':>7}{'-':>8}"
    our_us = ours["us"]["median"]
    ratio = f"x{torch_us / our_us:.2f}" if torch_us is not None else "-"
    return f"{name:<52}{theirs}{our_us:>10.1f}{ours['tb_per_s']:>7.2f}{ratio:>8}"


# ---- self-check without a GPU --------------------------------------------------------------------------------------


def self_check() -> None:
    def case(name: str, us: float | None, **more: Any) -> dict[str, Any]:
        made = {"case": name, "rows": 64, "cols": 32, **more}
        return made if us is None else {**made, "us": {"median": us, "min": us, "max": us}, "tb_per_s": 1.25}

    ceiling = {"tb_per_s": 4.2}
    found = {"torch": "2", "device": "GPU", "date": "2026-11-21", "copy_ceiling": ceiling}
    found["cases"] = [case("both", 30.0), case("torch only", 7.0), case("wrong", 5.0)]
    ingot = {"ingot": "0.1.0", "commit": "abc", "device": "GPU", "date": "2026-11-21", "copy_ceiling": ceiling}
    ingot["cases"] = [case("both", 12.0), case("wrong", None, wrong="codes"), case("ingot only", 8.0)]
    lines = table(found, ingot).splitlines()
    rows = [line.split() for line in lines[4:]]
    assert rows == [
        ["both", "64x32", "30.0", "1.25", "12.0", "1.25", "x2.50"],
        ["torch", "only", "64x32", "7.0", "1.25", "-", "-", "-"],
        ["wrong", "64x32", "5.0", "1.25", "WRONG", "-", "-"],
        ["ingot", "only", "64x32", "-", "-", "8.0", "1.25", "-"],
    ], rows
    assert len({len(line) for line in lines[3:]}) == 1, "the columns do not line up"
    assert "mean nothing" not in table(found, ingot)
    assert "mean nothing" in table({**found, "device": "another"}, ingot)
    assert [line.split() for line in table(found, None).splitlines()[3:4]] == [
        ["both", "64x32", "30.0", "1.25", "-", "-", "-"]
    ]
    assert "rowwise codes 4096x4096" in case_names()
    try:
        import torch
    except ImportError:
        torch = None
    torch_gemm.self_check(pathlib.Path(__file__).with_name("gemm_cases.cpp").read_text(encoding="utf-8"), torch)
    linear_cases = pathlib.Path(__file__).with_name("linear_cases.cpp").read_text(encoding="utf-8")
    torch_linear.self_check(linear_cases, torch)
    torch_machine.self_check()
    torch_host.self_check()
    torch_eager.self_check(torch)
    torch_weight_only.self_check(torch)
    if torch is None:
        print("the tables are right; no PyTorch, so its formulas were not tried")
        return
    check_formulas(torch)
    print("the tables and the formulas are right")


def check_formulas(torch: Any) -> None:
    """Checks that codes times scale_inv give the input, transposed codes match, and ideal bytes fit the outputs."""
    x = torch.randn(48, 80, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    for name, (bytes_per_element, call) in works(torch, "cpu").items():
        outputs = call(x)
        codes = outputs[0]
        assert codes.shape == x.shape and codes.dtype == torch.float8_e4m3fn, name
        written = sum(out.numel() for out in outputs if out.dtype == torch.float8_e4m3fn)
        assert bytes_per_element - written // x.numel() in (2, 4), name
        factor = 1.0 / 100.0 if name.startswith("given") else outputs[-1 if "+column" not in name else 2]
        error = (codes.to(torch.float32) * factor - x.to(torch.float32)).norm() / x.to(torch.float32).norm()
        assert error < 0.04, (name, float(error))
        if "transposed" not in name:
            continue
        transposed = outputs[1]
        assert transposed.shape == (80, 48) and transposed.is_contiguous(), name
        if "+column" not in name:
            assert torch.equal(transposed.to(torch.float32), codes.t().to(torch.float32)), name


def works_by_option(options: argparse.Namespace) -> list[tuple[bool, types.ModuleType]]:
    return [
        (options.gemm, torch_gemm),
        (options.linear, torch_linear),
        (options.eager, torch_eager),
        (options.weight_only, torch_weight_only),
    ]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemm", action="store_true", help="GEMMs instead of casts")
    parser.add_argument("--linear", action="store_true", help="steps of a layer instead of casts")
    parser.add_argument(
        "--eager", action="store_true", help="those steps from PyTorch and from Ingot's package"
    )
    parser.add_argument(
        "--layer",
        action="append",
        metavar="NAME",
        choices=torch_eager.layer_names(),
        help="with --eager: only this layer; may be repeated. In a separate process a layer shares the GPU with no "
        f"other's streams. Names: {', '.join(torch_eager.layer_names())}",
    )
    parser.add_argument("--weight-only", action="store_true", help="GEMMs with weights in 8 and 4 bits")
    parser.add_argument("--deepgemm", metavar="PATH", help="with --gemm: a checkout of DeepGEMM that is built")
    parser.add_argument("--ingot", help="what bench_cast, bench_gemm or bench_linear --json wrote, to compare with")
    parser.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--filter", default="", help="only cases with this text in their name")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: does it run, not how fast")
    parser.add_argument("--list", action="store_true", help="print the cases; needs no GPU")
    parser.add_argument("--self-check", action="store_true", help="check this program; needs no GPU")
    options = parser.parse_args()
    if options.layer and not options.eager:
        parser.error("--layer belongs to --eager")
    if options.list and not listed(options):
        parser.error(f"--filter: no case has {options.filter!r} in its name: --list without it prints all")
    return options


def listed(options: argparse.Namespace) -> list[str]:
    chosen = [module for wanted, module in works_by_option(options) if wanted]
    works_of = chosen[0] if chosen else sys.modules[__name__]
    return [name for name in works_of.case_names() if options.filter in name]


def open_deep_gemm(path: str | None) -> Any:
    """DeepGEMM's package, or None, with a line on stderr where it cannot be imported."""
    if not path:
        return None
    try:
        return torch_gemm.open_deep_gemm(path)
    except ImportError as error:
        print(f"without DeepGEMM: {path} cannot be imported ({error})", file=sys.stderr)
        return None


def measured(
    torch: Any, options: argparse.Namespace, write: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], str]:
    """The figures that the options ask for, and their table. `write` saves the figures so far."""
    ingot = None
    if options.ingot:
        with open(options.ingot, encoding="utf-8") as file:
            ingot = json.load(file)
    if options.gemm:
        found = torch_gemm.measure(torch, options.filter, options.quick, open_deep_gemm(options.deepgemm), write)
        return found, torch_gemm.table(found, ingot)
    if options.linear:
        found = torch_linear.measure(torch, options.filter, options.quick, write)
        return found, torch_linear.table(found, ingot)
    if options.eager:
        found = torch_eager.measure(torch, options.filter, options.quick, write, options.commit, options.layer)
        return found, torch_eager.table(found, ingot)
    if options.weight_only:
        found = torch_weight_only.measure(torch, options.filter, options.quick, write)
        return found, torch_weight_only.table(found)
    found = measure(torch, options.filter, options.quick)
    return found, table(found, ingot)


def main() -> int:
    options = parse_options()
    if options.self_check:
        self_check()
        return 0
    if options.list:
        print("\n".join(listed(options)))
        return 0
    try:
        import torch
    except ImportError as error:
        print(f"skipped: PyTorch cannot be imported ({error}); pip install torch")
        return SKIPPED
    if not torch.cuda.is_available():
        print(f"skipped: no CUDA device for PyTorch {torch.__version__}")
        return SKIPPED

    head = torch_machine.machine(torch, "cuda", options.commit)

    def write(found: dict[str, Any]) -> None:
        if options.json:
            results_form.write(options.json, {"benchmark": found["benchmark"], **head, **found})

    found, text = measured(torch, options, write)
    print(text, end="")
    write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

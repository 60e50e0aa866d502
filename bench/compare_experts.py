#!/usr/bin/env python3
"""The gated MLP of a mixture of experts, forward and backward with gather and combination: in bf16 by torch._grouped_mm, with
torchao's FP8 training, and Ingot's, compiled and eager, in turns in one process on one GPU (Hopper).

    python3 bench/compare_experts.py --json experts.json
    python3 bench/compare_experts.py --case Mixtral --contender 'ingot*' --rounds 7
    python3 bench/compare_experts.py --profile 'ingot rowwise, eager' --case Mixtral    # times by kernel of one step
    python3 bench/compare_experts.py --list                                # no GPU
    python3 bench/compare_experts.py --device cpu --try                    # a tiny case, to try the program

Each contender's output and gradients are compared with bf16's in the same run (SQNR, in dB); ends with 1 if one is below 14 dB or
a contender failed. torchao takes experts' rows in multiples of 16 only: its routing is rounded to those, with as many rows.
"""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import statistics
import sys
from typing import Any, Callable, NamedTuple

import results_form
import torch_machine
import torch_timing

LEAST_DB = 14.0
INPUTS = 3  # steps take turns between them: more than the L2 holds
STEPS = 4  # of a turn


class Case(NamedTuple):
    name: str
    hidden: int
    intermediate: int
    experts: int
    chosen: int
    tokens: int


CASES = [
    Case("Mixtral", 4096, 14336, 8, 2, 8192),
    Case("DeepSeek-V3, 64 experts", 7168, 2048, 64, 8, 8192),
    Case("Qwen3-30B-A3B", 2048, 768, 128, 8, 8192),
    Case("unlisted", 5120, 1792, 24, 3, 6000),
]
TINY = Case("tiny", 64, 48, 4, 2, 40)


def expert_index(torch: Any, case: Case, device: str, seed: int) -> Any:
    """A router's choice: experts that are not equally likely."""
    generator = torch.Generator().manual_seed(seed)
    likely = torch.randn(case.experts, generator=generator) * 0.5
    scores = torch.rand(case.tokens, case.experts, generator=generator).log().neg().log().neg() + likely
    return scores.topk(case.chosen).indices.to(device)


class Inputs(NamedTuple):
    hidden: Any
    index: Any
    weights: Any
    grad: Any


def make_inputs(torch: Any, case: Case, device: str) -> list[Inputs]:
    torch.manual_seed(1)
    values = lambda *sizes: torch.randn(*sizes, device=device, dtype=torch.bfloat16)
    made = []
    for seed in range(INPUTS):
        weights = torch.rand(case.tokens, case.chosen, device=device, dtype=torch.bfloat16)
        grad = values(case.tokens, case.hidden)
        hidden = values(case.tokens, case.hidden).requires_grad_()
        made.append(Inputs(hidden, expert_index(torch, case, device, seed), weights.requires_grad_(), grad))
    return made


def make_weights(torch: Any, case: Case, device: str) -> tuple[Any, Any]:
    """Of gate and up, and of the second product."""
    scaled = lambda *sizes: (torch.randn(*sizes, device=device, dtype=torch.bfloat16) / sizes[-1] ** 0.5).requires_grad_()
    both = scaled(case.experts, 2 * case.intermediate, case.hidden)
    return both, scaled(case.experts, case.hidden, case.intermediate)


def bf16_experts(torch: Any, multiply: Callable) -> Callable:
    """What users write: `multiply` is a grouped product of (rows, weights (experts, K, N), ends)."""

    def call(x: Inputs, gate_up: Any, down: Any) -> Any:
        tokens, chosen = x.index.shape
        of_rows, order = x.index.reshape(-1).sort(stable=True)
        counts = torch.bincount(of_rows, minlength=gate_up.shape[0])
        ends = counts.cumsum(0).to(torch.int32)
        rows = x.hidden[order // chosen]
        gate, up = multiply(rows, gate_up.transpose(-2, -1), ends).chunk(2, -1)
        out = multiply(torch.nn.functional.silu(gate) * up, down.transpose(-2, -1), ends)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        return (out[inverse].view(tokens, chosen, out.shape[1]) * x.weights[..., None]).sum(1)

    return call


def grouped_mm_of_loops(torch: Any) -> Callable:
    def multiply(rows: Any, weights: Any, ends: Any) -> Any:
        begins = [0, *ends.tolist()]
        return torch.cat([rows[begins[e] : begins[e + 1]] @ weights[e] for e in range(weights.shape[0])])

    return multiply


def contenders(torch: Any, device: str) -> dict[str, Callable]:
    """Functions of (inputs, gate_up, down)."""
    from ingot.torch import LinearOptions, experts_mlp

    def ingot(recipe: str, keep: bool = False, fast: bool = False) -> Callable:
        options = LinearOptions(recipe, name="experts", keep_weight_codes=keep, fast_gradients=fast and recipe != "blockwise")
        return lambda x, gate_up, down: experts_mlp(x.hidden, x.index, x.weights, gate_up, down, options, fast_math=fast)

    plain = torch._grouped_mm if device == "cuda" else grouped_mm_of_loops(torch)
    multiply = (lambda rows, weights, ends: plain(rows, weights, offs=ends)) if device == "cuda" else plain
    found = {"bf16": bf16_experts(torch, multiply), "ingot rowwise": ingot("rowwise"), "ingot tensorwise": ingot("tensorwise")}
    found["ingot rowwise, fast"] = ingot("rowwise", fast=True)
    found["ingot tensorwise, fast"] = ingot("tensorwise", fast=True)
    found["ingot blockwise"] = ingot("blockwise")
    found["ingot blockwise, fast"] = ingot("blockwise", fast=True)  # its activation: its sums of 128 are not
    found["ingot rowwise with codes kept"] = ingot("rowwise", keep=True)
    if device != "cuda":
        return {f"{name}, eager": call for name, call in found.items()}
    made = {}
    for name, call in found.items():
        made[f"{name}, eager"] = call
        made[f"{name}, compiled"] = torch.compile(call, dynamic=False)
    try:
        from torchao.prototype.moe_training.fp8_grouped_mm import _to_fp8_rowwise_then_scaled_grouped_mm as of_torchao
    except ImportError as error:
        print(f"no torchao: {error}", file=sys.stderr)
    else:
        made["torchao rowwise, compiled"] = torch.compile(bf16_experts(torch, lambda a, b, ends: of_torchao(a, b, ends, pad_token_groups_for_grouped_mm=False)), dynamic=False)
    return made


def rounded_to_16(torch: Any, index: Any, experts: int) -> Any:
    """The choice with experts' counts in multiples of 16 and as many rows; which token has which expert is of no matter."""
    counts = torch.bincount(index.reshape(-1), minlength=experts)
    rounded = counts // 16 * 16
    rounded[0] += index.numel() - rounded.sum()
    ids = torch.repeat_interleave(torch.arange(experts, device=index.device), rounded)
    shuffled = ids[torch.randperm(ids.numel(), device=index.device, generator=torch.Generator(index.device).manual_seed(0))]
    return shuffled.view(index.shape)


def step(torch: Any, call: Callable, x: Inputs, weights: tuple[Any, Any]) -> list[Any]:
    out = call(x, *weights)
    return [out, *torch.autograd.grad(out, (x.hidden, x.weights, *weights), x.grad)]


def sqnr(exact: Any, found: Any) -> float:
    exact, found = exact.float(), found.float()
    return float((20 * (exact.norm() / (exact - found).norm()).log10()).detach())


def timed(torch: Any, call: Callable, inputs: list[Inputs], weights: tuple[Any, Any]) -> float:
    """Milliseconds of a step."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    step(torch, call, inputs[0], weights)
    begin.record()
    for at in range(STEPS):
        step(torch, call, inputs[at % len(inputs)], weights)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / STEPS


def measure(torch: Any, case: Case, device: str, chosen: list[str], rounds: int) -> list[dict[str, Any]]:
    inputs = make_inputs(torch, case, device)
    aligned = [x._replace(index=rounded_to_16(torch, x.index, case.experts)) for x in inputs]
    weights = make_weights(torch, case, device)
    wanted = lambda name: name == "bf16, eager" or any(fnmatch.fnmatch(name, pattern) for pattern in chosen)
    calls = {name: call for name, call in contenders(torch, device).items() if wanted(name)}
    found: dict[str, dict[str, Any]] = {}
    exact = {}
    for name, call in calls.items():
        of = aligned if name.startswith("torchao") else inputs
        print(f"{case.name}: {name}", file=sys.stderr, flush=True)
        try:
            if id(of) not in exact:
                exact[id(of)] = step(torch, calls["bf16, eager"], of[0], weights)
            results = step(torch, call, of[0], weights)
            found[name] = {"sqnr_db": [round(sqnr(*each), 1) for each in zip(exact[id(of)], results)] if not name.startswith("bf16") else []}
            del results
            if device == "cuda":
                step(torch, call, of[1], weights)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                step(torch, call, of[2], weights)
                found[name]["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        except Exception as error:  # a contender that this version of PyTorch cannot run
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    exact.clear()
    names = [name for name in calls if "error" not in found[name]]
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds if device == "cuda" else 0):
        for name in torch_timing.rotated(names, turn):
            times[name].append(timed(torch, calls[name], aligned if name.startswith("torchao") else inputs, weights))
    products = 3 * 3 * 2 * case.tokens * case.chosen * case.hidden * case.intermediate
    base = statistics.median(times["bf16, compiled"]) if times.get("bf16, compiled") else None
    for name, ms in times.items():
        if ms:
            median = statistics.median(ms)
            found[name].update(ms=round(median, 4), ms_min=round(min(ms), 4), ms_max=round(max(ms), 4), tflops=round(products / median * 1e-9, 1))
            if base is not None:
                found[name]["over_bf16_compiled"] = round(base / median, 4)
    sizes = {key: value for key, value in case._asdict().items() if key != "name"}
    return [{"case": case.name, **sizes, "contender": name, **values} for name, values in found.items()]


def profile(torch: Any, case: Case, name: str) -> None:
    inputs = make_inputs(torch, case, "cuda")
    weights = make_weights(torch, case, "cuda")
    call = contenders(torch, "cuda")[name]
    for x in inputs:
        step(torch, call, x, weights)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        step(torch, call, inputs[0], weights)
        torch.cuda.synchronize()
    print(f"{case.name}: {name}\n" + trace.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=420))


def table(cases: list[dict[str, Any]]) -> str:
    lines = []
    for each in cases:
        result = each.get("error") or f"{each.get('ms', 0):9.3f} ms  {each.get('over_bf16_compiled', 0):6.3f}  {each.get('tflops', 0):7.1f} TFLOPS"
        lines.append(f"{each['case']:24} {each['contender']:28} {result}  {each.get('peak_bytes', 0) / 1e9:6.2f} GB  {each.get('sqnr_db', '')}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="a pattern of cases' names")
    parser.add_argument("--contender", action="append", help="a pattern, or one of several; bf16, eager always runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--try", dest="tries", action="store_true", help="a tiny case")
    parser.add_argument("--profile", default="", help="a contender: times of its kernels, and nothing else")
    parser.add_argument("--commit", default="", help="of the code that is timed, where there is no git")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.name for case in CASES))
        return 0
    import torch

    cases = [TINY] if options.tries else [case for case in CASES if fnmatch.fnmatch(case.name, options.case)]
    if options.profile:
        for case in cases:
            profile(torch, case, options.profile)
        return 0
    machine = torch_machine.machine(torch, options.device, options.commit)
    found = []
    for case in cases:
        of_case = measure(torch, case, options.device, options.contender or ["*"], options.rounds)
        print(table(of_case), flush=True)
        found += of_case
        if options.json:  # after each case: a run that is ended keeps those that it had
            results_form.write(options.json, {"benchmark": "compare_experts", **machine, "cases": found})
    bad = [each for each in found if "error" in each or any(not db >= LEAST_DB for db in each.get("sqnr_db", []))]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

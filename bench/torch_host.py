#!/usr/bin/env python3
"""What a small layer costs from Python: a forward and a backward of 256 x 256 in eager mode, of torch.nn.Linear in bf16
and of ingot.nn.Float8Linear, in 2-D and 3-D, with and without bias; and what each part of the latter adds.

    python3 bench/torch_host.py --json host.json             # needs the Python package and a GPU
    python3 bench/torch_host.py --device cpu --rounds 2      # the calls work; the CPU's times say nothing of the host's

At this size a GPU waits for the host, so wall clock time is the host's. Every contender's output and gradients are
compared with float64's before any is timed. Contenders take turns in an order that each round draws anew, and the
smallest time of all rounds is shown. The parts:

    core       within the two operators, by PyTorch's profiler, whose own work makes it a little too large
    operator   what PyTorch's dispatcher and the arguments add
    autograd   what torch.autograd.Function and ingot.torch.linear()'s checks add
    module     what ingot.nn.Float8Linear adds
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any, Callable, NamedTuple

import results_form
import torch_machine

SIZE = 256
PARTS = ("core", "operator", "autograd", "module")
INGOT, BASELINE = "ingot module", "nn.Linear bf16"
ERRORS = {"output": 0.06, "grad_input": 0.1, "grad_weight": 0.1, "grad_bias": 0.01}  # of FP8, relative
BF16_ERROR = 0.01


class Case(NamedTuple):
    """One forward and one backward of each contender; results() of those that have any: output and gradients."""

    steps: dict[str, Callable[[], Any]]
    results: dict[str, Callable[[], list[Any]]]
    exact: list[Any]


def make_case(torch: Any, device: str, recipe: str, rank: int, bias: bool) -> Case:
    import ingot.torch
    from ingot.nn import Float8Linear
    from ingot.torch import _operators as operators

    torch.manual_seed(0)
    shape = (SIZE, SIZE) if rank == 2 else (2, SIZE // 2, SIZE)
    kind = {"dtype": torch.bfloat16, "device": device}
    x = torch.randn(shape, requires_grad=True, **kind)
    grad_output = torch.randn(shape, **kind)
    plain = torch.nn.Linear(SIZE, SIZE, bias=bias, **kind)
    layer = Float8Linear.from_float(plain, recipe)
    options = layer.options
    dtype = torch.bfloat16
    facts = operators.add_plan(recipe, "operator", SIZE, SIZE, dtype, dtype, dtype if bias else None, True)
    leaves = [x, *plain.parameters()]

    def forget() -> None:
        for leaf in leaves:
            leaf.grad = None

    def operators_alone() -> list[Any]:
        with torch.no_grad():
            y, saved, codes, _ = operators.linear_forward(x, plain.weight, plain.bias, facts.number, 3)
            grads = operators.linear_backward(
                grad_output, x, plain.weight, saved, codes, facts.number, 7 if bias else 3
            )
        return [y, *grads[: len(leaves)]]

    def function(input: Any) -> Any:
        return ingot.torch.linear(input, plain.weight, plain.bias, options)

    def step(forward: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            forget()
            forward(x).backward(grad_output)

        return run

    def step_of_sum(forward: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            forget()
            forward(x).sum().backward()

        return run

    def results(forward: Callable[[Any], Any]) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            y = forward(x)
            return [y.detach(), *torch.autograd.grad(y, leaves, grad_output)]

        return run

    in_f64 = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = torch.nn.functional.linear(*in_f64)
    return Case(
        {
            "ingot operators": operators_alone,
            "ingot function": step(function),
            INGOT: step(layer),
            BASELINE: step(plain),
            f"{INGOT}, sum": step_of_sum(layer),
            f"{BASELINE}, sum": step_of_sum(plain),
        },
        {
            "ingot operators": operators_alone,
            "ingot function": results(function),
            INGOT: results(layer),
            BASELINE: results(plain),
        },
        [y.detach(), *torch.autograd.grad(y, in_f64, grad_output.double())],
    )


def faults(torch: Any, case: Case) -> list[str]:
    """Names each output and gradient that is far from float64's, or not what the module has, to the bit."""
    found = []
    of_module = case.results[INGOT]()
    for name, compute in case.results.items():
        for what, value, exact, ours in zip(ERRORS, compute(), case.exact, of_module):
            error = float((value.double() - exact).norm() / exact.norm())
            bound = BF16_ERROR if name == BASELINE else ERRORS[what]
            if not error < bound:  # a NaN is far
                found.append(f"{name}: {what} is {error:.4f} from float64's, at most {bound}")
            if name != BASELINE and not torch.equal(value, ours):
                found.append(f"{name}: {what} differs from the module's")
    return found


def warm_up(steps: dict[str, Callable[[], Any]]) -> None:
    """Every contender runs, before any is timed."""
    for step in steps.values():
        for _ in range(3):
            step()


def measure(
    torch: Any, device: str, steps: dict[str, Callable[[], Any]], rounds: int, repeats: int
) -> dict[str, float]:
    """Microseconds of a step: the smallest of all rounds."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    order = list(steps)
    shuffle = random.Random(0).shuffle
    best = dict.fromkeys(order, float("inf"))
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                steps[name]()
            wait()
            best[name] = min(best[name], (time.perf_counter() - begin) / repeats * 1e6)
    return best


def core_us(torch: Any, step: Callable[[], Any], repeats: int) -> float:
    """Microseconds of a step within Ingot's operators. The smallest of three runs."""
    best = float("inf")
    for _ in range(3):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(repeats):
                step()
        spent = sum(event.cpu_time_total for event in profiler.key_averages() if event.key.startswith("ingot::"))
        best = min(best, spent / repeats)
    return best


def split(us: dict[str, float], core: float) -> dict[str, float]:
    """What each part adds to a step. Differences of times, so one near nothing may come out below it."""
    operators, function = us["ingot operators"], us["ingot function"]
    core = min(core, operators)
    return dict(zip(PARTS, (core, operators - core, function - operators, us[INGOT] - function)))


def table(results: list[dict[str, Any]]) -> str:
    head = f"{'recipe':<20}{'rank':>5}{'bias':>6}" + "".join(f"{part:>10}" for part in PARTS)
    lines = [
        f"us of a step, the smallest of all rounds\n{head}{'module':>10}{'bf16':>8}{'x bf16':>8}{'sum x bf16':>12}"
    ]
    lines[0] = lines[0].replace(f"{'module':>10}{'module':>10}", f"{'module':>10}{'total':>10}")
    for one in results:
        row = f"{one['recipe']:<20}{one['rank']:>4}D{'yes' if one['bias'] else 'no':>6}"
        if "wrong" in one:
            lines.append(f"{row}  WRONG: {one['wrong'][0]}")
            continue
        us = one["us"]
        row += "".join(f"{one['parts'][part]:>10.1f}" for part in PARTS)
        of_sum = us[f"{INGOT}, sum"] / us[f"{BASELINE}, sum"]
        lines.append(row + f"{us[INGOT]:>10.1f}{us[BASELINE]:>8.1f}{us[INGOT] / us[BASELINE]:>8.2f}{of_sum:>12.2f}")
    timed = [one for one in results if "us" in one]
    held = sum(one["us"][INGOT] <= one["us"][BASELINE] for one in timed)
    lines.append(f"at most nn.Linear's in {held} of {len(results)}")
    return "\n".join(lines)


def self_check() -> None:
    us = {"ingot operators": 40.0, "ingot function": 50.0, INGOT: 52.0, BASELINE: 60.0}
    us |= {f"{INGOT}, sum": 66.0, f"{BASELINE}, sum": 60.0}
    assert split(us, 30.0) == {"core": 30.0, "operator": 10.0, "autograd": 10.0, "module": 2.0}
    assert split(us, 45.0)["operator"] == 0.0
    right = {"recipe": "rowwise", "rank": 3, "bias": True, "us": us, "parts": split(us, 30.0)}
    wrong = {"recipe": "rowwise", "rank": 2, "bias": False, "wrong": ["output is far"]}
    lines = table([right, wrong]).splitlines()
    assert lines[1].split() == ["recipe", "rank", "bias", *PARTS, "total", "bf16", "x", "bf16", "sum", "x", "bf16"]
    assert lines[2].split() == ["rowwise", "3D", "yes", "30.0", "10.0", "10.0", "2.0", "52.0", "60.0", "0.87", "1.10"]
    assert len(lines[1]) == len(lines[2]) and lines[3].endswith("WRONG: output is far")
    assert lines[4] == "at most nn.Linear's in 1 of 2"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=50, help="steps in a round")
    parser.add_argument("--recipes", nargs="+", default=["tensorwise", "rowwise", "blockwise"])
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    options = parser.parse_args()
    try:
        import torch

        import ingot  # noqa: F401: is it there
    except ImportError as error:
        print(f"torch_host: {error}: it needs PyTorch and the package ingot", file=sys.stderr)
        return 1
    if options.device != "cpu" and not torch.cuda.is_available():
        print("torch_host: no GPU; --device cpu tries the calls", file=sys.stderr)
        return 77
    results: list[dict[str, Any]] = []
    for recipe in options.recipes:
        for rank in (2, 3):
            for bias in (False, True):
                case = make_case(torch, options.device, recipe, rank, bias)
                one: dict[str, Any] = {"recipe": recipe, "rank": rank, "bias": bias}
                results.append(one)
                wrong = faults(torch, case)
                if wrong:
                    one["wrong"] = wrong
                    continue
                warm_up(case.steps)
                one["us"] = measure(torch, options.device, case.steps, options.rounds, options.repeats)
                one["parts"] = split(one["us"], core_us(torch, case.steps["ingot operators"], options.repeats))
    print(table(results))
    if options.json:
        facts = torch_machine.machine(torch, options.device, options.commit)
        found = {"benchmark": "torch_host", **facts, "size": SIZE, "results": results}
        results_form.write(options.json, found)
    return 1 if any("wrong" in one for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What a small layer costs from Python: a forward and a backward of 256 x 256 in eager mode, of torch.nn.Linear in bf16
and of ingot.nn.Float8Linear, which is split into what each part adds: the operators, autograd, the module.

    python3 bench/torch_host.py --json host.json             # needs the Python package and a GPU
    python3 bench/torch_host.py --device cpu --rounds 2      # the calls work; the CPU's times say nothing of the host's

At this size a GPU waits for the host, so wall clock time is the host's. Contenders take turns in an order that each
round draws anew, and the smallest time of all rounds is shown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import time
from typing import Any, Callable

SIZE = 256


def steps(torch: Any, device: str, recipe: str, rank: int, bias: bool) -> dict[str, Callable[[], Any]]:
    """Returns contender -> one forward and one backward."""
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
    expected, actual = plain(x).double(), layer(x).double()
    if not (expected - actual).norm() < 0.06 * expected.norm():
        raise SystemExit(f"torch_host: wrong: {recipe}'s output differs by {(expected - actual).norm():.3g}")

    def forget() -> None:
        for leaf in leaves:
            leaf.grad = None

    def operators_alone() -> None:
        with torch.no_grad():
            if bias:
                _, saved, codes = operators.linear_forward_bias(x, plain.weight, plain.bias, facts.number, 3)
            else:
                _, saved, codes = operators.linear_forward(x, plain.weight, facts.number, 3)
            operators.linear_backward(grad_output, x, plain.weight, saved, codes, facts.number, 7 if bias else 3)

    def function() -> None:
        forget()
        ingot.torch.linear(x, plain.weight, plain.bias, options).backward(grad_output)

    def module(which: Any, backward: Callable[[Any], None] = lambda y: y.backward(grad_output)) -> Callable[[], None]:
        def step() -> None:
            forget()
            backward(which(x))

        return step

    def of_sum(which: Any) -> Callable[[], None]:
        return module(which, lambda y: y.sum().backward())

    return {
        "ingot operators": operators_alone,
        "ingot function": function,
        "ingot module": module(layer),
        "nn.Linear bf16": module(plain),
        "ingot module, sum": of_sum(layer),
        "nn.Linear bf16, sum": of_sum(plain),
    }


def warm_up(contenders: dict[str, Callable[[], Any]]) -> None:
    """Every contender runs, before any is timed."""
    for step in contenders.values():
        for _ in range(3):
            step()


def measure(torch: Any, device: str, contenders: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict:
    """Microseconds of a step: the smallest of all rounds."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    best = dict.fromkeys(order, float("inf"))
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                contenders[name]()
            wait()
            best[name] = min(best[name], (time.perf_counter() - begin) / repeats * 1e6)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=50, help="steps in a round")
    parser.add_argument("--recipes", nargs="+", default=["tensorwise", "rowwise", "blockwise"])
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    try:
        import torch

        import ingot
    except ImportError as error:
        print(f"torch_host: {error}: it needs PyTorch and the package ingot", file=sys.stderr)
        return 1
    if options.device != "cpu" and not torch.cuda.is_available():
        print("torch_host: no GPU; --device cpu tries the calls", file=sys.stderr)
        return 77
    results = []
    print(f"{'recipe':12} {'rank':4} {'bias':5} " + "us of a step: smallest of all rounds")
    for recipe in options.recipes:
        for rank in (2, 3):
            for bias in (False, True):
                contenders = steps(torch, options.device, recipe, rank, bias)
                warm_up(contenders)
                times = measure(torch, options.device, contenders, options.rounds, options.repeats)
                results.append({"recipe": recipe, "rank": rank, "bias": bias, "us": times})
                shown = "  ".join(f"{name} {value:.1f}" for name, value in times.items())
                print(f"{recipe:12} {rank}-D  {'bias' if bias else '-':5} {shown}", flush=True)
    if options.json:
        device = torch.cuda.get_device_name() if options.device != "cpu" else "cpu"
        found = {
            "benchmark": "torch_host",
            "device": device,
            "torch": torch.__version__,
            "ingot": ingot.__version__,
            "date": datetime.date.today().isoformat(),
            "size": SIZE,
            "results": results,
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

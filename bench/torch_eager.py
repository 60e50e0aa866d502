"""compare_torch.py --eager: the steps of bench_linear from PyTorch in one run: LayerNorm + Linear + sigmoid, or a plain
Linear, forward and backward, in bf16 from eager and with torch.compile, by torchao with torch.compile where it is
installed, and by Ingot from eager. Each is checked first; then all take turns, in an order that moves on by one each
round, at two figures: the GPU's time, of calls in a CUDA graph, and wall clock, of the calls themselves."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Callable, Optional

import torch_linear
import torch_machine
from torch_timing import Replay, copies_for, rotated, summary

SIZES = (1024, 2048, 4096, 8192, 16384)
MLP_UP = (65536, 1664, 6656)  # tokens, in and out features of a public small-GPT trainer
WORKS = torch_linear.WORKS
RECIPES = ("high_precision", "tensorwise", "delayed", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise")
EAGER, COMPILED = "torch bf16, eager", "torch bf16, compiled"
NEAR_BENCH = 1.03  # of bench_linear's time, in the same run
WALL_FROM = 4096  # the size from which wall clock has to be near it too

Layer = Callable[[Any, Any], Any]


def cases() -> list[tuple[str, str, tuple[int, int, int]]]:
    """(name, work, (tokens, in features, out features))"""
    squares = [(torch_linear.case_name(size, work), work, (size, size, size)) for work in WORKS for size in SIZES]
    return [*squares, ("x".join(map(str, MLP_UP)) + " linear", "linear", MLP_UP)]


def case_names() -> list[str]:
    return [name for name, _, _ in cases()]


def layer_names() -> list[str]:
    return [contender.name for contender in contenders(None, WORKS[0])]


# ---- the contenders --------------------------------------------------------------------------------------------------


def ingot_layer(torch: Any, work: str, recipe: str) -> tuple[Layer, str]:
    """From eager PyTorch; the note says whether the norm and the sigmoid are in Ingot's operators. The weight's codes are
    kept for backward, and the sigmoid is the GPU's own, as in bench_linear's layer and torch.compile's."""
    import ingot.nn
    import ingot.torch

    if work == "linear" and recipe != "delayed":
        options = ingot.torch.LinearOptions(recipe, keep_weight_codes=True)
        return lambda x, w: ingot.torch.linear(x, w, None, options), ""
    modules: dict[int, Any] = {}

    def run(x: Any, w: Any) -> Any:
        module = modules.get(id(w))
        if module is None:
            linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta")
            linear.weight = w
            if work == "linear":
                module = ingot.nn.Float8Linear.from_float(linear, recipe)
            else:
                norm = torch.nn.LayerNorm(x.shape[1], elementwise_affine=False)
                make = ingot.nn.LayerNormLinear.from_parts
                module = make(norm, linear, recipe=recipe, activation="sigmoid", fast_math=True)
            module.keep_weight_codes(True)
            modules[id(w)] = module
        elif recipe == "delayed":  # each forward renews the scales first
            ingot.nn.sync_amax_history(module)
        return module(x)

    return run, "" if work == "linear" else "fused"


class Contender:
    """What is timed; `reason` says why it is not there."""

    def __init__(self, name: str, make: Callable[[], tuple[Layer, str]], compiled: bool = False) -> None:
        self.name, self.make, self.compiled = name, make, compiled


def contenders(torch: Any, work: str) -> list[Contender]:
    def torchao(recipe: str) -> tuple[Layer, str]:
        layer = torch_linear.torchao_layer(torch, work, recipe)
        if layer is None:
            raise ImportError("torchao is not installed")
        return layer, ""

    def bf16() -> tuple[Layer, str]:
        return torch_linear.forward(torch, work), ""

    made = [Contender(EAGER, bf16), Contender(COMPILED, bf16, compiled=True)]
    for recipe in torch_linear.TORCHAO_RECIPES:
        made.append(Contender(f"torchao {recipe}, compiled", lambda recipe=recipe: torchao(recipe), compiled=True))
    for recipe in RECIPES:
        made.append(Contender(f"ingot {recipe}", lambda recipe=recipe: ingot_layer(torch, work, recipe)))
    return made


def random_steps(torch: Any, tokens: int, columns: int, rows: int, device: str) -> list[Any]:
    """(input, weight, grad_output); the weight is a parameter, as modules want."""

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    copies = copies_for(4 * (tokens * columns + rows * columns + tokens * rows)) if device != "cpu" else 2
    weight = lambda: torch.nn.Parameter(tensor(rows, columns) * columns**-0.5)
    return [(tensor(tokens, columns).requires_grad_(), weight(), tensor(tokens, rows)) for _ in range(copies)]


# ---- timing ----------------------------------------------------------------------------------------------------------


class WallClock:
    """Microseconds of a call by the host's clock, over inputs that rotate, until the device is done. The calls last ten
    times as long as a graph's: the device waits for the first one's launches, some 300 us that a training does not
    have."""

    def __init__(self, torch: Any, call: Callable[[Any], Any], inputs: list[Any], enough_us: float) -> None:
        self.torch, self.call, self.inputs, self.calls = torch, call, inputs, len(inputs)
        once = self.measure()
        self.calls = max(len(inputs), min(2000, round(10 * enough_us / max(once, 1.0))))

    def measure(self) -> float:
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(self.calls):
            self.call(self.inputs[i % len(self.inputs)])
        self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) / self.calls * 1e6


def take_turns(clocks: dict[str, tuple[Any, Any]], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """`clocks`: name -> (of the GPU, of the wall); each has measure()."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in clocks}
    for turn in range(rounds):
        for name in rotated(list(clocks), turn):
            for clock, values in zip(clocks[name], found[name]):
                values.append(clock.measure())
    return {name: {"gpu_us": summary(gpu), "wall_us": summary(wall)} for name, (gpu, wall) in found.items()}


def prepare(
    torch: Any, work: str, contender: Contender, tensors: Any, check: bool
) -> tuple[Optional[Callable[[Any], Any]], dict[str, str]]:
    """Returns the step and what to note of it, or None and why there is none."""
    try:
        layer, note = contender.make()
        call = torch_linear.step(torch, torch.compile(layer, dynamic=False) if contender.compiled else layer)
        wrong = torch_linear.fault(torch, work, call, tensors) if check else ""
        if not check:
            call(tensors)
    except Exception as error:  # a package that fails does not stop the others
        return None, {"left_out": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    if wrong:
        return None, {"wrong": wrong}
    return call, {"note": note} if note else {}


def measure(
    torch: Any,
    chosen: str,
    quick: bool,
    write: Callable[[dict[str, Any]], None],
    commit: str = "",
    layers: Optional[list[str]] = None,
) -> dict[str, Any]:
    """`layers`: names of the contenders, by default all."""
    rounds, enough_us = (3, 1000.0) if quick else (9, 4000.0)
    torch._dynamo.config.recompile_limit = 64  # the contenders are compilations of the same code
    found: dict[str, Any] = {
        "benchmark": "linear from PyTorch",
        **torch_machine.machine(torch, "cuda", commit),
        "cases": [],
    }
    stream = torch.cuda.Stream()
    for name, work, shape in cases():
        if chosen not in name:
            continue
        torch.compiler.reset()
        tensors = random_steps(torch, *shape, "cuda")
        clocks: dict[str, tuple[Any, Any]] = {}
        notes: dict[str, dict[str, str]] = {}
        for contender in contenders(torch, work):
            if layers and contender.name not in layers:
                continue
            print(f"preparing {name}: {contender.name}", file=sys.stderr, flush=True)
            # In f32 the largest size takes long, and is made of the same kernels.
            call, notes[contender.name] = prepare(torch, work, contender, tensors[0], check=math.prod(shape) <= 2**40)
            if call is not None:
                try:
                    gpu = Replay(torch, call, tensors, enough_us, stream)
                    clocks[contender.name] = (gpu, WallClock(torch, call, tensors, enough_us))
                except Exception as error:
                    notes[contender.name] = {
                        "left_out": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                    }
        times = take_turns(clocks, rounds) if clocks else {}
        for label, noted in notes.items():
            found["cases"].append(
                {"case": name, "size": shape[0], "work": work, "layer": label, **noted, **times.get(label, {})}
            )
        write(found)
        del clocks, tensors
        torch.cuda.empty_cache()
    return found


# ---- the table -------------------------------------------------------------------------------------------------------


def bench_times(ingot: dict[str, Any] | None) -> dict[tuple[str, str], float]:
    """(case, recipe) -> microseconds of what bench_linear --json wrote. Its recipes with a side stream have other names
    ("rowwise +side") and are compared with no layer of PyTorch's, whose operators use one stream."""
    found: dict[tuple[str, str], float] = {}
    for case in ingot["cases"] if ingot else []:
        for recipe in case["recipes"]:
            if "us" in recipe:
                key = (case["case"], recipe["recipe"])
                found[key] = min(found.get(key, float("inf")), recipe["us"]["median"])
    return found


def table(found: dict[str, Any], ingot: dict[str, Any] | None) -> str:
    lines = [
        f"PyTorch {found['torch']}, Ingot {found['ingot']} ({found['commit']}), {found['device']}, {found['date']}"
    ]
    if ingot:
        lines.append(f"bench_linear: Ingot {ingot['ingot']} ({ingot['commit']}), {ingot['device']}, {ingot['date']}")
        if ingot["device"] != found["device"]:
            lines.append("the devices differ: the ratios below mean nothing")
    lines.append(
        "x compiled: how many times as fast as bf16 with torch.compile; over bench: GPU time over bench_linear's"
    )
    lines.append(f"{'case':<46}{'layer':<32}{'GPU us':>10}{'wall us':>10}{'x compiled':>12}{'over bench':>12}")
    bench = bench_times(ingot)
    baseline = {
        case["case"]: case["gpu_us"]["median"]
        for case in found["cases"]
        if case["layer"] == COMPILED and "gpu_us" in case
    }
    for case in found["cases"]:
        row = f"{case['case']:<46}{case['layer']:<32}"
        if "gpu_us" not in case:
            lines.append(f"{row}  {'WRONG: ' + case['wrong'] if 'wrong' in case else 'left out: ' + case['left_out']}")
            continue
        gpu = case["gpu_us"]["median"]
        compiled = f"{baseline[case['case']] / gpu:.3f}" if case["case"] in baseline else "-"
        of_bench = bench.get((case["case"], case["layer"].removeprefix("ingot ")))
        over = f"{gpu / of_bench:.3f}" if of_bench else "-"
        lines.append(f"{row}{gpu:>10.1f}{case['wall_us']['median']:>10.1f}{compiled:>12}{over:>12}")
    for note in dict.fromkeys(f"{case['layer']}: {case['note']}" for case in found["cases"] if "note" in case):
        lines.append(note)
    return "\n".join([*lines, *verdicts(found, bench)]) + "\n"


def verdicts(found: dict[str, Any], bench: dict[tuple[str, str], float]) -> list[str]:
    """A line for each of Ingot's: near bench_linear's time, and faster than compiled torchao where bench_linear is."""
    times = {(case["case"], case["layer"]): case for case in found["cases"] if "gpu_us" in case}
    lines = []
    for (name, layer), case in times.items():
        of_bench = bench.get((name, layer.removeprefix("ingot ")))
        if not layer.startswith("ingot ") or of_bench is None:
            continue
        gpu, wall = case["gpu_us"]["median"], case["wall_us"]["median"]
        holds = gpu <= NEAR_BENCH * of_bench and (case["size"] < WALL_FROM or wall <= NEAR_BENCH * of_bench)
        limit = f"at most {NEAR_BENCH}"
        line = f"{name}, {layer}: GPU x {gpu / of_bench:.3f}, wall x {wall / of_bench:.3f} of bench_linear's, {limit}"
        lines.append(f"{'holds' if holds else 'FAILS'}  {line}")
        other = times.get((name, f"torchao {layer.removeprefix('ingot ')}, compiled"))
        if other is not None and other["gpu_us"]["median"] > of_bench:
            faster = other["gpu_us"]["median"] / gpu
            lines.append(
                f"{'holds' if faster > 1 else 'FAILS'}  {name}, {layer}: x {faster:.3f} of compiled torchao's speed"
            )
    return lines


def self_check(torch: Any) -> None:
    assert rotated(["a", "b", "c"], 4) == ["b", "c", "a"]

    class Clock:
        def __init__(self, values: list[float]) -> None:
            self.values = values

        def measure(self) -> float:
            return self.values.pop()

    times = take_turns({"a": (Clock([1.0, 2.0, 9.0]), Clock([4.0] * 3)), "b": (Clock([5.0] * 3), Clock([6.0] * 3))}, 3)
    assert times["a"]["gpu_us"] == {"median": 2.0, "min": 1.0, "max": 9.0} and times["b"]["wall_us"]["max"] == 6.0

    def timed(layer: str, gpu: float, wall: float) -> dict[str, Any]:
        return {"case": "c", "size": 4096, "layer": layer, "gpu_us": {"median": gpu}, "wall_us": {"median": wall}}

    found = {"torch": "2", "ingot": "0", "commit": "abc", "device": "GPU", "date": "2026-11-25"}
    found["cases"] = [
        timed(COMPILED, 30.0, 40.0),
        timed("torchao rowwise, compiled", 25.0, 26.0),
        {**timed("ingot rowwise", 20.0, 21.0), "note": "fused"},
        {"case": "c", "size": 4096, "layer": "torchao tensorwise, compiled", "left_out": "ImportError: no torchao"},
        {"case": "c", "size": 4096, "layer": "ingot tensorwise", "wrong": "output is far"},
    ]
    us = {"median": 20.0}
    ingot = {"ingot": "0", "commit": "abc", "device": "GPU", "date": "2026-11-25"}
    ingot["cases"] = [
        {"case": "c", "recipes": [{"recipe": "rowwise", "us": us}, {"recipe": "rowwise", "us": {"median": 22.0}}]}
    ]
    lines = table(found, ingot).splitlines()
    assert [line.split()[-4:] for line in lines[4:7]] == [
        ["30.0", "40.0", "1.000", "-"],
        ["25.0", "26.0", "1.200", "-"],
        ["20.0", "21.0", "1.500", "1.000"],
    ], lines
    assert lines[7].endswith("left out: ImportError: no torchao") and lines[8].endswith("WRONG: output is far")
    assert lines[9] == "ingot rowwise: fused"
    assert lines[10].startswith("FAILS  c, ingot rowwise: GPU x 1.000, wall x 1.050")  # wall clock counts from 4096 on
    assert lines[11] == "holds  c, ingot rowwise: x 1.250 of compiled torchao's speed"
    assert "mean nothing" in table({**found, "device": "another"}, ingot)
    if torch is None:
        return
    for work in WORKS:
        tensors = random_steps(torch, 64, 64, 64, "cpu")[0]
        for contender in contenders(torch, work):
            if contender.compiled:  # their code is the same, and compilers may be missing
                continue
            call, noted = prepare(torch, work, contender, tensors, check=True)
            is_there = contender.name == EAGER or "ImportError" not in noted.get("left_out", "")
            assert call is not None or not is_there, (work, contender.name, noted)
        noisy = Contender("noisy", lambda: (lambda x, w: torch_linear.forward(torch, work)(x, w) * 1.2, ""))
        assert prepare(torch, work, noisy, tensors, check=True)[1]["wrong"].startswith("output is 0.2")

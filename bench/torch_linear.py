"""compare_torch.py --linear: times the steps of bench_linear in PyTorch, forward and backward: LayerNorm + Linear +
sigmoid, or a plain Linear, in bf16 with torch.compile, and with torchao's Float8Linear if torchao is installed."""

from __future__ import annotations

import datetime
import sys
from typing import Any, Callable

from torch_timing import Replay, copies_for, take_turns

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
WORKS = ("layernorm, linear, sigmoid", "linear")
TORCHAO_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


def case_name(size: int, work: str) -> str:
    return f"{size}x{size}x{size} {work}"


def case_names() -> list[str]:
    return [case_name(size, work) for work in WORKS for size in SIZES]


def forward(torch: Any, work: str) -> Callable[[Any, Any], Any]:
    functional = torch.nn.functional

    def linear(x: Any, w: Any) -> Any:
        return functional.linear(x, w)

    def norm_linear_sigmoid(x: Any, w: Any) -> Any:
        return torch.sigmoid(functional.linear(functional.layer_norm(x, (x.shape[1],)), w))

    return linear if work == "linear" else norm_linear_sigmoid


def step(torch: Any, layer: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Returns a function from (input, weight, grad_output) to the output and both gradients."""

    def call(tensors: Any) -> Any:
        x, w, grad = tensors
        y = layer(x, w)
        # Who keeps the results keeps no autograd graph: its nodes remember their stream, and the next contender's call
        # would wait for it.
        return (y.detach(), *torch.autograd.grad(y, (x, w), grad))

    return call


def torchao_layer(torch: Any, work: str, recipe: str) -> Callable[[Any, Any], Any] | None:
    try:
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
        from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig
    except ImportError:
        return None
    config = Float8LinearConfig.from_recipe_name(recipe)
    mm = LinearMMConfig(
        ScaledMMConfig(config.emulate, config.gemm_config_output.use_fast_accum, False, config.pad_inner_dim),
        ScaledMMConfig(config.emulate, config.gemm_config_grad_input.use_fast_accum, False, config.pad_inner_dim),
        ScaledMMConfig(config.emulate, config.gemm_config_grad_weight.use_fast_accum, False, config.pad_inner_dim),
    )

    def linear(x: Any, w: Any) -> Any:
        return matmul_with_hp_or_float8_args.apply(x, w.t(), mm, config)

    def norm_linear_sigmoid(x: Any, w: Any) -> Any:
        return torch.sigmoid(linear(torch.nn.functional.layer_norm(x, (x.shape[1],)), w))

    return linear if work == "linear" else norm_linear_sigmoid


def random_steps(torch: Any, size: int) -> list[Any]:
    def tensor(scale: float, grad: bool) -> Any:
        made = torch.randn(size, size, device="cuda", dtype=torch.bfloat16) * scale
        return made.detach().requires_grad_(grad)

    copies = copies_for(4 * 3 * size * size)
    return [(tensor(1.0, True), tensor(size**-0.5, True), tensor(1.0, False)) for _ in range(copies)]


def fault(torch: Any, work: str, call: Callable[[Any], Any], tensors: Any) -> str:
    """Names a result that is far from the same step in f32 with PyTorch's own operations. A NaN is far."""
    x, w, grad = (t.detach().float() for t in tensors)
    x.requires_grad_(True)
    w.requires_grad_(True)
    exact = step(torch, forward(torch, work))((x, w, grad))
    for what, found, expected in zip(("output", "grad_input", "grad_weight"), call(tensors), exact):
        error = ((found.float() - expected).norm() / expected.norm()).item()
        if not error < 0.1:
            return f"{what} is {error:.3f} from f32's"
    return ""


def measure(torch: Any, chosen: str, quick: bool, write: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    rounds, graph_us = (3, 1000.0) if quick else (11, 4000.0)
    found: dict[str, Any] = {
        "benchmark": "linear, torch.compile",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cases": [],
    }
    stream = torch.cuda.Stream()
    for work in WORKS:
        for size in SIZES:
            name = case_name(size, work)
            if chosen not in name:
                continue
            print(f"compiling {name}", file=sys.stderr)
            tensors = random_steps(torch, size)
            layers = {"bf16": forward(torch, work)}
            for recipe in TORCHAO_RECIPES:
                layer = torchao_layer(torch, work, recipe)
                if layer is not None:
                    layers[f"torchao {recipe}"] = layer
            replays, faults = {}, {}
            for label, layer in layers.items():
                torch.compiler.reset()
                call = step(torch, torch.compile(layer, dynamic=False))
                wrong = fault(torch, work, call, tensors[0]) if size <= 4096 else ""
                if wrong:
                    faults[label] = wrong
                    continue
                replays[label] = Replay(torch, call, tensors, graph_us, stream)
            for label, us in take_turns(replays, rounds).items():
                found["cases"].append({"case": name, "layer": label, "us": us})
            for label, wrong in faults.items():
                found["cases"].append({"case": name, "layer": label, "wrong": wrong})
            write(found)
            del replays, tensors
            torch.cuda.empty_cache()
    return found


def table(found: dict[str, Any], ingot: dict[str, Any] | None) -> str:
    beside = {case["case"]: case["recipes"] for case in ingot["cases"]} if ingot else {}
    lines = [f"PyTorch {found['torch']}, {found['device']}, {found['date']}"]
    if ingot:
        lines.append(f"Ingot {ingot['ingot']} ({ingot['commit']}), {ingot['device']}, {ingot['date']}")
        if ingot["device"] != found["device"]:
            lines.append("the devices differ: the ratios below mean nothing")
    lines.append(f"{'case':<46}{'layer':<32}{'us':>10}{'over torch bf16':>17}")
    baseline: dict[str, float] = {}
    for case in found["cases"]:
        if "us" not in case:
            lines.append(f"{case['case']:<46}{case['layer']:<32}{'WRONG':>10}{'-':>17}")
            continue
        us = case["us"]["median"]
        baseline.setdefault(case["case"], us)
        lines.append(f"{case['case']:<46}{case['layer']:<32}{us:>10.1f}{baseline[case['case']] / us:>17.3f}")
    for name, recipes in beside.items():
        for recipe in recipes:
            if name not in baseline or "us" not in recipe:
                continue
            us = recipe["us"]["median"]
            lines.append(f"{name:<46}{'ingot ' + recipe['recipe']:<32}{us:>10.1f}{baseline[name] / us:>17.3f}")
    return "\n".join(lines) + "\n"


def self_check(cases_source: str, torch: Any) -> None:
    for size in SIZES:
        assert str(size) in cases_source, size
    found = {"torch": "2", "device": "GPU", "date": "2026-11-22"}
    found["cases"] = [
        {"case": "a", "layer": "bf16", "us": {"median": 30.0}},
        {"case": "a", "layer": "torchao rowwise", "us": {"median": 20.0}},
        {"case": "b", "layer": "bf16", "wrong": "output"},
    ]
    ingot = {"ingot": "0", "commit": "c", "device": "GPU", "date": "d"}
    ingot["cases"] = [
        {"case": "a", "recipes": [{"recipe": "rowwise", "us": {"median": 15.0}}, {"recipe": "x", "wrong": "w"}]},
        {"case": "b", "recipes": [{"recipe": "rowwise", "us": {"median": 15.0}}]},
    ]
    rows = [line.split()[-2:] for line in table(found, ingot).splitlines()[3:]]
    assert rows == [["30.0", "1.000"], ["20.0", "1.500"], ["WRONG", "-"], ["15.0", "2.000"]], rows
    assert "mean nothing" in table({**found, "device": "another"}, ingot)
    if torch is None:
        return
    for work in WORKS:
        x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
        y, grad_x, grad_w = step(torch, forward(torch, work))((x, w, torch.ones(8, 8)))
        assert y.shape == grad_x.shape == grad_w.shape == (8, 8), work

"""compare_torch.py --weight-only: times GEMMs of bf16 activations with weights in 8 and 4 bits, as a language model server
runs them: F.linear in bf16, torch.compile of F.linear over the decoded weight, gemlite if installed, and Ingot's
WeightOnlyLinear if its Python module is installed. All run in CUDA graphs that rotate through copies of the weight, so
that none of them is in the L2. Checks every result before it times it."""

from __future__ import annotations

import datetime
import math
import sys
from typing import Any, Callable

from torch_gemm import cast_blocks, cast_rows, values
from torch_timing import Replay, copies_for, take_turns

# N, K: the layers of Llama 2 7B, and those of Llama 3 8B and 70B with query, key and value fused, and gate and up fused.
SHAPES = (
    (4096, 4096),
    (11008, 4096),
    (4096, 11008),
    (6144, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (8192, 8192),
    (28672, 8192),
    (57344, 8192),
    (8192, 28672),
)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
BF16 = "bf16"
COMPILED = "torch.compile e4m3fn row"
GEMLITE = "gemlite e4m3fn row"
INGOT = ("ingot e4m3fn row", "ingot e4m3fn 128x128", "ingot e2m1fn mx")
MODES = (BF16, COMPILED, GEMLITE, *INGOT)
# For the relative Frobenius error against float64 with the decoded weight: the rounding to bf16 is 1.7e-3.
BOUND = 2.0**-8
# For libraries that quantize the weight themselves: against the original weight.
BOUND_OF_OWN = {GEMLITE: 0.04, "ingot e2m1fn mx": 0.14}
CHECKED_ROWS = 512


def case_name(n: int, k: int, m: int, mode: str) -> str:
    return f"{n}x{k} M={m}, {mode}"


def case_names() -> list[str]:
    return [case_name(n, k, m, mode) for n, k in SHAPES for m in TOKENS for mode in MODES]


def weight_bytes(n: int, k: int, mode: str) -> int:
    """Returns the bytes of the weight that a GEMM reads, without scale_inv."""
    return n * k * 2 if mode == BF16 else n * k // 2 if "e2m1fn" in mode else n * k


def open_gemlite() -> Any | None:
    try:
        from gemlite.helper import A16W8_FP8
    except ImportError as error:
        print(f"without gemlite: {error}", file=sys.stderr)
        return None
    return A16W8_FP8


def open_ingot() -> Any | None:
    try:
        import ingot
    except ImportError as error:
        print(f"without ingot: {error}; pip install .", file=sys.stderr)
        return None
    return ingot


# ---- layers: a function of x, and sampled rows of the expected weight in float64 -------------------------------------


def sampled_rows(n: int) -> list[int]:
    """Returns rows in all parts of the weight, including the first and the last."""
    return sorted({(i * 7919 + 13) % n for i in range(CHECKED_ROWS)} | {0, n - 1})


def dequantized_linear(torch: Any) -> Callable[[Any, Any, Any], Any]:
    def call(x: Any, codes: Any, factor: Any) -> Any:
        return torch.nn.functional.linear(x, codes.to(x.dtype) * factor.to(x.dtype))

    return call


class Layer:
    def __init__(self, call: Callable[[Any], Any], expected: Any) -> None:
        self.call = call
        self.expected = expected  # [len(sampled_rows(n)), k]


def make_layer(torch: Any, mode: str, w: Any, compiled: Callable[[Any, Any, Any], Any], libraries: dict[str, Any]) -> Layer:
    rows = sampled_rows(w.shape[0])
    own = w[rows].to(torch.float64)
    if mode == BF16:
        return Layer(lambda x: torch.nn.functional.linear(x, w), own)
    if mode == GEMLITE:
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device=w.device, dtype=w.dtype)
        linear.weight.data = w
        made = libraries["gemlite"](device=str(w.device), dtype=w.dtype).from_linear(linear)
        return Layer(lambda x: made(x), own)
    if mode == "ingot e2m1fn mx":
        return Layer(libraries["ingot"].WeightOnlyLinear.quantize(w, "e2m1fn", scale="mx"), own)
    if mode == "ingot e4m3fn 128x128":
        codes, factor = cast_blocks(torch, w, 128)
        all_values = values(torch, codes, factor, rows=128)[rows]
        return Layer(libraries["ingot"].WeightOnlyLinear.from_codes(codes, factor, scale="128x128"), all_values)
    codes, factor = cast_rows(torch, w)
    expected = values(torch, codes[rows], factor[rows])
    if mode == COMPILED:
        # The compiled call multiplies by a bf16 scale_inv, so the expected weight uses the rounded one too.
        return Layer(lambda x: compiled(x, codes, factor), codes[rows].to(torch.float64) * factor[rows].to(w.dtype).double())
    return Layer(libraries["ingot"].WeightOnlyLinear.from_codes(codes, factor, scale="row"), expected)


def fault(torch: Any, mode: str, layer: Layer, x: Any, out: Any) -> str:
    """Says what is wrong with a result; empty if it is right. A NaN is wrong."""
    rows = sampled_rows(out.shape[1])
    expected = x.to(torch.float64) @ layer.expected.t()
    error = float((out[:, rows].to(torch.float64) - expected).norm() / expected.norm())
    bound = BOUND_OF_OWN.get(mode, BOUND)
    return "" if error <= bound else f"relative error {error:.3g}, but at most {bound:.3g} is allowed"


# ---- measuring -----------------------------------------------------------------------------------------------------


def measure_shape(
    torch: Any, n: int, k: int, chosen: str, quick: bool, libraries: dict[str, Any], stream: Any
) -> list[dict[str, Any]]:
    rounds, graph_us = (3, 1000.0) if quick else (11, 3000.0)
    modes = [
        mode
        for mode in MODES
        if any(chosen in case_name(n, k, m, mode) for m in TOKENS) and libraries.get(mode.split()[0], True) is not None
    ]
    function = dequantized_linear(torch)
    layers: dict[str, list[Layer]] = {}
    compiled = torch.compile(function, dynamic=False)
    found = []
    for mode in modes:
        print(f"making {n}x{k}, {mode}", file=sys.stderr)
        layers[mode] = []
        for _ in range(copies_for(weight_bytes(n, k, mode))):
            w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
            layers[mode].append(make_layer(torch, mode, w, compiled, libraries))
    for m in TOKENS:
        torch.compiler.reset()
        replays: dict[str, Replay] = {}
        cases: dict[str, dict[str, Any]] = {}
        for mode in modes:
            name = case_name(n, k, m, mode)
            if chosen not in name:
                continue
            case = cases[mode] = {"case": name, "mode": mode, "n": n, "k": k, "m": m}
            inputs = [(layer, torch.randn(m, k, device="cuda", dtype=torch.bfloat16)) for layer in layers[mode]]
            try:
                replay = Replay(torch, lambda pair: pair[0].call(pair[1]), inputs, graph_us, stream)
            except Exception as error:  # libraries raise various errors for calls that they do not support
                case["wrong"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                continue
            replay.graph.replay()
            torch.cuda.synchronize()
            checked = [(*inputs[i], replay.kept[i]) for i in (0, len(inputs) - 1)]
            wrong = [fault(torch, mode, *one) for one in checked]
            if any(wrong):
                case["wrong"] = max(wrong)
            else:
                replays[mode] = replay
        for mode, us in take_turns(replays, rounds).items():
            cases[mode]["us"] = us
            cases[mode]["tb_per_s"] = weight_bytes(n, k, mode) / us["median"] * 1e-6
        found += cases.values()
        del replays
    return found


def measure(torch: Any, chosen: str, quick: bool, write: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Times all cases. Calls `write` with the results so far after each shape."""
    libraries = {"gemlite": open_gemlite(), "ingot": open_ingot()}
    found: dict[str, Any] = {
        "benchmark": "weight-only",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "gemlite": version_of("gemlite") if libraries["gemlite"] is not None else None,
        "ingot": libraries["ingot"].__version__ if libraries["ingot"] is not None else None,
        "cases": [],
    }
    stream = torch.cuda.Stream()
    for n, k in SHAPES:
        if not any(chosen in case_name(n, k, m, mode) for m in TOKENS for mode in MODES):
            continue
        found["cases"] += measure_shape(torch, n, k, chosen, quick, libraries, stream)
        write(found)
        torch.cuda.empty_cache()
    return found


def version_of(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


# ---- the table -----------------------------------------------------------------------------------------------------


def table(found: dict[str, Any]) -> str:
    lines = [
        f"PyTorch {found['torch']}, gemlite {found['gemlite'] or '-'}, Ingot {found['ingot'] or '-'}, "
        f"{found['device']}, {found['date']}; weights N x K, M tokens in bf16",
        f"{'case':<46}{'us':>10}{'weight TB/s':>13}{'over bf16':>11}",
    ]
    baseline = {(c["n"], c["k"], c["m"]): c["us"]["median"] for c in found["cases"] if c["mode"] == BF16 and "us" in c}
    over: dict[tuple[str, int], list[float]] = {}
    for case in found["cases"]:
        if "us" not in case:
            lines += [f"{case['case']:<46}{'WRONG':>10}{'-':>13}{'-':>11}", f"    {case['wrong']}"]
            continue
        us = case["us"]["median"]
        bf16 = baseline.get((case["n"], case["k"], case["m"]))
        ratio = "-" if bf16 is None else f"x{bf16 / us:.2f}"
        if bf16 is not None and case["mode"] != BF16:
            over.setdefault((case["mode"], case["m"]), []).append(bf16 / us)
        lines.append(f"{case['case']:<46}{us:>10.1f}{case['tb_per_s']:>13.2f}{ratio:>11}")
    for (mode, m), ratios in over.items():
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"{mode}, M={m}, geometric mean of {len(ratios)}: x{mean:.3f} over bf16")
    return "\n".join(lines) + "\n"


# ---- self-check without a GPU --------------------------------------------------------------------------------------


def self_check(torch: Any) -> None:
    assert "4096x4096 M=1, bf16" in case_names()
    assert len(set(case_names())) == len(case_names())
    assert weight_bytes(64, 32, BF16) == 2 * weight_bytes(64, 32, COMPILED) == 4 * weight_bytes(64, 32, INGOT[2])

    def case(mode: str, us: float | None) -> dict[str, Any]:
        made = {"case": case_name(8, 8, 1, mode), "mode": mode, "n": 8, "k": 8, "m": 1}
        return {**made, "wrong": "why"} if us is None else {**made, "us": {"median": us}, "tb_per_s": 1.5}

    found = {"torch": "2", "gemlite": None, "ingot": "0", "device": "GPU", "date": "2026-11-22"}
    found["cases"] = [case(BF16, 30.0), case(COMPILED, None), case(INGOT[0], 15.0)]
    lines = table(found).splitlines()
    assert [line.split()[-3:] for line in lines[2:4]] == [["30.0", "1.50", "x1.00"], ["WRONG", "-", "-"]], lines
    assert lines[4].strip() == "why" and lines[5].endswith("x2.00"), lines
    assert lines[6] == f"{INGOT[0]}, M=1, geometric mean of 1: x2.000 over bf16", lines
    if torch is None:
        return
    libraries = {"ingot": open_ingot()}
    w, x = torch.randn(256, 384).to(torch.bfloat16) * 0.05, torch.randn(3, 384).to(torch.bfloat16)
    for mode in (BF16, COMPILED, *(INGOT if libraries["ingot"] is not None else ())):
        layer = make_layer(torch, mode, w, dequantized_linear(torch), libraries)
        out = layer.call(x)
        assert fault(torch, mode, layer, x, out) == "", (mode, fault(torch, mode, layer, x, out))
        assert fault(torch, mode, layer, x, out * 1.2) != "", mode
        out[0, 0] = math.nan
        assert fault(torch, mode, layer, x, out) != "", mode

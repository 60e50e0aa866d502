"""compare_torch.py --gemm: times the GEMMs of bench_gemm in PyTorch, under the names of bench/gemm_cases.cpp:
torch._scaled_mm with tensorwise and rowwise scale_inv, with and without fast accumulation; torch.mm in bf16; and, given
a checkout, DeepGEMM with scale_inv of 1x128 groups and 128x128 blocks. Checks every result before it times it."""

from __future__ import annotations

import datetime
import math
import sys
from typing import Any, Callable

from torch_timing import Replay, copies_for, take_turns

FP8_MAX = 448.0
BOUND = 2.0**-8  # for the relative Frobenius error: bf16's own rounding is 1.7e-3, the tensor cores' short sums 2.6e-3
CHECKED_ROWS = 32

# label, M, K, N: as kGemmSizes of gemm_cases.cpp (the self-check compares them).
SHAPES = (
    ("", 256, 256, 256),
    ("", 512, 512, 512),
    ("", 1024, 1024, 1024),
    ("", 2048, 2048, 2048),
    ("", 4096, 4096, 4096),
    ("", 8192, 8192, 8192),
    ("", 16384, 16384, 16384),
    ("wqkv ", 16384, 8192, 1280),
    ("w0 ", 16384, 1024, 8192),
    ("w13 ", 16384, 8192, 7168),
    ("w2 ", 16384, 3584, 8192),
    ("few tokens ", 64, 4096, 11008),
    ("few tokens ", 128, 8192, 28672),
    ("short K ", 16384, 1280, 8192),
    ("", 3000, 4096, 4096),
    ("", 3000, 4096, 14336),
    ("", 6144, 3584, 512),
    ("", 6144, 5120, 13824),
    ("", 6144, 18944, 3584),
    ("unlisted ", 1777, 2560, 6912),
    ("unlisted ", 1777, 6912, 2560),
    ("unlisted ", 5000, 1360, 3072),
    ("unlisted ", 2500, 4096, 640),
    ("unlisted ", 1001, 5120, 17920),
)
BF16 = "bf16"
SCALED_MM = ("tensor fast", "tensor accurate", "row fast", "row accurate")
BLOCKS = "blocks"  # DeepGEMM's
MODES = (BF16, *SCALED_MM, BLOCKS)

Shape = tuple[str, int, int, int]


def shape_name(shape: Shape) -> str:
    label, m, k, n = shape
    return f"{label}{m}x{k}x{n}"


def case_names() -> list[str]:
    return [f"{shape_name(shape)}, {mode}" for shape in SHAPES for mode in MODES]


# ---- operands: codes and scale_inv, value = code * scale_inv ---------------------------------------------------------


def cast(torch: Any, x: Any, amax: Any) -> tuple[Any, Any]:
    factor = amax.to(torch.float32).clamp(min=1e-12) / FP8_MAX
    codes = (x.to(torch.float32) / factor).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes, factor


def cast_tensor(torch: Any, x: Any) -> tuple[Any, Any]:
    return cast(torch, x, x.abs().amax())


def cast_rows(torch: Any, x: Any) -> tuple[Any, Any]:
    return cast(torch, x, x.abs().amax(dim=1, keepdim=True))


def cast_blocks(torch: Any, x: Any, rows: int) -> tuple[Any, Any]:
    """Casts with one scale_inv for each `rows` x 128 block, in a matrix. Sizes must be multiples of the block's."""
    m, k = x.shape
    blocks = x.reshape(m // rows, rows, k // 128, 128)
    codes, factor = cast(torch, blocks, blocks.abs().amax(dim=(1, 3), keepdim=True))
    return codes.reshape(m, k), factor.reshape(m // rows, k // 128)


def values(torch: Any, codes: Any, factor: Any, rows: int = 1) -> Any:
    """Dequantizes in float64. The scale_inv covers the tensor, each row, or each `rows` x 128 block."""
    if factor.dim() == 2 and factor.shape[1] > 1:
        factor = factor.repeat_interleave(rows, dim=0).repeat_interleave(128, dim=1)
    return codes.to(torch.float64) * factor.to(torch.float64)


def operands(torch: Any, mode: str, shape: Shape, device: str) -> dict[str, Any]:
    """Makes one copy of the operands of a mode. The rows of a and b are stored along K."""
    _, m, k, n = shape
    a, b = (torch.randn(rows, k, device=device, dtype=torch.bfloat16) for rows in (m, n))
    if mode == BF16:
        return {"a": a, "b": b}
    if mode == BLOCKS:
        (qa, fa), (qb, fb) = cast_blocks(torch, a, 1), cast_blocks(torch, b, 128)
    else:
        to_codes = cast_tensor if mode.startswith("tensor") else cast_rows
        (qa, fa), (qb, fb) = to_codes(torch, a), to_codes(torch, b)
    return {"a": qa, "b": qb, "scale_inv_a": fa, "scale_inv_b": fb}


def calls(torch: Any, deep_gemm: Any | None) -> dict[str, Callable[[dict[str, Any]], Any]]:
    def scaled_mm(fast: bool) -> Callable[[dict[str, Any]], Any]:
        def call(x: dict[str, Any]) -> Any:
            return torch._scaled_mm(
                x["a"],
                x["b"].t(),
                scale_a=x["scale_inv_a"],
                scale_b=x["scale_inv_b"].t() if x["scale_inv_b"].dim() == 2 else x["scale_inv_b"],
                out_dtype=torch.bfloat16,
                use_fast_accum=fast,
            )

        return call

    made: dict[str, Callable[[dict[str, Any]], Any]] = {BF16: lambda x: torch.mm(x["a"], x["b"].t())}
    for mode in SCALED_MM:
        made[mode] = scaled_mm(mode.endswith("fast"))
    if deep_gemm is not None:
        made[BLOCKS] = deep_gemm_call(torch, deep_gemm)
    return made


# ---- DeepGEMM ------------------------------------------------------------------------------------------------------


def open_deep_gemm(path: str) -> Any:
    """Imports the package from a built checkout. Raises ImportError."""
    sys.path.insert(0, path)
    try:
        import deep_gemm
    finally:
        sys.path.remove(path)
    return deep_gemm


def first_of(module: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"this DeepGEMM has none of {', '.join(names)}")


def deep_gemm_call(torch: Any, deep_gemm: Any) -> Callable[[dict[str, Any]], Any]:
    gemm = first_of(deep_gemm, ("fp8_gemm_nt", "gemm_fp8_fp8_bf16_nt"))
    aligned = first_of(deep_gemm, ("get_mn_major_tma_aligned_tensor", "get_col_major_tma_aligned_tensor"))

    def call(x: dict[str, Any]) -> Any:
        if "aligned_scale_inv_a" not in x:  # once, in the call before the capture: the time excludes its own layout
            x["aligned_scale_inv_a"] = aligned(x["scale_inv_a"])
        out = torch.empty(x["a"].shape[0], x["b"].shape[0], device=x["a"].device, dtype=torch.bfloat16)
        gemm((x["a"], x["aligned_scale_inv_a"]), (x["b"], x["scale_inv_b"]), out)
        return out

    return call


# ---- checking and measuring ----------------------------------------------------------------------------------------


def relative_error(torch: Any, x: dict[str, Any], out: Any) -> float:
    """Returns the relative error against float64 with dequantized operands, over rows in all parts of the output; NaN if
    the output has a NaN."""
    m = out.shape[0]
    rows = sorted({(i * 7919 + 13) % m for i in range(CHECKED_ROWS)} | {0, m - 1})
    if "scale_inv_a" not in x:
        a, b = x["a"][rows].to(torch.float64), x["b"].to(torch.float64)
    else:
        scale_inv_a = x["scale_inv_a"] if x["scale_inv_a"].dim() == 0 else x["scale_inv_a"][rows]
        a, b = values(torch, x["a"][rows], scale_inv_a), values(torch, x["b"], x["scale_inv_b"], rows=128)
    expected = a @ b.t()
    return float((out[rows].to(torch.float64) - expected).norm() / expected.norm())


def tflops(shape: Shape, us: float) -> float:
    _, m, k, n = shape
    return 2.0 * m * k * n / us * 1e-6


def working_set(mode: str, shape: Shape) -> int:
    _, m, k, n = shape
    return (m * k + n * k) * (2 if mode == BF16 else 1) + 2 * m * n


def measure_shape(
    torch: Any, shape: Shape, chosen: dict[str, Any], quick: bool, stream: Any
) -> list[dict[str, Any]]:
    rounds, graph_us = (3, 1500.0) if quick else (11, 3000.0)
    label, m, k, n = shape
    found = {}
    replays = {}
    for mode, call in chosen.items():
        inputs = [operands(torch, mode, shape, "cuda") for _ in range(copies_for(working_set(mode, shape)))]
        case = {"case": f"{shape_name(shape)}, {mode}", "m": m, "k": k, "n": n}
        found[mode] = case
        try:
            replay = Replay(torch, call, inputs, graph_us, stream)
        except Exception as error:  # libraries raise various errors for calls that they do not support
            case["wrong"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        replay.graph.replay()
        torch.cuda.synchronize()
        error = relative_error(torch, inputs[-1], replay.kept[-1])
        if not error <= BOUND:
            case["wrong"] = f"relative error {error:.3g}, but at most {BOUND:.3g} is allowed"
            continue
        replays[mode] = replay
    # Before anything is timed, the GPU must reach the power, and so the clock, that it sustains.
    warming = list(replays.values())
    for i in range(60 if warming else 0):
        warming[i % len(warming)].graph.replay()
    for mode, us in take_turns(replays, rounds).items():
        found[mode]["us"] = us
        found[mode]["tflops"] = tflops(shape, us["median"])
    return list(found.values())


def measure(
    torch: Any, wanted: str, quick: bool, deep_gemm: Any | None, write: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Times all cases. Calls `write` with the results so far after each shape, in case the run is killed."""
    cases: list[dict[str, Any]] = []
    found = {
        "benchmark": "gemm, torch",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "deep_gemm": getattr(deep_gemm, "__version__", "unknown") if deep_gemm is not None else None,
        "cases": cases,
    }
    stream = torch.cuda.Stream()
    for shape in SHAPES:
        chosen = {
            mode: call for mode, call in calls(torch, deep_gemm).items() if wanted in f"{shape_name(shape)}, {mode}"
        }
        if not chosen:
            continue
        print(f"measuring {shape_name(shape)}", file=sys.stderr)
        cases += measure_shape(torch, shape, chosen, quick, stream)
        torch.cuda.empty_cache()
        write(found)
    return found


# ---- the table -----------------------------------------------------------------------------------------------------


def best_of_ingot(case: dict[str, Any] | None) -> tuple[str, float] | None:
    """Returns the kernel and microseconds of the fastest run of a bench_gemm case, which may be cuBLASLt's."""
    timed = [f for f in (case or {}).get("finals", []) if "us" in f and f["kernel"] != "without epilogue"]
    if not timed:
        return None
    best = min(timed, key=lambda f: f["us"]["median"])
    return best["kernel"], best["us"]["median"]


def ratio(over: float | None, us: float | None) -> str:
    return f"x{over / us:.2f}" if over is not None and us is not None else "-"


def geometric(all_of_them: list[float]) -> float:
    return math.exp(sum(map(math.log, all_of_them)) / len(all_of_them))


def table(found: dict[str, Any], ingot: dict[str, Any] | None) -> str:
    beside = {case["case"]: case for case in ingot["cases"]} if ingot else {}
    theirs = {case["case"]: case for case in found["cases"]}
    lines = [f"PyTorch {found['torch']}, {found['device']}, {found['date']}; M x K x N, bf16 output"]
    if found.get("deep_gemm"):
        lines.append(f"blocks: DeepGEMM {found['deep_gemm']}")
    if ingot:
        lines.append(f"Ingot {ingot['ingot']} ({ingot['commit']}), {ingot['device']}, {ingot['date']}")
        if ingot["device"] != found["device"]:
            lines.append("the devices differ: the ratios below mean nothing")
    lines.append("")
    lines.append(
        f"{'case':<44}{'torch us':>10}{'TFLOPS':>8}{'/ bf16':>8}{'ingot us':>10}{'/ torch':>9}{'/ bf16':>8}  kernel"
    )
    over_torch: dict[str, list[float]] = {}
    over_bf16: dict[str, list[float]] = {}
    for shape in SHAPES:
        bf16 = theirs.get(f"{shape_name(shape)}, {BF16}", {}).get("us", {}).get("median")
        for mode in MODES:
            name = f"{shape_name(shape)}, {mode}"
            case, ours = theirs.get(name), best_of_ingot(beside.get(name))
            if case is None and ours is None:
                continue
            us = case["us"]["median"] if case and "us" in case else None
            our_us = ours[1] if ours else None
            if us is not None and our_us is not None:
                over_torch.setdefault(mode, []).append(us / our_us)
            if bf16 is not None and our_us is not None:
                over_bf16.setdefault(mode, []).append(bf16 / our_us)
            shown = f"{us:>10.1f}{case['tflops']:>8.0f}" if case and us is not None else f"{'-':>10}{'-':>8}"
            lines.append(
                f"{name:<44}{shown}{ratio(bf16, us):>8}{f'{our_us:.1f}' if our_us else '-':>10}"
                f"{ratio(us, our_us):>9}{ratio(bf16, our_us):>8}  {ours[0] if ours else '-'}"
            )
            if case and "wrong" in case:
                lines.append(f"    WRONG  {case['wrong']}")
    for mode in MODES:
        if mode in over_torch or mode in over_bf16:
            means = [
                f"x{geometric(all_of_them[mode]):.3f} over {what}"
                for what, all_of_them in (("torch", over_torch), ("bf16", over_bf16))
                if mode in all_of_them
            ]
            lines.append(f"{mode}, geometric mean: {', '.join(means)}")
    return "\n".join(lines) + "\n"


# ---- self-check without a GPU --------------------------------------------------------------------------------------


def check_shapes(source: str) -> None:
    """Checks SHAPES against `source`, the text of gemm_cases.cpp."""
    import re

    listed = source[source.index("kGemmSizes[] = {") : source.index("};", source.index("kGemmSizes[] = {"))]
    found = re.findall(r'\{"([^"]*)", (\d+), (\d+), (\d+)\}', listed)
    assert tuple((label, int(m), int(k), int(n)) for label, m, k, n in found) == SHAPES, found


def check_table() -> None:
    def us(median: float) -> dict[str, float]:
        return {"median": median, "min": median, "max": median}

    def final(kernel: str, median: float | None) -> dict[str, Any]:
        return {"kernel": kernel, "wrong": "x"} if median is None else {"kernel": kernel, "us": us(median)}

    square = "1024x1024x1024"
    found = {"torch": "2", "device": "GPU", "date": "2026-11-21"}
    found["cases"] = [
        {"case": f"{square}, bf16", "us": us(6.0), "tflops": 358.0},
        {"case": f"{square}, tensor fast", "us": us(4.5), "tflops": 477.0},
        {"case": f"{square}, row fast", "wrong": "relative error 1"},
        {"case": "2048x2048x2048, tensor fast", "us": us(15.0), "tflops": 1145.0},
    ]
    ingot = {"ingot": "0.1.0", "commit": "abc", "device": "GPU", "date": "2026-11-21"}
    ingot["cases"] = [
        {
            "case": f"{square}, tensor fast",
            "finals": [final("cublaslt 1", 4.0), final("sm90:a", 3.0), final("sm90:b", None)],
        },
        {"case": f"{square}, row fast", "finals": [final("sm90:a", 5.0)]},
        {"case": f"{square}, blocks", "finals": [final("sm90:c", 12.0)]},
        {"case": f"{square}, row fast, bias", "finals": [final("sm90:a", 1.0)]},
        {"case": "2048x2048x2048, tensor fast", "finals": [final("sm90:a", 20.0)]},
    ]
    lines = table(found, ingot).splitlines()
    rows = [line.split() for line in lines[4:]]
    assert rows[:6] == [
        [f"{square},", "bf16", "6.0", "358", "x1.00", "-", "-", "-", "-"],
        [f"{square},", "tensor", "fast", "4.5", "477", "x1.33", "3.0", "x1.50", "x2.00", "sm90:a"],
        [f"{square},", "row", "fast", "-", "-", "-", "5.0", "-", "x1.20", "sm90:a"],
        ["WRONG", "relative", "error", "1"],
        [f"{square},", "blocks", "-", "-", "-", "12.0", "-", "x0.50", "sm90:c"],
        ["2048x2048x2048,", "tensor", "fast", "15.0", "1145", "-", "20.0", "x0.75", "-", "sm90:a"],
    ], rows
    assert lines[10:] == [
        f"tensor fast, geometric mean: x{math.sqrt(1.5 * 0.75):.3f} over torch, x2.000 over bf16",
        "row fast, geometric mean: x1.200 over bf16",
        "blocks, geometric mean: x0.500 over bf16",
    ], lines[10:]
    assert "mean nothing" in table({**found, "device": "another"}, ingot)
    assert len(table(found, None).splitlines()) == 8


def check_formulas(torch: Any) -> None:
    """Checks that codes times scale_inv give the operands, and that a right result passes and a wrong one fails."""
    torch.manual_seed(1)
    shape = ("", 256, 384, 128)
    for mode in MODES:
        x = operands(torch, mode, shape, "cpu")
        if mode == BF16:
            product = x["a"].to(torch.float64) @ x["b"].to(torch.float64).t()
        else:
            a = values(torch, x["a"], x["scale_inv_a"])
            product = a @ values(torch, x["b"], x["scale_inv_b"], rows=128).t()
            assert x["a"].dtype == torch.float8_e4m3fn
            assert float(a.abs().amax()) < 6 and 0.9 < float(a.std()) < 1.1, mode
        out = product.to(torch.bfloat16)
        assert relative_error(torch, x, out) <= BOUND, mode
        out[0] *= 1.5
        assert not relative_error(torch, x, out) <= BOUND, mode
        out[0, 0] = math.nan
        assert not relative_error(torch, x, out) <= BOUND, mode
    for mode in (BF16, *SCALED_MM):
        x = operands(torch, mode, shape, "cpu")
        try:
            out = calls(torch, None)[mode](x)
        except (RuntimeError, NotImplementedError):  # older versions have no _scaled_mm on the CPU
            continue
        assert relative_error(torch, x, out) <= BOUND, mode
    for rows in (1, 128):
        x = torch.randn(256, 384)
        codes, factor = cast_blocks(torch, x, rows)
        error = (values(torch, codes, factor, rows) - x).norm() / x.norm()
        assert factor.shape == (256 // rows, 3) and error < 0.04, (rows, float(error))

    class Fake:
        """Computes what DeepGEMM does, in float64."""

        @staticmethod
        def get_mn_major_tma_aligned_tensor(factor: Any) -> Any:
            return factor.t().contiguous().t()

        @staticmethod
        def fp8_gemm_nt(a: tuple[Any, Any], b: tuple[Any, Any], out: Any) -> None:
            out.copy_(values(torch, *a) @ values(torch, *b, rows=128).t())

    x = operands(torch, BLOCKS, shape, "cpu")
    assert relative_error(torch, x, calls(torch, Fake)[BLOCKS](x)) <= BOUND


def self_check(source: str, torch: Any | None) -> None:
    check_shapes(source)
    check_table()
    names = case_names()
    assert len(names) == len(set(names)) == len(SHAPES) * len(MODES)
    if torch is not None:
        check_formulas(torch)

"""test_performance_page.py <repository>: docs/performance.md is what scripts/performance_page.py writes of
bench/results, and the script says of other results what is in them, and no more. Those files have the head and the form
of bench/results_form.py."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
SCRIPT = ROOT / "scripts/performance_page.py"


def run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-B", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stderr


def us(median: float) -> dict:
    return {"us": {"median": median}}


def gemm(case: str, bf16_us: float, **times: float) -> dict:
    finals = [{"kernel": kernel, **us(time)} for kernel, time in times.items()]
    return {"case": case, "bf16_us": bf16_us, "finals": finals}


ACCURACY = {"output": 28.44, "grad_input": 24.5, "grad_weight": 1000.0}
RUN = {"device": "NVIDIA H100", "commit": "abc", "date": "2026-11-25"}
H200 = {"device": "NVIDIA H200", "commit": "fed", "date": "2026-11-27"}
SIZE = "2048x2048x2048"
RESULTS = {
    "cast_h100.json": RUN
    | {
        "cases": [
            {"case": "rowwise codes", "rows": 8192, "cols": 8192, "of_copy_ceiling": 0.5, "target": 0.8, **us(10.0)},
            {"case": "rowwise codes", "rows": 4096, "cols": 4096, "of_copy_ceiling": 0.9, "target": None, **us(3.0)},
            {"case": "rmsnorm codes", "rows": 3000, "cols": 8192, "of_copy_ceiling": 0.75, **us(3.0)},
            {"case": "rmsnorm codes", "rows": 64, "cols": 1024, "of_copy_ceiling": 0.25, **us(2.0)},
            {"case": "wrong", "rows": 8192, "cols": 8192, "wrong": "codes differ", "target": 0.9},
        ]
    },
    "cast_h200.json": H200
    | {
        "cases": [
            {"case": "rowwise codes", "rows": 8192, "cols": 8192, "of_copy_ceiling": 0.99, "of_same_size_copy": 1.01, "target": 0.8}
            | us(7.0)
        ]
    },
    "cast_again_h100.json": {"device": "NVIDIA H100", "commit": "def", "date": "2026-11-26"}
    | {
        "cases": [
            {
                **{"case": "rmsnorm codes", "rows": 3000, "cols": 8192},
                **{"of_copy_ceiling": 0.85, "of_same_size_copy": 0.95, **us(2.6)},
            }
        ]
    },
    "cast_renewed_h100.json": {"device": "NVIDIA H100", "commit": "bad", "date": "2026-11-28"}
    | {"cases": [{"case": "rmsnorm codes", "rows": 64, "cols": 1024, "of_copy_ceiling": 0.45, **us(1.5)}]},
    "cast_torch_h100.json": {"torch": "2.11", "cases": [{"case": "rowwise codes", "rows": 8192, **us(25.0)}]},
    "cast_variants_h100.json": {"cases": "of another kind"},
    "bench_gemm.json": RUN
    | {
        "cases": [
            gemm(f"{SIZE}, bf16", 20.0, sm90=21.0, cublaslt=20.0),
            gemm(f"{SIZE}, row fast", 20.0, sm90=8.0, cublaslt=10.0),
            gemm(f"{SIZE}, blocks read", 20.0, sm90=16.0, cublaslt=12.0, untuned=12.0),
            {
                "case": f"{SIZE}, row fast, relu",
                "finals": [{"kernel": "without epilogue", **us(8.0)}, {"kernel": "sm90:tiling", **us(10.0)}],
            },
            {"case": f"{SIZE}, tensor fast", "finals": [{"kernel": "sm90", "wrong": "row 3 was not written"}]},
        ]
    },
    "bench_gemm_unlisted.json": RUN | {"cases": [gemm("unlisted 9x8x7, row fast", 20.0, sm90=10.0, cublaslt=12.0)]},
    "weight_only_h100.json": RUN
    | {
        "cases": [
            {
                "case": "gate 64x32, M 16",
                "spec": f"dequant_matmul bf16*{dtype}->bf16 packed scale=row",
                **{"m": 16, "n": 64, "k": 32, "bf16_us": 9.0, "read_us": 3.0, "ours": us(ours)},
            }
            for dtype, ours in (("e2m1fn", 3.0), ("e4m3fn", 6.0))
        ]
    },
    "weight_only_torch_h100.json": {
        "cases": [{"case": "64x32 M=16, peer", "mode": "peer", "m": 16, "n": 64, "k": 32, **us(12.0)}]
    },
    "generate_llama_h100.json": RUN
    | {
        **{"layers": 2, "hidden": 64, "intermediate": 128, "batch": 1},
        "runs": [
            {"weights": "bf16", "tokens_per_second": 100.0, "gigabytes_per_second": 3000.0},
            {"weights": "e4m3fn row", "tokens_per_second": 150.0, "gigabytes_per_second": 2250.0},
        ],
    },
    "train_sweep_5_steps_h200.json": H200
    | {"compared": [{"text": "bible", "blocks": 4, "bf16_spread": 0.02, "recipes": {"tensorwise": {"speed": 1.5, "gap": 0.0075}}}]},
    "train_sweep_7_steps_h200.json": H200
    | {"compared": [{"text": "bible", "blocks": 4, "bf16_spread": 0.03, "recipes": {"tensorwise": {"speed": None, "gap": 0.001}}}]},
    "train_sweep_9_steps_h100.json": RUN
    | {
        "compared": [
            {
                **{"text": "bible", "blocks": 4, "bf16_spread": 0.01},
                "recipes": {"tensorwise": {"speed": 1.25, "gap": -0.0025}},
            },
            {"text": "code", "blocks": 9, "bf16_spread": 0.03, "recipes": {}},
        ]
    },
    "gradients_h100.json": RUN
    | {
        "cases": [
            {"case": "64x32x16, bf16", "ways": [{"chosen": False, **us(6.0)}, {"chosen": True, **us(4.0)}]},
            {"case": "64x32x16, row", "ways": [{"chosen": True, **us(8.0)}, {"chosen": False, **us(9.0)}]},
            {"case": "8x8x8, row", "ways": [{"chosen": True, **us(3.0)}]},
            {"case": "9x9x9, row", "ways": [{"chosen": True, "wrong": "row 1"}]},
        ]
    },
    "grouped_torch_h100.json": RUN
    | {
        "padded_to": [16, 128],
        "cases": [
            {"case": f"up 8 x 9x7x5, {routing}, {kind}", "kind": kind, "ways": ways}
            for routing, kind, ways in (
                ("balanced", "bf16", {"torch": {**us(8.0), "tflops": 640.4}, "ingot": {**us(10.0), "tflops": 512.2, "over_torch": 0.8}}),
                ("balanced", "row fast", {"torch": {"error": "no kernel"}, "ingot": {**us(4.0), "tflops": 1300.2}}),
                (
                    "zipf",
                    "row fast",
                    {
                        "torch": {**us(5.0), "tflops": 1000.0},
                        "ingot": {**us(4.0), "tflops": 1250.0, "over_torch": 1.25},
                        "ingot, padded to 16": {"padded_to": 16, **us(5.0), "tflops": 1000.0, "ragged_takes": 0.8},
                        "ingot, padded to 128": {"padded_to": 128, "wrong": "relative error 1"},
                    },
                ),
                ("zipf", "bf16", {"torch": us(5.0), "ingot": {"wrong": "relative error 1"}}),
            )
        ],
    },
    "gemm_untuned_h100.json": RUN
    | {"summary": {"near": 57, "measured": 60, "limit": 0.95, "geometric": 0.99, "worst": 0.9}},
    "compile_h100.json": RUN
    | {
        "kernels": [
            {"kernel": "an empty kernel", "processor_ms": {"median": 20.0}},
            {"kernel": "mma", "processor_ms": {"median": 500.0}},
        ]
    },
    "linear_h100.json": RUN
    | {
        "host_us_of_a_256_step": {"tensorwise": 23.26657},
        "cases": [
            {
                "case": f"{name}{tokens}x2048x2048 linear",
                "work": "linear",
                "tokens": tokens,
                "in_features": 2048,
                "out_features": 2048,
                "recipes": [
                    {"recipe": "high_precision", **us(100.0)},
                    {"recipe": "tensorwise", "over_bf16": 1.25, "saved_bytes": 2048 * tokens, "db_beside_bf16": ACCURACY}
                    | us(80.0),
                    {"recipe": "tensorwise +side", "side_stream": True, "over_bf16": 1.5, **us(70.0)},
                    {"recipe": "high_precision +side", "side_stream": True, **us(95.0)},
                    {"recipe": "rowwise", "wrong": "output"},
                ],
            }
            for name, tokens in (("", 2048), ("wo ", 8192))
        ],
    },
    "linear_h200.json": H200
    | {
        "host_us_of_a_256_step": {"tensorwise": 9.0, "delayed": 8.0},
        "host_us_of_a_256_step_captured": {"tensorwise": 1.25, "delayed": 1.0},
        "launches_of_a_256_step": {"tensorwise": 6, "delayed": 7},
        "cases": [
            {
                **{"case": f"{work} of 2048", "work": work, "tokens": 2048, "in_features": 2048, "out_features": 2048},
                "recipes": [{"recipe": "high_precision", **us(90.0)}, {"recipe": "delayed", "over_bf16": 1.75, **us(51.4)}],
            }
            for work in ("linear", "mlp")
        ],
    },
    "eager_h100.json": RUN
    | {
        "cases": [
            {"work": "layernorm, linear, sigmoid", "layer": layer, "size": 2048, "gpu_us": {"median": median}}
            for layer, median in (("torch bf16, compiled", 90.0), ("ingot rowwise", 100.0), ("torchao rowwise", 95.0))
        ]
    },
    "eager_up_h100.json": RUN
    | {
        "cases": [
            {"case": "64x16x32 linear", "layer": layer, "gpu_us": {"median": median}}
            for layer, median in (("torch bf16, compiled", 30.0), ("ingot rowwise", 20.0))
        ]
    },
    "trainers_h100.json": RUN
    | {
        "model": {"text": "Llama of 1 layer, 2 tokens"},
        "cases": [
            {"trainer": trainer, "contender": contender, "float8_layers": layers, "losses": [11.0, 0.5], **speed}
            for trainer, contender, layers, speed in (
                ("accelerate", "bf16", 0, {"tokens_per_s": 1000.4, "over_bf16": 1.0}),
                ("accelerate", "ingot rowwise", 6, {"tokens_per_s": 1250.0, "over_bf16": 1.25}),
                ("accelerate", "torchao rowwise", 6, {"tokens_per_s": 1100.0, "over_bf16": 1.1}),
                ("accelerate", "ingot rowwise, direct", 6, {}),
                ("Lightning", "ingot rowwise", 7, {"tokens_per_s": 900.0}),
            )
        ],
        "verdicts": [
            {"verdict": "holds", "contender": "accelerate, ingot rowwise", "text": "the first 0 of 2 losses are near"},
            {"verdict": "FAILS", "contender": "accelerate, torchao rowwise", "text": "its last loss is 5"},
        ],
    },
    "trainers_losses_h100.json": RUN
    | {
        "verdicts": [
            {"verdict": "holds", "contender": "accelerate, ingot rowwise", "text": "all 9 losses are those of the direct way"},
            {"verdict": "holds", "contender": "Lightning, ingot rowwise", "text": "all 9 losses are those of the direct way"},
            {"verdict": "FAILS", "contender": "Trainer, ingot rowwise", "text": "the first 2 of 9 losses are"},
        ]
    },
    "fsdp_two_h100.json": RUN
    | {
        **{"gpus": 2, "model": {"text": "Llama of 1 layer"}},
        "verdicts": [
            {"verdict": "holds", "contender": "ingot rowwise", "text": "all 3 losses are equal"},
            {"verdict": "FAILS", "contender": "ingot tensorwise", "text": "losses differ"},
        ],
        "cases": [
            {
                **{"contender": contender, "ms": {"median": ms, "min": ms, "max": most}, "wire": {"sent_bytes": 5e8}},
                "memory": {"peak": 2e9, **held},
            }
            for contender, ms, most, held in (
                ("bf16, compiled", 30.0, 31.0, {}),
                ("ingot tensorwise", 24.0, 24.0, {"held_before": 3e9}),
            )
        ],
    },
}
# Lines of the page, as they are.
LINES = (
    "| work (H200 · H100) | us | of a copy's speed | target | times as fast as torch.compile |",
    "| rowwise codes | 7.0 · 10.0 | 0.990 · 0.500 | 0.80 | - · 2.50 |",
    "| work (H200 · H100) | 8192x8192 | 64x1024 | 4096x4096 | 3000x8192 |",
    "| rowwise codes | 99 · 50** | - | - · 90** | - |",
    "| rmsnorm codes | - | - · 45 | - | - · 85* |",
    "The same, of the speed of a copy of as many bytes, timed alternately with each:",
    "| work (H200 · H100) | 3000x8192 | 8192x8192 |",
    "| rowwise codes | - | 101 · - |",
    "| rmsnorm codes | - · 95* | - |",
    "NVIDIA H200, commit fed, 2026-11-27 ([cast_h200.json](cast_h200.json)); NVIDIA H100, commit bad, 2026-11-28",
    "([cast_renewed_h100.json](cast_renewed_h100.json)); with *, NVIDIA H100, commit def, 2026-11-26",
    "([cast_again_h100.json](cast_again_h100.json)); with **, NVIDIA H100, commit abc, 2026-11-25",
    "([cast_h100.json](cast_h100.json)); torch.compile: PyTorch 2.11 ([cast_torch_h100.json](cast_torch_h100.json)).",
    "| M x K x N | row fast | blocks read |",
    f"| {SIZE} | 2.50 (1.25) | 1.25 (0.75) |",
    "| geometric mean | 2.50 | 1.25 |",
    "Sizes that nothing was fitted to, NVIDIA H100, commit abc, 2026-11-25",
    "([bench_gemm_unlisted.json](bench_gemm_unlisted.json)):",
    "| 9x8x7 | 2.00 (1.20) |",
    "| linear (H200 · H100) | bf16, us | tensorwise | delayed | rowwise | rowwise_folded | rowwise_with_gw_hp | blockwise |",
    "| 2048 | 90.0 · 100.0 | - · 1.25 | 1.75 · - | - | - | - | - |",
    "| 2048, side stream | - · 95.0 | - · 1.50 | - | - | - | - | - |",
    "| wo 8192x2048x2048 | - · 100.0 | - · 1.25 | - | - | - | - | - |",
    "NVIDIA H200, commit fed, 2026-11-27 ([linear_h200.json](linear_h200.json)); NVIDIA H100, commit abc, 2026-11-25",
    "([linear_h100.json](linear_h100.json)).",
    "| mlp (H200) | bf16, us | tensorwise | delayed | rowwise | rowwise_folded | rowwise_with_gw_hp | blockwise |",
    "| 2048 | 90.0 | - | 1.75 | - | - | - | - |",
    "NVIDIA H200, commit fed, 2026-11-27 ([linear_h200.json](linear_h200.json)). No H100 result.",
    "| tensorwise | 16.78 = 0.5000 | 1.25 | 28.4 | 24.5 | the same bits |",
    "| ingot rowwise | 100 (0.90) |",
    "64x16x32, NVIDIA H100, commit abc, 2026-11-25 ([eager_up_h100.json](eager_up_h100.json)):",
    "| ingot rowwise | 20 | 1.50 |",
    "Llama of 1 layer, 2 x NVIDIA H100, commit abc, 2026-11-25 ([fsdp_two_h100.json](fsdp_two_h100.json)), medians:",
    "| bf16, compiled | 30.0 | 1.00 | 2.0 | 500 |",
    "| ingot tensorwise | 24.0 | 1.25 | - | 500 |",
    "- ingot tensorwise: FAILS, losses differ",
    "Llama of 1 layer, 2 tokens, NVIDIA H100, commit abc, 2026-11-25 ([trainers_h100.json](trainers_h100.json)):",
    "| trainer | FP8 layers | bf16 | ingot rowwise | torchao rowwise |",
    "| accelerate | 6 | 1000 | 1250 (1.25) | 1100 (1.10) |",
    "| Lightning | 7 | - | 900 (-) | - |",
    "- accelerate, torchao rowwise: FAILS, its last loss is 5",
    "itself, bit for bit, for 2 Ingot contenders of 3 (NVIDIA H100, commit abc, 2026-11-25",
    "([trainers_losses_h100.json](trainers_losses_h100.json))):",
    "- Trainer, ingot rowwise: FAILS, the first 2 of 9 losses are",
    "| relu | 0.800 |",
    "| gate 64x32 | 6.0, 1.50 (0.50) |",
    "| 64x32, M = 16 | peer | 12.0 | 6.0 |",
    "| e4m3fn row | 150 | 1.50 | 2.25 |",
    "| bible, 4 blocks | 1.50 · 1.25 |",
    "How far the validation loss is from bf16's, per cent, after 5 · 9 steps:",
    "| bible, 4 blocks | 2.00 · 1.00 | +0.75 · -0.25 |",
    "| bible, 4 blocks, 7 steps | 3.00 · - | +0.10 · - |",
    "Without tuning, 57 of 60 GEMMs that nothing was fitted on run within 5 % of the best that tuning finds; 0.99 of it on",
    "| 64x32x16 | 6.0 / 4.0 (1.50) * | 8.0 / 9.0 (0.88) |",
    "| 8x8x8 | - | 3.0 |",
    "| mma | 500 | 25.0 |",
    "| experts | bf16 | row fast |",
    "| up 8 x 9x7x5, balanced | 512, 0.80 (640) | 1300, - |",
    "| up 8 x 9x7x5, zipf | - | 1250, 1.25 (1000) |",
    "The time of Ingot's with ragged ends, of its time with experts padded to multiples of 16 / 128:",
    "| up 8 x 9x7x5, zipf | - | 0.80 |",
    "| recipe (H200 · H100) | launches | us | captured, us |",
    "| tensorwise | 6 · - | 9.0 · 23.3 | 1.2 · - |",
    "| delayed | 7 · - | 8.0 · - | 1.0 · - |",
    "The worst 5 of 5 ratios below 1:",
    "| 0.80 | grouped GEMM up 8 x 9x7x5, balanced, bf16: speed over PyTorch's | [grouped_torch_h100.json](grouped_torch_h100.json) |",
    "| 0.62 | rowwise codes 8192 x 8192: speed over its target | [cast_h100.json](cast_h100.json) |",
    f"| 0.75 | GEMM {SIZE}, blocks read: gemm_sm90 over cuBLASLt's best | [bench_gemm.json](bench_gemm.json) |",
    "| 0.90 | layer n = 2048, ingot rowwise: speed over torch.compile's bf16 | [eager_h100.json](eager_h100.json) |",
    f"| 0.95 | GEMM {SIZE}, bf16: gemm_sm90 over cuBLASLt's best | [bench_gemm.json](bench_gemm.json) |",
)


def check_the_committed_page() -> None:
    run("--check")


def check_what_a_page_says() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, content in RESULTS.items():
            (folder / file).write_text(json.dumps(content), encoding="utf-8")
        page = folder / "performance.md"
        options = ("--results", name, "--page", str(page))
        assert "is not what scripts/performance_page.py writes: run it" in run(*options, "--check", code=1)
        run(*options)
        run(*options, "--check")
        text = page.read_text(encoding="utf-8")
        for line in LINES:
            assert line in text.splitlines(), (line, text)
        for absent in ("all 3 losses", "direct |", "wrong", "DeepGEMM", "9 blocks", "blocks, 9", "| rowwise codes | 3.0", "70", "e2m1fn"):
            assert absent not in text, (absent, text)
        sections = {section.split("\n")[0]: section for section in text.split("\n## ")}
        for title in ("GEMMs", "Weight-only", "Decoding"):
            assert sections[title].count("No H200 result.") == 1, sections[title]
        for title in ("Layers", "Casts and norms", "Training", "The host's share", "What is slower than its peer"):
            assert "No H200 result." not in sections[title], sections[title]
        page.write_text(text.replace("· 0.500 |", "· 0.501 |"), encoding="utf-8")
        number = next(i for i, line in enumerate(text.splitlines(), 1) if "· 0.500 |" in line)
        assert f"performance.md:{number}: is not what" in run(*options, "--check", code=1)


def check_ages() -> None:
    """Of a repository with one commit of the layers after the figure's, and one of something else."""
    sys.path.insert(0, str(SCRIPT.parent))
    from performance import ages

    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        git = ["git", "-C", name, "-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run([*git, "init", "-q"], check=True)
        hashes = []
        experts = ("src/nn/linear/grouped_linear.h", "src/nn/modules/experts_mlp.h", "src/nn/planning/conversion.h")
        files = [("src/nn/a.h", "int a;"), ("src/nn/planning/layer_runs.h", "int b;"), *((file, "int b;") for file in experts), ("src/nn/b.h", "#include")]
        comments = ["// c\nint a;\n\n  // d\n", "# c\nint a;\n", "int a;\n"]  # they change no code, and the next one does
        changes = [*files, ("src/nn/a.h", "int a;\n"), *(("src/nn/a.h", text) for text in comments), ("src/nn/a.h", "int b;  // c\n")]
        for file, text in changes:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text, encoding="utf-8")
            subprocess.run([*git, "add", "-A"], check=True)
            subprocess.run([*git, "commit", "-q", "-m", file], check=True)
            hashes.append(subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:8])
        assert ages.mark(root, "linear", hashes[0]) == ", 3 later commits of its code"
        assert ages.mark(root, "linear", f"before {hashes[0]}") == ", 3 later commits of its code"
        for benchmark in ("linear", "train_sweep", "linear from PyTorch"):
            assert ages.mark(root, benchmark, hashes[6]) == ", 1 later commit of its code", benchmark
            assert ages.mark(root, benchmark, hashes[1]) == ", 3 later commits of its code", benchmark
        assert ages.mark(root, "trainers", hashes[1]) == ", 6 later commits of its code"
        for benchmark, commit in (("linear", hashes[-1]), ("gemm", hashes[0]), ("gemm, torch", hashes[0]), ("linear", "abc"), ("linear", "0" * 8)):
            assert ages.mark(root, benchmark, commit) == "", (benchmark, commit)
        try:
            ages.mark(root, "unheard of", hashes[0])
            raise AssertionError("an unknown benchmark has no age")
        except ValueError as error:
            assert "'unheard of'" in str(error), error
    for path in (ROOT / "bench/results").glob("*.json"):
        ages.mark(ROOT, str(json.loads(path.read_text(encoding="utf-8")).get("benchmark", "")), "")
    assert ages.parts("of a day, 12 later commits of its\ncode\n(a.json)") == ages.parts("of a day (a.json)")
    page = "# a\n\nsome\nwords\n\n| b |\n|---|\n| c |\n| d |\n\n- e\n- f\n"
    for place, line_end in enumerate(page[:-1]):
        if line_end == "\n":
            joined = page[:place] + " " + page[place + 1 :]
            same = [text for _, text in ages.parts(joined)] == [text for _, text in ages.parts(page)]
            assert same == (page[:place].endswith("some")), joined
    assert ages.parts(page)[2:5] == [(3, "some words"), (5, ""), (6, "| b |")]


def check_what_dense_layers_run() -> None:
    """No file of a layer without experts includes one whose commits its figures do not count."""
    left_out = re.compile(r"nn/planning/|nn/\w+/\w*(expert|grouped)")
    files = [file for file in (ROOT / "src/nn").rglob("*") if file.suffix in (".h", ".cpp")]
    dense = [file for file in files if not left_out.search(file.relative_to(ROOT).as_posix())]
    assert 50 < len(dense) < len(files)
    for file in dense:
        found = [name for name in re.findall(r'#include "([^"]+)"', file.read_text(encoding="utf-8")) if left_out.search(name)]
        assert not found, f"{file} includes {found}: scripts/performance/ages.py counts no commit of these for a dense layer"


def check_the_comparison() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    sys.dont_write_bytecode = True
    from performance import compared
    from performance.results import Results

    with tempfile.TemporaryDirectory() as name:
        for file, content in RESULTS.items():
            (pathlib.Path(name) / file).write_text(json.dumps(content), encoding="utf-8")
        lines = compared.peers(Results(pathlib.Path(name)))
    for line in (
        "| n = 2048, rowwise | torchao | 100 | 95 | **0.95** |",
        "| Llama under accelerate: rowwise | torchao, whose loss does not fall | 1250 | 1100 | 1.13 |",
        "| rowwise codes | torch.compile | 10.0 | 25.0 | 2.50 |",
        f"| {SIZE}, row fast | cuBLASLt | 8.0 | 10.0 | 1.25 |",
    ):
        assert line in lines, (line, lines)


def check_an_empty_folder() -> None:
    with tempfile.TemporaryDirectory() as name:
        page = pathlib.Path(name) / "performance.md"
        run("--results", name, "--page", str(page))
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# Performance\n") and "##" not in text, text


def check_the_form_of_results() -> None:
    form = [sys.executable, "-B", str(ROOT / "bench/results_form.py")]

    def checked(folder: str) -> str:
        done = subprocess.run([*form, "--check", folder], capture_output=True, text=True, check=False)
        return "right" if done.returncode == 0 else done.stdout

    assert checked(str(ROOT / "bench/results")) == "right", checked(str(ROOT / "bench/results"))
    with tempfile.TemporaryDirectory() as name:
        file = pathlib.Path(name) / "cast_h100.json"
        found = {**RUN, "benchmark": "cast", "driver": "580", "nvrtc": "13.0", "cases": [us(1 / 3)] * 9}
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        assert "has 54 lines instead of 19: run bench/results_form.py on it" in checked(name), checked(name)
        subprocess.run([*form, str(file)], check=True)
        assert checked(name) == "right" and json.loads(file.read_text(encoding="utf-8")) == found
        file.write_text(json.dumps({"benchmark": "cast", "date": "2026-11-25"}), encoding="utf-8")
        assert "its head lacks device, driver, commit" in checked(name), checked(name)
        file.write_text(json.dumps({**found, "nvrtc": ""}), encoding="utf-8")
        assert "its head lacks a version" in checked(name), checked(name)
        subprocess.run([*form, str(file)], check=True)
        file.write_text("\n" * 2000 + file.read_text(encoding="utf-8"), encoding="utf-8")
        assert "lines, at most 2000: keep what a page" in checked(name), checked(name)


check_the_committed_page()
check_the_form_of_results()
check_what_a_page_says()
check_ages()
check_what_dense_layers_run()
check_the_comparison()
check_an_empty_folder()
print("the page is the results'")

#!/usr/bin/env python3
"""Writes docs/performance.md: the figures of a folder of benchmark results, in tables, each with the device, commit and
date of its run; and docs/comparison.md with its picture: recipes and other libraries side by side. Nothing in them is written
by hand, and what the folder lacks is left out.

    scripts/performance_page.py                            # the pages, from bench/results
    scripts/performance_page.py --check                    # exit code 1 if they are not what the script writes
    scripts/performance_page.py --results DIR --page FILE  # performance.md of other results, such as those of gpu_check.sh

A file is found by its name: cast_h200.json and cast_h100.json (the figures of both cards in one row), or bench_cast.json, as
gpu_check.sh names it. Where cast_again_h200.json has a case of cast_h200.json again, its figure is on the page.
Of gemm_untuned_h200.json, gemm_untuned_2_h200.json and so on, the newest list of a device counts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sys
import textwrap
from collections.abc import Iterable

from performance import ages, compared, kernels, layers
from performance.results import LAYER, ROOT, Results, median, table

WIDTH = 120  # characters of a line of prose
WORST = 12  # lines of the list of what is slower


def slower(results: Results) -> list[str]:
    """What is slower than its peer or misses its target, worst first."""
    found: list[tuple[float, str, str]] = []
    for _, file, content in kernels.gemm_files(results):
        for case in content["cases"]:
            ours, theirs = kernels.gemm_times(case)
            if ours is not None and theirs is not None:
                found.append((theirs / ours, f"GEMM {case['case']}: gemm_sm90 over cuBLASLt's best", file))
    for file, case in kernels.cast_cases(results).values():
        if case.get("target"):
            ratio = case["of_copy_ceiling"] / case["target"]
            what = f"{case['case']} {case['rows']} x {case['cols']}: speed over its target"
            found.append((ratio, what, file))
    for _, file, content in results.of("grouped_torch"):
        for case in content["cases"]:
            if "over_torch" in case["ways"]["ingot"]:
                what = f"grouped GEMM {case['case']}: speed over PyTorch's"
                found.append((case["ways"]["ingot"]["over_torch"], what, file))
    for _, file, content in results.of("eager"):
        cases = [case for case in content["cases"] if case["work"] == LAYER and "gpu_us" in case]
        us = {(case["layer"], case["size"]): case["gpu_us"]["median"] for case in cases}
        for (layer, size), ours in us.items():
            theirs = us.get(("torch bf16, compiled", size))
            if theirs is not None and layer.startswith("ingot ") and size >= 2048:
                found.append((theirs / ours, f"layer n = {size}, {layer}: speed over torch.compile's bf16", file))
    rows = [(f"{ratio:.2f}", what, file) for ratio, what, file in sorted(found) if ratio < 0.995]
    if not rows:
        return []
    kept = [(ratio, what, results.named(file)) for ratio, what, file in rows[:WORST]]
    return [f"The worst {len(kept)} of {len(rows)} ratios below 1:", "", *table(("ratio", "of", "from"), kept)]


SECTIONS = (
    (
        "Layers",
        "A step is a layer's forward and backward; the weight is cast in every step, as after an optimizer's. GPU times of "
        "replayed graphs over tensors that are not in the L2; all recipes are timed alternately, and each result is checked "
        "against bf16's first. A table has the microseconds of Ingot's bf16, and each recipe as a multiple of its speed on one "
        "stream. \"Side stream\" means `LinearOptions::side`. A number is a square layer's tokens, inputs and outputs; others "
        "are tokens x inputs x outputs. What limits them: [notes/layers.md](notes/layers.md).",
        layers.layers,
    ),
    (
        "What layers keep for backward",
        "Bytes, speed, and the signal-to-noise ratio of the results against bf16's, on random normal data. 0 bytes are a view "
        "of your bf16 tensor, which has to stay. `rowwise_again` casts again in backward, `rowwise_folded` folds scale_inv: "
        "[layers.md](layers.md#what-is-kept-for-backward).",
        layers.kept,
    ),
    (
        "Layers from PyTorch",
        "The same step from PyTorch in one run: all are timed alternately, in CUDA graphs, in an order that moves on. Microseconds, "
        "and in brackets times as fast as torch.compile's bf16. More: [pytorch.md](pytorch.md).",
        layers.from_pytorch,
    ),
    (
        "A linear layer from PyTorch",
        "The same for an oblong layer, tokens x inputs x outputs: microseconds of forward and backward.",
        layers.linear_from_pytorch,
    ),
    (
        "A Llama in PyTorch",
        "Whole steps of a transformers Llama, by itself and under FSDP2, and forward and backward of an MLP that GPUs divide; "
        "contenders take turns in one job. \"ingot\" are the layers of `ingot.float8`, \"ingot.nn\" models that "
        "`ingot.nn.convert()` has converted. More: [distributed.md](distributed.md).",
        layers.models,
    ),
    (
        "Trainers of other libraries",
        "Whole steps of a Llama, of transformers or torchtitan's own, under another library's trainer, which is started by its "
        "own command and compiles the layers by its own switch: tokens/s, and in brackets over bf16 under the same trainer, "
        "in one job. More: [integrations.md](integrations.md#measure-the-trainers).",
        layers.trainers,
    ),
    (
        "GEMMs",
        "TFLOPS of `sm90` in the tiling that the cost model chose, bf16 output; times as fast as cuBLASLt's best bf16 kernel; "
        "and in brackets over the best of cuBLASLt's algorithms for the same FP8 GEMM (up to eight, in the same run). Tensor "
        "and row: one scale, or one for each row. Accurate: each 128 of K summed separately. Blocks: 1x128 groups by 128x128 "
        "blocks. What bounds them: [notes/gemm.md](notes/gemm.md).",
        kernels.gemms,
    ),
    (
        "Grouped GEMMs",
        "TFLOPS of one launch for all experts, in the tiling that the library chose, and times as fast as the same GEMMs one "
        "after the other. Experts x rows of all of them x columns of one x K (grad, the weights' gradients: x M x N of one x K "
        "of all); balanced: as many rows each; zipf: the i-th expert's share is proportional to 1 / i. bf16 output; f32, + c: "
        "f32, added to c.",
        kernels.grouped_gemms,
    ),
    (
        "Grouped GEMMs next to PyTorch's",
        "`torch._grouped_mm` (bf16) and `torch._scaled_grouped_mm` (FP8, a scale for each row) and Ingot's with the same operands, "
        "in turns in one process; experts x rows of all of them x columns of one x K (grad: along the rows, the gradients of "
        "weights); zipf is ragged. TFLOPS are of rows without padding; where PyTorch's takes multiples of 16 only (grad row), its "
        "experts are padded to those.",
        kernels.grouped_gemms_in_torch,
    ),
    (
        "Mixtures of experts",
        "The gated MLP of all experts, forward and backward with gather and combination: milliseconds, in brackets times as fast "
        "as bf16 by torch._grouped_mm compiled, and the peak of memory above what is there before a step. In turns in one process; experts x hidden "
        "x intermediate, how many experts of how many tokens; rows are not padded, but torchao's routing has multiples of 16. "
        "Ingot's is [`experts_mlp()`](experts.md#train-code-of-your-own); fast: with `fast_gradients` and `fast_math`, whose output and gradients are "
        "as near to bf16's as without (SQNR in the files). torchao sums all its GEMMs so.",
        layers.experts,
    ),
    (
        "Epilogues",
        "Speed as a share of the same kernel's without the epilogue. More: [notes/gemm.md](notes/gemm.md#epilogues).",
        kernels.epilogues,
    ),
    (
        "Gradients",
        "The GEMMs of a layer's two gradients, microseconds in two launches and in one, and in brackets how many times as "
        "fast one is; * where the library of that commit took one (since then neither of 1536 cubed in bf16 nor, with FP8, "
        "below 5e8 products). More: [notes/gemm.md](notes/gemm.md#two-gemms-in-one-launch).",
        layers.gradients,
    ),
    ("Choice without tuning", "How tuning works: [tuning.md](tuning.md).", kernels.choices),
    ("Casts and norms", "What bounds them: [notes/casts.md](notes/casts.md), [notes/norms.md](notes/norms.md).", kernels.casts),
    (
        "Weight-only",
        "Microseconds of the library's own choice, without tuning, of constant weights that are not in the L2, each result "
        "checked; times as fast as cuBLASLt's best with a bf16 weight; and in brackets the share of the speed at which the "
        "weight can be read at all. M is the number of tokens. What bounds them: "
        "[notes/dequant_matmul.md](notes/dequant_matmul.md).",
        kernels.weight_only,
    ),
    ("Decoding", "A Llama in CUDA graphs. More: [weight_only.md](weight_only.md#a-llama-decoder).", layers.decoding),
    (
        "Decoding in PyTorch",
        "A Llama with WeightOnlyLinear in CUDA graphs, from eager and compiled, over bf16 run in the same way. More: "
        "[pytorch_inference.md](pytorch_inference.md).",
        layers.decoding_in_pytorch,
    ),
    (
        "Training",
        "Tokens per second over Ingot's bf16. How it is compared: [training.md](training.md#a-language-model-in-c).",
        layers.training,
    ),
    (
        "Training in PyTorch: speed",
        "Tokens per second of a GPT, and in brackets times as fast as torch.compile's bf16; variants without +compile run "
        "from eager. More: [training.md](training.md#a-gpt-in-pytorch).",
        layers.speeds_of_gpt,
    ),
    (
        "Training in PyTorch: losses",
        "A GPT after 800 steps. More: [training.md](training.md#a-gpt-in-pytorch).",
        layers.losses_of_gpt,
    ),
    (
        "Compiling a kernel",
        "Milliseconds of a processor the first time; from then on it comes from the store. More: [notes/compile_time.md](notes/compile_time.md).",
        kernels.compiles,
    ),
    (
        "The host's share",
        "Of a layer's step, forward and backward, of 256 x 256 x 256, as calls and as a CUDA graph that was captured.",
        layers.host,
    ),
    (
        "The host's share from PyTorch",
        "Microseconds of a step from eager PyTorch, forward and backward, of a 256 x 256 layer.",
        layers.host_from_pytorch,
    ),
    ("What is slower than its peer", "Computed from the same files.", slower),
)


INTRODUCTION = (
    "For everyone who asks how fast Ingot is, and compared with what. `scripts/performance_page.py` writes this page from "
    "[bench/results](../bench/results), and a test compares the two: change results, not the page. \"Later commits of its "
    "code\" have changed what a figure times since it was measured, when the page was last written. How a time is taken: "
    "[benchmarks.md](benchmarks.md)."
)


def page(results: Results, title: str = "Performance", introduction: str = INTRODUCTION, sections: tuple = SECTIONS) -> str:
    lines = [f"# {title}", "", introduction, ""]
    for title, words, section in sections:
        found = section(results)
        if found:
            lines += [f"## {title}", "", words, "", *found]
            lines += [text for sentence in results.lacking(" ".join(found)) for text in (sentence, "")]
    return "\n".join(wrapped(lines)).rstrip("\n") + "\n"


def wrapped(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        prose = textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        yield line if line.startswith("|") else prose


def documents(results: Results) -> dict[pathlib.Path, str]:
    """What is written of bench/results."""
    return {
        ROOT / "docs/performance.md": page(results),
        ROOT / "docs/comparison.md": page(results, "Recipes and libraries compared", compared.INTRODUCTION, compared.SECTIONS),
        ROOT / "docs/recipes.svg": compared.picture(results),
    }


def differs(file: pathlib.Path, written: str) -> bool:
    there = file.read_text(encoding="utf-8") if file.exists() else ""
    end = (len(there.splitlines()) + 1, "the end of the page")
    pairs = itertools.zip_longest(ages.parts(there), ages.parts(written), fillvalue=end)
    for (number, old), (_, new) in pairs:
        if old != new:
            same = len(os.path.commonprefix((old, new)))
            start = max(0, same - 20)
            print(f"{file}:{number}: is not what scripts/performance_page.py writes: run it; {old[start : same + 40]!r} is there, "
                  f"in place of {new[start : same + 40]!r}", file=sys.stderr)
            return True
    return False


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results")
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    results = Results(options.results)
    written = documents(results) if options.page is None else {options.page: page(results)}
    if options.check:
        return int(any([differs(file, text) for file, text in written.items()]))
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""The peak of PyTorch's memory and the time of a training step of examples/train_gpt, by recipe: with the weights' codes
kept between forward and backward, and with the weights cast again, both against bf16 from eager.

    python3 bench/torch_memory.py --width 4096 --blocks 4
    python3 bench/torch_memory.py --width 1024 --blocks 8 --recipes rowwise_with_gw_hp --compile

Needs a GPU, and Ingot's package on PYTHONPATH or installed.
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import torch

from train_gpt.model import Shape, make_model
from train_gpt.training import MasterAdamW, train_step
from train_gpt.variants import Variant, nn_recipes, prepare


def measure(variant: Variant, shape: Shape, tokens: int, steps: int, keep: object) -> tuple[float, float]:
    """Returns the peak in bytes, and the median time of a step in seconds."""
    device = torch.device("cuda")
    torch.compiler.reset()
    prepared = prepare(variant, make_model(shape, 0, device), "inductor")
    for layer in prepared.model.modules():
        if hasattr(layer, "keep_weight_codes"):
            layer.keep_weight_codes(keep)
    optimizer = MasterAdamW(prepared.model.parameters())
    rows = max(1, tokens // shape.window)
    batch = tuple(torch.randint(0, 256, (rows, shape.window), device=device) for _ in range(2))
    for _ in range(3):
        train_step(prepared, optimizer, batch, 1e-5)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        train_step(prepared, optimizer, batch, 1e-5)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return torch.cuda.max_memory_allocated(), statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16384, help="of a step")
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--recipes", nargs="+", help="default: all of ingot.nn")
    parser.add_argument("--compile", action="store_true", help="blocks and head by torch.compile")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_memory: needs a CUDA device")
    shape = Shape(options.width, options.blocks, max(1, options.width // 128), min(512, options.tokens))
    recipes = options.recipes or [name for name in nn_recipes() if name != "high_precision"]
    print(f"{torch.cuda.get_device_name()}, width {shape.width}, {shape.blocks} blocks, {options.tokens} tokens")
    print(f"{'variant':<28} {'codes':<6} {'peak MiB':>9} {'of bf16':>8} {'ms/step':>9}")
    base = None
    cases = [(Variant("torch", "bf16"), None)]
    cases += [(Variant("ingot", name, options.compile), keep) for name in recipes for keep in (True, False)]
    for variant, keep in cases:
        peak, seconds = measure(variant, shape, options.tokens, options.steps, keep)
        base = base or peak
        word = {None: "-", True: "kept", False: "again"}[keep]
        print(f"{variant!s:<28} {word:<6} {peak / 2**20:>9.0f} {peak / base:>8.4f} {seconds * 1e3:>9.2f}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

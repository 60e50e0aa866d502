#!/usr/bin/env python3
"""How fast a Llama decodes at batch 1 in PyTorch with WeightOnlyLinear, against the same model in bf16, each as a CUDA
graph of one token's step.

    python3 bench/decode_torch.py --json decode.json                # needs the Python package and a GPU
    python3 bench/decode_torch.py --compile --json decode.json      # and again with models compiled by torch.compile
    python3 bench/decode_torch.py --device cpu --hidden 128 --intermediate 256 --layers 1 --steps 2   # a trial

The model is made from a config with random weights: the layer sizes of Llama 2 7B by default, with fewer layers, as
each costs the same. It is plain PyTorch, so that both models differ in their linear layers only. The logits are
compared before anything is timed. Contenders take turns, and the median of all rounds is shown. A model is compared
with bf16 as it is run itself: at batch 1, what is between the linear layers (norms, rotary positions, attention)
takes a third of a token's time unless torch.compile fuses it. """

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from typing import Any, Callable

import results_form
import torch_machine

try:
    import torch
except ImportError as missing:
    sys.exit(f"decode_torch: {missing}: it needs PyTorch and the package ingot")


class Attention(torch.nn.Module):
    """Self-attention of one new token over a cache of fixed length, with rotary positions."""

    def __init__(self, hidden: int, heads: int, length: int, kind: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, bias=False, **kind)
        self.out = torch.nn.Linear(hidden, hidden, bias=False, **kind)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, self.size, **kind), persistent=False)

    def forward(self, x, position, rotation, mask):
        q, k, v = (part.view(1, 1, self.heads, self.size).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        q, k = (rotate(part, rotation) for part in (q, k))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = torch.nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(1, 1, -1))


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    even, odd = x.chunk(2, -1)
    cos, sin = rotation.chunk(2, -1)
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


class Block(torch.nn.Module):
    def __init__(self, hidden: int, intermediate: int, heads: int, length: int, kind: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = torch.nn.RMSNorm(hidden, **kind)
        self.attention = Attention(hidden, heads, length, kind)
        self.mlp_norm = torch.nn.RMSNorm(hidden, **kind)
        self.gate_up = torch.nn.Linear(hidden, 2 * intermediate, bias=False, **kind)
        self.down = torch.nn.Linear(intermediate, hidden, bias=False, **kind)

    def forward(self, x, position, rotation, mask):
        x = x + self.attention(self.attention_norm(x), position, rotation, mask)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


class Llama(torch.nn.Module):
    """Returns the logits of the token after `token` [1, 1], which stands at `position` [1]."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        kind = {"dtype": torch.bfloat16, "device": options.device}
        sizes = (options.hidden, options.intermediate, options.heads, options.length)
        self.embed = torch.nn.Embedding(options.vocabulary, options.hidden, **kind)
        self.blocks = torch.nn.ModuleList(Block(*sizes, kind) for _ in range(options.layers))
        self.norm = torch.nn.RMSNorm(options.hidden, **kind)
        self.head = torch.nn.Linear(options.hidden, options.vocabulary, bias=False, **kind)
        size = options.hidden // options.heads
        angles = torch.arange(options.length)[:, None] / 10000 ** (torch.arange(0, size, 2)[None] / size)
        rotations = torch.cat([angles.cos(), angles.sin()], -1).to(**kind)
        self.register_buffer("rotations", rotations, persistent=False)
        self.register_buffer("positions", torch.arange(options.length, device=options.device), persistent=False)

    def forward(self, token, position):
        x = self.embed(token)
        rotation = self.rotations[position]
        mask = (self.positions <= position)[None, None, None]
        for block in self.blocks:
            x = block(x, position, rotation, mask)
        return self.head(self.norm(x))


COMPILED = "+compile"


def compiled(model: Llama) -> Llama:
    model.compile(fullgraph=True, dynamic=False)
    return model


class Decoder:
    """One token's step, as a CUDA graph on a GPU: the logits choose the next token."""

    def __init__(self, model: Llama, device: str) -> None:
        self.model = model
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.logits: torch.Tensor | None = None
        self.replay: Callable[[], Any] = self._step
        if device == "cpu":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.replay = graph.replay

    def _step(self) -> None:
        self.logits = self.model(self.token, self.position)
        self.token.copy_(self.logits.argmax(-1))
        self.position.add_(1)

    def start(self, token: int = 1) -> None:
        self.token.fill_(token)
        self.position.zero_()

    def logits_of(self, tokens: list[int]) -> torch.Tensor:
        """The logits after each of these tokens, in float64."""
        found = []
        for at, token in enumerate(tokens):
            self.token.fill_(token)
            self.position.fill_(at)
            self.replay()
            found.append(self.logits.flatten().double())
        return torch.stack(found)


def seconds(decoder: Decoder, steps: int, wait: Callable[[], None]) -> float:
    decoder.start()
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        decoder.replay()
    wait()
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=11008)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--length", type=int, default=256, help="of the cache of keys and values")
    parser.add_argument("--steps", type=int, default=200, help="tokens in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--formats", nargs="+", default=["e4m3fn", "e2m1fn"])
    parser.add_argument("--compile", action="store_true", help="also with the models compiled, bf16's too")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    try:
        from ingot.nn import Float8WeightOnlyConfig, MXWeightOnlyConfig, quantize_
    except ImportError as error:
        print(f"decode_torch: {error}: it needs the package ingot", file=sys.stderr)
        return 1
    if options.device != "cpu" and not torch.cuda.is_available():
        print("decode_torch: no GPU; --device cpu tries the calls", file=sys.stderr)
        return 77
    if options.steps > options.length:
        print("decode_torch: --steps must be at most --length", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model = Llama(options).eval()
    models = {"bf16": model}
    for name in options.formats:
        models[name] = copy.deepcopy(model)
        quantize_(models[name], MXWeightOnlyConfig(name) if name[1] in "23" else Float8WeightOnlyConfig(name))
    if options.compile:
        for name in list(models):
            models[name + COMPILED] = compiled(copy.deepcopy(models[name]))
    decoders = {name: Decoder(each, options.device) for name, each in models.items()}
    tokens = torch.randint(options.vocabulary, (8,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = decoders["bf16"].logits_of(tokens)
    differences = {}
    for name in decoders:
        if name == "bf16":
            continue
        error = (decoders[name].logits_of(tokens) - expected).norm() / expected.norm()
        differences[name] = error.item()
        bound = 0.5 if name.startswith("e2m1fn") else 0.15
        if not error < bound:  # a NaN is no agreement
            raise SystemExit(f"decode_torch: wrong: logits of {name} differ by {error:.3g} of their norm")
    wait = torch.cuda.synchronize if options.device != "cpu" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in decoders}
    for name in decoders:  # clocks and caches are warm
        seconds(decoders[name], options.steps, wait)
    for _ in range(options.rounds):
        for name, decoder in decoders.items():
            times[name].append(seconds(decoder, options.steps, wait))
    results = []
    print(f"{'weights':16} {'tokens/s':>9} {'of bf16':>8} {'logits differ by':>17}")
    for name, found in times.items():
        middle = statistics.median(found)
        base = statistics.median(times["bf16" + (COMPILED if name.endswith(COMPILED) else "")])
        rate = options.steps / middle
        result = {"weights": name, "tokens_per_second": rate, "of_bf16": base / middle}
        result["microseconds_a_token"] = {
            "median": middle / options.steps * 1e6,
            "min": min(found) / options.steps * 1e6,
            "max": max(found) / options.steps * 1e6,
        }
        result["logits_difference"] = differences.get(name, 0.0)
        results.append(result)
        print(f"{name:16} {rate:9.1f} {base / middle:8.2f} {differences.get(name, 0.0):17.4f}", flush=True)
    if options.json:
        sizes = ("hidden", "intermediate", "heads", "layers", "vocabulary", "length", "steps", "rounds")
        found_all = {
            "benchmark": "decode_torch",
            **torch_machine.machine(torch, options.device),
            "model": {size: getattr(options, size) for size in sizes},
            "results": results,
        }
        results_form.write(options.json, found_all)
    return 0


if __name__ == "__main__":
    sys.exit(main())

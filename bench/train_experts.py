#!/usr/bin/env python3
"""A small language model of experts, trained end to end on one GPU (Hopper): transformers' Qwen3-MoE in bf16 by
torch._grouped_mm, and with its experts and linear layers converted. Text: this repository's own, byte by byte.

    python3 bench/train_experts.py --json train_experts.json              # tokens/s and peak memory, in turns
    python3 bench/train_experts.py --losses                               # losses of smaller models, several seeds
    python3 bench/train_experts.py --device cpu --try                     # a tiny model, to try the program

Each contender starts from the same parameters, and trains by AdamW in bf16. The losses are means of the last tenth of the
steps; a contender's is compared with bf16's of the same seed. Ends with 1 if a loss is farther from bf16's than the larger
of 0.5 % and twice the spread of bf16's own seeds, or if a contender failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import importlib
import pathlib
import statistics
import sys
from typing import Any, Callable, NamedTuple

import results_form
import torch_machine

BYTES = 256
LOSS_WITHIN = 0.005  # of bf16's, or twice the spread of its seeds


class Size(NamedTuple):
    hidden: int
    intermediate: int
    layers: int
    experts: int
    chosen: int
    batch: int
    tokens: int  # of a sequence


def sizes(options: argparse.Namespace) -> list[Size]:
    if options.tries:
        return [Size(64, 48, 2, 4, 2, 2, 64)]
    if options.losses:
        return [Size(512, 768, 4, experts, min(2, experts - 1), 16, 256) for experts in options.experts]
    return [Size(2048, 5632, 4, experts, min(4, experts - 1), 16, 1024) for experts in options.experts]


def model_of(torch: Any, transformers: Any, size: Size, device: str, seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        vocab_size=BYTES,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        moe_intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        num_key_value_heads=size.hidden // 64,
        head_dim=64,
        num_experts=size.experts,
        num_experts_per_tok=size.chosen,
        max_position_embeddings=size.tokens,
        use_cache=False,
        norm_topk_prob=True,
    )
    with torch.device(device):
        model = transformers.Qwen3MoeForCausalLM(config)
    for parameter in model.parameters():  # stacked experts are not initialised by every version
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    model.set_experts_implementation("grouped_mm" if device == "cuda" else "eager")
    return model.to(device, torch.bfloat16).train()


def converted(recipe: str, fast: bool, linears: bool, head: bool = False) -> Callable:
    def change(model: Any) -> None:
        import ingot.nn
        from ingot.integrations.experts import convert_experts_

        convert_experts_(model, recipe, fast_gradients=fast, fast_math=fast)
        if linears:
            ingot.nn.convert(model, recipe, head=head)

    return change


def contenders() -> dict[str, tuple[Callable, bool]]:
    """How a model is changed, and whether its layers are compiled."""
    changes = {
        "bf16": lambda model: None,
        "ingot rowwise": converted("rowwise", False, True),
        "ingot rowwise, fast": converted("rowwise", True, True),
        "ingot blockwise": converted("blockwise", False, True),
        "ingot tensorwise": converted("tensorwise", False, True),
        "ingot delayed": converted("delayed", False, True),
        "ingot rowwise, experts alone": converted("rowwise", False, False),
        "ingot rowwise, FP8 head": converted("rowwise", False, True, head=True),
    }
    return {f"{name}, {mode}": (change, mode == "compiled") for name, change in changes.items() for mode in ("eager", "compiled")}


def text_of_repository(torch: Any) -> Any:
    root = pathlib.Path(__file__).resolve().parent.parent
    files = sorted(each for pattern in ("**/*.md", "src/**/*.cpp", "src/**/*.h", "templates/**/*.cuh") for each in root.glob(pattern))
    names = [each for each in files if not {"build", ".venv"} & set(each.relative_to(root).parts)]
    return torch.frombuffer(bytearray(b"".join(each.read_bytes() for each in names)), dtype=torch.uint8).long()


class Trainer:
    def __init__(self, torch: Any, transformers: Any, size: Size, device: str, contender: tuple[Callable, bool], seed: int, text: Any) -> None:
        self.torch, self.size, self.device = torch, size, device
        self.model = model_of(torch, transformers, size, device, seed)
        change, compiles = contender
        change(self.model)
        if compiles:
            for layer in self.model.model.layers:
                layer.compile()
        self.has_delayed_scales = any(name.endswith("fp8_amax_history") for name, _ in self.model.named_buffers())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.0, fused=device == "cuda")
        self.generator = torch.Generator().manual_seed(seed)
        self.text = text

    def batch(self) -> Any:
        begins = self.torch.randint(0, self.text.numel() - self.size.tokens, (self.size.batch,), generator=self.generator)
        return self.torch.stack([self.text[begin : begin + self.size.tokens] for begin in begins]).to(self.device)

    def step(self) -> Any:
        tokens = self.batch()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if self.has_delayed_scales:
            importlib.import_module("ingot.nn").sync_amax_history(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def losses(torch: Any, transformers: Any, size: Size, options: argparse.Namespace, calls: dict) -> list[dict[str, Any]]:
    ends: dict[str, list[float]] = {}
    text = text_of_repository(torch)
    for name, contender in calls.items():
        ends[name] = []
        for seed in range(options.seeds):
            trainer = Trainer(torch, transformers, size, options.device, contender, seed, text)
            steps = [trainer.step() for _ in range(options.steps)]
            ends[name].append(float(torch.stack(steps[-max(1, options.steps // 10) :]).float().mean()))
        print(f"{size.experts} experts, {name}: {ends[name]}", file=sys.stderr, flush=True)
    base = ends["bf16, eager"]
    spread = max(base) - min(base)
    found = []
    for name, of_seeds in ends.items():
        away = max(abs(each - other) for each, other in zip(of_seeds, base))
        allowed = max(2 * spread, LOSS_WITHIN * min(base))
        found.append({"contender": name, "losses": [round(each, 4) for each in of_seeds], "from_bf16": round(away, 4), "allowed": round(allowed, 4)})
    return found


def speeds(torch: Any, transformers: Any, size: Size, options: argparse.Namespace, calls: dict) -> list[dict[str, Any]]:
    """One model after the other has the GPU: two do not fit beside each other's optimizer."""
    found = []
    text = text_of_repository(torch)
    for name, contender in calls.items():
        torch._dynamo.reset()  # each has its own graphs, and a process keeps a few of a function
        gc.collect()
        torch.cuda.empty_cache()
        try:
            found.append({"contender": name, **speed(torch, transformers, size, options, contender, text)})
        except Exception as error:  # such as no memory: the others still count
            found.append({"contender": name, "error": f"{type(error).__name__}: {error}"[:300]})
    base = next((each["ms"] for each in found if each["contender"] == "bf16, compiled" and "ms" in each), None)
    for each in found if base else []:
        if "ms" in each:
            each["over_bf16_compiled"] = round(base / each["ms"], 4)
    return found


def speed(torch: Any, transformers: Any, size: Size, options: argparse.Namespace, contender: tuple[Callable, bool], text: Any) -> dict[str, Any]:
    held = torch.cuda.memory_allocated()  # by what was not freed
    trainer = Trainer(torch, transformers, size, options.device, contender, 0, text)
    for _ in range(3):
        trainer.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(options.rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(4):
            loss = trainer.step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 4)
    ms = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() - held
    return {"ms": round(ms, 3), "ms_min": round(min(times), 3), "ms_max": round(max(times), 3), "tokens_per_s": round(size.batch * size.tokens / ms * 1e3), "peak_bytes": peak, "loss": round(float(loss), 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", action="store_true", help="of smaller models, instead of times")
    parser.add_argument("--experts", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--contender", action="append", help="a pattern, or one of several; bf16, eager always runs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--try", dest="tries", action="store_true", help="a tiny model")
    parser.add_argument("--commit", default="", help="of the code that is timed, where there is no git")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    import torch
    import transformers

    wanted = lambda name: name == "bf16, eager" or any(fnmatch.fnmatch(name, pattern) for pattern in options.contender or ["*"])
    calls = {name: each for name, each in contenders().items() if wanted(name) and (options.device == "cuda" or each[1] is False)}
    machine = torch_machine.machine(torch, options.device, options.commit)
    found = []
    for size in sizes(options):
        run = losses if options.losses or options.device == "cpu" else speeds
        try:
            results = run(torch, transformers, size, options, calls)
        except Exception as error:  # such as no memory: the other sizes still count
            results = [{"contender": "all", "error": f"{type(error).__name__}: {error}"[:300]}]
        found += [{**size._asdict(), **each} for each in results]
        for each in results:
            print(f"{size.experts:3} experts  " + "  ".join(f"{key} {value}" for key, value in each.items()), flush=True)
        if options.json:  # after each size: a run that is ended keeps those that it had
            results_form.write(options.json, {"benchmark": "train_experts", **machine, "cases": found})
    bad = [each for each in found if "error" in each or each.get("from_bf16", 0) > each.get("allowed", 1)]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""A transformers Llama under FSDP2, on any number of GPUs of a machine: in bf16, with Ingot's layers and with
torchao's, with weights gathered in 16 bits and in FP8, compiled and from eager, and under DDP. They take turns in one
job (torch_ranks.py).

    torchrun --nproc_per_node 4 bench/compare_fsdp.py --json fsdp.json
    torchrun --nproc_per_node 4 bench/compare_fsdp.py --sets checkpointed --seconds 240
    torchrun --nproc_per_node 4 bench/compare_fsdp.py --contender 'bf16*' --contender 'ingot rowwise*' --rounds 5
    torchrun --nproc_per_node 4 bench/compare_fsdp.py --contender 'ingot tensorwise, eager*' --profile folder
    torchrun --nproc_per_node 1 bench/compare_fsdp.py --sets one --layers 3 --batch 2
    torchrun --nproc_per_node 8 bench/compare_fsdp.py --tensor 2           # pairs of GPUs divide each layer, FSDP2 over four pairs
    python3 bench/compare_fsdp.py --list                                   # the contenders; no GPU
    torchrun --nproc_per_node 2 bench/compare_fsdp.py --device cpu --try   # a tiny model over gloo, to try the program

Reports tokens/s a GPU, the ratio to bf16 compiled, how long the calls of a step keep the host (a step that takes no
longer waits for the host), the peak of PyTorch's memory in the timed steps, what a step sends, and losses. Weights
gathered in FP8 are to give the losses of weights gathered in 16 bits, bit for bit. Ends with 1 if they do not, or if a
contender failed. On one GPU nothing is sharded, and the parameters are bfloat16. --profile times nothing: it leaves a
trace and a snapshot of the memory of each contender, and prints where the host's time went and what held the memory at
its peak (torch_profile.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import pathlib
import sys
from typing import Any, NamedTuple, Optional

import torch_profile
import torch_ranks
from torch_ranks import Contender, Ranks, Running

BASELINE = "bf16, compiled"
NEAR = 0.05  # how far, relatively, the last loss may be from bf16's, or from a tenth of its first
SETS = ["main", "ddp", "checkpointed", "nn", "one"]


class Kind(NamedTuple):
    """What a contender is: its name follows from it."""

    package: str  # "bf16", "ingot", "ingot.nn" or "torchao"
    recipe: str = ""
    compiled: bool = True
    float8_gather: bool = False
    checkpointed: bool = False
    ddp: bool = False
    head: bool = False  # is the output embedding converted too?

    @property
    def name(self) -> str:
        words = [f"{self.package} {self.recipe}".strip(), "compiled" if self.compiled else "eager"]
        words += ["FP8 head"] * self.head
        words += ["FP8 gather"] * self.float8_gather + ["checkpointed"] * self.checkpointed + ["DDP"] * self.ddp
        return ", ".join(words)


def kinds() -> dict[Kind, tuple[str, ...]]:
    """Each with the sets that it belongs to."""
    found: dict[Kind, set[str]] = {}

    def add(name: str, *of: Kind) -> None:
        for kind in of:
            found.setdefault(kind, set()).add(name)

    bf16 = Kind("bf16")
    add("main", bf16, bf16._replace(compiled=False))
    for compiled in (True, False):
        for recipe in ("tensorwise", "rowwise"):
            for gather in (False, True):
                add("main", Kind("ingot", recipe, compiled, gather))
    add("main", Kind("torchao", "tensorwise", float8_gather=True), Kind("torchao", "rowwise"))
    add("ddp", bf16, bf16._replace(ddp=True))
    add(
        "ddp",
        *(Kind(package, recipe, ddp=True) for package in ("ingot", "torchao") for recipe in ("tensorwise", "rowwise")),
    )
    for compiled in (True, False):
        add("checkpointed", Kind("bf16", compiled=compiled, checkpointed=True))
        for recipe in ("tensorwise", "rowwise"):
            add("checkpointed", *(Kind("ingot", recipe, compiled, gather, True) for gather in (False, True)))
    add("checkpointed", bf16, Kind("torchao", "tensorwise", True, True, True))
    add("nn", bf16)
    for recipe in ("tensorwise", "rowwise", "rowwise_folded", "rowwise_with_gw_hp", "blockwise", "delayed"):
        add(
            "nn",
            *(Kind("ingot.nn", recipe, compiled, gather) for compiled in (True, False) for gather in (False, True)),
        )
    for recipe in ("tensorwise", "rowwise"):
        for compiled in (True, False):
            add("one", bf16._replace(compiled=compiled), Kind("ingot", recipe, compiled), Kind("ingot.nn", recipe, compiled))
        add("one", Kind("torchao", recipe), Kind("ingot.nn", recipe, head=True))
    return {kind: tuple(name for name in SETS if name in of) for kind, of in found.items()}


# ---- the model -------------------------------------------------------------------------------------------------------


def llama(options: argparse.Namespace) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(options.tensor, options.hidden // 128)
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(options.tensor, heads // 4),
        vocab_size=options.vocabulary,
        max_position_embeddings=max(options.tokens, 8192),
        rope_theta=500000.0,
        rms_norm_eps=1e-5,
        use_cache=False,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def convert(model: Any, kind: Kind) -> None:
    """All linear layers, but the head unless the contender says so."""
    if kind.package == "bf16":
        return
    if kind.package == "ingot.nn":
        convert_by_modules(model, kind)
        return
    package = importlib.import_module(f"{kind.package}.float8")
    config = package.Float8LinearConfig.from_recipe_name(kind.recipe)
    if kind.float8_gather:
        config = dataclasses.replace(config, enable_fsdp_float8_all_gather=True)
    package.convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name != "lm_head")


def convert_by_modules(model: Any, kind: Kind) -> None:
    """Norms within the casts of q, k and v and of the MLPs."""
    from ingot.nn import convert as convert_model, float8_all_gather

    convert_model(model, kind.recipe, head=kind.head)
    if kind.float8_gather:
        float8_all_gather(model)


def after_step(model: Any, kind: Kind) -> Optional[Any]:
    """What casts all shards together after the optimizer's step, if there is anything to cast."""
    if not kind.float8_gather:
        return None
    if kind.package == "ingot.nn":
        from ingot.nn import precompute_float8_all_gather

        return lambda: precompute_float8_all_gather(model)
    package = importlib.import_module(f"{kind.package}.float8")
    return lambda: package.precompute_float8_dynamic_scale_for_fsdp(model)


def divide_layers(layers: Any, kind: Kind, mesh: Any) -> None:
    """Tensor parallelism of attention and MLP: each rank of the mesh has heads and a part of the intermediate size, and all
    tokens. The styles of the contender's package."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    column, row = ColwiseParallel, RowwiseParallel
    if kind.package in ("ingot", "torchao"):
        styles = importlib.import_module(f"{kind.package}.float8.float8_tensor_parallel")
        column, row = styles.Float8ColwiseParallel, styles.Float8RowwiseParallel
    elif kind.package == "ingot.nn":
        raise ValueError("convert() fuses modules before tensor parallelism divides them: --tensor takes the layers of ingot.float8")
    plan = {f"self_attn.{name}_proj": column() for name in "qkv"} | {f"mlp.{name}_proj": column() for name in ("gate", "up")}
    plan |= {"self_attn.o_proj": row(), "mlp.down_proj": row()}
    for layer in layers:
        parallelize_module(layer, mesh, plan)


def parallel(torch: Any, model: Any, kind: Kind, options: argparse.Namespace, device: str) -> Any:
    """Each layer compiled and sharded, as trainers do; a DDP's parameters stay whole, and autocast gives bf16. On one GPU
    nothing is sharded."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, options.reduce_dtype))
    world = torch.distributed.get_world_size()
    layers, alone, mesh = model.model.layers, world == 1, None
    if options.tensor > 1:
        if kind.ddp:
            raise ValueError("DDP's parameters are whole: --tensor takes FSDP2")
        both = init_device_mesh(device, (world // options.tensor, options.tensor), mesh_dim_names=("dp", "tp"))
        divide_layers(layers, kind, both["tp"])
        mesh = both["dp"]
    for at in range(len(layers)):
        if kind.checkpointed:
            layers[at] = checkpoint_wrapper(layers[at])
        if kind.compiled:
            layers[at] = torch.compile(layers[at], dynamic=False, fullgraph=True, backend=options.compiler)
        if not kind.ddp and not alone:
            fully_shard(layers[at], mp_policy=policy, mesh=mesh)
    if kind.ddp:
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model if alone else fully_shard(model, mp_policy=policy, mesh=mesh)


def batches(ranks: Ranks, options: argparse.Namespace) -> list[Any]:
    """Four, of this rank's own random tokens, which those that divide its layers with it have too."""
    torch = ranks.torch
    generator = torch.Generator().manual_seed(1 + ranks.rank // options.tensor)
    shape = (4, options.batch, options.tokens)
    return list(torch.randint(options.vocabulary, shape, generator=generator).to(ranks.device))


def make(ranks: Ranks, kind: Kind, options: argparse.Namespace) -> Running:
    """A new model, with the parameters that every contender begins with."""
    torch = ranks.torch
    torch.manual_seed(0)
    with ranks.device:
        model = llama(options).train()
    if ranks.world == 1:
        model.to(torch.bfloat16)
    convert(model, kind)
    net = parallel(torch, model, kind, options, ranks.device.type)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    precompute = after_step(model, kind)
    if precompute and options.tensor > 1:
        precompute()  # until it has run a scale is that of a rank's part
    data, count = batches(ranks, options), 0
    sync_amax_history = importlib.import_module("ingot.nn").sync_amax_history if kind.recipe == "delayed" else None

    def step() -> Any:
        nonlocal count
        tokens = data[count % len(data)]
        count += 1
        with torch.autocast(ranks.device.type, torch.bfloat16, enabled=kind.ddp):
            loss = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if sync_amax_history:
            sync_amax_history(model)
        optimizer.step()
        optimizer.zero_grad()
        if precompute:
            precompute()
        return loss.detach()

    return Running(step)


# ---- what was found --------------------------------------------------------------------------------------------------


def cases(turns: dict[str, list[dict[str, Any]]], tokens: float) -> list[dict[str, Any]]:
    found = []
    speeds = {}
    for name, of in turns.items():
        if of:
            case = torch_ranks.case_of(name, of)
            speeds[name] = tokens / case["ms"]["median"] * 1e3
            found.append({"contender": name, "tokens_per_s": speeds[name], **case})
    for case in found:
        if BASELINE in speeds:
            case["over_bf16_compiled"] = case["tokens_per_s"] / speeds[BASELINE]
    return found


def verdicts(turns: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """FP8 gathers against 16-bit ones (torchao casts other values where parameters are f32), and last losses against
    bf16's."""
    found = []
    for kind in kinds():
        ours, plain = turns.get(kind.name), turns.get(kind._replace(float8_gather=False).name)
        if ours and plain and kind.float8_gather and kind.package != "torchao":
            verdict, text = torch_ranks.same_losses(ours, plain)
            found.append({"verdict": verdict, "contender": kind.name, "text": f"as with the 16-bit gather: {text}"})
    bf16 = turns.get(BASELINE)
    for name, of in turns.items():
        if of and bf16:
            last, of_bf16 = of[0]["losses"][0][-1], bf16[0]["losses"][0][-1]
            known = 0.1 * bf16[0]["losses"][0][0]  # below that the few batches are known by heart
            if not abs(last - of_bf16) <= NEAR * max(of_bf16, known):  # NaN too
                found.append(
                    {
                        "verdict": "FAILS",
                        "contender": name,
                        "text": f"its last loss is {last:.4f}, and bf16's {of_bf16:.4f}",
                    }
                )
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['model']['text']}; {found['gpus']} x {found['device']}, PyTorch {found['torch']}, Ingot {found['ingot']} ({found['commit']}), "
        f"{found['date']}",
        f"{'contender':<56}{'tokens/s a GPU':>15}{'x bf16':>8}{'host ms':>9}{'peak GB':>9}{'sent MB':>9}"
        f"{'first loss':>12}{'last loss':>11}",
    ]
    for case in found["cases"]:
        ratio, peak = torch_ranks.ratio_and_peak(case)
        sent = f"{case['wire']['sent_bytes'] / 1e6:.1f}"
        losses = case["losses"]
        lines.append(
            f"{case['contender']:<56}{case['tokens_per_s']:>15.0f}{ratio:>8}{case['host_ms']['median']:>9.1f}{peak:>9}{sent:>9}"
            f"{losses[0]:>12.5f}{losses[-1]:>11.5f}"
        )
    lines += torch_ranks.left_out_lines(found["left_out"])
    lines += [f"{each['verdict']:<7} {each['contender']}: {each['text']}" for each in found["verdicts"]]
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ranks.add_options(parser, SETS)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=4096, help="of a sequence (default: 4096)")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a GPU, or of those that --tensor joins (default: 1)")
    parser.add_argument("--tensor", type=int, default=1, metavar="N", help="GPUs that divide each layer (default: 1)")
    parser.add_argument(
        "--reduce-dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="of FSDP's gradients (default: float32)",
    )
    parser.add_argument("--try", action="store_true", help="a tiny model, few steps, nothing that only a GPU has")
    parser.add_argument("--profile", metavar="FOLDER", help="instead of times: traces and snapshots of memory")
    parser.add_argument("--self-check", action="store_true", help="check this program; needs no GPU")
    options = parser.parse_args()
    if getattr(options, "try"):
        options.layers, options.hidden, options.intermediate, options.vocabulary = 2, 512, 512, 512
        options.tokens, options.rounds, options.warm_up, options.steps = 64, min(options.rounds, 2), 1, 2
        options.compiler = "aot_eager"
    return options


def self_check() -> None:
    torch_ranks.self_check()
    torch_profile.self_check()
    names = [kind.name for kind in kinds()]
    assert len(set(names)) == len(names) and names[0] == BASELINE
    assert (
        "ingot rowwise, eager, FP8 gather" in names
        and "torchao tensorwise, compiled, FP8 gather, checkpointed" in names
    )
    of = {"s": 0.1, "host_s": 0.07, "ready_s": 3.0, "compilations": 0, "losses": [[7.0, 6.5]], "wire": {"sent_bytes": 5_000_000}}
    turns = {BASELINE: [of], "ingot rowwise, eager": [{**of, "s": 0.05}, {**of, "s": 0.07}, {**of, "s": 0.04}]}
    turns["ingot rowwise, eager, FP8 gather"] = [{**of, "losses": [[7.5, 6.5]]}]
    turns["ingot tensorwise, eager"] = [{**of, "losses": [[7.0, math.nan]], "memory": {"peak": 2_000_000_000}}]
    head = {
        "model": {"text": "a Llama"},
        "gpus": 2,
        "device": "GPU",
        "torch": "2",
        "ingot": "0",
        "commit": "abc",
        "date": "today",
    }
    found = {**head, "cases": cases(turns, 1000), "left_out": {"b": torch_ranks.NO_TIME}, "verdicts": verdicts(turns)}
    lines = table(found).splitlines()
    assert lines[2].split()[-7:] == ["10000", "1.000", "70.0", "-", "5.0", "7.00000", "6.50000"], lines
    assert lines[3].split()[-7:-3] == ["20000", "2.000", "70.0", "-"] and lines[5].split()[-4] == "2.00"
    assert lines[6] == "left out: b: no time was left"
    assert [line.split(": ")[0] for line in lines[7:]] == [
        "FAILS   ingot rowwise, eager, FP8 gather",
        "FAILS   ingot tensorwise, eager",
    ]
    print("the tables are right")


def main() -> int:
    options = parse_options()
    everything = kinds()
    if options.list:
        print(
            torch_ranks.listed(
                [Contender(kind.name, lambda: Running(lambda: None), of) for kind, of in everything.items()]
            )
        )
        return 0
    if options.self_check:
        self_check()
        return 0
    import torch

    with torch_ranks.started(torch, options) as ranks:
        every = [
            Contender(kind.name, lambda kind=kind: make(ranks, kind, options), of) for kind, of in everything.items()
        ]
        contenders = torch_ranks.chosen(every, options)
        if options.profile:
            return torch_profile.run(ranks, contenders, options, pathlib.Path(options.profile))
        if options.tensor < 1 or ranks.world % options.tensor:
            raise SystemExit(f"--tensor {options.tensor} does not divide the {ranks.world} ranks")
        sizes = ("layers", "hidden", "intermediate", "vocabulary", "tokens", "batch", "tensor", "reduce_dtype")
        model: dict[str, Any] = {name: getattr(options, name) for name in sizes}
        model["text"] = (
            f"Llama of {options.layers} layers of {options.hidden}, {options.batch} x {options.tokens} tokens "
            + (f"for each {options.tensor} GPUs that divide a layer" if options.tensor > 1 else "a GPU")
        )
        found = {**torch_ranks.head(ranks, "FSDP2 of a Llama" if ranks.world > 1 else "a Llama on one GPU", options), "model": model}
        tokens = options.batch * options.tokens / options.tensor

        def read(turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
            return {"cases": cases(turns, tokens), "verdicts": verdicts(turns)}

        return torch_ranks.compare(ranks, contenders, options, found, read, table)


if __name__ == "__main__":
    sys.exit(main())

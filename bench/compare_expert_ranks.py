#!/usr/bin/env python3
"""Experts on several GPUs, forward and backward, in bf16 by torch._grouped_mm and in FP8: by expert parallelism with a plain
all-to-all (examples/expert_parallel.py), and under FSDP2, which gathers them in 16 bits and in FP8. Contenders take turns in one job
(torch_ranks.py).

    torchrun --nproc_per_node 2 bench/compare_expert_ranks.py --json expert_ranks.json
    torchrun --nproc_per_node 2 bench/compare_expert_ranks.py --case Qwen3-30B-A3B --idle-rank
    python3 bench/compare_expert_ranks.py --list                                     # no GPU
    torchrun --nproc_per_node 2 bench/compare_expert_ranks.py --device cpu --try     # a tiny case over gloo, to try the program

Each rank has its own tokens. bf16 is compiled: under FSDP2 each layer, with expert parallelism what comes between the exchanges.
Outputs and gradients of tokens are compared with those of bf16 without ranks first (SQNR, in dB). Losses (norms of outputs) with an FP8
gather are to be those of the same contender without, bit for bit, of changed weights too: the first steps under FSDP2, which warm up,
change them by the signs of their gradients. Ends with 1 if they are not, if one is below 14 dB or a contender failed.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any, Callable, NamedTuple

import compare_experts
import torch_ranks
from torch_ranks import Contender, Ranks, Running

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))

EXPERT_PARALLEL, FSDP2 = "expert parallel", "FSDP2"
SETS = [EXPERT_PARALLEL, FSDP2]


class Kind(NamedTuple):
    recipe: str  # "": bf16
    fast: bool
    way: str
    float8_gather: bool = False

    @property
    def name(self) -> str:
        recipe = f"ingot {self.recipe}" + (", fast" if self.fast else "") + (", FP8 gather" if self.float8_gather else "")
        return f"{recipe if self.recipe else 'bf16'}, {self.way}"


RECIPES = [("rowwise", False), ("rowwise", True), ("tensorwise", False)]
KINDS = [Kind(recipe, fast, way) for way in SETS for recipe, fast in [("", False), *RECIPES]]
KINDS += [Kind(recipe, fast, FSDP2, True) for recipe, fast in RECIPES]
UPDATES, RATE = 2, 1e-3  # how many steps change the weights, and by how much each element


class Layer(NamedTuple):
    """This rank's tokens, and the weights of all experts, the same on every rank."""

    x: compare_experts.Inputs
    gate_up: Any
    down: Any


def make_layer(ranks: Ranks, case: compare_experts.Case, idle: bool) -> Layer:
    torch = ranks.torch
    torch.manual_seed(0)
    weights = compare_experts.make_weights(torch, case, ranks.device)
    torch.manual_seed(1 + ranks.rank)
    own = case._replace(tokens=0 if idle and ranks.rank == ranks.world - 1 else case.tokens)
    values = lambda *sizes: torch.randn(*sizes, device=ranks.device, dtype=torch.bfloat16)
    hidden, grad = values(own.tokens, case.hidden).requires_grad_(), values(own.tokens, case.hidden)
    index = compare_experts.expert_index(torch, own, ranks.device, ranks.rank)
    router = torch.rand(own.tokens, case.chosen, device=ranks.device, dtype=torch.bfloat16).requires_grad_()
    return Layer(compare_experts.Inputs(hidden, index, router, grad), *weights)


def grouped_product(torch: Any, on_gpu: bool) -> Callable:
    if on_gpu:
        return lambda rows, weights, ends: torch._grouped_mm(rows, weights, offs=ends)
    return compare_experts.grouped_mm_of_loops(torch)


def of_rank(ranks: Ranks, kind: Kind, layer: Layer, compiler: str) -> Callable:
    """expert_parallel() with copies of this rank's experts, whose gradients stay here."""
    from expert_parallel import expert_parallel, float8_experts
    from ingot.torch import LinearOptions

    torch = ranks.torch
    experts = layer.gate_up.shape[0]
    count = experts // ranks.world
    mine = slice(ranks.rank * count, (ranks.rank + 1) * count)
    gate_up, down = (each.detach()[mine].clone().requires_grad_() for each in (layer.gate_up, layer.down))
    if kind.recipe:
        own = float8_experts(gate_up, down, LinearOptions(kind.recipe, name="experts", fast_gradients=kind.fast), kind.fast)
    else:
        multiply = grouped_product(torch, ranks.on_gpu)

        def of_sorted(rows: Any, ends: Any) -> Any:
            gate, up = multiply(rows, gate_up.transpose(-2, -1), ends).chunk(2, -1)
            return multiply(torch.nn.functional.silu(gate) * up, down.transpose(-2, -1), ends)

        # With the sort within the graph, too, a step is longer (docs/distributed.md).
        compute = torch.compile(of_sorted, dynamic=True, backend=compiler) if ranks.on_gpu else of_sorted

        def own(rows: Any, expert: Any) -> Any:
            order = expert.argsort(stable=True)
            out = compute(rows[order], torch.bincount(expert, minlength=count).cumsum(0).to(torch.int32))
            return torch.empty_like(out).index_copy(0, order, out)

    x = layer.x
    return lambda: (expert_parallel(x.hidden, x.index, x.weights, experts, own), (gate_up, down))


def sharded(ranks: Ranks, kind: Kind, layer: Layer, compiler: str, layers: int) -> Any:
    """A model of `layers` layers of float32 parameters, each a unit of FSDP, which gathers bf16, or FP8, for forward and for backward,
    and reduces float32. Called by its root: a unit that is called by itself is a root, whose weights FSDP keeps after forward."""
    from ingot.nn import float8_all_gather
    from ingot.torch import LinearOptions, experts_mlp
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch = ranks.torch
    plain = compare_experts.bf16_experts(torch, grouped_product(torch, ranks.on_gpu))
    options = LinearOptions(kind.recipe or "rowwise", name="experts", fast_gradients=kind.fast)

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up, self.down = (torch.nn.Parameter(each.detach().float()) for each in (layer.gate_up, layer.down))

        def forward(self, x: compare_experts.Inputs) -> Any:
            if not kind.recipe:
                return plain(x, self.gate_up, self.down)
            return experts_mlp(x.hidden, x.index, x.weights, self.gate_up, self.down, options, fast_math=kind.fast)

    class Layers(torch.nn.Module):
        def __init__(self, units: Any) -> None:
            super().__init__()
            self.units = torch.nn.ModuleList(units)

        def forward(self, x: compare_experts.Inputs) -> Any:
            outputs = [unit(x) for unit in self.units]
            return outputs[0] if len(outputs) == 1 else sum(outputs[1:], outputs[0]) / len(outputs)

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    units = []
    for _ in range(layers):
        unit = Experts()
        if ranks.on_gpu and not kind.recipe:
            unit.compile(dynamic=False, backend=compiler)
        if kind.float8_gather:
            float8_all_gather(unit, experts=lambda name, weight: kind.recipe)
        units.append(fully_shard(unit, mp_policy=policy))
    return fully_shard(Layers(units), mp_policy=policy)


def change(torch: Any, parameters: Any) -> None:
    """By the signs of the gradients, which become them."""
    with torch.no_grad():
        for each in parameters:
            each.add_(each.grad.sign_(), alpha=-RATE)


class Expected(NamedTuple):
    """Of bf16 without ranks: this rank's output and the gradient of its tokens."""

    output: Any
    grad_input: Any


def expected_of(ranks: Ranks, layer: Layer) -> Expected:
    if not layer.x.hidden.numel():
        return Expected(layer.x.hidden.detach(), layer.x.hidden.detach())
    plain = compare_experts.bf16_experts(ranks.torch, grouped_product(ranks.torch, ranks.on_gpu))
    output = plain(layer.x, layer.gate_up, layer.down)
    (grad_input,) = ranks.torch.autograd.grad(output, (layer.x.hidden,), layer.x.grad)
    return Expected(output.detach(), grad_input)


def make(ranks: Ranks, kind: Kind, options: argparse.Namespace, layer: Layer, expected: Expected) -> Running:
    from ingot.nn import precompute_float8_all_gather

    torch, model = ranks.torch, None
    if kind.way == EXPERT_PARALLEL:
        call = of_rank(ranks, kind, layer, options.compiler)
    else:
        model = sharded(ranks, kind, layer, options.compiler, options.layers)
        parameters = tuple(model.parameters())  # while forward's weights are there, the model has those
        call = lambda: (model(layer.x), parameters)

    def step() -> Any:
        layer.x.hidden.grad = layer.x.weights.grad = None
        output, parameters = call()
        output.backward(layer.x.grad)
        if model is not None and step.count < UPDATES:
            change(torch, parameters)
        for each in parameters:
            each.grad = None
        if kind.float8_gather:
            precompute_float8_all_gather(model)
        step.output, step.count = output.detach(), step.count + 1
        return torch.linalg.vector_norm(step.output, dtype=torch.float32)

    step.count = 0
    step()
    pairs = [(expected.output, step.output), (expected.grad_input, layer.x.hidden.grad)]
    own = min((compare_experts.sqnr(*pair) for pair in pairs if pair[0].numel()), default=99.0)
    least = min(ranks.gathered(own))
    if not least >= compare_experts.LEAST_DB:
        raise ValueError(f"output or grad_input has {least:.1f} dB of bf16's, less than {compare_experts.LEAST_DB}")
    return Running(step, f"{least:.1f} dB")


# ---- what was found --------------------------------------------------------------------------------------------------


def cases(turns: dict[str, list[dict[str, Any]]], tokens: int) -> list[dict[str, Any]]:
    """tokens: of all ranks, over their number."""
    found = [torch_ranks.case_of(name, of) for name, of in turns.items() if of]
    bf16 = {case["contender"]: case["ms"]["median"] for case in found if case["contender"].startswith("bf16, ")}
    for case in found:
        case["tokens_per_s"] = tokens / case["ms"]["median"] * 1e3
        base = bf16.get("bf16, " + case["contender"].rpartition(", ")[2])
        if base:
            case["over_bf16_compiled"] = base / case["ms"]["median"]
    return found


def verdicts(turns: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """FP8 gathers against 16-bit ones."""
    found = []
    for kind in KINDS:
        ours, plain = turns.get(kind.name), turns.get(kind._replace(float8_gather=False).name)
        if ours and plain and kind.float8_gather:
            verdict, text = torch_ranks.same_losses(ours, plain)
            found.append({"verdict": verdict, "contender": kind.name, "text": f"as with the 16-bit gather: {text}"})
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['case']}: {found['experts']} experts of {found['hidden']} x {found['intermediate']}, {found['chosen']} a token, "
        f"{found['tokens']:.0f} tokens a GPU; {found['gpus']} x {found['device']}, PyTorch {found['torch']}, Ingot {found['ingot']} "
        f"({found['commit']}), {found['date']}",
        f"{'contender':<40}{'ms':>9}{'x bf16':>8}{'tokens/s':>10}{'peak GB':>9}{'sent MB':>9}  least",
    ]
    for case in found["cases"]:
        ratio, peak = torch_ranks.ratio_and_peak(case)
        row = f"{case['contender']:<40}{case['ms']['median']:>9.2f}{ratio:>8}{case['tokens_per_s']:>10.0f}{peak:>9}"
        lines.append(f"{row}{case['wire']['sent_bytes'] / 1e6:>9.1f}  {case.get('note', '')}")
    lines += torch_ranks.left_out_lines(found["left_out"])
    return "\n".join(lines + [f"{each['verdict']:<7} {each['contender']}: {each['text']}" for each in found["verdicts"]])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ranks.add_options(parser, SETS)
    parser.set_defaults(sets="all")
    names = [case.name for case in compare_experts.CASES]
    parser.add_argument("--case", default="DeepSeek-V3, 64 experts", choices=names)
    parser.add_argument("--layers", type=int, default=2, help="of FSDP2 (default: 2)")
    parser.add_argument("--idle-rank", action="store_true", help="the last rank has no tokens")
    parser.add_argument("--try", action="store_true", help="a tiny case, few steps, nothing that only a GPU has")
    options = parser.parse_args()
    options.of = next(case for case in compare_experts.CASES if case.name == options.case)
    if getattr(options, "try"):
        options.of = compare_experts.TINY
        options.rounds, options.warm_up, options.steps, options.compiler = min(options.rounds, 2), 1, 2, "aot_eager"
    return options


def main() -> int:
    options = parse_options()
    if options.list:
        print(torch_ranks.listed([Contender(kind.name, lambda: Running(lambda: None), (kind.way,)) for kind in KINDS]))
        return 0
    import torch

    with torch_ranks.started(torch, options) as ranks:
        case: compare_experts.Case = options.of
        if case.experts % ranks.world:
            raise SystemExit(f"{case.experts} experts are no equal parts of {ranks.world} ranks")
        layer = make_layer(ranks, case, options.idle_rank)
        expected = expected_of(ranks, layer)
        every = [Contender(kind.name, lambda kind=kind: make(ranks, kind, options, layer, expected), (kind.way,)) for kind in KINDS]
        contenders = torch_ranks.chosen(every, options)
        tokens = case.tokens * (ranks.world - options.idle_rank) / ranks.world
        head = torch_ranks.head(ranks, "experts on several GPUs", options)
        found = {**head, "case": case.name, **case._asdict(), "tokens": tokens, "layers": options.layers, "idle_rank": options.idle_rank}
        del found["name"]
        read = lambda turns: {"cases": cases(turns, tokens), "verdicts": verdicts(turns)}
        return torch_ranks.compare(ranks, contenders, options, found, read, table)


if __name__ == "__main__":
    sys.exit(main())

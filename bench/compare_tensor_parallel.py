#!/usr/bin/env python3
"""A gated MLP that all GPUs of a machine divide, tensor and sequence parallel: in bf16, with Ingot's layers and with
torchao's. They take turns in one job (torch_ranks.py).

    torchrun --nproc_per_node 4 bench/compare_tensor_parallel.py --json tensor_parallel.json
    torchrun --nproc_per_node 4 bench/compare_tensor_parallel.py --contender 'bf16, compiled' --contender 'ingot*'
    python3 bench/compare_tensor_parallel.py --list                                    # the contenders; no GPU
    torchrun --nproc_per_node 2 bench/compare_tensor_parallel.py --device cpu --try    # tiny sizes over gloo, to try the program

Each rank has its part of the tokens in front of the MLP and after it. Outputs and gradients are compared with bf16's
before anything is timed; a contender that is far from them fails. Reports milliseconds of forward and backward, the
ratio to bf16 compiled, the peak of PyTorch's memory and what a step sends.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from typing import Any, NamedTuple

import torch_ranks
from torch_ranks import Contender, Ranks, Running

BASELINE = "bf16, compiled"
FAR = 0.12  # relative error of outputs and gradients: two layers of FP8 have 0.04 to 0.07
SETS = ["main", "nn"]
CORE, FLOAT8 = "16-bit gathers", "FP8 gathers"  # PyTorch's own styles, and the package's


class Kind(NamedTuple):
    package: str  # "bf16", "ingot", "ingot.nn" or "torchao"
    recipe: str
    gathers: str
    compiled: bool
    sets: tuple[str, ...]

    @property
    def name(self) -> str:
        words = [f"{self.package} {self.recipe}".strip(), "compiled" if self.compiled else "eager"]
        return ", ".join(words + ([self.gathers] if self.recipe else []))


KINDS = (
    Kind("bf16", "", CORE, True, ("main", "nn")),
    Kind("bf16", "", CORE, False, ("main",)),
    *(
        Kind("ingot", recipe, gathers, compiled, ("main",))
        for recipe in ("tensorwise", "rowwise")
        for gathers in (FLOAT8, CORE)
        for compiled in (True, False)
    ),
    Kind("torchao", "tensorwise", FLOAT8, True, ("main",)),
    Kind("torchao", "rowwise", CORE, True, ("main",)),
    *(
        Kind("ingot.nn", recipe, FLOAT8, compiled, ("nn",))
        for recipe in ("tensorwise", "rowwise", "rowwise_folded", "blockwise", "delayed")
        for compiled in (True, False)
    ),
)


# ---- the model -------------------------------------------------------------------------------------------------------


def block(torch: Any, hidden: int, intermediate: int, device: Any) -> Any:
    """A model whose part `mlp` is to be divided, the same on every rank."""

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options = {"bias": False, "device": device, "dtype": torch.bfloat16}
            self.gate_proj = torch.nn.Linear(hidden, intermediate, **options)
            self.up_proj = torch.nn.Linear(hidden, intermediate, **options)
            self.down_proj = torch.nn.Linear(intermediate, hidden, **options)

        def forward(self, x: Any) -> Any:
            return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Block(torch.nn.Module):  # its graph takes in the hooks by which styles redistribute what the part gets
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp()

        def forward(self, x: Any) -> Any:
            return self.mlp(x)

    torch.manual_seed(0)
    return Block()


def convert(model: Any, kind: Kind) -> None:
    if kind.package == "ingot.nn":
        from ingot.nn import Float8Linear

        for name, layer in list(model.mlp.named_children()):
            setattr(model.mlp, name, Float8Linear.from_float(layer, kind.recipe, layer_name=name))
    elif kind.package != "bf16":
        package = importlib.import_module(f"{kind.package}.float8")
        config = package.Float8LinearConfig.from_recipe_name(kind.recipe)
        package.convert_to_float8_training(model, config=config)


def plan(kind: Kind) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

    column, row, prepare = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    if kind.recipe and kind.gathers == FLOAT8:
        package = "torchao" if kind.package == "torchao" else "ingot"
        styles = importlib.import_module(f"{package}.float8.float8_tensor_parallel")
        column, row, prepare = (
            styles.Float8ColwiseParallel,
            styles.Float8RowwiseParallel,
            styles.PrepareFloat8ModuleInput,
        )
    return {
        "mlp": prepare(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mlp.gate_proj": column(),
        "mlp.up_proj": column(),
        "mlp.down_proj": row(output_layouts=Shard(1)),
    }


def tensors(ranks: Ranks, options: argparse.Namespace) -> tuple[Any, Any]:
    """This rank's tokens and the gradient of its output; of all ranks they are one tensor's parts."""
    torch = ranks.torch
    generator = torch.Generator(ranks.device).manual_seed(1 + ranks.rank)
    shape = (2, 1, options.tokens // ranks.world, options.hidden)
    x, grad = torch.randn(shape, generator=generator, device=ranks.device).to(torch.bfloat16)
    return x.requires_grad_(), grad


def _waited(tensor: Any) -> Any:
    """A functional collective's result keeps its memory until something waits for it, as whatever comes next would."""
    if hasattr(tensor, "trigger_wait"):
        tensor.trigger_wait()
    return tensor


class Step:
    """Forward and backward of a contender's new model."""

    def __init__(self, ranks: Ranks, kind: Kind, options: argparse.Namespace) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        torch = ranks.torch
        self.model = block(torch, options.hidden, options.intermediate, ranks.device)
        convert(self.model, kind)
        parallelize_module(self.model, init_device_mesh(ranks.device.type, (ranks.world,)), plan(kind))
        compiled = {"dynamic": False, "fullgraph": True, "backend": options.compiler}
        self.forward = torch.compile(self.model, **compiled) if kind.compiled else self.model
        self.x, self.grad = tensors(ranks, options)
        self.sync = importlib.import_module("ingot.nn").sync_amax_history if kind.recipe == "delayed" else None

    def __call__(self) -> None:
        self.x.grad = None
        for parameter in self.model.parameters():
            parameter.grad = None
        self.output = self.forward(self.x)
        _waited(self.output).backward(self.grad)
        _waited(self.x.grad)
        if self.sync:
            self.sync(self.model)

    def results(self) -> dict[str, Any]:
        """Output, grad_input and the gradients of this rank's parts of the weights."""
        found = {"output": self.output.detach(), "grad_input": self.x.grad}
        for name, parameter in self.model.named_parameters():
            found[f"grad of {name}"] = parameter.grad.to_local()
        return found


def errors(torch: Any, found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Relative, of the sum of squares; NaN where there is one."""

    def error(value: Any, other: Any) -> float:
        other = other.to(value.device).float()
        return ((value.float() - other).norm() / other.norm()).item()

    return {name: error(value, expected[name]) for name, value in found.items()}


def make(ranks: Ranks, kind: Kind, options: argparse.Namespace, expected: dict[str, Any]) -> Running:
    """Raises ValueError where the results are far from bf16's, and NotImplementedError for what gloo cannot gather."""
    if kind.package == "torchao" and kind.gathers == FLOAT8 and not ranks.on_gpu:
        raise NotImplementedError("torchao gathers tensors of FP8, which gloo does not know")
    step = Step(ranks, kind, options)
    step()
    worst = max(ranks.gathered(errors(ranks.torch, step.results(), expected)), key=lambda of: _least(of)[1])
    name, error = _least(worst)
    if not error <= FAR:
        raise ValueError(f"{name} is {error:.3f} from bf16's, more than {FAR}")
    return Running(step, f"{name} is {error:.4f} from bf16's")


def _least(of: dict[str, float]) -> tuple[str, float]:
    """The name and the value that is worst: NaN before all."""
    return max(of.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])


# ---- what was found --------------------------------------------------------------------------------------------------


def cases(turns: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    found = [torch_ranks.case_of(name, of) for name, of in turns.items() if of]
    bf16 = next((case["ms"]["median"] for case in found if case["contender"] == BASELINE), None)
    return [{**case, **({"over_bf16_compiled": bf16 / case["ms"]["median"]} if bf16 else {})} for case in found]


def table(found: dict[str, Any]) -> str:
    lines = [
        f"gated MLP {found['hidden']} x {found['intermediate']}, {found['tokens']} tokens; {found['gpus']} x {found['device']}, "
        f"PyTorch {found['torch']}, Ingot {found['ingot']} ({found['commit']}), {found['date']}",
        f"{'contender':<46}{'ms':>9}{'x bf16':>8}{'peak GB':>9}{'sent MB':>9}  worst result",
    ]
    for case in found["cases"]:
        ratio, peak = torch_ranks.ratio_and_peak(case)
        row = f"{case['contender']:<46}{case['ms']['median']:>9.2f}{ratio:>8}{peak:>9}{case['wire']['sent_bytes'] / 1e6:>9.2f}"
        lines.append(f"{row}  {case.get('note', '')}")
    return "\n".join(lines + torch_ranks.left_out_lines(found["left_out"]))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ranks.add_options(parser, SETS)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--intermediate", type=int, default=28672)
    parser.add_argument("--tokens", type=int, default=16384, help="of all ranks (default: 16384)")
    parser.add_argument("--try", action="store_true", help="tiny sizes, few steps, nothing that only a GPU has")
    parser.add_argument("--self-check", action="store_true", help="check this program; needs no GPU")
    options = parser.parse_args()
    if getattr(options, "try"):
        options.hidden, options.intermediate, options.tokens = 256, 512, 128
        options.rounds, options.warm_up, options.steps, options.compiler = min(options.rounds, 2), 1, 2, "aot_eager"
    return options


def self_check() -> None:
    torch_ranks.self_check()
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) and names[0] == BASELINE
    assert _least({"a": 0.5, "b": math.nan, "c": 0.1})[0] == "b" and _least({"a": 0.5, "c": 0.1}) == ("a", 0.5)
    of = {"s": 0.02, "host_s": 0.01, "ready_s": 3.0, "compilations": 0, "losses": [[]], "wire": {"sent_bytes": 5_000_000}}
    turns = {
        BASELINE: [of],
        "ingot rowwise, eager, FP8 gathers": [{**of, "s": 0.01, "note": "output is 0.04 from bf16's"}],
        "c": [],
    }
    head = {
        "gpus": 2,
        "device": "GPU",
        "torch": "2",
        "ingot": "0",
        "commit": "abc",
        "date": "today",
        "hidden": 1,
        "intermediate": 2,
    }
    lines = table({**head, "tokens": 3, "cases": cases(turns), "left_out": {"c": "ValueError: far"}}).splitlines()
    assert lines[2].split()[-4:] == ["20.00", "1.000", "-", "5.00"] and lines[3].split()[5:9] == [
        "10.00",
        "2.000",
        "-",
        "5.00",
    ], lines
    assert lines[3].endswith("5.00  output is 0.04 from bf16's") and lines[4] == "left out: c: ValueError: far"
    print("the tables are right")


def main() -> int:
    options = parse_options()
    if options.list:
        print(torch_ranks.listed([Contender(kind.name, lambda: Running(lambda: None), kind.sets) for kind in KINDS]))
        return 0
    if options.self_check:
        self_check()
        return 0
    import torch

    with torch_ranks.started(torch, options) as ranks:
        if options.tokens % ranks.world or options.intermediate % ranks.world:
            raise SystemExit(f"--tokens and --intermediate have to be multiples of the {ranks.world} ranks")
        expected: dict[str, Any] = {}
        every = [
            Contender(kind.name, lambda kind=kind: make(ranks, kind, options, expected), kind.sets) for kind in KINDS
        ]
        contenders = torch_ranks.chosen(every, options)
        reference = Step(ranks, KINDS[1], options)
        reference()
        expected.update({name: value.cpu() for name, value in reference.results().items()})
        del reference
        sizes = {name: getattr(options, name) for name in ("hidden", "intermediate", "tokens")}
        found = {**torch_ranks.head(ranks, "tensor parallel gated MLP", options), **sizes}
        return torch_ranks.compare(ranks, contenders, options, found, lambda turns: {"cases": cases(turns)}, table)


if __name__ == "__main__":
    sys.exit(main())

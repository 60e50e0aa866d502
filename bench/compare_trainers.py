#!/usr/bin/env python3
"""Trainers that others wrote, each started by its own command and with its sources as they are: bf16, Ingot and torchao
in the same job, and Ingot's losses against those of a plain loop (trainers/direct.py).

    python3 bench/compare_trainers.py --json trainers.json               # all that are installed, on one GPU
    python3 bench/compare_trainers.py --trainers Trainer,Lightning --contenders 'bf16,ingot tensorwise'
    python3 bench/compare_trainers.py --deterministic --contenders 'ingot*'   # losses, which have to be equal; no times
    python3 bench/compare_trainers.py --list                             # the commands; no GPU
    python3 bench/compare_trainers.py --device cpu --try                 # a tiny model, to try the program

Trainer and accelerate need transformers 5, Lightning 2, torchtitan 0.2 and a GPU. torchao's contenders need torchao.

The contenders of a trainer start and compile together; then each has the GPU alone for a round of timed steps, in rotated
order, and the first step of a round is not timed. Reports tokens/s, its ratio to bf16 under the same trainer, the linear
layers in FP8, the peak of PyTorch's memory in the timed steps, and losses of the steps before. Ends with 1 if Ingot's
losses are not those of the direct way or could not be compared with them, if layers are missing, if a contender failed, or
if none had time. Without --deterministic bits differ from one process to the next, and losses need only be near.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Optional
from unittest import mock

import results_form
import trainer_processes
from trainer_processes import Started

USERS = pathlib.Path(__file__).parent / "trainers"  # the programs that users would write
NEAR_DIRECT = 1e-2  # where bits differ: backward passes on a GPU may add in any order. On an H200 they were within 8e-3
NEAR_BF16 = 0.05
OF_FIRST = 0.1  # of the first loss: losses below it, of batches that a model knows by heart, are near within a share of it
RECIPES = ("tensorwise", "rowwise")
NOTE = (
    "axolotl 0.19 is left out: it excludes the others' versions (transformers 5.16, torchao 0.17) and imports bitsandbytes; "
    "torchtitan 0.3 needs a PyTorch later than 2.11, so 0.2 is measured, by its own float8 converter under ingot.run"
)
NOT_HERE = "cannot run here"
HEAD_OF_TABLE = ("device", "torch", "torchao", "ingot", "commit", "date")
TRAINERS = {
    "accelerate": ("accelerate", "transformers"),
    "torchtitan": ("torchtitan", "transformers"),
    "Trainer": ("transformers", "accelerate"),
    "Lightning": ("lightning|pytorch_lightning", "transformers"),
}


class Kind(NamedTuple):
    trainer: str
    package: str  # "bf16", "ingot" or "torchao"
    recipe: str = ""
    direct: bool = False

    @property
    def contender(self) -> str:
        return f"{self.package} {self.recipe}".strip() + ", direct" * self.direct

    @property
    def name(self) -> str:
        return f"{self.trainer}, {self.contender}"


def kinds(trainer: str) -> list[Kind]:
    found = [Kind(trainer, "bf16")]
    found += [Kind(trainer, package, recipe) for recipe in RECIPES for package in ("ingot", "torchao")]
    return found + [Kind(trainer, "ingot", recipe, True) for recipe in RECIPES]


def chosen(options: argparse.Namespace) -> dict[str, list[Kind]]:
    """By trainer. A direct way comes along with its contender."""
    patterns = [each.strip() for each in options.contenders.split(",")]
    found = {}
    for trainer in options.trainers.split(","):
        if trainer not in TRAINERS:
            raise SystemExit(f"--trainers: there is no {trainer!r}, only {', '.join(TRAINERS)}")
        found[trainer] = [
            each
            for each in kinds(trainer)
            if any(fnmatch.fnmatchcase(each._replace(direct=False).contender, pattern) for pattern in patterns)
        ]
        if not found[trainer]:
            raise SystemExit(f"--contenders: none is called {options.contenders!r}: --list prints all")
    return found


def missing(kind: Kind, device: str) -> Optional[str]:
    """Why it cannot run here."""
    packages = [*TRAINERS[kind.trainer], *([] if kind.package == "bf16" else [kind.package])]
    for names in packages:
        if not any(importlib.util.find_spec(name) for name in names.split("|")):
            return f"{names.split('|')[0]} is not installed"
    if kind.trainer == "torchtitan":
        version = importlib.metadata.version("torchtitan")
        if not version.startswith("0.2."):
            return f"torchtitan is {version}, expected 0.2: later ones register models otherwise"
        if device == "cpu":
            return "torchtitan needs a GPU"
    return None


# ---- how each is started ---------------------------------------------------------------------------------------------


def accelerate_command(kind: Kind, options: argparse.Namespace) -> list[str]:
    precision = "bf16" if kind.package == "bf16" else "fp8"
    launch = ["-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", precision]
    launch += ["--dynamo_backend", options.compiler or "no"] + ["--dynamo_use_regional_compilation"] * bool(options.compiler)
    launch += ["--cpu"] * (options.device == "cpu")
    return [*launch, *ingot_run(kind), str(USERS / "accelerate_loop.py")]


def torchtitan_command(kind: Kind, options: argparse.Namespace, job: pathlib.Path) -> list[str]:
    switches = {
        "job.dump_folder": str(job / "output"),
        "experimental.custom_import": "torchtitan_job",
        "model.name": "job",
        "model.flavor": "job",
        "training.dtype": "bfloat16",
        "training.local_batch_size": options.batch,
        "training.seq_len": options.tokens,
        "training.steps": options.warm_up + options.rounds * (1 + options.steps),
        "training.max_norm": 1e9,  # no clipping
        "optimizer.lr": 3e-4,
        "optimizer.beta2": 0.999,
        "optimizer.weight_decay": 0,
        "lr_scheduler.warmup_steps": 0,
        "lr_scheduler.decay_ratio": 0,
        "activation_checkpoint.mode": "none",
        "debug.seed": 0,
    }
    if kind.package != "bf16":
        switches["model.converters"] = "quantize.linear.float8"
        switches["quantize.linear.float8.filter_fqns"] = "output"
        switches["quantize.linear.float8.recipe_name"] = kind.recipe
    if options.compiler:
        switches["compile.backend"] = options.compiler
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
    command = [*torchrun, *ingot_run(kind), "-m", "torchtitan.train"]
    for name, value in switches.items():
        command += [f"--{name}", str(value)]
    return command + ["--compile.enable"] * bool(options.compiler)


def ingot_run(kind: Kind) -> list[str]:
    return ["-m", "ingot.run"] if kind.package == "ingot" else []


def command_of(kind: Kind, options: argparse.Namespace, job: pathlib.Path) -> list[str]:
    if kind.direct:
        return [str(USERS / "direct.py")]
    if kind.trainer == "accelerate":
        return accelerate_command(kind, options)
    if kind.trainer == "torchtitan":
        return torchtitan_command(kind, options, job)
    return [str(USERS / ("transformers_trainer.py" if kind.trainer == "Trainer" else "lightning_fit.py"))]


def shown(command: list[str], job: pathlib.Path) -> str:
    """Without this machine's paths."""
    return " ".join(["python3", *command]).replace(f"{USERS}/", "").replace(str(job), "job")


def sizes_of(options: argparse.Namespace) -> dict[str, int]:
    names = ("layers", "hidden", "intermediate", "vocabulary", "tokens", "batch")
    heads = max(2, options.hidden // 128)
    return {**{name: getattr(options, name) for name in names}, "heads": heads, "kv_heads": max(1, heads // 4)}


def environment(folder: pathlib.Path) -> dict[str, str]:
    paths = [str(USERS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(each for each in paths if each),
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "True",  # Trainer has no switch for it
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # trainers compile the same layers
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],  # Trainer would divide batches
        "HF_HUB_OFFLINE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # PyTorch's deterministic algorithms need it
    }


def start(kind: Kind, options: argparse.Namespace, folder: pathlib.Path) -> Started:
    job = folder / "jobs" / kind.name.replace(", ", "-").replace(" ", "-")
    job.mkdir(parents=True)
    given = {
        **kind._asdict(),
        "model": str(folder / "model"),
        "sizes": sizes_of(options),
        **{name: getattr(options, name) for name in ("compiler", "warm_up", "rounds", "steps", "device", "deterministic")},
    }
    (job / "job.json").write_text(json.dumps(given), encoding="utf-8")
    return Started([sys.executable, *command_of(kind, options, job)], job, {**environment(folder), "TRAINER_JOB": str(job)})


def head(options: argparse.Namespace, machine: dict[str, Any]) -> dict[str, Any]:
    """Of the results: what ran where."""
    text = f"Llama of {options.layers} layers of {options.hidden}, {options.batch} x {options.tokens} tokens"
    named = ("rounds", "warm_up", "steps", "compiler", "deterministic")
    return {
        "benchmark": "trainers of other libraries on one GPU",
        **machine,
        "options": {name: getattr(options, name) for name in named},
        "model": {**sizes_of(options), "text": text},
        "note": NOTE,
    }


# ---- what was found --------------------------------------------------------------------------------------------------


def layers_expected(kind: Kind, layers: int) -> int:
    """Each has seven linear layers; accelerate leaves the model's first one and its head in high precision."""
    return 0 if kind.package == "bf16" else 7 * layers - (kind.trainer == "accelerate")


def case_of(kind: Kind, result: dict[str, Any], command: str, tokens: int) -> dict[str, Any]:
    case = {"trainer": kind.trainer, "contender": kind.contender, "command": command, "float8_layers": result["float8"]}
    seconds = result["seconds"]
    if seconds:
        case["ms"] = {name: of(seconds) * 1e3 for name, of in (("median", statistics.median), ("min", min), ("max", max))}
        case["tokens_per_s"] = tokens / statistics.median(seconds)
    return {**case, "ready_s": result["ready_s"], "peak": result.get("peak"), "losses": result["losses"]}


def with_ratios(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bf16 = {case["trainer"]: case.get("tokens_per_s") for case in cases if case["contender"] == "bf16"}
    for case in cases:
        if bf16.get(case["trainer"]) and "tokens_per_s" in case:
            case["over_bf16"] = case["tokens_per_s"] / bf16[case["trainer"]]
    return cases


def against_direct(ours: list[float], direct: list[float], near: float = NEAR_DIRECT) -> tuple[str, str]:
    equal = next((at for at, (a, b) in enumerate(zip(ours, direct)) if a != b), min(len(ours), len(direct)))
    if not ours or len(ours) != len(direct):
        return "FAILS", f"{len(ours)} losses, and {len(direct)} of the direct way"
    if equal == len(ours):
        return "holds", f"all {equal} losses are those of the direct way"
    scales = [max(abs(b), OF_FIRST * abs(direct[0])) for b in direct]
    apart = max(abs(a - b) / scale if scale else float("inf") for a, b, scale in zip(ours, direct, scales) if a != b)
    text = f"the first {equal} of {len(ours)} losses are those of the direct way, the others within {apart:.1e}"
    are_near = all(abs(a - b) <= near * scale for a, b, scale in zip(ours, direct, scales))  # not for a NaN
    return ("holds" if are_near else "FAILS"), text


def verdicts(
    cases: list[dict[str, Any]], layers: int, near: float = NEAR_DIRECT, left_out: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, str]]:
    """left_out: why there is no case, by the name of what was asked for."""
    found = []
    of = {(case["trainer"], case["contender"]): case for case in cases}

    def say(verdict: str, case: dict[str, Any], text: str) -> None:
        found.append({"verdict": verdict, "contender": f"{case['trainer']}, {case['contender']}", "text": text})

    for (trainer, contender), case in of.items():
        package, _, recipe = contender.removesuffix(", direct").partition(" ")
        expected = layers_expected(Kind(trainer, package, recipe), layers)
        if case["float8_layers"] != expected:
            say("FAILS", case, f"{case['float8_layers']} layers are in FP8, expected {expected}")
        direct, bf16 = of.get((trainer, f"{contender}, direct")), of.get((trainer, "bf16"))
        if direct:
            verdict, text = against_direct(case["losses"], direct["losses"], near)
            say(verdict, case, text)
        elif f"{trainer}, {contender}, direct" in left_out:
            why = left_out[f"{trainer}, {contender}, direct"]
            say("FAILS", case, f"its losses were not compared with the direct way's: {why}")
        if bf16 and case["losses"] and bf16["losses"]:
            last, expected_last = case["losses"][-1], bf16["losses"][-1]
            if not abs(last - expected_last) <= NEAR_BF16 * max(expected_last, OF_FIRST * bf16["losses"][0]):  # NaN too
                say("FAILS", case, f"its last loss is {last:.4f}, and bf16's {expected_last:.4f}")
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['model']['text']}; " + ", ".join(f"{name} {found.get(name, '?')}" for name in HEAD_OF_TABLE),
        f"{'trainer':<12}{'contender':<28}{'FP8 layers':>11}{'tokens/s':>10}{'x bf16':>8}{'peak GB':>9}"
        f"{'first loss':>12}{'last loss':>11}",
    ]
    for case in found["cases"]:
        speed = f"{case['tokens_per_s']:.0f}" if "tokens_per_s" in case else "-"
        ratio = f"{case['over_bf16']:.3f}" if "over_bf16" in case else "-"
        peak = f"{case['peak'] / 1e9:.2f}" if case.get("peak") else "-"
        first, last = (f"{case['losses'][at]:.5f}" if case["losses"] else "-" for at in (0, -1))
        lines.append(
            f"{case['trainer']:<12}{case['contender']:<28}{case['float8_layers']:>11}{speed:>10}{ratio:>8}{peak:>9}"
            f"{first:>12}{last:>11}"
        )
    lines += [f"left out: {name}: {why}" for name, why in found["left_out"].items()]
    lines += [f"{each['verdict']:<7} {each['contender']}: {each['text']}" for each in found["verdicts"]]
    return "\n".join(lines)


# ---- the program -----------------------------------------------------------------------------------------------------


def parse_options(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", default=",".join(TRAINERS), metavar="NAMES", help="with commas (default: all)")
    parser.add_argument("--contenders", default="*", metavar="PATTERNS", help="names or patterns, with commas (default: *)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each contender (default: 3)")
    parser.add_argument("--warm-up", type=int, default=10, metavar="N", help="steps whose losses are compared (default: 10)")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps of a round (default: 10)")
    parser.add_argument("--seconds-limit", type=float, default=225.0, metavar="N", help="end by then (default: 225)")
    parser.add_argument("--deterministic", action="store_true", help="equal losses are asked for, and nothing is timed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the program")
    parser.add_argument("--compiler", metavar="NAME", help='backend of torch.compile; "" for none (default: inductor)')
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=4096, help="of a sequence (default: 4096)")
    parser.add_argument("--batch", type=int, default=2, help="sequences of a step (default: 2)")
    parser.add_argument("--try", action="store_true", help="a tiny model, few steps, nothing compiled")
    parser.add_argument("--json", metavar="FILE", help="write all figures to this file, after each trainer")
    parser.add_argument("--logs", metavar="FOLDER", help="keep what the processes print")
    parser.add_argument("--commit", default="", help="of the code, where it is no git checkout")
    parser.add_argument("--list", action="store_true", help="print the commands; needs no GPU")
    parser.add_argument("--self-check", action="store_true", help="check this program; needs no GPU")
    options = parser.parse_args(arguments)
    if getattr(options, "try"):
        options.layers, options.hidden, options.intermediate, options.vocabulary = 2, 64, 192, 256
        options.tokens, options.rounds, options.warm_up, options.steps = 32, 1, 2, 1
    if options.deterministic:
        options.rounds, options.steps = 1, 1
    if options.compiler is None:
        options.compiler = "" if getattr(options, "try") else "inductor"
    return options


def self_check() -> None:
    trainer_processes.self_check()
    assert [each.contender for each in kinds("Trainer")][:3] == ["bf16", "ingot tensorwise", "torchao tensorwise"]
    assert against_direct([2.0, 1.0], [2.0, 1.0]) == ("holds", "all 2 losses are those of the direct way")
    assert against_direct([2.0, 1.0], [2.0, 1.002])[0] == "holds"
    assert against_direct([2.0, 1.0], [2.0, 1.002], 0.0)[0] == "FAILS"
    assert against_direct([11.2, 0.0226], [11.2, 0.0236])[0] == "holds"  # of batches that it knows by heart
    wrong = [([2.0, 1.0], [2.0, 1.1]), ([2.0], [2.0, 1.0]), ([], []), ([float("nan")], [1.0]), ([9.0, 0.05], [9.0, 0.0])]
    assert all(against_direct(ours, direct)[0] == "FAILS" for ours, direct in wrong)

    def case(kind: Kind, seconds: list[float], losses: list[float], float8: int) -> dict[str, Any]:
        return case_of(kind, {"seconds": seconds, "losses": losses, "float8": float8, "ready_s": 9.0, "peak": 2e9}, "", 100)

    bf16, rowwise = Kind("accelerate", "bf16"), Kind("accelerate", "ingot", "rowwise")
    cases = [case(bf16, [0.1], [7.0, 5.0], 0), case(rowwise, [0.05], [7.0, 5.1], 13)]
    cases.append(case(rowwise._replace(direct=True), [], [7.0, 5.1], 13))
    assert with_ratios(cases)[1]["over_bf16"] == 2.0 and "over_bf16" not in cases[2]
    assert [each["verdict"] for each in verdicts(cases, 2)] == ["holds"]
    cases[1]["float8_layers"], cases[1]["losses"] = 14, [7.0, float("nan")]
    assert [each["verdict"] for each in verdicts(cases, 2)] == ["FAILS"] * 3
    check_what_is_missing(cases[:2], rowwise)
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "3,1"}):
        assert environment(pathlib.Path())["CUDA_VISIBLE_DEVICES"] == "3"
    print("the tables are right")


def check_what_is_missing(cases: list[dict[str, Any]], ours: Kind) -> None:
    """An Ingot contender without its direct way fails; machines without trainers print why."""
    cases = [cases[0], {**cases[1], "float8_layers": 13, "losses": [7.0, 5.1]}]
    left_out = {ours._replace(direct=True).name: trainer_processes.NO_TIME}
    assert verdicts(cases, 2) == []
    assert [each["verdict"] for each in verdicts(cases, 2, left_out=left_out)] == ["FAILS"]
    assert exit_code({"cases": cases, "left_out": left_out, "verdicts": verdicts(cases, 2, left_out=left_out)}) == 1
    for some, why, code in (
        (cases, trainer_processes.NO_TIME, 0),
        ([], trainer_processes.NO_TIME, 1),
        ([{"contender": "ingot rowwise, direct"}], trainer_processes.NO_TIME, 1),
        (cases, "ValueError", 1),
        ([], NOT_HERE, 0),
    ):
        assert exit_code({"cases": some, "left_out": {ours.name: why}, "verdicts": []}) == code
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(globals(), missing=lambda *_: "is not installed"):
        folder = pathlib.Path(name)
        found = measure(parse_options(["--json", f"{name}/found.json"]), folder)
        assert len(table(found).splitlines()) == 2 + len(found["left_out"]) and (folder / "jobs").is_dir()
        assert json.loads((folder / "found.json").read_text(encoding="utf-8"))["left_out"] == found["left_out"]


def listed(options: argparse.Namespace) -> str:
    lines, job = [], pathlib.Path("job")
    for each in [kind for of in chosen(options).values() for kind in of]:
        why = missing(each, options.device)
        lines += [f"{each.name}{f' ({why})' if why else ''}", f"    {shown(command_of(each, options, job), job)}"]
    return "\n".join(lines)


def measure(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    trainers, left_out = chosen(options), {}
    for trainer, of in trainers.items():
        for kind in of:
            why = missing(kind, options.device)
            if why:
                left_out[kind.name] = f"{NOT_HERE}: {why}"
    waves = [[kind for kind in of if kind.name not in left_out] for of in trainers.values()]
    given = {"sizes": sizes_of(options), "device": options.device, "commit": options.commit}
    (folder / "prepare.json").write_text(json.dumps(given), encoding="utf-8")
    (folder / "jobs" / "prepare").mkdir(parents=True)
    cases: list[dict[str, Any]] = []
    found: dict[str, Any] = {}

    def report(kind: Kind, started: Optional[Started]) -> None:
        result = started.result() if started else trainer_processes.NO_TIME
        if not started or isinstance(result, str):
            left_out[kind.name] = result
        else:
            command = shown(started.command[1:], started.folder)
            if options.deterministic:
                result["seconds"] = []
            cases.append(case_of(kind, result, command, options.batch * options.tokens))

    def write() -> None:
        machine = folder / "machine.json"
        found.update(head(options, json.loads(machine.read_text(encoding="utf-8")) if machine.exists() else {}))
        near = 0.0 if options.deterministic else NEAR_DIRECT
        found.update(cases=with_ratios(cases), left_out=left_out, verdicts=verdicts(cases, options.layers, near, left_out))
        if options.json:
            results_form.write(options.json, found)

    write()
    groups = [[(kind, lambda kind=kind: start(kind, options, folder)) for kind in wave] for wave in waves if wave]
    if not groups:
        return found
    command = [sys.executable, str(USERS / "prepare.py"), str(folder)]
    prepared = Started(command, folder / "jobs" / "prepare", environment(folder))
    trainer_processes.take_turns(groups, prepared, options.rounds, options.seconds_limit, report, write)
    return found


def exit_code(found: dict[str, Any]) -> int:
    reasons = [why for why in found["left_out"].values() if not why.startswith(NOT_HERE)]
    some = any(not case["contender"].endswith(", direct") for case in found["cases"])
    failed = [why for why in reasons if why != trainer_processes.NO_TIME or not some]
    return 1 if failed or any(each["verdict"] == "FAILS" for each in found["verdicts"]) else 0


def main() -> int:
    options = parse_options()
    if options.list:
        print(listed(options))
        return 0
    if options.self_check:
        self_check()
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            found = measure(options, folder)
        except trainer_processes.NotPrepared as error:
            print(f"compare_trainers: the model could not be prepared: {error}", file=sys.stderr)
            return 1
        finally:
            if options.logs:
                shutil.copytree(folder / "jobs", options.logs, ignore=shutil.ignore_patterns("output"), dirs_exist_ok=True)
    print(table(found), flush=True)
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())

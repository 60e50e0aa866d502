"""examples/train_gpt.py on the CPU at a tiny size: both comparisons, one as a program, and what they are made of."""

import csv
import json
import math
import pathlib
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "train_gpt.py"
sys.path.insert(0, str(PROGRAM.parent))

from train_gpt import losses, speeds
from train_gpt.errors import TrainGptError
from train_gpt.main import main
from train_gpt.model import Shape, make_model, twin
from train_gpt.text import Text
from train_gpt.training import MasterAdamW, Schedule
from train_gpt.variants import Variant, loss_variants, prepare, speed_variants

CPU = torch.device("cpu")
SHAPE = Shape(width=32, blocks=2, heads=2, window=16)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    """Words in random order, so that there is something to learn in a few steps."""
    words = ("in the beginning was a word and then there were many of them for all to read".split()) * 700
    random.Random(0).shuffle(words)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(words), encoding="utf-8")
    return path


def run(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def test_losses(text_file, tmp_path):
    out = tmp_path / "tiny"
    options = ("--size", "tiny", "--device", "cpu", "--text", text_file, "--steps", 20, "--seeds", 2)
    variants = ("torch:bf16", "ingot:tensorwise", "ingot:rowwise", "float8:delayed")
    done = run(*options, "--out", out, "--commit", "abc", "--variants", *variants)
    found = json.loads(out.with_suffix(".json").read_text())
    assert found["machine"]["commit"] == "abc" and found["machine"]["torch"] == torch.__version__
    assert [(run["variant"], run["seed"]) for run in found["runs"]] == [("torch:bf16", 1), ("torch:bf16", 2)] + [
        (variant, 1) for variant in variants[1:]
    ]
    first = {run["variant"]: run for run in reversed(found["runs"])}
    bf16 = first["torch:bf16"]
    for name, one in first.items():
        assert one["losses"][0] == pytest.approx(math.log(256), rel=0.05), name  # knows nothing yet
        assert one["losses"][-1] < 0.75 * one["losses"][0], name  # has learnt
        assert one["validation_loss"] == pytest.approx(bf16["validation_loss"], rel=0.03), name
        assert one["tokens_per_second"] > 0 and one["peak_bytes"] is None, name
    # FP8 was computed: the same seed gives another loss.
    assert len({tuple(one["losses"]) for one in found["runs"]}) == len(found["runs"])
    assert done.stdout.count("holds") + done.stdout.count("FAILS") == 4 and " of 4 hold" in done.stdout
    rows = list(csv.reader(out.with_suffix(".csv").open()))
    assert rows[0] == ["variant", "seed", "step", "loss"] and len(rows) == 1 + 5 * 20
    assert float(rows[1][3]) == pytest.approx(bf16["losses"][0])


def test_speeds(text_file, tmp_path, capsys):
    out = tmp_path / "speed"
    variants = ["torch:bf16+compile", "ingot:rowwise", "ingot:rowwise+compile", "torchao:nonsense"]
    options = ("--device", "cpu", "--text", text_file, "--compile-backend", "aot_eager", "--tokens", 64)
    options += ("--widths", 32, "--quick", "--out", out, "--variants", *variants)
    assert main(["--compare", *map(str, options)]) == 0
    printed = capsys.readouterr().out
    cases = json.loads(out.with_suffix(".json").read_text())["cases"]
    timed = {case["variant"]: case for case in cases if "tokens_per_second" in case}
    assert list(timed) == ["torch:bf16", *variants[:3]], cases
    assert all(case["tokens_per_second"]["min"] > 0 for case in timed.values())
    assert timed["torch:bf16+compile"]["loss"] == pytest.approx(timed["torch:bf16"]["loss"], rel=1e-3)
    assert [case["variant"] for case in cases if "left_out" in case] == ["torchao:nonsense"]
    assert "torchao:nonsense is left out: " in printed and "tokens/s x " in printed
    assert len(list(csv.reader(out.with_suffix(".csv").open()))) == 1 + len(cases)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu(text_file, tmp_path):
    """Both comparisons, with inductor, and the memory that a CPU does not count."""
    options = ("--device", "cuda", "--text", text_file)
    variants = ("torch:bf16", "ingot:tensorwise", "ingot:rowwise+compile")
    run("--size", "tiny", "--steps", 20, "--seeds", 1, *options, "--out", tmp_path / "a", "--variants", *variants)
    runs = json.loads((tmp_path / "a.json").read_text())["runs"]
    assert [run["variant"] for run in runs] == list(variants)
    for one in runs:
        assert one["peak_bytes"] > 0 and one["losses"][-1] < 0.75 * one["losses"][0]
        assert one["validation_loss"] == pytest.approx(runs[0]["validation_loss"], rel=0.03)
    sizes = ("--widths", 256, "--tokens", 1024, "--quick")
    run("--compare", *options, *sizes, "--out", tmp_path / "b", "--variants", *variants)
    cases = json.loads((tmp_path / "b.json").read_text())["cases"]
    assert [case["variant"] for case in cases if case.get("peak_bytes", 0) > 0] == list(variants), cases


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    machine = {"device": "a GPU", "torch": "2", "ingot": "0", "commit": "c", "date": "d"}
    runs = [{"variant": name, "seed": 1, "losses": [5.0, 4.0]} for name in ("torch:bf16", "ingot:rowwise")]
    cases = [{"width": 64, "variant": "torch:bf16", "tokens_per_second": {"median": 5.0}}]
    for name, found in (("losses", {"runs": runs}), ("speeds", {"cases": cases})):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"machine": machine, **found}))
        assert main(["--replot", str(file)]) == 0
        assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "ingot:rowwise" in file.with_suffix(".svg").read_text() or name == "speeds"


@pytest.mark.parametrize(
    "options, message",
    [
        (("--out", "x", "--text", "nowhere.txt"), "train_gpt: --text nowhere.txt: No such file or directory"),
        (("--out", "x", "--variants", "ingot"), "train_gpt: variant 'ingot': write package:recipe"),
        (("--out", "x", "--device", "tpu"), "train_gpt: --device tpu: write cpu, cuda or cuda:N"),
        (("--replot", "nowhere.json"), "train_gpt: --replot nowhere.json: "),
    ],
)
def test_errors(options, message, text_file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--text" not in options and "--out" in options:
        options = (*options, "--text", str(text_file))
    assert main(list(options)) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        ((), "--out PREFIX is missing"),
        (("--out", "x", "--steps", "1"), "--steps at least 2"),
        (("--out", "x", "--seeds", "0"), "are at least 1"),
    ],
)
def test_wrong_options(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(list(options))
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_recipe_that_is_not_there():
    for name, message in (
        ("ingot:int3", "ingot:int3: ingot.nn has no such recipe, but high_precision, tensorwise"),
        ("float8:int3", "float8:int3: "),
    ):
        with pytest.raises(TrainGptError, match=message):
            prepare(Variant.read(name), make_model(SHAPE, 0, CPU), "eager")


def test_text_too_short():
    with pytest.raises(TrainGptError, match="the text has 9 bytes, and windows of 16 need 680: take a longer one"):
        Text.on(CPU, b"too short", 16)


def test_windows():
    text = Text.on(CPU, bytes(range(200)) * 10, 16)
    assert len(text.train) == 1900 and len(text.validation) == 100
    windows = text.windows(seed=3, steps=2, batch=5, window=16)
    inputs, targets = windows[1]
    assert inputs.shape == targets.shape == (5, 16) and inputs.dtype == torch.int64
    assert torch.equal(targets, (inputs + 1) % 200)
    assert torch.equal(windows.starts, text.windows(3, 2, 5, 16).starts)
    assert not torch.equal(windows.starts, text.windows(4, 2, 5, 16).starts)


def test_variants():
    assert str(Variant.read("float8:delayed+compile")) == "float8:delayed+compile"
    assert [str(variant) for variant in loss_variants()][:3] == ["torch:bf16", "ingot:tensorwise", "ingot:rowwise"]
    assert len(speed_variants()) == len(set(speed_variants())) == 8
    for wrong in ("torch:fp8", "nobody:rowwise", "ingot:", "ingot:rowwise+fast", ""):
        with pytest.raises(TrainGptError, match="write package:recipe"):
            Variant.read(wrong)


@pytest.mark.parametrize("name", ["ingot:rowwise", "float8:rowwise", "float8:delayed"])
def test_blocks_are_converted_and_compiled_once(name):
    """Embeddings and head stay; a twin's parameters are the model's; alike blocks share one compilation."""
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    model = make_model(SHAPE, 0, CPU)
    counter = CompileCounter()
    prepared = prepare(Variant.read(f"{name}+compile"), twin(model), counter)
    linear = [layer for layer in prepared.model.modules() if isinstance(layer, torch.nn.Linear)]
    assert [type(layer).__name__.endswith("Float8Linear") for layer in linear] == [True] * 8 + [False]
    assert all(a is b for a, b in zip(prepared.model.parameters(), model.parameters(), strict=True))
    batch = torch.randint(256, (2, 16))
    for _ in range(3):
        prepared.model(batch, batch).backward()
        if prepared.before_update is not None:
            prepared.before_update()
    assert counter.frame_count == 2


def test_optimizer_is_adamw_on_f32_values():
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(6, 5).bfloat16())
    ours = MasterAdamW([parameter], weight_decay=0.1, clip=0.5)
    theirs = torch.nn.Parameter(parameter.detach().double())
    reference = torch.optim.AdamW([theirs], lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(5):
        gradient = torch.randn(6, 5).bfloat16()
        parameter.grad = gradient.clone()
        norm = ours.step(lr=0.01 * (step + 1))
        assert float(norm) == pytest.approx(float(gradient.double().norm()), rel=1e-5)
        theirs.grad = gradient.double() * min(1.0, 0.5 / float(gradient.double().norm()))
        reference.param_groups[0]["lr"] = 0.01 * (step + 1)
        reference.step()
    assert torch.allclose(ours.masters[0].double(), theirs.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(parameter.detach(), ours.masters[0].bfloat16())


def test_schedule():
    schedule = Schedule(steps=110, warmup=10, lr=2.0)
    assert [schedule.at(0), schedule.at(9), schedule.at(10)] == pytest.approx([0.2, 2.0, 2.0])
    assert schedule.at(60) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5)) and schedule.at(110) == pytest.approx(0.2)


def one_run(variant, seed, loss, speed=100.0, peak=1000):
    return {
        "variant": variant, "seed": seed, "validation_loss": loss, "tokens_per_second": speed, "peak_bytes": peak,
    }  # fmt: skip


def test_verdicts_of_losses():
    bf16 = [one_run("torch:bf16", 1, 2.0), one_run("torch:bf16", 2, 2.008)]  # 0.4 % apart: 0.8 % is allowed
    others = [
        one_run("ingot:rowwise", 1, 2.014, 150.0, 900),
        one_run("ingot:blockwise", 1, 2.018, 120.0, 1001),
        one_run("ingot:tensorwise", 1, math.nan),
    ]
    found = losses.compare(bf16 + others)
    assert [one["holds"] for one in found] == [True, True, True, False, False, False, True]
    assert found[1]["line"] == "ingot:rowwise: loss +0.70 % against bf16, at most 0.80 %; tokens/s x 1.50"
    assert found[4]["line"] == "ingot:blockwise: peak memory x 1.001 of bf16's, at most 1.000"
    assert not losses.compare(bf16[:1])[0]["holds"]  # one seed shows nothing
    assert not losses.compare(others)[0]["holds"]
    assert losses.smooth([3.0] * 5) == pytest.approx([3.0] * 5)


def test_verdicts_of_speeds():
    def case(width, variant, speed, peak=100, **more):
        timed = {} if speed is None else {"tokens_per_second": {"median": speed}, "peak_bytes": peak}
        return {"width": width, "blocks": 1, "variant": variant, **timed, **more}

    cases = [
        case(64, "torch:bf16+compile", 10.0),
        case(64, "ingot:rowwise", 1.0),  # small widths are no verdict
        case(128, "torch:bf16", 8.0),
        case(128, "torch:bf16+compile", 10.0),
        case(128, "ingot:rowwise", 10.5, 99),
        case(128, "ingot:rowwise+compile", 11.0, 101),
        case(128, "torchao:rowwise+compile", 9.0),
        case(128, "ingot:tensorwise", None, wrong="loss nan is far"),
        case(128, "torchao:tensorwise+compile", None, left_out="ImportError: torchao"),
    ]
    found = speeds.verdicts(cases)
    assert [one["holds"] for one in found] == [False, True, True, False, False]
    assert found[3]["line"] == (
        "width 128, ingot:rowwise+compile: tokens/s x 1.100 of torch:bf16+compile's, at least 1.15"
    )
    lines = speeds.table(cases).splitlines()
    assert lines[1].split() == ["variant", "64", "128"]
    assert lines[3].split() == ["ingot:rowwise", "1", "x0.10", "10", "x1.05"]
    assert "WRONG" in speeds.table(cases) and lines[-1].endswith("is left out: ImportError: torchao")
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert speeds.fault((math.nan, 1.0), (1.0, 1.0)).startswith("loss nan is not within 2 %")
    assert speeds.fault((1.01, 1.1), (1.0, 1.0)) == ""

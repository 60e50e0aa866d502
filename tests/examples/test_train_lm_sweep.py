"""test_train_lm_sweep.py <sweep.py> <train_lm>: the sweep on a program that stands in for train_lm, then on train_lm
itself at a size of nothing."""

import contextlib
import importlib.util
import io
import json
import math
import pathlib
import stat
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

SWEEP, TRAIN_LM = sys.argv[1:3]
sys.path.insert(0, str(pathlib.Path(SWEEP).parent))
spec = importlib.util.spec_from_file_location("sweep", SWEEP)
sweep = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sweep)

# Writes the loss that the options say, and notes each call.
FAKE = """#!/usr/bin/env python3
import json, os, pathlib, sys
a = sys.argv[1:]
get = lambda name: a[a.index(name) + 1]
out = pathlib.Path(get("--out"))
with open(os.environ["CALLS"], "a") as calls: calls.write(" ".join(a) + "\\n")
if "--fail" in a: sys.exit("no such luck")
model = get("--only")
loss = 2.0 + 0.01 * int(get("--seed")) + (0.002 if model == "fp8" else 0)
if "--recipe" in a and get("--recipe") == "blockwise": loss = loss * 1.2
if "--recipe" in a and get("--recipe") == "delayed": loss = None
run = {"final_loss": loss, "validation_loss": loss, "tokens_per_second": 150.0 if model == "fp8" else 100.0}
(out / "summary.json").write_text(json.dumps(
    {"device": "a GPU", "parameters": 5, "steps": 7, "settings": {"clip": 1.0}, "runs": {model: run}}))
"""


class Sweep(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.program = self.folder / "fake"
        self.program.write_text(FAKE)
        self.program.chmod(stat.S_IRWXU)
        self.text = self.folder / "text"
        self.text.write_text("abc " * 2000)
        sweep.os.environ["CALLS"] = str(self.folder / "calls")

    def run_sweep(self, *options, program=None):
        out, err = io.StringIO(), io.StringIO()
        common = ["--program", str(program or self.program), "--work", str(self.folder / "work")]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = sweep.main([*common, "--out", str(self.folder / "r" / "out.json"), *options])
        return code, out.getvalue(), err.getvalue()

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def result(self):
        return json.loads((self.folder / "r" / "out.json").read_text())

    def test_every_combination_once(self):
        texts = ["--text", "bible=", "--text", f"own={self.text}"]
        options = [*texts, "--seeds", "1", "2", "--train", "2,6:rowwise,blockwise"]
        options += ["--", "--steps", "7"]
        code, out, _ = self.run_sweep(*options)
        self.assertEqual(code, 0)
        self.assertEqual(len(self.calls()), 2 * 2 * 2 * 3)
        self.assertIn("--steps 7 --blocks 6 --seed 2 --only fp8 --recipe blockwise", "\n".join(self.calls()))
        found = self.result()
        self.assertEqual(found["device"], "a GPU")
        self.assertEqual(len(found["runs"]), 24)
        case = found["compared"][0]
        self.assertEqual((case["text"], case["blocks"]), ("bible", 2))
        self.assertAlmostEqual(case["bf16_spread"], 0.01 / 2.015)
        self.assertTrue(case["seeds_agree"])
        self.assertAlmostEqual(case["recipes"]["rowwise"]["gap"], (0.002 / 2.01 + 0.002 / 2.02) / 2)
        self.assertAlmostEqual(case["recipes"]["rowwise"]["speed"], 1.5)
        self.assertTrue(case["recipes"]["rowwise"]["within"])
        self.assertFalse(case["recipes"]["blockwise"]["within"])
        self.assertIn("FAILS  bible, 2 blocks: blockwise +20.", out)
        self.assertIn("8 of 12 hold", out)

        # What was trained is not trained again; another text of the same name is.
        self.assertEqual(self.run_sweep(*options)[0], 0)
        self.assertEqual(len(self.calls()), 24)
        self.text.write_text("abcd " * 2000)
        self.assertEqual(self.run_sweep(*options)[0], 0)
        self.assertEqual(len(self.calls()), 24 + 12)
        self.assertEqual(self.run_sweep(*options[:-1], "8")[0], 0)
        self.assertEqual(len(self.calls()), 36 + 24)

    def test_a_loss_that_is_not_a_number_is_outside_and_null(self):
        self.assertEqual(self.run_sweep("--seeds", "1", "2", "--train", "2:delayed")[0], 0)
        recipe = self.result()["compared"][0]["recipes"]["delayed"]
        self.assertIsNone(recipe["gap"])
        self.assertFalse(recipe["within"])

    def test_one_seed_shows_no_agreement(self):
        self.assertEqual(self.run_sweep("--seeds", "1")[0], 0)
        self.assertFalse(self.result()["compared"][0]["seeds_agree"])

    def test_a_run_that_fails_is_named(self):
        code, _, err = self.run_sweep("--", "--fail")
        self.assertEqual(code, 1)
        self.assertIn("sweep: error: ", err)
        self.assertIn("ended with 1: no such luck (its output is in ", err)
        self.assertFalse((self.folder / "r" / "out.json").exists())
        code, _, err = self.run_sweep(program=self.folder / "nothing")
        self.assertEqual(code, 1)
        self.assertIn("nothing", err)

    def test_wrong_options(self):
        for wrong, why in (
            (["--text", "bible"], "is not NAME=FILE"),
            (["--text", "a/b="], "is not NAME=FILE"),
            (["--text", "x=/nonexistent"], "is not a file"),
            (["--text", "x=", "--text", "x="], "two texts have one name"),
            (["--seeds", "nan"], "invalid int value"),
            (["--train", "2"], "is not BLOCKS:RECIPES"),
            (["--train", "2:magic"], "recipes: tensorwise, delayed, rowwise,"),
            (["--train", "two:rowwise"], "is not BLOCKS:RECIPES"),
            (["--stop-after", "soon"], "invalid float value"),
        ):
            err = io.StringIO()
            with self.subTest(wrong), contextlib.redirect_stderr(err), self.assertRaises(SystemExit):
                sweep.parse(["--program", "p", "--out", "o", *wrong])
            self.assertIn(why, err.getvalue())

    def test_each_number_of_blocks_has_its_own_recipes(self):
        options = ["--seeds", "1", "2", "3", "--train", "4:every", "--train", "2,6,8:tensorwise,blockwise"]
        parsed = sweep.parse(["--program", "p", "--out", "o", *options])
        runs = sweep.planned(parsed)
        self.assertEqual(len(runs), 3 * (1 + 6) + 3 * 3 * (1 + 2))
        self.assertEqual(len(set(runs)), len(runs))
        self.assertEqual([model for _, blocks, seed, model in runs if (blocks, seed) == (8, 2)],
                         ["bf16", "tensorwise", "blockwise"])
        self.assertEqual(sweep.RECIPES, tuple(dict.fromkeys(model for *_, model in runs if model != "bf16")))
        code, out, _ = self.run_sweep(*options, "--least-speed", "1.4")
        self.assertEqual(code, 0)
        self.assertEqual([sorted(case["recipes"]) for case in self.result()["compared"]],
                         [sorted(sweep.RECIPES)] + 3 * [["blockwise", "tensorwise"]])
        self.assertIn("bible, 8 blocks: the fastest is tensorwise, tokens/s x 1.50, at least 1.40", out)
        plot = xml.etree.ElementTree.parse(self.folder / "r" / "out.svg").getroot()
        self.assertEqual(len(plot.findall("{*}polyline")), len(sweep.RECIPES))
        self.assertEqual(self.run_sweep(*options, "--least-speed", "1.6", "--strict")[0], 1)
        self.assertEqual(self.run_sweep("--train", "2:tensorwise", "--strict")[0], 0)

    def test_a_sweep_that_stops_goes_on(self):
        code, _, err = self.run_sweep("--stop-after", "-1")
        self.assertEqual((code, self.calls()), (3, []))
        self.assertIn("sweep: stopped with 0 runs done; the same command goes on", err)
        self.assertFalse((self.folder / "r" / "out.json").exists())
        self.assertEqual(self.run_sweep("--stop-after", "100")[0], 0)
        self.assertEqual(len(self.calls()), 6)

    def test_a_sweep_that_stops_shows_what_it_has(self):
        times = iter([0.0, 1.0, 2.0, 3.0, 99.0])
        with unittest.mock.patch.object(sweep.time, "monotonic", lambda: next(times)):
            code, out, err = self.run_sweep("--stop-after", "10", "--train", "2:tensorwise", "--seeds", "1", "2")
        self.assertEqual((code, len(self.calls())), (3, 3))
        self.assertIn("sweep: stopped with 3 runs done", err)
        self.assertIn("tensorwise +0.10 % against bf16", out)
        self.assertEqual((self.result()["planned_runs"], len(self.result()["runs"])), (4, 3))
        self.assertEqual([run["model"] for run in self.result()["runs"]], ["bf16", "bf16", "tensorwise"])
        self.assertIn(", 3 of 4 runs", (self.folder / "r" / "out.svg").read_text())

    def test_runs_of_other_files_are_known(self):
        """Two sweeps, each with its own text, then both texts from their files: nothing is trained again."""
        seeds = ["--seeds", "1", "2"]
        files = []
        for name, options in (("bible", ["--text", "bible="]), ("own", ["--text", f"own={self.text}", "--shared-gpu"])):
            self.assertEqual(self.run_sweep(*options, *seeds)[0], 0)
            files.append(self.folder / f"{name}.json")
            (self.folder / "r" / "out.json").rename(files[-1])
        self.assertEqual(len(self.calls()), 8)
        moved = self.folder / "moved"
        self.text.rename(moved)
        both = ["--text", "bible=", "--text", f"own={moved}", *seeds, "--work", str(self.folder / "other")]
        both += [word for file in files for word in ("--known", str(file))]
        code, out, _ = self.run_sweep(*both)
        self.assertEqual((code, len(self.calls()), len(self.result()["runs"])), (0, 8, 8))
        self.assertIn("bible, 2 blocks: tensorwise +0.10 % against bf16, at most 0.99 %; tokens/s x 1.50\n", out)
        self.assertIn("own, 2 blocks: tensorwise +0.10 % against bf16, at most 0.99 %\n", out)  # a shared GPU: no speed
        self.assertEqual(self.run_sweep(*both, "--", "--steps", "8")[0], 0)  # other options are other runs
        self.assertEqual(len(self.calls()), 16)

    def test_a_file_that_is_no_sweeps(self):
        file = self.folder / "known.json"
        for content in ("", "[]", "{}", '{"runs": [{}]}', '{"runs": 1}'):
            file.write_text(content)
            code, _, err = self.run_sweep("--known", str(file))
            self.assertEqual((code, self.calls()), (1, []), content)
            self.assertIn(f"sweep: error: --known {file}: is not what a sweep wrote", err)
        code, _, err = self.run_sweep("--known", str(self.folder / "nothing"))
        self.assertEqual(code, 1)
        self.assertIn("No such file", err)

    def test_train_lm_itself(self):
        tiny = "--device cpu --context 8 --embedding 8 --hidden 32 --batch 16 --checkpoint-every 0 --steps 20".split()
        sweep.os.environ["INGOT_CACHE_DIR"] = str(self.folder / "store")
        sweep.os.environ["INGOT_CUDA_ROOT"] = "none"
        options = ["--text", f"own={self.text}", "--seeds", "1", "2", "--train", "1:tensorwise", "--", *tiny]
        self.assertEqual(self.run_sweep(*options, program=TRAIN_LM)[0], 0)
        case = self.result()["compared"][0]
        self.assertTrue(0 < case["bf16_validation_loss"] < 6)
        self.assertTrue(math.isfinite(case["recipes"]["tensorwise"]["gap"]))
        self.assertEqual(self.result()["runs"][0]["settings"]["hidden"], 32)


def run_of(blocks, seed, model, loss, speed):
    return {"text": "t", "blocks": blocks, "seed": seed, "model": model, "validation_loss": loss, "final_loss": loss,
            "tokens_per_second": speed}


class Arithmetic(unittest.TestCase):
    """The figures of a sweep by hand."""

    def compared(self, bf16, **recipes):
        runs = [run_of(4, seed, "bf16", loss, 100.0) for seed, loss in enumerate(bf16)]
        for name, (losses, speed) in recipes.items():
            runs += [run_of(4, seed, name, loss, speed) for seed, loss in enumerate(losses)]
        return sweep.sweep_report.compare(runs)

    def lines(self, compared, least_speed=None):
        return [(one["holds"], one["line"]) for one in sweep.sweep_report.verdicts(compared, least_speed)]

    def test_a_gap_within_twice_the_spread(self):
        # 1.99 .. 2.01 is 1 % of 2; gaps of 1.5 % and 2.5 % in each seed.
        bf16 = (1.99, 2.0, 2.01)
        compared = self.compared(bf16, rowwise=([1.015 * x for x in bf16], 143.0),
                                 delayed=([0.975 * x for x in bf16], 120.0))
        self.assertAlmostEqual(compared[0]["bf16_spread"], 0.01)
        self.assertEqual(self.lines(compared, 1.4), [
            (True, "t, 4 blocks: bf16's seeds are 1.00 % apart, at most 1.00 %"),
            (True, "t, 4 blocks: rowwise +1.50 % against bf16, at most 2.00 %; tokens/s x 1.43"),
            (False, "t, 4 blocks: delayed -2.50 % against bf16, at most 2.00 %; tokens/s x 1.20"),
            (True, "t, 4 blocks: the fastest is rowwise, tokens/s x 1.43, at least 1.40")])
        self.assertFalse(self.lines(compared, 1.44)[3][0])

    def test_half_a_percent_is_always_allowed(self):
        compared = self.compared((2.0, 2.0, 2.0), rowwise=([2.009, 2.009, 2.009], 100.0))
        self.assertEqual(self.lines(compared)[1],
                         (True, "t, 4 blocks: rowwise +0.45 % against bf16, at most 0.50 %; tokens/s x 1.00"))
        compared = self.compared((2.0, 2.0, 2.0), rowwise=([2.011, 2.011, 2.011], 100.0))
        self.assertFalse(self.lines(compared)[1][0])

    def test_opposite_gaps_of_seeds_cancel(self):
        compared = self.compared((2.0, 2.01), rowwise=([2.02, 1.99], 100.0))
        self.assertAlmostEqual(compared[0]["recipes"]["rowwise"]["gap"], (0.01 - 0.02 / 2.01) / 2)

    def test_seeds_that_do_not_agree(self):
        self.assertEqual(self.lines(self.compared((2.0, 2.03)))[0],
                         (False, "t, 4 blocks: bf16's seeds are 1.49 % apart, at most 1.00 %"))

    def test_what_is_not_a_number_holds_nothing(self):
        compared = self.compared((2.0, 2.0), rowwise=([2.0, None], 0.0))
        self.assertFalse(self.lines(compared)[1][0])
        self.assertEqual(self.lines(self.compared((2.0, 2.0), rowwise=([], 0.0)), 1.4)[0][0], True)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plot.svg"
            sweep.sweep_plot.plot(compared, "a < b", path)
            xml.etree.ElementTree.parse(path)

    def test_ticks(self):
        for span, step in ((1.15, 0.2), (2.3, 0.5), (11.5, 2), (46, 10)):
            self.assertAlmostEqual(sweep.sweep_plot.tick_step(span), step)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

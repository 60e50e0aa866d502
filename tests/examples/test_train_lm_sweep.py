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

SWEEP, TRAIN_LM = sys.argv[1:3]
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
if "--recipe" in a and get("--recipe") == "bad": loss = loss * 1.2
if "--recipe" in a and get("--recipe") == "nan": loss = None
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
            code = sweep.main([*common, "--out", str(self.folder / "r" / "out.json"), "--no-plot", *options])
        return code, out.getvalue(), err.getvalue()

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def result(self):
        return json.loads((self.folder / "r" / "out.json").read_text())

    def test_every_combination_once(self):
        texts = ["--text", "bible=", "--text", f"own={self.text}"]
        options = [*texts, "--seeds", "1", "2", "--blocks", "2", "6", "--recipes", "rowwise", "bad"]
        options += ["--", "--steps", "7"]
        code, out, _ = self.run_sweep(*options)
        self.assertEqual(code, 0)
        self.assertEqual(len(self.calls()), 2 * 2 * 2 * 3)
        self.assertIn("--steps 7 --blocks 6 --seed 2 --only fp8 --recipe bad", "\n".join(self.calls()))
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
        self.assertFalse(case["recipes"]["bad"]["within"])
        self.assertIn("OUTSIDE", out)

        # What was trained is not trained again; another text of the same name is.
        self.assertEqual(self.run_sweep(*options)[0], 0)
        self.assertEqual(len(self.calls()), 24)
        self.text.write_text("abcd " * 2000)
        self.assertEqual(self.run_sweep(*options)[0], 0)
        self.assertEqual(len(self.calls()), 24 + 12)
        self.assertEqual(self.run_sweep(*options[:-1], "8")[0], 0)
        self.assertEqual(len(self.calls()), 36 + 24)

    def test_a_loss_that_is_not_a_number_is_outside_and_null(self):
        self.assertEqual(self.run_sweep("--seeds", "1", "2", "--recipes", "nan")[0], 0)
        recipe = self.result()["compared"][0]["recipes"]["nan"]
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
        ):
            err = io.StringIO()
            with self.subTest(wrong), contextlib.redirect_stderr(err), self.assertRaises(SystemExit):
                sweep.parse(["--program", "p", "--out", "o", *wrong])
            self.assertIn(why, err.getvalue())

    def test_train_lm_itself(self):
        tiny = "--device cpu --context 8 --embedding 8 --hidden 32 --batch 16 --checkpoint-every 0 --steps 20".split()
        sweep.os.environ["INGOT_CACHE_DIR"] = str(self.folder / "store")
        sweep.os.environ["INGOT_CUDA_ROOT"] = "none"
        options = ["--text", f"own={self.text}", "--seeds", "1", "2", "--blocks", "1", "--", *tiny]
        self.assertEqual(self.run_sweep(*options, program=TRAIN_LM)[0], 0)
        case = self.result()["compared"][0]
        self.assertTrue(0 < case["bf16_validation_loss"] < 6)
        self.assertTrue(math.isfinite(case["recipes"]["tensorwise"]["gap"]))
        self.assertEqual(self.result()["runs"][0]["settings"]["hidden"], 32)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

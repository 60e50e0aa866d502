"""user_walk.py, on the CPU: all recipes, each from a checkpoint on disk to serving."""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.nightly
def test_a_new_users_walk():
    for package in ("transformers", "accelerate", "peft"):
        pytest.importorskip(package)
    program = pathlib.Path(__file__).with_name("user_walk.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=1200)
    print(done.stdout)
    assert done.returncode == 0 and done.stdout.count("merged 0.") == 6, done.stdout + done.stderr[-3000:]

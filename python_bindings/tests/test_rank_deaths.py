"""Twenty times one of three ranks is killed, is stopped or raises an error in a step: the others end with an error in time
(rank_deaths.py)."""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.nightly
def test_ranks_that_die():
    program = pathlib.Path(__file__).with_name("rank_deaths.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=900)
    print(done.stdout)
    assert done.returncode == 0 and "20 deaths, 0 faults" in done.stdout, done.stdout + done.stderr

"""One of three ranks is killed, is stopped or raises an error in a step, ten times each: the others end with an error in time
(rank_deaths.py)."""

import contextlib
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import rank_deaths
import two_processes


def _main(_, path, arguments):
    """In a process that has imported PyTorch, and no threads that its ranks would miss."""
    torch.set_num_threads(1)
    with open(path, "w") as file, contextlib.redirect_stdout(file):
        code = rank_deaths.main(arguments)
    assert code == 0, pathlib.Path(path).read_text()


@pytest.mark.nightly  # its time limits begin before what the ranks import
@pytest.mark.skipif(two_processes.DEVICE != "cpu", reason="many_gpus.sh runs rank_deaths.py over NCCL")
def test_a_rank_that_is_killed(tmp_path):
    path = tmp_path / "printed"
    two_processes.spawn(_main, (path, ["--kills", "1", "--latest", "2"]), 1)
    assert "1 deaths, 0 faults" in path.read_text() and " killed " in path.read_text()


@pytest.mark.nightly
def test_ranks_that_die():
    program = pathlib.Path(__file__).with_name("rank_deaths.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=900)
    print(done.stdout)
    assert done.returncode == 0 and "30 deaths, 0 faults" in done.stdout, done.stdout + done.stderr
    assert [done.stdout.count(f" {way} ") for way in rank_deaths.WAYS] == [10, 10, 10], done.stdout

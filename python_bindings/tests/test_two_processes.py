"""What two_processes.py reads of the environment, and how near ranks have to be to one process."""

import pytest

torch = pytest.importorskip("torch")
import torchao_tests_conftest
import two_processes


def test_settings():
    assert two_processes.settings({}) == ("cpu", 2)
    assert two_processes.settings({"INGOT_TEST_DEVICE": "cuda", "INGOT_TEST_RANKS": "8"}) == ("cuda", 8)
    with pytest.raises(ValueError, match="INGOT_TEST_DEVICE is 'gpu', expected cpu or cuda"):
        two_processes.settings({"INGOT_TEST_DEVICE": "gpu"})
    for ranks in ("1", "0", "-2", "two", ""):
        with pytest.raises(ValueError, match=f"INGOT_TEST_RANKS is '{ranks}', expected a number from 2 on"):
            two_processes.settings({"INGOT_TEST_RANKS": ranks})


def test_fewer_gpus_than_ranks():
    assert two_processes.lacks_gpus(4, 2) == "INGOT_TEST_DEVICE=cuda: 4 processes need a GPU each, and there are 2"
    assert two_processes.lacks_gpus(2, 2) == two_processes.lacks_gpus(2, 8) == ""


def test_near(monkeypatch):
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.01])
    monkeypatch.setattr(two_processes, "WORLD", 2)
    two_processes.near(one, one.clone())
    with pytest.raises(AssertionError):
        two_processes.near(one, other)
    monkeypatch.setattr(two_processes, "WORLD", 3)
    two_processes.all_near([1.0, 2.0], other)
    for wrong in ([1.0, 3.0], [1.0, float("nan")], [1.0]):
        with pytest.raises(AssertionError):
            two_processes.all_near([1.0, 2.0], wrong)


def test_checks_after_one_that_fails_run_in_new_processes(monkeypatch, tmp_path):
    rounds = []

    def made(name):
        def check(rank):
            pass

        check.__name__ = name
        return check

    passes, fails, killed, last, never, after = checks = [made(f"check_{at}") for at in range(6)]

    def spawn(function, arguments, world):
        folder, of_round, _ = arguments
        rounds.append(of_round)
        for check in of_round:
            wrote = lambda what: (tmp_path / f"{check.__name__}.{what}").write_text("wrong" if "." not in what else "")
            if check is never:
                raise RuntimeError("no port is free")
            wrote("1.begun")
            if check is killed:  # before rank 0 begins
                raise RuntimeError("process 1 ended")
            wrote("0.begun")
            wrote("0.done")
            if check is fails:
                wrote("1")
                raise RuntimeError("process 1 ended")
            wrote("1.done")

    monkeypatch.setattr(two_processes, "spawn", spawn)
    two_processes.run_all(checks, str(tmp_path), 2)
    assert rounds == [checks, [killed, last, never, after], [last, never, after]]
    for check, message in (
        (passes, None),
        (fails, "rank 1: wrong"),
        (killed, "it did not run to its end: process 1 ended"),
        (last, None),
        (never, "it did not run to its end: no port is free"),
        (after, "it did not run to its end: no port is free"),
    ):
        if message is None:
            two_processes.passed(check, str(tmp_path), 2)
            assert two_processes.problem_of(check, str(tmp_path), 2) == ""
        else:
            with pytest.raises(pytest.fail.Exception) as caught:
                two_processes.passed(check, str(tmp_path), 2)
            assert str(caught.value) == message == two_processes.problem_of(check, str(tmp_path), 2)


def test_a_program_in_a_process():
    """What it prints, how it ends, and its environment; it finds no call of another program in Ingot's recording."""
    code = "import os, ingot, numpy\nprint(os.environ['INGOT_A_TEST'], 'cast' in ingot.recording('cpu'))\n"
    code += "ingot.cast(numpy.ones((4, 32), numpy.float32), 'e4m3fn', scale='row')\nprint('cast' in ingot.recording('cpu'))\n"
    for value in ("one", "two"):
        done = two_processes.in_process(code, INGOT_A_TEST=value, INGOT_DEVICE="cpu")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{value} False\nTrue\n", "")
    done = two_processes.in_process("import sys\nassert sys.argv is None, 'what is wrong'")
    assert done.returncode == 1 and done.stdout == "" and "AssertionError: what is wrong" in done.stderr


def test_random_values_are_the_same_in_every_order():
    one = two_processes.normal(3, 4, seed=1)
    torch.manual_seed(5)
    assert torch.equal(two_processes.normal(3, 4, seed=1), one) and one.shape == (3, 4)
    assert not torch.equal(two_processes.normal(3, 4, seed=2), one)


def test_ranks_that_are_threads_wait_for_the_gpu(monkeypatch):
    """What scripts/torchao_tests.sh needs on a GPU, as far as a CPU can show it: the class of PyTorch's tests is there."""
    threads = pytest.importorskip("torch.testing._internal.distributed.multi_threaded_pg", reason="needs expecttest")
    seen = []
    monkeypatch.setattr(threads.Collective, "join", lambda self, rank, data: seen.append(data) or "result")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronize"))
    torchao_tests_conftest.synchronize_threads()
    assert threads.Collective.join(None, 0, "data") == "result" and seen == ["synchronize", "data", "synchronize"]

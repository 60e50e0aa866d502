"""Checks that run on two processes over gloo, or on another number, and their results as tests.

A test module lists its checks, each a function of the rank, and makes a fixture of them:

    CHECKS = [check_this, check_that]
    folder = two_processes.fixture(CHECKS)

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_two_processes(check, folder):
        two_processes.passed(check, folder)

All checks that pytest has selected run in the same processes, one after the other, because starting them takes seconds.
The first that fails ends them."""

import os
import tempfile
import traceback
import unittest.mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

WORLD = 2


def _run(rank, folder, checks, world):
    """What each process runs. A check that fails leaves its traceback in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for check in checks:
        try:
            check(rank)
        except Exception:
            with open(f"{folder}/{check.__name__}.{rank}", "w") as file:
                traceback.print_exc(file=file)
            os._exit(1)  # the other rank may wait for a collective
        with open(f"{folder}/{check.__name__}.{rank}.done", "w"):
            pass
    dist.destroy_process_group()


def spawn(function, arguments, world=WORLD):
    """Runs function(rank, *arguments) in processes that see no GPU, where FSDP would put their parameters: gloo's
    results are compared with those of one process on the CPU."""
    with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
        torch.multiprocessing.spawn(function, arguments, nprocs=world)


def _selected(checks, request):
    """The checks that are parameters of selected tests; all, of a fixture whose tests have no such parameter."""
    items = [item for item in request.session.items if item.module is request.module]
    items = [item for item in items if not any(mark.args[0] for mark in item.iter_markers("skipif"))]
    wanted = [item.callspec.params.get("check") for item in items if hasattr(item, "callspec")]
    return [check for check in checks if check in wanted] or checks


def fixture(checks, world=WORLD):
    """A fixture that runs the selected checks, and gives the folder of their results."""

    @pytest.fixture(scope="module")
    def folder(request):
        if not dist.is_available():
            pytest.skip("PyTorch was built without torch.distributed")
        with tempfile.TemporaryDirectory() as name:
            try:
                spawn(_run, (name, _selected(checks, request), world), world)
            except Exception as error:  # of a check, which says so itself, or of a process that was killed
                with open(f"{name}/end", "w") as file:
                    file.write(str(error))
            yield name

    return folder


def passed(check, folder, world=WORLD):
    """Fails, with the traceback, if the check did not pass on all processes."""
    for rank in range(world):
        problem = f"{folder}/{check.__name__}.{rank}"
        if os.path.exists(problem):
            with open(problem) as file:
                pytest.fail(f"rank {rank}: {file.read()}")
    if not all(os.path.exists(f"{folder}/{check.__name__}.{rank}.done") for rank in range(world)):
        failed = sorted(file for file in os.listdir(folder) if file.startswith("check_") and not file.endswith(".done"))
        with open(f"{folder}/end") as file:
            pytest.fail(f"it did not run to its end: {file.read()}, after the failure of {', '.join(failed) or 'none'}")

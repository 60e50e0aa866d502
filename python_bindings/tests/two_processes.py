"""Checks that run on two processes over gloo, or on another number, and their results as tests.

INGOT_TEST_DEVICE=cuda runs them over NCCL, with a GPU for each process, which is their default device (DEVICE): a check
names no other, and takes random values from normal(). INGOT_TEST_RANKS=n runs those of two on n. Where a check compares with
one process, the bits are equal on two, because a sum of two has one order, and near() on more.

A test module lists its checks, each a function of the rank, and makes a fixture of them:

    CHECKS = [check_this, check_that]
    folder = two_processes.fixture(CHECKS)

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_two_processes(check, folder):
        two_processes.passed(check, folder)

All checks that pytest has selected run in the same processes, one after the other, because starting them takes seconds.
One that fails ends them, and those after it run in new ones."""

import datetime
import multiprocessing
import os
import pathlib
import subprocess
import tempfile
import traceback
import unittest.mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from conftest import rare_collections


def settings(environment):
    """The device's type, and on how many processes checks of two run. Raises ValueError with a sentence."""
    device, ranks = environment.get("INGOT_TEST_DEVICE", "cpu"), environment.get("INGOT_TEST_RANKS", "2")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"INGOT_TEST_DEVICE is {device!r}, expected cpu or cuda")
    if not ranks.isdecimal() or int(ranks) < 2:
        raise ValueError(f"INGOT_TEST_RANKS is {ranks!r}, expected a number from 2 on")
    return device, int(ranks)


DEVICE, WORLD = settings(os.environ)

# What checks import, by the process that theirs are forked from. The first call of torch.compile() imports inductor, also for
# another backend: a second and a half in each process.
IMPORTED = [
    "pytest", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel", "ingot.float8", "ingot.nn", "ingot.torch",
]  # fmt: skip


def lacks_gpus(world, gpus):
    """Why that many processes cannot have a GPU each, or ""."""
    return f"INGOT_TEST_DEVICE=cuda: {world} processes need a GPU each, and there are {gpus}" if gpus < world else ""


def normal(*shape, seed):
    """The same random values on every device."""
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(DEVICE)


def near(ours, theirs, what=None, bound=0.06):
    """Asserts equality to one process's: of bits on two, and on more a relative difference (of the sum of squares) of at most
    `bound`, the error of FP8: sums in another order, and losses divided by 3, differ in their last bits, and what is cast of
    them by a step of FP8."""
    if WORLD == 2:
        assert torch.equal(ours, theirs), what
    else:
        difference = (ours.double() - theirs.double()).norm()
        assert difference <= bound * theirs.double().norm(), (what, float(difference), float(theirs.double().norm()))


def all_near(ours, theirs, what=None):
    """near() of losses or other lists of numbers or tensors of one element."""
    assert len(ours) == len(theirs), what
    near(*(torch.tensor([float(each) for each in of]) for of in (ours, theirs)), what)


def _start(rank, world, store):
    torch.set_num_threads(1)
    rare_collections()
    timeout = datetime.timedelta(seconds=300)
    options = {"init_method": f"file://{store}", "rank": rank, "world_size": world, "timeout": timeout}
    if DEVICE == "cpu":
        dist.init_process_group("gloo", **options)
        return
    torch.cuda.set_device(rank)
    torch.set_default_device("cuda")
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank), **options)


def _run(rank, folder, checks, world):
    """What each process runs. A check that fails leaves its traceback in a file."""
    _start(rank, world, f"{folder}/{checks[0].__name__}.store")
    for check in checks:
        open(f"{folder}/{check.__name__}.{rank}.begun", "w").close()
        try:
            check(rank)
        except BaseException:  # pytest.raises() that nothing raised in is no Exception
            with open(f"{folder}/{check.__name__}.{rank}", "w") as file:
                traceback.print_exc(file=file)
            os._exit(1)  # the other rank may wait for a collective
        open(f"{folder}/{check.__name__}.{rank}.done", "w").close()
    dist.destroy_process_group()


def spawn(function, arguments, world=WORLD):
    """Runs function(rank, *arguments) in processes. On the CPU they see no GPU, where FSDP would put their parameters:
    gloo's results are compared with those of one process on the CPU. There they are forked from a process that has only
    imported modules, once for all test modules: each import of PyTorch takes four seconds."""
    if DEVICE == "cuda":
        torch.multiprocessing.spawn(function, arguments, nprocs=world)
        return
    multiprocessing.set_forkserver_preload(IMPORTED)
    with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
        torch.multiprocessing.start_processes(function, arguments, nprocs=world, start_method="forkserver")


def _program(code, environment, output):
    os.environ.clear()
    os.environ.update(environment)
    for stream, name in enumerate(output, start=1):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), stream)
    exec(code, {"__name__": "__main__"})


def in_process(code, **environment):
    """Runs a program, with these variables added to the environment, in a process that has imported PyTorch and Ingot and made
    no context, as a new interpreter in which a test looks at first calls: without the seconds of its imports, and without its
    end, for Python's objects are not destroyed. Returns a subprocess.CompletedProcess with its texts."""
    multiprocessing.set_forkserver_preload(IMPORTED)
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
        output = [f"{folder}/{name}" for name in ("stdout", "stderr")]
        arguments = code, {**os.environ, **environment}, output
        process = multiprocessing.get_context("forkserver").Process(target=_program, args=arguments)
        process.start()
        process.join()
        return subprocess.CompletedProcess(code, process.exitcode, *(pathlib.Path(name).read_text() for name in output))


def _selected(checks, request):
    """The checks that are parameters of selected tests; all, of a fixture whose tests have no such parameter."""
    items = [item for item in request.session.items if item.module is request.module]
    items = [item for item in items if not any(mark.args[0] for mark in item.iter_markers("skipif"))]
    wanted = [item.callspec.params.get("check") for item in items if hasattr(item, "callspec")]
    return [check for check in checks if check in wanted] or checks


def _by_rank(check, folder, world, what):
    return [os.path.exists(f"{folder}/{check.__name__}.{rank}.{what}") for rank in range(world)]


def run_all(checks, folder, world):
    """Runs the checks. Those that follow one that fails run in new processes, unless no process could begin that one."""
    while checks:
        try:
            spawn(_run, (folder, checks, world), world)
            return
        except Exception as error:  # of a check, which says so itself, or of a process that was killed
            done = [all(_by_rank(check, folder, world, "done")) for check in checks]
            ended = done.index(False) if False in done else len(checks) - 1
            begun = any(_by_rank(checks[ended], folder, world, "begun"))  # one rank may fail before another begins
            for check in checks[ended : ended + 1] if begun else checks[ended:]:
                with open(f"{folder}/{check.__name__}.end", "w") as file:
                    file.write(str(error))
            checks = checks[ended + 1 :] if begun else []


def fixture(checks, world=WORLD):
    """A fixture that runs the selected checks, and gives the folder of their results."""

    @pytest.fixture(scope="module")
    def folder(request):
        if not dist.is_available():
            pytest.skip("PyTorch was built without torch.distributed")
        lacks = lacks_gpus(world, torch.cuda.device_count()) if DEVICE == "cuda" else ""
        if lacks:
            (pytest.fail if world == WORLD else pytest.skip)(lacks)
        with tempfile.TemporaryDirectory() as name:
            run_all(_selected(checks, request), name, world)
            yield name

    return folder


def passed(check, folder, world=WORLD):
    """Fails, with the traceback, if the check did not pass on all processes."""
    for rank in range(world):
        problem = f"{folder}/{check.__name__}.{rank}"
        if os.path.exists(problem):
            with open(problem) as file:
                pytest.fail(f"rank {rank}: {file.read()}")
    end = f"{folder}/{check.__name__}.end"
    if os.path.exists(end):
        with open(end) as file:
            pytest.fail(f"it did not run to its end: {file.read()}")
    assert all(_by_rank(check, folder, world, "done")), "it was not run"


def problem_of(check, folder, world):
    """What passed() fails with, or "", for a program that prints what it found of each check."""
    try:
        passed(check, folder, world)
    except BaseException as problem:  # pytest's failure is no Exception
        return str(problem)
    return ""

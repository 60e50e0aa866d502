"""Several copies of Ingot in one process: packages, reloaded modules, contexts, libingot.so next to the module."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import _core

LIBRARY = Path(_core.__file__).parents[2] / "shared" / "libingot.so"
PRELUDE = """
import gc, importlib, os, shutil, sys
import numpy as np
import ingot

x = np.linspace(-3, 5, 64 * 32, dtype=np.float32).reshape(64, 32)
codes = lambda: ingot.cast(x, "e4m3fn", scale="row").codes.tobytes()
before = codes()
def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "ingot"]:
        del sys.modules[name]
"""
TORCH = """
import torch, ingot.torch
t = torch.from_numpy(x)
multiply = lambda: ingot.torch.linear(t, t)
product = multiply()
"""


def in_process(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def message_of_a_second_import(code):
    text = in_process(code + "\ntry:\n    import ingot\nexcept ImportError as error:\n    print(error)\n")
    return text.strip()


def test_the_module_is_loaded_once():
    text = message_of_a_second_import("forget()")
    file = _core.__file__
    assert text == (
        f"ingot: is loaded in this process already, from {file}, and cannot be loaded again, from {file}: import one "
        "copy of the package, and neither reload ingot._core nor remove it from sys.modules"
    )


def test_two_copies_of_the_package(tmp_path):
    code = f"""
shutil.copytree(os.path.dirname(ingot.__file__), {str(tmp_path / "ingot")!r})
forget()
first, ingot = ingot, None
sys.path.insert(0, {str(tmp_path)!r})
"""
    text = message_of_a_second_import(code)
    assert f"already, from {_core.__file__}, and cannot be loaded again, from {tmp_path}" in text
    code = code.replace("shutil.copytree", "# ") + "ingot = first\nassert codes() == before\n"  # the first goes on
    assert message_of_a_second_import(code) == text


def test_reloaded_modules_go_on():
    pytest.importorskip("torch")
    code = """
used = ingot._context.context_for("cpu")
importlib.reload(ingot._context)
importlib.reload(ingot)
gc.collect()
assert ingot._context.context_for("cpu") is used and ingot._context.context_for("auto") is used
assert codes() == before
for _ in range(3):
    assert torch.equal(multiply(), product)
print(ingot.stats()["launched"])
"""
    assert in_process(TORCH + code, INGOT_DEVICE="cpu").strip() == "0"


def test_nothing_of_the_modules_library_is_visible():
    """So that neither this module nor a libingot.so next to it runs the other's functions."""
    module = ctypes.CDLL(_core.__file__)
    version = "_ZN5ingot7versionB5cxx11Ev"
    assert hasattr(module, "PyInit__core") and not hasattr(module, version)
    if LIBRARY.exists():
        assert hasattr(ctypes.CDLL(str(LIBRARY)), version)


@pytest.mark.skipif(not LIBRARY.exists(), reason="libingot.so is of the build tree's tests")
def test_beside_the_shared_library():
    """A C++ program that links the library, and embeds Python."""
    code = f"""
import ctypes
ctypes.CDLL({str(LIBRARY)!r}, mode=ctypes.RTLD_GLOBAL)
import numpy as np
import ingot
x = np.linspace(-3, 5, 2048, dtype=np.float32).reshape(64, 32)
print(ingot.cast(x, "e4m3fn", scale="row").codes.tobytes().hex())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    x = np.linspace(-3, 5, 2048, dtype=np.float32).reshape(64, 32)
    assert result.stdout.strip() == ingot.cast(x, "e4m3fn", scale="row").codes.tobytes().hex()


def test_contexts_are_their_own():
    """A context of one's own counts what it does itself, and goes while the others stay."""
    x = np.ones((4, 32), dtype=np.float32)
    ingot.cast(x, "e4m3fn", scale="row")
    mine = ingot.Context("cpu")
    assert mine.recording() != ingot.recording("cpu") and mine.device == "cpu"
    assert "cast" in ingot.recording("cpu") and "cast" not in mine.recording()
    del mine
    assert ingot.cast(x, "e4m3fn", scale="row").codes.shape == (4, 32)


# In children of a process that has imported everything and made no context: two threads call first at once, one with
# PyTorch's operators, which give Python's lock (the GIL) back, and one with it. Then threads compute for ever, each kind
# of call, and children that are forked meanwhile compute the same.
RACES = """
import itertools, random, signal, threading, time
from ingot.nn import Float8Linear

layer = Float8Linear(64, 64, dtype=torch.bfloat16, recipe="rowwise")
tokens = torch.ones(64, 64, dtype=torch.bfloat16)
def forward():
    with torch.no_grad():
        return layer(tokens)
kinds = {"cast": codes, "auto": lambda: ingot.stats("auto"), "layer": forward, "cpu": lambda: ingot.stats("cpu")}

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status

def first_calls(calls):
    gate = threading.Barrier(len(calls))
    failed = []
    def work(call):
        try:
            gate.wait()
            for _ in range(5):
                call()
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed
    assert ingot._context.context_for("auto") is ingot._context.context_for("cpu")

for at, pair in enumerate(itertools.islice(itertools.cycle(itertools.combinations_with_replacement(kinds, 2)), 10)):
    sys.setswitchinterval(random.choice([1e-6, 5e-3]))
    in_child(lambda: first_calls([kinds[name] for name in pair]))
sys.setswitchinterval(5e-3)

expected = forward()
assert codes() == before_fork()
def computes():
    assert codes() == before_fork() and torch.equal(forward(), expected)
    assert torch.equal(Float8Linear(64, 64, dtype=torch.bfloat16)(tokens[:0]), expected[:0])
over = False
def compute(call):
    while not over:
        call()
        ingot.recording("cpu")
threads = [threading.Thread(target=compute, args=(call,)) for call in (codes, forward, kinds["auto"])]
with ingot.torch.monitor(layer):  # of this process
    [thread.start() for thread in threads]
    for _ in range(8):
        in_child(computes)
    over = True
    [thread.join() for thread in threads]
print("fine")
"""


def test_first_calls_of_two_threads_and_children_forked_while_others_compute():
    pytest.importorskip("torch")
    code = PRELUDE.replace("before = codes()", "") + "import torch, ingot.torch, functools\n"
    code += "before_fork = functools.lru_cache(maxsize=None)(codes)\n" + RACES
    environment = {**os.environ, "INGOT_DEVICE": "cpu", "INGOT_CUDA_ROOT": "none"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120)
    assert result.returncode == 0 and result.stdout == "fine\n", result.stderr
    assert result.stderr == ""

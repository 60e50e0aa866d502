"""Several of Ingot in one process: copies of the package, reloaded modules, contexts, libingot.so beside the module."""

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
ingot._context.context_for.cache_clear()
importlib.reload(ingot._context)
importlib.reload(ingot)
gc.collect()
assert sys.getrefcount(used) == 3  # `used`, the argument, and what keeps it for PyTorch's operators
assert codes() == before
for _ in range(3):
    assert torch.equal(multiply(), product)
print(ingot.stats()["launched"])
"""
    assert in_process(TORCH + code, INGOT_DEVICE="cpu").strip() == "0"


def test_nothing_of_the_modules_library_is_visible():
    """So that neither this module nor a libingot.so beside it runs the other's functions."""
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

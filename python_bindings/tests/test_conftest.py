"""A test that torch.compile() cannot compile, for there is no compiler, is skipped and names what is missing; others fail, and a
log says why."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import without_compiler


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A PATH of which the test knows what it has: a function adds a program to it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)

    def add(name):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)

    return add


def test_inductor_without_a_compiler(programs):
    torch = pytest.importorskip("torch")
    import torch._inductor.config as config
    from torch._inductor.utils import fresh_inductor_cache

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x + 1).sin())
    with fresh_inductor_cache(), config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(Exception) as raised:
        compiled(torch.ones(8))
    assert without_compiler(raised.value) == "torch.compile's backend inductor finds no C++ compiler (CXX or g++)"
    programs("gcc")
    assert without_compiler(raised.value) is not None
    programs("g++")  # so that it should have been found
    assert without_compiler(raised.value) is None


@pytest.mark.parametrize("name", ["gcc", "clang", "mine"])
def test_triton_in_another_process(name, programs, monkeypatch):
    said = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."
    error = AssertionError("2 ranks failed")
    error.__cause__ = RuntimeError(f"rank 1:\n{said}")
    monkeypatch.setenv("CC", "mine -m64")
    assert without_compiler(error) == "Triton, which compiles graphs for torch.compile, finds no C compiler (CC, gcc or clang)"
    programs(name)
    assert without_compiler(error) is None


def test_other_errors():
    assert without_compiler(RuntimeError("input: is on cpu and the weight on cuda:0")) is None


def test_a_log_has_the_reason_of_a_failure(tmp_path):
    name = "test_with_a_name_that_takes_all_of_the_eighty_columns_that_a_log_would_have_without_a_width"
    (tmp_path / "test_it.py").write_text(f"def {name}():\n    raise RuntimeError('the reason')\n")
    (tmp_path / "conftest.py").write_text("from conftest_of_ingot import pytest_terminal_summary\n")
    (tmp_path / "conftest_of_ingot.py").write_text(pathlib.Path(__file__).with_name("conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    environment = {key: value for key, value in os.environ.items() if key not in ("CI", "BUILD_NUMBER", "COLUMNS", "PYTHONPATH")}
    done = subprocess.run(command, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"{name} - RuntimeError: the reason" in done.stdout, done.stdout

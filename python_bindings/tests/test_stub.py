"""ingot/_core.pyi, which type checkers read in the place of the module, has the module's names and signatures."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import ingot
from ingot import _core

FOLDER = pathlib.Path(__file__).parents[1] / "ingot"
STUB = FOLDER / "_core.pyi"
WRITTEN_BY = "3.1"  # the version of nanobind
MEND = "write it again: cmake --build <build> --target ingot_python_stub"


def names_of(function):
    arguments = (*function.args.posonlyargs, *function.args.args)
    return [argument.arg for argument in arguments if argument.arg != "self"]


def functions_of_stub():
    """Name of function, or Class.function, -> the names of its parameters, of an overloaded one those of the first."""
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = names_of(node)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    is_property = any(ast.unparse(mark) == "property" for mark in inner.decorator_list)
                    found.setdefault(f"{node.name}.{inner.name}", "property" if is_property else names_of(inner))
    return found


def parameters(function):
    """From the first line of the text that nanobind gives a function: name(first: type = default, ...) -> type."""
    text = function.__doc__.splitlines()[0]
    inner = re.sub(r"\[[^\[\]]*\]", "", text[text.index("(") + 1 : text.rindex(")")])
    while "[" in inner:
        inner = re.sub(r"\[[^\[\]]*\]", "", inner)
    found = [part.split(":")[0].split("=")[0].strip() for part in inner.split(",")]
    return [name for name in found if name and name.isidentifier() and name != "self"]


def functions_of_module():
    found = {}
    for name, value in vars(_core).items():
        if inspect.isclass(value) and not issubclass(value, BaseException):
            for member, inner in vars(value).items():
                if isinstance(inner, property):
                    found[f"{name}.{member}"] = "property"
                elif re.match("_[^_]", member):
                    continue  # for the class in Python that is made of this one
                elif type(inner).__name__ == "nb_method" or not member.startswith("_"):
                    found[f"{name}.{member}"] = parameters(getattr(value, member))
        elif callable(value) and not inspect.isclass(value):
            found[name] = parameters(value)
    return found


def test_functions():
    stub, module = functions_of_stub(), functions_of_module()
    assert len(module) > 30 and module["gemm"][:3] == ["context", "a", "b"]
    assert stub == module, MEND


def test_other_names():
    """Classes and constants."""
    defined = {
        node.name if isinstance(node, ast.ClassDef) else node.target.id
        for node in ast.parse(STUB.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.ClassDef, ast.AnnAssign))
    }
    of_module = {
        name for name, value in vars(_core).items() if not name.startswith("_") and type(value).__name__ != "nb_func"
    }
    assert defined - {"__version__"} == of_module, MEND


def signatures(text):
    """The stub without its layout: one line for each definition."""
    return [ast.unparse(node) for node in ast.parse(text).body]


def test_types(tmp_path):
    """Types too, where the generator is the one that wrote the stub: other versions write some in another way."""
    nanobind = pytest.importorskip("nanobind")
    if nanobind.__version__.split(".")[:2] != WRITTEN_BY.split("."):
        pytest.skip(f"the stub was written by nanobind {WRITTEN_BY}, and this is {nanobind.__version__}")
    out = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "ingot._core", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert signatures(out.read_text(encoding="utf-8")) == signatures(STUB.read_text(encoding="utf-8")), MEND


def test_what_a_checker_finds():
    assert (FOLDER / "py.typed").exists()
    assert ingot.Error is _core.Error and issubclass(_core.Error, Exception)

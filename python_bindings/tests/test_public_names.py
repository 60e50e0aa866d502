"""Every public name of the package has a docstring, which the site's API pages show; so has what a class of ours adds to it."""

import ast
import importlib
import inspect
import pathlib
import re
import sys

import pytest

SITE = pathlib.Path(__file__).resolve().parents[2] / "scripts/site"
sys.path.insert(0, str(SITE))
from public_names import PACKAGES, names_of, source_of  # noqa: E402

sys.path.remove(str(SITE))
IMPORTED = ("ingot", "ingot.nn", "ingot.torch", "ingot.float8")  # the others need the libraries that they are for


def members_of(cls):
    """(name, docstring) of what the class itself defines, but for what PyTorch calls by its own names."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if not name.startswith("_") and name != "extra_repr" and (inspect.isfunction(function) or "nb_" in type(function).__name__):
            yield name, function.__doc__


@pytest.mark.parametrize("package", IMPORTED)
def test_docstrings(package):
    if package != "ingot":
        pytest.importorskip("torch")
    module = importlib.import_module(package)
    assert module.__doc__ and names_of(package) == [name for name in module.__all__ if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names_of(package) if callable(getattr(module, name))}
    assert len(found) > 15
    lacking = [f"{package}.{name}" for name, value in found.items() if not (value.__doc__ or "").strip()]
    lacking += [name for name, value in found.items() if (value.__doc__ or "").startswith(f"{name}(")]  # dataclasses make that
    for name, cls in found.items():
        if inspect.isclass(cls):
            assert cls.__doc__ != cls.__mro__[1].__doc__, f"{package}.{name} has the docstring of its base"
            lacking += [f"{package}.{name}.{member}" for member, text in members_of(cls) if not text]
    assert lacking == []


@pytest.mark.parametrize("package", [each for each in PACKAGES if each not in IMPORTED])
def test_docstrings_of_integrations(package):
    """Read from the sources."""
    tree = ast.parse(source_of(package).read_text(encoding="utf-8"))
    defined = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert ast.get_docstring(tree) and names_of(package)
    assert [name for name in names_of(package) if not defined.get(name)] == []


def test_documents_import_packages_with_a_page():
    documents = {path.name: path.read_text(encoding="utf-8") for path in (SITE.parents[1] / "docs").glob("*.md")}
    found = {(name, package) for name, text in documents.items() for package in re.findall(r"\bfrom (ingot(?:\.\w+)*) import", text)}
    assert len(found) > 10
    assert sorted(each for each in found if each[1] not in PACKAGES) == []


def test_no_docstring_is_by_reference():
    """A reader of a page has one page: what a name takes is said there."""
    phrases = ("all else as", "All else as")
    texts = {path: path.read_text(encoding="utf-8") for path in source_of("ingot").parent.rglob("*.py")}
    assert [str(path) for path, text in texts.items() if any(phrase in text for phrase in phrases)] == []

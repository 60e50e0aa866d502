"""The public names of the Python package, read from its sources: what the API pages show and a test asks a docstring of.

PACKAGES are the modules that users import. A module's public names are its __all__; a name with an underscore in front is
private, except __version__, which is a value and has no page.
"""

from __future__ import annotations

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python_bindings"
PACKAGES = (
    "ingot",
    "ingot.nn",
    "ingot.torch",
    "ingot.float8",
    "ingot.float8.moe_training",
    "ingot.integrations.transformers",
    "ingot.integrations.experts",
    "ingot.integrations.grouped_experts",
    "ingot.integrations.lightning",
    "ingot.integrations.torchtitan",
    "ingot.integrations.axolotl",
    "ingot.integrations.vllm",
)


def source_of(package: str) -> pathlib.Path:
    path = SOURCES.joinpath(*package.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def names_of(package: str) -> list[str]:
    """Those of __all__ that have no underscore in front, in its order."""
    tree = ast.parse(source_of(package).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets):
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    raise ValueError(f"{source_of(package)} has no __all__")

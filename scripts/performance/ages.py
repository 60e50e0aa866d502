"""How old a figure is: the commits since its run that changed what it times."""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess


def _families(*names: str) -> list[str]:
    return [f"{layer}/{name}" for name in names for layer in ("templates", "src/codegen", "src/runtime")]


_CASTS = _families("cast", "norm", "quantize", "pointwise")
_GEMMS = _families("gemm")
_DECODED = _families("dequant")
_LAYERS = [*_CASTS, *_GEMMS, "src/nn"]
_PYTHON = [*_LAYERS, "python_bindings/ingot", "python_bindings/csrc"]
# By the word of a file's `benchmark`, what it begins with; the first that fits. Files that are not here time other libraries.
_TIMED = {
    "cast, torch.compile": [],
    "cast": _CASTS,
    "gemm, torch": [],
    "gemm": _GEMMS,
    "gradients": _GEMMS,
    "grouped_gemm": _GEMMS,
    "compile": ["templates", "src/codegen"],
    "runtime": ["src/runtime/jit"],
    "weight-only": [],
    "weight_only": _DECODED,
    "generate": _DECODED,
    "decode_torch": _DECODED,
    "linear from PyTorch": _PYTHON,
    "linear": _LAYERS,
    "train_sweep": _LAYERS,
    "several_gpus": _PYTHON,
    **dict.fromkeys(("train_gpt", "train_experts", "compare_experts", "torch_host", "trainers", "a Llama", "FSDP2", "tensor", "experts"), _PYTHON),
}
MARK = re.compile(r", \d+ later commits? of its code")


@functools.lru_cache(maxsize=None)
def _commits_since(root: pathlib.Path, commit: str, paths: tuple[str, ...]) -> int:
    command = ["git", "-C", str(root), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(found.stdout) if found.returncode == 0 else 0


def mark(root: pathlib.Path, benchmark: str, commit: str) -> str:
    """", 3 later commits of its code", or "" where there are none, or where git does not know."""
    paths = next((paths for word, paths in _TIMED.items() if benchmark.startswith(word)), [])
    hash_ = re.search(r"\b[0-9a-f]{7,40}\b", commit)
    if not paths or hash_ is None:
        return ""
    count = _commits_since(root, hash_[0], tuple(paths))
    return f", {count} later commit{'s' if count > 1 else ''} of its code" if count else ""


def without(text: str) -> str:
    """The page's words without what changes with every commit, and with it the ends of lines."""
    return " ".join(MARK.sub("", " ".join(text.split())).split())

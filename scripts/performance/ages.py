"""How old a figure is: the commits since its run that changed what it times. A commit that changed only comments and empty
lines there does not count; one of a docstring or of a comment after code does."""

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
# A layer without experts runs nothing of these: check_what_dense_layers_run() reads the includes, and test_torch_eager.py what
# Python runs.
_NOT_DENSE = ("src/nn/planning/**", "src/nn/**/*expert*", "src/nn/**/*grouped*")
_NOT_DENSE_PYTHON = (
    *("python_bindings/ingot/integrations/**", "python_bindings/ingot/**/*expert*", "python_bindings/ingot/**/*grouped*"),
    *("python_bindings/csrc/**/*expert*.cpp", "python_bindings/csrc/**/*grouped*.cpp"),
)
# What lists kernels to compile ahead, and estimates steps of many GPUs: no benchmark runs it.
_NOT_RUN = [f":(exclude,glob)src/nn/planning/{files}" for files in ("*_runs.*", "run_tensors.h", "step_estimate.*", "gpu_mesh.*")]
_LAYERS = [*_CASTS, *_GEMMS, "src/nn", *_NOT_RUN]
_DENSE_LAYERS = [*_LAYERS, *(f":(exclude,glob){files}" for files in _NOT_DENSE)]
_PYTHON = [*_LAYERS, "python_bindings/ingot", "python_bindings/csrc"]  # of models: plans choose what is converted
_DENSE_PYTHON = [*_PYTHON, *(f":(exclude,glob){files}" for files in (*_NOT_DENSE, *_NOT_DENSE_PYTHON))]
# By the word of a file's `benchmark`, what it begins with; the first that fits. Nothing of ours is timed by those with [].
_TIMED = {
    "cast, torch.compile": [],
    "cast": _CASTS,
    "gemm, torch": [],
    "old and new": [],
    "gemm": _GEMMS,
    "gradients": _GEMMS,
    "grouped_gemm": _GEMMS,
    "compile": ["templates", "src/codegen"],
    "runtime": ["src/runtime/jit"],
    "weight-only": [],
    "weight_only": _DECODED,
    "generate": _DECODED,
    "decode_torch": _DECODED,
    "linear from PyTorch": _DENSE_PYTHON,
    "linear": _DENSE_LAYERS,
    "train_sweep": _DENSE_LAYERS,
    "tune": [*_GEMMS, "src/runtime/tuning"],
    "math": ["templates"],
    **dict.fromkeys(("several_gpus", "gpu_check", "train_gpt", "train_experts", "compare_experts", "torch_host"), _PYTHON),
    **dict.fromkeys(("trainers", "a Llama", "FSDP2", "the host's part of FSDP2", "kernels of one step", "tensor", "experts"), _PYTHON),
}
_CODE = r"^[[:space:]]*([^/#[:space:]]|/[^/]|#[a-z])"  # a line that is no comment: `// ...`, `# ...`, but #include is code
MARK = re.compile(r", \d+ later commits? of its code")


@functools.lru_cache(maxsize=None)
def _commits_since(root: pathlib.Path, commit: str, paths: tuple[str, ...]) -> int:
    command = ["git", "-C", str(root), "log", f"-G{_CODE}", "--format=%h", f"{commit}..HEAD", "--", *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return len(found.stdout.split()) if found.returncode == 0 else 0


def mark(root: pathlib.Path, benchmark: str, commit: str) -> str:
    """", 3 later commits of its code", or "" where there are none, or where git does not know."""
    paths = next((paths for word, paths in _TIMED.items() if benchmark.startswith(word)), None)
    if paths is None:
        raise ValueError(f"scripts/performance/ages.py does not know what the benchmark {benchmark!r} times: add it to _TIMED")
    hash_ = re.search(r"\b[0-9a-f]{7,40}\b", commit)
    if not paths or hash_ is None:
        return ""
    count = _commits_since(root, hash_[0], tuple(paths))
    return f", {count} later commit{'s' if count > 1 else ''} of its code" if count else ""


def parts(text: str) -> list[tuple[int, str]]:
    """The page without what changes with every commit: (number of its first line, text) of each paragraph, whose lines are
    joined because the ages move their ends, and of every other line, such as a table's and an empty one."""
    found: list[tuple[int, list[str]]] = []
    prose = False
    for number, line in enumerate(text.splitlines(), 1):
        begins = not line or line.startswith(("|", "#", "<", "- ", "!["))
        if prose and not begins:
            found[-1][1].append(line)
        else:
            found.append((number, [line]))
        prose = bool(line) and not line.startswith(("|", "#", "<", "!["))
    return [(number, " ".join(MARK.sub("", " ".join(lines)).split())) for number, lines in found]

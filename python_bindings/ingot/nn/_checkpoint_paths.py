"""Where a checkpoint is: a path, or the id of a model that the Hugging Face hub's cache has, without the network; and files that
are not there yet, which Git LFS left pointers to."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any

from .._text import printable, some_of
from ..torch._errors import LinearError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_POINTER = b"version https://git-lfs"
_FILES = (".safetensors", ".json")


def located(path: str) -> str:
    """The path, or the folder of the hub's cache for an id "org/name" that is no path. Raises LinearError if neither exists."""
    if os.path.lexists(path) or not _ID.fullmatch(path) or path.endswith(_FILES):
        return path
    cache = _cache()
    model = cache / f"models--{path.replace('/', '--')}"
    snapshots = model / "snapshots"
    try:
        commit = (model / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        commit = ""
    if commit and "/" not in commit and (snapshots / commit).is_dir():
        return os.fspath(snapshots / commit)
    found = sorted(os.listdir(snapshots)) if snapshots.is_dir() else []
    if len(found) == 1 and not commit:
        return os.fspath(snapshots / found[0])
    if found:
        raise LinearError(
            f"{path}: the hub's cache has no snapshot of its main branch, but {some_of(found)}: give the path of one in {snapshots}"
        )
    raise LinearError(
        f"{path}: is neither a file nor a folder, and the hub's cache ({cache}) has no such model: download it first, with "
        f"hf download {path}, or give its folder"
    )


def _cache() -> pathlib.Path:
    """As huggingface_hub finds it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return pathlib.Path(os.environ[name]).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return pathlib.Path(home).expanduser() / "hub"


def refuse_pointers(entry: pathlib.Path) -> None:
    """Raises LinearError if this file, or one of the folder's, is a pointer of Git LFS."""
    folder = entry if entry.is_dir() else entry.parent
    one_file = not entry.is_dir() and not entry.name.endswith(".json")
    if not folder.is_dir():
        return
    files = [entry] if one_file else sorted(each for each in folder.iterdir() if each.name.endswith(_FILES))
    found = [each for each in files if is_pointer(each)]
    if found:
        more = f" (and {len(found) - 1} more in this folder)" if len(found) > 1 else ""
        raise LinearError(
            f"{printable(found[0])}{more}: is a pointer of Git LFS, not the file: fetch it with git lfs pull, or download the "
            "checkpoint again"
        )


def is_pointer(file: pathlib.Path) -> bool:
    try:
        if not file.is_file():
            return False
        with open(file, "rb") as opened:
            return opened.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def header_metadata(file: pathlib.Path) -> dict[str, Any]:
    """The metadata of a safetensors file that the core has opened."""
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        found = json.loads(opened.read(size)).get("__metadata__")
    return found if isinstance(found, dict) else {}

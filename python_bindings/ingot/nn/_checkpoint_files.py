"""The files of a checkpoint: tensors by name, config.json, and a folder that at each moment holds the old checkpoint or
the new one, whole.

A folder's weights and its config.json are two files, which no call of the system replaces together. So the new weights
come under a name that no other save has, and config.json, which is renamed into place, names it for as long as it takes
("transformers_weights", as transformers has it): that rename is the one step from the old checkpoint to the new one. Then
the weights get their common name too, and config.json loses the entry. A generation_config.json, which has defaults of
calls, is written before and renamed last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
import secrets
import stat
from typing import Any, Iterator, Optional

import torch

from .. import _core
from .._text import printable
from ..torch._errors import LinearError
from ._checkpoint_paths import header_metadata, is_pointer, located, refuse_pointers

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "U64": torch.uint64,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
_OF_DIFFUSERS = "diffusion_pytorch_model.safetensors"
_OF_MODELOPT = "hf_quant_config.json"
_OTHER_WEIGHTS = "transformers_weights"  # config.json's entry
_MOST_JSON = 100_000_000
_LEFT_BY_A_SAVE = re.compile(
    r"model\.[0-9a-f]{8}\.(safetensors(\.[0-9a-f]{16}\.partial)?|link)|(generation_)?config\.json\.[0-9a-f]{8}"
)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


# ---- reading -------------------------------------------------------------------------------------------------------


def read_json(file: pathlib.Path) -> Optional[dict[str, Any]]:
    """The object of a JSON file; None if there is no such file. Raises LinearError, in one sentence, for anything else."""
    text = _text_of(file)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        if is_pointer(file):
            refuse_pointers(file)
        raise LinearError(f"{file}: is not JSON (line {error.lineno}, column {error.colno}): {error.msg}") from None
    except UnicodeDecodeError:
        raise LinearError(f"{file}: is not JSON: it is no text in UTF-8") from None
    except RecursionError:
        raise LinearError(f"{file}: is nested too deeply: a config has a few levels") from None
    except ValueError as error:  # of an endless number
        raise LinearError(f"{file}: is not JSON that can be read: {printable(error)}") from None
    if not isinstance(found, dict):
        raise LinearError(f"{file}: holds {_kind(found)}, expected an object with the model's config")
    return found


def _text_of(file: pathlib.Path) -> Optional[bytes]:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer would wait
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LinearError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LinearError(f"{file}: is not a regular file: put the model's config there, or remove it")
        if status.st_size > _MOST_JSON:
            raise LinearError(f"{file}: has {status.st_size} bytes; at most {_MOST_JSON} are read")
        with open(descriptor, "rb", closefd=False) as opened:
            return opened.read()
    except OSError as error:
        raise LinearError(f"{file}: cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "something else")


def _entry_of(folder: pathlib.Path, config: dict[str, Any]) -> pathlib.Path:
    """Returns what to open: the folder itself, unless its config.json names the weights, or they have diffusers' name."""
    name = config.get(_OTHER_WEIGHTS)
    if name is None:
        if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
            return folder
        return next((folder / each for each in (_OF_DIFFUSERS, f"{_OF_DIFFUSERS}.index.json") if (folder / each).exists()), folder)
    known = isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name
    if not known or any("\ud800" <= each <= "\udfff" for each in name):  # no name in UTF-8 has halves of characters
        raise LinearError(
            f"{folder / CONFIG} {_OTHER_WEIGHTS}: is {printable(name)!r}, expected the name of a file in this folder"
        )
    return folder / name


def _config_of(folder: pathlib.Path) -> dict[str, Any]:
    """config.json; what ModelOpt says in a file of its own is added where config.json does not say it."""
    config = read_json(folder / CONFIG) or {}
    if "quantization_config" not in config:
        found = (read_json(folder / _OF_MODELOPT) or {}).get("quantization")
        if isinstance(found, dict):
            config = {**config, "quantization_config": {"quant_method": "modelopt", **found}}
    return config


class Reader:
    """The tensors of a checkpoint, by name, and its config ({} if there is none). path: a file, an index, a folder, or the id of
    a model in the hub's cache."""

    def __init__(self, path: str) -> None:
        path = located(path)
        given = pathlib.Path(path)
        folder = given if given.is_dir() else given.parent
        if given.is_dir():
            self.config = _config_of(folder)
            self._entry = _entry_of(given, self.config)
        else:
            self._entry = given
        try:
            self._files = _core.SafetensorsCheckpoint(os.fspath(self._entry))
        except _core.Error:
            refuse_pointers(self._entry)
            raise
        if not given.is_dir():
            self.config = _config_of(folder)
        self.path = path
        self.names = set(self._files.names())
        self._renamed: dict[str, str] = {}
        self._above: dict[str, str] = {}
        self._metadata: Optional[dict[str, Any]] = None

    def rename(self, stored: dict[str, str]) -> None:
        """Gives tensors the names that the model has for them. stored: the file's, by these."""
        self._renamed = stored
        self.names = self.names.difference(stored.values()) | stored.keys()
        for name, own in stored.items():
            (above, _, last), (own_above, _, own_last) = name.rpartition("."), own.rpartition(".")
            if last == own_last:
                self._above[above] = own_above

    def stored(self, name: str) -> str:
        """What the file calls a tensor; of one that it lacks, what it would call it by the others of its module."""
        if name in self._renamed:
            return self._renamed[name]
        above, _, last = name.rpartition(".")
        return name if name in self.names or above not in self._above else f"{self._above[above]}.{last}"

    def metadata(self) -> dict[str, Any]:
        """That of all files; their keys differ."""
        if self._metadata is None:
            self._metadata = {}
            for file in self._all_files():
                self._metadata.update(header_metadata(file))
        return self._metadata

    def _all_files(self) -> list[pathlib.Path]:
        entry = self._entry
        if entry.is_dir():
            entry = next(each for each in (entry / WEIGHTS, entry / INDEX) if each.exists())
        if entry.suffix != ".json":
            return [entry]
        return [entry.parent / name for name in sorted(set((read_json(entry) or {})["weight_map"].values()))]

    def dtype(self, name: str) -> Optional[torch.dtype]:
        """None for a tensor that is not there, and for types that PyTorch lacks."""
        return TYPES.get(self._files.facts(self.stored(name))[0]) if name in self.names else None

    def where(self, name: str) -> str:
        return f'{self.path} tensor "{printable(self.stored(name))}"'

    def facts(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and shape. Raises LinearError for a type that PyTorch lacks."""
        kind, shape, _ = self._files.facts(self.stored(name))
        if kind not in TYPES:
            raise LinearError(f"{self.where(name)}: has the type {kind}, which PyTorch lacks")
        return TYPES[kind], tuple(shape)

    def read(self, name: str) -> torch.Tensor:
        dtype, shape = self.facts(name)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        stored = self.stored(name)
        self._files.read_into(stored, tensor.data_ptr(), self._files.facts(stored)[2])
        return tensor

    def one_of(self, prefix: str, names: tuple[str, ...]) -> Optional[str]:
        found = [prefix + name for name in names if prefix + name in self.names]
        if len(found) > 1:
            raise LinearError(f'{self.where(found[0])}: "{printable(self.stored(found[1]))}" is there too: leave one of them')
        return found[0] if found else None


# ---- writing -------------------------------------------------------------------------------------------------------


def write_tensors(file: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes tensors, which are on the host and contiguous. The file is on the disk before it gets the old one's
    name."""
    entries = [
        (name, NAMES[t.dtype], list(t.shape), t.data_ptr(), t.numel() * t.element_size()) for name, t in tensors.items()
    ]
    _core.write_safetensors(os.fspath(file), entries, {"format": "pt"})


def write_folder(folder: pathlib.Path, tensors: dict[str, torch.Tensor], changes, generation=None) -> None:
    """model.safetensors and config.json, which changes(the old one, or None) returns anew; and generation_config.json,
    where there is one (generation, an object).

    Killed at any step it leaves the old checkpoint or the new one; a full disk leaves the old one. What an earlier save
    has left, and the shards of the old checkpoint with their index, are removed once the new one is whole. Raises
    LinearError if another process is saving into the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder):
            _replace(folder, tensors, changes, generation)
    except (OSError, ValueError) as error:  # ValueError: of a name with a NUL
        raise LinearError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _replace(folder: pathlib.Path, tensors: dict[str, torch.Tensor], changes, generation) -> None:
    old = read_json(folder / CONFIG)
    new = changes(None if old is None else {key: old[key] for key in old if key != _OTHER_WEIGHTS})
    own = secrets.token_hex(4)
    weights, link, config = folder / f"model.{own}.safetensors", folder / f"model.{own}.link", folder / f"{CONFIG}.{own}"
    of_generation = folder / f"{GENERATION}.{own}"
    needed = False  # does config.json name the new weights by their own name?
    try:
        write_tensors(weights, tensors)
        _keep_mode(folder / WEIGHTS, weights)
        if generation is not None:
            _write_json(of_generation, generation)
        if old is not None and old != new:
            try:
                os.link(weights, link)
            except OSError:
                pass  # a file system without links: config.json follows a moment after the weights
            else:
                needed = True
                _put(folder, config, {**new, _OTHER_WEIGHTS: weights.name})
        os.replace(link if needed else weights, folder / WEIGHTS)
        _flush(folder)
        if old != new:
            _put(folder, config, new)
        needed = False
        if generation is not None:
            _rename(of_generation, folder / GENERATION)
        _remove_stale(folder)
    except BaseException:
        for each in (link, config, of_generation, *(() if needed else (weights,))):
            with contextlib.suppress(OSError):
                each.unlink()
        raise


def _put(folder: pathlib.Path, temporary: pathlib.Path, config: dict[str, Any]) -> None:
    _write_json(temporary, config)
    _rename(temporary, folder / CONFIG)


def _write_json(file: pathlib.Path, value: dict[str, Any]) -> None:
    """Writes a new file, which is on the disk before this returns."""
    with open(file, "x", encoding="utf-8") as opened:
        opened.write(json.dumps(value, indent=2) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def _rename(temporary: pathlib.Path, file: pathlib.Path) -> None:
    _keep_mode(file, temporary)
    os.replace(temporary, file)
    _flush(file.parent)


def _keep_mode(old: pathlib.Path, new: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        os.chmod(new, stat.S_IMODE(old.stat().st_mode))


def _flush(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale(folder: pathlib.Path) -> None:
    stale = [folder / name for name in os.listdir(folder) if _LEFT_BY_A_SAVE.fullmatch(name)]
    try:
        files = (read_json(folder / INDEX) or {}).get("weight_map")
    except LinearError:
        files = None
    if isinstance(files, dict):
        shards = {name for name in files.values() if isinstance(name, str) and _SHARD.fullmatch(name)}
        stale += [folder / name for name in sorted(shards)]
    # The index last: a save that is killed here leaves the next one the names.
    for each in [*stale, folder / INDEX]:
        with contextlib.suppress(FileNotFoundError):
            each.unlink()


@contextlib.contextmanager
def _alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Locks the folder itself. The lock leaves no file, and ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LinearError(
                f"{folder}: another process is saving into this folder: give each its own folder, or save "
                "on one rank"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)

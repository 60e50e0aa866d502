"""replace_torchao(): programs that import torchao.float8, or torchao.prototype.moe_training, get this package."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, Dict, List, Optional

import torch

from .float8_training_tensor import Float8TrainingTensor, GemmInputRole, LinearMMConfig, ScaledMMConfig
from .fsdp_utils import WeightWithDynamicFloat8CastTensor

_PACKAGE, _MOE = "torchao.float8", "torchao.prototype.moe_training"
_SUBMODULES = (
    "config",
    "distributed_utils",
    "float8_linear",
    "float8_linear_utils",
    "float8_ops",
    "float8_python_api",
    "float8_scaling_utils",
    "float8_tensor",
    "float8_tensor_parallel",
    "float8_training_tensor",
    "float8_utils",
    "fsdp_utils",
    "stateful_float8_linear",
)
_MOE_SUBMODULES = ("config", "fp8_grouped_mm", "utils")  # one module of this package


class _Replacement(ModuleType):
    """A module of this package under torchao's name. What it lacks is torchao's, if torchao is installed."""

    def __init__(self, name: str, ours: ModuleType, theirs: Optional[ModuleType]) -> None:
        super().__init__(name, ours.__doc__)
        names: Dict[str, Any] = vars(self)
        names["_ours"], names["_theirs"] = ours, theirs
        names["__file__"] = ours.__file__
        names["__all__"] = getattr(theirs, "__all__", None) or getattr(ours, "__all__", [])
        names["__spec__"] = importlib.machinery.ModuleSpec(name, None, is_package=name in (_PACKAGE, _MOE))
        if name == _PACKAGE:
            # Submodules that are not replaced are found where torchao has them.
            names["__path__"] = list(getattr(theirs, "__path__", []))

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._ours, name):
            return getattr(self._ours, name)
        theirs = self._theirs
        if theirs is not None and hasattr(theirs, name):
            return getattr(theirs, name)
        raise AttributeError(f"module '{self.__name__}' (ingot.float8 in its place) has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) or name.startswith("__"):
            super().__setattr__(name, value)  # a submodule that the import system enters
        else:
            setattr(self._ours, name, value)

    def __dir__(self) -> List[str]:
        return sorted({*dir(self._ours), *dir(self._theirs)})


class _LazyReplacement(_Replacement):
    """Of a module of torchao that is imported when a name is asked for that Ingot lacks: its kernels take seconds to import."""

    @property
    def _theirs(self) -> Optional[ModuleType]:
        names: Dict[str, Any] = vars(self)
        if "_loaded" not in names:
            parent, _, key = self.__name__.rpartition(".")
            names["_loaded"] = None  # while it is imported it may ask for names of its own
            del sys.modules[self.__name__]
            try:
                names["_loaded"] = importlib.import_module(self.__name__)
            except ImportError:
                pass
            finally:
                sys.modules[self.__name__] = self
                setattr(sys.modules[parent], key, self)
        return names["_loaded"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks each module whether it is a package
            raise AttributeError(name)
        return super().__getattr__(name)

    def __dir__(self) -> List[str]:
        return dir(self._ours)


def replace_torchao() -> None:
    """Makes `import torchao.float8`, and imports from its submodules, give ingot.float8 in this process, and
    `torchao.prototype.moe_training` ingot.float8.moe_training.

    To be called first in a program. Modules and names that Ingot lacks (inference, for example) stay torchao's;
    modules of torchao that have imported what is replaced get the replacement too. Works without torchao, which then
    has nothing but `float8`; a program that looks for the installed distribution `torchao` does not find it so. A
    second call does nothing.
    """
    if isinstance(sys.modules.get(_PACKAGE), _Replacement):
        return
    parent, originals = _import_torchao()
    ours = {name: importlib.import_module(f"ingot.float8{name[len(_PACKAGE) :]}") for name in _names()}
    for name, module in ours.items():
        sys.modules[name] = _Replacement(name, module, originals.get(name))
    for name in _SUBMODULES:
        setattr(sys.modules[_PACKAGE], name, sys.modules[f"{_PACKAGE}.{name}"])
    parent.float8 = sys.modules[_PACKAGE]
    _replace_moe_training(parent)
    _rebind(originals, ours)
    _allow_old_names_in_checkpoints()


def _replace_moe_training(parent: ModuleType) -> None:
    """torchao.prototype.moe_training. What of it was imported before is known; the rest is when it is needed."""
    ours = importlib.import_module("ingot.float8.moe_training")
    is_installed = getattr(parent, "__file__", None) is not None
    spec = importlib.util.find_spec(_MOE) if is_installed else None
    if "torchao.prototype" not in sys.modules:
        sys.modules["torchao.prototype"] = parent.prototype = _empty("torchao.prototype")
    made = {}
    for name in (_MOE, *(f"{_MOE}.{each}" for each in _MOE_SUBMODULES)):
        made[name] = _LazyReplacement(name, ours, None)
        if name in sys.modules or spec is None:
            vars(made[name])["_loaded"] = sys.modules.get(name)
    vars(made[_MOE])["__path__"] = list(spec.submodule_search_locations or []) if spec is not None else []
    sys.modules.update(made)
    sys.modules["torchao.prototype"].moe_training = made[_MOE]
    for each in _MOE_SUBMODULES:
        setattr(made[_MOE], each, made[f"{_MOE}.{each}"])
    if is_installed:
        ours.register_with_torchao()


def _empty(name: str) -> ModuleType:
    """A package in the place of one of torchao's, which is not installed."""
    made = ModuleType(name, "Stands for torchao, which is not installed: it has only what Ingot has of it.")
    made.__path__ = []
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    return made


def _names() -> List[str]:
    return [_PACKAGE, *(f"{_PACKAGE}.{name}" for name in _SUBMODULES)]


def _import_torchao() -> tuple:
    """Returns torchao, or an empty module in its place, and those of its modules that will be replaced."""
    if importlib.util.find_spec("torchao") is None:
        parent = _empty("torchao")
        sys.modules["torchao"] = parent
        return parent, {}
    parent = importlib.import_module("torchao")
    originals = {}
    for name in _names():
        if importlib.util.find_spec(name) is not None:
            originals[name] = importlib.import_module(name)
    return parent, originals


def _rebind(originals: Dict[str, ModuleType], ours: Dict[str, ModuleType]) -> None:
    """Gives modules of torchao that hold a replaced class or function, quantize_() for one, the new one."""
    new = {}
    for name, module in originals.items():
        for key, value in vars(module).items():
            if getattr(value, "__module__", "").startswith(_PACKAGE) and hasattr(ours[name], key):
                new[id(value)] = getattr(ours[name], key)
    untouched = {id(module) for module in originals.values()}
    for name, module in list(sys.modules.items()):
        if not name.startswith("torchao.") or id(module) in untouched or isinstance(module, _Replacement):
            continue
        for key, value in list(vars(module).items()):
            if id(value) in new:
                setattr(module, key, new[id(value)])


def _allow_old_names_in_checkpoints() -> None:
    """Lets torch.load(weights_only=True) read what was saved as torchao's classes."""
    homes = {
        "float8_training_tensor": (Float8TrainingTensor, GemmInputRole, LinearMMConfig, ScaledMMConfig),
        "float8_tensor": (GemmInputRole, LinearMMConfig, ScaledMMConfig),
        "fsdp_utils": (WeightWithDynamicFloat8CastTensor,),
    }
    named = {f"{_PACKAGE}.{module}.{each.__name__}": each for module, classes in homes.items() for each in classes}
    # torchao has entered its own classes under these names, and the first of a name is taken.
    others = [each for each in torch.serialization.get_safe_globals() if _name_of(each) not in named]
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([*others, *((each, name) for name, each in named.items())])


def _name_of(entry: Any) -> str:
    """Returns the name under which a checkpoint has this class: an entry is a class, or a pair of it and a name."""
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"

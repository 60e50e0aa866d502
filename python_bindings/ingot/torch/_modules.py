"""How a module takes the place of another one."""

from __future__ import annotations

import copy
from typing import Type, TypeVar

import torch

Module = TypeVar("Module", bound=torch.nn.Module)


def in_place_of(module: torch.nn.Module, kind: Type[Module]) -> Module:
    """A module of this class with everything of `module`: the same parameters, hooks, `.training`, and whatever else
    was set on it. Its __init__ does not run."""
    new = kind.__new__(kind)
    # Containers are copied, so that the two modules do not share their dicts of parameters and hooks.
    for name, value in vars(module).items():
        new.__dict__[name] = copy.copy(value) if isinstance(value, (dict, set)) else value
    return new

"""The plans of grouped layers and of experts' MLPs: what PyTorch's side knows of each, by its number."""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple, Optional, Tuple, Type

import torch

from . import _operators as ops
from ._errors import LinearError


class PlansOfExperts:
    """add: a function of _core that makes a plan of a recipe, sizes, the names of the dtypes of input and weight, and the rest, and
    returns its number and what `facts` has after these. with_name(number, [name]): the number of the same plan for messages that
    name a layer."""

    def __init__(self, add: Callable, with_name: Callable, facts: Type[NamedTuple]) -> None:
        self._add, self._with_name, self._facts = add, with_name, facts
        self._known: dict = {}
        self.plan = functools.lru_cache(maxsize=None)(self._plan)

    def __getitem__(self, number: int):
        """The facts of a plan that plan() has returned."""
        return self._known[number]

    def _plan(
        self, name: Optional[str], recipe: str, sizes: Tuple[int, ...], input: torch.dtype, weight: torch.dtype, *rest
    ) -> Tuple[int, bool]:
        """(its number, does backward read the weights?). name: None in a graph, whose guards it would be in: equal layers share a
        graph. Raises LinearError."""
        try:
            number, *facts = self._add(recipe, sizes, ops.HIGH_PRECISION[input], ops.HIGH_PRECISION[weight], *rest)
        except ops.Error as error:
            raise LinearError(str(ops.named_error(error, name))) from None
        if name is not None:
            number = self._with_name(number, [name])
        self._known[number] = self._facts(number, *sizes, input, weight, *facts)
        return number, self._known[number].reads_weight

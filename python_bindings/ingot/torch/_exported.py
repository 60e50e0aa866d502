"""Layers in programs that torch.export makes: one operator, torch.ops.ingot.layer, whose text says what the layer is.

A plan's number means nothing to another process, so an exported program has the text instead, from which the process that
runs it makes the plan again (_exported_layers.py). It needs `import ingot.nn` and nothing of the model's code."""

from __future__ import annotations

import json
from typing import Any, List, Optional, Sequence

import torch

from .. import _core
from ._errors import LinearError

library = torch.library.Library("ingot", "FRAGMENT")
library.define("layer(Tensor[] tensors, str what) -> Tensor[]")
_layer = torch.ops.ingot.layer.default


@torch.compiler.assume_constant_result
def is_exporting() -> bool:
    """In a branch where a compiler traces already. In a trace of Dynamo's, torch.compiler.is_exporting() of PyTorch 2.7 is
    true for torch.compile too, and the flag is not set."""
    if torch.compiler._is_exporting_flag:
        return True
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return bool(InstructionTranslator.current_tx().export)
    except (AttributeError, ImportError):
        return False


def refuse_training(module: torch.nn.Module, subject: str) -> None:
    """Refuses a module with delayed scales that trains, because an exported program does not update them."""
    if module.training and torch.is_grad_enabled():
        raise LinearError(
            f"{subject}: torch.export of a module that trains: its delayed scales would stay as they are now, because "
            "nothing makes new ones of a program's maxima: call eval() before, or train with another recipe"
        )


@torch.compiler.assume_constant_result
def _text(kind: str, has: tuple[bool, ...], facts: tuple[tuple[str, Any], ...]) -> str:
    return json.dumps({"layer": kind, "ingot": _core.__version__, "has": has, **dict(facts)})


def export_layer(kind: str, tensors: Sequence[Optional[torch.Tensor]], **facts: Any) -> List[torch.Tensor]:
    """Returns the results of a layer, as one operator of the exported program. facts: values that JSON can hold."""
    has = tuple([each is not None for each in tensors])
    return _layer([each for each in tensors if each is not None], _text(kind, has, tuple(facts.items())))

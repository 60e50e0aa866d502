"""Messages that are said once. Of several ranks each would say what is true of the model of all: the first one warns, and the others log
the same at level INFO, for what they alone have, such as a stage of a pipeline."""

from __future__ import annotations

import logging

import torch.distributed as dist

_SAID: set = set()


def is_first_rank() -> bool:
    """Also of a program that has initialised no process group."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def warn(text: str, log: logging.Logger = logging.getLogger("ingot")) -> None:
    log.log(logging.WARNING if is_first_rank() else logging.INFO, "%s", text)


def say_once(subject: str, text: str) -> None:
    if (subject, text) not in _SAID:
        _SAID.add((subject, text))
        warn(f"{subject}: {text}")

"""How far a long call is: tqdm's bar, where it is installed, standard error is a terminal and there is much to do. Of several ranks
the first one has it."""

from __future__ import annotations

import contextlib
import sys
from typing import Callable, Iterator

from ._saying import is_first_rank

_FEW = 32  # steps that need no bar


@contextlib.contextmanager
def progress(text: str, total: int) -> Iterator[Callable[[], object]]:
    """Yields what is to be called after each of `total` steps."""
    bar = None
    if total >= _FEW and is_first_rank() and sys.stderr is not None and sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            bar = tqdm(total=total, desc=f"ingot: {text}", leave=False)
    try:
        yield (lambda: None) if bar is None else bar.update
    finally:
        if bar is not None:
            bar.close()

"""Text from outside (names, files, variables) as messages show it."""

from __future__ import annotations

from typing import Any, Iterable

_MOST = 160


def printable(text: Any) -> str:
    """The text cut to a line or two of a terminal, with "?" for each character that cannot be printed."""
    text = str(text)
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST]) + ("..." if len(text) > _MOST else "")


def some_of(names: Iterable[str], most: int = 3) -> str:
    """The first of these names, and how many there are more."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name) for name in names[:most]) + more


def counted(count: int, one: str, many: str) -> str:
    """counted(1, "layer is", "layers are") is "1 layer is"."""
    return f"{count:,} {one if count == 1 else many}"


def without_controls(text: str) -> str:
    """A whole message, with "?" for each control character but the ends of its lines."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)

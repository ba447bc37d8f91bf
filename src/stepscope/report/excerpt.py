"""Lines of source code around a function that a verdict names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Excerpt:
    """Some lines of one file."""

    file: str
    """Its path below the folder of the source code."""
    first: int
    """The number of the first line."""
    lines: tuple[str, ...]

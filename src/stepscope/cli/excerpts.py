"""Reads the source code around functions that verdicts name, from a folder that the user allows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.report.excerpt import Excerpt

if TYPE_CHECKING:
    from stepscope.diagnose.finding import Diagnosis

AROUND = 12
"""Lines before and after the named one."""
MOST_EXCERPTS, MOST_FILES = 4, 20_000
LARGEST_BYTES = 1 << 20
_PLACE = re.compile(r"([^\s()]+\.py):(\d{1,7})")


def excerpts(diagnosis: Diagnosis, folder: Path) -> tuple[Excerpt, ...]:
    """Of each place that a verdict names, if a file below the folder has that name."""
    found: dict[tuple[str, int], Excerpt] = {}
    for place, line in _places(diagnosis):
        if len(found) < MOST_EXCERPTS and (place, line) not in found:
            one = _excerpt(folder, place, line)
            if one is not None:
                found[place, line] = one
    return tuple(found.values())


def _places(diagnosis: Diagnosis) -> Iterator[tuple[str, int]]:
    """Where named functions are, and where the user's code calls them."""
    named = [one.function for one in diagnosis.verdicts if one.function]
    callers = [one.caller for one in diagnosis.functions if one.name in named]
    for text in (*named, *callers):
        for place, line in _PLACE.findall(text):
            yield place, int(line)


def _excerpt(folder: Path, place: str, line: int) -> Excerpt | None:
    path = _below(folder, place)
    if path is None or path.stat().st_size > LARGEST_BYTES:
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    if not 0 < line <= len(lines):
        return None
    first = max(line - AROUND, 1)
    some = tuple(lines[first - 1 : line + AROUND])
    return Excerpt(str(path.relative_to(folder.resolve())), first, some)


def _below(folder: Path, place: str) -> Path | None:
    """The only file of the folder whose path ends so; None if there is none, or several."""
    root, parts = folder.resolve(), Path(place).parts
    direct = (root / place.lstrip("/")).resolve()
    if direct.is_file() and direct.is_relative_to(root):
        return direct
    alike = []
    for number, path in enumerate(root.rglob(parts[-1])):
        if number >= MOST_FILES:
            break
        inside = path.is_file() and path.resolve().is_relative_to(root)
        if inside and _common_end(path.parts, parts) >= min(len(parts) - 1, 1):
            alike.append(path.resolve())
    return alike[0] if len(alike) == 1 else None


def _common_end(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    count = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        count += 1
    return count

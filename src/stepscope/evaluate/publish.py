"""Puts a suite's tables where a page of the documentation has room for them."""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import SourceError, UsageError
from stepscope.evaluate.results import Results
from stepscope.evaluate.text import markdown


def publish(results: Results, page: Path) -> None:
    """Replaces what stands between `<!-- SUITE -->` and `<!-- end SUITE -->`.

    Raises:
        SourceError: there is no such page.
        UsageError: it has no such place, or cannot be written.
    """
    check_room(page, results.suite)
    changed = put(_text(page), results)
    assert changed is not None, "there was room a moment ago"
    try:
        page.write_text(changed, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}") from error


def check_room(page: Path, suite: str) -> None:
    """Whether the page has a place for a suite's tables: to be asked before hours of work.

    Raises:
        SourceError: there is no such page.
        UsageError: it has no such place.
    """
    if _parts(_text(page), suite) is None:
        raise UsageError(f"{page} has no place for suite {suite}: it needs the lines "
                         f"<!-- {suite} --> and <!-- end {suite} -->")  # fmt: skip


def _text(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {page}: {error.strerror}") from error


def put(text: str, results: Results) -> str | None:
    """The page with the tables in it; None where it has no place for them."""
    parts = _parts(text, results.suite)
    return None if parts is None else f"{parts[0]}\n{markdown(results)}\n{parts[1]}"


def _parts(text: str, suite: str) -> tuple[str, str] | None:
    """What comes before the tables and after them, with the lines that tell."""
    opened, closed = f"<!-- {suite} -->\n", f"<!-- end {suite} -->"
    before, found, rest = text.partition(opened)
    _, ended, after = rest.partition(closed)
    return (before + opened, closed + after) if found and ended else None

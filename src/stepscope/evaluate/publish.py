"""Writes a suite's tables into a Markdown page that has markers for them."""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import SourceError, UsageError
from stepscope.evaluate.results import Results
from stepscope.evaluate.text import markdown


def publish(results: Results, page: Path) -> None:
    """Replaces what is between `<!-- SUITE -->` and `<!-- end SUITE -->`.

    Scores of jobs with less data are between `<!-- less data: SUITE -->` and its end.

    Raises:
        SourceError: the page cannot be read.
        UsageError: it lacks the markers, or cannot be written.
    """
    check_room(page, place_of(results.suite, bool(results.conditions)))
    changed = put(_text(page), results)
    assert changed is not None, "the markers were there a moment ago"
    try:
        page.write_text(changed, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}") from error


def place_of(suite: str, less_data: bool) -> str:
    """The name of the place for a suite's tables."""
    return f"less data: {suite}" if less_data else suite


def check_room(page: Path, place: str) -> None:
    """Checks that the page has markers for this place; called before hours of work.

    Raises:
        SourceError: the page cannot be read.
        UsageError: it lacks the markers.
    """
    if _parts(_text(page), place) is None:
        raise UsageError(f"{page} has no place for suite {place}: add the lines "
                         f"<!-- {place} --> and <!-- end {place} -->")  # fmt: skip


def _text(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {page}: {error.strerror}") from error


def put(text: str, results: Results) -> str | None:
    """The page with the tables in it; None if it lacks the markers."""
    parts = _parts(text, place_of(results.suite, bool(results.conditions)))
    return None if parts is None else f"{parts[0]}\n{markdown(results)}\n{parts[1]}"


def _parts(text: str, place: str) -> tuple[str, str] | None:
    """The page up to and including the first marker, and from the second marker on."""
    opened, closed = f"<!-- {place} -->\n", f"<!-- end {place} -->"
    before, found, rest = text.partition(opened)
    _, ended, after = rest.partition(closed)
    return (before + opened, closed + after) if found and ended else None

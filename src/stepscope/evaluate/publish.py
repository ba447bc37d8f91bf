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
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read {page}: {error.strerror}") from error
    changed = put(text, results)
    if changed is None:
        raise UsageError(f"{page} has no place for suite {results.suite}: it needs the lines "
                         f"<!-- {results.suite} --> and <!-- end {results.suite} -->")  # fmt: skip
    try:
        page.write_text(changed, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}") from error


def put(text: str, results: Results) -> str | None:
    """The page with the tables in it; None where it has no place for them."""
    opened, closed = f"<!-- {results.suite} -->\n", f"<!-- end {results.suite} -->"
    before, found, rest = text.partition(opened)
    _, ended, after = rest.partition(closed)
    if not found or not ended:
        return None
    return f"{before}{opened}\n{markdown(results)}\n{closed}{after}"

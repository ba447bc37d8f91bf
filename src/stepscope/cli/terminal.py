"""What the current terminal can show: colour, width, Unicode, progress bars."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.diagnose.finding import Diagnosis

_LOG_WIDTH = 100
"""The width of output to a file or pipe."""
_WIDEST = 120
"""The widest report; longer lines are hard to read."""


def print_report(diagnosis: Diagnosis) -> None:
    from stepscope.report.text import render_text

    color, ascii_only = has_color(), not knows_unicode()
    text = render_text(diagnosis, width(), color=color, ascii_only=ascii_only)
    print(text, end="", flush=True)


def width() -> int:
    """The width of a report on this output."""
    return min(shutil.get_terminal_size((_LOG_WIDTH, 24)).columns, _WIDEST)


def is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def has_color() -> bool:
    """Colour on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def knows_unicode() -> bool:
    try:
        "▁█…µ".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def progress(message: str) -> AbstractContextManager[object]:
    """A spinner on stderr for the duration of the context, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True).status(Text(message))


Advance = Callable[[int, int], None]
"""Called with the amount that is done, and the total."""


def count_progress(message: str) -> AbstractContextManager[Advance | None]:
    """A progress bar on stderr that counts items; None if stderr is no terminal."""
    return _bar(message, "MofNCompleteColumn")


def byte_progress(message: str) -> AbstractContextManager[Advance | None]:
    """A progress bar on stderr that counts bytes; None if stderr is no terminal."""
    return _bar(message, "DownloadColumn")


@contextmanager
def _bar(message: str, amount: str) -> Iterator[Advance | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), getattr(bars, amount)(),
               bars.TimeRemainingColumn())  # fmt: skip
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(message)
        yield lambda done, total: bar.update(task, completed=done, total=total)

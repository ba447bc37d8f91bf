"""Formats numbers for people: durations, shares, sizes, times, lists of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from stepscope.diagnose.finding import Span

SCALES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
FIRST_WALL_CLOCK_NS = 946_684_800 * 10**9
"""The year 2000: no earlier time is a date. The age of the programs recorded."""


def duration(ns: float) -> str:
    """`1.23 s`, `45.6 ms`; two minutes or more: `5 min`, `1 h 05 min`."""
    if abs(ns) >= 120e9:
        return _long_duration(ns)
    if ns == 0:
        return "0 s"
    # a value that rounds up to 1000 of one unit is shown as 1 of the next
    scale, unit = next(((s, u) for s, u in SCALES if abs(ns) >= 0.9995 * s), SCALES[-1])
    return f"{significant(ns / scale)} {unit}"


def _long_duration(ns: float) -> str:
    sign, minutes = "-" if ns < 0 else "", round(abs(ns) / 60e9)
    if minutes < 60:
        return f"{sign}{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{sign}{hours} h {minutes:02d} min"
    return f"{sign}{hours // 24} d {hours % 24} h"


def significant(value: float) -> str:
    """Three significant digits, never an exponent: `0.31`, `1.23`, `45.6`, `789`, `1,234`."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.01 or value == 0 else f"{value:.2g}"


def percent(fraction: float) -> str:
    """`18%`; one decimal below ten percent."""
    share = 100 * fraction
    if 0 < share < 0.1:
        return "<0.1%"
    return f"{share:.1f}".removesuffix(".0") + "%" if share < 10 else f"{share:.0f}%"


def size(count: float) -> str:
    """`1.5 GB`, in powers of ten, as usual for networks and disks."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= scale:
            return f"{significant(count / scale)} {unit}"
    return f"{count:.0f} B"


def moment(ns: int) -> str:
    """A wall-clock time, in UTC because hosts and readers may be in different time zones.

    Clocks that count from a start, of the machine or of the recording, give `5 min on its clock`.
    """
    if ns < FIRST_WALL_CLOCK_NS:
        return f"{duration(ns)} on its clock"
    return datetime.fromtimestamp(ns / 1e9, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(steps: Span) -> str:
    """`step 7` or `steps 7-9`."""
    first, last = steps
    return f"step {first}" if first == last else f"steps {first}-{last}"


def count(number: int, noun: str) -> str:
    """`1 rank`, `1,024 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranks(numbers: Iterable[int], limit: int = 6) -> str:
    """`rank 37`, `ranks 0-7, 12`; runs beyond `limit` are only counted."""
    distinct = sorted(set(numbers))
    runs = [str(a) if a == b else f"{a}-{b}" for a, b in _runs(distinct)]
    text = ", ".join(runs[:limit])
    if len(runs) > limit:
        text += f", … ({len(distinct)} in all)"
    return f"{'rank' if len(distinct) == 1 else 'ranks'} {text}"


def _runs(numbers: list[int]) -> Iterator[Span]:
    """Runs of consecutive numbers, first and last of each."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1]
            start = i


def names(items: Iterable[str], limit: int = 4) -> str:
    """`a, b, c`; items beyond `limit` are only counted."""
    every = list(items)
    rest = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + rest

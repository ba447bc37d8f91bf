"""Activity of a training thread, in microseconds."""

from __future__ import annotations

import numpy as np

from stepscope.patterns import Activity, Pattern, Span, summarize
from stepscope.patterns.use import Series
from stepscope.window import Strings, Table

US = 1000
Event = tuple[str, float, float]
"""Name, start, end."""


def table(*events: Event) -> Table:
    ordered = sorted(events, key=lambda one: (one[1], -one[2]))
    start = np.array([round(start * US) for _, start, _ in ordered], np.int64)
    end = np.array([round(end * US) for _, _, end in ordered], np.int64)
    names = Strings.of([name for name, _, _ in ordered])
    return Table({"start_ns": start, "duration_ns": end - start, "name": names})


def patterns(activity: Activity, until: float, *use: Series) -> dict[str, Pattern]:
    """The patterns of a window from 0, by function."""
    found = summarize(activity, Span(0, round(until * US)), use)
    assert len({one.function for one in found.rows}) == len(found.rows)
    return {one.function: one for one in found.rows}

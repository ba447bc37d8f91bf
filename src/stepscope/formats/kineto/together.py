"""Checks that traces belong together: the same base of times and the same recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.errors import FormatError
from stepscope.formats.kineto.rank_trace import RankTrace, moved

FAR_APART_NS = 3_600_000_000_000
"""An hour: ranks of a job are recorded in the same steps, and no clock is off by that much."""
_LONG_AGO_NS = 946_684_800_000_000_000
"""The year 2000: earlier times do not count from 1970."""
_LOST_BASE = "the base of its times is lost by truncation; taken from the other files"
_FAR = (
    "{one.path} of rank {one.rank} and {other.name} of rank {other.rank} were recorded "
    "{hours:,.0f} hours apart: two jobs? diagnose the traces of one at a time"
)


def with_bases(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Adds the base to truncated files without one; torch uses the same for all ranks."""
    bases = {trace.base_ns for trace in traces} - {0}
    if len(bases) != 1:
        return list(traces)
    (base_ns,) = bases
    return [
        _rebased(trace, base_ns) if not trace.base_ns and trace.span_ns[1] < _LONG_AGO_NS else trace
        for trace in traces
    ]


def _rebased(trace: RankTrace, base_ns: int) -> RankTrace:
    first, last = trace.span_ns
    return replace(
        trace,
        base_ns=base_ns,
        tables={name: moved(table, base_ns) for name, table in trace.tables.items()},
        span_ns=(first + base_ns, last + base_ns),
        problems=(*trace.problems, _LOST_BASE),
    )


def check_together(traces: Sequence[RankTrace]) -> None:
    """Checks that all ranks are of one job: windows of the same ranks may be days apart, but every
    rank must share a window with others.

    Raises:
        FormatError: some ranks were recorded long before or after all others.
    """
    parties: list[set[int | None]] = []
    for window in _windows(traces):
        met = {trace.rank for trace in window}
        apart = [party for party in parties if not party & met]
        parties = [*apart, met.union(*(party for party in parties if party & met))]
    if len(parties) > 1:
        one = next(trace for trace in traces if trace.rank in parties[0])
        other = next(trace for trace in traces if trace.rank in parties[1])
        hours = _gap_ns(one, other) / FAR_APART_NS
        raise FormatError(_FAR.format(one=one, other=other, hours=hours))


def _windows(traces: Sequence[RankTrace]) -> list[list[RankTrace]]:
    """Groups traces by time, in order."""
    windows: list[list[RankTrace]] = []
    for trace in sorted(traces, key=lambda trace: trace.span_ns):
        if windows and min(_gap_ns(one, trace) for one in windows[-1]) <= FAR_APART_NS:
            windows[-1].append(trace)
        else:
            windows.append([trace])
    return windows


def _gap_ns(one: RankTrace, other: RankTrace) -> int:
    return max(one.span_ns[0], other.span_ns[0]) - min(one.span_ns[1], other.span_ns[1])

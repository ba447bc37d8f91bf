"""Whether traces belong together: one base of times, one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.errors import FormatError
from stepscope.formats.kineto.rank_trace import RankTrace, moved

FAR_APART_NS = 3_600_000_000_000
"""An hour: the ranks of a job are recorded in the same steps, and no clock is wrong by so much."""
_LOST_BASE = "what its times count from is lost with its end; taken from the other files"
_FAR = (
    "{early.path} ends {hours:,.0f} hours before {late.name} of rank {late.rank} begins: "
    "two jobs? diagnose the traces of one at a time"
)


def with_bases(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """A file that was cut off may have lost its base, which torch gives to all ranks alike."""
    bases = {trace.base_ns for trace in traces} - {0}
    if len(bases) != 1:
        return list(traces)
    (base_ns,) = bases
    return [trace if trace.base_ns or trace.span_ns[1] > base_ns else _rebased(trace, base_ns)
            for trace in traces]  # fmt: skip


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
    """Windows of the same ranks may lie days apart; windows of different ranks are different jobs.

    Raises:
        FormatError: some ranks were recorded long before or after all others.
    """
    ordered = sorted(traces, key=lambda trace: trace.span_ns)
    seen: set[int | None] = set()
    last = ordered[0]
    for trace in ordered:
        gap = trace.span_ns[0] - last.span_ns[1]
        later = {one.rank for one in ordered if one.span_ns[0] >= trace.span_ns[0]}
        if gap > FAR_APART_NS and not seen & later:
            hours = gap / FAR_APART_NS
            raise FormatError(_FAR.format(early=last, late=trace, hours=hours))
        seen.add(trace.rank)
        last = max(last, trace, key=lambda one: one.span_ns[1])

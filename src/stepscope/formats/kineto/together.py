"""Checks that traces belong together: the same base of times and the same recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stepscope.errors import FormatError
from stepscope.formats.kineto.calls import P2P
from stepscope.formats.kineto.peers import SOON_NS
from stepscope.formats.kineto.rank_trace import RankTrace, moved
from stepscope.window import NULL, Ints, Table, numbered

FAR_APART_NS = 3_600_000_000_000
"""An hour: ranks of a job are recorded in the same steps, and hardly a clock is off by as much."""
LEAST_SHARED = 5
"""Collectives that show whether clocks differ by one time. As `diagnose.prepare.align`."""
MOSTLY = 0.9
"""Of the shared collectives: some rows do not belong together. Our choice."""
_LONG_AGO_NS = 946_684_800_000_000_000
"""The year 2000: earlier times do not count from 1970."""
_LOST_BASE = "the base of its times is lost by truncation; taken from the other files"
_FAR = (
    "{one.path} of rank {one.rank} and {other.name} of rank {other.rank} were recorded "
    "{hours:,.0f} hours apart: two jobs? diagnose the traces of one at a time"
)

_CLOCKS = (
    "the clocks of {one.name} of rank {one.rank} and {other.name} of rank {other.rank} are "
    "{hours:,.0f} hours apart, as their collectives show"
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


def check_together(traces: Sequence[RankTrace], comm: Table | None) -> tuple[str, ...]:
    """Checks that all ranks are of one job: windows of the same ranks may be days apart, but every
    rank must share a window with others, or leave collectives when others do on its own clock.

    Args:
        comm: the operators of all ranks.

    Returns:
        One line if clocks are far apart.

    Raises:
        FormatError: some ranks were recorded long before or after all others.
    """
    parties: list[set[int]] = []
    for window in _windows(traces):
        met = {trace.rank or 0 for trace in window}
        apart = [party for party in parties if not party & met]
        parties = [*apart, met.union(*(party for party in parties if party & met))]
    if len(parties) < 2:
        return ()
    one, other = (next(trace for trace in traces if (trace.rank or 0) in party)
                  for party in parties[:2])  # fmt: skip
    hours = _gap_ns(one, other) / FAR_APART_NS
    if comm is None or not _leave_together(comm, parties):
        raise FormatError(_FAR.format(one=one, other=other, hours=hours))
    return (_CLOCKS.format(one=one, other=other, hours=hours),)


def _leave_together(comm: Table, parties: Sequence[set[int]]) -> bool:
    """Whether the clocks of all parties differ by the same time, but for their drift, at the end of
    each collective that they share: two runs of one program differ by more from step to step."""
    known = ~comm.strings("op").equals(*P2P) & (comm.ints("end_ns") != NULL)
    known &= comm.ints("match") != NULL if comm.has("match") else True
    comm = comm.take(known)
    of_group = numbered(comm.strings("group").codes.astype(np.int64), comm.ints("seq"))
    key = comm.ints("match") if comm.has("match") else of_group
    ends = [_ends(comm, key, party) for party in parties]
    reached = {0}
    for _ in parties:
        reached |= {at for at, own in enumerate(ends)
                    if any(_agree(own, ends[other]) for other in reached)}  # fmt: skip
    return len(reached) == len(parties)


def _ends(comm: Table, key: Ints, party: set[int]) -> dict[int, int]:
    """When the first member of a party leaves each collective."""
    inside = np.isin(comm.ints("rank"), list(party))
    order = np.argsort(-comm.ints("end_ns")[inside], kind="stable")
    return dict(zip(key[inside][order].tolist(), comm.ints("end_ns")[inside][order].tolist(),
                    strict=True))  # fmt: skip


def _agree(one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    shared = sorted(one.keys() & other.keys())
    if len(shared) < LEAST_SHARED:
        return False
    own, theirs = (np.array([each[key] for key in shared], np.int64) for each in (one, other))
    apart, since = own - theirs, (own - own.min()).astype(np.float64)
    line = np.polyfit(since, (apart - apart[0]).astype(np.float64), 1)  # clocks drift, too
    off = np.abs(apart - apart[0] - np.polyval(line, since))
    return bool(np.quantile(off, MOSTLY) <= SOON_NS)


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

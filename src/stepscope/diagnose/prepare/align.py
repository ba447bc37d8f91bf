"""Clocks: how far apart hosts are, from collectives, which nobody leaves before all have arrived.

Paper: KAIR (III.A) corrects offsets by heartbeat messages; we send none and use what is there.
Symbols: difference of a clock's ends to the reference's -> `offset_ns` + `drift_ppm` * time.
One clock per host, as processes of one host share it. One per rank where hosts are unknown, or
where the times are impossible otherwise (a member arrives after another has left). Each clock's
line (`clocks`) is fitted to that of the clock it met most often (`encounters`).
Cost: one sort of the collectives, then per clock what took part in them with it. Cannot see: hosts
that share no collective (they are named and left alone), constant asymmetries below the time of
leaving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import ClockFit, Skipped
from stepscope.diagnose.prepare.clean import TIMES
from stepscope.diagnose.prepare.clocks import Line, line_through, reference
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, match
from stepscope.diagnose.prepare.shared_collectives import SharedCollectives, shared_collectives
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window

LEAST_SHARED = 5
"""Fewer shared collectives give no offset worth using, unless they agree."""
LEAST_AGREEING, AGREE_NS = 2, 10**6
"""Traces of two or three steps share no more. Operators that do not belong together, or members
that did not leave together, hardly differ twice by the same to a millisecond."""
IMPOSSIBLE_NS = 10**6
IMPOSSIBLE_SHARE = 0.5
"""A member that arrives a millisecond after another left, in most collectives: clocks differ."""


def align(window: Window) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    """The window on one clock, the fitted clocks, and what could not be fitted."""
    comm = window.table("comm_ops")
    clocks = _host_clocks(window)
    if comm is None or not comm.has("end_ns"):
        notes = (Skipped("clocks", "no ends of collectives to align hosts by"),)
        return window, (), notes if len(clocks.names) > 1 else ()
    matched = match(
        comm.take(comm.strings("op").equals(*SYNCHRONIZING) & (comm.ints("end_ns") != NULL))
    )
    if not matched.order.size:
        return window, (), ()
    met = shared_collectives(matched, clocks.of_rank)
    if not window.job.hosts or _impossible(met):
        clocks = _rank_clocks(window)
        met = shared_collectives(matched, clocks.of_rank)
    return (window, (), ()) if len(clocks.names) < 2 else _align(window, met, clocks)


@dataclass(frozen=True)
class _Clocks:
    """The clocks of a job in order of their first ranks, and the number of each rank's."""

    names: Sequence[str]
    first_rank: Sequence[int]
    of_rank: Ints

    def of_rows(self, table: Table) -> Ints:
        """The number of each row's clock; -1 where nobody knows."""
        rank = table.ints("rank")
        clock = self.of_rank[rank]
        known = rank >= 0
        if known.all():
            return clock
        host = table.columns.get("host")
        if not isinstance(host, Strings):
            return np.where(known, clock, -1)
        number = {name: at for at, name in enumerate(self.names)}
        of_host = np.array([number.get(name, -1) for name in (*host.values, "")])
        return np.where(known, clock, of_host[host.codes])


def _host_clocks(window: Window) -> _Clocks:
    """One per host, and per rank of no known host."""
    return _clocks({rank: window.host_of(rank) or f"rank {rank}" for rank in window.ranks})


def _rank_clocks(window: Window) -> _Clocks:
    return _clocks({rank: f"rank {rank}" for rank in window.ranks})


def _clocks(names: Mapping[int, str]) -> _Clocks:
    """Of the names of all ranks' clocks, by rank in order."""
    first: dict[str, int] = {}
    for rank, name in names.items():
        first.setdefault(name, rank)
    number = {name: at for at, name in enumerate(first)}
    of_rank = np.full(max(names, default=0) + 1, -1, np.int64)
    of_rank[list(names)] = [number[name] for name in names.values()]
    return _Clocks(tuple(first), tuple(first.values()), of_rank)


def _impossible(met: SharedCollectives) -> bool:
    """Whether members on one host mostly arrive after others of that host have left."""
    shared = met.members > 1
    late = (met.arrive_ns - met.end_ns)[shared] > IMPOSSIBLE_NS
    return bool(late.size and late.mean() > IMPOSSIBLE_SHARE)


def _align(
    window: Window, met: SharedCollectives, clocks: _Clocks
) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    lines = _fit(met)
    notes = [Skipped(f"clock of {name}", "too few collectives shared with other clocks")
             for at, name in enumerate(clocks.names) if at not in lines]  # fmt: skip
    notes += [Skipped(f"clock of {clocks.names[at]}", f"it was set {len(line.starts_ns) - 1} times "
                      "while recording; each piece is aligned for itself")
              for at, line in lines.items() if len(line.starts_ns) > 1]  # fmt: skip
    fits = tuple(_clock_fit(clocks, at, line) for at, line in sorted(lines.items()))
    tables = {name: _shift(table, clocks, lines) for name, table in window.tables.items()}
    return Window(window.job, tables), fits, tuple(notes)


def _clock_fit(clocks: _Clocks, at: int, line: Line) -> ClockFit:
    name = clocks.names[at]
    rank = clocks.first_rank[at] if name.startswith("rank ") else None
    return ClockFit(name if rank is None else "", round(float(line.offsets_ns[-1])),
                    round(line.drift * 1e6, 3), rank)  # fmt: skip


def _fit(met: SharedCollectives) -> dict[int, Line]:
    """Lines of all clocks against the first, through intermediate clocks where they must."""
    lines = {0: reference(met.origin_ns)}
    waiting = list(range(1, met.clocks))
    while waiting:
        aligned = np.isin(np.arange(met.clocks), list(lines))
        found = {at: line for at in waiting if (line := _against(met, at, lines, aligned))}
        if not found:
            break
        lines |= found
        waiting = [at for at in waiting if at not in found]
    return lines


def _against(
    met: SharedCollectives, at: int, lines: Mapping[int, Line], aligned: Mask
) -> Line | None:
    """The clock's line by the aligned clock with which it shares the most collectives."""
    shared = np.where(aligned, met.met(at), 0)
    other = int(np.argmax(shared))
    if shared[other] < LEAST_AGREEING:
        return None
    own, theirs = met.ends_of(at, other)
    if own.size < LEAST_SHARED and np.ptp(own - theirs) > AGREE_NS:
        return None
    order = np.argsort(theirs, kind="stable")
    own, theirs = own[order], theirs[order]
    difference = (own - (theirs - lines[other].at(theirs))).astype(np.float64)
    return line_through(own, difference, met.origin_ns)


def _shift(table: Table, clocks: _Clocks, lines: Mapping[int, Line]) -> Table:
    """Every time of the table on the reference clock."""
    names = [column for column in TIMES if table.has(column)]
    if not names or not len(table):
        return table
    moved = {name: np.empty(len(table), np.int64) for name in names}
    ahead = _Ahead.of(lines, len(clocks.names))
    for rows, part in table.parts():
        clock = clocks.of_rows(part)
        for name in names:
            moved[name][rows] = ahead.taken_off(part.ints(name), clock)
    return Table({**table.columns, **moved})


@dataclass(frozen=True)
class _Ahead:
    """How far each clock is ahead; clocks without a line are not."""

    origin_ns: int
    offset_ns: Floats
    drift: Floats
    pieces: Mapping[int, Line]
    """The lines of clocks that were set while recording."""

    @classmethod
    def of(cls, lines: Mapping[int, Line], clocks: int) -> _Ahead:
        offset, drift = np.zeros(clocks), np.zeros(clocks)
        for at, line in lines.items():
            offset[at], drift[at] = line.offsets_ns[0], line.drift
        pieces = {at: line for at, line in lines.items() if len(line.starts_ns) > 1}
        return cls(lines[0].origin_ns, offset, drift, pieces)

    def taken_off(self, times: Ints, clock: Ints) -> Ints:
        """The times less what their clocks are ahead; of no known clock, and NULL, they stay."""
        ahead = (times - self.origin_ns).astype(np.float64)
        ahead *= self.drift[clock]
        ahead += self.offset_ns[clock]
        moved = times - np.rint(ahead, out=ahead).astype(np.int64)
        if clock.min() < 0 or times.min() == NULL:
            moved = np.where((clock >= 0) & (times != NULL), moved, times)
        for at, line in self.pieces.items():
            rows = (clock == at) & (times != NULL)
            moved[rows] = times[rows] - line.at(times[rows])
        return moved

"""Clock alignment: offsets between hosts, from collectives, which all ranks leave at the same time.

Paper: KAIR (III.A) corrects offsets by heartbeat messages; we send none and use the collectives.
Symbols: difference of a clock's ends to the reference's -> `offset_ns` + `drift_ppm` * time.
One clock per host, because the processes of a host share it. One per rank if hosts are unknown, if
the times are impossible otherwise (a member arrives after another one has left), or if members on
one host leave apart by a constant. Each clock's
line (`clocks`) is fitted to that of the clock with which it shares the most collectives.
Clocks that share none are aligned by sends and receives (`pair_clocks`).
Cost: one sort of the collectives, then for each clock the collectives that it shares. Cannot see:
hosts that share no operator (they are reported and not aligned), constant asymmetries that are
smaller than the time it takes to leave a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.numeric import compiled, stats
from stepscope.diagnose.prepare.clean import TIMES
from stepscope.diagnose.prepare.clocks import Line, constant, line_through
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, Matched, match
from stepscope.diagnose.prepare.pair_clocks import by_pairs
from stepscope.diagnose.prepare.shared_collectives import (
    Both,
    SharedCollectives,
    shared_collectives,
)
from stepscope.diagnose.shown import ClockFit
from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window
from stepscope.window.compiled import is_plain

LEAST_SHARED = 5
"""Fewer shared collectives give no usable offset, unless they agree. Our simulator."""
LEAST_AGREEING, AGREE_NS = 2, 10**6
"""Traces of two or three steps share only this many. Operators that do not belong together, or that
their members did not leave together, rarely differ twice by the same offset to a millisecond. Our
simulator."""
TIGHT, LEAST_TIGHT = 0.25, 40
"""Clocks are fitted by the quarter of the collectives that moved data for the shortest time, if
these are enough for a drift: over a slow link ranks leave apart, and that is no difference of
clocks. Measured on real data (16 ms on 160 ms)."""
NEARLY_NONE = 0.02
"""Share of the shared collectives that may contradict a clock: some rows do not belong together.
Statistics."""
IMPOSSIBLE_NS = 10**6
OWN_CLOCK_NS, CONSTANT = 2 * 10**7, 10.0
"""Members on one host that leave collectives apart by more than this, and by so many times as it
scatters, have clocks of their own: healthy ones leave within 3 ms, and 20 to 85 ms apart only on
the two sides of a slow link, which lies between hosts. Measured on real data (the lab)."""


def align(
    window: Window, in_place: bool = False
) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    """The window on one clock, the fitted clocks, and what could not be fitted.

    Args:
        in_place: times are converted where they are; the given window cannot be used any more.
    """
    comm = window.table("comm_ops")
    clocks = _clocks({rank: window.host_of(rank) or f"rank {rank}" for rank in window.ranks})
    if comm is None or not comm.has("end_ns"):
        notes = (Skipped("clocks", "no end times of collectives to align the hosts with"),)
        return window, (), notes if len(clocks.names) > 1 else ()
    matched = match(
        comm.take(comm.strings("op").equals(*SYNCHRONIZING) & (comm.ints("end_ns") != NULL))
    )
    if not matched.order.size:
        return _without_collectives(window, comm, clocks, in_place)
    collectives = shared_collectives(matched, clocks.of_rank)
    apart = not window.job.hosts or _impossible(collectives)
    if apart or _have_own_clocks(matched, collectives, clocks.of_rank):
        clocks = _clocks({rank: f"rank {rank}" for rank in window.ranks})
        collectives = shared_collectives(matched, clocks.of_rank)
    if len(clocks.names) < 2:
        return window, (), ()
    return _aligned(window, comm, clocks, _fit(collectives), in_place)


def _without_collectives(
    window: Window, comm: Table, clocks: _Clocks, in_place: bool
) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    """The same by sends and receives alone."""
    known = comm.ints("end_ns")[comm.ints("end_ns") != NULL]
    if len(clocks.names) < 2 or not window.job.hosts or not known.size:
        return window, (), ()
    return _aligned(window, comm, clocks, {0: constant(0.0, int(known.min()))}, in_place)


@dataclass(frozen=True)
class _Clocks:
    """The clocks of a job in order of their first ranks, and the number of each rank's."""

    names: Sequence[str]
    first_rank: Sequence[int]
    of_rank: Ints

    def of_rows(self, table: Table) -> Ints:
        """The number of each row's clock; -1 if unknown."""
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


def _clocks(names: Mapping[int, str]) -> _Clocks:
    """Clocks from the names of all ranks' clocks, in order of ranks."""
    first: dict[str, int] = {}
    for rank, name in names.items():
        first.setdefault(name, rank)
    number = {name: at for at, name in enumerate(first)}
    of_rank = np.full(max(names, default=0) + 1, -1, np.int64)
    of_rank[list(names)] = [number[name] for name in names.values()]
    return _Clocks(tuple(first), tuple(first.values()), of_rank)


def _impossible(collectives: SharedCollectives) -> bool:
    """Whether members on one host mostly arrive after others of the same host have left."""
    shared = collectives.members > 1
    late = (collectives.arrive_ns - collectives.end_ns)[shared] > IMPOSSIBLE_NS
    return bool(late.size and late.mean() > HALF)


def _have_own_clocks(matched: Matched, collectives: SharedCollectives, clock_of: Ints) -> bool:
    """Whether most ranks leave collectives later than the first of their host by a constant. So do
    members of a ring with a slow hop, but by less than half of the time for which data moves."""
    order, operators = matched.order, matched.bounds.size - 1
    rank, end = (matched.table.ints(name)[order] for name in ("rank", "end_ns"))
    clocks = int(clock_of.max()) + 1
    place = np.repeat(np.arange(operators), np.diff(matched.bounds)) * clocks + clock_of[rank]
    _, host, count = np.unique(place, return_inverse=True, return_counts=True)
    first = np.full(count.size, np.iinfo(np.int64).max)
    np.minimum.at(first, host, end)
    shared = count[host] > 1
    rank, after = rank[shared], (end - first[host])[shared].astype(np.float64)
    usual = stats.medians_of(rank, after, clock_of.size)
    scatter = stats.medians_of(rank, np.abs(after - usual[rank]), clock_of.size)
    enough = np.bincount(rank, minlength=clock_of.size) >= LEAST_SHARED
    moved = (collectives.end_ns - collectives.arrive_ns)[collectives.members > 1]
    least_ns = max(OWN_CLOCK_NS, HALF * float(np.quantile(moved, TIGHT))) if moved.size else 0.0
    apart = enough & (usual > np.maximum(CONSTANT * scatter, least_ns))
    others = int(enough.sum()) - np.unique(clock_of[enough]).size  # than the first of each host
    return others > 0 and int(apart.sum()) > HALF * others


def _aligned(
    window: Window, comm: Table, clocks: _Clocks, lines: dict[int, Line], in_place: bool
) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    if len(lines) < len(clocks.names):
        lines |= by_pairs(comm, clocks.of_rank, lines)
    notes = [Skipped(f"clock of {name}", "too few operators shared with other clocks")
             for at, name in enumerate(clocks.names) if at not in lines]  # fmt: skip
    notes += [Skipped(f"clock of {clocks.names[at]}", f"it was set {len(line.starts_ns) - 1} times "
                      "while recording; each piece is aligned separately")
              for at, line in lines.items() if len(line.starts_ns) > 1]  # fmt: skip
    fits = tuple(_clock_fit(clocks, at, line) for at, line in sorted(lines.items()))
    tables = {name: _shift(table, clocks, lines, in_place)
              for name, table in window.tables.items()}  # fmt: skip
    return Window(window.job, tables), fits, tuple(notes)


def _clock_fit(clocks: _Clocks, at: int, line: Line) -> ClockFit:
    name = clocks.names[at]
    rank = clocks.first_rank[at] if name.startswith("rank ") else None
    return ClockFit(name if rank is None else "", round(float(line.offsets_ns[-1])),
                    round(line.drift * 1e6, 3), rank)  # fmt: skip


def _fit(collectives: SharedCollectives) -> dict[int, Line]:
    """Lines of all clocks relative to the first, through other clocks where necessary."""
    lines = {0: constant(0.0, collectives.origin_ns)}
    waiting = list(range(1, collectives.clocks))
    while waiting:
        aligned = np.isin(np.arange(collectives.clocks), list(lines))
        found = {at: line for at in waiting if (line := _against(collectives, at, lines, aligned))}
        if not found:
            break
        lines |= found
        waiting = [at for at in waiting if at not in found]
    return lines


def _against(
    collectives: SharedCollectives, at: int, lines: Mapping[int, Line], aligned: Mask
) -> Line | None:
    """A clock's line, from the aligned clock with which it shares the most collectives."""
    shared = np.where(aligned, collectives.shared_with(at), 0)
    other = int(np.argmax(shared))
    if shared[other] < LEAST_AGREEING:
        return None
    both = collectives.both(at, other)
    own, theirs, moved = both.own_end_ns, both.their_end_ns, both.moved_ns
    tight = moved <= _quarter(moved)  # below zero its rows do not belong together
    tight &= moved >= 0
    if tight.sum() >= LEAST_TIGHT:
        own, theirs, moved = own[tight], theirs[tight], moved[tight]
    if own.size < LEAST_SHARED and np.ptp(own - theirs) > AGREE_NS:
        return None
    order = np.argsort(theirs, kind="stable")
    own, theirs = own[order], theirs[order]
    difference = (own - (theirs - lines[other].at(theirs))).astype(np.float64)
    apart_ns = stats.median(moved.astype(np.float64))
    line = line_through(own, difference, collectives.origin_ns, apart_ns)
    return _possible(line, both, lines[other])


def _quarter(moved: Ints) -> int:
    """The largest time of the shortest quarter: no other lies between it and the quantile, which
    numpy takes ten times as long to find."""
    last = int(TIGHT * (moved.size - 1))
    return int(np.partition(moved, last)[last])


def _possible(line: Line, both: Both, reference: Line) -> Line:
    """The line, moved as little as needed so that no rank leaves before the other side has
    arrived."""
    latest = both.own_end_ns - (both.their_arrive_ns - reference.at(both.their_arrive_ns))
    earliest = both.own_arrive_ns - (both.their_end_ns - reference.at(both.their_end_ns))
    latest, earliest = latest - line.at(both.own_end_ns), earliest - line.at(both.own_arrive_ns)
    if latest.min() >= 0 >= earliest.max():  # mostly so; quantiles take ten times as long
        return line
    most = float(np.quantile(latest, NEARLY_NONE))
    least = float(np.quantile(earliest, 1 - NEARLY_NONE))
    shift = max(min(0.0, most), least) if least <= most else 0.0
    return replace(line, offsets_ns=line.offsets_ns + shift)


def _shift(table: Table, clocks: _Clocks, lines: Mapping[int, Line], in_place: bool) -> Table:
    """The table with all times converted to the reference clock."""
    names = [column for column in TIMES if table.has(column)]
    if not names or not len(table):
        return table
    before = {name: table.ints(name) for name in names}
    moved = {name: times if in_place and times.flags.writeable else np.empty_like(times)
             for name, times in before.items()}  # fmt: skip
    ahead = _Ahead.of(lines, len(clocks.names))
    for rows, part in table.parts():
        clock = clocks.of_rows(part)
        # all at once: two columns may be one array
        after = {name: ahead.taken_off(times[rows], clock) for name, times in before.items()}
        for name, times in after.items():
            moved[name][rows] = times
    return Table({**table.columns, **moved})


@dataclass(frozen=True)
class _Ahead:
    """How far each clock is ahead of the reference; 0 for clocks without a line."""

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
        """The times on the reference clock; NULL and times of unknown clocks do not change."""
        moved = self._by_first_pieces(times, clock)
        for at, line in self.pieces.items():
            rows = (clock == at) & (times != NULL)
            moved[rows] = times[rows] - line.at(times[rows])
        return moved

    def _by_first_pieces(self, times: Ints, clock: Ints) -> Ints:
        if compiled.on_one_clock is not None and is_plain(times) and is_plain(clock):
            moved = np.empty_like(times)
            line = self.origin_ns, self.offset_ns, self.drift
            if compiled.on_one_clock(times, clock, *line, moved):
                return moved
        ahead = (times - self.origin_ns).astype(np.float64)
        ahead *= self.drift[clock]
        ahead += self.offset_ns[clock]
        moved = times - np.rint(ahead, out=ahead).astype(np.int64)
        if clock.min() < 0 or times.min() == NULL:
            moved = np.where((clock >= 0) & (times != NULL), moved, times)
        return moved

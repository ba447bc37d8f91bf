"""Clocks: how far apart hosts are, from collectives, which nobody leaves before all have arrived.

Paper: KAIR (III.A) corrects offsets by heartbeat messages; we send none and use what is there.
Symbols: difference of a clock's ends to the reference's -> `offset_ns` + `drift_ppm` * time.
One clock per host, as processes of one host share it. One per rank where hosts are unknown, or
where the times are impossible otherwise (a member arrives after another has left). Lines are fitted
by medians: slope of pairs half a window apart (Theil, A rank-invariant method of regression, 1950,
incomplete version), then the median rest. A clock set while recording gives several pieces.
Cost: one sort of the collectives, then O(operators) per clock. Cannot see: hosts that share no
collective (they are named and left alone), constant asymmetries below the time of leaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.finding import ClockFit, Skipped
from stepscope.diagnose.matching import TOGETHER, Matched, arrivals, match
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window

LEAST_SHARED = 5
"""Fewer shared collectives give no offset worth using, unless they agree."""
LEAST_AGREEING, AGREE_NS = 2, 10**6
"""Traces of two or three steps share no more. Operators that do not belong together, or members
that did not leave together, hardly differ twice by the same to a millisecond."""
LEAST_FOR_DRIFT, LEAST_SPAN_NS = 40, 30 * 10**9
"""10 ppm move 0.3 ms in half a minute; on less, noise of leaving would pass for drift."""
LARGEST_DRIFT = 500e-6
"""NTP slews by at most 500 ppm and crystals err by less than 100: beyond it is no drift."""
JUMP_NS, JUMP_SIGMAS, JUMP_SIDE = 2 * 10**6, 20.0, 5
"""A step of the difference, by medians of five either side, that noise of leaving does not make."""
MOST_JUMPS = 3
IMPOSSIBLE_NS = 10**6
IMPOSSIBLE_SHARE = 0.5
"""A member that arrives a millisecond after another left, in most collectives: clocks differ."""
TIMES = ("start_ns", "end_ns", "enqueue_ns", "ts_ns", "window_start_ns")


@dataclass(frozen=True)
class _Line:
    """Difference of one clock to the reference: pieces of constant offset, one drift."""

    starts_ns: Ints
    offsets_ns: Floats
    drift: float
    origin_ns: int

    def at(self, time_ns: Ints) -> Ints:
        piece = np.maximum(np.searchsorted(self.starts_ns, time_ns, side="right") - 1, 0)
        moved = self.drift * (time_ns - self.origin_ns).astype(np.float64)
        return np.rint(self.offsets_ns[piece] + moved).astype(np.int64)


def align(window: Window) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    """The window on one clock, the fitted clocks, and what could not be fitted."""
    comm = window.table("comm_ops")
    clocks = _host_clocks(window)
    if comm is None or not comm.has("end_ns"):
        few = len(set(clocks.values())) < 2
        notes = () if few else (Skipped("clocks", "no ends of collectives to align hosts by"),)
        return window, (), notes
    together = comm.strings("op").equals(*TOGETHER) & (comm.ints("end_ns") != NULL)
    matched = match(comm.take(together))
    if not window.job.hosts or _impossible(matched, clocks):
        clocks = {rank: f"rank {rank}" for rank in window.ranks}
    names = sorted(set(clocks.values()), key=lambda name: _first(clocks, name))
    if len(names) < 2 or not matched.order.size:
        return window, (), ()
    return _align(window, matched, clocks, names)


def _host_clocks(window: Window) -> dict[int, str]:
    return {rank: window.host_of(rank) or f"rank {rank}" for rank in window.ranks}


def _first(clocks: dict[int, str], name: str) -> int:
    return min(rank for rank, clock in clocks.items() if clock == name)


def _impossible(matched: Matched, clocks: dict[int, str]) -> bool:
    """Whether members on one host mostly arrive after others of that host have left."""
    if not matched.order.size:
        return False
    table, order = matched.table, matched.order
    number = np.repeat(np.arange(matched.bounds.size - 1), np.diff(matched.bounds))
    host = _codes(table.ints("rank")[order], clocks)
    cell, inverse = np.unique(number * (host.max() + 1) + host, return_inverse=True)
    last, first = np.full(cell.size, NULL), np.full(cell.size, np.iinfo(np.int64).max)
    np.maximum.at(last, inverse, arrivals(table)[order])
    np.minimum.at(first, inverse, table.ints("end_ns")[order])
    shared = np.bincount(inverse) > 1
    late = last[shared] - first[shared] > IMPOSSIBLE_NS
    return bool(late.size and late.mean() > IMPOSSIBLE_SHARE)


def _codes(ranks: Ints, clocks: dict[int, str]) -> Ints:
    """A number for each row's clock, in order of first rank; -1 for ranks without one."""
    names: dict[str, int] = {}
    for rank in sorted(clocks):
        names.setdefault(clocks[rank], len(names))
    table = np.full(max(clocks, default=0) + 1, -1, np.int64)
    for rank, name in clocks.items():
        table[rank] = names[name]
    return table[ranks]


def _align(
    window: Window, matched: Matched, clocks: dict[int, str], names: list[str]
) -> tuple[Window, tuple[ClockFit, ...], tuple[Skipped, ...]]:
    times, ends = _ends(matched, _codes(matched.table.ints("rank"), clocks), len(names))
    lines, lost = _fit(times, ends)
    notes = [Skipped(f"clock of {names[at]}", "too few collectives shared with other clocks")
             for at in lost]  # fmt: skip
    notes += [Skipped(f"clock of {names[at]}", f"it was set {len(line.starts_ns) - 1} times while "
                      "recording; each piece is aligned for itself")
              for at, line in lines.items() if len(line.starts_ns) > 1]  # fmt: skip
    fits = tuple(_clock_fit(names[at], line, clocks) for at, line in sorted(lines.items()))
    moved = {names[at]: line for at, line in lines.items()}
    return _shifted(window, clocks, moved), fits, tuple(notes)


def _clock_fit(name: str, line: _Line, clocks: dict[int, str]) -> ClockFit:
    rank = _first(clocks, name) if name.startswith("rank ") else None
    return ClockFit(name if rank is None else "", round(float(line.offsets_ns[-1])),
                    round(line.drift * 1e6, 3), rank)  # fmt: skip


def _ends(matched: Matched, clock: Ints, count: int) -> tuple[Ints, Ints]:
    """The latest end of each collective, and its first by clock: `[clock, operator]` or NULL."""
    operators = matched.bounds.size - 1
    number = np.repeat(np.arange(operators), np.diff(matched.bounds))
    clock = clock[matched.order]
    latest = np.iinfo(np.int64).max
    ends = np.full(count * operators, latest)
    known = clock >= 0
    values = matched.table.ints("end_ns")[matched.order]
    np.minimum.at(ends, (clock * operators + number)[known], values[known])
    grid = np.where(ends == latest, NULL, ends).reshape(count, operators)
    return grid.max(axis=0), grid


def _fit(times: Ints, ends: Ints) -> tuple[dict[int, _Line], list[int]]:
    """Lines of all clocks against the first, through intermediate clocks where they must."""
    origin = int(times.min())
    flat = _Line(np.array([NULL]), np.zeros(1), 0.0, origin)
    lines = {0: flat}
    waiting = set(range(1, len(ends)))
    while waiting:
        found = {at: line for at in sorted(waiting) if (line := _against(ends, at, lines, origin))}
        if not found:
            break
        lines |= found
        waiting -= set(found)
    return lines, sorted(waiting)


def _against(ends: Ints, at: int, lines: dict[int, _Line], origin: int) -> _Line | None:
    """The clock's line by the aligned clock with which it shares the most collectives."""
    mine = ends[at] != NULL
    shared = [(int((mine & (ends[other] != NULL)).sum()), -other) for other in lines]
    count, other = max(shared)
    if count < LEAST_AGREEING:
        return None
    both = mine & (ends[-other] != NULL)
    theirs = ends[-other][both]
    if count < LEAST_SHARED and np.ptp(ends[at][both] - theirs) > AGREE_NS:
        return None
    order = np.argsort(theirs, kind="stable")
    own, theirs = ends[at][both][order], theirs[order]
    return _line(own, (own - (theirs - lines[-other].at(theirs))).astype(np.float64), origin)


def _line(times: Ints, difference: Floats, origin: int) -> _Line:
    """Pieces between jumps, one drift from inside the pieces, the median rest of each."""
    cuts = _jumps(difference)
    pieces = np.split(np.arange(difference.size), cuts)
    drift = _drift(times, difference, pieces)
    rest = difference - drift * (times - origin).astype(np.float64)
    offsets = np.array([np.median(rest[piece]) for piece in pieces])
    starts = np.array([NULL, *(int(times[cut]) for cut in cuts)], np.int64)
    return _Line(starts, offsets, drift, origin)


def _jumps(difference: Floats) -> list[int]:
    """Where the difference steps by more than noise, at most MOST_JUMPS times."""
    if difference.size < 2 * JUMP_SIDE + 1:
        return []
    side = np.lib.stride_tricks.sliding_window_view(difference, JUMP_SIDE)
    middle = np.median(side, axis=1)
    step = np.abs(middle[JUMP_SIDE:] - middle[:-JUMP_SIDE])
    limit = max(JUMP_NS, JUMP_SIGMAS * stats.sigma(np.diff(difference)))
    cuts: list[int] = []
    while len(cuts) < MOST_JUMPS and step.size and step.max() > limit:
        cut = int(np.argmax(step)) + JUMP_SIDE
        cuts.append(_exactly(difference, cut))
        step[max(cut - 2 * JUMP_SIDE, 0) : cut + JUMP_SIDE] = 0
    return sorted(set(cuts))


def _exactly(difference: Floats, near: int) -> int:
    low, high = max(near - JUMP_SIDE, 1), min(near + JUMP_SIDE, difference.size - 1)
    step = np.abs(np.diff(difference[low - 1 : high + 1]))
    return low + int(np.argmax(step))


def _drift(times: Ints, difference: Floats, pieces: Sequence[Ints]) -> float:
    slopes = [_slopes(times[piece], difference[piece]) for piece in pieces]
    known = np.concatenate(slopes)
    if not known.size or times[-1] - times[0] < LEAST_SPAN_NS:
        return 0.0
    drift = float(np.median(known))
    return drift if abs(drift) <= LARGEST_DRIFT else 0.0


def _slopes(times: Ints, difference: Floats) -> Floats:
    half = times.size // 2
    if times.size < LEAST_FOR_DRIFT:
        return np.zeros(0)
    run = (times[half:] - times[: times.size - half]).astype(np.float64)
    rise = difference[half:] - difference[: times.size - half]
    return rise[run > 0] / run[run > 0]


def _shifted(window: Window, clocks: dict[int, str], lines: dict[str, _Line]) -> Window:
    tables = {name: _shift(table, clocks, lines) for name, table in window.tables.items()}
    return Window(window.job, tables)


def _shift(table: Table, clocks: dict[int, str], lines: dict[str, _Line]) -> Table:
    """Every time of the table on the reference clock."""
    names = [column for column in TIMES if table.has(column)]
    if not names or not len(table):
        return table
    owner = [(line, _rows_of(table, clocks, name)) for name, line in lines.items()]
    for column in names:
        times = table.ints(column)
        moved = times.copy()
        for line, rows in owner:
            known = rows & (times != NULL)
            moved[known] -= line.at(times[known])
        table = table.with_column(column, moved)
    return table


def _rows_of(table: Table, clocks: dict[int, str], name: str) -> Mask:
    ranks = [rank for rank, clock in clocks.items() if clock == name]
    rows = np.isin(table.ints("rank"), ranks)
    host = table.columns.get("host")
    if isinstance(host, Strings):
        rows |= (table.ints("rank") < 0) & host.equals(name)
    return rows

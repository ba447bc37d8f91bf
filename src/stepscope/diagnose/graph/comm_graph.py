"""Holmes' communication-operator graph: every rank's part in every operator, and who shares it.

Paper: Holmes (Yao et al., 2025), section 4.3.1. Symbols: O -> `operator`, C -> the groups, by which
parts are matched, g -> `rank`; the linked list of a log is the order of `arrive_ns` on one rank.
An *entry* is a rank's part in an operator at the same place of every step, so the graph is built
once for all steps: one matrix of arrivals and one of ends, `[entry, column]`. The paper stores an
edge from each operator to its group instead of its GPUs; here it is one integer per entry.
Lossy: of long recordings only a sample of the steps, with about `MOST_ROWS` rows; an operator whose
place is not the same in most steps.
Cost: no sort of the rows; 0.6 to 1.1 s for 4 million.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals, match
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window, numbered

MOST_ROWS = 4_000_000
"""Rows of `comm_ops`: twelve steps of 8,192 ranks without the operators within passes. 200 MB."""


@dataclass(frozen=True)
class CommGraph:
    """Entries are sorted by rank. Unknown times are NULL."""

    line: Timeline
    columns: Ints
    """Columns of the grid, in order."""
    rank: Ints
    """Of each entry, as a row of the grid."""
    operator: Ints
    """The number of the operator that each entry is a part of; -1 where it is unknown."""
    op: Strings
    group: Strings
    peer: Ints
    """Global rank; below 0 for collectives."""
    arrive_ns: Ints
    end_ns: Ints
    size_bytes: Ints
    """The operator's data in one step; NULL: unknown."""

    @cached_property
    def p2p(self) -> Mask:
        return self.op.equals(*POINT_TO_POINT)

    @cached_property
    def elapsed_ns(self) -> Floats:
        """The execution time in the terms of a log: from the head of the stream to the end. NaN:
        none.

        It contains waiting for the other members.
        """
        known = (self.arrive_ns != NULL) & (self.end_ns != NULL)
        lasted = np.where(known, self.end_ns, 0) - np.where(known, self.arrive_ns, 0)
        return np.where(known, lasted, np.nan)

    @cached_property
    def order(self) -> Ints:
        """The entries of known operators, operator by operator."""
        order = np.argsort(self.operator, kind="stable")
        return order[int((self.operator < 0).sum()) :]

    @cached_property
    def bounds(self) -> Ints:
        """The index in `order` at which each operator begins, and the number of entries there."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.operator + 1)[1:])))

    def members(self, entry: int) -> Ints:
        """All parts of an entry's operator, with itself."""
        at = int(self.operator[entry])
        if at < 0:
            return np.array([entry])
        return self.order[self.bounds[at] : self.bounds[at + 1]]

    @cached_property
    def shared_by(self) -> Ints:
        """The number of recorded parts of each entry's operator; 0: it is unknown."""
        parts = np.append(np.diff(self.bounds), 0)  # the last one is for -1
        return np.asarray(parts[self.operator])

    @cached_property
    def logs(self) -> Ints:
        """The first entry of each row of the grid, and the number of entries at the end."""
        return np.searchsorted(self.rank, np.arange(len(self.line.ranks) + 1))

    def log(self, row: int) -> Ints:
        """The entries of one rank: its log."""
        return np.arange(self.logs[row], self.logs[row + 1])


def comm_graph(window: Window, line: Timeline, columns: Ints) -> CommGraph | None:
    """The graph of these columns of the grid; None where no ends of operators were recorded."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("step", "end_ns", "seq") or not columns.size:
        return None
    rows = _rows(comm, line, columns)
    comm, row = comm.take(rows), line.rows(comm.ints("rank")[rows])
    column = np.searchsorted(columns, line.columns(comm.ints("step")))
    if not len(comm):
        return None
    group = comm.strings("group").codes.astype(np.int64)
    lane = numbered(row, group)
    entry = numbered(lane, _place(lane, column, comm.ints("seq"), columns.size))
    size = int(entry.max()) + 1
    seen = np.bincount(entry, minlength=size)
    kept = seen >= HALF * columns.size
    entry = np.where(kept, np.cumsum(kept) - 1, -1)[entry]
    if not kept.any():
        return None
    return _filled(comm, line, columns, row, column, entry, int(kept.sum()))


def sampled(window: Window, line: Timeline, first: Ints, others: Ints) -> Ints:
    """As many columns as a graph may have: half of `first`, at least, and the rest of `others`.

    If not all fit, each is taken with the column before it, from which lateness may be carried on.
    """
    comm = window.table("comm_ops")
    per_step = max(len(comm) / len(line.steps), 1.0) if comm is not None else 1.0
    most = max(int(MOST_ROWS / per_step), 4)
    chosen = _spread(first, max(most // 2, most - others.size))
    return np.union1d(chosen, _spread(others, most - chosen.size))


def _spread(columns: Ints, most: int) -> Ints:
    """Evenly spread pairs of neighbours."""
    if columns.size <= most:
        return columns
    at = ((np.arange(most // 2) + 0.5) * columns.size / (most // 2)).astype(np.int64)
    return np.asarray(columns[np.union1d(np.maximum(at - 1, 0), at)])


def _rows(comm: Table, line: Timeline, columns: Ints) -> Ints:
    wanted = np.zeros(len(line.steps) + 1, np.bool_)  # the last one is for -1
    wanted[columns] = True
    kept = wanted[line.columns(comm.ints("step"))] & (line.rows(comm.ints("rank")) >= 0)
    kept &= (comm.ints("seq") != NULL) & (comm.strings("group").codes >= 0)
    return np.flatnonzero(kept)


def _place(lane: Ints, column: Ints, seq: Ints, columns: int) -> Ints:
    """The index of each row among those of its rank and group in its step: `seq` counts them."""
    cell = lane * columns + column
    first = np.full(int(cell.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, cell, seq)
    return np.asarray(seq - first[cell])


def _filled(
    comm: Table, line: Timeline, columns: Ints, row: Ints, column: Ints, entry: Ints, size: int
) -> CommGraph:
    rows = np.flatnonzero(entry >= 0)
    cell = entry[rows] * columns.size + column[rows]
    times = []
    for values in (arrivals(comm), comm.ints("end_ns")):
        matrix = np.full(size * columns.size, NULL)
        matrix[cell] = values[rows]
        times.append(matrix.reshape(size, columns.size))
    one = np.empty(size, np.int64)
    one[entry[rows][::-1]] = rows[::-1]
    arrive_ns, end_ns = times
    peer = comm.ints("peer")[one] if comm.has("peer") else np.full(size, -1)
    size_bytes = comm.ints("bytes")[one] if comm.has("bytes") else np.full(size, NULL)
    return CommGraph(
        line, columns, row[one], _operators(comm, column, entry, size, columns.size),
        comm.strings("op").take(one), comm.strings("group").take(one), peer, arrive_ns, end_ns,
        size_bytes,
    )  # fmt: skip


def _operators(comm: Table, column: Ints, entry: Ints, size: int, columns: int) -> Ints:
    """The operator of each entry, taken from one step; from another step for entries that it
    lacks."""
    operator = np.full(size, -1)
    offset = 0
    for at in np.argsort(-np.bincount(column, minlength=columns), kind="stable")[:2].tolist():
        rows = np.flatnonzero((column == at) & (entry >= 0))
        rows = rows[operator[entry[rows]] < 0]
        if rows.size:
            key = match(comm.take(rows)).key
            operator[entry[rows]] = np.where(key >= 0, key + offset, -1)
            offset = int(operator.max()) + 1
    return operator

"""ARGUS level 4: the longest chain of work and waiting that made each step as long as it was.

Paper: ARGUS (2026), section 6.3, "identifying the longest sequential dependency chain", by people
and HolisticTraceAnalysis (Meta, 2022) on the trace of one rank. Ours goes through all ranks: from
the rank that finished last backwards to the operator it had waited for, from there to the member
that arrived last, and so on to the begin of the step. What is not on the path cost nothing (blame
rule 4): an overlap or a bubble swallowed it.

    path:  own work of a rank | transfer of an operator, after its last arrival

Cost: two sorts of the rows of `comm_ops` of the steps in question.
Cannot see: waiting that nobody recorded, which it takes for the own work of who waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.covers import Covers, kernel_covers, phase_covers
from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.views.unnamed import GAPS
from stepscope.window import Floats, Ints, Mask, Window

OWN = -1
"""In place of an operator's row: a rank at its own work."""


@dataclass(frozen=True)
class Path:
    """Pieces of the critical paths of all steps of a graph; those without length are left out."""

    graph: StepGraph
    lane: Ints
    """Of a transfer the lane that it ended for."""
    begin_ns: Ints
    end_ns: Ints
    row: Ints
    """Of the operator that transfers, or `OWN`."""

    @property
    def lasted_ns(self) -> Ints:
        return self.end_ns - self.begin_ns

    @property
    def own(self) -> Mask:
        return np.asarray(self.row == OWN)

    def of_steps(self, at: Ints) -> Path:
        """The paths of some of the graph's columns."""
        kept = np.isin(self.graph.lanes.at(self.lane), at)
        pieces = (self.lane, self.begin_ns, self.end_ns, self.row)
        return Path(self.graph, *(column[kept] for column in pieces))


@dataclass(frozen=True)
class Share:
    """How much of the paths pieces of one kind make up."""

    rank: int | None
    """Whose own work; None: a transfer."""
    what: str
    """A phase, `between-phases`, a kernel, or an operator."""
    group: str | None
    part: float


def critical_path(graph: StepGraph) -> Path:
    """Walks back from the rank that finished each step last."""
    pieces: list[tuple[int, int, int, int]] = []
    for lane in graph.ends_last(graph.finish_ns).tolist():
        if lane >= 0:
            pieces += _walk(graph, lane)
    table = np.array(pieces, np.int64).reshape(-1, 4)
    return Path(graph, *table[table[:, 2] > table[:, 1]].T)


def _walk(graph: StepGraph, lane: int) -> Iterator[tuple[int, int, int, int]]:
    """Pieces (lane, begin, end, row), the last of the step first."""
    yield lane, int(graph.tail_since_ns[lane]), int(graph.finish_ns[lane]), OWN
    row = int(graph.last[lane])
    for _ in range(graph.op.size):  # clocks that disagree might lead in a circle
        if row == BEGIN:
            return
        holder = int(graph.holder[row])
        arrived = int(graph.arrive_ns[holder])
        yield int(graph.lane[row]), arrived, int(graph.end_ns[row]), row
        yield int(graph.lane[holder]), int(graph.since_ns[holder]), arrived, OWN
        row = int(graph.before[holder])


def shares(window: Window, path: Path) -> list[Share]:
    """What the paths consist of, the largest first: phases of ranks, and operators of groups."""
    lanes, own = path.graph.lanes, path.own
    found = [*_of_names(path, own, phase_covers(window, lanes, path.lane[own]), GAPS),
             *_of_transfers(path)]  # fmt: skip
    return sorted(found, key=lambda one: -one.part)


def kernel_shares(window: Window, path: Path, row: int) -> list[Share]:
    """The kernels of one row's own work on the paths; none where none were recorded."""
    lanes = path.graph.lanes
    mine = path.own & (lanes.row(path.lane) == row)
    covers = kernel_covers(window, lanes, path.lane[mine])
    found = () if covers is None else _of_names(path, mine, covers, None)
    return sorted(found, key=lambda one: -one.part)


def _of_names(path: Path, pieces: Mask, covers: Covers | None, rest: str | None) -> Iterator[Share]:
    """Own work of each rank by name; what no name covers is called `rest`."""
    lane, begin, end = path.lane[pieces], path.begin_ns[pieces], path.end_ns[pieces]
    inside: dict[str, Floats] = {} if covers is None else covers.within(lane, begin, end)
    if rest is not None:
        known = sum(inside.values(), np.zeros(lane.size))
        inside[rest] = np.maximum(end - begin - known, 0.0)
    row, whole = path.graph.lanes.row(lane), max(float(path.lasted_ns.sum()), 1.0)
    for name, spent in inside.items():
        total = stats.sums(row, spent, 0)
        for one in np.flatnonzero(total > 0).tolist():
            rank = int(path.graph.lanes.line.ranks[one])
            yield Share(rank, name, None, float(total[one]) / whole)


def _of_transfers(path: Path) -> Iterator[Share]:
    moved = ~path.own
    comm, rows = path.graph.comm, path.row[moved]
    op, group = comm.strings("op"), comm.strings("group")
    whole = max(float(path.lasted_ns.sum()), 1.0)
    kinds = np.stack((op.codes[rows], group.codes[rows]), axis=1)
    used, number = np.unique(kinds, axis=0, return_inverse=True)
    total = stats.sums(number.reshape(-1), path.lasted_ns[moved], len(used))
    for (what, where), spent in zip(used.tolist(), total.tolist(), strict=True):
        name = op.values[what] if what >= 0 else "operator"
        yield Share(None, name, group.values[where] if where >= 0 else None, spent / whole)

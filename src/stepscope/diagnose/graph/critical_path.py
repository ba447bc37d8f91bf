"""ARGUS level 4: the critical path, the chain of work and transfers that determines the step time.

Paper: ARGUS (2026), section 6.3, "identifying the longest sequential dependency chain", done by
people and HolisticTraceAnalysis (Meta, 2022) on the trace of one rank. Ours goes through all ranks:
backwards from the rank that finished last to the operator that it waited for, from there to the
member that arrived last, and so on to the start of the step. Work that is not on the path cost
nothing (blame rule 4): an overlap or a pipeline bubble hid it.

    path:  own work of a rank | transfer of an operator, after its last arrival

Cost: two sorts of the rows of `comm_ops` of the steps.
Cannot see: waiting that was not recorded; it counts as own work of the waiting rank.
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
"""Instead of an operator's row: own work of a rank."""


@dataclass(frozen=True)
class Path:
    """Pieces of the critical paths of all steps of a graph, without empty pieces."""

    graph: StepGraph
    lane: Ints
    """The lane of each piece; for a transfer, the lane that received it."""
    begin_ns: Ints
    end_ns: Ints
    row: Ints
    """The row of the operator that transfers, or `OWN`."""

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
    """The share of the critical paths of one kind of piece."""

    rank: int | None
    """The rank whose own work it is; None for a transfer."""
    what: str
    """A phase, `between-phases`, a kernel, or an operator."""
    group: str | None
    part: float


def critical_path(graph: StepGraph) -> Path:
    """The critical path of each step, backwards from the rank that finished last."""
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
    for _ in range(graph.op.size):  # misaligned clocks could lead to a cycle
        if row == BEGIN:
            return
        holder = int(graph.holder[row])
        arrived = int(graph.arrive_ns[holder])
        yield int(graph.lane[row]), arrived, int(graph.end_ns[row]), row
        yield int(graph.lane[holder]), int(graph.since_ns[holder]), arrived, OWN
        row = int(graph.before[holder])


def shares(window: Window, path: Path) -> list[Share]:
    """The shares of the paths, largest first: phases of ranks, and operators of groups."""
    lanes, own = path.graph.lanes, path.own
    found = [*_of_names(path, own, phase_covers(window, lanes, path.lane[own]), GAPS),
             *_of_transfers(path)]  # fmt: skip
    return sorted(found, key=lambda one: -one.part)


def kernel_shares(window: Window, path: Path, row: int) -> list[Share]:
    """The kernels in one rank's own work on the paths; empty if kernels were not recorded."""
    lanes = path.graph.lanes
    pieces = path.own & (lanes.row(path.lane) == row)
    covers = kernel_covers(window, lanes, path.lane[pieces])
    found = () if covers is None else _of_names(path, pieces, covers, None)
    return sorted(found, key=lambda one: -one.part)


def _of_names(path: Path, pieces: Mask, covers: Covers | None, rest: str | None) -> Iterator[Share]:
    """The own work of each rank by name; uncovered time is named `rest`.

    Names may overlap (loading beside a pass): such time is shared out, so that none counts twice.
    """
    lane, begin, end = path.lane[pieces], path.begin_ns[pieces], path.end_ns[pieces]
    inside: dict[str, Floats] = {} if covers is None else covers.within(lane, begin, end)
    known = sum(inside.values(), np.zeros(lane.size))
    once = np.minimum((end - begin) / np.maximum(known, 1.0), 1.0)
    inside = {name: spent * once for name, spent in inside.items()}
    if rest is not None:
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

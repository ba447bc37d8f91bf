"""Data loading of a host that holds its device: only what no device phase covers.

A host that runs ahead loads the next batch while its device still computes; that costs nothing.
Loading is timed on the host, other phases on the device. What shows that they are: one thread is
in one phase after another, so a recording in which loading lies across the begin or the end of
another phase of its rank has two clocks (or loads in a thread beside). A batch that is loaded once
per step is loaded when the step before it was launched, so its device is not without work before
that ended: what it waits for in between, or before that, such as the input of its stage, is not the
loader.
Cost: two unions of the phases, one of them of a few ranks. Cannot see: a device that idles within
its phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import covered
from stepscope.window import NULL, Floats, Ints, Mask, Table, Union, Window, distinct, union

EDGE = 0.1
"""Part of a batch's loading that must lie within other phases, and beyond any one of them: rounding
of times does less. Our choice."""
ACROSS = 0.1
"""Part of all loading that must lie across edges; loading within one phase alone may be a part of
it. Our choice."""

FEW = 64
"""Ranks whose phases show whether host and device are timed apart. Our choice."""


def exposed_loading(window: Window, line: Timeline) -> Floats | None:
    """Loading of each rank and step beside its other phases, `[rank, step]`; None where nothing
    shows that host and device are timed apart."""
    phases = window.table("phases")
    if phases is None or not len(line.steps):
        return None
    few = _Rows.of(line, _of_few(line, phases))
    if few is None or not few.has_two_clocks():
        return None
    rows = _Rows.of(line, phases)
    assert rows is not None, "the few are among them"
    busy = rows.busy()
    loading = rows.loading(busy)
    row, begin, end = (np.concatenate(both) for both in
                       zip(busy, _operators(window, line), strict=True))  # fmt: skip
    both = covered(line, *(np.concatenate(two) for two in
                           zip((row, begin, end), loading, strict=True)))  # fmt: skip
    return np.asarray(both - covered(line, row, begin, end))


def _of_few(line: Timeline, phases: Table) -> Table:
    """The phases of some of the ranks that load data: what is timed where is the same on all."""
    names, row = phases.strings("phase"), line.rows(phases.ints("rank"))
    loaders = distinct(row[names.equals(*filter(loads, names.values))])
    loaders = loaders[loaders >= 0]
    chosen = np.zeros(len(line.ranks) + 1, np.bool_)  # the last one is for ranks off the grid
    chosen[loaders[:: max(-(-loaders.size // FEW), 1)]] = True
    return phases.take(chosen[row])


_Spans = tuple[Ints, Ints, Ints]
"""The row of each interval, its begin and its end."""


def _operators(window: Window, line: Timeline) -> _Spans:
    """When operators were in progress on devices."""
    comm, nothing = window.table("comm_ops"), np.zeros(0, np.int64)
    if comm is None or not comm.has("start_ns", "end_ns"):
        return nothing, nothing, nothing
    row, begin, end = line.rows(comm.ints("rank")), comm.ints("start_ns"), comm.ints("end_ns")
    known = (row >= 0) & (begin != NULL) & (end > begin)
    return row[known], begin[known], end[known]


@dataclass(frozen=True)
class _Rows:
    """The rows of phases, some of which are loading, of ranks on the grid."""

    line: Timeline
    row: Ints
    cell: Ints
    begin: Ints
    end: Ints
    loads: Mask

    @classmethod
    def of(cls, line: Timeline, phases: Table) -> _Rows | None:
        names = phases.strings("phase")
        loading = names.equals(*filter(loads, names.values))
        row, begin = line.rows(phases.ints("rank")), phases.ints("start_ns")
        kept = (row >= 0) & (phases.ints("duration_ns") > 0)
        end = begin + phases.ints("duration_ns")
        if not (loading & kept).any() or not (~loading & kept).any():
            return None
        cell = line.cells(phases) if phases.has("step") else np.full(row.size, -1)
        return cls(line, row[kept], cell[kept], begin[kept], end[kept], loading[kept])

    def busy(self) -> _Spans:
        """When devices had work: from the first phase of a step to its last one, if a batch is
        loaded once per step; else in each phase."""
        other = ~self.loads
        row, cell, begin, end = (one[other] for one in (self.row, self.cell, self.begin, self.end))
        if not self._once_per_step():
            return row, begin, end
        cells, number = np.unique(cell, return_inverse=True)
        first, last = np.full(cells.size, np.iinfo(np.int64).max), np.zeros(cells.size, np.int64)
        np.minimum.at(first, number, begin)
        np.maximum.at(last, number, end)
        return cells // len(self.line.steps), first, last

    def _once_per_step(self) -> bool:
        batches = np.bincount(self.cell[self.loads & (self.cell >= 0)])
        return not ((self.cell[~self.loads] < 0).any() or (batches > 1).any())

    def loading(self, busy: _Spans) -> _Spans:
        """When batches were loaded; after the work before, if a batch is loaded once per step."""
        row, begin, end = (one[self.loads] for one in (self.row, self.begin, self.end))
        axis = axis_over(len(self.line.ranks), self.begin, self.end)
        if axis is None or not self._once_per_step():
            return row, begin, end
        order = np.lexsort((busy[1], busy[0]))
        of_row, began, ended = (one[order] for one in busy)
        before = np.searchsorted(axis.at(of_row, began), axis.at(row, end)) - 1
        known = (before >= 0) & (of_row[before] == row)
        begin = np.where(known, np.maximum(begin, ended[before]), begin)
        return row[begin < end], begin[begin < end], end[begin < end]

    def has_two_clocks(self) -> bool:
        """Whether a good part of loading lies across edges of other phases."""
        axis = axis_over(len(self.line.ranks), self.begin, self.end)
        if axis is None:
            return False
        begin, end = axis.at(self.row, self.begin), axis.at(self.row, self.end)
        busy: Union = union(begin[~self.loads], end[~self.loads])
        lasted = end - begin
        tolerance = (EDGE * lasted).astype(np.int64)
        inside = _in_one(begin[~self.loads], end[~self.loads], begin, end, tolerance)
        across = self.loads & (busy.within(begin, end) > EDGE * lasted) & ~inside
        return bool(lasted[across].sum() > ACROSS * lasted[self.loads].sum())


def _in_one(starts: Ints, ends: Ints, begin: Ints, end: Ints, tolerance: Ints) -> Mask:
    """Which intervals lie within one of some others, but for a tolerance."""
    order = np.argsort(starts, kind="stable")
    latest = np.maximum.accumulate(ends[order])
    at = np.searchsorted(starts[order], begin + tolerance, side="right") - 1
    return np.asarray((at >= 0) & (latest[np.maximum(at, 0)] >= end - tolerance))

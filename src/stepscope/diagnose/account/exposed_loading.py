"""Data loading of a host that holds its device: only what no device phase covers.

A host that runs ahead loads the next batch while its device still computes; that costs nothing.
Loading is timed on the host, other phases on the device. What shows that they are: one thread is
in one phase after another, so a recording in which loading lies across the begin or the end of
another phase of its rank has two clocks (or loads in a thread beside).
Cost: two unions of the phases. Cannot see: a device that idles within its phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.waste import covered
from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats, Ints, Mask, Table, Union, union

EDGE = 0.1
"""Part of a batch's loading that must lie within other phases, and beyond any one of them: rounding
of times does less. Our choice."""
ACROSS = 0.1
"""Part of all loading that must lie across edges; loading within one phase alone may be a part of
it. Our choice."""


def exposed_loading(job: Observed) -> Floats | None:
    """Loading of each rank and step beside its other phases, `[rank, step]`; None where nothing
    shows that host and device are timed apart."""
    return job.once("exposed loading", None, lambda: _exposed_loading(job))


def _exposed_loading(job: Observed) -> Floats | None:
    phases = job.window.table("phases")
    if phases is None or not len(job.line.steps):
        return None
    rows = _Rows.of(job.line, phases)
    if rows is None or not rows.has_two_clocks():
        return None
    both = covered(job.line, rows.row, rows.begin, rows.end)
    other = ~rows.loads
    return np.asarray(both - covered(job.line, rows.row[other], rows.begin[other], rows.end[other]))


@dataclass(frozen=True)
class _Rows:
    """The rows of phases, some of which are loading, of ranks on the grid."""

    line: Timeline
    row: Ints
    begin: Ints
    end: Ints
    loads: Mask

    @classmethod
    def of(cls, line: Timeline, phases: Table) -> _Rows | None:
        loads = phases.strings("phase").equals(DATA_LOAD)
        row, begin = line.rows(phases.ints("rank")), phases.ints("start_ns")
        kept = (row >= 0) & (phases.ints("duration_ns") > 0)
        end = begin + phases.ints("duration_ns")
        if not (loads & kept).any() or not (~loads & kept).any():
            return None
        return cls(line, row[kept], begin[kept], end[kept], loads[kept])

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

"""When ranks compute in some steps: by their kernels where those were recorded, else by phases.

A phase that communicates is none. Of a pass in which pieces of computing were recorded the pieces
count, for a pass may contain waiting. Where nothing stands between two pieces of a pass, measured
waiting is taken for its end: there ranks wait whose gradients were exchanged beside the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis
from stepscope.diagnose.operators.unrecorded import WITHIN_PASSES
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.own_time import communicates
from stepscope.diagnose.views.phase_rows import CANONICAL
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Ints, Mask, Table, Union, Window, union

AT_ONCE_NS = 30_000
"""What begins so soon after an end follows it: HolisticTraceAnalysis' `consecutive_kernel_delay`,
the longest that a device needs from one kernel to the next."""


@dataclass(frozen=True)
class Lanes:
    """A lane is one rank in one of some steps; numbered rank by rank, `columns.size` to each."""

    line: Timeline
    columns: Ints
    """Columns of the grid, ascending."""

    def __len__(self) -> int:
        return len(self.line.ranks) * self.columns.size

    def of(self, table: Table) -> Ints:
        """The lane of each row; -1: of another step, of none, or of a host."""
        place = np.full(len(self.line.steps) + 1, -1)
        place[self.columns] = np.arange(self.columns.size)
        at = place[self.line.columns(table.ints("step"))]
        row = self.line.rows(table.ints("rank"))
        return np.where((at >= 0) & (row >= 0), row * self.columns.size + at, -1)

    def row(self, lane: Ints) -> Ints:
        """The row of the grid."""
        return lane // self.columns.size

    def at(self, lane: Ints) -> Ints:
        """Which of `columns`."""
        return lane % self.columns.size


def busy(window: Window, place: Callable[[Table], Ints], axis: Axis) -> Union | None:
    """When each lane, or other stretch of the axis, computes; None where nothing tells.

    Args:
        place: the stretch that each row of a table belongs to, -1 for none.
    """
    for table, computes in (_kernels(window), _pieces(window)):
        if table is None:
            continue
        lane = place(table)
        kept = computes & (lane >= 0)
        rows, lane = table.take(kept), lane[kept]
        if lane.size:
            start, end = _spans(window, rows)
            return union(*_innermost(rows, axis.at(lane, start), axis.at(lane, end)))
    return None


def _spans(window: Window, rows: Table) -> tuple[Ints, Ints]:
    """Begin and end without the waiting at the end; of passes that may also have waited before,
    the last moment: what ended with such a pass had kept it."""
    start, end = rows.ints("start_ns"), rows.ints("start_ns") + rows.ints("duration_ns")
    return start, end - waited_at_end(window, rows)


def waited_at_end(window: Window, rows: Table) -> Ints:
    """How long each phase waited at its end, as far as that was measured."""
    if not rows.has("wait_ns"):
        return np.zeros(len(rows), np.int64)
    waited: Ints = np.maximum(rows.ints("wait_ns"), 0)  # null is less than nothing
    within = window.job.groups_of_kind(*WITHIN_PASSES)
    if any(len(group.ranks) > 1 for group in within):
        waited = np.minimum(waited, 2 * AT_ONCE_NS)
    return waited


def _kernels(window: Window) -> tuple[Table | None, Mask]:
    """The table, and which of its rows compute."""
    kernels = window.table("kernels")
    if kernels is None:
        return None, np.zeros(0, np.bool_)
    names = kernels.strings("kernel")
    return kernels, names.equals(*filter(is_computing, names.values))


def _pieces(window: Window) -> tuple[Table | None, Mask]:
    phases = window.table("phases")
    if phases is None:
        return None, np.zeros(0, np.bool_)
    return phases, phases.strings("phase").equals(*computing_phases(phases))


def computing_phases(phases: Table) -> list[str]:
    """Names of phases that are no communication from end to end."""
    return [name for name in phases.strings("phase").values if not communicates(name)]


def _innermost(rows: Table, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The rows without passes that hold others."""
    if not rows.has("phase"):
        return begin, end
    whole: Mask = rows.strings("phase").equals(*CANONICAL)
    inner = union(begin[~whole], end[~whole])
    holds = inner.covered(end) > inner.covered(begin)
    kept = ~(whole & holds)
    return begin[kept], end[kept]

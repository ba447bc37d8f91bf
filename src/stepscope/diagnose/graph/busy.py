"""When ranks compute, in some steps: by kernels if recorded, else by phases.

Communication phases do not count. If phases within a pass were recorded, these count instead of the
pass, because a pass may contain waiting. If no operators run within passes, measured waiting is
taken to be at the end of the pass, where ranks wait for gradients that were exchanged during it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.thresholds import AT_ONCE_NS
from stepscope.diagnose.views.breakdown import computing
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.phase_rows import CANONICAL
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Ints, Mask, Table, Union, Window, union

LAST_MOMENT_NS = 2 * AT_ONCE_NS
"""An operator ended with a phase if no more than this lay between. Resolution of recorded times."""


@dataclass(frozen=True)
class Lanes:
    """Lanes: one per rank and step, numbered rank by rank with `columns.size` lanes each."""

    line: Timeline
    columns: Ints
    """Columns of the grid, ascending."""

    def __len__(self) -> int:
        return len(self.line.ranks) * self.columns.size

    def of(self, table: Table) -> Ints:
        """The lane of each row; -1 for other steps, no step, or rows of a host."""
        return np.concatenate([self._at(*self.line.places(part)) for _, part in table.parts()])

    def when(self, table: Table, time_ns: Ints) -> Ints:
        """The same, but a row whose time is before its step began belongs to the step before.

        What a script does between two steps has the number of the next one, and a lane lasts until
        then.
        """
        column, row = self.line.columns(table.ints("step")), self.line.rows(table.ints("rank"))
        begin = self.line.start_ns[row, column]
        early = (column >= 0) & (row >= 0) & (begin != NULL) & (time_ns < begin)
        return self._at(row, np.where(early, column - 1, column))

    def _at(self, row: Ints, column: Ints) -> Ints:
        place = np.full(len(self.line.steps) + 1, -1)
        place[self.columns] = np.arange(self.columns.size)
        at = place[column]
        return np.where((at >= 0) & (row >= 0), row * self.columns.size + at, -1)

    def about(self, window: Window) -> Window:
        """The window with only rows that may be on a lane, of the tables that have lanes."""
        near = {name: window.tables[name].take(self.near(window.tables[name]))
                for name in self.tables(window)}  # fmt: skip
        return replace(window, tables={**window.tables, **near})

    def tables(self, window: Window) -> list[str]:
        """The tables whose rows are put on lanes."""
        return [name for name in ("comm_ops", "phases", "kernels")
                if (table := window.table(name)) is not None and table.has("step")]  # fmt: skip

    def near(self, table: Table) -> Mask:
        """Rows of these columns, and of those behind them: they may have begun earlier."""
        near = np.zeros(len(self.line.steps) + 1, np.bool_)
        near[self.columns] = True
        near[self.columns + 1] = True
        near[-1] = False  # steps that are not on the grid
        return np.concatenate(
            [near[self.line.columns(part.ints("step"))] for _, part in table.parts()]
        )

    def row(self, lane: Ints) -> Ints:
        """The grid row of each lane."""
        return lane // self.columns.size

    def at(self, lane: Ints) -> Ints:
        """The index in `columns` of each lane."""
        return lane % self.columns.size


def busy(window: Window, place: Callable[[Table], Ints], axis: Axis) -> Union | None:
    """When each lane, or other section of the axis, computes; None if not recorded.

    Args:
        place: the section that each row of a table belongs to, -1 for none.
    """
    for table, computes in _computing(window):
        lane = place(table)
        kept = computes & (lane >= 0)
        rows, lane = table.take(kept), lane[kept]
        if lane.size:
            start, end = _spans(window, rows)
            return union(*_innermost(rows, axis.at(lane, start), axis.at(lane, end)))
    return None


def _spans(window: Window, rows: Table) -> tuple[Ints, Ints]:
    """Start and end, without the waiting at the end. From passes that may also have waited earlier,
    and from phases whose waiting nobody measured, only the last moment is removed: an operator that
    ended with such a phase had blocked it."""
    start, lasted = rows.ints("start_ns"), rows.ints("duration_ns")
    waited = waited_at_end(window, rows)
    unknown = _may_have_waited(rows) & (lasted > LAST_MOMENT_NS)
    return start, start + lasted - np.where(unknown, LAST_MOMENT_NS, waited)


def _may_have_waited(rows: Table) -> Mask:
    """Phases whose waiting was not measured."""
    if not rows.has("phase"):
        return np.zeros(len(rows), np.bool_)
    return rows.ints("wait_ns") == NULL if rows.has("wait_ns") else np.ones(len(rows), np.bool_)


def waited_at_end(window: Window, rows: Table) -> Ints:
    """How long each phase waited at its end; 0 if not measured."""
    if not rows.has("wait_ns"):
        return np.zeros(len(rows), np.int64)
    waited: Ints = np.maximum(rows.ints("wait_ns"), 0)  # null is negative
    within = window.job.groups_of_kind(*WITHIN_PASSES)
    if any(len(group.ranks) > 1 for group in within):
        waited = np.minimum(waited, LAST_MOMENT_NS)
    return waited


def _computing(window: Window) -> Iterator[tuple[Table, Mask]]:
    """The kernels, then the phases, as far as recorded, and which of their rows compute."""
    kernels, phases = window.table("kernels"), window.table("phases")
    if kernels is not None:
        yield kernels, computing(kernels.strings("kernel"))
    if phases is not None:
        yield phases, phases.strings("phase").equals(*computing_phases(phases))


def computing_phases(phases: Table) -> list[str]:
    """Names of phases that are not communication phases."""
    return [name for name in phases.strings("phase").values if not communicates(name)]


def _innermost(rows: Table, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The rows without passes that contain other phases."""
    if not rows.has("phase"):
        return begin, end
    whole: Mask = rows.strings("phase").equals(*CANONICAL)
    inner = union(begin[~whole], end[~whole])
    holds = inner.covered(end) > inner.covered(begin)
    kept = ~(whole & holds)
    return begin[kept], end[kept]

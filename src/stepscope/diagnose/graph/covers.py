"""Which phases or kernels run in given pieces of time, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.busy import Lanes, computing_phases
from stepscope.diagnose.numeric.intervals import Axis, axis_over
from stepscope.diagnose.views.breakdown import computing
from stepscope.diagnose.views.phase_rows import CANONICAL
from stepscope.window import Floats, Ints, Strings, Table, Union, Window, union


@dataclass(frozen=True)
class Covers:
    """When each name runs, on an axis with one section per lane."""

    axis: Axis
    unions: dict[str, Union]

    def within(self, lane: Ints, begin_ns: Ints, end_ns: Ints) -> dict[str, Floats]:
        """How much of each piece of time each name covers, in ns."""
        begin, end = self.axis.at(lane, begin_ns), self.axis.at(lane, end_ns)
        return {name: (one.covered(end) - one.covered(begin)).astype(np.float64)
                for name, one in self.unions.items()}  # fmt: skip


def phase_covers(window: Window, lanes: Lanes, wanted: Ints) -> Covers | None:
    """The phases of these lanes that are neither communication nor nested in another phase."""
    phases = window.table("phases")
    if phases is None:
        return None
    phases, lane = _of(lanes, phases, wanted)
    names = phases.strings("phase")
    whole = names.equals(*CANONICAL)
    axis, begin, end = _placed(lanes, phases, lane)
    if axis is None:
        return None
    inner = ~whole & union(begin[whole], end[whole]).holds((begin + end) // 2)
    kept = names.equals(*computing_phases(phases)) & ~inner
    return _covers(axis, names.take(kept), begin[kept], end[kept])


def kernel_covers(window: Window, lanes: Lanes, wanted: Ints) -> Covers | None:
    """The compute kernels of these lanes."""
    kernels = window.table("kernels")
    if kernels is None:
        return None
    kernels, lane = _of(lanes, kernels, wanted)
    names = kernels.strings("kernel")
    kept = computing(names)
    axis, begin, end = _placed(lanes, kernels, lane)
    return None if axis is None else _covers(axis, names.take(kept), begin[kept], end[kept])


GC = "gc"
"""The `kind` of garbage collection in table `pauses`."""


def pause_covers(window: Window, lanes: Lanes) -> Covers | None:
    """When ranks paused for garbage collection; a pause belongs to the step in which it began."""
    pauses, line = window.table("pauses"), lanes.line
    if pauses is None:
        return None
    pauses = pauses.take(pauses.strings("kind").equals(GC))
    row, column = line.rows(pauses.ints("rank")), line.column_at(pauses.ints("start_ns"))
    kept = (row >= 0) & np.isin(column, lanes.columns)
    at = row[kept] * lanes.columns.size + np.searchsorted(lanes.columns, column[kept])
    axis, begin, end = _placed(lanes, pauses.take(kept), at)
    return None if axis is None else Covers(axis, {GC: union(begin, end)})


def _of(lanes: Lanes, table: Table, wanted: Ints) -> tuple[Table, Ints]:
    """The rows of the wanted lanes, and their lanes."""
    chosen = np.zeros(len(lanes) + 1, np.bool_)
    chosen[wanted] = True
    # -1 is the last entry, which is False
    rows = table.take(np.concatenate([chosen[lanes.of(part)] for _, part in table.parts()]))
    return rows, lanes.of(rows)


def _placed(lanes: Lanes, rows: Table, lane: Ints) -> tuple[Axis | None, Ints, Ints]:
    start = rows.ints("start_ns")
    end = start + rows.ints("duration_ns")
    axis = axis_over(len(lanes), start, end)
    if axis is None:
        return None, start, end
    return axis, axis.at(lane, start), axis.at(lane, end)


def _covers(axis: Axis, names: Strings, begin: Ints, end: Ints) -> Covers:
    found = {}
    for code in np.unique(names.codes).tolist():
        rows = names.codes == code
        found[names.values[code]] = union(begin[rows], end[rows])
    return Covers(axis, found)

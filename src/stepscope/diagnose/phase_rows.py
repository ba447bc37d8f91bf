"""The rows of `phases` on the grid of ranks and steps, and which of them lie inside others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.intervals import Axis, axis_over
from stepscope.diagnose.timeline import Timeline
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window, union

CANONICAL = (DATA_LOAD, FORWARD, BACKWARD, OPTIMIZER)


@dataclass(frozen=True)
class PhaseRows:
    """The rows that lie on the grid, as arrays. `inner`: nested in a canonical phase."""

    line: Timeline
    axis: Axis
    rank: Ints
    column: Ints
    start: Ints
    duration: Ints
    names: Strings
    table: Table
    inner: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))

    @cached_property
    def cell(self) -> Ints:
        """The number of each row's rank and step."""
        return self.rank * len(self.line.steps) + self.column

    def grid(self, values: Floats, rows: Mask) -> Floats:
        """Sums of the values per rank and step; NaN where no row is or a value is unknown."""
        shape = (len(self.line.ranks), len(self.line.steps))
        cell = self.cell[rows]
        count = np.bincount(cell, minlength=shape[0] * shape[1])
        total = np.bincount(cell, weights=values[rows], minlength=shape[0] * shape[1])
        return np.where(count > 0, total, np.nan).reshape(shape)


def phase_rows(window: Window, line: Timeline) -> PhaseRows | None:
    """The window's rows of `phases`, or None where there are none that fit on one axis."""
    table = window.table("phases")
    if table is None:
        return None
    rank, column = line.rows(table.ints("rank")), line.columns(table.ints("step"))
    kept = (rank >= 0) & (column >= 0) & (table.strings("phase").codes >= 0)
    table, rank, column = table.take(kept), rank[kept], column[kept]
    start, duration = table.ints("start_ns"), table.ints("duration_ns")
    axis = axis_over(len(line.ranks), start, start + duration, *_steps(line))
    if axis is None or not len(table):
        return None
    rows = PhaseRows(line, axis, rank, column, start, duration, table.strings("phase"), table)
    return _mark_inner(rows)


def _steps(line: Timeline) -> tuple[Ints, Ints]:
    """Begins and ends of all steps of all ranks: what follows the last phase has a place, too."""
    known = (line.start_ns != NULL) & np.isfinite(line.period_ns)
    begin = line.start_ns[known]
    return begin, begin + line.period_ns[known].astype(np.int64)


def _mark_inner(rows: PhaseRows) -> PhaseRows:
    """Marks the rows of all phases but the canonical whose middle lies inside a canonical one."""
    canonical = rows.names.equals(*CANONICAL)
    begin = rows.axis.at(rows.rank, rows.start)
    outer = union(begin[canonical], (begin + rows.duration)[canonical])
    inner = ~canonical & outer.holds(begin + rows.duration // 2)
    return replace(rows, inner=inner)


def nullable(table: Table, column: str) -> Floats:
    """A column whose unknown values, maybe all of them, are NaN."""
    if not table.has(column):
        return np.full(len(table), np.nan)
    values = table.ints(column)
    return np.where(values == NULL, np.nan, values.astype(np.float64))

"""The rows of `phases` on the grid of ranks and steps, and which of them are nested in others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis, axis_over, union_at
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.window import NULL, PART, Floats, Ints, Mask, Strings, Table, Union, Window

CANONICAL = (DATA_LOAD, FORWARD, BACKWARD, OPTIMIZER)
WHOLE = 0.9
"""A row of this share of the step time is the step under another name, in which all phases are.
Our simulator."""


@dataclass(frozen=True)
class PhaseRows:
    """The rows that are on the grid, as arrays."""

    line: Timeline
    axis: Axis
    rank: Ints
    column: Ints
    start: Ints
    duration: Ints
    names: Strings
    table: Table

    @cached_property
    def cell(self) -> Ints:
        """The grid cell of each row: rank * steps + step."""
        cell = self.rank * len(self.line.steps)
        cell += self.column
        return cell

    @cached_property
    def begin(self) -> Ints:
        """The start of each row on the axis."""
        return self.axis.at(self.rank, self.start)

    @property
    def end(self) -> Ints:
        return self.begin + self.duration

    def parts(self) -> Iterator[tuple[slice, Ints, Ints]]:
        """Parts of the rows, with their begins and ends on the axis."""
        for part in self._slices():
            yield part, self.begin[part], self.begin[part] + self.duration[part]

    def _slices(self) -> Iterator[slice]:
        """Parts of the rows, whose intermediate results stay in the CPU cache."""
        return (slice(first, first + PART) for first in range(0, self.rank.size, PART))

    def union_of(self, rows: Mask) -> Union:
        """When ranks are in one of the given rows."""
        return union_at(self.axis, self.rank, self.begin, self.duration, rows)

    @cached_property
    def inner(self) -> Mask:
        """Rows of non-canonical phases that are nested in others.

        These are rows whose middle is inside a canonical phase. Where the passes have names of
        another program, they are rows inside of a longer row that is not the whole step.
        """
        canonical = self.names.equals(*CANONICAL)
        others = np.flatnonzero(~canonical)
        middle = self.begin[others] + self.duration[others] // 2
        inner = np.zeros(canonical.size, np.bool_)
        inner[others] = self.union_of(canonical).holds(middle)
        if not self.has_passes:
            inner[others] |= self._contained[others]
        return inner

    @property
    def has_passes(self) -> bool:
        """Whether any pass has the contract's name."""
        return bool(self.names.equals(FORWARD, BACKWARD).any())

    @property
    def passes(self) -> frozenset[str]:
        """Phases that may contain others: the passes, or those in which others are nested."""
        if self.has_passes:
            return frozenset((FORWARD, BACKWARD))
        around = self._around[self._around >= 0]
        codes = self.names.codes[around[~self._contained[around]]]
        return frozenset(self.names.values[code] for code in np.unique(codes).tolist())

    @property
    def _contained(self) -> Mask:
        return np.asarray(self._around >= 0)

    @cached_property
    def _around(self) -> Ints:
        """For each row, one of its step that begins no later and ends no earlier; -1 if there is
        none. What runs ahead in another step, as a loader does, contains it by chance."""
        parts = np.flatnonzero((self.duration < WHOLE * self.line.typical_ns) & (self.duration > 0))
        order = parts[np.lexsort((-self.end[parts], self.begin[parts]))]
        end, around = self.end[order], np.full(len(self.rank), -1)
        reach = np.maximum.accumulate(end)
        furthest = np.maximum.accumulate(np.where(end >= reach, np.arange(order.size), 0))
        inside = np.flatnonzero(end[1:] <= reach[:-1]) + 1
        outer = order[furthest[inside - 1]]
        around[order[inside]] = np.where(self.cell[outer] == self.cell[order[inside]], outer, -1)
        return around

    @cached_property
    def made_up(self) -> bool:
        """Whether starts are made up from durations: no time lies between any two phases of a
        step."""
        outer = np.flatnonzero(~self.inner)
        outer = outer[np.lexsort((self.begin[outer], self.cell[outer]))]
        follows = self.cell[outer[1:]] == self.cell[outer[:-1]]
        return bool((self.begin[outer[1:]] == self.end[outer[:-1]])[follows].all())

    def shares(self, rows: Mask) -> dict[str, float]:
        """The share of each phase's rows that is among the given ones."""
        count, chosen = self._counts, np.zeros_like(self._counts)
        if rows.any():  # mostly none are
            chosen = np.bincount(self.names.codes[rows], minlength=count.size)
        return {name: float(chosen[at] / count[at])
                for at, name in enumerate(self.names.values) if count[at]}  # fmt: skip

    @cached_property
    def _counts(self) -> Ints:
        """How many rows each phase has, by its code."""
        count = np.zeros(len(self.names.values), np.int64)
        for part in self._slices():
            count += np.bincount(self.names.codes[part], minlength=count.size)
        return count

    def grids(self, values: Floats | Ints, phases: Sequence[str]) -> Floats:
        """`[phase, rank, step]`: sums of the values; NaN without rows or with an unknown value."""
        if not phases:
            return np.zeros((0, *self.line.shape))
        cell, size = self._cells(phases)
        total = np.bincount(cell, weights=values, minlength=size)[:size]
        return np.where(self.entered(phases), total.reshape(len(phases), *self.line.shape), np.nan)

    def entered(self, phases: Sequence[str]) -> Mask:
        """Which phases have rows, `[phase, rank, step]`."""
        return np.asarray(self.counted(phases) > 0)

    def counted(self, phases: Sequence[str]) -> Ints:
        """How many rows phases have, `[phase, rank, step]`."""
        number = {name: at for at, name in enumerate(self.names.values)}
        return self._counted[[number.get(phase, -1) for phase in phases]]

    @cached_property
    def _counted(self) -> Ints:
        """The same of all phases by their codes, and of an unknown one, which has none."""
        shape = len(self.names.values) + 1, *self.line.shape
        cells = self._cells(self.names.values)[0]
        return np.bincount(cells, minlength=prod(shape)).reshape(shape)

    def _cells(self, phases: Sequence[str]) -> tuple[Ints, int]:
        """The place of each row in `[phase, rank, step]`, and how many there are; rows of other
        phases come after these."""
        size = len(self.line.ranks) * len(self.line.steps)
        number = {phase: at for at, phase in enumerate(phases)}
        beyond = len(phases)
        place = np.array([*(number.get(name, beyond) for name in self.names.values), beyond])
        place *= size
        cell = np.empty(self.rank.size, np.int64)
        for part in self._slices():
            np.add(place[self.names.codes[part]], self.cell[part], out=cell[part])
        return cell, size * len(phases)


def phase_rows(window: Window, line: Timeline) -> PhaseRows | None:
    """The rows of `phases`, or None if there are none or they do not fit on one axis.

    The step under another name is left out: it explains nothing.
    """
    table = window.table("phases")
    rows = None if table is None else rows_of(table, "phase", line)
    whole = () if rows is None or table is None else _whole_steps(rows)
    if not whole or table is None:
        return rows
    return rows_of(table.take(~table.strings("phase").equals(*whole)), "phase", line)


def _whole_steps(rows: PhaseRows) -> tuple[str, ...]:
    """Phases that mostly last as long as their step, if others last notably longer than what they
    leave of it: these must be in them."""
    names, lasted = rows.names, rows.duration.astype(np.float64)
    total = np.bincount(rows.names.codes, lasted, len(names.values))
    rough = np.flatnonzero(total > HALF * np.nansum(rows.line.duration_ns)).tolist()
    rough, whole = [at for at in rough if names.values[at] not in CANONICAL], []
    in_all = np.bincount(rows.cell, lasted, rows.line.duration_ns.size) if rough else lasted[:0]
    for at in rough:
        chosen = np.flatnonzero(names.codes == at)
        own = np.bincount(rows.cell[chosen], lasted[chosen], in_all.size)
        inside, step = in_all - own, rows.line.duration_ns.ravel()
        seen = (own > 0) & (step > 0)
        own, inside, step = own[seen], inside[seen], step[seen]
        long = (own >= WHOLE * step) & (own + inside > (2 - WHOLE) * step)
        whole += [names.values[at]] if long.mean() > HALF else []
    return tuple(whole)


def rows_of(table: Table, name: str, line: Timeline) -> PhaseRows | None:
    """The rows of a table like `phases`, with phase names in column `name`; None as above."""
    rank, column = line.rows(table.ints("rank")), line.columns(table.ints("step"))
    kept = (rank >= 0) & (column >= 0) & (table.strings(name).codes >= 0)
    if not kept.all():
        table, rank, column = table.take(kept), rank[kept], column[kept]
    start, duration = table.ints("start_ns"), table.ints("duration_ns")
    axis = axis_over(len(line.ranks), start, start + duration, *_steps(line))
    if axis is None or not len(table):
        return None
    return PhaseRows(line, axis, rank, column, start, duration, table.strings(name), table)


def _steps(line: Timeline) -> tuple[Ints, Ints]:
    """Starts and ends of all steps, so that the axis also covers the time after the last phase."""
    known = (line.start_ns != NULL) & np.isfinite(line.period_ns)
    begin = line.start_ns[known]
    return begin, begin + line.period_ns[known].astype(np.int64)


def nullable(table: Table, column: str) -> Floats:
    """A column with NaN for unknown values; all NaN if the column is missing."""
    if not table.has(column):
        return np.full(len(table), np.nan)
    values = table.ints(column)
    return np.where(values == NULL, np.nan, values.astype(np.float64))

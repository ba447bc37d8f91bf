"""The steps of a job as a grid: one row per rank, one column per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.finding import Span
from stepscope.diagnose.numeric import stats
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window, known_steps

WARM_UP_STEPS = 5
"""The first steps include compilation, allocator growth and cold caches (algorithm notes, section
4). Our simulator."""
WARM_UP_SHARE = 0.1
"""In a short window at most this share of the steps counts as warm-up. Our simulator."""
FIRST_SHARE, FEW_STEPS = 0.34, 20
"""Of fewer than twenty steps from the very start of a job, a third is warm-up: two of six. Our
simulator."""
FASTER, LEAST_FASTER = 1.1, 2
"""Warming up makes steps slower. If usual steps take this many times as long as some of the first
ones, so many in a row, these are no warm-up, but show what a step took before: as
`step_time.LEAST_RISE`. A single one may have been cut off by the recorder. Our choice."""
LONGEST_PERIOD = 1000
"""If a step starts this many median steps after the previous one, the clock jumped, or it is
another run. Our simulator."""


@dataclass(frozen=True)
class Timeline:
    """When each rank ran each step. Unknown starts are NULL, unknown durations NaN."""

    ranks: Ints
    steps: Ints
    start_ns: Ints
    duration_ns: Floats
    is_trace: bool = False
    """Whether a profiler recorded them: it is started when the job has warmed up."""

    @cached_property
    def period_ns(self) -> Floats:
        """Time from start to start, so that time between two steps counts as well.

        The last step, and a step before a gap or a clock jump, has its duration instead.
        """
        period = self.duration_ns.copy()
        if len(self.steps) < 2:
            return period
        start, following = self.start_ns[:, :-1], self.start_ns[:, 1:]
        known = (start != NULL) & (following != NULL) & (np.diff(self.steps) == 1)
        gap = np.where(known, np.where(known, following, 0) - np.where(known, start, 0), -1)
        believable = (gap > 0) & (gap < LONGEST_PERIOD * max(stats.median(period), 1.0))
        period[:, :-1] = np.where(believable, gap, period[:, :-1])
        return period

    @cached_property
    def job_period_ns(self) -> Floats:
        """The step time of the job: the median over ranks, which run in step apart from jitter."""
        return stats.column_median(self.period_ns)

    @cached_property
    def warm_up(self) -> int:
        """The number of first columns that are warm-up and not judged.

        Steps that are faster than most later ones do not warm up, nor does anything after them,
        unless they become faster yet. A healthy job before this one has warmed up.
        """
        if self.first_own:
            return 0
        share = WARM_UP_SHARE
        if not self.is_trace and len(self.steps) and self.steps[0] < WARM_UP_STEPS:
            share = FIRST_SHARE if len(self.steps) < FEW_STEPS else share
        most = min(WARM_UP_STEPS, int(len(self.steps) * share))
        usual_ns = stats.median(self.job_period_ns[most:])
        period = self.job_period_ns[:most]
        calm = period < FASTER * usual_ns
        fast = FASTER * self.job_period_ns < usual_ns
        return next((at for at in range(most)
                     if calm[at:].all() and fast[at : at + LEAST_FASTER].all()
                     and period[at] < FASTER * period[at:].min()), most)  # fmt: skip

    @property
    def is_single_step(self) -> bool:
        """Whether only one step is judged, which does not show what is a moment's delay."""
        return len(self.steps) - self.warm_up == 1

    @cached_property
    def typical_ns(self) -> float:
        """The median step time."""
        return stats.median(self.job_period_ns[self.warm_up :])

    def columns(self, step: Ints) -> Ints:
        """Column of each step; -1 if not on the grid. Do not modify the result."""
        return _positions(self.steps, step)

    def rows(self, rank: Ints) -> Ints:
        """Row of each rank; -1 if not on the grid. Do not modify the result."""
        return _positions(self.ranks, rank)

    def ranks_of(self, rows: Ints | Mask | Sequence[int]) -> tuple[int, ...]:
        """The ranks of rows of the grid."""
        return tuple(self.ranks[list(rows)].tolist())

    def within(self, span: Span) -> Mask:
        """Which steps are from the first to the last one of a span."""
        return np.asarray((self.steps >= span[0]) & (self.steps <= span[1]))

    def since(self, first: int) -> str:
        """` from step 30`; empty where nothing before was judged."""
        column = max(first, self.first_own)
        return f" from step {self.steps[column]}" if first > self.warm_up else ""

    @cached_property
    def first_own(self) -> int:
        """The first column of the job itself, behind those of a healthy one (`after_baseline`)."""
        return int(np.searchsorted(self.steps, 0))

    @property
    def shape(self) -> tuple[int, int]:
        """Of a grid `[rank, step]`."""
        return len(self.ranks), len(self.steps)

    def places(self, table: Table) -> tuple[Ints, Ints]:
        """The grid row and column of each row of a table; -1: not on the grid."""
        return self.rows(table.ints("rank")), self.columns(table.ints("step"))

    def cells(self, table: Table) -> Ints:
        """Where the rank and step of each row are on a flat grid, `[rank, step]`; -1: not on it."""
        row, column = self.places(table)
        return np.where((row >= 0) & (column >= 0), row * len(self.steps) + column, -1)

    def sums(self, cell: Ints, values: Floats | Ints) -> Floats:
        """`[rank, step]`: the sums of values by their cells on a flat grid; -1 does not count."""
        known = cell >= 0
        ranks, steps = self.shape
        return stats.sums(cell[known], values[known], ranks * steps).reshape(ranks, steps)

    def column_at(self, time_ns: Ints) -> Ints:
        """The column of the step that contains each time, by the job's step starts; -1 before."""
        return np.searchsorted(self.begins_ns, time_ns, side="right") - 1

    def column_of(self, row: int, time_ns: Ints) -> Ints:
        """The same by the step starts of one rank: while it stands still, others are in the next
        step."""
        return np.searchsorted(self._begins_of(row), time_ns, side="right") - 1

    @cached_property
    def begins_ns(self) -> Ints:
        """When the first rank began each step; never decreasing."""
        latest = np.iinfo(np.int64).max
        known = np.where(self.start_ns == NULL, latest, self.start_ns)
        begins = known.min(axis=0) if len(known) else np.full(len(self.steps), latest)
        return np.maximum.accumulate(np.where(begins == latest, 0, begins))

    def span(self, first: int, stop: int) -> Span:
        """First and last step number of a range of columns."""
        return int(self.steps[first]), int(self.steps[stop - 1])

    def span_ns(self, first: int, stop: int) -> Span:
        """Start and end time of a range of columns."""
        begin = int(self.begins_ns[first])
        end = int(self.begins_ns[stop - 1]) + int(np.nan_to_num(self.job_period_ns[stop - 1]))
        return begin, max(begin, end)

    def span_of(self, row: int, first: int, stop: int) -> Span:
        """The same of one rank, which stands still between two steps while others are in the next
        one."""
        begin = int(self._begins_of(row)[first])
        lasted = float(np.nansum(self.period_ns[row, first:stop]))
        return begin, begin + int(lasted)

    def _begins_of(self, row: int) -> Ints:
        own = self.start_ns[row]
        return np.maximum.accumulate(np.where(own == NULL, self.begins_ns, own))


def _positions(grid: Ints, wanted: Ints) -> Ints:
    if not grid.size:
        return np.full(wanted.shape, -1, np.int64)
    if int(grid[-1]) - int(grid[0]) == grid.size - 1:
        return _from_first(int(grid[0]), grid.size, wanted)
    at = np.minimum(np.searchsorted(grid, wanted), grid.size - 1)
    return np.where(grid[at] == wanted, at, -1)


def _from_first(first: int, size: int, wanted: Ints) -> Ints:
    """Positions on a grid without gaps. In the usual case that it starts at 0, no copy is made."""
    at: Ints = wanted - first if first else wanted
    # a negative number is a huge one without its sign: one pass over millions of rows, not two
    if at.size and int(at.view(np.uint64).max()) < size:
        return at
    return np.where((wanted >= first) & (wanted < first + size), wanted - first, -1)


def timeline(window: Window) -> Timeline:
    """The grid of table `steps`; if it was not recorded, of another table with step numbers."""
    ranks = np.array(window.ranks, np.int64)
    for name, begin in (("steps", "start_ns"), ("phases", "start_ns"), ("comm_ops", "enqueue_ns"),
                        ("kernels", "start_ns")):  # fmt: skip
        table = window.table(name)
        if table is not None and table.has("step", begin):
            table = table.take(known_steps(table.ints("step")) & (table.ints("rank") >= 0))
            if len(table):
                grid = _grid(ranks, table, table.ints(begin))
                if name in ("comm_ops", "kernels"):
                    grid = _from_last_end(grid)
                return replace(grid, is_trace=window.table("host_ops") is not None)
    nothing = np.zeros((len(ranks), 0))
    return Timeline(ranks, np.zeros(0, np.int64), nothing.astype(np.int64), nothing)


def _grid(ranks: Ints, table: Table, start: Ints) -> Timeline:
    steps = np.unique(table.ints("step"))
    shape = (len(ranks), len(steps))
    cell = _positions(ranks, table.ints("rank")) * shape[1] + _positions(steps, table.ints("step"))
    first = np.full(shape[0] * shape[1], np.iinfo(np.int64).max)
    last = np.full(shape[0] * shape[1], NULL)
    np.minimum.at(first, cell, start)
    np.maximum.at(last, cell, _ends(table, start))
    known = last != NULL
    duration = np.where(known, np.where(known, last, 0) - np.where(known, first, 0), np.nan)
    first = np.where(known, first, NULL)
    return Timeline(ranks, steps, first.reshape(shape), duration.reshape(shape))


def _from_last_end(grid: Timeline) -> Timeline:
    """Each step begins where the rank's last operator or kernel of the step before ended: what its
    host or device does before the first of a step belongs to it."""
    start, lasted = grid.start_ns, grid.duration_ns
    before = np.where(np.isfinite(lasted), start + np.nan_to_num(lasted).astype(np.int64), NULL)
    known = (before[:, :-1] != NULL) & (start[:, 1:] != NULL) & (np.diff(grid.steps) == 1)
    ahead = np.where(known, start[:, 1:] - before[:, :-1], 0).clip(0)
    ahead = np.pad(ahead, ((0, 0), (1, 0)))
    return replace(grid, start_ns=np.where(start == NULL, NULL, start - ahead),
                   duration_ns=lasted + ahead)  # fmt: skip


def _ends(table: Table, start: Ints) -> Ints:
    if table.has("duration_ns"):
        return start + table.ints("duration_ns")
    if not table.has("end_ns"):
        return start
    end = table.ints("end_ns")
    return np.where(end == NULL, start, end)

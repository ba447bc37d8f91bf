"""Waiting that nobody marked, inferred from how ranks mirror each other.

In a group that leaves together, what one rank is late by comes back as the others' surplus: a phase
whose deviation from the peers is the opposite of what came before it contains waiting. The phases
of a step, and the gaps before them, are walked in order of time. In a mirrored phase a rank waited
for as long as it was earlier than the last one.

Cost: one sort of the phase rows, and a few passes over `[rank, step]` for each phase.
Cannot see: waiting in pipelines, whose gaps are bubbles and whose stages do not leave together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.window import NULL, Floats, Ints, Mask, Union

MIRROR = (0.6, 1.4)
"""Minus the slope of a phase that gives back what came before it: 1 without noise. Measured on real
data (`shared/real`)."""
LEAST_LATE = 0.005
"""Lateness below this share of the step time shows nothing about waiting. Measured on real data."""
LEAST_CELLS = 8
"""Ranks and steps with lateness whose median slope has the right sign by chance in less than one of
a hundred cases. Statistics (binomial)."""


@dataclass(frozen=True)
class Part:
    """A phase, or the time before it that is in no phase, of all ranks and steps in ns."""

    phase: str
    gap: bool
    own: Floats


@dataclass(frozen=True)
class Tiles:
    """The phases of every step with the gaps before them, in order of time."""

    rows: PhaseRows
    order: Ints
    """Outermost rows by rank, step and start."""
    gap: Floats
    """The time before each of these that is in no phase; NaN where its step was not recorded."""
    tail: Floats
    """`[rank, step]`: the time after the last phase; NaN likewise."""

    @classmethod
    def of(cls, rows: PhaseRows, waiting: Union | None = None) -> Tiles:
        """Tiles of these rows; `waiting` is when ranks are known to have waited."""
        order = np.flatnonzero(~rows.inner)
        order = order[np.lexsort((rows.begin[order], rows.cell[order]))]
        begin, end, cell = rows.begin[order], rows.end[order], rows.cell[order]
        starts, period = _steps(rows)
        known = ((rows.line.start_ns != NULL) & np.isfinite(period)).ravel()[cell]
        first = _first_of_each(cell)
        reach = _running_end(end, cell)
        before = np.where(first, starts.ravel()[cell], np.roll(reach, 1))
        gap = np.where(known, _free(before, begin, waiting), np.nan)
        tail = np.full(starts.size, np.nan)
        last = np.flatnonzero(np.roll(first, -1))
        stop = starts.ravel()[cell[last]] + np.nan_to_num(period.ravel()[cell[last]])
        after = _free(reach[last], stop.astype(np.int64), waiting)
        tail[cell[last]] = np.where(known[last], after, np.nan)
        return cls(rows, order, gap, tail.reshape(starts.shape))

    def in_time(self) -> list[str]:
        """The phases by their mean start within the step."""
        starts, _ = _steps(self.rows)
        offset = self.rows.begin[self.order] - starts.ravel()[self.rows.cell[self.order]]
        code = self.rows.names.codes[self.order]
        size = len(self.rows.names.values)
        count = np.bincount(code, minlength=size)
        mean = np.bincount(code, weights=offset, minlength=size) / np.maximum(count, 1)
        known = [at for at in range(size) if count[at]]
        return [self.rows.names.values[at] for at in sorted(known, key=lambda at: mean[at])]

    @property
    def _first(self) -> Mask:
        """Which rows are the first of their rank and step."""
        return _first_of_each(self.rows.cell[self.order])

    def gaps(self) -> Iterator[tuple[str, Floats]]:
        """The time in no phase between each phase and the one before, `[rank, step]`; NaN where the
        step has no phases."""
        shape, inside = self.tail.shape, ~self._first
        code, cell = self.rows.names.codes[self.order], self.rows.cell[self.order]
        for at, name in enumerate(self.rows.names.values):
            here = (code == at) & inside
            total = stats.sums(cell[here], self.gap[here], self.tail.size).reshape(shape)
            yield name, np.where(np.isfinite(self.tail), total, np.nan)

    @property
    def leading(self) -> Floats:
        """The gap before the first phase of each step, `[rank, step]`."""
        first = self._first
        found = np.full(self.tail.size, np.nan)
        found[self.rows.cell[self.order][first]] = self.gap[first]
        return found.reshape(self.tail.shape)


def _first_of_each(cell: Ints) -> Mask:
    first = np.ones(cell.size, np.bool_)
    first[1:] = cell[1:] != cell[:-1]
    return first


def _steps(rows: PhaseRows) -> tuple[Ints, Floats]:
    """Where each step starts on the axis, and how long it lasts."""
    line = rows.line
    known = line.start_ns != NULL
    start = np.where(known, line.start_ns, rows.axis.origin_ns)
    return rows.axis.at(np.arange(len(line.ranks))[:, None], start), line.period_ns


def _free(begin: Ints, end: Ints, waiting: Union | None) -> Ints:
    """How long each interval is, without known waiting; 0 where it ends before it begins."""
    end = np.maximum(begin, end)
    return end - begin - (0 if waiting is None else waiting.within(begin, end))


def _running_end(end: Ints, cell: Ints) -> Ints:
    """The latest end so far within each rank and step; rows are in order."""
    base = int(end.min(initial=0))
    span = int(end.max(initial=0)) - base + 1
    number = np.cumsum(np.r_[0, np.diff(cell) != 0])
    if number.size and (int(number[-1]) + 1) * span >= np.iinfo(np.int64).max:
        return end
    return np.asarray(np.maximum.accumulate(end - base + number * span) - number * span + base)


def without_waiting(
    parts: Sequence[Part],
    groups: Sequence[Ints],
    meets: Collection[str],
    typical_ns: float,
) -> tuple[list[Part], tuple[str, ...]]:
    """The parts of a step, in order of time, less inferred waiting; and the phases that hold it.

    Args:
        groups: ranks that leave together and do equal work.
        meets: phases after which all ranks are level.
    """
    late, found, inferred = _nothing(parts), [], []
    for part in parts:
        if part.phase in meets and not part.gap:
            late = _nothing(parts)
            found.append(part)
            continue
        deviation = _deviation(part.own, groups)
        if _mirrors(deviation, late, LEAST_LATE * typical_ns):
            waited = _latest(late, groups) - late
            own = np.maximum(part.own - waited, 0.0)
            deviation, late = _deviation(own, groups), _nothing(parts)
            found.append(Part(part.phase, part.gap, own))
            inferred.append(part.phase)
        else:
            found.append(part)
        late = late + np.nan_to_num(deviation)
    return found, tuple(dict.fromkeys(inferred))


def _nothing(parts: Sequence[Part]) -> Floats:
    return np.zeros(parts[0].own.shape) if parts else np.zeros((0, 0))


def _deviation(own: Floats, groups: Sequence[Ints]) -> Floats:
    """From the median of the group, step by step."""
    found = np.zeros_like(own)
    for rows in groups:
        found[rows] = own[rows] - stats.column_median(own[rows])
    return found


def _latest(late: Floats, groups: Sequence[Ints]) -> Floats:
    """The lateness of the last of each group."""
    found = late.copy()
    for rows in groups:
        found[rows] = late[rows].max(axis=0)
    return found


def _mirrors(deviation: Floats, late: Floats, floor_ns: float) -> bool:
    """Whether what came before is given back: by the median slope, weighted by lateness."""
    big: Mask = (np.abs(late) > floor_ns) & np.isfinite(deviation)
    if big.sum() < LEAST_CELLS:
        return False
    slope, weight = -deviation[big] / late[big], np.abs(late[big])
    order = slope.argsort()
    total = weight[order].cumsum()
    middle = slope[order][np.searchsorted(total, total[-1] / 2)]
    return bool(MIRROR[0] < middle < MIRROR[1])

"""The phases of a step and the time between them, in order of time, as parts that cover the whole
step.

Cost: one sort of the phase rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import receives, transfers
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.unnamed import OUTSIDE
from stepscope.window import NULL, Floats, Ints, Mask, Union


@dataclass(frozen=True)
class Part:
    """A phase, or the time before it that is in no phase, of all ranks and steps in ns."""

    phase: str
    gap: bool
    own: Floats
    alternates: bool = False
    """Whether it takes turns with sends and receives within a step, or is one of them."""


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
        first = np.diff(cell, prepend=-1) != 0
        reach = running_end(end, cell)
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

    def parts(self, own: Mapping[str, Floats]) -> list[Part]:
        """All parts of a step, phases with their own time where it is known, else whole."""
        names = self.in_time()
        turns = self.alternating(names)
        entering = self._entering(turns)
        gaps = dict(self._gaps(entering))
        own = {name: values for name, values in own.items() if name not in self.passing}
        others = [name for name in names if name not in own]
        whole = self.rows.grids(self.rows.duration, others)
        known = {name: self._never_entered(one) for name, one in zip(others, whole, strict=True)}
        known.update(own)
        inside = [part for name in names for part in
                  (Part(name, True, gaps[name], name in turns),
                   Part(name, False, known[name], name in turns))]  # fmt: skip
        at = next((2 * at for at, name in enumerate(names) if name in turns), 0)
        if turns:
            inside.insert(at, Part(names[at // 2], True, self._summed(entering)))
        return [Part(OUTSIDE, True, self.leading), *inside, Part(OUTSIDE, True, self.tail)]

    def _entering(self, turns: frozenset[str]) -> Mask:
        """The rows with which ranks enter what takes turns, if others came before in the step: no
        neighbour holds up a rank that has neither sent nor received anything yet."""
        entered = np.zeros(self.order.size, np.bool_)
        rows = np.flatnonzero(self.rows.names.equals(*turns)[self.order])
        entered[rows[np.diff(self.rows.cell[self.order][rows], prepend=-1) != 0]] = True
        return entered & ~self._first

    def alternating(self, names: list[str]) -> frozenset[str]:
        """Sends and receives, and the phases that take turns with them, as the middle step shows
        it; `names` are all phases by their mean start.

        Totals of a step without times do not show it. There, these are the phases from the first
        transfer to the last in the order of the log, and if that is a receive, what it is for.
        """
        passing, spans = [name for name in names if name in self.passing], self._spans
        if not passing:
            return frozenset()
        if self.rows.made_up and all(_once(spans[name]) for name in passing):
            first, last = names.index(passing[0]), names.index(passing[-1])
            return frozenset(names[first : last + 1 + receives(passing[-1])])
        found = (name for name in names for one in passing if _takes_turns(spans[name], spans[one]))
        return frozenset((*passing, *found))

    @cached_property
    def passing(self) -> frozenset[str]:
        """Sends and receives, by their names, or by who is in them: the first stage of a pipeline
        receives no input, the last one no gradients, and both take turns with the passes."""
        names = self.in_time()
        named = frozenset(filter(transfers, names))
        if named:
            return named
        lack = self._lacking()
        few = [name for name in names if 0 < lack[name].sum() <= HALF * lack[name].size]
        turns = [name for name in few if not _once(self._spans[name])]
        return frozenset(
            one for one in turns
            if any(not (lack[one] & lack[other]).any() for other in turns)
        )  # fmt: skip

    def _lacking(self) -> dict[str, Mask]:
        """Which ranks have rows, but none of each phase."""
        names, ranks = self.rows.names, len(self.rows.line.ranks)
        at = names.codes.astype(np.int64) * ranks + self.rows.rank
        count = np.bincount(at, minlength=len(names.values) * ranks).reshape(-1, ranks)
        return dict(zip(names.values, (count == 0) & (count.sum(axis=0) > 0), strict=True))

    @cached_property
    def _spans(self) -> dict[str, Floats]:
        """When each rank's first and last row of each phase began in the middle step, `[2, rank]`;
        NaN without rows."""
        rows, column = self.rows, self.rows.column[self.order]
        chosen = self.order[column == int(np.median(column))]
        spans = {name: np.full((2, len(rows.line.ranks)), np.nan) for name in rows.names.values}
        for row in chosen.tolist():  # in order of time
            first, last = spans[rows.names.values[rows.names.codes[row]]]
            first[rows.rank[row]] = np.fmin(first[rows.rank[row]], rows.begin[row])
            last[rows.rank[row]] = rows.begin[row]
        return spans

    def _never_entered(self, lasted: Floats) -> Floats:
        """Durations with 0 for ranks that are never in the phase, as the first stage of a pipeline
        receives no input; other missing rows stay unknown."""
        without = np.isnan(lasted).all(axis=1, keepdims=True) & np.isfinite(self.tail)
        return np.where(without, 0.0, lasted)

    @property
    def _first(self) -> Mask:
        """Which rows are the first of their rank and step."""
        return np.asarray(np.diff(self.rows.cell[self.order], prepend=-1) != 0)

    def _gaps(self, entering: Mask) -> Iterator[tuple[str, Floats]]:
        """The time in no phase between each phase and the one before, `[rank, step]`, without that
        of `entering` rows; NaN where the step has no phases."""
        code, inside = self.rows.names.codes[self.order], ~self._first & ~entering
        for at, name in enumerate(self.rows.names.values):
            yield name, self._summed((code == at) & inside)

    def _summed(self, chosen: Mask) -> Floats:
        """The gaps before these rows, `[rank, step]`; NaN where the step has no phases."""
        cell = self.rows.cell[self.order][chosen]
        total = stats.sums(cell, self.gap[chosen], self.tail.size).reshape(self.tail.shape)
        return np.where(np.isfinite(self.tail), total, np.nan)

    @property
    def leading(self) -> Floats:
        """The gap before the first phase of each step, `[rank, step]`."""
        first = self._first
        found = np.full(self.tail.size, np.nan)
        found[self.rows.cell[self.order][first]] = self.gap[first]
        return found.reshape(self.tail.shape)


def _once(span: Floats) -> bool:
    """Whether each rank has one row of the phase at most."""
    return bool((span[0] == span[1])[np.isfinite(span[0])].all())


def _takes_turns(one: Floats, other: Floats) -> bool:
    """Whether on most ranks that are in both, each begins before the other began for the last
    time."""
    both = np.isfinite(one[0]) & np.isfinite(other[0])
    turns = (one[0] < other[1]) & (other[0] < one[1])
    return bool(both.any() and turns[both].mean() > HALF)


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


def running_end(end: Ints, cell: Ints) -> Ints:
    """The latest end so far within each rank and step; rows are in order."""
    base = int(end.min(initial=0))
    span = int(end.max(initial=0)) - base + 1
    number = np.cumsum(np.r_[0, np.diff(cell) != 0])
    if number.size and (int(number[-1]) + 1) * span >= np.iinfo(np.int64).max:
        return end
    return np.asarray(np.maximum.accumulate(end - base + number * span) - number * span + base)

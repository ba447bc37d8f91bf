"""Steps that come in a short cycle: every k-th step does other work, on all ranks.

Rollouts before every third update, an optimizer that runs in every fourth step, a critic that is
trained five times as often as its actor, models that are averaged after every eighth step. Such
steps are of k kinds, and each is compared with its own kind: ranks in the same steps, and steps
with others of their kind. What one kind takes longer than another is work and no loss.

    own time that every rank spends, without loading and pauses
       ─▶ for each k: the kind with the largest median is the longest of its cycle, nearly always

Where ranks reduce more in every k-th step than in others, these are of another kind, however few
they are, and of any k: models are averaged there (Douillard et al., DiLoCo, 2023, algorithm 1).

Cost: a median of the steps for each of eight lengths. Cannot see: cycles in which no kind is the
longest; a change over time in one kind alone, if it is not of a single rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.prepare.matching import REDUCTIONS
from stepscope.diagnose.thresholds import FALSE_ALARMS, HALF
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Floats, Ints, Window

LONGEST = 9
"""Steps of the longest cycle: what is rarer may save or evaluate, as `duties.RARE`. Our
choice."""
REGULAR = 0.8
"""Part of the cycles in which the longest step must be of the same kind. In 77 real jobs the kind
of the longest step was the same in 100 % of the cycles where there is one, else in at most 65 %.
Measured on real data."""
LONGER = 1.2
"""Times that the longest kind must take as long as the others: less is no other work, as
`waste.LONGER`. Measured on real data."""
MORE = 0.75
"""Of the most that ranks reduce in a step: halfway between as much and half of it. Statistics."""


@dataclass(frozen=True)
class Cycle:
    """The kind of each column; without a cycle all are of one kind."""

    kind: Ints
    warm_up: int
    """The first columns, which say nothing of their kind."""

    @property
    def length(self) -> int:
        """Steps of a cycle; 1: there is none."""
        return int(self.kind.max(initial=0)) + 1

    @property
    def kinds(self) -> list[Ints]:
        """The judged columns of each kind."""
        later = np.arange(self.kind.size) >= self.warm_up
        return [np.flatnonzero(later & (self.kind == one)) for one in range(self.length)]

    def levels(self, series: Floats) -> Floats:
        """The median of each column's kind."""
        each = np.array([stats.median(series[columns]) for columns in self.kinds])
        return np.asarray(each[self.kind])

    def levelled(self, series: Floats) -> Floats:
        """A series of all columns on the scale of its median, as if all steps did the same work."""
        if self.length == 1:
            return series
        usual, levels = stats.median(series[self.warm_up :]), self.levels(series)
        known = np.isfinite(levels) & (levels > 0)
        return series * np.where(known, usual / np.where(known, levels, 1.0), 1.0)


def reduced(window: Window, line: Timeline) -> Floats:
    """How many bytes ranks reduce in each step, or how often where no sizes were recorded; without
    operators how often they are in a phase of communication."""
    comm, phases = window.table("comm_ops"), window.table("phases")
    if comm is not None and comm.has("step"):
        rows = comm.take(comm.strings("op").equals(*REDUCTIONS))
    elif phases is not None:
        names = phases.strings("phase")
        rows = phases.take(names.equals(*filter(communicates, names.values)))
    else:
        return np.zeros(len(line.steps))
    size = rows.ints("bytes") if rows.knows("bytes") else np.ones(len(rows), np.int64)
    column = line.columns(rows.ints("step"))
    return stats.sums(column[column >= 0], np.maximum(size[column >= 0], 0), len(line.steps))


def find_cycle(own: Floats, steps: Ints, warm_up: int, moved: Floats | None = None) -> Cycle:
    """The shortest cycle of the time that all ranks spend.

    Args:
        own: by all ranks in each step.
        moved: how much ranks reduce in each step, if that is known.
    """
    if moved is not None and moved.any():
        more = moved > MORE * moved.max()
        apart = np.diff(np.flatnonzero(more))
        usual = stats.median(apart.astype(np.float64))
        if usual > 1 and more.mean() < HALF and (apart == usual).mean() >= REGULAR:
            return Cycle(more.astype(np.int64), warm_up)
    series, judged = own[warm_up:], steps[warm_up:]
    fits = (length for length in range(2, LONGEST + 1) if _fits(series, judged, length))
    length = next(fits, 1)
    return Cycle(np.asarray(steps % length, np.int64), warm_up)


def _fits(series: Floats, steps: Ints, length: int) -> bool:
    begin = int(np.argmax(steps % length == 0)) if steps.size else 0
    count = (series.size - begin) // length
    if count < 1:
        return False
    cycles = series[begin : begin + count * length].reshape(count, length)
    cycles = cycles[np.isfinite(cycles).all(axis=1)]
    if not len(cycles):
        return False
    usual = np.median(cycles, axis=0)
    top = int(usual.argmax())
    hits = float((cycles.argmax(axis=1) == top).mean())
    chance = math.exp(-2 * len(cycles) * max(hits - 1 / length, 0.0) ** 2) * length * LONGEST
    longer = usual[top] >= LONGER * np.median(np.delete(usual, top))
    return bool(longer and hits >= REGULAR and chance <= FALSE_ALARMS)

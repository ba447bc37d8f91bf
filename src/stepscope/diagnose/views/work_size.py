"""How much work a step has, by the sizes of the messages that carry it, or by its passes.

A curriculum trains on longer sequences from some step on, a ramp of the batch size on more of them.
All that layers send to one another then grows in just that step and by just that factor, and the
step becomes longer: that is the job's own work, and no regression. Gradients and parameters, which
replicas exchange, do not grow with it. Where gradients are accumulated over more microbatches, a
step has more passes.

    sizes of messages, or passes, in each step, median rank ─▶ stages of one size ─▶ step times as
                                                               if all stages were of one size

Cost: a sum over the operators of such groups, or over the rows of phases. Cannot see: longer
sequences where only replicas communicate; passes where no phases were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window

CARRIES_WORK = ("tp", "cp", "pp", "ep")
"""Kinds of groups whose messages are activations or tokens."""
ALIKE = 0.02
"""Sizes that differ by less are one stage: nobody would act on steps longer by two percent
(`step_time.SLIGHT_RISE`)."""
MOST_POWER = 2
"""Time grows at most with the square of the size: attention compares each token with each. FLOPs of
a transformer."""


@dataclass(frozen=True)
class WorkSize:
    """The size of each step's work against the most frequent one; 1 where it is not known."""

    size: Floats
    power: int
    """Time grows at most with this power of the size."""
    warm_up: int

    @property
    def varies(self) -> bool:
        return bool(np.unique(self.stages[self.warm_up :]).size > 1)

    def levelled(self, series: Floats) -> Floats:
        """Step times as if all steps were of the most frequent size.

        A stage is divided by how much longer its median step is, but by no more than its size
        explains. What changes within a stage, or by more, stays.
        """
        if not self.varies:
            return series
        stages, done = self.stages, series.copy()
        usual = stats.median(series[self.warm_up :][stages[self.warm_up :] == 0])
        for stage in np.unique(stages[self.warm_up :]).tolist():
            at = stages == stage
            judged = at & (np.arange(at.size) >= self.warm_up)
            low, high = sorted((1.0, float(np.median(self.size[judged])) ** self.power))
            longer = stats.median(series[judged]) / usual if usual > 0 else 1.0
            done[at] = series[at] / float(np.clip(longer, low, high))
        return done

    def is_like(self, columns: Mask) -> Mask:
        """Which columns have work of the size that most of the given ones have."""
        own, count = np.unique(self.stages[columns], return_counts=True)
        return self.stages == own[np.argmax(count)] if own.size else ~columns

    def grown(self, split: int) -> float:
        """How many times as large the work is from a column on as before it."""
        before = stats.median(self.size[self.warm_up : split])
        return stats.median(self.size[split:]) / before if before > 0 else 1.0

    @cached_property
    def stages(self) -> Ints:
        """For each column the number of its stage, 0: of the most frequent size."""
        return _stages_of(self.size)


def work_size(window: Window, line: Timeline) -> WorkSize:
    """The size of the work of each column, by all kinds of messages together, or by passes."""
    comm, columns = window.table("comm_ops"), len(line.steps)
    kinds: list[Floats] = []
    if comm is not None and comm.has("bytes") and columns > line.warm_up:
        kinds = [size for kind in CARRIES_WORK
                 if (size := _of_kind(window, line, comm, kind)) is not None]  # fmt: skip
    if not kinds and columns > line.warm_up:
        return WorkSize(_passes(window.table("phases"), line), 1, line.warm_up)
    return WorkSize(_agreed(kinds, columns), MOST_POWER, line.warm_up)


def _passes(phases: Table | None, line: Timeline) -> Floats:
    """The passes of each column: the rows of the phase in which ranks compute for longest."""
    if phases is None or not len(phases):
        return np.ones(len(line.steps))
    names, cell = phases.strings("phase"), line.cells(phases)
    spent = stats.sums(np.maximum(names.codes, 0), phases.ints("duration_ns"), len(names.values))
    spent[[at for at, name in enumerate(names.values) if communicates(name)]] = 0
    cell = cell[(names.codes == np.argmax(spent)) & (cell >= 0)]
    found = _of_most(line, stats.sums(cell, np.ones(cell.size), int(np.prod(line.shape))))
    return np.ones(len(line.steps)) if found is None else np.nan_to_num(found, nan=1.0)


def _of_kind(window: Window, line: Timeline, comm: Table, kind: str) -> Floats | None:
    """Bytes per column of the median rank against the most frequent ones; None: too few known."""
    groups = {group.id for group in window.job.groups_of_kind(kind)}
    if not groups:
        return None
    of_kind = comm.strings("group").among(*groups)
    grid = np.zeros(len(line.ranks) * len(line.steps))
    for _, part in comm.parts():
        carries = of_kind.take(part.strings("group").codes) & (part.ints("bytes") > 0)
        if carries.any():
            cell = line.cells(part)
            carries &= cell >= 0
            _add(grid, cell[carries], part.ints("bytes")[carries])
    return _of_most(line, grid)


def _of_most(line: Timeline, grid: Floats) -> Floats | None:
    """Of sums by cell those of the median rank against the most frequent one; None: unknown."""
    whole = stats.column_median(np.where(grid > 0, grid, np.nan).reshape(line.shape))
    judged = whole[line.warm_up :]
    if not np.isfinite(judged).any():
        return None
    return np.asarray(whole / _most_frequent(judged[np.isfinite(judged)]))


def _add(grid: Floats, cell: Ints, size_bytes: Ints) -> None:
    """Adds up sizes by cell; of a part of the rows these are a few neighbours."""
    if cell.size:
        first, last = int(cell.min()), int(cell.max())
        grid[first : last + 1] += stats.sums(cell - first, size_bytes, last + 1 - first)


def _stages_of(sizes: Floats) -> Ints:
    """The same number for sizes that are alike; 0: of size 1."""
    return np.asarray(np.rint(np.log(sizes) / np.log1p(ALIKE)).astype(np.int64))


def _most_frequent(sizes: Floats) -> float:
    """The median of the sizes that are alike and most frequent."""
    stages = _stages_of(sizes / sizes[0])
    values, count = np.unique(stages, return_counts=True)
    return stats.median(sizes[stages == values[np.argmax(count)]])


def _agreed(kinds: list[Floats], columns: int) -> Floats:
    """By how much all kinds of messages grew: the one that grew least, 1 where they disagree."""
    if not kinds:
        return np.ones(columns)
    logs = np.nan_to_num(np.log(np.stack(kinds)))
    least = np.where((logs > 0).all(axis=0), logs.min(axis=0), 0.0)
    return np.asarray(np.exp(np.where((logs < 0).all(axis=0), logs.max(axis=0), least)))


def exchanged(window: Window, line: Timeline, columns: Ints) -> Floats:
    """The bytes that each rank sends in all-to-alls of these steps: of experts, their tokens."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("bytes"):
        return np.zeros(len(line.ranks))
    row, column = line.places(comm)
    chosen = np.zeros(len(line.steps) + 1, np.bool_)  # the last one stands for no step
    chosen[columns] = True
    size: Ints = comm.ints("bytes")
    kept = chosen[column] & (row >= 0) & (size != NULL) & comm.strings("op").equals("AllToAll")
    return stats.sums(row[kept], size[kept], len(line.ranks))

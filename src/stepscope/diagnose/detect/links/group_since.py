"""Groups whose communication kernels take longer than before, without waiting.

Fault: a link within one of few groups, from some step on: too few equal groups to compare with.
Paper: none; the reasoning of `slow_group_kernels` (ARGUS, 2026, section 9.2) against a group's own
past.
Ours: whose lane a kernel runs on is not recorded, but all members of a group leave it together, and
others do not: the largest groups of one kind whose members leave together use the lane. The member
that waits least shows how long data moves. If that takes longer from some step on, in one group,
and as long as before in equal groups, its data moves slower. Ranks of other groups that wait for it
do so in a lane of theirs, in which some member, arriving last, waits as little as before.
A member that was not recorded may have arrived last. Its lateness depends on what it does between
two transfers, and is none where one follows the other at once; slow data takes longer each time.
Cost: a sort of the executions of each communication kernel. Cannot see: what was slow from the
start; all groups at once; members of a group whose streams are numbered differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.kernels.slow_group_kernels import RATIO
from stepscope.diagnose.detect.regression.rise import UNCHANGED
from stepscope.diagnose.detect.steps import step_time
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.breakdown import is_communicating, passes_on
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Floats, Ints, Table

TOGETHER = 0.1
"""Of a kernel's usual duration: members leave by so much apart at most. Others that do not meet
drift by as much as their work differs. Our choice."""
ALWAYS = 0.95
"""Of all transfers: groups that are as fast as each other leave together mostly, too, but not where
one of them is slow. Our choice."""
EACH = 0.5
"""Of the usual rise: a transfer that takes longer by less shows that others do so by waiting, as
`regression.rise` takes half of a rise for most of it."""
FEW_PLACES = 4
"""Transfers of a step that may all follow equal work. Our choice."""


@dataclass(frozen=True)
class Since:
    """A group whose data moves slower from a column on."""

    group: ProcessGroup
    kernel: str
    split: int
    ratio: float
    rise_ns: float
    """By how much its transfers take longer, per step."""
    is_sure: bool
    """Whether no member that was not recorded can be the reason."""


def slower_since(job: Observed) -> list[Since]:
    """Groups that move data slower than before, as their equals do not; the costliest first."""
    found = [one for lane in lanes(job) for one in _slower(job, lane)]
    return sorted(found, key=lambda one: -one.rise_ns)


@dataclass(frozen=True)
class Lane:
    """A kernel on one stream, `[rank, step, place]`; NaN where a step has not all places."""

    kernel: str
    took_ns: Floats
    end_ns: Floats


def lanes(job: Observed) -> Iterator[Lane]:
    """Kernels that move data, by stream."""
    kernels, line = job.window.table("kernels"), job.line
    if kernels is None or not kernels.has("step", "start_ns", "stream", "duration_ns"):
        return
    known = (line.cells(kernels) >= 0) & (kernels.ints("start_ns") != NULL)
    kernels = kernels.take(known & (kernels.ints("duration_ns") > 0))
    names = kernels.strings("kernel")
    for name in names.values:
        if is_communicating(name) and not passes_on(name):
            rows = kernels.take(names.equals(name))
            for stream in np.unique(rows.ints("stream")).tolist():
                lane = _lane(job, name, rows.take(rows.ints("stream") == stream))
                if lane is not None:
                    yield lane


def _lane(job: Observed, name: str, rows: Table) -> Lane | None:
    """The executions by rank, step and place in it; None if most steps have unequal numbers."""
    shape = len(job.line.ranks), len(job.line.steps)
    rows = rows.take(np.lexsort((rows.ints("start_ns"), job.line.cells(rows))))
    cell = job.line.cells(rows)
    count = np.bincount(cell, minlength=shape[0] * shape[1])
    places = int(stats.median(count[count > 0].astype(np.float64)))
    if not places:
        return None
    place = np.arange(cell.size) - (np.cumsum(count) - count)[cell]
    whole = count[cell] == places
    took, end = np.full((2, count.size, places), np.nan)
    took[cell[whole], place[whole]] = rows.ints("duration_ns")[whole]
    origin = int(rows.ints("start_ns").min())  # nanoseconds since 1970 do not fit a float
    ends = rows.ints("start_ns") - origin + rows.ints("duration_ns")
    end[cell[whole], place[whole]] = ends[whole]
    return Lane(name, took.reshape(*shape, places), end.reshape(*shape, places))


def _slower(job: Observed, lane: Lane) -> Iterator[Since]:
    groups = groups_on(job, lane)
    series = [spent_ns(lane, rows) for _, rows in groups]
    for (group, rows), own in zip(groups, series, strict=True):
        others = [other for other in series if other is not own]
        change = _change(job, own, others)
        if change is not None:
            sure = len(rows) == len(group.ranks) or _is_each_longer(lane, rows, change.split)
            rise = change.after_ns - change.before_ns
            yield Since(group, lane.kernel, change.split, change.ratio, rise, sure)


def groups_on(job: Observed, lane: Lane) -> list[tuple[ProcessGroup, Ints]]:
    """The largest groups of one kind whose members leave the lane together, with their rows."""
    kinds: dict[tuple[str, int], list[tuple[ProcessGroup, Ints]]] = {}
    for group in job.window.job.groups:
        rows = job.line.rows(np.array(group.ranks, np.int64))
        rows = rows[rows >= 0]
        rows = rows[np.isfinite(lane.took_ns[rows]).any(axis=(1, 2))]
        if group.kind != "pp" and len(rows) > 1:
            kinds.setdefault((group.kind, len(group.ranks)), []).append((group, rows))
    for kind in sorted(kinds, key=lambda kind: -kind[1]):
        if all(_leave_together(lane, rows) for _, rows in kinds[kind]):
            return kinds[kind]
    return []


def _leave_together(lane: Lane, rows: Ints) -> bool:
    """Whether the distance between their ends stays nearly always the same: clocks may differ."""
    ends = lane.end_ns[rows].reshape(len(rows), -1)
    apart = np.abs(np.diff(ends[1:] - ends[0], axis=1))
    usual_ns = stats.median(lane.took_ns[rows])
    known = np.isfinite(apart).any(axis=1)
    return bool((np.nanquantile(apart[known], ALWAYS, axis=1) <= TOGETHER * usual_ns).all())


def spent_ns(lane: Lane, rows: Ints) -> Floats:
    """`[step]`: how long data moves: what the member that waits least takes."""
    return np.asarray(np.fmin.reduce(lane.took_ns[rows], axis=0).sum(axis=1))


def _change(
    job: Observed, own: Floats, others: Sequence[Floats]
) -> step_time.StepChange | None:  # fmt: skip
    """Since when a group takes longer, as no equal group does."""
    skip = job.line.warm_up
    found = step_time.regression(own[skip:], RATIO) if others else None
    if found is None:
        return None
    split = found.split + skip
    ratios = [stats.median(one[split:]) / max(stats.median(one[skip:split]), 1.0) for one in others]
    if max(ratios) - 1 > UNCHANGED * (found.ratio - 1):
        return None
    return step_time.StepChange(split, found.ratio, found.before_ns, found.after_ns, found.z)


def _is_each_longer(lane: Lane, rows: Ints, split: int) -> bool:
    """Whether each transfer of a step takes longer by about as much, whatever precedes it."""
    least = np.fmin.reduce(lane.took_ns[rows], axis=0)
    rise = stats.column_median(least[split:]) - stats.column_median(least[:split])
    return rise.size >= FEW_PLACES and bool(rise.min() >= EACH * stats.median(rise))

"""Long steps that are by design, such as checkpoints and evaluations, and show no schedule yet.

`step_time.scheduled` recognises what recurs every so many steps, but not the first one. Three
things show it: all ranks together pause between two steps, where frameworks save and evaluate, and
not within a step; or stacks show that a rank saves or evaluates at that time; or several ranks run
a phase together that the others never run. A rank that alone is late in most of these steps is
still a suspect, unless it saves and logs for all (`habits`).
Cannot see: a fault that stalls all ranks alike between steps; it is taken for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.diagnose.detect.habits import SLOTS, habits
from stepscope.diagnose.detect.step_time import long_steps, scheduled
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.stacks import Samples
from stepscope.window import Floats, Ints, Mask

MOST = 0.8
"""Part of a long step's excess that must lie between it and the next step. Our simulator."""
ALL_RANKS = 0.9
"""Part of the ranks that must pause; a few rows may be lost. Our simulator."""
RARE = 0.1
"""Share of the steps that may be long in this way: no job saves every few steps. Our simulator."""
MEANWHILE = 0.5
"""Part of the time of a long step in which stacks must show a rank saving. Our simulator."""
MOSTLY = 0.5
"""A rank that takes longer than its peers by this part of what a step takes longer than usual makes
it long. Our choice."""
SAVING = ("save", "_save", "evaluat", "validat")
"""Beginnings of the names of functions that save and evaluate. `checkpoint` alone is activation
checkpointing."""


def planned_steps(job: Observed) -> frozenset[int]:
    """The long steps that are by design, as a schedule or the job's functions in them show."""
    line = job.line
    series, steps = job.period_ns[line.warm_up :], line.steps[line.warm_up :]
    if not steps.size:
        return frozenset()
    long = long_steps(series)
    planned = _scheduled(steps, long) | np.isin(long, _first_on_schedule(steps, long))
    planned &= ~_of_one_rank(job, long + line.warm_up)
    planned |= expected(job, job.samples, long + line.warm_up)
    return frozenset(int(step) for step in steps[long[planned]])


def _scheduled(steps: Ints, long: Ints) -> Mask:
    return scheduled(steps[long], steps) if long.size >= SLOTS else np.zeros(long.size, np.bool_)


def _first_on_schedule(steps: Ints, long: Ints) -> Ints:
    """The long steps that come first of several in a row, if these keep a schedule: whoever saves
    for longer than the others makes them wait in the next step."""
    first = long[np.diff(long, prepend=-2) > 1]
    return first[_scheduled(steps, first)]


def pauses_of_all(job: Observed, steps: Iterable[int]) -> dict[int, float]:
    """How long the median rank pauses in some steps: what it takes itself beyond its usual."""
    spent = stats.column_median(job.total)
    beyond = np.nan_to_num(spent - stats.median(spent[job.line.warm_up :])).clip(0.0)
    columns = job.line.columns(np.array(sorted(steps), np.int64))
    return dict(zip(sorted(steps), beyond[columns].tolist(), strict=True))


def _by_some_ranks(job: Observed, columns: Ints) -> Mask:
    """Which long steps are long because of a rare phase that several ranks run together by design,
    and the others never run (`views.roles`), so that only these have a time in it."""
    line, long = job.line, np.zeros(columns.size, np.bool_)
    beyond = line.job_period_ns[columns] - line.typical_ns
    for own in job.own.own:
        ranks = np.isfinite(own).any(axis=1)
        spent = np.nan_to_num(own[ranks])
        if not 1 < spent.shape[0] < len(own) or (spent > 0).any(axis=0).mean() > RARE:
            continue
        usual = np.median(spent, axis=0)
        here = np.maximum(usual[columns], usual[np.maximum(columns - 1, 0)])
        long |= here >= MOSTLY * beyond
    return long


def _of_one_rank(job: Observed, columns: Ints) -> Mask:
    """Which long steps are long because of one rank, if it is the same one in most of them and has
    no duties at these steps."""
    nobody = np.zeros(columns.size, np.bool_)
    if not job.own.phases or not columns.size:
        return nobody
    above = np.nan_to_num(above_peers(job.total[:, columns], job.groups(None)))
    late = above >= MOSTLY * (job.line.job_period_ns[columns] - job.line.typical_ns)
    late &= late.sum(axis=0) == 1
    row = int(late.sum(axis=1).argmax())
    if late[row].mean() <= MOSTLY:
        return nobody
    return np.asarray(late[row] & ~habits(job.line.steps[columns], late, job.host_rows)[row])


def expected(job: Observed, samples: Samples | None, columns: Ints) -> Mask:
    """Which long steps, given by their columns, are planned pauses of the job."""
    planned = _by_some_ranks(job, columns)
    if columns.size > max(RARE * len(job.line.steps), 1):
        return planned
    planned |= _between_steps(job, columns)
    return planned if samples is None else planned | _while_saving(job, samples, columns)


def _between_steps(job: Observed, columns: Ints) -> Mask:
    """Which columns have their excess between two steps, on nearly all ranks."""
    line = job.line
    after = (line.period_ns - line.duration_ns)[:, columns]
    excess = line.job_period_ns[columns] - line.typical_ns
    known = np.isfinite(after)
    waits = known & (after >= MOST * excess)
    return np.asarray(waits.sum(axis=0) >= ALL_RANKS * np.maximum(known.sum(axis=0), 1))


def _while_saving(job: Observed, samples: Samples, columns: Ints) -> Mask:
    at = job.line.column_at(samples.time_ns)
    saving = np.where(saves(samples), samples.weight, 0.0)
    return np.array([_share(samples, saving, at == column) >= MEANWHILE for column in columns],
                    np.bool_)  # fmt: skip


def saves(samples: Samples) -> Mask:
    """Which samples show a rank saving or evaluating, by names of functions."""
    return samples.within(lambda name: name.lower().startswith(SAVING))


def _share(samples: Samples, saving: Floats, inside: Mask) -> float:
    """The largest part of the time in which samples show any rank saving."""
    row = samples.row[inside]
    whole = stats.sums(row, samples.weight[inside], 1)
    part = stats.sums(row, saving[inside], 1) / np.maximum(whole, 1.0)
    return float(part.max())

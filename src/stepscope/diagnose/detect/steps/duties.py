"""Slow steps that belong to the job: checkpoints, evaluations, and duties of single ranks.

Long steps of all ranks may show no schedule yet: `step_time.scheduled` recognises what recurs every
so many steps, but not the first one. Three things show it: all ranks together pause between two
steps, where frameworks save and evaluate, and not within a step; or stacks show that a rank saves
or evaluates at that time; or several ranks run a phase together that the others never run. A rank
that alone is late in most of these steps is still a suspect, unless it saves and logs for all
(`habits`).
Cannot see: a fault that stalls all ranks alike between steps; it is taken for a checkpoint.

Slow steps of single ranks belong to the job if one saves, logs or evaluates for all (`habits`). A
schedule alone does not show that: a fault may recur every twenty steps as well. The first rank
and the last one have such duties, at round intervals, and short ones every dozen steps; others have
them together with ranks of other hosts, as when the first rank of each host saves. The last rank
has the loss and logs it, which is short: all others wait for it. In a phase that is named for it,
saving needs no schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stepscope.diagnose.detect.steps.step_time import is_round, long_steps, recurring, scheduled
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.stacks import Samples
from stepscope.window import Floats, Ints, Mask

AFTERWARDS = 0.8
"""Part of a long step's excess that must lie between it and the next step. Our simulator."""
ALL_RANKS = 0.9
"""Part of the ranks that must pause; a few rows may be lost. Our simulator."""
RARE = 0.1
"""Share of the steps that may be long in this way: no job saves every few steps. Our simulator."""
SAVING = ("save", "_save", "evaluat", "validat")
"""Beginnings of the names of functions that save and evaluate. `checkpoint` alone is activation
checkpointing."""
SLOTS = 3
"""Times that spikes must return on a schedule to be a habit of the job. Our simulator."""
BETWEEN = 6
"""Spikes after which the next one of a schedule is looked for: on a crowded host a few lie between.
Our choice."""
COMPANY = 0.5
"""Part of the slots in which a rank of another host must have a spike, too. Our simulator."""
MOST_OF_LAST = 0.05
"""Share of the time that a duty of the last rank may take, as a single long spike may. Our
choice."""
MOST_PLANNED = 0.1
"""The same of one that recurs at dozens of steps, or of the first rank's between two phases: above
that no plan excuses it (contract)."""


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
        long |= here >= HALF * beyond
    return long


def _of_one_rank(job: Observed, columns: Ints) -> Mask:
    """Which long steps are long because of one rank, if it is the same one in most of them and has
    no duties at these steps."""
    nobody = np.zeros(columns.size, np.bool_)
    if not job.own.phases or not columns.size:
        return nobody
    above = np.nan_to_num(above_peers(job.total[:, columns], job.groups(None)))
    late = above >= HALF * (job.line.job_period_ns[columns] - job.line.typical_ns)
    late &= late.sum(axis=0) == 1
    row = int(late.sum(axis=1).argmax())
    if late[row].mean() <= HALF:
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
    waits = known & (after >= AFTERWARDS * excess)
    return np.asarray(waits.sum(axis=0) >= ALL_RANKS * np.maximum(known.sum(axis=0), 1))


def _while_saving(job: Observed, samples: Samples, columns: Ints) -> Mask:
    at = job.line.column_at(samples.time_ns)
    saving = np.where(saves(samples), samples.weight, 0.0)
    return np.array([_share(samples, saving, at == column) >= HALF for column in columns],
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


def habits(
    steps: Ints, hit: Mask, units: Sequence[Ints], share: Floats | None = None,
    duties: bool = True, beside: bool = False, named: bool = False, within: bool = False,
) -> Mask:  # fmt: skip
    """Which of the spikes in `hit`, `[rank, step]`, are regular duties of their ranks.

    Args:
        units: rows of each host.
        share: of the time of all steps, which each spike takes; None: unknown.
        duties: whether the first and the last rank may have some of their own.
        beside: whether the last rank may take any time, beside training.
        named: whether the phase is named for saving or evaluation, so that no schedule is needed.
        within: whether it is between two phases, where nobody saves.
    """
    found = np.zeros(hit.shape, np.bool_)
    for row in np.flatnonzero(hit.any(axis=1)).tolist():
        at = np.flatnonzero(hit[row])
        slots = at[scheduled(steps[at], steps)]
        if slots.size >= SLOTS and _has_company(hit[:, slots], row, units):
            found[row, slots] = True
        if duties and row in (0, len(hit) - 1):
            duty = at if named else at[_at_intervals(steps[at], steps, is_round)]
            if share is None or share[row, duty].sum() <= _most(row, beside, within):
                found[row, duty] = True
            dozens = at[_at_intervals(steps[at], steps, _is_dozens)]
            if share is not None and share[row, dozens].sum() <= MOST_PLANNED:
                found[row, dozens] = True
    return found


def _most(row: int, beside: bool, within: bool) -> float:
    """The share of usual steps' time that duties of the first or the last rank may take."""
    if beside or (row == 0 and not within):
        return np.inf
    return MOST_PLANNED if row == 0 else MOST_OF_LAST


def _is_dozens(interval: int) -> bool:
    return interval % 12 == 0


def _at_intervals(spikes: Ints, steps: Ints, chosen: Callable[[int], bool]) -> Mask:
    """Which spikes recur at an interval that people would choose, though others may lie between
    them."""
    found = np.zeros(spikes.size, np.bool_)
    apart = [spikes[lag:] - spikes[:-lag] for lag in range(1, min(BETWEEN, spikes.size))]
    for period in np.unique(np.concatenate(apart)) if apart else ():
        if chosen(int(period)):
            found |= recurring(spikes, steps, int(period), SLOTS)
    return found


def _has_company(hit: Mask, row: int, units: Sequence[Ints]) -> bool:
    """Whether a rank of another host has spikes in most of these columns, too."""
    own_host = next((unit for unit in units if row in unit), np.array([row]))
    others = np.delete(hit, own_host, axis=0)
    return bool(others.size) and bool((others.mean(axis=1) > COMPANY).any())

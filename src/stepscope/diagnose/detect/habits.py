"""Slow steps of single ranks that belong to the job: one rank saves, logs or evaluates for all.

A schedule alone does not show that: a fault may recur every twenty steps as well. The first rank
and the last one have such duties, at round intervals, and short ones every dozen steps; others have
them together with ranks of other hosts, as when the first rank of each host saves. The last rank
has the loss and logs it, which is short: all others wait for it. In a phase that is named for it,
saving needs no schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepscope.diagnose.detect.step_time import is_round, recurring, scheduled
from stepscope.window import Floats, Ints, Mask

SLOTS = 3
"""Times that spikes must return on a schedule to be a habit of the job. Our simulator."""
BETWEEN = 6
"""Spikes after which the next one of a schedule is looked for: on a crowded host a few lie between.
Our choice."""
MOSTLY = 0.5
"""Part of the slots in which a rank of another host must have a spike, too. Our simulator."""
MOST = 0.05
"""Share of the time that a duty of the last rank may take, as a single long spike may. Our
choice."""
MOST_PLANNED = 0.1
"""The same of one that recurs at dozens of steps, or of the first rank's between two phases: above
that no plan excuses it (contract)."""


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
    return MOST_PLANNED if row == 0 else MOST


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
    return bool(others.size) and bool((others.mean(axis=1) > MOSTLY).any())

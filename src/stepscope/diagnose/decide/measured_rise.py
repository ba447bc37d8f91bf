"""How much longer steps lasted while a culprit was slow than without it.

Cost: medians of the step times. Cannot see: culprits that were slow all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stepscope.diagnose.account.model import unknown_excess_ns
from stepscope.diagnose.decide.waits_known import hides_waits
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import FAST, HALF
from stepscope.window import Floats, Ints, Mask

LEAST_EITHER, BEYOND = 8, 3.0
"""Steps while a rank is slow, and while it is not, and standard errors by which the former must be
longer: by chance one in 700. Own time says who is slow and when, so nothing is chosen here.
Statistics."""
LEAST_ALONE = 5
"""Steps in which no larger culprit is slow, of which the rise counts instead; and without any one,
above which it costs no more than they rose. Statistics."""
MEDIAN_ERROR = 1.25
"""Standard error of a median in those of a mean. Statistics."""


def measured_ns(
    job: Observed, paused: Floats, one: Suspect, culprits: Sequence[Suspect]
) -> tuple[float, float]:
    """Lower and upper bound on how much longer steps were while the rank was slow, per step.

    No model may veto it: an edge may be missing from a graph, or overlap. At least the rise of the
    median, less what other ranks do longer, but not above the rank's own excess; 0 where it was
    always slow, where steps did not get longer beyond noise, or by more than twice its excess,
    which has another reason. Where a culprit with a larger excess is slow as well, only the other
    steps count, if there are some. At most the rise above the fast steps without the culprit,
    before or after it; no limit where there are none. Steps in which another one is slow do not
    count there, unless that one is slow both then and now, or no other steps are left: then the
    rise is a lower bound only. Steps of other work than most of its own, such as those with more
    passes, do not count either.

    Args:
        paused: what each step loses to pauses, which is measured by itself.
    """
    columns = np.arange(len(job.line.steps))
    period = job.line.job_period_ns - paused
    judged = (columns >= job.line.warm_up) & np.isfinite(period)
    inside = np.isin(columns, columns[one.columns])
    judged &= job.work.is_like(inside & judged)
    outside = judged & ~inside
    usually = outside & ~_of_others(one, culprits, columns)
    is_apart = min(usually.sum(), (judged & inside).sum()) >= LEAST_ALONE
    compared = usually if is_apart else outside
    parts = judged & inside, compared, judged & inside & ~_of_larger(one, culprits, columns)
    slow, usual, alone = (period[part] + paused[part].mean() if part.any() else period[part]
                          for part in parts)  # fmt: skip
    most = np.inf
    if is_apart:
        fast = _fast_ns(period + paused[compared].mean(), compared, one)
        most = max(float(slow.mean()) - fast, 0.0)
    if min(slow.size, usual.size) < LEAST_EITHER:
        return 0.0, most
    part = alone.size / slow.size if alone.size >= LEAST_ALONE else 1.0
    slow = alone if alone.size >= LEAST_ALONE else slow
    ranks = [int(job.line.ranks[other.row]) for other in culprits]
    of_all = 0.0 if hides_waits(job) else others_rise_ns(job, ranks, compared, judged & inside)
    rise = stats.median(slow) - stats.median(usual) - of_all
    error = MEDIAN_ERROR * np.hypot(stats.sigma(slow) / np.sqrt(slow.size),
                                    stats.sigma(usual) / np.sqrt(usual.size))  # fmt: skip
    taken = one.excess_ns
    if taken < rise:
        taken = max(taken, unknown_excess_ns(job, one, stats.median(usual)))
    explains = rise > BEYOND * error and taken >= HALF * rise
    return part * float(min(rise, taken)) if explains else 0.0, most


def _fast_ns(period: Floats, usual: Mask, one: Suspect) -> float:
    """The fast level of the steps without a culprit: of those before it or after it, for another
    fault may be in either."""
    columns = np.arange(usual.size)
    sides = [period[usual & part] for part in (columns < one.first, columns >= one.stop)]
    sides = [side for side in sides if side.size >= LEAST_ALONE] or [period[usual]]
    return min(float(np.quantile(side, FAST)) for side in sides)


def _of_others(one: Suspect, culprits: Sequence[Suspect], columns: Ints) -> Mask:
    """The columns in which a culprit is slow that is not slow in all of this one's as well."""
    inside, found = columns[one.columns], np.zeros(columns.size, np.bool_)
    for other in (np.isin(columns, columns[each.columns]) for each in culprits):
        found |= other & (not other[inside].all())
    return found


def _of_larger(one: Suspect, culprits: Sequence[Suspect], columns: Ints) -> Mask:
    """The columns in which a culprit with a larger excess is slow: a step lasts as long as its
    slowest rank, so what it lasts there shows nothing of the others."""
    larger = [columns[other.columns] for other in culprits if other.excess_ns > one.excess_ns]
    return np.isin(columns, np.concatenate([columns[:0], *larger]))


def others_rise_ns(
    job: Observed, culprits: Collection[int], before: Mask | Ints, after: Mask | Ints
) -> float:  # fmt: skip
    """Per step, what the median of the ranks without a verdict does longer: that much is no
    culprit's. 0 where nobody is left or known.

    Args:
        culprits: ranks with a verdict.
        before, after: columns to compare.
    """
    others = ~np.isin(job.line.ranks, [*culprits])
    if not others.any() or not job.own.phases:
        return 0.0
    own = job.total[others]
    rise = stats.row_medians(own[:, after]) - stats.row_medians(own[:, before])
    return max(stats.median(rise), 0.0)

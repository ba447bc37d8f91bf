"""What would come back: the steps replayed with the culprits at their peers' speed (rule 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.blame import Culprit
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.routing import comparison_groups
from stepscope.diagnose.unrecorded import unrecorded_groups
from stepscope.window import Floats, Ints, Mask

HALF = 0.5
"""Of the costliest: who costs less, where all are slow, is measured against somebody slower. And of
a rank's blows, in which another must be struck as well to share what they cost."""
ABOUT = 10
"""Steps about a blow whose median tells how long the step would have been."""
COVERED = 0.5
"""Arrivals limit the cost only where they were seen in at least half of the steps in question."""


@dataclass(frozen=True)
class Cost:
    """`lost_ns` per step for all culprits together, and each one's share of the step time."""

    lost_ns: Floats
    fractions: tuple[float, ...]
    lag_ns: tuple[float | None, ...]
    """By how much the culprits arrived last, per step of each one; None where not seen."""


def accusable(seen: Observed, culprits: Sequence[Culprit]) -> list[Culprit]:
    """The culprits, but where all ranks are: those whose healing alone would bring something back.

    Somebody must be well for the others to be compared with. In a job of two ranks a rank that is
    a little slow in a short phase must not be the alibi of the one that holds up every step.
    """
    if len({one.row for one in culprits}) < len(seen.total):
        return list(culprits)
    alone = [what_if(seen, [one]).fractions[0] for one in culprits]
    return [one for one, cost in zip(culprits, alone, strict=True) if cost >= HALF * max(alone)]


def what_if(seen: Observed, culprits: Sequence[Culprit]) -> Cost:
    """Replaces the culprits' own time by their peers' and asks how much shorter each step gets.

    A step lasts as long as the busiest rank, so it loses max(own) - max(own healed). What the
    culprits did not make others wait for in collectives is no loss (an overlap swallowed it).
    Losses keep their sign until they are summed: noise must cancel and not add up. What a rank does
    now and then needs no replay: there are steps without it.
    """
    total = np.nan_to_num(seen.total)
    lost = _busiest(total) - _busiest(_healed(seen, culprits, total))
    guilty = np.isin(np.arange(len(total)), [one.row for one in culprits])
    lags = _lags(seen, _with_coupled(seen, guilty))
    weight = sum(max(one.excess_ns, 1.0) for one in culprits)
    fractions: list[float] = []
    late: list[float | None] = []
    for one in culprits:
        part = one.columns
        alone = _busiest(total) - _busiest(_healed(seen, [one], total))
        joint = _sum(one, lost[part]) * max(one.excess_ns, 1.0) / weight
        limit = _limit(lags, part)
        late.append(None if limit is None else limit / (one.stop - one.first))
        most = max(joint, _sum(one, alone[part]))
        if one.struck:
            most = min(one.whole_ns, _share(one, culprits) * float(_rise(seen, one).sum()))
        lost_ns = min(most, np.inf if limit is None else limit)
        period = float(np.nansum(seen.line.job_period_ns[_affected(seen, one)]))
        fractions.append(min(max(lost_ns, 0.0) / period, 1.0) if period > 0 else 0.0)
    for one in culprits:
        if one.struck:
            lost[one.columns] = np.maximum(lost[one.columns], _rise(seen, one))
    return Cost(lost, tuple(fractions), tuple(late))


def _share(one: Culprit, culprits: Sequence[Culprit]) -> float:
    """Its part of the excess of all that were struck in mostly the same steps."""
    mine = set(one.struck)
    whole = sum(other.whole_ns for other in culprits
                if len(mine & set(other.struck)) > HALF * len(mine))  # fmt: skip
    return one.whole_ns / max(whole, one.whole_ns, 1.0)


def _sum(one: Culprit, lost: Floats) -> float:
    """Sum over the steps; without extremes unless the culprit is one for its rare pauses."""
    if not one.phases or not lost.size:
        return float(lost.sum())
    return float(stats.block_means(lost[None], lost.size)[0, 0]) * lost.size


def _affected(seen: Observed, one: Culprit) -> slice:
    """The steps of which its cost is a share: of what strikes again and again, those until the end,
    and of a single blow all there are."""
    first = seen.line.warm_up if one.alone else one.first
    return slice(first, None if one.struck else one.stop)


def _rise(seen: Observed, one: Culprit) -> Floats:
    """How much longer each step lasted in which a rank was struck, than the steps about it."""
    period = seen.line.job_period_ns
    other = np.arange(seen.line.warm_up, period.size)
    other = other[~np.isin(other, one.struck) & np.isfinite(period[other])]
    if not other.size:
        return np.full(len(one.struck), one.whole_ns / len(one.struck))
    near = [other[np.argsort(np.abs(other - at), kind="stable")[:ABOUT]] for at in one.struck]
    usual = [float(np.median(period[those])) for those in near]
    return np.asarray(np.nan_to_num(period[list(one.struck)] - np.array(usual)))


def _busiest(total: Floats) -> Floats:
    busiest: Floats = total.max(axis=0) if len(total) else np.zeros(total.shape[1])
    return busiest


def _healed(seen: Observed, culprits: Sequence[Culprit], total: Floats) -> Floats:
    """Own times with each culprit's slow phases taking as long as on its innocent peers."""
    healed = total.copy()
    guilty = {one.row for one in culprits}
    for one in culprits:
        part = one.columns
        for phase in one.phases:
            own = seen.own.own[seen.own.phases.index(phase)]
            well = [int(m) for group in comparison_groups(seen.window, phase) if one.row in group
                    for m in group if m not in guilty]  # fmt: skip
            normal = stats.column_median(own[well][:, part]) if well else own[one.row, part]
            healed[one.row, part] -= np.nan_to_num(own[one.row, part] - normal)
        if not one.phases and seen.pauses is not None:
            others = np.delete(seen.pauses[:, part], one.row, axis=0)
            healed[one.row, part] -= seen.pauses[one.row, part] - np.median(others, axis=0)
    return np.maximum(healed, 0.0)


def _lags(seen: Observed, guilty: Mask) -> tuple[Floats, Mask] | None:
    """Waiting the culprits caused per step, and in which steps arrivals were seen at all."""
    if seen.arrivals is None or not len(seen.line.steps) or guilty.all():
        return None
    columns = len(seen.line.steps)
    covered = np.zeros(columns, np.bool_)
    covered[seen.arrivals.step[seen.arrivals.step >= 0]] = True
    return seen.arrivals.lag_of(guilty, columns), covered


def _with_coupled(seen: Observed, guilty: Mask) -> Mask:
    """The culprits and whom they hold up in operators within passes that nobody recorded.

    These come late with them into what was recorded, so against each other nobody is late there.
    """
    unseen = [seen.line.rows(np.array(group.ranks)) for group in unrecorded_groups(seen.window)]
    members = [rows[rows >= 0] for rows in unseen]
    late, before = guilty.copy(), -1
    while int(late.sum()) > before:
        before = int(late.sum())
        for rows in members:
            late[rows] |= late[rows].any()
    return late


def _limit(lags: tuple[Floats, Mask] | None, part: slice | Ints) -> float | None:
    if lags is None or not lags[1][part].mean() >= COVERED:
        return None
    return float(lags[0][part].sum())

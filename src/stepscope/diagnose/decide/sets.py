"""Ranks that are slow alike at the same time, and cost something only as a set.

Of several ranks that are equally slow, healing one wins nothing: every step waits for the others.
Their joint cost is shared among them, so that the more there are, the less each seems to cost. They
are therefore weighed together: by what a step takes less without all of them, beyond what it takes
less without the culprits that cost enough alone.
Several hosts are one set if they are no farther apart than the ranks of one of them.
Fault: devices of one batch, of one image or with one setting, spread over a cluster; one position
in every expert group; the hosts of a rack.
What they must not be: those healthy ranks that happen to be the slowest. The statistic is that of
`numeric.two_speeds`: their distance from all others must exceed what chance does with any way to
choose as many ranks.
Cost: one or two replays, only where there is such a set. Cannot see: ranks slow by different
degrees, or at different times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.cost import what_if
from stepscope.diagnose.decide.experts import same_experts
from stepscope.diagnose.decide.join import SEVERAL, alike_by_cause, as_one
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.two_speeds import are_apart
from stepscope.diagnose.observed import TWO_SPEEDS, Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.window import Floats, Mask

ADDED = 0.1
"""What ranks that cost nothing alone must add to those that do, as a part of what all cost
together. Our choice."""


def with_sets(
    job: Observed, weighed: Sequence[Slowdown], suspects: Sequence[Suspect]
) -> list[Slowdown]:
    """The findings, single ranks that cost enough only together joined.

    Args:
        weighed: with the decision on what each costs alone.
        suspects: those behind all of them.
    """
    alike = alike_by_cause([one for one in weighed if one.ranks and not _shares(one)])
    sets = [part for part in alike if _needs_a_set(part) or _are_hosts_alike(job, part)]
    within = [one for part in sets for one in part]
    apart = [one for one in weighed if one not in within]
    known = frozenset(rank for one in apart if one.costs_enough for rank in one.ranks)
    return [*apart, *(one for part in sets for one in _weighed(job, part, suspects, known))]


def _shares(one: Slowdown) -> bool:
    """Whether what slows the ranks down is something of their host, and not of each of them."""
    return one.suspect is None or one.shared_devices or bool(one.beside)


def _needs_a_set(part: Sequence[Slowdown]) -> bool:
    """Several findings of which not all cost enough alone; or many ranks, of which one verdict says
    more than one for each."""
    if any(not one.costs_enough for one in part):
        return len(part) > 1
    return len(part) >= SEVERAL and all(len(one.ranks) == 1 for one in part)


def _are_hosts_alike(job: Observed, part: Sequence[Slowdown]) -> bool:
    """Whether each finding is about a host, and their ranks have one level."""
    recorded = frozenset(job.window.ranks)
    hosts = [frozenset(host.ranks) & recorded for host in job.window.job.hosts]
    whole = [len(one.ranks) > 1 and frozenset(one.ranks) in hosts for one in part]
    if len(part) < 2 or not all(whole):
        return False
    assert part[0].suspect is not None
    levels = _levels(job, part[0].suspect)
    own = [levels[job.line.rows(np.array(one.ranks, np.int64))] for one in part]
    return bool(np.ptp([stats.median(one) for one in own]) <= max(np.ptp(one) for one in own))


def _weighed(
    job: Observed, part: list[Slowdown], suspects: Sequence[Suspect], known: frozenset[int]
) -> list[Slowdown]:
    """One finding for the ranks of a part if they cost enough together; else as they were."""
    rows = np.isin(job.line.ranks, [rank for one in part for rank in one.ranks])
    if not _is_no_chance(job, part[0], rows, np.isin(job.line.ranks, sorted(known))):
        return part
    lost = _lost_fraction(job, suspects, rows, known)
    alone = [one.lost_fraction or 0.0 for one in part if one.costs_enough]
    if 0 < len(alone) < len(part) and sum(alone) > (1 - ADDED) * lost:
        return part  # the others add nothing: they may wait for these
    # arrivals in groups side by side would add up
    one = replace(as_one(part), lost_fraction=lost, costs_alone=False, lag_ns=None)
    one = replace(one, values={**one.values, "lost_fraction": lost},
                  supporting=(*same_experts(job.window, one), *one.supporting))  # fmt: skip
    but_cost = [each for each in one.decisions if each.rule != rules.ON_CRITICAL_PATH.name]
    says = "ranks are slow alike at the same time, and are healed together"
    together = Decision("as-a-set", True, float(len(part)), 2.0, says)
    one = rules.weighed(replace(one, decisions=(*but_cost, together)))
    return [one] if one.costs_enough else part


def _is_no_chance(job: Observed, one: Slowdown, rows: Mask, known: Mask) -> bool:
    """Whether the ranks are farther from the others than as many of a healthy job are."""
    assert one.suspect is not None
    levels = _levels(job, one.suspect)
    levels[known & ~rows] = np.nan
    groups = [group[np.isfinite(levels[group])] for group in job.groups(one.phase)]
    groups = [group for group in groups if group.size > 1]
    compared = np.concatenate([np.zeros(0, np.int64), *groups])
    ways = math.log(math.comb(compared.size, int(rows[compared].sum()))) + math.log(
        max(compared.size, 1) * (len(job.own.phases) + 1)
    )
    return are_apart(levels, groups, rows, math.log(TWO_SPEEDS) - ways)


def _levels(job: Observed, one: Suspect) -> Floats:
    """The logarithm of what each rank typically takes in the slow phases of a suspect."""
    parts = [own for phase, own in job.own.items()
             if phase in one.phases]  # fmt: skip
    own = np.sum(parts, axis=0) if parts else job.total
    return np.array(job.levels(own[:, one.columns]))


def _lost_fraction(
    job: Observed, suspects: Sequence[Suspect], rows: Mask, known: frozenset[int]
) -> float:
    """What the set costs, but not more than is left once the other culprits are healed."""
    members = [one for one in suspects if rows[one.row]]
    others = [one for one in suspects
              if not rows[one.row] and int(job.line.ranks[one.row]) in known]  # fmt: skip
    cost = what_if(job, [*members, *others])
    lost = min(sum(cost.fractions[: len(members)]), 1.0)
    if not others:
        return lost
    columns = np.unique(np.concatenate([np.arange(len(job.line.steps))[one.columns]
                                        for one in members]))  # fmt: skip
    more = (cost.lost_ns - what_if(job, others).lost_ns)[columns].sum()
    period = float(np.nansum(job.line.job_period_ns[columns]))
    return min(lost, max(float(more), 0.0) / period) if period > 0 else lost

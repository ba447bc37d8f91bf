"""What culprits cost: the steps are replayed with them at their peers' speed (blame rule 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.account.model import Model, device_excess_ns
from stepscope.diagnose.decide.alone import lost_by
from stepscope.diagnose.decide.held_up import graph_about
from stepscope.diagnose.decide.measured_rise import LEAST_EITHER, measured_ns
from stepscope.diagnose.decide.savings import (
    Savings,
    Shrinking,
    coupled,
    lost_to_pauses,
    savings,
    served_ns,
    unrecorded_rows,
)
from stepscope.diagnose.decide.spike_rise import free_columns, spike_rise
from stepscope.diagnose.decide.waits_known import connects, exchanging, peers_known, receives_known
from stepscope.diagnose.graph.chain import Chain
from stepscope.diagnose.graph.replay import CONNECTED, Replay
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.unnamed import BETWEEN, KERNELS, OUTSIDE, UNNAMED, is_staged
from stepscope.window import NULL, Floats, Ints, Mask

COVERED = 0.5
"""Arrivals limit the cost only where they were recorded in this part of the steps in question. Our
simulator."""
SEVERAL = 2
"""Phases in which a device is slow: then it is slow in all that it runs. Our choice."""
MOST_ALONE = 8
"""Number of culprits, the slowest first, that are also healed one by one: a replay of ten thousand
ranks takes a tenth of a second. Our simulator."""


@dataclass(frozen=True)
class Cost:
    """The time lost per step by all culprits together, and each one's share of the step time."""

    lost_ns: Floats
    fractions: tuple[float, ...]
    lag_ns: tuple[float | None, ...]
    """By how much the culprits arrived last, per step of each one; None where not recorded."""


def accusable(job: Observed, culprits: Sequence[Suspect]) -> list[bool]:
    """Whether each culprit may be accused.

    All may, unless all ranks are slow. Then those may that are much slower than the others, which
    were compared with slow ranks: a rank that is a little slow in a short phase must not hide the
    ones that hold up every step. Where all are as slow, those may whose healing alone would win
    back much.
    """
    if len({one.row for one in culprits}) < len(job.total):
        return [True] * len(culprits)
    most = max((one.excess_ns for one in culprits), default=0.0)
    much = [one.excess_ns >= HALF * most for one in culprits]
    if not all(much):
        return much
    alone = [what_if(job, [one]).fractions[0] for one in culprits]
    return [cost >= HALF * max(alone) for cost in alone]


def what_if(job: Observed, culprits: Sequence[Suspect]) -> Cost:
    """How much shorter each step gets with the culprits' own time replaced by their peers'.

    Steps are replayed by what ranks waited for (`replay`). Where that was not recorded, a step
    lasts as long as its busiest rank, and the loss is limited to what others waited for the
    culprits in collectives; except in pipelines for spikes, or if there is one pipeline alone or it
    is not known how long receives lasted, or, without known stages, from whom, in which others wait
    there. Losses keep their sign until they are summed: noise must cancel and not add up. Transient
    slowdowns need no replay, because there are steps without them.

    What pauses cost is measured where steps with and without them can be compared: phases of
    devices do not contain them.

    Where ranks do not wait for each other, each culprit costs its own part of the steps (`alone`).
    """
    if job.asynchronous:
        parts = [among_spikes(job, one) if one.spikes else one.columns for one in culprits]
        nothing = np.zeros(len(job.line.steps))
        return Cost(nothing, lost_by(job, culprits, parts), (None,) * len(culprits))
    guilty = np.isin(np.arange(len(job.line.ranks)), [one.row for one in culprits])
    staged = is_staged(job.window)
    behind = coupled(unrecorded_rows(job), guilty)
    with_them = behind if staged else coupled(exchanging(job), behind)
    lags = _lags(job, behind if with_them.all() else with_them)
    alone = len(job.window.job.groups_of_kind("pp")) == 1
    blind = (alone or not receives_known(job)) if staged else not peers_known(job)
    limits = [None if blind or (staged and one.spikes)
              else _limit(lags, _felt(job, one)) for one in culprits]  # fmt: skip
    pauses = [lost_to_pauses(job, one, culprits) for one in culprits]
    others = [one for one, known in zip(culprits, pauses, strict=True) if known is None]
    paused = sum((one for one in pauses if one is not None), np.zeros(len(job.line.steps)))
    healing = _Healing(job, savings(job, others), paused)
    lost = healing.lost_ns(healing.savings)
    shares = [_share_of(job, min(float(known.sum()), np.inf if limit is None else limit),
                        one.columns) if known is not None
              else _lost_by_spikes(healing, one, others, limit) if one.spikes
              else _lost_by(healing, one, others, lost, limit)
              for one, limit, known in zip(culprits, limits, pauses, strict=True)]  # fmt: skip
    lost = lost + paused
    for one in culprits:
        if one.spikes:
            lost[one.columns] = np.maximum(lost[one.columns], spike_rise(job, one, culprits))
    late = tuple(None if limit is None else limit / (one.stop - one.first)
                 for one, limit in zip(culprits, limits, strict=True))  # fmt: skip
    return Cost(lost, tuple(shares), late)


def _lost_by(
    healing: _Healing, one: Suspect, culprits: Sequence[Suspect], lost: Floats, limit: float | None
) -> float:
    """A culprit's share of its steps: its part of the joint cost, or its own cost if larger.

    Its part is no more than what it adds to the cost of the others: who is slow behind a slower one
    costs nothing, whatever its excess.
    """
    part = healing.judged(one)
    joint_ns = _sum(healing.job, one, lost[part])
    lost_ns = joint_ns * _part_of(one, culprits)
    slowest = sorted(culprits, key=lambda other: -other.excess_ns)[:MOST_ALONE]
    if len(culprits) > 1 and one in slowest:
        others_ns = _sum(healing.job, one, healing.lost_ns(healing.but(one))[part])
        alone_ns = _sum(healing.job, one, healing.lost_ns(healing.of(one))[part])
        lost_ns = _own_part(joint_ns, _part_of(one, culprits), others_ns, alone_ns)
    if limit is not None and not healing.replays(one):
        lost_ns = min(lost_ns, limit)
    share = _share_of(healing.job, lost_ns, part)
    steps = np.arange(len(healing.job.line.steps))[one.columns].size
    unseen = is_staged(healing.job.window) and (one.phase == OUTSIDE or not one.phases)
    least_ns, most_ns = measured_ns(healing.job, healing.paused, one, culprits)
    most_ns *= _part_of(one, [other for other in culprits if _slow_together(one, other)])
    share = min(share, _share_of(healing.job, most_ns * steps, one.columns))
    if limit is not None and not (one.by_past or unseen) and limit < HALF * one.excess_ns * steps:
        return share  # nobody waited for it
    least_ns = max(least_ns, _waited_ns(healing.job, one)) * _part_of(one, culprits)
    behind = any(other.excess_ns > one.excess_ns and _slow_together(one, other)
                 for other in culprits)  # fmt: skip
    device_ns = min(device_excess_ns(healing.job, one) * _part_of(one, culprits), most_ns)
    device_ns = 0.0 if behind else device_ns  # who is slow behind a slower one adds nothing
    measured = max(least_ns, device_ns) * steps
    share = max(share, _share_of(healing.job, measured, one.columns))
    seen_ns = min(_seen_ns(healing, one, culprits, lost), most_ns * steps)
    seen = _share_of(healing.job, seen_ns, one.columns)
    return seen if share < HALF * seen else share


def _seen_ns(healing: _Healing, one: Suspect, culprits: Sequence[Suspect], lost: Floats) -> float:
    """What a culprit costs by two measurements that do not know of each other: how much busier the
    busiest rank of its steps is, and how much later it comes to an operator than all others; of
    culprits that are slow together, its part.

    The smaller one counts. A replay, which says what is `lost`, lacks an edge if it contradicts
    both: what ranks wait in an operator that was not recorded seems to be their own work. Between
    operators alone own time is known by arrivals as well, and so by the same clocks.
    """
    if not healing.replays(one) or not _sees_arrivals(healing.job):
        return 0.0
    if BETWEEN in healing.job.own.phases:
        return 0.0
    together = [other for other in culprits if _slow_together(one, other)]
    joint_ns = _seen_of(healing, one, together)
    if _sum(healing.job, one, lost[one.columns]) >= HALF * joint_ns:
        return 0.0
    others_ns = _seen_of(healing, one, [other for other in together if other != one])
    alone_ns = _seen_of(healing, one, [one])
    return _own_part(joint_ns, _part_of(one, together), others_ns, alone_ns)


def _own_part(joint_ns: float, part: float, others_ns: float, alone_ns: float) -> float:
    """One's part of a joint cost: no more than what it adds to that of the others, and no less than
    what it costs alone."""
    return max(min(joint_ns * part, joint_ns - others_ns), alone_ns)


def _seen_of(healing: _Healing, one: Suspect, culprits: Sequence[Suspect]) -> float:
    """What some culprits cost in the steps of one of them, by these two measurements."""
    job = healing.job
    guilty = np.isin(np.arange(len(job.line.ranks)), [each.row for each in culprits])
    if job.arrivals is None or not guilty.any():
        return 0.0
    late = job.arrivals.most_lag_of(guilty, len(job.line.steps))
    saved = {key: saved for key, saved in healing.savings.items() if guilty[key[0]]}
    seen = np.minimum(late, _of_busiest(job, saved))[one.columns]
    return _sum(job, one, np.clip(seen, 0.0, None))


def _slow_together(one: Suspect, other: Suspect) -> bool:
    """Whether two are slow in mostly the same steps: what steps took longer, both cost together."""
    both = min(one.stop, other.stop) - max(one.first, other.first)
    return both >= HALF * (max(one.stop, other.stop) - min(one.first, other.first))


def _part_of(one: Suspect, culprits: Sequence[Suspect]) -> float:
    """Its part of what some culprits cost together, by its excess."""
    return max(one.excess_ns, 1.0) / sum(max(other.excess_ns, 1.0) for other in culprits)


def _waited_ns(job: Observed, one: Suspect) -> float:
    """How much longer per step devices of the peers communicate and compute nothing than that of a
    culprit: they wait for it, but no longer than its excess. 0 where no trace shows it, and in
    pipelines, in which others wait as well."""
    if job.breakdown is None or is_staged(job.window) or one.spikes:
        return 0.0
    exposed = device_ns(job, "exposed_ns")[:, one.columns]
    peers = exposed[job.peers_of(one.row, one.phase)]
    more = stats.median(stats.column_median(peers) - exposed[one.row])
    return float(np.clip(more, 0.0, max(one.excess_ns, 0.0)))


def _lost_by_spikes(
    healing: _Healing, one: Suspect, culprits: Sequence[Suspect], limit: float | None
) -> float:
    """A culprit's share of the steps in which it has spikes, or of all if it has only one.

    Ranks that are late together hold the others up once: no longer than the latest of them. All
    ranks may save in these steps, which makes them longer as well. With few others a model counts.
    """
    job, same = healing.job, _at_once(one, culprits)
    most_ns = (sum if is_staged(job.window) else max)(other.whole_ns for other in same)
    share = one.whole_ns / max(sum(other.whole_ns for other in same), 1.0)
    device_ns = device_excess_ns(job, one) * len(one.spikes)
    most_ns = max(most_ns * _hidden_factor(job, one), device_ns)
    lost_ns = share * min(most_ns, float(spike_rise(job, one, culprits).sum()))
    if free_columns(job, one, culprits).size < LEAST_EITHER:
        least_ns, limit_ns = _modelled_ns(healing, one, same)
        lost_ns = max(min(lost_ns, share * limit_ns), least_ns, share * device_ns)
    lost_ns = lost_ns if limit is None else min(lost_ns, limit)
    lost_ns = min(lost_ns, _beyond_others_ns(healing, one, culprits))
    among = np.arange(len(job.line.steps))[among_spikes(job, one)]
    seen = among[np.isfinite(job.total[one.row, among])]  # of a sample of the steps, only these
    return _share_of(job, lost_ns, seen if seen.size else among)


def _beyond_others_ns(healing: _Healing, one: Suspect, culprits: Sequence[Suspect]) -> float:
    """How much longer a rank takes in its spikes than those that are slow in any case: a step lasts
    as long as its slowest rank. No limit in pipelines, where stages add up."""
    rows = {other.row for other in culprits if not other.spikes} - {one.row}
    if not rows or is_staged(healing.job.window):
        return np.inf
    spikes = np.array(one.spikes, np.int64)
    excess = {row: np.zeros(spikes.size) for row in (*rows, one.row)}
    for (row, _), saved in healing.savings.items():
        if row in excess:
            excess[row] += np.nan_to_num(saved[spikes])
    most = np.max([excess[row] for row in rows], axis=0)
    return float(np.clip(excess[one.row] - most, 0.0, None).sum())


def _modelled_ns(healing: _Healing, one: Suspect, same: Sequence[Suspect]) -> tuple[float, float]:
    """What spikes cost at least, by a replay; without one at most: ranks that have them together
    cost no more than they take longer than the slowest of the others."""
    job, spikes, rows = healing.job, np.array(one.spikes, np.int64), {each.row for each in same}
    if healing.replays(one):
        replayed = np.isin(spikes, np.arange(len(job.line.steps))[healing.judged(one)]).all()
        return float(healing.lost_ns(healing.of(one))[spikes].sum()) if replayed else 0.0, np.inf
    together = {key: saved for key, saved in healing.savings.items() if key[0] in rows}
    most_ns = float(healing.lost_ns(together)[spikes].sum()) * _hidden_factor(job, one)
    return 0.0, np.inf if is_staged(job.window) else max(most_ns, 0.0)


def _hidden_factor(job: Observed, one: Suspect) -> float:
    """How many times as much a rank may take longer as is known of it.

    Where waiting hides the own time of passes, a device that is slow in several of the phases that
    are known is so in the others, too. Phases of which only the excess over peers is known do not
    count as others: what the rank takes longer in them is in its excess already.
    """
    works = [phase for phase in one.phases if phase not in UNNAMED and not loads(phase)]
    if not job.own.hidden or len(works) < SEVERAL:
        return 1.0
    excess_only = sum(job.own.lasted.values(), np.zeros_like(job.total))
    known = stats.median((job.total + excess_only)[:, job.line.warm_up :])
    return max(job.line.typical_ns / max(known, 1.0), 1.0)


def among_spikes(job: Observed, one: Suspect) -> slice:
    """The columns to which the cost of a rank with spikes is related: all, if it has only one.

    From the first spike to where the next would have come after the last.
    """
    columns = len(job.line.steps)
    if one.alone or len(one.spikes) < 2:
        return slice(job.line.warm_up if one.alone else one.first, columns)
    usual = round(float(np.median(np.diff(np.sort(one.spikes)))))
    return slice(one.first, min(max(one.spikes) + max(usual, 1), columns))


def _share_of(job: Observed, lost_ns: float, steps: slice | Ints) -> float:
    period = float(np.nansum(job.line.job_period_ns[steps]))
    return min(max(lost_ns, 0.0) / period, 1.0) if period > 0 else 0.0


@dataclass(frozen=True)
class _Healing:
    """How much shorter steps get without what culprits do beyond their peers."""

    job: Observed
    savings: Savings
    paused: Floats
    """What each step loses to pauses, which are measured."""

    def of(self, one: Suspect) -> Savings:
        return {key: saved for key, saved in self.savings.items() if key[0] == one.row}

    def but(self, one: Suspect) -> Savings:
        """What all others save."""
        return {key: saved for key, saved in self.savings.items() if key[0] != one.row}

    def lost_ns(self, savings: Savings) -> Floats:
        """The time lost in each column of the grid: by replay, else by the busiest rank. Except
        in a chain of steps, no step gains more than what is healed in it."""
        lost = _of_busiest(self.job, savings)
        if self._replay is None or self._shrinking is None or not savings:
            return lost
        graph = self._replay.graph
        columns, replayed = graph.lanes.columns, self._replayed_ns(savings)
        if self._chain is None:  # in a chain a step also gains what earlier ones did
            healed = np.nansum([np.maximum(saved, 0.0) for saved in savings.values()], axis=0)
            replayed = np.minimum(replayed, healed[columns])
        modelled = float(np.maximum(lost[columns], 0.0).sum())
        # steps that were not replayed are scaled as those that were: replay against busiest rank
        lost = lost * (max(float(replayed.sum()), 0.0) / modelled if modelled > 0 else 1.0)
        lost[columns] = replayed
        return lost

    def replays(self, one: Suspect) -> bool:
        """Whether any of its steps is replayed."""
        return self._replay is not None and self._judged(one).size > 0

    def judged(self, one: Suspect) -> slice | Ints:
        """The columns to judge its cost by: those that are replayed, or all where none is."""
        return self._judged(one) if self.replays(one) else one.columns

    def _judged(self, one: Suspect) -> Ints:
        if self._replay is None:
            return np.zeros(0, np.int64)
        graph = self._replay.graph
        own_steps = np.zeros(len(self.job.line.steps), np.bool_)
        own_steps[one.columns] = True
        return graph.lanes.columns[own_steps[graph.lanes.columns]]

    def _replayed_ns(self, savings: Savings) -> Floats:
        assert self._replay is not None and self._shrinking is not None
        graph = self._replay.graph
        if self._chain is not None:
            return self._chain.saved_ns(*self._shrinking.saved(savings)).astype(np.float64)
        done = self._replay.finish_ns(*self._shrinking.saved(savings))
        before, after = graph.ended_ns(graph.finish_ns), graph.ended_ns(done)
        return np.where(before == NULL, 0, before - after).astype(np.float64)

    @cached_property
    def _replay(self) -> Replay | None:
        if KERNELS in self.job.own.phases:
            return None  # nobody knows which piece of a step between operators a kernel is in
        rows = np.unique([row for row, _ in self.savings])
        graph = graph_about(self.job, rows) if rows.size else None
        if graph is None or not connects(self.job, graph):
            return None
        replay = Replay.of(graph)
        return replay if replay.replayed >= CONNECTED else None

    @cached_property
    def _chain(self) -> Chain | None:
        """Steps one after another, where ranks have several roles; None where all do the same, and
        where clocks disagree so much that steps seem to wait for each other."""
        if self._replay is None or not self.job.has_roles:
            return None
        chain = Chain.of(self._replay.graph)
        return chain if chain.replay.replayed >= CONNECTED else None

    @cached_property
    def _shrinking(self) -> Shrinking | None:
        if self._replay is None:
            return None
        return Shrinking.of(self.job, self._replay.graph, sorted({row for row, _ in self.savings}))


def _of_busiest(job: Observed, savings: Savings) -> Floats:
    """The loss if a step lasts as long as its busiest rank: how much less busy that rank is in the
    what-if. In pipelines of which it is known how often stages take turns, stages add up."""
    total = np.nan_to_num(job.total) - served_ns(job, {row for row, _ in savings})
    if not len(total):
        return np.zeros(total.shape[1])
    healed = total.copy()
    for (row, _), saved in savings.items():
        healed[row] -= saved
    if KERNELS in job.own.phases and (model := Model.of(job)).staged:
        return model.step_ns(total) - model.step_ns(np.maximum(healed, 0.0))
    return np.asarray(total.max(axis=0) - np.maximum(healed, 0.0).max(axis=0))


def _at_once(one: Suspect, culprits: Sequence[Suspect]) -> list[Suspect]:
    """The culprits with spikes in mostly the same steps, itself included."""
    own_steps = set(one.spikes)
    return [other for other in culprits
            if len(own_steps & set(other.spikes)) > HALF * len(own_steps)]  # fmt: skip


def _sum(job: Observed, one: Suspect, lost: Floats) -> float:
    """Sum over the steps, without extremes unless the culprit has rare pauses.

    With inputs of different lengths each rank is the slowest in some steps, one in as many as there
    are ranks: what is lost in so few of the steps would be lost by any rank.
    """
    if not one.phases or not lost.size:
        return float(lost.sum())
    return stats.trimmed_mean(lost, min(stats.TRIM, 1 / len(job.line.ranks))) * lost.size


def _lags(job: Observed, guilty: Mask) -> tuple[Floats, Mask] | None:
    """Waiting that culprits caused per step, and the steps in which it is known when they
    arrived."""
    if job.arrivals is None or not len(job.line.steps) or guilty.all() or not _sees_arrivals(job):
        return None
    columns = len(job.line.steps)
    return job.arrivals.lag_of(guilty, columns), job.arrivals.knows(guilty, columns)


def _sees_arrivals(job: Observed) -> bool:
    """Whether arrivals are those of devices: calls of hosts that run ahead of their devices say
    nothing about when these arrive."""
    return job.sees_devices or not on_devices(job)


def _felt(job: Observed, one: Suspect) -> slice | Ints:
    """The columns in which others may wait for it: those of its spikes and the next ones."""
    if not one.spikes:
        return one.columns
    spikes = np.array(one.spikes)
    return np.union1d(spikes, np.minimum(spikes + 1, len(job.line.steps) - 1))


def _limit(lags: tuple[Floats, Mask] | None, part: slice | Ints) -> float | None:
    if lags is None or not lags[1][part].mean() >= COVERED:
        return None
    return float(lags[0][part].sum())

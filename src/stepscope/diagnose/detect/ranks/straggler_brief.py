"""Stragglers in a few steps: what a profiler's trace shows, where L2 needs twenty steps.

Fault: a rank that is slower than its peers in all of the recorded steps.
Paper: none. ARGUS (2026), appendix B, and EROICA (2026), section 4.2, have minutes of steps to look
at; a trace has three to ten, so there are no windows, no onset and no past to compare with.
What differs: three questions, all about log-ratios to the median of the peers, as in L2. Is the
median over the steps large? Is it beyond the noise of single steps (Student, pooled over the
peers)? Is it far from what the peers differ by among themselves? Noise estimated from a handful of
ranks says little about outliers among ranks, so the last is a ratio and no quantile. Of ranks with
two speeds each is compared with the fast ones (`numeric.two_speeds`). The noise is
that between neighbouring steps: about their own medians a rank's two or three steps scatter by half
of it.
Cost: one pass over ranks and steps. Cannot see: what happened between two traces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from stepscope.diagnose.detect.ranks.straggler import (
    LEAST_STEPS,
    PAD_NS,
    Gate,
    Measured,
    Straggler,
    effect_floor,
)
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.numeric.two_speeds import above_fast
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints, Mask

MOST_STEPS = LEAST_STEPS
"""With this number of steps L2 has enough windows. Our simulator."""
LEAST_OF_A_JOB = 3
"""Outside of traces, two steps may both be a pause that other jobs cause. Our simulator."""
SEVERAL = 2
"""Steps from which the noise of single steps is known. Statistics."""
ONE_STEP_SIGMAS = 11.0
"""In standard errors of `USUAL_NOISE`, how far above its peers a rank must be in a single step to
be as certain as at the alarm limit of several. One step does not show what belongs to the rank and
what to the moment: at half as much again as its peers a rank is a suspect, from twice as much on
more likely the culprit than not. Our choice."""
EFFECT = 0.1
"""Twice the smallest ratio that L2 believes. At 0.15 as many healthy jobs blame a rank (15 of
3,060, here 16), and of ranks 15 % slower, among four with 3 % noise, six steps show 22 % and not
70. Our simulator."""
PAD = 0.05
"""Share of a step that is added before ratios are taken. With L2's 0.02 the scatter of short
phases, which no mean of ten steps evens out, hid a pause of 50 ms in one of seven real jobs
(docs/methods/straggler-brief.md). Measured on real data."""
PERSISTENCE = 0.8
"""This part of the steps must show half the effect on their own: all of four, four of five. Our
simulator."""
NORMAL_BEFORE = 0.5
"""A rank became slow if it was above its peers by less than this part of it before. Our
simulator."""
CLEARLY = 0.5
"""A rise below that of a pair must leave this part of it free between all steps before and all
since: a rank that wanders from step to step does not jump. Statistics."""
SUSPECTS = 4
"""One in this many peers may be slow itself, and is not used to measure how much healthy ranks
differ. Our simulator."""
ABOVE_PEERS = 3.5
"""Times what the innocent differ by. Of 3,960 synthetic healthy jobs
(docs/methods/straggler-brief.md) it blames a rank in 0.9 %, 4 in 0.6 %; of ranks half as slow again
among eight with 10 % noise, ten steps show 88 % and not 82. Our simulator."""
PEER_ALARMS = 0.01
"""Among many ranks one differs more: then the limit is what one healthy job in a hundred reaches.
Statistics."""
ONE_STEP_EFFECT = 0.3
"""Smallest ratio in a single step, where a moment's delay looks the same: that of a pair. Our
choice."""
USUAL_NOISE = 0.15
"""Noise of single steps' ratios if steps scatter by 10 %, in a pair. Student's quantile for two
ranks and three steps is 60; hardly a job in which less was observed scatters more than this. Our
simulator."""
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median in those of a mean, for a Gaussian and many steps; less for few.
Statistics."""
PAIR_EFFECT = 0.3
"""Smallest ratio in a pair: it has no peers to compare with one another, and either rank may be the
odd one. Our simulator."""
ENOUGH = 3
"""So many ranks in other groups, as one among four has peers, show what pairs differ by. Our
simulator."""


def applies(steps: int, is_trace: bool) -> bool:
    """Whether so few steps are judged that L2 has no windows."""
    return (1 if is_trace else LEAST_OF_A_JOB) <= steps < MOST_STEPS


def stragglers(
    own: Floats, groups: Sequence[Ints], period_ns: float, phase: str | None, tests: int,
    slow: Mask | None = None,
) -> list[Straggler]:  # fmt: skip
    """Ranks whose own time in one phase exceeds their peers' throughout.

    Args:
        slow: the slower ones of two clusters, if there are two (`numeric.two_speeds`).
        own, groups, period_ns, phase, tests: those of `straggler.stragglers`.
    """
    measured = measure(own, groups, period_ns, tests, slow)
    rows = np.concatenate([np.zeros(0, np.int64), *groups])
    return [] if measured is None else measured.stragglers(phase, rows)


def exceeds(own: Floats, groups: Sequence[Ints], period_ns: float, row: int) -> bool:
    """Whether a rank that is slow in one phase takes longer in all together, or in another one: one
    test of one rank, so its noise may reach less than that of all."""
    measured = measure(own, groups, period_ns, tests=1)
    return measured is not None and bool(measured.found[row])


def measure(
    own: Floats, groups: Sequence[Ints], period_ns: float, tests: int, slow: Mask | None = None
) -> Measured | None:
    """How far each rank's own time exceeds its peers', throughout or since some step.

    None without steps.
    """
    steps = own.shape[1]
    if period_ns <= 0 or not steps:
        return None
    slow = np.zeros(len(own), np.bool_) if slow is None else slow
    logs = np.log(own + max(PAD * period_ns, PAD_NS))
    excess = above_fast(logs, groups, slow)
    first, stop = _onsets(excess), _stops(excess)
    since = np.where(np.arange(steps) >= first[:, None], excess, np.nan)
    excesses = _Excesses(excess, _known(excess, groups), stats.row_medians(excess), slow, logs)
    effect = np.where(first > 0, stats.row_medians(since), excesses.middle)
    alarms = FALSE_ALARMS / max(tests, 1)
    noise, throughout = excesses.surest(alarms)
    needed = np.where(first > 0, excesses.surest(alarms / steps)[1], throughout)
    steady = excesses.beside_steady
    z = _significance(effect, since, np.where(steady, USUAL_NOISE, noise))
    needed[steady] = np.minimum(needed[steady], NormalDist().inv_cdf(1 - alarms / steps))
    limit = needed if steps >= SEVERAL else np.zeros(len(own))  # one step: as certain as it is
    floor, persists, spread = (np.full(len(own), np.nan) for _ in range(3))
    above = above_all(tests)
    innocent = np.concatenate([np.zeros(0, np.int64), *excesses.groups])
    innocent = innocent[~((effect > 0) & (z >= limit))[innocent]]
    most = np.nanmax(excess[innocent], initial=-np.inf)
    for group in excesses.groups:
        floor[group] = excesses.floor(group)
        for row in group[(effect[group] >= floor[group]) & (z[group] >= limit[group])]:
            highest = _is_highest(since[row], most, innocent.size, alarms)
            persists[row] = _persists(since[row]) or highest
            spread[row] = above * excesses.spread(group, row)  # expensive: a sort of all ranks
    gates = (
        Gate(
            "effect",
            effect,
            floor,
            "how much longer than its peers it takes in its median step, "
            "as a logarithm (0.05 is 5 %)",
        ),
        Gate("noise", z, limit, "standard deviations above its peers"),
        Gate("persistence", persists, np.ones(len(own)), "high in most single steps", False),
        Gate("above-peers", effect, spread, "how much its peers differ among themselves"),
    )
    worst = stats.Stretches(first, stop, effect, stop - first)
    return Measured(worst, z, needed, 1, 0, gates)


def _onsets(excess: Floats) -> Ints:
    """For each row the column from which it is high, if it was normal before; 0 of others.

    Every step since is above every step before, as noise does not order them.
    """
    rows, steps = excess.shape
    splits = np.arange(LEAST_OF_A_JOB, steps - LEAST_OF_A_JOB + 1)
    if not splits.size:
        return np.zeros(rows, np.int64)
    total = np.cumsum(np.nan_to_num(excess), axis=1)
    before = total[:, splits - 1] / splits
    after = (total[:, -1:] - total[:, splits - 1]) / (steps - splits)
    rise = (after - before) * np.sqrt(splits * (steps - splits))
    best = rise.argmax(axis=1)[:, None]
    low, high = (np.take_along_axis(part, best, axis=1)[:, 0] for part in (before, after))
    first = splits[best[:, 0]]
    later = np.arange(steps) >= first[:, None]
    least = np.where(later & np.isfinite(excess), excess, np.inf).min(axis=1)
    most = np.where(~later & np.isfinite(excess), excess, -np.inf).max(axis=1)
    much = (high >= np.log1p(PAIR_EFFECT)) & (least > most)
    clearly = (high >= np.log1p(EFFECT)) & (least - most >= CLEARLY * high)
    rose = (low < NORMAL_BEFORE * high) & (much | clearly)
    return np.where(rose, first, 0)


def _stops(excess: Floats) -> Ints:
    """For each row the column after its last known one: a trace may be cut off before the others'
    end."""
    known = np.isfinite(excess)
    after = excess.shape[1] - known[:, ::-1].argmax(axis=1)
    return np.asarray(np.where(known.any(axis=1), after, excess.shape[1]), np.int64)


def _known(excess: Floats, groups: Sequence[Ints]) -> list[Ints]:
    """The groups without ranks that have too few known steps to be compared."""
    steps = np.isfinite(excess).sum(axis=1)
    known = [group[steps[group] >= min(SEVERAL, excess.shape[1])] for group in groups]
    return [group for group in known if group.size > 1]


@dataclass(frozen=True)
class _Excesses:
    """All groups of one phase; `middle` is each row's median excess, `slow` the slower cluster."""

    excess: Floats
    groups: list[Ints]
    middle: Floats
    slow: Mask
    logs: Floats
    """Of own times `[rank, step]`."""

    @cached_property
    def noise(self) -> float:
        """Of single steps, pooled over all groups."""
        if not self.groups or self.excess.shape[1] < SEVERAL:
            return 0.0
        return stats.step_noise(self.excess[np.concatenate(self.groups)])

    @cached_property
    def independent(self) -> int:
        """Independent excesses: ranks less one in each group, because they share one median."""
        return sum(len(group) - 1 for group in self.groups)

    def surest(self, alarms: float) -> tuple[float, float]:
        """The noise, and by how many standard errors an effect must exceed it.

        Either the observed noise with Student's quantile, or `USUAL_NOISE` as if it were known, if
        less was observed.
        """
        steps: int = self.excess.shape[1]
        if steps < SEVERAL:
            return USUAL_NOISE, ONE_STEP_SIGMAS
        observed = max(self.noise, float(np.finfo(np.float64).tiny))
        needed = stats.student(1 - alarms, max(self.independent * (steps - 1), 1))
        known = NormalDist().inv_cdf(1 - alarms)
        if observed <= USUAL_NOISE and USUAL_NOISE * known < observed * needed:
            return USUAL_NOISE, known
        return observed, needed

    def _is_alone(self, group: Ints) -> bool:
        """Whether it is a pair without enough others that show what pairs differ by."""
        return group.size == 2 and self.independent - 1 < ENOUGH

    @property
    def beside_steady(self) -> Mask:
        """The ranks of lone pairs that scatter more than is usual, while the other one does not.

        In a pair both have the same noise, that of whoever stalls for longer or shorter times: it
        would hide the stalls. It is no noise of steps, as the other rank shows.
        """
        steady = np.zeros(len(self.excess), np.bool_)
        if self.excess.shape[1] < SEVERAL or self.noise <= USUAL_NOISE:
            return steady
        for row, other in (pair for group in self.groups if self._is_alone(group)
                           for pair in (group, group[::-1])):  # fmt: skip
            steady[row] = stats.step_noise(self.logs[[other]]) <= USUAL_NOISE
        return steady

    def floor(self, group: Ints) -> float:
        """The smallest effect that is believed."""
        least = effect_floor(self.noise)
        alone = self._is_alone(group)
        single = ONE_STEP_EFFECT if self.excess.shape[1] < SEVERAL else EFFECT
        return max(least, float(np.log1p(PAIR_EFFECT if alone else single)))

    @cached_property
    def _from_cluster(self) -> Floats:
        """How far each rank is from the middle of its cluster."""
        return np.where(self.slow, self.middle - stats.median(self.middle[self.slow]), self.middle)

    def spread(self, group: Ints, row: int) -> float:
        """How far healthy ranks differ from their peers, the worst one in four left out; of ranks
        with two speeds, how far each differs from its cluster. Among the row's own peers without
        the row: if it is slow, each of them would seem to differ from the others by more."""
        others = group[group != row]
        own = [
            self._apart(part) for part in (others[self.slow[others]], others[~self.slow[others]])
        ]
        elsewhere = [self._from_cluster[one] for one in self.groups if one is not group]
        distances = np.sort(np.abs(np.concatenate((*own, *elsewhere))))
        return float(distances[-1 - distances.size // SUSPECTS]) if distances.size else 0.0

    def _apart(self, rows: Ints) -> Floats:
        """How far each of several ranks is from the median of the others, typically."""
        if rows.size < 2:
            return np.zeros(0)
        return stats.row_medians(above_peers(self.logs[rows], [np.arange(rows.size)]))


def _significance(effect: Floats, since: Floats, noise: Floats) -> Floats:
    """The effect of each row in standard errors."""
    steps = np.isfinite(since).sum(axis=1)
    error = np.where(steps >= SEVERAL, MEDIAN_ERROR, 1.0)
    with np.errstate(over="ignore"):  # without any noise all that differs is infinitely sure
        return np.asarray(effect * np.sqrt(steps) / (error * noise))


def _persists(since: Floats) -> bool:
    """Whether most of the known steps are high on their own."""
    values = since[np.isfinite(since)]
    return bool(np.mean(values > np.median(values) / 2) >= PERSISTENCE)


def _is_highest(since: Floats, most: float, innocent: int, alarms: float) -> bool:
    """Whether a rank exceeds all that its innocent peers show in any step, in more steps than
    chance allows: of exchangeable ranks each is as likely as any other to have the next highest
    value, however heavy the tails of the noise are."""
    highest = int((since > most).sum())
    chance = -highest * np.log1p(innocent)
    return highest >= LEAST_OF_A_JOB and bool(chance <= np.log(alarms))


def above_all(tests: int) -> float:
    """The multiple of the spread that the farthest of this many healthy ranks hardly ever
    reaches."""
    normal = NormalDist()
    one_in_suspects = normal.inv_cdf(1 - 0.5 / SUSPECTS)
    return max(ABOVE_PEERS, normal.inv_cdf(1 - PEER_ALARMS / max(tests, 1)) / one_in_suspects)

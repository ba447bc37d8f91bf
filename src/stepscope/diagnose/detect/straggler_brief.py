"""Stragglers in a few steps: what a profiler's trace shows, where L2 needs twenty steps.

Fault: a rank that is slower than its peers in all of the recorded steps.
Paper: none. ARGUS (2026), appendix B, and EROICA (2026), section 4.2, have minutes of steps to look
at; a trace has three to ten, so there are no windows, no onset and no past to compare with.
What differs: three questions, all about log-ratios to the median of the peers, as in L2. Is the
median over the steps large? Is it beyond the noise of single steps (Student, pooled over the
peers)? Is it far from what the peers differ by among themselves? Noise estimated from a handful of
ranks says little about outliers among ranks, so the last is a ratio and no quantile. The noise is
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

from stepscope.diagnose.detect.straggler import (
    FALSE_ALARMS,
    LEAST_STEPS,
    PAD_NS,
    Gate,
    Measured,
    Straggler,
    effect_floor,
    log_ratios,
)
from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Ints, Window

MOST_STEPS = LEAST_STEPS
"""With this number of steps L2 has enough windows. Our simulator."""
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
SUSPECTS = 4
"""One in so many peers may be slow itself, and is not used to measure what the innocent differ by.
Our simulator."""
ABOVE_PEERS = 3.0
"""Times what the innocent differ by. Of 3,960 synthetic healthy jobs
(docs/methods/straggler-brief.md), 1.5 as in L2 blames a rank in 3.0 %, 3 in 1.0 %; a rank twice as
slow among four with 10 % noise is still found in 94 %. Our simulator."""
PEER_ALARMS = 0.01
"""Among many ranks one strays farther: then the limit is what one healthy job in a hundred reaches.
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


def applies(window: Window, steps: int) -> bool:
    """Whether this is a trace of few steps; the first steps of a live job are warming up instead.

    Only profilers record single operators of the host.
    """
    return 1 <= steps < MOST_STEPS and window.table("host_ops") is not None


def stragglers(
    own: Floats, groups: Sequence[Ints], period_ns: float, phase: str | None, tests: int
) -> list[Straggler]:
    """Ranks whose own time in one phase exceeds their peers' throughout.

    Args:
        own: `[rank, step]` in ns.
        groups: rows of ranks that do equal work.
        period_ns: the typical step.
        phase: the phase that `own` is of; None: all together.
        tests: how many ranks and phases are tested in all.
    """
    measured = measure(own, groups, period_ns, tests)
    if measured is None:
        return []
    return [
        Straggler(int(row), phase, 0, own.shape[1], float(measured.worst.mean[row]),
                  float(measured.z[row]), measured.needed)
        for row in np.concatenate([np.zeros(0, np.int64), *groups])
        if measured.found[row]
    ]  # fmt: skip


def measure(own: Floats, groups: Sequence[Ints], period_ns: float, tests: int) -> Measured | None:
    """How far each rank's own time exceeds its peers' throughout; None without steps."""
    if period_ns <= 0 or not own.shape[1]:
        return None
    pad = max(PAD * period_ns, PAD_NS)
    excess = log_ratios(own, groups, pad)
    looked = _Looked(excess, _known(excess, groups), stats.row_medians(excess))
    noise, needed = looked.surest(FALSE_ALARMS / max(tests, 1))
    alarm = needed if own.shape[1] >= SEVERAL else 0.0  # one step: as certain as it is
    above, rows = _above_peers(tests), len(own)
    effect, z, floor, persists, spread = (np.full(rows, np.nan) for _ in range(5))
    for group in looked.groups:
        for row in group:
            effect[row], z[row] = looked.significance(row, noise)
            floor[row], persists[row] = looked.floor(group), looked.persists(row)
            if effect[row] >= floor[row] and z[row] >= alarm and persists[row]:
                spread[row] = above * looked.spread(group, row)  # expensive: a sort of all ranks
    alike = np.ones(rows)
    gates = (
        Gate("effect", effect, floor, "log-ratio to its peers, in the median over the steps"),
        Gate("noise", z, alarm * alike, "standard deviations above its peers"),
        Gate("persistence", persists, alike, "high in most single steps", False),
        Gate("above-peers", effect, spread, "how much its peers differ among themselves"),
    )
    whole = np.full(rows, own.shape[1], np.int64)
    worst = stats.Stretches(np.zeros(rows, np.int64), whole, effect, whole)
    return Measured(worst, z, needed, 1, 0, gates)


def _known(excess: Floats, groups: Sequence[Ints]) -> list[Ints]:
    """The groups without ranks that have too few known steps to be compared."""
    steps = np.isfinite(excess).sum(axis=1)
    known = [group[steps[group] >= min(SEVERAL, excess.shape[1])] for group in groups]
    return [group for group in known if group.size > 1]


@dataclass(frozen=True)
class _Looked:
    """All groups of one phase; `middle` is each row's median excess."""

    excess: Floats
    groups: list[Ints]
    middle: Floats

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

    def floor(self, group: Ints) -> float:
        """The smallest effect that is believed."""
        least = effect_floor(self.noise)
        alone = group.size == 2 and self.independent - 1 < ENOUGH
        single = ONE_STEP_EFFECT if self.excess.shape[1] < SEVERAL else EFFECT
        return max(least, float(np.log1p(PAIR_EFFECT if alone else single)))

    def significance(self, row: int, noise: float) -> tuple[float, float]:
        """The effect of a row, and the same in standard errors."""
        effect, steps = float(self.middle[row]), int(np.isfinite(self.excess[row]).sum())
        error = MEDIAN_ERROR if steps >= SEVERAL else 1.0
        return effect, effect * math.sqrt(steps) / (error * noise)

    def persists(self, row: int) -> bool:
        values = self.excess[row][np.isfinite(self.excess[row])]
        return float(np.mean(values > self.middle[row] / 2)) >= PERSISTENCE

    def spread(self, group: Ints, row: int) -> float:
        """How far healthy ranks differ from their peers, the worst one in four left out."""
        others = self.middle[group[group != row]]
        own = others - np.median(others) if others.size > 1 else others[:0]
        elsewhere = [self.middle[one] for one in self.groups if one is not group]
        strays = np.sort(np.abs(np.concatenate((own, *elsewhere))))
        return float(strays[-1 - strays.size // SUSPECTS]) if strays.size else 0.0


def _above_peers(tests: int) -> float:
    """The multiple of the spread that the farthest of so many healthy ranks hardly reaches."""
    normal = NormalDist()
    one_in_suspects = normal.inv_cdf(1 - 0.5 / SUSPECTS)
    return max(ABOVE_PEERS, normal.inv_cdf(1 - PEER_ALARMS / max(tests, 1)) / one_in_suspects)

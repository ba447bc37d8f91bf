"""Stragglers in a few steps: what a profiler's trace shows, where L2 would want twenty.

Fault: a rank that is slower than its peers in all of the steps that somebody chose to record.
Paper: none. ARGUS (2026), appendix B, and EROICA (2026), section 4.2, have minutes of steps to look
at; a trace has three to ten, so there are no windows, no onset and no past to compare with.
Three questions instead, all of log-ratios to the median of the peers, as in L2: is the median over
the steps large; is it beyond the noise of single steps (Student, pooled over the peers); and is it
far from what the peers differ by among themselves. Noise estimated from a handful of ranks says
little about outliers among ranks, so the last is a ratio and no quantile. The noise is that between
neighbouring steps: about their own medians a rank's two or three steps scatter by half of it.
Cost: one pass over ranks and steps. Cannot see: what happened between two traces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.methods.l2 import (
    FALSE_ALARMS,
    LEAST_STEPS,
    PAD_NS,
    Straggler,
    effect_floor,
    log_ratios,
)
from stepscope.window import Floats, Ints, Window

MOST_STEPS = LEAST_STEPS
"""From here on L2 has windows enough."""
LEAST = 2
"""Of a single step nobody can tell what belongs to the rank and what to the moment."""
EFFECT = 0.15
"""Three times the smallest ratio L2 believes: without windows nothing is averaged away."""
PAD = 0.05
"""Share of a step added before ratios are taken. With L2's 0.02 the scatter of short phases, which
no mean of ten steps evens out, hid a pause of 50 ms in one of seven real jobs (docs)."""
PERSISTENCE = 0.8
"""This part of the steps must show half the effect each for itself: all of four, four of five."""
SUSPECTS = 4
"""One in so many peers may itself be slow: it is no measure of what the innocent differ by."""
ABOVE_PEERS = 3.0
"""Times that. Of 3,960 synthetic healthy jobs (docs/methods/brief.md), 1.5 as in L2 blames somebody
in 2.6 %, 3 in 0.6 %; a rank twice as slow among four with 10 % noise, in six steps, is named in 100
and 94 %."""
PEER_ALARMS = 0.01
"""Among many ranks one strays farther: then as many times as one healthy job in a hundred has."""
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median in those of a mean, for a Gaussian and many steps; less for few."""
PAIR_EFFECT = 0.3
"""In a pair there are no peers to differ among themselves, and either may be the odd one."""


def applies(window: Window, steps: int) -> bool:
    """Whether this is a trace of few steps; the first steps of a live job are warming up instead.

    Only profilers record single operators of the host.
    """
    return LEAST <= steps < MOST_STEPS and window.table("host_ops") is not None


def stragglers(
    own: Floats, groups: Sequence[Ints], period_ns: float, phase: str | None, tests: int
) -> list[Straggler]:
    """Ranks whose own time in one phase exceeds their peers' throughout.

    Args:
        own: `[rank, step]` in ns.
        groups: rows of ranks that do equal work.
        period_ns: the typical step.
        phase: the phase that `own` is of; None: all together.
        tests: how many ranks and phases are looked at in all.
    """
    if period_ns <= 0 or own.shape[1] < LEAST:
        return []
    pad = max(PAD * period_ns, PAD_NS)
    excess = log_ratios(own, groups, pad)
    return [one for group in groups for one in _in_group(excess, group, phase, tests)]


def _in_group(excess: Floats, group: Ints, phase: str | None, tests: int) -> list[Straggler]:
    known = group[np.isfinite(excess[group]).sum(axis=1) >= LEAST]
    if known.size < 2:
        return []
    middle = stats.row_medians(excess[known])
    steps = excess.shape[1]
    noise = max(stats.step_noise(excess[known]), np.finfo(np.float64).tiny)
    floor = max(effect_floor(noise), float(np.log1p(EFFECT)))
    if known.size == 2:
        floor = max(floor, float(np.log1p(PAIR_EFFECT)))
    # whatever the ranks do, their excesses have one median: that is one rank less
    needed = stats.student(1 - FALSE_ALARMS / max(tests, 1), (known.size - 1) * (steps - 1))
    above = _above_peers(tests)
    found = []
    for at, row in enumerate(known):
        values = excess[row][np.isfinite(excess[row])]
        effect = float(middle[at])
        z = effect * math.sqrt(values.size) / (MEDIAN_ERROR * noise)
        shown = float(np.mean(values > effect / 2))
        if effect < floor or z < needed or shown < PERSISTENCE:
            continue
        if effect >= above * _spread(middle, at):
            found.append(Straggler(int(row), phase, 0, steps, effect, z, needed))
    return found


def _above_peers(tests: int) -> float:
    """Times the `_spread` that the farthest of so many healthy ranks hardly reaches."""
    normal = NormalDist()
    one_in_suspects = normal.inv_cdf(1 - 0.5 / SUSPECTS)
    return max(ABOVE_PEERS, normal.inv_cdf(1 - PEER_ALARMS / max(tests, 1)) / one_in_suspects)


def _spread(middle: Floats, at: int) -> float:
    """How far a rank's peers stray from their median, the worst one in four left out."""
    others = np.delete(middle, at)
    strays = np.sort(np.abs(others - np.median(others)))
    return float(strays[-1 - others.size // SUSPECTS])

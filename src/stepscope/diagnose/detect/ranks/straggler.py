"""ARGUS level 2: which rank takes longer than its peers, and in which phase.

Fault: one rank, or a few of a group, persistently slower than the ranks that do equal work.
Paper: ARGUS (2026), section 6.1 and appendix B, "L2". Symbols: G -> a comparison group, x_r -> own
time of rank r, mu_G, sigma_G, CV, z_r as there (`as_published`).
Where the default differs: z <= (n-1)/sqrt(n) never reaches 3 in groups of up to 10, and CV shrinks
with 1/sqrt(n) (algorithm notes, section 4). So: own time instead of duration; its log-ratio to the
median of the *other* members, which works from two members up; noise pooled over all groups of the
phase; means over windows of ten steps without their extremes; the worst stretch of such windows
must be long, mostly high, significant after correction for the number of tests, and large against
an effect floor that rises with the noise of single steps.
Cost: one selection (in numpy one sort) per group and step, so O(n) (O(n log n)) in the ranks.
Cannot see: a fault of most members of a group, one shorter than three windows, one rarer than
every fifth step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.numeric.stats import LEAST_WINDOWS, window_width
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints, Mask

LEAST_STEPS = 20
"""Shortest stretch that counts, however narrow the windows of a short series are, or all windows if
these are fewer steps: a remainder of the division is left out in front. Our simulator."""
PERSISTENCE = 0.7
"""k of m: this part of the windows of a stretch must show the effect on their own. Our
simulator."""
EFFECT = 0.05
"""Smallest ratio worth a verdict (algorithm notes, section 4). Our simulator."""
NOISY_EFFECT = 0.75
"""In a noisy job the floor is this part of the standard deviation of a single step's ratio. There,
the processor that a rank happens to get makes differences of that size that last for minutes. Our
simulator."""
INNOCENT_Z = 4.2
"""z against the noise of the innocent alone, a second test of a rank already picked out. Over 180
synthetic healthy jobs with 30 to 50 % wandering noise 3.5 let 6 through, 4.2 one, 4.9 one. Our
simulator."""
ABOVE_PAST = 2.5
PAIR_Z = 1.4
"""In a pair: times its own largest mean elsewhere, and times the z needed. One series instead of
several, and no innocent majority, require more. Our simulator."""
PLAIN = 1.5
RARELY, MUCH = 0.1, 1 / 3
"""A rank that takes so many times as long as the other one of its pair, longer in every window of
the job, and in nine of ten by a third of that, is slow in plain sight: no `PAIR_Z` is needed. In
3,000 pairs of equal ranks whose own times wander (5 to 50 %, steps correlated by up to 0.97) at
most 6 alarms are added to the 52 of the other rule. Our simulator."""
ABOVE_PEERS = 1.5
"""Times the largest excess among the innocent: healthy ranks are exchangeable, so the largest of
four or more rarely exceeds the second by half. Statistics."""
PAD = 0.02
"""Share of a step that is added to own times before ratios are taken: less cannot matter. Our
simulator."""
PAD_NS = 1e6
"""And at least a millisecond, about a time slice: which of two ranks the scheduler runs first makes
jobs of few milliseconds per step differ by that for as long as they run. Our simulator."""


@dataclass(frozen=True)
class Straggler:
    """A rank (row of the grid) slower than its peers in columns [first, stop)."""

    row: int
    phase: str | None
    first: int
    stop: int
    effect: float
    """Mean log-ratio to its peers."""
    z: float
    needed: float
    """The z that noise may reach."""


def log_ratios(own: Floats, groups: Sequence[Ints], pad_ns: float) -> Floats:
    """Log-ratio of every rank's own time to the median of its peers, column by column."""
    return above_peers(np.log(own + pad_ns), groups)


@dataclass(frozen=True)
class Gate:
    """One condition that a straggler must meet, for all rows at once."""

    name: str
    value: Floats
    limit: Floats
    says: str
    is_measure: bool = True
    """Whether value and limit are numbers that tell a reader something, not 0 and 1."""

    @property
    def passed(self) -> Mask:
        return np.asarray(self.value >= self.limit)


@dataclass(frozen=True)
class Measured:
    """Every row's worst stretch of windows in one phase, and the gates it must pass."""

    worst: stats.Stretches
    z: Floats
    needed: Floats
    """By row, what chance hardly makes of `z`."""
    width: int
    lead: int
    """Columns before the first window."""
    gates: tuple[Gate, ...]

    @property
    def found(self) -> Mask:
        """The rows that pass all gates."""
        return np.asarray(np.logical_and.reduce([gate.passed for gate in self.gates]))

    def stragglers(self, phase: str | None, rows: Ints) -> list[Straggler]:
        """Those of some rows that pass all gates."""
        worst, found = self.worst, self.found
        return [
            Straggler(int(row), phase, self.lead + int(worst.first[row]) * self.width,
                      self.lead + int(worst.stop[row]) * self.width, float(worst.mean[row]),
                      float(self.z[row]), float(self.needed[row]))
            for row in rows if found[row]
        ]  # fmt: skip


def stragglers(
    own: Floats, groups: Sequence[Ints], period_ns: float, phase: str | None, tests: int
) -> list[Straggler]:
    """Ranks whose own time in one phase exceeds their peers' over a long enough stretch.

    Args:
        phase: the phase that `own` is of; None: all together. The others are those of `measure`.
    """
    measured = measure(own, groups, period_ns, tests)
    return [] if measured is None else measured.stragglers(phase, np.arange(len(own)))


def measure(own: Floats, groups: Sequence[Ints], period_ns: float, tests: int) -> Measured | None:
    """How far each rank's own time in one phase exceeds its peers'; None in too few steps.

    Args:
        own: `[rank, step]` in ns.
        groups: rows of ranks that do equal work.
        period_ns: the typical step.
        tests: how many ranks and phases are judged in all.
    """
    steps = own.shape[1]
    width = window_width(steps)
    if steps // width < LEAST_WINDOWS or not groups or period_ns <= 0:
        return None
    pad = max(PAD * period_ns, PAD_NS)
    blocks = stats.block_means(own, width)
    excess = log_ratios(blocks, groups, pad)
    floor = effect_floor(stats.step_noise(log_ratios(own, groups, pad)))
    worst = stats.worst_stretch(excess, floor / 2)
    noise = stats.pooled_noise(excess, floor / 2, worst)
    worst = _persistent(excess, floor / 2, worst)
    needed = stats.threshold(FALSE_ALARMS, tests * excess.shape[1], noise.samples)
    z = worst.mean / noise.of_mean(worst.length)
    high = (excess > floor / 2) & worst.inside(excess.shape[1])
    length = worst.length.astype(np.float64)
    alike = np.full(len(excess), 1.0)
    gates = [
        Gate("effect", worst.mean, floor * alike, "how much longer than its peers it takes in its "
             "worst stretch of steps, as a logarithm (0.05 is 5 %)"),
        Gate("noise", z, needed * alike, "standard deviations above its peers"),
        Gate("stretch", length * width, least_steps(steps) * alike,
             "steps of that stretch"),
        Gate("persistence", high.sum(axis=1).astype(np.float64), PERSISTENCE * length,
             "parts of that stretch in which it takes longer, each by itself"),
    ]  # fmt: skip
    found = np.logical_and.reduce([gate.passed for gate in gates])
    apart = stands_out(innocents(blocks, groups, pad, found), groups, worst)
    sure = sure_in_pairs(excess, groups, worst, z / needed)
    gates.append(Gate("above-innocent", apart.astype(np.float64), alike,
                      "it must differ by more than its innocent peers do", False))  # fmt: skip
    gates.append(Gate("pair", sure.astype(np.float64), alike,
                      "in a pair: above its own values outside the stretch", False))  # fmt: skip
    return Measured(
        worst, z, np.full(len(z), needed), width, steps - excess.shape[1] * width, tuple(gates)
    )


def _persistent(excess: Floats, allowance: float, worst: stats.Stretches) -> stats.Stretches:
    """Every row's worst stretch; where it is interrupted for so long that it does not persist, its
    heaviest part without interruption: two slow ranks may take turns."""
    high = (excess > allowance) & worst.inside(excess.shape[1])
    count = high.sum(axis=1)
    comes_and_goes = (count < PERSISTENCE * worst.length) & (count >= LEAST_WINDOWS)
    return stats.steadiest(excess, worst, allowance, np.flatnonzero(comes_and_goes))


def exceeds(
    own: Floats, groups: Sequence[Ints], period_ns: float, row: int, part: tuple[int, int]
) -> bool:
    """Whether a rank that is slow in one phase takes longer in all together, or in another one, in
    the same columns: one test of one rank, so its noise may reach less than that of all."""
    width = window_width(own.shape[1])
    if own.shape[1] // width < LEAST_WINDOWS or not groups or period_ns <= 0:
        return False
    pad = max(PAD * period_ns, PAD_NS)
    excess = log_ratios(stats.block_means(own, width), groups, pad)
    floor = effect_floor(stats.step_noise(log_ratios(own, groups, pad)))
    noise = stats.pooled_noise(excess, floor / 2, stats.worst_stretch(excess, floor / 2))
    lead = own.shape[1] - excess.shape[1] * width
    inside = excess[row, max(part[0] - lead, 0) // width : max(part[1] - lead, 0) // width]
    inside = inside[np.isfinite(inside)]
    if not inside.size or inside.mean() < floor:
        return False
    z = float(inside.mean() / noise.of_mean(np.array([inside.size]))[0])
    return z >= stats.threshold(FALSE_ALARMS, 1, noise.samples)


def least_steps(steps: int) -> int:
    """The shortest stretch that counts in a series of so many steps."""
    width = window_width(steps)
    in_windows = steps // width * width if steps >= LEAST_STEPS else LEAST_STEPS
    return max(LEAST_WINDOWS * width, min(LEAST_STEPS, in_windows))


def innocents(blocks: Floats, groups: Sequence[Ints], pad_ns: float, found: Mask) -> Floats:
    """Excesses of the ranks that were not found, among themselves; NaN for the others."""
    well = [group[~found[group]] for group in groups if found[group].any()]
    return log_ratios(blocks, [group for group in well if len(group) > 1], pad_ns)


def stands_out(innocent: Floats, groups: Sequence[Ints], worst: stats.Stretches) -> Mask:
    """Which stretches rise well above anything their innocent peers do among themselves.

    First by noise estimated from the innocent alone, in which no stretch was singled out; then
    against the innocent's own largest mean over as many windows, so that slow wandering, which any
    model of noise underrates, is on both sides.
    """
    known: Mask = np.asarray(np.isfinite(innocent).any(axis=1))
    if not known.any():
        return np.ones(len(innocent), np.bool_)
    noise = stats.noise_of(innocent - stats.row_medians(innocent)[:, None])
    out: Mask = np.array(worst.mean >= INNOCENT_Z * noise.of_mean(worst.length), np.bool_)
    for group in groups:
        peers = group[known[group]]
        if not peers.size:
            continue
        for row in group[~known[group]]:
            length = int(worst.stop[row] - worst.first[row])
            largest = stats.largest_mean(innocent[peers], length)
            out[row] &= worst.mean[row] >= ABOVE_PEERS * largest
    return out


def sure_in_pairs(
    excess: Floats, groups: Sequence[Ints], worst: stats.Stretches, certainty: Floats
) -> Mask:
    """In a pair, which has no majority of normal ranks: the stretch rises above everything outside
    of it, or the rank is slow in plain sight."""
    out = np.ones(len(excess), np.bool_)
    plain = (worst.mean >= np.log(PLAIN)) & _is_longer_throughout(excess)
    outside = np.where(worst.inside(excess.shape[1]), 0.0, excess)
    for row in (row for group in groups if len(group) == 2 for row in group):
        largest = stats.largest_mean(outside[row : row + 1], int(worst.length[row]))
        surely = worst.mean[row] >= ABOVE_PAST * largest and certainty[row] >= PAIR_Z
        out[row] = surely or plain[row]
    return out


def _is_longer_throughout(excess: Floats) -> Mask:
    """Whether a rank takes longer in all windows, and in nearly all by much of what it does on
    average: a processor that one rank gets more of than the other comes and goes."""
    known = np.where(np.isfinite(excess), excess, 0.0)
    usual = np.quantile(known, RARELY, axis=1) >= MUCH * known.mean(axis=1)
    return np.asarray((known > 0).all(axis=1) & usual)


def effect_floor(step_noise: float) -> float:
    """The smallest log-ratio that is believed, given the noise of single steps."""
    return max(float(np.log1p(EFFECT)), NOISY_EFFECT * step_noise)

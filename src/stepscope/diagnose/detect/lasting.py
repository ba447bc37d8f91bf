"""Ranks that take longer than their peers, throughout or in one stretch of steps, scored in bits.

Two hypotheses about every rank and phase: it is always slower by its level, or it is slower in its
worst stretch of steps. Each is weighed twice, and the smaller evidence counts:

    by time   how far the stretch rises above the rank's other steps, against the scatter of single
              steps, whose correlation is estimated (Gaussian log-likelihood ratio)
    by peers  how far the level or rise exceeds what innocent ranks differ by, which other ranks of
              this job show (Laplace's law with an uncertain scale)

less the bits that it takes to name the rank, the phase (by its share of the step), and the length
and both ends of the stretch, among all that were looked at. So effect, length and number of tests
are one number: seven doubled steps are certain, two percent on one rank need a hundred steps, and
10,240 ranks cost 13 bits.

Papers: none prints this rule. It is the sketch of a ledger's hypotheses: always, or in a stretch.
Cost: one selection per group and step, two cumulative sums, and for each length of stretch that is
suspected a moving mean of at most `SAMPLE` peers.
Cannot see: a fault of most members of a group; single slow steps (`transient`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.window import Floats, Ints, Mask

SPREAD, PRIOR = 0.01, 2.0
"""The part of a step by which healthy ranks differ permanently where nothing is known, and how many
peers that knowledge is worth. Measured on real data (16 ranks of `shared/real` differ by 0.5 %;
ranks of CPU jobs in our lab by 1 to 2 %)."""
LEAST_SPREAD, LEAST_SPREAD_NS = 0.005, 5e5
"""Differences below this share of a step, or half a time slice of the processor, are never
evidence. Measured on real data."""
STEP_NOISE, STEP_PRIOR = 0.1, 2.0
"""By how much of a step single steps scatter where nothing is known, and how many steps that
knowledge is worth. Our choice: of one recorded step, twice the peers' time is evidence."""
LEAST_STEPS = 3
"""Shortest stretch, and shortest rest of the steps, that has a level of its own. Statistics."""
RISES = 0.5
"""Where a rank is above its peers by less than twice of what it is elsewhere, it is always slow;
where it is above them by less than half of its rise, others became slow elsewhere. Our choice."""
LAPLACE = 1.03
"""Standard deviation, as the median absolute deviation gives it, in units of the scale of Laplace's
law: 1.4826 times ln 2. Statistics."""
MINORITY = 0.45
"""Of ranks that are always slower no more than this part: half may be half that are fast. Our
choice."""
LEAST_SHARE = 0.01
"""A phase is named by the bits of its share of the step, at least this one. Our choice."""
FEW = 0.125
"""Up to this part of the peers, slow ones do not move their median much. Our choice."""
SAMPLE = 256
"""Peers whose moving means show what is usual, at most. Our choice."""


@dataclass(frozen=True)
class Lasting:
    """The better hypothesis about each row in one phase."""

    bits: Floats
    """Evidence less what it takes to name the hypothesis; -inf where nothing is known."""
    first: Ints
    stop: Ints
    excess_ns: Floats
    """How much longer than its peers a step takes there."""

    def shifted(self, columns: int) -> Lasting:
        """The same in steps counted from an earlier one."""
        return replace(self, first=self.first + columns, stop=self.stop + columns)


def lasting(own: Floats, groups: Sequence[Ints], period_ns: float) -> Lasting | None:
    """The better hypothesis about each rank in one phase; None if no two ranks do equal work.

    Args:
        own: `[rank, step]` in ns.
        groups: rows of ranks that do equal work.
        period_ns: the typical step.
    """
    groups = [group for group in groups if len(group) > 1]
    if not groups or period_ns <= 0 or not own.shape[1]:
        return None
    above = above_peers(own, groups) / period_ns
    known = np.flatnonzero(np.isfinite(above).any(axis=1))
    if known.size < 2:
        return None
    independent, at = _independent(groups, known, len(own))
    return _PhaseEvidence(own, groups, above, known, independent, at, period_ns).better()


def _independent(groups: Sequence[Ints], known: Ints, size: int) -> tuple[Ints, Ints]:
    """The rows with independent excesses, and the index of each row's own among them.

    Of a pair, what one is above the other is what that is below.
    """
    first = np.arange(size)
    for one, other in (group for group in groups if len(group) == 2):
        first[other] = one
    rows = np.unique(first[known])
    return rows, np.searchsorted(rows, first).clip(0, rows.size - 1)


@dataclass(frozen=True)
class _PhaseEvidence:
    """All that is computed about one phase."""

    own: Floats
    groups: Sequence[Ints]
    above: Floats
    """Excesses in shares of a step, `[rank, step]`."""
    known: Ints
    independent: Ints
    at: Ints
    """Of every row, where among the independent ones it, or the one that it mirrors, is."""
    period_ns: float

    def better(self) -> Lasting:
        """The hypothesis with more evidence; a change over time, if there is one."""
        always = self._always()
        if self._steps < 2 * LEAST_STEPS:
            return always
        stretch = self._stretch()
        pick: Mask = stretch.bits > np.minimum(always.bits, 0.0)
        return Lasting(*(np.where(pick, getattr(stretch, name), getattr(always, name))
                         for name in Lasting.__dataclass_fields__))  # fmt: skip

    @property
    def _steps(self) -> int:
        return int(self.above.shape[1])

    @cached_property
    def _level(self) -> Floats:
        """How far each rank usually is above its peers."""
        return stats.row_medians(self.above)

    @cached_property
    def _naming(self) -> float:
        share = stats.median(self.own[self.known]) / self.period_ns
        return math.log2(self.known.size) + 1 - math.log2(min(max(share, LEAST_SHARE), 1.0))

    @cached_property
    def _least(self) -> float:
        return max(LEAST_SPREAD, LEAST_SPREAD_NS / self.period_ns)

    def _always(self) -> Lasting:
        rows = len(self.above)
        noise = self._noise(self.above - self._level[:, None])
        error = noise.of_mean(np.isfinite(self.above).sum(axis=1))
        usual = np.abs(self._level[self.independent])
        peers = self._unusual(self._level, error, usual, np.arange(rows))
        for row in np.flatnonzero((self._level > self._least) & (peers < self._naming)).tolist():
            among = self._innocent(row, self._level, most=MINORITY)
            if among is not self.above:
                usual, only = np.abs(stats.row_medians(among[self.independent])), np.array([row])
                peers[row] = self._unusual(self._level[only], error[only], usual, only)[0]
        return self._lasting(peers - self._naming, np.zeros(rows, np.int64),
                             np.full(rows, self._steps), self._level)  # fmt: skip

    def _stretch(self) -> Lasting:
        worst = self._worst()
        inside = worst.inside(self._steps)
        high = stats.row_medians(np.where(inside, self.above, np.nan))
        low = stats.row_medians(np.where(inside, np.nan, self.above))
        rise = high - low
        noise = self._noise(self.above - np.where(inside, high[:, None], low[:, None]))
        outside = self._steps - worst.length
        within = self._within(inside, high)
        error = np.hypot(noise.of_mean(worst.length) * np.maximum(within / noise.sigma, 1.0),
                         noise.of_mean(outside))  # fmt: skip
        ends = (worst.first > 0).astype(int) + (worst.stop < self._steps)
        naming = self._naming + ends * math.log2(self._steps)
        rises = (rise > RISES * high) & (high > RISES * rise)
        enough = (worst.length >= LEAST_STEPS) & (outside >= LEAST_STEPS) & rises
        by_time = np.where(enough, np.maximum(rise, 0.0) ** 2 / error**2 / 2 / math.log(2), 0.0)
        peers = np.zeros(len(rise))
        for row in np.flatnonzero(by_time > naming).tolist():
            only, part = np.array([row]), slice(int(worst.first[row]), int(worst.stop[row]))
            usual = self._usual_rises(self._innocent(row, self._rise_in(part)), part)
            strongest = np.where(rises, rise, 0.0) * np.sqrt(worst.length / worst.length[row])
            usual = np.fmax(
                usual, np.where(np.isfinite(usual), strongest[self.independent], np.nan)
            )
            peers[row] = self._unusual(rise[only], error[only], usual, only)[0]
        lengths = math.log2(1 + math.log2(self._steps))
        bits = np.minimum(by_time - naming, peers - self._naming - lengths)
        return self._lasting(bits, worst.first, worst.stop, high)

    def _lasting(self, bits: Floats, first: Ints, stop: Ints, mean: Floats) -> Lasting:
        known = np.isin(np.arange(len(bits)), self.known)
        bits = np.where(known, np.nan_to_num(bits, nan=-np.inf), -np.inf)
        return Lasting(bits, first, stop, mean * self.period_ns)

    def _worst(self) -> stats.Stretches:
        """Each rank's worst stretch, in which single long steps are clipped."""
        most = np.nanquantile(self.above[self.known], 0.9, axis=1) + 3 * self._scatter
        clipped = self.above.copy()
        clipped[self.known] = np.minimum(clipped[self.known], most[:, None])
        return stats.worst_stretch(clipped, self._least)

    def _within(self, inside: Mask, high: Floats) -> Floats:
        """Scatter of each rank's steps around its level inside of its stretch."""
        distance = np.abs(np.where(inside, self.above - high[:, None], np.nan))
        return np.asarray(stats.MAD_TO_SIGMA * stats.row_medians(distance))

    @cached_property
    def _scatter(self) -> float:
        return stats.step_noise(self.above) if self._steps > 1 else STEP_NOISE

    def _noise(self, residual: Floats) -> stats.Noise:
        """Scatter of single steps around their levels; nearly unknown in the first few."""
        seen = self.independent.size * (self._steps - 1)
        if not seen:
            return stats.Noise(STEP_NOISE, 1.0, 0)
        found = stats.noise_of(residual)
        variance = STEP_PRIOR * STEP_NOISE**2 + seen * found.sigma**2
        return stats.Noise(math.sqrt(variance / (STEP_PRIOR + seen)), found.memory, found.samples)

    def _unusual(self, values: Floats, errors: Floats, usual: Floats, rows: Ints) -> Floats:
        """Bits by which values of rows exceed those of their peers, given by independent row."""
        seen = max(int(np.isfinite(usual).sum()) - 1, 0)
        others = np.nan_to_num(stats.leave_one_out_median(usual[:, None])[:, 0])[self.at[rows]]
        robust = np.maximum(stats.MAD_TO_SIGMA * others, self._least)
        variance = (PRIOR * max(SPREAD, self._least) ** 2 + seen * robust**2) / (PRIOR + seen)
        z = LAPLACE * np.maximum(values, 0.0) / np.sqrt(variance + errors**2)
        shape = PRIOR + seen
        return np.asarray(shape * np.log2(1 + z / shape))

    def _rise_in(self, part: slice) -> Floats:
        """How much higher each rank is in some steps than in the others."""
        inside, whole = self.above[:, part], np.nansum(self.above, axis=1)
        within = np.nansum(inside, axis=1)
        return np.asarray(within / inside.shape[1]
                          - (whole - within) / max(self._steps - inside.shape[1], 1))  # fmt: skip

    def _innocent(self, row: int, high: Floats, most: float = 0.5) -> Floats:
        """Excesses of the others among themselves: beside several slow ranks they look fast.

        Slow with a rank are those with half of its height, if they are no more than this part of
        the peers.
        """
        slow = np.flatnonzero(high >= RISES * high[row])
        group = next(group for group in self.groups if row in group)
        guilty = np.isin(group, slow).sum()
        if not group.size * FEW < guilty <= group.size * most:
            return self.above
        others = [group[~np.isin(group, slow)] for group in self.groups]
        return above_peers(self.own, [group for group in others if len(group) > 1]) / self.period_ns

    def _usual_rises(self, among: Floats, part: slice) -> Floats:
        """The largest rise of any as many neighbouring steps above the row's others, by independent
        row."""
        length = part.stop - part.start
        rows = self.independent
        found = np.full(rows.size, np.nan)
        chosen = np.unique(np.linspace(0, rows.size - 1, min(rows.size, SAMPLE)).astype(int))
        chosen = chosen[np.isfinite(among[rows[chosen]]).any(axis=1)]
        values = among[rows[chosen]]
        values = np.nan_to_num(values - stats.row_medians(values)[:, None])
        total = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
        means = (total[:, length:] - total[:, :-length]) / length
        rest = (total[:, -1:] - means * length) / max(self._steps - length, 1)
        found[chosen] = np.abs(means - rest).max(axis=1)
        return found

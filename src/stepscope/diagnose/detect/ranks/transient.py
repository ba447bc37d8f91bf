"""Ranks that are slow only at times, or only since a few steps ago.

Fault: ECC errors every few steps, throttling that comes and goes, a compilation in the middle of a
job, one stall that lasts as long as forty steps; and a lasting slowness too young for L2.
Papers: ARGUS (2026), section 9.4, where L2 and L3 dilute such spikes in their windows; Holmes (Yao
et al., 2025), section 3.1, which calls them spikes and fluctuations. Neither has a rule for own
time.
What differs: own time is compared with peers in the same step, so that what the whole job does
cancels. A *spike* is an excess beyond noise and large in the step. Healthy jobs have spikes, too,
on any rank. So a rank is found when it has more of them than Poisson's law allows at the rate of
all others, when one spike is so long that it matters by itself and no other rank had anything like
it (`long_stalls` for several), or when spikes coincide with errors that its own device counts
(ARGUS, table 6). A profiler trace is too short to count spikes, so there they are weighed
(`weighty_ranks`). Duties of single ranks are left out (`duties`). A run of spikes counts as one,
unless it is still going on.
Cost: one sort per group and step. Cannot see: spikes of most of a group at once, or below noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.detect.ranks.long_stalls import (
    SEVERAL,
    by_regularity,
    longer,
    without_suspects,
)
from stepscope.diagnose.detect.ranks.straggler import PAD, PAD_NS, log_ratios
from stepscope.diagnose.detect.steps.duties import habits
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import poisson_tail
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints, Mask, distinct

SPIKE_Z = 5.0
"""Times the noise of a single step. Of Gaussian noise 3 in 10 million values reach as far.
Statistics."""
SPIKE_EFFECT = 0.1
"""Twice the smallest ratio that L2 believes of many steps, as in `straggler_brief`. Our
simulator."""
SPIKE_SHARE = 0.03
"""Of a typical step: what is shorter costs too little for a verdict, however often it occurs. Our
simulator."""
ECHO = 0.5
"""If several ranks have a spike in one step, those with less than this part of the largest excess
are ignored: a rank that waits for the slow one, in ways that were not recorded, shows less. Our
simulator."""
MOMENT_NS = 10**9
"""Spikes within about a second are one: a short job of another program takes a processor for that
long. Our simulator."""
GAP = 2
"""Steps without a spike that do not divide a run of spikes. Our simulator."""
LASTING = 5
"""Time after which a run that goes on is no longer a passing disturbance. Our simulator."""
LEAST_SPIKES = 3
"""Two spikes may be chance however rare they are elsewhere. Our simulator."""
LEAST_WITH_ERRORS = 2
"""One error and one spike may coincide by chance. Our simulator."""
ROUND = 10
"""In steps of such numbers, or the ones before, some ranks save, log and evaluate. Our
simulator."""
STALL_NS = 10**9
"""A single run that counts takes a second longer: less happens to any process on a busy machine.
Our simulator."""
MOSTLY = 0.5
"""Part of a rank's spikes that its host must share to have a stall together. Our simulator."""
OF_LONGEST = 0.1
"""Where one spike counts by its length, those of less than this part of it do not belong to it: a
rank with a stall of two seconds was a few milliseconds late in hundreds of steps. Measured on real
data."""
UNLIKE = 5.0
"""And so many times the longest run of any other rank in the window. Our simulator."""
SUSPECTS = 4
"""One in this many ranks may have pauses of its own, as in `straggler_brief`: what a rank's are
compared with are those of the others. Our choice."""


@dataclass(frozen=True)
class SpikingRank:
    """A rank (row of the grid) with spikes in some columns."""

    row: int
    columns: tuple[int, ...]
    effect: float
    """Median log-ratio to its peers in these columns."""
    z: float
    """Standard deviations of a step by which the smallest of them exceeds its peers."""
    needed: float
    alone: bool
    """Whether the length of one spike counts, and not how many there are."""


@dataclass(frozen=True)
class Series:
    """Own times of one phase, what they are compared with, and when their steps began."""

    own: Floats
    """`[rank, step]` in ns."""
    groups: Sequence[Ints]
    steps: Ints
    begins_ns: Ints
    period_ns: float
    """The typical step."""
    errors: Mask = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    """`[rank, step]`: where a rank's own device may have counted errors; empty: not read."""
    duties: bool = True
    """Whether the first and the last rank may have duties here: nobody saves or logs while it loads
    or computes."""
    beside: bool = False
    """Whether it is beside training, where a duty may take any time."""
    named: bool = False
    """Whether the phase is named for saving or evaluation, where a duty needs no schedule."""
    within: bool = False
    """Whether it is the time between two phases of a step, in which nobody saves."""


def spiking_ranks(
    series: Series, units: Sequence[Ints], tests: int, lonely: bool = True, duties: bool = True
) -> list[SpikingRank]:
    """Ranks with spikes that chance does not explain.

    Args:
        units: rows that may have spikes together: those of each host.
        tests: how many ranks and phases are tested in all.
        lonely: whether a single long spike may count.
        duties: whether it may be that of a rank that saves, logs or evaluates.
    """
    if series.period_ns <= 0 or not series.groups or not series.own.size:
        return []
    # of the others only the device may be known
    known = np.asarray(np.isfinite(series.own).any(axis=1))
    units = [some for unit in units if (some := unit[known[unit]]).size]
    spikes = _find_spikes(series, units)
    if not spikes.hit.any():
        return []
    shared = [unit for unit in units if unit.size > 1]
    several = len(shared) > 1
    found = _too_often(series, spikes, shared, tests) if several else {}
    single = [row for row in np.arange(len(series.own))[:, None] if int(row[0]) not in found]
    found |= _too_often(series, spikes, single, tests)
    found |= _with_errors(series, spikes, tests)
    found = _far_longer(series, spikes, list(np.arange(len(series.own))[:, None]), tests) | found
    found = (_far_longer(series, spikes, shared, tests) if several else {}) | found
    often = [spikes.of(row, columns, False) for row, columns in sorted(found.items())]
    designated = _designated(series, units) if duties else frozenset()
    alone = _alone(series, spikes, shared, designated) if lonely else []
    return often + [spikes.of(row, spikes.of_weight(row), True)
                    for row in alone if row not in found]  # fmt: skip


def weighty_ranks(series: Series, units: Sequence[Ints]) -> list[SpikingRank]:
    """Ranks whose spikes together take far longer than those of the others.

    For a recording of seconds: all spikes may be one event, and only what it costs is measured. A
    spike exceeds also what the rank itself takes when it is fast, so that a rank that is always
    slow has none.

    Args:
        units: rows that may have spikes together: those of each host.
    """
    if series.period_ns <= 0 or not series.own.size:
        return []
    spikes = _find_spikes(series, units)
    spikes = replace(spikes, hit=spikes.hit & (_past_ratios(series) >= spikes.limit))
    spikes = replace(spikes, hit=spikes.hit & spikes.unechoed)
    weight = np.where(spikes.hit, spikes.excess_ns, 0.0).sum(axis=1)
    return [spikes.of(row, np.flatnonzero(spikes.hit[row]), True)
            for row in np.flatnonzero(weight).tolist()
            if weight[row] >= UNLIKE * _usual_weight(weight, spikes.hit, row, units)]  # fmt: skip


def _usual_weight(weight: Floats, hit: Mask, row: int, units: Sequence[Ints]) -> float:
    """The largest weight among the other ranks, except those of its host with spikes at once.

    Some others may be slow themselves and are left out; unless this rank has a single spike, which
    hits any rank by chance, and with others elsewhere shows nothing.
    """
    unit = next((one for one in units if row in one), np.array([row]))
    at_once = unit[hit[unit][:, hit[row]].mean(axis=1) > MOSTLY]
    others = np.sort(np.delete(weight, np.union1d(at_once, row)))
    suspects = others.size // SUSPECTS if hit[row].sum() >= SEVERAL else 0
    return float(others[: others.size - suspects].max(initial=0.0))


@dataclass(frozen=True)
class _Spikes:
    """The spikes of all ranks by `[rank, step]`, with log-ratios to the peers and excesses."""

    hit: Mask
    ratio: Floats
    excess_ns: Floats
    noise: float
    limit: float

    @cached_property
    def rows(self) -> Mask:
        """Which ranks have any spike."""
        return np.asarray(self.hit.any(axis=1))

    @cached_property
    def _worst_ns(self) -> Floats:
        """The largest excess of each step."""
        return np.asarray(np.where(self.hit, self.excess_ns, 0.0).max(axis=0))

    @property
    def unechoed(self) -> Mask:
        """`[rank, step]`: what is too large to be the echo of another rank's spike."""
        return np.asarray(self.excess_ns >= ECHO * self._worst_ns)

    def among(self, units: Sequence[Ints]) -> list[Ints]:
        """The units of which any rank has spikes; all are looked at at once, as there are tens of
        thousands."""
        of_unit = np.repeat(np.arange(len(units)), [*map(len, units)])
        rows = np.concatenate([*units, np.zeros(0, np.int64)])
        return [units[at] for at in distinct(of_unit[self.rows[rows]]).tolist()]

    def of_unit(self, unit: Ints) -> Mask:
        """The steps in which most of these ranks have a spike that is no echo of others."""
        hit = self.hit[unit]
        worst_ns = np.where(hit, self.excess_ns[unit], 0.0).max(axis=0)
        return np.asarray((hit.mean(axis=0) > 0.5) & (worst_ns >= ECHO * self._worst_ns))

    def of_weight(self, row: int) -> Ints:
        """The columns of a rank's spikes, without small ones beside the one that counts."""
        columns = np.flatnonzero(self.hit[row])
        excess = self.excess_ns[row, columns]
        return np.asarray(columns[excess >= OF_LONGEST * excess.max()])

    def of(self, row: int, columns: Ints, alone: bool) -> SpikingRank:
        ratios = self.ratio[row, columns]
        return SpikingRank(
            row, tuple(map(int, columns)), stats.median(ratios), float(ratios.min()) / self.noise,
            self.limit / self.noise, alone,
        )  # fmt: skip


def _find_spikes(series: Series, units: Sequence[Ints]) -> _Spikes:
    pad = max(PAD * series.period_ns, PAD_NS)
    ratio = log_ratios(series.own, series.groups, pad) if series.groups else _past_ratios(series)
    noise = max(stats.sigma(ratio - stats.row_medians(ratio)[:, None]), stats.NOISE_FLOOR)
    limit = max(float(np.log1p(SPIKE_EFFECT)), SPIKE_Z * noise)
    known = np.where(np.isfinite(ratio), ratio, -np.inf)
    excess = np.nan_to_num((series.own + pad) * -np.expm1(-np.maximum(known, 0.0)))
    hit = (known >= limit) & (excess >= SPIKE_SHARE * series.period_ns)
    hit &= _above_its_past(series, pad, limit)
    share = excess / max(series.period_ns * series.own.shape[1], 1.0)
    by_design = habits(series.steps, hit, units, share, series.duties, series.beside,
                       series.named, series.within)  # fmt: skip
    return _Spikes(hit & ~by_design, ratio, excess, noise, limit)


def _past_ratios(series: Series) -> Floats:
    """Log-ratios to what ranks take when they are fast."""
    own = np.log(series.own + max(PAD * series.period_ns, PAD_NS))
    return np.asarray(own - stats.fast_level(own)[:, None])


def _above_its_past(series: Series, pad: float, limit: float) -> Mask:
    """In a pair, which has no majority: also above what the rank itself usually takes."""
    above = np.ones(series.own.shape, np.bool_)
    for group in (group for group in series.groups if len(group) == 2):
        own = np.log(series.own[group] + pad)
        above[group] = own - stats.row_medians(own)[:, None] >= limit
    return above


def _too_often(
    series: Series, spikes: _Spikes, units: Sequence[Ints], tests: int
) -> dict[int, Ints]:  # fmt: skip
    """The ranks, with their columns, of units with more spikes than the others' rate explains.

    The worst unit is judged first; the rate for the next is that of the remaining units.
    """
    spiking = spikes.among(units)
    events = _Events.of(series.begins_ns, [spikes.of_unit(unit) for unit in spiking])
    left, found = np.ones(len(spiking), np.bool_), dict[int, Ints]()
    for done, at in enumerate(np.argsort(-events.own, kind="stable").tolist()):
        count, others = int(events.own[at]), len(units) - done - 1
        left[at] = False
        if count < LEAST_SPIKES or others < 1:
            break
        rest = events.until_and_from(int(events.since[at]))[left]
        if _by_chance(count, rest, others) * tests > FALSE_ALARMS:
            break
        hit = events.hit[at]
        found |= {int(row): np.flatnonzero(hit & spikes.hit[row]) for row in spiking[at]
                  if (hit & spikes.hit[row]).any()}  # fmt: skip
    return found


def _by_chance(count: int, rest: Ints, others: int) -> float:
    """The p-value of so many events of a unit at the rate of the others.

    A few of the others may be slow themselves. They can be left out; then the p-value is multiplied
    by the number of units for each (Bonferroni's correction).

    Args:
        rest: the events of others that have any.
        others: how many there are.
    """
    most = np.sort(rest)[::-1][: min(_suspects(others), count)]
    left = int(rest.sum()) - np.append(0, np.cumsum(most))
    return min(poisson_tail(count, (more + 1) / (others - out)) * float(others + 1) ** out
               for out, more in enumerate(left.tolist()))  # fmt: skip


def _suspects(others: int) -> int:
    """How many other ranks may be slow themselves: of three one, so that most are not."""
    return max(others // SUSPECTS, int(others > SUSPECTS // 2))


@dataclass(frozen=True)
class _Events:
    """Independent spikes of units: a run of them is one, unless it is still going on.

    A disturbance of a host for a few seconds is one event. A slowness that has lasted for several
    moments up to now counts as more, whether or not it will go on; so do the moments of the others
    from its beginning on.
    """

    begins_ns: Ints
    hit: Mask
    """`[unit, step]`."""
    starts: Mask
    """The same: where a run begins."""
    since: Ints
    """`[unit]`: the column in which its run that goes on began; the number of columns: none."""

    @classmethod
    def of(cls, begins_ns: Ints, hits: Sequence[Mask]) -> _Events:
        hit = np.array(hits, np.bool_).reshape(len(hits), begins_ns.size)
        starts, since = np.zeros_like(hit), np.full(len(hit), begins_ns.size)
        for row, one in enumerate(hit):
            runs = list(_runs(begins_ns, one))
            starts[row, [run[0] for run in runs]] = True
            if runs and _goes_on(begins_ns, runs[-1]):
                since[row] = runs[-1][0]
        return cls(begins_ns, hit, starts, since)

    @cached_property
    def own(self) -> Ints:
        """`[unit]`: how many each has, its moments since its own run began."""
        lasting = np.unique(self.since)
        by_column = {int(one): self.until_and_from(int(one)) for one in lasting}
        return np.array([by_column[int(one)][row] for row, one in enumerate(self.since)], np.int64)

    def until_and_from(self, column: int) -> Ints:
        """`[unit]`: runs that begin before a column, and moments with spikes from it on."""
        runs = self.starts[:, :column].sum(axis=1)
        if column >= self.hit.shape[1]:
            return np.asarray(runs, np.int64)
        moment = (self.begins_ns[column:] - self.begins_ns[column]) // MOMENT_NS
        first = np.flatnonzero(np.diff(moment, prepend=-1))
        moments = np.logical_or.reduceat(self.hit[:, column:], first, axis=1).sum(axis=1)
        return np.asarray(runs + moments, np.int64)


def _goes_on(begins_ns: Ints, run: Ints) -> bool:
    """Whether a run has lasted for several moments up to now: the next step's spike would belong to
    it."""
    lasted = int((begins_ns[run[-1]] - begins_ns[run[0]]) // MOMENT_NS) + 1
    now = not _apart(begins_ns, run[-1:], begins_ns.size)[0]
    return bool(now and min(lasted, run.size) >= LASTING)


def _with_errors(series: Series, spikes: _Spikes, tests: int) -> dict[int, Ints]:
    """The ranks with spikes just when their own devices count errors, with their columns.

    Few spikes are enough: chance would have to put them into these few steps of these few ranks.
    """
    found: dict[int, Ints] = {}
    counted = series.errors.any(axis=1) & spikes.rows if series.errors.size else spikes.rows[:0]
    for row in np.flatnonzero(counted).tolist():
        both = spikes.hit[row] & series.errors[row]
        elsewhere = int(spikes.hit.sum() - both.sum()) + 1
        rate = elsewhere / max(spikes.hit.size - int(series.errors[row].sum()), 1)
        chance = poisson_tail(int(both.sum()), rate * int(series.errors[row].sum()))
        row_tests = tests * counted.sum() / len(counted)
        if both.sum() >= LEAST_WITH_ERRORS and chance * row_tests <= FALSE_ALARMS:
            found[row] = np.flatnonzero(both)
    return found


def _far_longer(
    series: Series, spikes: _Spikes, units: Sequence[Ints], tests: int
) -> dict[int, Ints]:
    """The ranks of the one unit, with their columns, whose runs of spikes are far longer than any
    other's.

    Chance is that of any unit, so that only phases are tested separately.
    """
    spiking = spikes.among(units)
    hits = [spikes.of_unit(unit) for unit in spiking]
    lengths = [_lengths_ns(series, hit, spikes.excess_ns[unit].max(axis=0))
               for unit, hit in zip(spiking, hits, strict=True)]  # fmt: skip
    longest = np.array([one.max(initial=0.0) for one in lengths])
    found: dict[int, Ints] = {}
    for at, (unit, hit) in enumerate(zip(spiking, hits, strict=True)):
        others = np.zeros(len(units) - 1)
        others[: longest.size - 1] = np.delete(longest, at)
        others, by_chance = without_suspects(lengths[at], others, _suspects(others.size))
        every = list(_runs(series.begins_ns, hit))
        runs = [every[run] for run in longer(lengths[at], others)]
        by_chance *= by_regularity(series.steps[[run[0] for run in runs]])
        if by_chance * tests / len(spikes.hit) > FALSE_ALARMS:
            continue
        columns = np.concatenate(runs)
        for row in unit.tolist():
            if spikes.hit[row, columns].any():
                found[row] = columns[spikes.hit[row, columns]]
    return found


def _runs(begins_ns: Ints, hit: Mask) -> Iterator[Ints]:
    """Columns of spikes in runs: those that are a step or a moment apart are together."""
    columns = np.flatnonzero(hit)
    if columns.size:
        apart = _apart(begins_ns, columns[:-1], columns[1:])
        yield from np.split(columns, np.flatnonzero(apart) + 1)


def _apart(begins_ns: Ints, columns: Ints, later: Ints | int) -> Mask:
    """Whether each column lies far enough, in steps and in time, before the later one."""
    until = np.minimum(later, begins_ns.size - 1)
    apart = later - columns > GAP
    return np.asarray(apart & (begins_ns[until] - begins_ns[columns] > GAP * MOMENT_NS))


def _designated(series: Series, units: Sequence[Ints]) -> frozenset[int]:
    """The rows that save and log for the others: the first of the job and of each host, and the
    last, which has the loss."""
    return frozenset({0, len(series.own) - 1, *(int(unit[0]) for unit in units)})


def _alone(
    series: Series, spikes: _Spikes, units: Sequence[Ints], designated: frozenset[int]
) -> Iterator[int]:
    """The ranks of the only unit, or the only rank, with a spike far longer than any other's."""
    longest = np.zeros(len(spikes.hit))
    for one in np.flatnonzero(spikes.rows).tolist():
        own_ns = _lengths_ns(series, spikes.hit[one], spikes.excess_ns[one])
        longest[one] = own_ns.max(initial=0.0)
    row = int(np.argmax(longest))
    hit = spikes.hit[row]
    steps = series.steps[hit]
    is_round = (steps % ROUND == 0).all() or ((steps + 1) % ROUND == 0).all()
    if longest[row] < STALL_NS or (row in designated and is_round):
        return
    own_units = (
        unit for unit in units if row in unit and spikes.of_unit(unit)[hit].mean() > MOSTLY
    )
    unit = next(own_units, np.array([row]))
    others = np.delete(longest, unit)
    if longest[row] >= UNLIKE * others.max(initial=0.0):
        yield from (int(one) for one in unit if spikes.rows[one])


def _lengths_ns(series: Series, hit: Mask, excess_ns: Floats) -> Floats:
    """The excess of each run of spikes."""
    return np.array([float(excess_ns[run].sum()) for run in _runs(series.begins_ns, hit)])

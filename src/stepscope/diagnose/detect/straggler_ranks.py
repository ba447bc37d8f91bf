"""From stragglers to culprits: one per rank, with its phase and onset.

These are slow for a while on end. Ranks that are slow now and then come from `struck`; `culprits`
puts both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.detect import straggler_brief as brief
from stepscope.diagnose.detect.gc_pauses import Storm, storms
from stepscope.diagnose.detect.straggler import LEAST_STEPS, Straggler, stragglers, window_width
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE, UNNAMED
from stepscope.window import Floats, Ints

DOMINANT = 0.5
"""A phase is named when it carries more than half of the rank's excess."""
ONSET_RISE = 0.5
"""The excess before its onset is less than half of what it is after, or there was no onset."""
INFLATED = 0.1
"""A phase with this share of the excess counts as inflated too."""


@dataclass(frozen=True)
class Culprit:
    """A rank slower than its peers from column `first` to before `stop`."""

    row: int
    phase: str | None
    phases: tuple[str, ...]
    """Every phase in which it is slower; none where its pauses alone count."""
    first: int
    stop: int
    effect: float
    z: float
    needed: float
    excess_ns: float
    """Per step, over its phases: what the rank takes longer than its peers."""
    slowdown: float
    inflated: int
    """How many phases carry a share of the excess."""
    struck: tuple[int, ...] = ()
    """The columns in which it is slow, where it is not so in all of them."""
    alone: bool = False
    """Whether it is named for the length of a blow, and not for how often it is struck."""
    worst: tuple[int, int] | None = None
    """Of these the run of columns with most of the excess, and before which it ends."""
    worst_ns: float = 0.0
    """Its excess per step there."""

    @property
    def columns(self) -> slice | Ints:
        """Where it is slow."""
        return np.array(self.struck, np.int64) if self.struck else slice(self.first, self.stop)

    @property
    def whole_ns(self) -> float:
        """Its excess in all steps together."""
        return self.excess_ns * (self.stop - self.first)

    @property
    def at_its_worst(self) -> Culprit:
        """Only where it is slow, so that what else was measured then is not diluted."""
        if self.worst is None:
            return self
        first, stop = self.worst
        return replace(self, first=first, stop=stop, excess_ns=self.worst_ns, struck=())

    @property
    def named_phase(self) -> str | None:
        """The phase as people know it; our own pseudo-phases are none."""
        return None if self.phase in UNNAMED else self.phase


def lasting_culprits(seen: Observed) -> list[Culprit]:
    """Every rank that some phase, or all phases together, show to be slow for a while."""
    found = _all_stragglers(seen)
    rows = sorted({one.row for one in found})
    merged = [_culprit(seen, [one for one in found if one.row == row]) for row in rows]
    # windows round a stretch up; its onset, once found to the step, may leave an episode only
    least = 1 if is_brief(seen) else LEAST_STEPS
    culprits = [one for one in merged if one.stop - one.first >= least]
    collectors = {storm.row: _collector(seen, storm) for storm in storms(seen)}
    explained = {one.row for one in culprits if one.row in collectors
                 and one.whole_ns >= collectors[one.row].whole_ns}  # fmt: skip
    kept = [one for one in culprits if one.row in explained or one.row not in collectors]
    return kept + [one for row, one in collectors.items() if row not in explained]


def _collector(seen: Observed, storm: Storm) -> Culprit:
    """A rank whose pauses are too rare for L2 and cost enough all the same."""
    row, part = storm.row, slice(storm.first, storm.stop)
    means = {
        phase: float(np.nan_to_num(excess_of(seen, phase, row)[part]).mean())
        for phase in seen.own.phases
    }
    phase = max(means, key=lambda name: means[name], default=None)
    if phase is not None and means[phase] <= DOMINANT * storm.pause_ns:
        phase = None
    normal = stats.median(peers(seen, seen.total, None, row)[part])
    slowdown = 1 + storm.pause_ns / max(normal, 1.0)
    return Culprit(
        row, phase, (), storm.first, storm.stop, float(np.log(slowdown)), 0.0, 0.0, storm.pause_ns,
        slowdown, 0,
    )  # fmt: skip


def _all_stragglers(seen: Observed) -> list[Straggler]:
    skip, ranks = seen.line.warm_up, len(seen.line.ranks)
    phases = seen.own.phases
    tests = ranks * (len(phases) + 1)
    look = brief.stragglers if is_brief(seen) else stragglers
    found: list[Straggler] = []
    for phase, own in zip((*phases, None), (*seen.own.own, seen.total), strict=True):
        if phase is None and len(phases) < 2:
            continue
        period = seen.line.typical_ns
        found += look(own[:, skip:], seen.groups(phase), period, phase, tests)
    return [_shift(one, skip) for one in found]


def is_brief(seen: Observed) -> bool:
    """Whether a few steps of a trace are all there is to judge by."""
    return brief.applies(seen.window, len(seen.line.steps) - seen.line.warm_up)


def _shift(one: Straggler, columns: int) -> Straggler:
    return replace(one, first=one.first + columns, stop=one.stop + columns)


def excess(seen: Observed, own: Floats, phase: str | None, row: int) -> Floats:
    """Per step, how much longer the rank takes than the median of its peers; NaN unknown."""
    above: Floats = own[row] - peers(seen, own, phase, row)
    return above


def peers(seen: Observed, values: Floats, phase: str | None, row: int) -> Floats:
    """Column medians over the ranks that do the same work in a phase."""
    return stats.column_median(values[seen.peers_of(row, phase)])


def _culprit(seen: Observed, mine: list[Straggler]) -> Culprit:
    """Merges a rank's stragglers: the costliest gives range and certainty, the excess the phase."""
    excesses = {one.phase: excess_of(seen, one.phase, one.row) for one in mine}
    main = max(mine, key=lambda one: _sum(excesses[one.phase][one.first : one.stop]))
    row, stop = main.row, main.stop
    first = main.first
    if not is_brief(seen):
        first = _onset(excesses[main.phase], main, seen.line.warm_up)
    flagged = tuple(one for one in excesses if one is not None)
    whole = None in excesses or not flagged
    shares = _shares(seen, row, first, stop, seen.own.phases if whole else flagged)
    phase = dominant(shares) if shares else main.phase
    # nobody knows times outside of phases, so they are no measure of how slow a rank is
    unnamed = phase in (None, OUTSIDE, GAPS)
    own = seen.total if unnamed else seen.own.own[seen.own.phases.index(phase)]
    mine_ns = stats.median(own[row, first:stop])
    theirs_ns = stats.median(peers(seen, own, phase, row)[first:stop])
    carried = sum(shares.values())
    inflated = sum(value >= INFLATED * carried for value in shares.values())
    return Culprit(
        row, phase, tuple(shares), first, stop, main.effect, main.z, main.needed, carried,
        mine_ns / max(theirs_ns, 1.0), inflated,
    )  # fmt: skip


def excess_of(seen: Observed, phase: str | None, row: int) -> Floats:
    """Per step, how much longer the rank takes in a phase (None: in all) than its peers do."""
    own = seen.total if phase is None else seen.own.own[seen.own.phases.index(phase)]
    return excess(seen, own, phase, row)


def _sum(values: Floats) -> float:
    return float(np.nansum(values))


def _shares(
    seen: Observed, row: int, first: int, stop: int, phases: Sequence[str]
) -> dict[str, float]:
    """Mean excess per step of each of the phases in which the rank has any."""
    shares = {}
    for phase in phases:
        values = excess_of(seen, phase, row)[first:stop]
        typical = float(stats.block_means(values[None], max(len(values), 1))[0].sum())
        if np.isfinite(typical) and typical > 0:
            shares[phase] = typical
    return shares


def dominant(shares: dict[str, float]) -> str | None:
    """The phase that carries most of the excess, if one does."""
    phase = max(shares, key=lambda name: shares[name])
    return phase if shares[phase] > DOMINANT * sum(shares.values()) else None


def _onset(series: Floats, one: Straggler, warm_up: int) -> int:
    """The step from which the excess is there: where two levels fit best up to the stretch's end.

    Without a clear rise the rank was slow from the stretch's first window on.
    """
    part = series[warm_up : one.stop]
    middle, spread = stats.median(series[one.first : one.stop]), 3 * stats.sigma(part)
    part = np.clip(part, -spread, middle + spread)
    width = window_width(len(series) - warm_up)
    if part.size <= 2 * width:
        return one.first
    split = stats.split_point(part, width, part.size - width)
    before, after = stats.median(part[:split]), stats.median(part[split:])
    if before < ONSET_RISE * after and warm_up + split > one.first - width:
        return warm_up + split
    return warm_up if one.first - warm_up < width else one.first

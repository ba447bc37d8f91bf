"""From stragglers to culprits: one per rank, with its phase and onset.

These are slow for a while on end. Ranks that are slow now and then come from `struck`; `culprits`
puts both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.detect import straggler_brief as brief
from stepscope.diagnose.detect.gc_pauses import Storm, storms
from stepscope.diagnose.detect.straggler import LEAST_STEPS, Straggler, stragglers
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.windows import window_width
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import DOMINANT, INFLATED, Suspect, dominant, excess_of, peers
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE
from stepscope.window import Floats

ONSET_RISE = 0.5
"""The excess before its onset is less than half of what it is after, or there was no onset."""


def lasting_suspects(job: Observed) -> list[Suspect]:
    """Every rank that some phase, or all phases together, show to be slow for a while."""
    found = _all_stragglers(job)
    rows = sorted({one.row for one in found})
    merged = [_culprit(job, [one for one in found if one.row == row]) for row in rows]
    # windows round a stretch up; its onset, once found to the step, may leave an episode only
    least = 1 if is_brief(job) else LEAST_STEPS
    culprits = [one for one in merged if one.stop - one.first >= least]
    collectors = {storm.row: _collector(job, storm) for storm in storms(job)}
    explained = {one.row for one in culprits if one.row in collectors
                 and one.whole_ns >= collectors[one.row].whole_ns}  # fmt: skip
    kept = [one for one in culprits if one.row in explained or one.row not in collectors]
    return kept + [one for row, one in collectors.items() if row not in explained]


def _collector(job: Observed, storm: Storm) -> Suspect:
    """A rank whose pauses are too rare for L2 and cost enough all the same."""
    row, part = storm.row, slice(storm.first, storm.stop)
    means = {
        phase: float(np.nan_to_num(excess_of(job, phase, row)[part]).mean())
        for phase in job.own.phases
    }
    phase = max(means, key=lambda name: means[name], default=None)
    if phase is not None and means[phase] <= DOMINANT * storm.pause_ns:
        phase = None
    normal = stats.median(peers(job, job.total, None, row)[part])
    slowdown = 1 + storm.pause_ns / max(normal, 1.0)
    return Suspect(
        row, phase, (), storm.first, storm.stop, float(np.log(slowdown)), 0.0, 0.0, storm.pause_ns,
        slowdown, 0,
    )  # fmt: skip


def _all_stragglers(job: Observed) -> list[Straggler]:
    skip, ranks = job.line.warm_up, len(job.line.ranks)
    phases = job.own.phases
    tests = ranks * (len(phases) + 1)
    look = brief.stragglers if is_brief(job) else stragglers
    found: list[Straggler] = []
    for phase, own in zip((*phases, None), (*job.own.own, job.total), strict=True):
        if phase is None and len(phases) < 2:
            continue
        period = job.line.typical_ns
        found += look(own[:, skip:], job.groups(phase), period, phase, tests)
    return [_shift(one, skip) for one in found]


def is_brief(job: Observed) -> bool:
    """Whether a few steps of a trace are all there is to judge by."""
    return brief.applies(job.window, len(job.line.steps) - job.line.warm_up)


def _shift(one: Straggler, columns: int) -> Straggler:
    return replace(one, first=one.first + columns, stop=one.stop + columns)


def _culprit(job: Observed, mine: list[Straggler]) -> Suspect:
    """Merges a rank's stragglers: the costliest gives range and certainty, the excess the phase."""
    excesses = {one.phase: excess_of(job, one.phase, one.row) for one in mine}
    main = max(mine, key=lambda one: _sum(excesses[one.phase][one.first : one.stop]))
    row, stop = main.row, main.stop
    first = main.first
    if not is_brief(job):
        first = _onset(excesses[main.phase], main, job.line.warm_up)
    flagged = tuple(one for one in excesses if one is not None)
    whole = None in excesses or not flagged
    shares = _shares(job, row, first, stop, job.own.phases if whole else flagged)
    phase = dominant(shares) if shares else main.phase
    # nobody knows times outside of phases, so they are no measure of how slow a rank is
    unnamed = phase in (None, OUTSIDE, GAPS)
    own = job.total if unnamed else job.own.own[job.own.phases.index(phase)]
    mine_ns = stats.median(own[row, first:stop])
    theirs_ns = stats.median(peers(job, own, phase, row)[first:stop])
    carried = sum(shares.values())
    inflated = sum(value >= INFLATED * carried for value in shares.values())
    return Suspect(
        row, phase, tuple(shares), first, stop, main.effect, main.z, main.needed, carried,
        mine_ns / max(theirs_ns, 1.0), inflated,
    )  # fmt: skip


def _sum(values: Floats) -> float:
    return float(np.nansum(values))


def _shares(
    job: Observed, row: int, first: int, stop: int, phases: Sequence[str]
) -> dict[str, float]:
    """Mean excess per step of each of the phases in which the rank has any."""
    shares = {}
    for phase in phases:
        values = excess_of(job, phase, row)[first:stop]
        typical = float(stats.block_means(values[None], max(len(values), 1))[0].sum())
        if np.isfinite(typical) and typical > 0:
            shares[phase] = typical
    return shares


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

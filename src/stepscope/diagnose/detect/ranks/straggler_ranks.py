"""Ranks that are slow for a stretch of steps: one suspect per rank, with its phase and onset.

Fault: a rank slower than its peers for twenty steps or more, or for fewer if it is by much, in all
steps of a short trace, or by garbage collection.
Paper: ARGUS (2026), section 6.1 and appendix B, "L2"; table 6 for garbage collection.
What differs: see `straggler`, `short_stretch`, `straggler_brief` and `gc_pauses`. What they find in
the phases of one rank is merged here: the costliest phase gives the range and the certainty. Where
steps come in a short cycle (`views.cycle`), each kind of steps is judged alone.
Cost: one sort per phase, group and step.
Cannot see: ranks that are slow in single steps, which `transient_ranks` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stepscope.diagnose.detect.ranks import short_stretch
from stepscope.diagnose.detect.ranks import straggler_brief as brief
from stepscope.diagnose.detect.ranks.gc_pauses import Storm, storms
from stepscope.diagnose.detect.ranks.slowdown import slowdown_of, suspect_in, suspect_of
from stepscope.diagnose.detect.ranks.straggler import (
    LEAST_STEPS,
    PERSISTENCE,
    Straggler,
    exceeds,
    least_steps,
    stragglers,
)
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.stats import window_width
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import INFLATED, Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.window import Floats, Ints

ONSET_RISE = 0.5
"""The excess before the onset is less than this part of the excess after it, or there was no onset.
Our simulator."""
SEVERAL = 2
"""One window may be high by chance. Our choice."""
LEAST_CALM = 3
"""So many steps at a stretch's end that have less than half of its excess are no noise. Our
choice."""
SLOPE, SLOPE_Z = 0.1, 3.0
"""An excess grew up to its onset if the window before has this part of it, and so many standard
deviations: one window in 700 has by chance. So has one that counts as slow again. Our choice,
statistics."""


Look = Callable[[Floats, Sequence[Ints], float, str | None, int], list[Straggler]]
"""Own times, comparison groups, typical step, phase, number of tests."""


class Stragglers:
    """Ranks that take longer than their peers for many steps, in one phase or in all together."""

    name = "argus-l2"
    needs = Needs("phases|comm_ops|kernels|steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        if not is_brief(job):
            found = list(_merged(job, self.name, stragglers, _least_steps(job)))
            # of few steps of a kind no stretch is long enough
            if job.cycle.length > 1 and min(map(len, job.cycle.kinds)) >= LEAST_STEPS:
                found = list(_by_kind(job, self.name, found))
            yield from found
            yield from _for_a_while(job, self.name, found)


class BriefStragglers:
    """Ranks that take longer than their peers in all steps of a short profiler trace."""

    name = "straggler-brief"
    needs = Needs("phases|comm_ops|kernels|steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        if is_brief(job):
            found = list(_merged(job, self.name, brief.stragglers, 1))
            yield from found
            if not job.line.is_trace:
                yield from _for_a_while(job, self.name, found)


class GcStorms:
    """Ranks that collect garbage far more than their peers, in steps too rare for `argus-l2`."""

    name = "gc-pauses"
    needs = Needs("pauses|hardware:gc_collections", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        for storm in storms(job):
            yield slowdown_of(job, self.name, _collector(job, storm))


def _merged(job: Observed, method: str, look: Look, least: int) -> Iterator[Slowdown]:
    """One suspect per rank, of at least `least` steps.

    Windows round a stretch up: once its onset is found to the step, it may be a short episode.
    """
    found = _all_stragglers(job, look)
    for row in sorted({one.row for one in found}):
        suspect = _culprit(job, [one for one in found if one.row == row])
        if suspect.stop - suspect.first >= least:
            yield slowdown_of(job, method, suspect)


def _least_steps(job: Observed) -> int:
    return least_steps(len(job.line.steps) - job.line.warm_up)


def _by_kind(job: Observed, method: str, throughout: Sequence[Slowdown]) -> Iterator[Slowdown]:
    """The same where steps come in a short cycle: one suspect per rank, in the kinds of steps in
    which it is slow; in all of them, as it was found throughout."""
    kinds = job.cycle.kinds
    found = [(kind, one) for kind, columns in enumerate(kinds) for one in _of_kind(job, columns)]
    known = {one.suspect.row: one for one in throughout if one.suspect is not None}
    for row in sorted({one.row for _, one in found}):
        own = [(kind, one) for kind, one in found if one.row == row]
        if row in known and len({kind for kind, _ in own}) == len(kinds):
            yield known[row]
            continue
        columns = _with_most(job, row, own)
        surest = max((one for _, one in own), key=lambda one: one.z / one.needed)
        suspect = suspect_in(job, row, columns)
        yield slowdown_of(job, method, replace(
            suspect, effect=surest.effect, z=surest.z, needed=surest.needed, worst=None
        ))  # fmt: skip


def _with_most(job: Observed, row: int, found: Sequence[tuple[int, Straggler]]) -> Ints:
    """The columns of the kinds of steps that carry a notable part of the rank's excess."""
    kinds = job.cycle.kinds
    stretches = [kinds[kind][one.first : one.stop] for kind, one in found]
    excess = [float(np.nansum(job.excess_of(one.phase, row)[at]))
              for (_, one), at in zip(found, stretches, strict=True)]  # fmt: skip
    return np.unique(np.concatenate([at for at, lost in zip(stretches, excess, strict=True)
                                     if lost >= INFLATED * max(excess)]))  # fmt: skip


def _of_kind(job: Observed, columns: Ints) -> list[Straggler]:
    """Stragglers among the steps of one kind; their columns count within it."""
    tests = len(job.line.ranks) * (len(job.own.phases) + 1) * job.cycle.length
    usual_ns = stats.median(job.line.job_period_ns[columns])
    width = window_width(columns.size)
    return [replace(one, first=one.first if one.first >= width else 0)
            for phase, own in job.parts()
            for one in stragglers(own[:, columns], job.groups(phase), usual_ns, phase, tests)
            if one.stop - one.first >= least_steps(columns.size)]  # fmt: skip


def _for_a_while(job: Observed, method: str, found: Sequence[Slowdown]) -> Iterator[Slowdown]:
    """Suspects that are slow for some steps in a row, and are not found yet."""
    named = {rank for one in found for rank in one.ranks}
    short = _all_stragglers(job, short_stretch.stragglers)
    for row in sorted({one.row for one in short if int(job.line.ranks[one.row]) not in named}):
        yield slowdown_of(job, method, _culprit(job, [one for one in short if one.row == row]))


def steps_since_onset(job: Observed, row: int) -> int | None:
    """For how many steps a rank that passes all gates is slow; None if it passes them nowhere."""
    found = [one for one in _all_stragglers(job, look_of(job)) if one.row == row]
    if not found:
        return None
    suspect = _culprit(job, found)
    return suspect.stop - suspect.first


def _collector(job: Observed, storm: Storm) -> Suspect:
    """The suspect for a rank whose pauses are too rare for L2 but cost enough."""
    row, part = storm.row, slice(storm.first, storm.stop)
    means = {
        phase: float(np.nan_to_num(job.excess_of(phase, row)[part]).mean())
        for phase in job.own.phases
    }
    phase = max(means, key=lambda name: means[name], default=None)
    if phase is not None and means[phase] <= HALF * storm.pause_ns:
        phase = None
    normal = stats.median(job.peer_median(job.total, None, row)[part])
    slowdown = 1 + storm.pause_ns / max(normal, 1.0)
    return Suspect(
        row, phase, (), storm.first, storm.stop, float(np.log(slowdown)), 0.0, 0.0, storm.pause_ns,
        slowdown, 0,
    )  # fmt: skip


def _all_stragglers(job: Observed, look: Look) -> list[Straggler]:
    skip, tests = job.line.warm_up, len(job.line.ranks) * (len(job.own.phases) + 1)
    found: list[Straggler] = []
    for phase, own in job.parts():
        chosen = partial(look, slow=job.slow_side(phase)) if look is brief.stragglers else look
        found += chosen(own[:, skip:], job.groups(phase), job.line.typical_ns, phase, tests)
    return [replace(one, first=one.first + skip, stop=one.stop + skip) for one in found]


def look_of(job: Observed) -> Look:
    """How ranks are compared: by single steps in a short trace, else by windows of steps."""
    return brief.stragglers if is_brief(job) else stragglers


def is_brief(job: Observed) -> bool:
    """Whether only a few steps of a trace were recorded."""
    return brief.applies(len(job.line.steps) - job.line.warm_up, job.line.is_trace)


def _culprit(job: Observed, found: list[Straggler]) -> Suspect:
    """Merges what was found about a rank: the costliest phase gives range and certainty, the excess
    gives the phase."""
    excesses = {one.phase: job.excess_of(one.phase, one.row) for one in found}
    main = max(found, key=lambda one: float(np.nansum(excesses[one.phase][one.first : one.stop])))
    first = main.first
    if not is_brief(job) and main.stop - first >= _least_steps(job):
        first = onset(excesses[main.phase], main, job.line.warm_up)
    found_in = [*excesses]
    if None not in excesses and _takes_longer(job, main):
        found_in.append(None)
    stop = ending(excesses[main.phase], first, main.stop)
    suspect = suspect_of(job, main.row, (first, stop), main.phase, found_in)
    again = _again(job, excesses[main.phase], first, main)
    if again:
        columns = _to_the_step(excesses[main.phase], [np.arange(first, main.stop), *again])
        suspect = replace(suspect_in(job, main.row, columns), worst=None)
    return replace(suspect, effect=main.effect, z=main.z, needed=main.needed)


def _takes_longer(job: Observed, one: Straggler) -> bool:
    """Whether the rank takes longer in all that it does, while it is slow in one phase."""
    skip = job.line.warm_up
    own, part = job.total[:, skip:], (one.first - skip, one.stop - skip)
    if is_brief(job):
        return brief.exceeds(own, job.groups(None), job.line.typical_ns, one.row)
    return exceeds(own, job.groups(None), job.line.typical_ns, one.row, part)


def _again(job: Observed, series: Floats, first: int, one: Straggler) -> list[Ints]:
    """Other stretches of several windows, in each of which it takes half as much longer or more:
    who takes turns with another slow rank is slow again and again."""
    skip, found = job.line.warm_up, list[Ints]()
    width = window_width(len(series) - skip)
    level = HALF * float(np.nanmean(series[first : one.stop]))
    if is_brief(job) or HALF * one.z < SLOPE_Z * np.sqrt((one.stop - one.first) / width):
        return found
    for begin, end in ((skip, first), (one.stop, len(series))):
        lead = begin + (end - begin) % width
        blocks = stats.block_means(series[None, lead:end], width)[0]
        high = stats.runs_of(np.flatnonzero(blocks > level))
        found += [np.arange(lead + run[0] * width, lead + (run[-1] + 1) * width)
                  for run in high if run.size >= SEVERAL]  # fmt: skip
    return found


def _to_the_step(series: Floats, stretches: Sequence[Ints]) -> Ints:
    """The columns of stretches of windows, and the next ones that are as high as half of them."""
    columns = np.unique(np.concatenate(stretches))
    high = np.flatnonzero(series > HALF * float(np.nanmean(series[columns])))
    return np.concatenate([run for run in stats.runs_of(np.union1d(columns, high))
                           if np.isin(run, columns).any()])  # fmt: skip


def onset(series: Floats, one: Straggler, warm_up: int) -> int:
    """The step at which the excess begins: where two levels fit best up to the stretch's end.

    What grows little by little began before that. Without a clear rise the rank was slow from the
    stretch's first window on.
    """
    part = series[warm_up : one.stop]
    middle, spread = stats.median(series[one.first : one.stop]), 3 * stats.sigma(part)
    part = np.clip(part, -spread, middle + spread)
    width = window_width(len(series) - warm_up)
    if part.size <= 2 * width:
        return one.first
    split = stats.split_point(part, width, part.size - width)
    # medians show nothing of who is slow in every second step
    level = np.nanmean if _comes_and_goes(series[one.first : one.stop]) else stats.median
    before, after = float(level(part[:split])), float(level(part[split:]))
    if before < ONSET_RISE * after and warm_up + split > one.first - width:
        noise = stats.step_noise(part[None, :split]) / np.sqrt(width)
        least = before + max(SLOPE * (after - before), SLOPE_Z * float(noise))
        return warm_up + _foot(part, split, width, least)
    return warm_up if one.first - warm_up < width else one.first


def ending(series: Floats, first: int, stop: int) -> int:
    """The column after the last one in which the rank is slow: the stretch's last window may hold
    steps in which it no longer is, and the next one some in which it still is."""
    part = series[first:stop]
    slow = series >= HALF * stats.median(part)
    if _comes_and_goes(part):
        return stop
    while stop < slow.size and slow[stop]:
        stop += 1
    calm = stop - first - 1 - int(np.flatnonzero(slow[first:stop]).max(initial=-1))
    return stop if calm < LEAST_CALM else stop - calm


def _comes_and_goes(excess: Floats) -> bool:
    """Whether it is high in so few steps of a stretch that it is slow in turns."""
    return bool((excess > HALF * np.nanmean(excess)).mean() < PERSISTENCE)


def _foot(part: Floats, split: int, width: int, least: float) -> int:
    """Where a slope that leads to the split begins: windows before it that exceed `least`."""
    while split >= 2 * width and float(np.nanmean(part[split - width : split])) > least:
        split -= width
    return split

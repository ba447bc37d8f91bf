"""Ranks that are slow at times, or too recently for L2: one suspect per rank, out of its spikes.

Fault: ECC errors, throttling that comes and goes, a compilation in the middle of a job.
Papers: ARGUS (2026), section 9.4; Holmes (2025), section 3.1. What differs: see `transient`.
In a profiler trace spikes are weighed and not counted, over all phases together: own time is known
there to each operator, so nobody saves or logs unseen, and the lateness of each rank is measured.
Cost: one sort per phase, group and step.
Cannot see: spikes of most of a group at once, or below noise; what happens on a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from stepscope.diagnose.detect.ranks.slowdown import slowdown_of, suspect_in
from stepscope.diagnose.detect.ranks.straggler_ranks import is_brief
from stepscope.diagnose.detect.ranks.transient import (
    Series,
    SpikingRank,
    spiking_ranks,
    weighty_ranks,
)
from stepscope.diagnose.detect.steps.duties import saves
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import is_beside_training, loads
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.unnamed import BETWEEN, GAPS, KERNELS, OUTSIDE
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import Floats, Ints

LEAST_STEPS = 10
"""With fewer steps the noise cannot be estimated. Our simulator."""
LEAST_OF_A_TRACE = 3
"""With fewer steps nobody knows which is the usual one: of two, peers show it. Statistics."""
BY_DESIGN = (OUTSIDE, BETWEEN)
"""Where a single long spike may be a checkpoint. In backward passes nobody saves, and no rank
evaluates."""


class Transients:
    """Ranks with more transient slowdowns than chance explains, in one phase or all together."""

    name = "transient"
    needs = Needs("phases|comm_ops|kernels|steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        found: dict[int, list[SpikingRank]] = {}
        for one in _all_spiking(job):
            found.setdefault(one.row, []).append(one)
        for one in _weighty(job):
            found.setdefault(one.row, [one])
        for row, spiking in sorted(found.items()):
            yield slowdown_of(job, self.name, _suspect(job, row, spiking))


def _weighty(job: Observed) -> list[SpikingRank]:
    """Ranks of a trace whose pauses take far longer than those of the others."""
    skip, line, groups = job.line.warm_up, job.line, job.groups(None)
    least = LEAST_OF_A_TRACE - bool(groups)
    if not line.is_trace or len(line.steps) - skip < least:
        return []
    series = Series(job.total[:, skip:], groups, line.steps[skip:],
                    line.begins_ns[skip:], line.typical_ns, duties=False)  # fmt: skip
    return [replace(one, columns=tuple(column + skip for column in one.columns))
            for one in weighty_ranks(series, job.host_rows)]  # fmt: skip


def _all_spiking(job: Observed) -> Iterator[SpikingRank]:
    judged = np.arange(job.line.warm_up, len(job.line.steps))
    if (job.line.is_trace and is_brief(job)) or judged.size < LEAST_STEPS:
        return
    phases, counted, kinds = job.own.phases, job.errors, job.cycle.kinds
    if min(columns.size for columns in kinds) < LEAST_STEPS:
        kinds = [judged]
    tests = len(job.line.ranks) * (len(phases) + 1) * job.cycle.length
    units = job.host_rows
    parts: list[tuple[str | None, Floats]] = [*job.own.items()]
    if len(phases) > 1:
        parts.append((None, _in_steps(job)))
    for (phase, own), at in product(parts, kinds):
        series = Series(
            own[:, at], job.groups(phase), job.line.steps[at], job.line.begins_ns[at],
            stats.median(job.line.job_period_ns[at]), counted[:, at],
            not _is_work(phase), _is_beside(phase), is_beside_training(phase), phase == GAPS,
        )  # fmt: skip
        lonely = phase not in BY_DESIGN and not is_brief(job)
        duties = phase != BACKWARD
        for one in spiking_ranks(series, units, tests, lonely, duties):
            columns = at[list(one.columns)]
            if not (phase == GAPS and _saves(job, one.row, columns)):
                yield replace(one, columns=tuple(columns.tolist()))


def _saves(job: Observed, row: int, columns: Ints) -> bool:
    """Whether the first rank mostly saves or evaluates in these steps, as its stacks show."""
    samples = job.samples
    if row or samples is None:
        return False
    inside = np.isin(job.line.column_of(row, samples.time_ns), columns) & (samples.row == row)
    whole, saving = samples.weight[inside], samples.weight[inside & saves(samples)]
    return bool(saving.sum() > HALF * whole.sum())


def _in_steps(job: Observed) -> Floats:
    """Own time of all phases but those in which a rank may save or log by design."""
    named = [own for phase, own in job.own.items()
             if not _is_beside(phase)]  # fmt: skip
    known = np.isfinite(named).any(axis=0)
    return np.where(known, np.nansum(named, axis=0), np.nan)


def _is_beside(phase: str | None) -> bool:
    """Whether ranks may save or evaluate in a phase by design."""
    return phase in BY_DESIGN or is_beside_training(phase)


def _is_work(phase: str | None) -> bool:
    """Whether ranks load or compute in a phase, and have no duties."""
    return phase in (FORWARD, BACKWARD, KERNELS) or loads(phase)


def _suspect(job: Observed, row: int, spiking: list[SpikingRank]) -> Suspect:
    """Merges what was found about a rank in several phases."""
    surest = max(spiking, key=lambda one: one.z - one.needed)
    columns = np.unique(np.concatenate([one.columns for one in spiking])).astype(np.int64)
    found = suspect_in(job, row, columns, all(one.alone for one in spiking))
    by_past = len(job.line.ranks) == 1
    return replace(found, effect=surest.effect, z=surest.z, needed=surest.needed, by_past=by_past)

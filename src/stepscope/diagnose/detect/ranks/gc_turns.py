"""Ranks that collect garbage in turns: in each step a different one stops, and all others wait.

Fault: Python's collector, left to itself, stops each rank in different steps. No rank alone does it
often; together they lengthen so many steps that it shows.
Papers: EROICA (2026), section 6.1, case 1, found it in stacks; ARGUS (2026), table 6, by L1 and L5.
What differs: pauses are measured, and so is their cost: in each step the longest pause of any rank,
limited by what the step takes longer than steps without pauses. In large jobs some rank pauses in
every step: then as much of it as steps get longer with it. Where kernels were recorded, a pause
costs at least what its rank's device takes longer than its peers in just that step. No pauses, no
finding.
Cost: two passes over ranks x steps.
Cannot see: pauses below the collector's reporting limit; what one rank alone does (`gc_pauses`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.gc_pauses import pause_cost_ns
from stepscope.diagnose.finding import Regression
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.unnamed import KERNELS
from stepscope.window import Floats

LEAST_SHARE = 0.02
"""Share of the step time since the first pause that must be lost; rare full collections of healthy
ranks stay below it. Our simulator."""


@dataclass(frozen=True)
class _Turns:
    """The columns in which a rank paused, and the time that each of them lost."""

    columns: tuple[int, ...]
    lost_ns: Floats


class GcTurns:
    """Ranks that collect garbage in different steps, so that every rank waits for each of them."""

    name = "gc-turns"
    needs = Needs("pauses|hardware:gc_collections", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Regression]:
        found = find_turns(job, {one.row for one in so_far.culprits})
        if found is not None:
            yield found


def find_turns(job: Observed, culprits: Collection[int]) -> Regression | None:
    """Garbage collection in turns, as a finding about all ranks.

    Args:
        culprits: rows that have a verdict of their own.
    """
    if job.pauses is None:
        return None
    skip, others = job.line.warm_up, np.delete(np.arange(len(job.line.ranks)), sorted(culprits))
    pauses, exposed = job.pauses[others, skip:], _exposed(job)[others, skip:]
    turns = _turns(job, pauses, exposed)
    if len(pauses) < 2 or turns is None:
        return None
    most = int(pauses.sum(axis=1).argmax())
    left = _turns(job, np.delete(pauses, most, axis=0), np.delete(exposed, most, axis=0))
    if left is None or left.lost_ns.sum() < HALF * turns.lost_ns.sum():
        return None
    return _finding(job, turns, int((pauses > 0).any(axis=1).sum()))


def _exposed(job: Observed) -> Floats:
    """As much of each rank's pauses as its device, of which kernels were recorded, takes longer
    than its peers' in the same step, `[rank, step]`."""
    if job.pauses is None or KERNELS not in job.own.phases:
        return np.zeros(job.line.shape)
    above = np.nan_to_num(above_peers(job.total, job.groups(None)))
    return np.clip(above, 0.0, job.pauses)


def _turns(job: Observed, pauses: Floats, exposed: Floats) -> _Turns | None:
    """The cost of the pauses of some ranks; None if they are too few or cost too little."""
    period = job.line.job_period_ns[job.line.warm_up :]
    longest = pauses.max(axis=0, initial=0.0)
    paused = np.flatnonzero((longest > 0) & np.isfinite(period))
    lost = np.maximum(pause_cost_ns(period, longest), exposed.max(axis=0, initial=0.0))[paused]
    if not paused.size or lost.sum() < LEAST_SHARE * float(np.nansum(period[paused[0] :])):
        return None
    return _Turns(tuple(paused + job.line.warm_up), lost) if lost.any() else None


def _finding(job: Observed, turns: _Turns, ranks: int) -> Regression:
    first, stop = turns.columns[0], turns.columns[-1] + 1
    lost_ns, count = float(turns.lost_ns.sum()), len(turns.columns)
    whole_ns = float(np.nansum(job.line.job_period_ns[first:stop]))
    detail = (
        f"in {count} of {stop - first} steps one of {ranks} ranks collects garbage, which makes "
        f"the step {lost_ns / count / 1e6:.0f} ms longer"
    )
    return Regression(
        method="gc-turns", cause="gc", detail=detail,
        steps=job.line.span(first, stop), time_ns=job.line.span_ns(first, stop),
        slowdown=whole_ns / max(whole_ns - lost_ns, 1.0), lost_ns=lost_ns / (stop - first),
        score=0.9, victims=0, paused_steps=count,
        values={"paused_steps": count, "ranks_that_pause": ranks},
    )  # fmt: skip

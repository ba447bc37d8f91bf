"""Why a rank was not named: how close it came to each limit of detection.

Candidates carry their own decisions. Any other rank is measured here as the detectors do, in the
phase in which it came closest to an alarm.
Cost: the same as `argus-l2`, for all ranks of each phase.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.decide import rules
from stepscope.diagnose.detect import straggler, straggler_brief
from stepscope.diagnose.detect.straggler_ranks import is_brief
from stepscope.diagnose.finding import Candidate, Decision
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import Floats

NEAREST = 3
"""Number of ranks closest to an alarm that are shown if there was no candidate."""


def why_not(job: Observed, rank: int) -> Candidate:
    """A rank that is no candidate, with the gates that it did not pass."""
    if rank not in job.line.ranks:
        known = len(job.line.ranks)
        says = f"nothing was recorded for rank {rank}; steps or phases of {known} ranks were"
        return _candidate(rank, Decision(rules.OWN_TIME.name, False, says=says))
    row = int(np.searchsorted(job.line.ranks, rank))
    return _candidate(rank, *_own_time(job, row), *_lateness(job, row))


def nearest(job: Observed, beside: frozenset[int]) -> list[int]:
    """The ranks that came closest to an alarm, except candidates."""
    best = np.full(len(job.line.ranks), -np.inf)
    for _, measured in _measured(job):
        best = np.fmax(best, _nearness(measured))
    order = [int(row) for row in np.argsort(-best, kind="stable") if np.isfinite(best[row])]
    ranks = [int(job.line.ranks[row]) for row in order]
    return [rank for rank in ranks if rank not in beside][:NEAREST]


def _candidate(rank: int, *decisions: Decision) -> Candidate:
    return Candidate(name_ranks((rank,)), (rank,), None, decisions)


def _measured(job: Observed) -> Iterator[tuple[str, straggler.Measured]]:
    """Each phase, and all together, with what the gates measured."""
    skip = job.line.warm_up
    tests = len(job.line.ranks) * (len(job.own.phases) + 1)
    for phase, own in job.parts():
        look = straggler_brief.measure if is_brief(job) else straggler.measure
        measured = look(own[:, skip:], job.groups(phase), job.line.typical_ns, tests)
        if measured is not None:
            yield phase or "all phases together", measured


def _nearness(measured: straggler.Measured) -> Floats:
    """For each row, how near the worst of the first two gates (effect, noise) came to its limit."""
    ratios = [gate.value / np.maximum(gate.limit, 1e-12) for gate in measured.gates[:2]]
    return np.asarray(np.minimum(*ratios))


def _own_time(job: Observed, row: int) -> Iterator[Decision]:
    """The gates of blame rule 1, in the phase in which the rank came nearest."""
    known = [(phase, one) for phase, one in _measured(job) if np.isfinite(_nearness(one)[row])]
    if not known:
        says = "too few steps, or no peers to compare its own time with"
        yield Decision(rules.OWN_TIME.name, False, says=says)
        return
    phase, measured = max(known, key=lambda pair: float(_nearness(pair[1])[row]))
    place = f" in {phase}, where it came nearest to an alarm"
    for gate in measured.gates:
        value, limit = float(gate.value[row]), float(gate.limit[row])
        passed, rule = value >= limit, f"{rules.OWN_TIME.name}/{gate.name}"
        if gate.is_measure:
            yield Decision(rule, passed, value, limit, gate.says + place)
            place = ""
        elif not passed:
            yield Decision(rule, passed, says=gate.says)


def _lateness(job: Observed, row: int) -> Iterator[Decision]:
    """Blame rules 2 and 3: a rank that arrives last without longer own work is a victim."""
    if job.arrivals is None or not len(job.line.steps):
        return
    alone = np.arange(len(job.line.ranks)) == row
    lag_ns = float(job.arrivals.lag_of(alone, len(job.line.steps)).mean())
    yield rules.arrives_last(lag_ns)
    if lag_ns > 0:
        says = "its own time does not explain this: what it waited for before made it late"
        yield Decision(rules.EXPLAINED_BACKWARDS.name, False, says=says)

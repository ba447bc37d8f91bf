"""All candidates for a verdict, with the decisions that led to one or not.

Candidates carry their own decisions. Why any other rank was not named, and how close it came to
each limit of detection, is measured here as the detectors do, in the phase in which it came closest
to an alarm.
Cost: the same as `argus-l2`, for all ranks of each phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.unseen import worded
from stepscope.diagnose.detect.ranks import straggler, straggler_brief
from stepscope.diagnose.detect.ranks.straggler import least_steps
from stepscope.diagnose.detect.ranks.straggler_ranks import is_brief, steps_since_onset
from stepscope.diagnose.finding import Candidate, Decision, Finding, Verdict
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import arrivals
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import NULL, Floats

NEAREST = 3
"""Number of ranks closest to an alarm that are shown if there was no candidate."""


def considered(
    job: Observed, verdicts: Sequence[Verdict], let_go: Sequence[Finding],
    explain: tuple[int, ...] | None, some_absent: bool,
) -> tuple[Candidate, ...]:  # fmt: skip
    """All candidates, and the ranks that the user asks about.

    Args:
        explain: these ranks; none of them: those closest to an alarm, if there is no candidate.
        some_absent: whether ranks were not recorded, so that nobody can speak of all.
    """
    known = candidates(verdicts, let_go)
    if some_absent:
        known = tuple(replace(one, who=worded(one.who)) for one in known)
    if explain is None:
        return known
    spoken_of = frozenset(rank for one in known for rank in one.ranks)
    asked = explain or (nearest(job, spoken_of) if not known else ())
    return (*known, *(why_not(job, rank) for rank in asked if rank not in spoken_of))


def candidates(verdicts: Sequence[Verdict], let_go: Sequence[Finding]) -> tuple[Candidate, ...]:
    """Candidates with a verdict in its order, then those that were rejected."""
    accused = [
        Candidate(_who(one), one.ranks, at, one.decisions) for at, one in enumerate(verdicts)
    ]
    others = [Candidate(_who(one), one.ranks, None, one.decisions) for one in let_go]
    return (*accused, *others)


def _who(one: Finding | Verdict) -> str:
    if one.ranks:
        return name_ranks(one.ranks)
    return f"group {one.group}" if one.group else "all ranks"


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
    ranks = job.line.ranks_of(order)
    return [rank for rank in ranks if rank not in beside][:NEAREST]


def _candidate(rank: int, *decisions: Decision) -> Candidate:
    return Candidate(name_ranks((rank,)), (rank,), None, decisions)


def _measured(job: Observed) -> Iterator[tuple[str, straggler.Measured]]:
    """Each phase, and all together, with what the gates measured."""
    skip = job.line.warm_up
    tests = len(job.line.ranks) * (len(job.own.phases) + 1)
    for phase, own in job.parts():
        part, groups, typical = own[:, skip:], job.groups(phase), job.line.typical_ns
        if is_brief(job):
            slow = job.slow_side(phase)
            measured = straggler_brief.measure(part, groups, typical, tests, slow)
        else:
            measured = straggler.measure(part, groups, typical, tests)
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
        yield Decision(rules.OWN_TIME.name, False, says=_why_unknown(job))
        return
    phase, measured = max(known, key=lambda pair: float(_nearness(pair[1])[row]))
    place = f" in {phase}, where it came nearest to an alarm"
    for gate in measured.gates:
        value, limit = float(gate.value[row]), float(gate.limit[row])
        if np.isnan(value) or np.isnan(limit):
            continue  # only measured of ranks that passed the gates before
        passed, rule = value >= limit, f"{rules.OWN_TIME.name}/{gate.name}"
        if gate.is_measure:
            yield Decision(rule, passed, value, limit, gate.says + place)
            place = ""
        elif not passed:
            yield Decision(rule, passed, says=gate.says)
    steps = steps_since_onset(job, row)
    if steps is not None and not is_brief(job):
        says = "steps since its own time rose last"
        least = least_steps(len(job.line.steps) - job.line.warm_up)
        yield Decision(f"{rules.OWN_TIME.name}/steps", steps >= least, steps, least, says)


def _why_unknown(job: Observed) -> str:
    """Why a rank's own time was not judged."""
    why = dict.fromkeys(one.why for one in job.own.skipped)
    if why and not job.own.phases:
        return f"how much of its steps is waiting for others is not known: {'; '.join(why)}"
    return "too few steps, or no peers to compare its own time with"


def _lateness(job: Observed, row: int) -> Iterator[Decision]:
    """Blame rules 2 and 3: how late a rank arrives, and what was measured before that."""
    if job.arrivals is None or not len(job.line.steps):
        return
    alone = np.arange(len(job.line.ranks)) == row
    steps = len(job.line.steps)
    lag_ns = float(job.arrivals.lag_of(alone, steps).mean())
    yield rules.arrives_last(lag_ns)
    if lag_ns > 0:
        late_ns = float(job.arrivals.most_lag_of(alone, steps).mean())
        own_ns, waited_ns = stats.row_means(job.total), _waited_ns(job, row)
        yield _followed_back(late_ns, _beyond_others(own_ns, row), _beyond_others(waited_ns, row))


def _followed_back(late_ns: float, own_ns: float, waited_ns: float) -> Decision:
    """Whether its own work made a rank late, what it waited for, or nothing that was measured."""
    own = "its own time is not known"
    if np.isfinite(own_ns):
        own = f"its own time per step is {_beyond(own_ns)} the median of the others"
    waited = f"its waiting for other ranks is {_beyond(waited_ns)} the median of the others"
    if own_ns >= HALF * late_ns:
        return Decision(rules.EXPLAINED_BACKWARDS.name, True, says=f"{own}, which explains this")
    if waited_ns >= HALF * late_ns:
        says = f"its own time does not explain this: {waited}, which made it late"
    else:
        says = f"nothing measured explains this: {own}, and {waited}"
    return Decision(rules.EXPLAINED_BACKWARDS.name, False, says=says)


def _beyond(time_ns: float) -> str:
    written = f"{abs(time_ns) / 1e6:.1f} ms"
    if written == "0.0 ms":
        return "equal to"
    return f"{written} {'above' if time_ns > 0 else 'below'}"


def _beyond_others(values: Floats, row: int) -> float:
    return float(values[row]) - stats.median(np.delete(values, row))


def _waited_ns(job: Observed, row: int) -> Floats:
    """How long each rank waited per step for others than this one, in collectives of a part of the
    job and in receives."""
    ranks, comm = len(job.line.ranks), job.window.table("comm_ops")
    assert job.arrivals is not None
    assert comm is not None
    waited = job.arrivals.waited_apart_ns(ranks, row)
    if comm.has("end_ns"):
        received = comm.take(comm.strings("op").equals("Recv") & (comm.ints("end_ns") != NULL)
                             & (job.line.rows(comm.ints("rank")) >= 0))  # fmt: skip
        took = received.ints("end_ns") - arrivals(received)
        waited += stats.sums(job.line.rows(received.ints("rank")), took, ranks)
    return waited / len(job.line.steps)

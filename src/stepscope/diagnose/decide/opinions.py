"""What each kind of measurement says about the culprit of a verdict, and how they agree.

Own time, the last arrival in collectives, and the rhythm of operators (K-S, as in KAIR) look at the
same steps independently; other methods speak by what they found. Where one names a rank that the
verdict does not accuse, the line says why not: it only waits, or a rule let it go.
Source: KAIR (Yang et al.), section III-B: its scores show who is different, and only the dependency
graph shows whom they wait for. Ours: the same for every pair of methods. Nothing is decided here.
Cost: one K-S distance for all pairs of ranks (0.2 s of 10,240 ranks), sums of own times.
Cannot see: who waits for whom where own time is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.detect.published.kair import divergences, rhythms
from stepscope.diagnose.finding import Finding, Verdict, may_overlap
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import Opinion
from stepscope.diagnose.thresholds import HALF, LEAST_COST
from stepscope.diagnose.views.peers import across_stages
from stepscope.window import Floats, Ints, Mask

OWN_TIME, ARRIVAL, RHYTHM = "own time", "arrival", "K-S"
BY_OWN_TIME = ("argus-l2", "straggler-brief", "transient", "own-past")
"""Methods that judge own time: they have one opinion together."""
LATE = 0.01
"""Share of a step that a rank must make others wait, as of last arrivals. Our simulator."""
APART_SIGMAS, LEAST_APART = 3.0, 0.02
"""The strangest rhythm must be so many robust standard deviations from the median rank's, and so
much: F has steps of 1/256. Statistics."""
COMPARED = 512
"""Of more workers so many that are drawn stand for all: the mean of their distances, which scatter
by 0.1 at most, is known to 0.005, a quarter of the least that counts. Statistics."""
MOST_NAMED = 4
"""Ranks that the line names of each method. Our choice."""


def with_opinions(
    job: Observed, verdicts: Sequence[Verdict], found: Sequence[Finding]
) -> tuple[Verdict, ...]:
    """The verdicts, each with what every method says about its steps.

    Args:
        found: what methods found, with a verdict or without.
    """
    measures = _Measures(job)
    accused = [frozenset(one.ranks) for one in verdicts]
    return tuple(_with(measures, one, found, frozenset().union(*accused[:at], *accused[at + 1 :]))
                 for at, one in enumerate(verdicts))  # fmt: skip


def _with(
    measures: _Measures, verdict: Verdict, found: Sequence[Finding], others: frozenset[int]
) -> Verdict:
    known = _together([*_measured(measures, verdict), *_by_methods(verdict, found)])
    known = [_without(one, verdict, others) for one in known]
    if len(known) < 2:
        return verdict
    line = _line(Beside(measures.job, verdict, found, others), known)
    return replace(verdict, opinions=tuple(known), agreement=line)


@dataclass(frozen=True)
class _Measures:
    """The measures of a job that need no method."""

    job: Observed

    def columns(self, verdict: Verdict) -> Mask:
        steps = self.job.line.steps
        first, last = verdict.steps or (int(steps[0]), int(steps[-1]))
        inside: Mask = (steps >= first) & (steps <= last)
        inside[: self.job.line.warm_up] = False
        return inside

    def own_time(self, inside: Mask) -> Ints | None:
        """The ranks that take longer than their peers, in these steps."""
        job = self.job
        groups = [one for one in job.groups(None) if one.size > 1]
        if not groups or not job.own.phases or not inside.any():
            return None
        excess = np.zeros(len(job.line.ranks))
        for group in groups:
            own = job.total[group][:, inside]
            excess[group] = np.nan_to_num(own - stats.column_median(own)).mean(axis=1)
        return _largest(excess, LEAST_COST * job.line.typical_ns)

    def arrival(self, inside: Mask) -> Ints | None:
        """The ranks that alone make the others wait in collectives, in these steps."""
        arrivals = self.job.arrivals
        if arrivals is None or not inside.any():
            return None
        here = (arrivals.step >= 0) & inside[np.maximum(arrivals.step, 0)]
        here &= ~arrivals.group.equals(*across_stages(self.job.window))
        ranks = len(self.job.line.ranks)
        caused = stats.sums(arrivals.last_rank[here], arrivals.alone_ns[here], ranks)
        return _largest(caused / inside.sum(), LATE * self.job.line.typical_ns)

    @cached_property
    def rhythm(self) -> Ints | None:
        """The ranks whose operators complete at other times than everybody else's."""
        graph = self.job.graph
        if graph is None or not graph.op.size or len(self.job.line.ranks) < 3:
            return None
        scores = divergences(rhythms(graph), at_most=COMPARED)
        apart = scores - stats.median(scores)
        return _largest(apart, max(APART_SIGMAS * stats.sigma(scores), LEAST_APART))


def _largest(values: Floats, least: float) -> Ints:
    """The rows with at least half of the largest value, of those that are large enough."""
    return np.flatnonzero(values >= max(HALF * float(values.max(initial=0.0)), least))


def _measured(measures: _Measures, verdict: Verdict) -> Iterator[Opinion]:
    """Opinions by own time, arrival and rhythm; only where ranks are slow."""
    if verdict.kind != "slowdown" or not verdict.ranks or not len(measures.job.line.steps):
        return
    inside = measures.columns(verdict)
    ways = ((ARRIVAL, measures.arrival(inside)), (OWN_TIME, measures.own_time(inside)),
            (RHYTHM, measures.rhythm))  # fmt: skip
    for by, rows in ways:
        if rows is not None:
            yield Opinion(by, measures.job.line.ranks_of(rows))


def _by_methods(verdict: Verdict, found: Sequence[Finding]) -> Iterator[Opinion]:
    """Opinions by what methods found about the same ranks or steps."""
    for one in found:
        if one.kind == verdict.kind and (one.ranks or _places(one)) and _meet(verdict, one):
            by = OWN_TIME if one.method in BY_OWN_TIME else one.method
            yield Opinion(by, one.ranks, _places(one))


def _together(opinions: Iterable[Opinion]) -> list[Opinion]:
    """One opinion per kind of measurement, in order of their first appearance."""
    known: dict[str, Opinion] = {}
    for one in opinions:
        before = known.get(one.by, Opinion(one.by, ()))
        known[one.by] = Opinion(one.by, tuple(sorted({*before.ranks, *one.ranks})),
                                tuple(dict.fromkeys([*before.places, *one.places])))  # fmt: skip
    return list(known.values())


def _places(one: Finding) -> tuple[str, ...]:
    if one.ranks:
        return ()
    return tuple(each.name for each in one.devices[:1]) or ((one.group,) if one.group else ())


def _meet(verdict: Verdict, one: Finding) -> bool:
    """Whether a finding is about the verdict's ranks; or, if both name none, about its cause."""
    if verdict.ranks and not set(one.ranks) & set(verdict.ranks):
        return False
    if not verdict.ranks and (one.ranks or one.cause != verdict.cause):
        return False
    return may_overlap(verdict.steps, one.steps)


def _without(one: Opinion, verdict: Verdict, others: frozenset[int]) -> Opinion:
    """The opinion without ranks that have a verdict of their own, unless it names only these."""
    kept = tuple(rank for rank in one.ranks if rank in verdict.ranks or rank not in others)
    return replace(one, ranks=kept or one.ranks)


def _line(beside: Beside, known: Sequence[Opinion]) -> str:
    """`arrival says 12, own time says 12, K-S says 12 and 13: 13 waits for 12`."""
    said = ", ".join(f"{one.by} says {_named(one)}" for one in known)
    why = list(beside.words(known)) if beside.verdict.ranks else []
    return f"{said}: {'; '.join(why)}" if why else said


def _named(one: Opinion) -> str:
    if one.places:
        return " and ".join(one.places)
    return listed(one.ranks) if one.ranks else "nobody"


def listed(ranks: Sequence[int]) -> str:
    """`12`, `12 and 13`, `1, 2, 3, 4 and 9 more`."""
    if len(ranks) > MOST_NAMED:
        return f"{', '.join(map(str, ranks[:MOST_NAMED]))} and {len(ranks) - MOST_NAMED} more"
    return " and ".join(filter(None, [", ".join(map(str, ranks[:-1])), str(ranks[-1])]))


@dataclass(frozen=True)
class Beside:
    """Why ranks that some method names are not accused by a verdict."""

    job: Observed
    verdict: Verdict
    found: Sequence[Finding]
    accused: frozenset[int]
    """The ranks of all other verdicts."""

    def words(self, known: Sequence[Opinion]) -> Iterator[str]:
        extra = sorted({rank for one in known for rank in one.ranks} - set(self.verdict.ranks))
        elsewhere = [rank for rank in extra if rank in self.accused]
        yield from _about(elsewhere, "has a verdict of its own", "have verdicts of their own")
        alone = [rank for rank in extra if rank not in self.accused]
        own = next((one for one in known if one.by == OWN_TIME), None)
        usual = [rank for rank in alone if own is not None and rank not in own.ranks]
        waiting = [rank for rank in usual if rank in self.neighbours]
        culprits = listed(self.verdict.ranks)
        yield from _about(waiting, f"waits for {culprits}", f"wait for {culprits}")
        others = [rank for rank in usual if rank not in waiting]
        yield from _about(others, "takes no longer than its peers", "take no longer than peers")
        for rank in [rank for rank in alone if rank not in usual][:MOST_NAMED]:
            yield self.let_go(rank)

    @cached_property
    def neighbours(self) -> frozenset[int]:
        """Ranks that work on the same samples as a culprit; for a slow network, its groups."""
        window, culprits = self.job.window, set(self.verdict.ranks)
        units = list(self.job.replicas)
        if self.verdict.cause == "network":
            units += [frozenset(group.ranks) for group in window.groups]
        return frozenset().union(*(unit for unit in units if unit & culprits))

    def let_go(self, rank: int) -> str:
        """The rule that kept a rank from a verdict."""
        gates = [rule.rule for one in self.found if rank in one.ranks for rule in one.decisions
                 if rule.gate and not rule.fired]  # fmt: skip
        if gates:
            return f"{rank} was let go by {gates[0]}"
        return f"{rank} stands out as well, and no rule accuses it"


def _about(ranks: Sequence[int], one: str, several: str) -> Iterator[str]:
    if ranks:
        yield f"{listed(ranks)} {one if len(ranks) == 1 else several}"

"""Asks one detector after the other, and keeps what deserves a verdict.

Stages build on each other: what slow ranks cost is no rise that all share, and a rank that has a
verdict is not blamed by its links or kernels again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from stepscope.diagnose import registry
from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.alone import at_most
from stepscope.diagnose.decide.cost import accusable, what_if
from stepscope.diagnose.decide.culprits import choose
from stepscope.diagnose.decide.echoes import without_echoes, without_victims
from stepscope.diagnose.decide.everyone import (
    beyond,
    charged,
    charged_once,
    is_after_effect,
    with_turns,
)
from stepscope.diagnose.decide.join import joined
from stepscope.diagnose.decide.late import as_sure_as, waiting_for, with_cause
from stepscope.diagnose.decide.loader_workers import with_workers
from stepscope.diagnose.decide.passed import as_unsteady, passed
from stepscope.diagnose.decide.same_loss import (
    begin_together,
    has_victim,
    is_part_of,
    is_same,
    is_turn,
    names_nothing,
    says_more,
    victims_beside,
    with_ends,
    with_function,
)
from stepscope.diagnose.decide.since_baseline import of_job, unsteady_in_job
from stepscope.diagnose.decide.slow_ranks import judge
from stepscope.diagnose.decide.starved import waiting_for_starved, with_measured_loss
from stepscope.diagnose.decide.stuck import without_effects
from stepscope.diagnose.decide.unseen import as_suspects
from stepscope.diagnose.detect.hosts.busy_hosts import holds_up
from stepscope.diagnose.detect.hosts.quota_hosts import is_known, stops
from stepscope.diagnose.finding import (
    Finding,
    Recurring,
    Regression,
    Skipped,
    Slowdown,
    SlowLink,
    Stuck,
    Unsteady,
    Waste,
)
from stepscope.diagnose.method import Detector, Explanation, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF, LEAST_SCORE
from stepscope.window import Floats

Kind = TypeVar("Kind", bound=Finding)


@dataclass
class Search:
    """Findings stage by stage: those that deserve a verdict, and those that were let go."""

    job: Observed
    """With a basis for comparison where no two ranks do the same work."""
    recorded: Observed
    """As it was recorded: how stages differ is compared on no common scale."""
    detectors: Sequence[Detector]
    explanations: Sequence[Explanation]
    blamed: list[Finding] = field(default_factory=list)
    let_go: list[Finding] = field(default_factory=list)
    culprits: tuple[Suspect, ...] = ()
    unsteady: list[Unsteady] = field(default_factory=list)
    charged: list[Regression] = field(default_factory=list)
    """Rises whose cost was added to that of culprits."""
    turns: list[tuple[Regression, Finding]] = field(default_factory=list)
    """Rises, and what seemed to be a part of them."""
    passed: list[Slowdown] = field(default_factory=list)
    """Slownesses that are over: too cheap for a verdict, but not while they lasted."""
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def undecided(self) -> str:
        """Why the search was not complete: by choice, or by an internal error; empty if it was."""
        if not all(one in self.detectors for one in registry.DETECTORS):
            return "only some methods were asked for"
        failed = [one.method for one in self.skipped if one.fault is not None]
        return f"{', '.join(failed)} ended by an internal error" if failed else ""

    def look_for_hangs(self, job: Observed) -> None:
        """A process that ended, or a mismatch, explains the hang it causes.

        Args:
            job: with all steps: a rank may hang while a profiler runs.
        """
        found = [one for detector in registry.STUCK
                 for one in self._ask(detector, Stuck, job=job)]  # fmt: skip
        causes, effects = without_effects(found)
        self.blamed += causes
        self.let_go += effects

    def look_for_slowness(self) -> None:
        for detector in registry.STEP_TIMES:
            self.unsteady += self._ask(detector, Unsteady)
        lost_ns = self._slow_ranks()
        network = self._slow_network(lost_ns)
        for link in network:
            lost_ns[list(link.columns)] += link.lost_ns
        by_kernels = self._slow_kernels()
        network = self._without_starved(network)
        self._everyone(lost_ns, [*by_kernels, *network])
        self._structure()
        self._wasted()
        for rise in self.charged:
            self.blamed = charged_once(self.job, rise, self.blamed)
        self.blamed = with_measured_loss(self.job, self.blamed)
        self.blamed = [with_workers(self.job, one) for one in self.blamed]
        self._recurrent()
        self._by_gauges()
        self._late()
        self._others()
        self._passed()
        self._idle()
        self._unexplained()
        self.blamed = as_suspects(self.recorded, self.blamed)
        self._keep_to_job()

    def _keep_to_job(self) -> None:
        """Lets go of what ended in the steps of a healthy job before this one."""
        line = self.job.line
        if line.first_own:
            self.blamed = of_job(line, self.blamed)
            self.let_go = of_job(line, self.let_go)
            self.unsteady = unsteady_in_job(line, self.unsteady)

    def look_as_published(self) -> None:
        """Asks only methods that belong to no stage."""
        self._others()
        self.blamed = as_suspects(self.recorded, self.blamed)
        self._keep_to_job()

    def _slow_ranks(self) -> Floats:
        """Ranks that take longer than their peers; what they cost in each step."""
        found = [one for detector in registry.SLOW_RANKS for one in self._ask(detector, Slowdown)]
        chosen = choose(found)
        self.let_go += chosen.explained
        allowed = accusable(self.job, _suspects(chosen.kept))
        self.let_go += [rules.everyone(one) for one, kept in zip(chosen.kept, allowed, strict=True)
                        if not kept]  # fmt: skip
        slow = [one for one, kept in zip(chosen.kept, allowed, strict=True) if kept]
        suspects = _suspects(slow)
        if not suspects:
            return np.zeros(len(self.job.line.steps))
        cost = what_if(self.job, suspects)
        judged = judge(self.job, slow, cost, self.explanations)
        self.job.remembered.clear()  # kernels of all peers, which nobody asks for again
        costly, victims = without_victims(self.job, judged.costly)
        self.blamed += without_echoes(self.job, costly)
        self.passed = passed(self.job, judged.cheap)
        known = {one.suspect for one in self.passed}
        self.let_go += [*(one for one in judged.cheap if one.suspect not in known), *victims]
        self.culprits = judged.culprits
        if len(self.culprits) == len(suspects):  # mostly so, and what they cost is known
            return cost.lost_ns
        if not self.culprits:
            return np.zeros(len(self.job.line.steps))
        return what_if(self.job, self.culprits).lost_ns

    def _slow_network(self, lost_ns: Floats) -> list[SlowLink]:
        """Slow links and transfers.

        Args:
            lost_ns: what slow ranks cost in each step.
        """
        found = [one for detector in registry.SLOW_NETWORK
                 for one in self._ask(detector, SlowLink, lost_ns=lost_ns)]  # fmt: skip
        self.job.remembered.clear()  # all transfers, which nobody asks for again
        victims = victims_beside(self.job, found, self.blamed)
        for one, by in victims:
            self._drop([one], by.method)
        echoes = [one for one, _ in victims]
        return self._keep([one for one in found if one not in echoes])

    def _without_starved(self, network: Sequence[SlowLink]) -> list[SlowLink]:
        """Without transfers that only wait for a processor on a host that has a verdict."""
        found = waiting_for_starved(self.job, network, self.blamed)
        victims = {id(link): (link, by) for link, by in found}
        self.blamed = [one for one in self.blamed if id(one) not in victims]
        self.let_go += [rules.starved(link, by.method) for link, by in victims.values()]
        return [one for one in network if id(one) not in victims]

    def _slow_kernels(self) -> list[Finding]:
        slow_kernels: list[Finding] = []
        for detector in registry.SLOW_KERNELS:
            groups = [one for one in self.blamed if isinstance(one, Slowdown) and one.group]
            blamed = (one for one in (*self.blamed, *slow_kernels) if one not in groups)
            ranks = frozenset(rank for one in blamed for rank in one.ranks)
            known = self._ask(detector, Finding, ranks)
            slow = [one for one in known if isinstance(one, Slowdown)]
            held = [one for one in self.blamed
                    if any(holds_up(by, one) or stops(by, one) for by in slow)]  # fmt: skip
            named = ranks.difference(*(one.ranks for one in held))
            again = [one for one in slow if is_known(one, named)]
            self.let_go += map(rules.same_cause, again)
            slow = [one for one in slow if one not in again]
            reported = {rank for one in slow for rank in one.ranks if one.costs_enough}
            same = [one for one in groups if reported.intersection(one.ranks)]
            self._drop([*same, *(one for one in held if one not in same)], detector.name)
            merged = joined(self.job, slow) if detector.name == "argus-l3" else slow
            others = [one for one in known if not isinstance(one, Slowdown)]
            ends = with_ends(self.job.window, self.blamed, others)
            self.blamed, self.let_go = ends.blamed, [*self.let_go, *ends.let_go]
            slow_kernels += [*merged, *ends.found]
        return self._keep(slow_kernels)

    def _drop(self, victims: Sequence[Finding], method: str) -> None:
        """Lets go of what a method explains."""
        self.blamed = [one for one in self.blamed if one not in victims]
        self.let_go += [rules.victim(one, method) for one in victims]

    def _keep(self, found: Sequence[Kind]) -> list[Kind]:
        """Keeps findings that cost enough; the others are let go."""
        weighed = [rules.weighed(at_most(self.job, one)) for one in found]
        kept = [one for one in weighed if one.costs_enough]
        self.blamed += kept
        self.let_go += [one for one in weighed if not one.costs_enough]
        return kept

    def _structure(self) -> None:
        """What the job loses by its own structure, unless culprits account for half of it, or a
        rise of the same cause does."""
        rises = [one for one in self.blamed if isinstance(one, Regression)]
        for detector in registry.STRUCTURE:
            for one in self._ask(detector, Waste):
                same = [rise for rise in rises if rise.cause == one.cause]
                parts = [rise for rise in same if is_part_of(rise, one)]
                known = self._known_beside(one) >= HALF * (one.lost_fraction or 0.0)
                if not known and parts == same and self._keep([one]):
                    self._drop(parts, one.method)

    def _known_beside(self, one: Waste) -> float:
        """What slow ranks cost, and what else began in the same step."""
        return sum(other.lost_fraction or 0.0 for other in self.blamed
                   if isinstance(other, Slowdown) or begin_together(one, other))  # fmt: skip

    def _wasted(self) -> None:
        """Time that all ranks spend beside training, unless it is known as a rise or as one rank's.

        Of a rise whose function is not known, it says more than that.
        """
        for detector in (*registry.WASTED, *registry.PROFILED):
            for one in self._keep(self._ask(detector, Waste)):
                turns = [other for other in self.blamed if has_victim(self.job, one, other)]
                self._drop(turns, one.method)
                same = [other for other in self.blamed if is_same(self.job, one, other)]
                more = one.function is not None and not any(other.function for other in same)
                dropped = same if more else [one] if same else []
                self.blamed = [other for other in self.blamed if other not in dropped]
                self.let_go += [rules.same_cause(other) for other in dropped]
                self._give_back(dropped, one)
                if more and dropped:
                    self.blamed = [with_function(one, dropped) if other is one else other
                                   for other in self.blamed]  # fmt: skip

    def _everyone(self, lost_ns: Floats, beside: Sequence[Finding]) -> None:
        """What all ranks share: a rise of the step times, else what other detectors find."""
        shared, *others = registry.EVERYONE
        rises = self._ask(shared, Regression, lost_ns=lost_ns)
        for rise in rises:
            if is_after_effect(self.job, rise, self.culprits, beside):
                self.let_go.append(rules.after_effect(rise))
                self.blamed = charged(self.job, rise, self.blamed)
                self.charged.append(rise)
                continue
            whole, parts = with_turns(self.job, rise, self.blamed)
            self._drop(parts, rise.method)
            self.turns += [(whole, part) for part in parts]
            self.blamed.append(whole)
            if not any(one.split is not None for one in self.unsteady):
                self.unsteady.append(Unsteady(rise.method, whole.cause, "", split=rise.split))
        self.blamed += [one for each in others if not rises for one in self._ask(each, Regression)]

    def _give_back(self, rises: Sequence[Finding], by: Finding) -> None:
        """Accuses again what was let go as a part of rises that are now explained otherwise."""
        back = beyond(self.turns, rises, by)
        again = {part.suspect for part in back}
        self.let_go = [one for one in self.let_go if not (
            isinstance(one, Slowdown) and one.suspect in again)]  # fmt: skip
        self.blamed += back

    def _recurrent(self) -> None:
        """What the job loses again and again, unless half of it, or what all ranks share, is known
        already. The one that explains most says it, and a suspect only if no other does."""
        asked = [(detector.name, self._ask(detector, Recurring)) for detector in registry.RECURRENT]
        for name, found in sorted(asked, key=lambda one: _sure_loss(one[1]), reverse=True):
            known = sum(one.lost_fraction or 0.0 for one in self.blamed)
            if any(not one.ranks and one.group is None for one in self.blamed):
                return
            new = [one for one in found if known < HALF * (one.lost_fraction or 0.0)]
            kept = self._keep(new)
            turns = [other for one in kept for other in self.blamed if is_turn(one, other)]
            self._drop(turns, name)

    def _by_gauges(self) -> None:
        """What gauges single out, if nobody is accused; it says more than an unknown cause, unless
        that is sure and it is not."""
        if all(one.score < LEAST_SCORE or names_nothing(one) for one in self.blamed):
            (detector,) = registry.GAUGES
            found = self._keep(self._ask(detector, Slowdown))
            less = [one for one in self.blamed if says_more(found, one)]
            self.blamed = [one for one in self.blamed if one not in less]
            self.let_go += [rules.says_less(one, detector.name) for one in less]

    def _late(self) -> None:
        """Who is last in collectives, if nobody is accused, or others only wait for these."""
        for detector in registry.LATE if not any(one.ranks for one in self.blamed) else ():
            found = [with_cause(self.job, one, self.explanations)
                     for one in self._ask(detector, Slowdown)]  # fmt: skip
            waits = waiting_for(self.job, self.blamed, found)
            if waits is not None:
                self._drop(waits, detector.name)
                self._keep([as_sure_as(one, waits) for one in found])

    def _passed(self) -> None:
        """What was slow for a while, of ranks without a verdict; its steps were long anyway."""
        named = {rank for one in self.blamed for rank in one.ranks}
        self.blamed += [one for one in self.passed if named.isdisjoint(one.ranks)]
        self.let_go += [one for one in self.passed if not named.isdisjoint(one.ranks)]
        self.unsteady += map(as_unsteady, self.passed)

    def _idle(self) -> None:
        """Devices of all ranks that wait for their hosts, if nothing else was found."""
        for detector in registry.IDLE if not self.blamed else ():
            self._keep(self._ask(detector, Waste))

    def _unexplained(self) -> None:
        """Long steps of a job in which nothing else was found."""
        if self.blamed or self.unsteady:
            return
        for detector in registry.UNEXPLAINED:
            self.unsteady += self._ask(detector, Unsteady)

    def _others(self) -> None:
        """Methods that belong to no stage: published forms, and other packages' methods."""
        for detector in (one for one in self.detectors if one not in registry.DETECTORS):
            found = self._ask(detector, Finding)
            self.unsteady += [one for one in found if isinstance(one, Unsteady)]
            self._keep([one for one in found if not isinstance(one, Unsteady)])

    def _ask(
        self, detector: Detector, kind: type[Kind], blamed: frozenset[int] | None = None,
        lost_ns: Floats | None = None, job: Observed | None = None,
    ) -> list[Kind]:  # fmt: skip
        """The findings of a detector, if it is wanted and has the data that it needs."""
        if detector not in self.detectors:
            return []
        if missing := detector.needs.missing(self.job.window):
            self.skipped.append(Skipped(detector.name, missing, unrecorded=True))
            return []
        if not len(self.job.line.steps) and detector in registry.BY_STEPS:
            return []
        ranks = frozenset(rank for one in self.blamed for rank in one.ranks)
        so_far = SoFar(ranks if blamed is None else blamed, self.culprits)
        so_far = so_far if lost_ns is None else replace(so_far, lost_ns=lost_ns)
        as_recorded = (
            *registry.STRUCTURE, *registry.WASTED, *registry.PROFILED, *registry.RECURRENT,
        )  # fmt: skip
        job = job or (self.recorded if detector in as_recorded else self.job)
        try:
            return [one for one in detector.detect(job, so_far) if isinstance(one, kind)]
        except Exception as error:  # noqa: BLE001  it must not hide what other methods find
            self._survive(detector, error)
            return []

    def _survive(self, detector: Detector, error: Exception) -> None:
        why = f"internal error: {type(error).__name__}: {error}"
        self.skipped.append(Skipped(detector.name, why, error))


def _sure_loss(found: Sequence[Finding]) -> float:
    return sum(one.lost_fraction or 0.0 for one in found if (one.score or 0.0) >= LEAST_SCORE)


def _suspects(found: Sequence[Slowdown]) -> list[Suspect]:
    return [one.suspect for one in found if one.suspect is not None]

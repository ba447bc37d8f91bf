"""What ranks cannot be accused of, because nobody recorded what would show it.

**Ranks that nobody recorded.** If all recorded ranks wait in collectives for somebody, the last one
to arrive was not recorded. What recorded ranks spend meanwhile, up to the length of that wait,
costs nothing that is known.

**The last of every group.** Where operators alone were recorded, and devices compute beneath them
(FSDP gathers ahead), a rank seems to work only between operators, and the last one of a group has
all of these gaps: the others wait in operators, and compute there. If every group has such a rank,
and no host has many, they are only the last ones.

**Logs of calls alone.** Slow ranks are suspects there. How data moves counts as what its receiver
does next, so a link between hosts may look like the stage behind it, if no replica of the pipeline
tells. The clocks of hosts may differ, so a host may always seem late. Members of a group within a
replica wait for one another's devices, which no call shows, so all of them seem slow if one is. And
waiting at a place of the step where it was not seen counts as work, so whoever waits there for a
culprit seems slow by a part of what that one costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account.absent import exposed_ns, unrecorded_ranks, wait_ns
from stepscope.diagnose.decide.rules import LAST_ARRIVAL, suspected
from stepscope.diagnose.detect.hosts.busy_hosts import BusyHosts
from stepscope.diagnose.finding import Decision, Finding, Slowdown, Stuck, Verdict, Waste
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, LEAST_COST
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.unnamed import BETWEEN
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import Floats, Ints

LAST_ABSENT = "the last one to arrive may not have been recorded"
ALL, ALL_RECORDED = "all ranks", "all recorded ranks"
ONLY_ONE = (
    ("all ranks take", "the job takes"),
    (" on all ranks", ""),
    ("all ranks stand still", "the job stands still"),
    ("its peers' clock", "its earlier clock"),
    (" with a peer (`py-spy record`)", " with earlier steps (`py-spy record`)"),
)
"""What to say where there is only one rank. Our choice."""
MOST = 0.75
"""Of the members of a group: one of four may be too near to the limit to be seen. Our choice."""
FEW = 3
"""Groups of a kind that all have a slow rank, and at least one more member than these: of two, both
may be by chance. Our choice."""
LAST_OF_GROUP = "every group has a rank like this: it may only be the last one"


def as_suspects(job: Observed, found: Sequence[Finding]) -> list[Finding]:
    """The findings; those that cost no more than the wait for unrecorded ranks, or are of ranks
    that are only the last of their groups, accuse nobody."""
    waits = wait_ns(job) if unrecorded_ranks(job) else np.zeros(0)
    known = [_weighed(job, one, waits) for one in found] if waits.any() else list(found)
    slow = [one for one in known if isinstance(one, Slowdown) and one.suspect is not None]
    if not _are_last_of_all(job, frozenset(rank for one in slow for rank in one.ranks)):
        return known
    decision = Decision("last-of-its-group", False, says=LAST_OF_GROUP, gate=False)
    return [suspected(one, decision) if one in slow else one for one in known]


def _are_last_of_all(job: Observed, ranks: frozenset[int]) -> bool:
    """Whether every group of a kind and size has a few of these ranks, and no host has most of its
    own among them, where what ranks do is only known between operators."""
    if not ranks or set(job.own.phases) != {BETWEEN}:
        return False
    if any(2 * len(ranks.intersection(host.ranks)) >= len(host.ranks) > 1
           for host in job.window.job.hosts):  # fmt: skip
        return False
    alike: dict[tuple[str, int], list[bool]] = {}
    for group in job.window.job.groups:
        if len(group.ranks) > FEW:
            part = len(ranks.intersection(group.ranks)) / len(group.ranks)
            alike.setdefault((group.kind, len(group.ranks)), []).append(0 < part < HALF)
    return any(len(each) >= FEW and all(each) for each in alike.values())


def _weighed(job: Observed, one: Finding, waits: Floats) -> Finding:
    if isinstance(one, Stuck):
        return one
    wait = stats.median(waits[_columns(job, one)])
    if wait < max(_cost_ns(job, one), LEAST_COST * job.line.typical_ns):
        return one
    decision = Decision(LAST_ARRIVAL.name, False, says=_says(wait), gate=False)
    return suspected(one, decision)


def _columns(job: Observed, one: Finding) -> Ints:
    """The steps that a finding is about, as numbers within what was judged."""
    columns = np.arange(job.line.warm_up, len(job.line.steps))
    if isinstance(one, Slowdown) and one.columns:
        return np.array(sorted(one.columns))
    if one.steps is None:
        return columns
    within = job.line.within(one.steps)
    return np.flatnonzero(within) if within.any() else columns


def _cost_ns(job: Observed, one: Finding) -> float:
    """What a finding costs per step; else how much later than all others its ranks arrive."""
    lost_ns = one.lost_ns or (one.lost_fraction or 0.0) * job.line.typical_ns
    return lost_ns or (isinstance(one, Slowdown) and one.lag_ns) or 0.0


def _says(wait: float) -> str:
    return (
        f"the recorded ranks wait {wait / 1e6:.1f} ms per step in collectives with ranks that were "
        f"not: {LAST_ABSENT}"
    )


def unrecorded(job: Observed) -> str:
    """Which ranks were not recorded, in a sentence; empty if all were, or if nobody knows."""
    absent = unrecorded_ranks(job)
    if not absent:
        return ""
    world = job.window.job.world_size
    names = name_ranks(absent).partition(" ")[2]
    verb = "was" if world - len(absent) == 1 else "were"
    return f"{world - len(absent)} of {world} ranks {verb} recorded; missing {names}"


def waiting_for_absent(
    job: Observed, verdicts: Sequence[Verdict], least: float = LEAST_COST
) -> str:
    """That the last one to arrive may not have been recorded, with the measured wait.

    Empty if that is less than this share of a step, or if it is known who arrives last.
    """
    if any(one.ranks and not one.is_suspect for one in verdicts):
        return ""
    wait = stats.median(wait_ns(job)[job.line.warm_up :])
    return _says(wait) if wait > least * job.line.typical_ns else ""


def meeting_absent(job: Observed, least: float) -> str:
    """That recorded ranks are in collectives with unrecorded ones for more than this share of a
    step, without anything to compute, after the last of them has arrived.

    Either their data moves slowly, or they wait: nobody can tell if it is so in all collectives.
    """
    exposed = stats.median(exposed_ns(job)[job.line.warm_up :])
    if not exposed > least * job.line.typical_ns:
        return ""
    return (
        f"the recorded ranks are in collectives with ranks that were not for {exposed / 1e6:.1f} "
        "ms per step, and whether data moves then or they wait is unknown"
    )


def reworded(verdict: Verdict, say: Callable[[str], str]) -> Verdict:
    """The verdict with everything that people read in other words."""
    evidence = tuple(replace(one, detail=say(one.detail)) for one in verdict.evidence)
    return replace(
        verdict, evidence=evidence, summary=say(verdict.summary), advice=say(verdict.advice)
    )


def worded(text: str) -> str:
    """A text about all ranks as one about all that were recorded."""
    return text.replace(ALL, ALL_RECORDED)


def of_one_rank(text: str) -> str:
    """A text about all ranks, or about one and its peers, in a job that has only one."""
    for some, instead in ONLY_ONE:
        text = text.replace(some, instead)
    return text


def as_suspects_of_calls(job: Observed, found: Sequence[Finding]) -> list[Finding]:
    """The findings in a log of calls; slow ranks that may be something else accuse nobody."""
    slow = [one for one in found if isinstance(one, Slowdown) and one.ranks]
    always = frozenset(rank for one in slow if not one.has_onset for rank in one.ranks)
    hosts = [frozenset(host.ranks) & frozenset(job.window.ranks) for host in job.window.job.hosts]
    whole = frozenset(rank for ranks in hosts if ranks and ranks <= always for rank in ranks)
    apart, alone = len(hosts) > 1, len(job.window.job.groups_of_kind("pp")) == 1
    slow_ranks = frozenset(rank for one in slow for rank in one.ranks)
    linked = frozenset(rank for group in job.window.job.groups_of_kind(*WITHIN_PASSES)
                       if len(group.ranks) > 1
                       and len(slow_ranks.intersection(group.ranks)) >= MOST * len(group.ranks)
                       for rank in group.ranks)  # fmt: skip
    most = max((one.lost_fraction or 0.0 for one in slow), default=0.0)

    def weighed(one: Finding) -> Finding:
        if isinstance(one, Waste) and one.ranks:
            return _suspect(one, "waits-unseen", "this stage may wait for its devices instead")
        if not isinstance(one, Slowdown) or not one.ranks or one.method == BusyHosts.name:
            return one
        doubts = (
            (apart and alone, "link-or-stage", "the link before it may be slow instead"),
            (apart and not one.has_onset and whole.intersection(one.ranks), "host-or-clock",
             "the clock of its host may be late instead"),
            (linked.intersection(one.ranks), "one-of-its-group",
             "all of its group wait for the slow one in it"),
            ((one.lost_fraction or 0.0) < HALF * most, "waits-unseen",
             "it may wait for a costlier culprit instead"),
        )  # fmt: skip
        doubt = next(((rule, why) for applies, rule, why in doubts if applies), None)
        return one if doubt is None else _suspect(one, *doubt)

    return [weighed(one) for one in found]


def _suspect(one: Slowdown | Waste, rule: str, why: str) -> Finding:
    decision = Decision(rule, False, says=f"only calls were recorded: {why}", gate=False)
    return suspected(one, decision)

"""What logs of calls alone do not tell apart: slow ranks are suspects there.

How data moves counts as what its receiver does next, so a link between hosts may look like the
stage behind it, if no replica of the pipeline tells. The clocks of hosts may differ, so a host may
always seem late. Members of a group within a replica wait for one another's devices, which no call
shows, so all of them seem slow if one is. And waiting at a place of the step where it was not seen
counts as work, so whoever waits there for a culprit seems slow by a part of what that one costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.decide.rules import suspected
from stepscope.diagnose.finding import Decision, Finding, Slowdown, Waste
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES

HALF = 0.5
"""Of the costliest: who costs less may have waited for it. Our choice."""


def as_suspects_of_calls(job: Observed, found: Sequence[Finding]) -> list[Finding]:
    """The findings in a log of calls; slow ranks that may be something else accuse nobody."""
    slow = [one for one in found if isinstance(one, Slowdown) and one.ranks]
    always = frozenset(rank for one in slow if not one.has_onset for rank in one.ranks)
    hosts = [frozenset(host.ranks) & frozenset(job.window.ranks) for host in job.window.job.hosts]
    whole = frozenset(rank for ranks in hosts if ranks and ranks <= always for rank in ranks)
    apart, alone = len(hosts) > 1, len(job.window.job.groups_of_kind("pp")) == 1
    slow_ranks = frozenset(rank for one in slow for rank in one.ranks)
    linked = frozenset(rank for group in job.window.job.groups_of_kind(*WITHIN_PASSES)
                       if len(group.ranks) > 1 and slow_ranks.issuperset(group.ranks)
                       for rank in group.ranks)  # fmt: skip
    most = max((one.lost_fraction or 0.0 for one in slow), default=0.0)

    def weighed(one: Finding) -> Finding:
        if isinstance(one, Waste) and one.ranks:
            return _suspect(one, "waits-unseen", "this stage may wait for its devices instead")
        if not isinstance(one, Slowdown) or not one.ranks:
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

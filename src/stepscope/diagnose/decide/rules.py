"""The six rules of blame: who is a culprit, and who only waits for one (docs/design.md).

Each rule is an object that decisions cite by its name. `fired` says that the rule's limit was
reached; the last rule that did not fire rejects a candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from stepscope.diagnose.finding import (
    Cause,
    Decision,
    Finding,
    Regression,
    Slowdown,
    SlowLink,
    Waste,
)
from stepscope.diagnose.method import Needs
from stepscope.diagnose.thresholds import AT_ONCE_NS, LEAST_COST, SUSPECT_SCORE
from stepscope.diagnose.words.numbers import percent


@dataclass(frozen=True)
class BlameRule:
    """One rule: its number in the docs, its name in decisions, and its text."""

    number: int
    name: str
    says: str
    needs: Needs = field(default_factory=Needs)


Kind = TypeVar("Kind", bound=Finding)

OWN_TIME = BlameRule(
    1, "own-time",
    "A rank's own busy time counts, not its wall time: waiting in a collective is not its own.",
)  # fmt: skip
LAST_ARRIVAL = BlameRule(
    2, "last-arrival",
    "In a collective all leave together: the culprit arrives last; lateness is the measure.",
    Needs("comm_ops"),
)  # fmt: skip
EXPLAINED_BACKWARDS = BlameRule(
    3, "explained-backwards",
    "Lateness is followed back to work that was late for no other reason.",
)  # fmt: skip
ON_CRITICAL_PATH = BlameRule(
    4, "costs-enough",
    "A delay that a bubble or an overlap absorbs costs nothing and deserves no verdict.",
)  # fmt: skip
UNEQUAL_WORK = BlameRule(
    5, "unequal-work",
    "Slow work on equal hardware may be unequal work: a cause, not a bad machine.",
)  # fmt: skip
EVERYONE = BlameRule(
    6, "not-everyone",
    "What all ranks do slowly is code or configuration, not a rank.",
)  # fmt: skip
RULES = (OWN_TIME, LAST_ARRIVAL, EXPLAINED_BACKWARDS, ON_CRITICAL_PATH, UNEQUAL_WORK, EVERYONE)


def arrives_last(lag_ns: float, whom: str = "it alone") -> Decision:
    """How long the others waited for a rank, or for all suspects."""
    says = f"others wait {lag_ns / 1e6:.1f} ms per step for {whom}"
    return Decision(LAST_ARRIVAL.name, lag_ns > AT_ONCE_NS, says=says, gate=False)


def weighed(one: Kind) -> Kind:
    """A finding with the decision on its cost: whether the job would get faster without it."""
    lost, least = one.lost_fraction, LEAST_COST
    if isinstance(one, Slowdown):
        least = one.least_fraction
    if isinstance(one, SlowLink):
        lost, least = one.share_and_least
    says = "its cost is not known"
    if lost is not None:
        says = f"without it steps would take {100 * lost:.1f} % less; {percent(least)} is needed"
    enough = one.costs_enough
    if isinstance(one, Waste) and lost is not None:
        enough = lost >= least  # whether it is likely is a decision of its own
    decision = Decision(ON_CRITICAL_PATH.name, enough, lost, least, says)
    return replace(one, decisions=(*one.decisions, decision))


def everyone(one: Slowdown) -> Slowdown:
    """A finding that is rejected because all ranks are slow and others cost more."""
    says = "all ranks are slow, and fixing this one alone would win back less than half as much"
    return replace(one, decisions=(*one.decisions, Decision(EVERYONE.name, False, says=says)))


def same_cause(one: Kind) -> Kind:
    """A finding that is rejected because another one says more about the same cause."""
    return _explained(one, "another finding names the same ranks and the same cause")


def victim(one: Kind, method: str) -> Kind:
    """A finding that is rejected because it is an effect of what another method found."""
    return _explained(one, f"an effect of what {method} found, which costs more")


def starved(one: Kind, method: str) -> Kind:
    """Slow transfers that are rejected because their host gets too little processor time."""
    return _explained(one, f"an effect of what {method} found: data waits for a processor there")


def says_less(one: Kind, method: str) -> Kind:
    """A finding without a known cause that is rejected because another method found one."""
    return _explained(one, f"its cause is not known, and {method} names a device")


def suspected(one: Kind, *decisions: Decision) -> Kind:
    """A finding that accuses nobody, and why."""
    score = min(one.score, SUSPECT_SCORE)
    return replace(one, score=score, decisions=(*one.decisions, *decisions))


def after_effect(one: Regression) -> Regression:
    """A rise that is rejected because a culprit was slow for most of it."""
    return _explained(
        one, "a culprit is slow for most of this rise, and no other cause of it was measured"
    )


def _explained(one: Kind, says: str) -> Kind:
    decision = Decision(EXPLAINED_BACKWARDS.name, False, says=says)
    return replace(one, decisions=(*one.decisions, decision))


def unequal_work(cause: Cause) -> Decision:
    """The decision on whether a rank has more work, or does the same more slowly."""
    uneven = cause == "load_imbalance"
    says = "it has more work than its peers" if uneven else "nothing shows that it has more work"
    return Decision(UNEQUAL_WORK.name, uneven, says=says, gate=False)

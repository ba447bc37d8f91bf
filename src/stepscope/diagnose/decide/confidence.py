"""How likely a verdict is right: fitted to verdicts of jobs whose truth is known.

A method's score says how far its finding lies beyond its limit. How often such a finding is right
may depend also on what else is known: whether independent measures name the same ranks, what it
costs, over how many steps, and whether waiting was measured or inferred. A logistic regression
weighs these (one for slowdowns, one for hangs and mismatches); its weights are in
`confidence.json`, with what they were fitted to. Where fitted weights are no better than the scores
on jobs of other origins, they are the scores. Whether a verdict accuses or is a suspect is not
decided here: that is the score's, and the confidence stays on its side of the limit.

Source: none of the papers; KAIR (Yang et al.), section III-B, adds scores by hand.
Cost: a few numbers per verdict. Cannot see: origins unlike all that it was fitted to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST, LEAST_SCORE
from stepscope.errors import FormatError

FILE, KIND, FORMAT = "confidence.json", "stepscope-confidence", 1
"""The weights, what the file calls itself, and the version of its layout."""
Sort = Literal["slow", "stuck"]
SURE = 0.99
"""The highest and, mirrored, the lowest confidence: of fewer than a thousand verdicts nobody can
tell rarer errors. Statistics."""
MOST_MEASURES = 3.0
"""Own time, arrival and rhythm are independent; further opinions repeat them."""
BELOW = 0.499
"""The highest confidence of a suspect."""
DOUBLINGS = 6.0
"""Costs and numbers of steps count by their doublings, up to 64-fold. Our choice."""

Facts = Mapping[str, float]
"""What the confidence in a verdict comes from: one number per name in `FACTS`."""


@dataclass(frozen=True)
class _Case:
    """A verdict, its place among the verdicts, and the job."""

    verdict: Verdict
    at: int
    measured: bool
    """Whether waiting was measured or marked, so that own times are known."""


Fact = Callable[[_Case], float]


def sort_of(kind: str) -> Sort:
    """Whether a verdict of this kind is about slowness or about standing still."""
    return "slow" if kind == "slowdown" else "stuck"


def with_confidence(job: Observed, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts with the likelihood that they are right; their order and standing stay."""
    measured = _waits_measured(job)
    cases = [_Case(one, at, measured) for at, one in enumerate(verdicts)]
    return tuple(_with(case.verdict, _facts(case)) for case in cases)


def _facts(case: _Case) -> Facts:
    """Its facts, rounded for print."""
    wanted = FACTS[sort_of(case.verdict.kind)]
    return {name: round(float(fact(case)), 3) for name, fact in wanted.items()}


def _with(verdict: Verdict, known: Facts) -> Verdict:
    likely = shipped()[sort_of(verdict.kind)].likelihood(known)
    likely = min(likely, BELOW) if verdict.is_suspect else max(likely, LEAST_SCORE)
    return replace(verdict, confidence=round(likely, 3), facts=known)


def _waits_measured(job: Observed) -> bool:
    own = job.own
    return bool(own.phases) and own.marked and not own.inferred and not own.hidden


def _agree(case: _Case) -> float:
    """How many measures name these ranks and nobody else."""
    ranks = frozenset(case.verdict.ranks)
    return sum(1 for one in case.verdict.opinions if one.ranks and ranks.issuperset(one.ranks))


def _differ(case: _Case) -> float:
    """How many measures name somebody else, too, or nobody."""
    ranks = frozenset(case.verdict.ranks)
    return sum(1 for one in case.verdict.opinions
               if ranks and not (one.ranks and ranks.issuperset(one.ranks)))  # fmt: skip


def _steps(case: _Case) -> float:
    first, last = case.verdict.steps or (0, 0)
    return last - first + 1


def _accuses(case: _Case) -> float:
    """Whether it names anybody, rather than the job as a whole."""
    return bool(case.verdict.ranks or case.verdict.devices or case.verdict.group)


FACTS: Mapping[Sort, Mapping[str, Fact]] = {
    "slow": {
        "score": lambda case: case.verdict.confidence,
        "agree": _agree,
        "differ": _differ,
        "lost": lambda case: case.verdict.lost_fraction or 0.0,
        "steps": _steps,
        "cause": lambda case: case.verdict.cause != "unknown",
        "accuses": _accuses,
        "first": lambda case: case.at == 0,
        "measured": lambda case: case.measured,
    },
    "stuck": {
        "score": lambda case: case.verdict.confidence,
        "cause": lambda case: case.verdict.cause != "unknown",
        "one": lambda case: len(case.verdict.ranks) == 1,
        "first": lambda case: case.at == 0,
    },
}
"""By the sort of verdict: the method's score; how many measures name the same ranks, and how many
others; the share of step time and the number of steps; whether the cause is known, anybody (or one
rank alone) is accused, it is the first verdict, and waiting was measured."""


def terms(known: Facts) -> dict[str, float]:
    """The facts as the regression adds them: odds and amounts by their logarithms."""
    found = {**known, "score": _log_odds(known["score"])}
    for name, unit in (("lost", LEAST_COST), ("steps", 1.0)):
        if name in found:
            found[name] = _doublings(found[name] / unit)
    for name in ("agree", "differ"):
        if name in found:
            found[name] = min(found[name], MOST_MEASURES)
    return found


def _log_odds(likely: float) -> float:
    likely = min(max(likely, 1 - SURE), SURE)
    return math.log(likely / (1 - likely))


def _doublings(value: float) -> float:
    return min(max(math.log2(max(value, 2**-DOUBLINGS)), -DOUBLINGS), DOUBLINGS)


@dataclass(frozen=True)
class Weights:
    """A logistic regression over the terms of named facts."""

    base: float
    of: Mapping[str, float]

    def likelihood(self, known: Facts) -> float:
        """That a verdict with these facts is right."""
        values = terms(known)
        odds = self.base + sum(weight * values[name] for name, weight in self.of.items())
        return min(max(1 / (1 + math.exp(-odds)), 1 - SURE), SURE)


@cache
def shipped() -> Mapping[Sort, Weights]:
    """The weights of this package.

    Raises:
        FormatError: the installation is damaged.
    """
    file = resources.files("stepscope.diagnose.decide").joinpath(FILE)
    return read(file.read_text(encoding="utf-8"), FILE)


def read(text: str, name: str) -> Mapping[Sort, Weights]:
    """Reads what `stepscope evaluate --fit-confidence` wrote; the name is for messages.

    Raises:
        FormatError: it is something else, or has other facts.
    """
    try:
        data: Any = json.loads(text)
        if (data["kind"], data["format"]) != (KIND, FORMAT):
            raise ValueError("it is another kind of file")
        found = {sort: Weights(float(data[sort]["base"]),
                               {fact: float(data[sort]["weights"][fact]) for fact in facts_of})
                 for sort, facts_of in FACTS.items()}  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{name} holds no weights of confidence: {error}") from error
    return found

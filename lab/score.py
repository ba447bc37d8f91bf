"""Compares what a diagnosis says with what is true.

A fault passes if the culprit ranks are exact, the cause is an accepted one and nobody else is
accused; a healthy job if nothing at all is said. Verdicts below a confidence of 0.5 are suspects:
they neither find nor accuse. Loss is judged over the steps that the verdict itself names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.faults import When

SURE = 0.5
"""The contract's limit (docs/diagnosis-json.md): below it a verdict accuses nobody."""
SOFT = frozenset({"load_imbalance", "code"})
"""Causes that accuse the work, not the machine."""
LOSS_SLACK = 0.1
"""Between the loss that is said and the one that rank 0's clock shows."""
_HUNG = frozenset({"hang", "mismatch"})

Verdict = Mapping[str, Any]
Fault = Mapping[str, Any]


@dataclass(frozen=True)
class Score:
    """What was right; None where the case does not ask for it."""

    passed: bool
    culprit: bool | None = None
    cause: bool | None = None
    lost: bool | None = None
    accused: int = 0
    remark: str = ""


@dataclass(frozen=True)
class Said:
    """One verdict as sure as it claimed to be, and whether it was right."""

    confidence: float
    right: bool
    kind: str = "slowdown"
    facts: Mapping[str, float] = field(default_factory=dict)
    """What the confidence was computed from."""


def judge(truth: Mapping[str, Any], verdicts: Sequence[Verdict], times: Mapping[int, int]) -> Score:
    """`times` are the nanoseconds of each step on rank 0."""
    sure = [v for v in verdicts if confidence(v) >= SURE]
    faults = truth["faults"]
    if not faults:
        return _healthy(verdicts, sure)
    accusing = _accusing(faults, sure)
    named = [_naming(fault, accusing) for fault in faults]
    culprit, cause = _are_named(faults, accusing, named), _causes_right(faults, named)
    wrongly = len(_ranks(accusing) - set().union(*_accepted(faults)))
    lost = _losses(truth, named, times) if faults[0]["kind"] == "slowdown" else None
    return Score(culprit and cause, culprit, cause, lost, wrongly, _remark(accusing, sure, culprit))


def passes(truth: Mapping[str, Any], verdicts: Sequence[Verdict]) -> bool:
    """Whether they name exactly the culprits of all faults, and their causes."""
    faults = truth["faults"]
    accusing = _accusing(faults, [v for v in verdicts if confidence(v) >= SURE])
    named = [_naming(fault, accusing) for fault in faults]
    return _are_named(faults, accusing, named) and _causes_right(faults, named)


def _accusing(faults: Sequence[Fault], sure: Sequence[Verdict]) -> list[Verdict]:
    """Without true remarks about the work beside a fault of the machine."""
    causes = {cause for fault in faults for cause in fault["causes"]}
    return [v for v in sure if v["cause"] not in SOFT or v["cause"] in causes]


def _are_named(
    faults: Sequence[Fault], accusing: Sequence[Verdict], named: Sequence[Sequence[Verdict]]
) -> bool:
    exact = _ranks(accusing) in _accepted(faults)
    return exact and all(named) and _kinds_right(faults, named)


def _causes_right(faults: Sequence[Fault], named: Sequence[Sequence[Verdict]]) -> bool:
    return all(of and of[0]["cause"] in f["causes"] for f, of in zip(faults, named, strict=True))


def judge_each(truth: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[Said]:
    """Every verdict by itself: whom it names and for what."""
    return [
        Said(confidence(v), any(_is_of(fault, v) for fault in truth["faults"]), v["kind"],
             v.get("facts") or {})
        for v in verdicts
    ]  # fmt: skip


def confidence(verdict: Verdict) -> float:
    value = verdict.get("confidence")
    return 1.0 if value is None else float(value)


def _healthy(verdicts: Sequence[Verdict], sure: Sequence[Verdict]) -> Score:
    accused = _ranks(sure)
    return Score(
        passed=not verdicts, accused=len(accused) or len(sure),
        remark=_described(verdicts) if verdicts else "",
    )  # fmt: skip


def _accepted(faults: Sequence[Fault]) -> list[set[int]]:
    """All that may be accused together: one accepted set for each fault."""
    unions: list[set[int]] = [set()]
    for fault in faults:
        unions = [union | set(ranks) for union in unions for ranks in fault["ranks"]]
    return unions


def _naming(fault: Fault, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts about one fault: about its ranks, or, if it is everybody's, about nobody. Those that
    name exactly its ranks come first: those of another fault may be among them."""
    exact = [set(ranks) for ranks in fault["ranks"]]
    guilty = set().union(*exact)
    if guilty:
        about = [v for v in verdicts if set(v["ranks"]) & guilty]
        return sorted(about, key=lambda v: set(v["ranks"]) not in exact)
    return [v for v in verdicts if not v["ranks"]]


def _kinds_right(faults: Sequence[Fault], named: Sequence[Sequence[Verdict]]) -> bool:
    pairs = [(fault["kind"], of[0]["kind"]) for fault, of in zip(faults, named, strict=True)]
    return all(wanted == got or {wanted, got} <= _HUNG for wanted, got in pairs)


def _is_of(fault: Fault, verdict: Verdict) -> bool:
    return set(verdict["ranks"]) in [set(r) for r in fault["ranks"]] and (
        verdict["cause"] in fault["causes"]
    )


def _losses(
    truth: Mapping[str, Any], named: Sequence[Sequence[Verdict]], times: Mapping[int, int]
) -> bool:
    """Whether the verdicts of each fault, and others of the same steps, add up to what was lost."""
    every = list({id(v): v for of in named for v in of}.values())
    return all(bool(of) and _loss_right(truth, of[0], every, times) for of in named)


def _loss_right(
    truth: Mapping[str, Any], verdict: Verdict, every: Sequence[Verdict], times: Mapping[int, int]
) -> bool:
    span = _span(verdict, times)
    said = sum(v.get("lost_fraction") or 0.0 for v in every if _overlap(_span(v, times), span))
    return bool(abs(said - true_loss(truth, span, times)) <= LOSS_SLACK)


def true_loss(truth: Mapping[str, Any], span: tuple[int, int], times: Mapping[int, int]) -> float:
    """The share of the time of these steps that the faults cost."""
    within = {step: ns for step, ns in times.items() if span[0] <= step <= span[1]}
    lost = sum(ns * _share_lost(truth, step) for step, ns in within.items())
    return lost / sum(within.values()) if within else 0.0


def _share_lost(truth: Mapping[str, Any], step: int) -> float:
    """Of one step. What faults at the same time cost was measured together."""
    costs = zip(truth["faults"], truth["lost_each"], strict=True)
    return max((cost for fault, cost in costs if When(**fault["when"]).includes(step)), default=0.0)


def _span(verdict: Verdict, times: Mapping[int, int]) -> tuple[int, int]:
    """The steps whose time it names a share of."""
    steps = verdict.get("lost_of") or verdict.get("steps")
    if not steps or None in steps:
        return min(times), max(times)
    return int(steps[0]), int(steps[-1])


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """By more than half of the shorter one: faults in turn touch at most."""
    shared = min(one[1], other[1]) - max(one[0], other[0]) + 1
    return shared > 0.5 * (min(one[1] - one[0], other[1] - other[0]) + 1)


def _ranks(verdicts: Sequence[Verdict]) -> set[int]:
    return {int(rank) for verdict in verdicts for rank in verdict["ranks"]}


def _remark(accusing: Sequence[Verdict], sure: Sequence[Verdict], culprit: bool) -> str:
    if culprit:
        return ""
    return _described(accusing or sure) or "finds nothing"


def _described(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(
        f"{v['cause']} {sorted(v['ranks']) or 'nobody'} at {confidence(v):.2f}"
        for v in verdicts[:3]
    )

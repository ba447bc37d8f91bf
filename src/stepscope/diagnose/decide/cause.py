"""Why a suspect is slow: the best of its explanations, with the evidence of those that agree.

Explanations are ordered by strength (measured, inferred, residual), then by whether they carry
most of the excess, then by the order of the registry. `host` means that the processor's side is
late for no more exact reason, so it gives way to one that is as well supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.finding import Cause, Decision, Evidence
from stepscope.diagnose.method import STRENGTHS, Explained, Explanation
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect

REASONS_OF_HOSTS: tuple[Cause, ...] = ("data_loading", "gc", "jit_compile")
"""Causes that are exact reasons for a late host; contract."""


@dataclass(frozen=True)
class Reason:
    """The chosen cause of a suspect's excess, what supports it, and what else was considered."""

    cause: Cause
    chosen: Explained
    supporting: tuple[Evidence, ...]
    """Of the chosen explanation, and of those that agree with it."""
    kernels: tuple[str, ...]
    decisions: tuple[Decision, ...]
    beside: tuple[Evidence, ...] = ()
    """Evidence about the suspect that is shown whatever the cause is."""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """All evidence, each method once."""
        known = {one.method for one in self.supporting}
        return (*self.supporting, *(one for one in self.beside if one.method not in known))


def reason_of(job: Observed, suspect: Suspect, explanations: Sequence[Explanation]) -> Reason:
    """The best explanation of a suspect's excess; `unknown` where none applies."""
    found = [(one, explained) for one in explanations
             if (explained := one.explain(job, suspect)) is not None]  # fmt: skip
    causes = [(one, explained) for one, explained in found if explained.cause is not None]
    if not causes:
        return Reason("unknown", Explained("unknown", "residual"), (), (), ())
    best, chosen = _exact(min(causes, key=lambda pair: _order(pair[1])), causes)
    supporting = [explained for one, explained in found if one is not best]
    agreeing = [one for one in supporting if one.agrees and _agrees(one, chosen)]
    kernels = chosen.kernels or next((one.kernels for one in agreeing), ())
    function = next((one.function for one in agreeing if one.function is not None), None)
    chosen = replace(chosen, function=chosen.function or function)
    evidence = (*chosen.context, *chosen.evidence, *_evidence(agreeing))
    beside = _evidence([one for one in supporting if one.always])
    decisions = tuple(_decision(one, explained, one is best) for one, explained in found)
    return Reason(chosen.cause or "unknown", chosen, evidence, kernels, decisions, beside)


def _exact(
    best: tuple[Explanation, Explained], others: Sequence[tuple[Explanation, Explained]]
) -> tuple[Explanation, Explained]:
    """The explanation, or if it only says `host`, one as good that says why the host is late."""
    if best[1].cause != "host":
        return best
    return next((one for one in others if one[1].cause in REASONS_OF_HOSTS
                 and _order(one[1]) <= _order(best[1])), best)  # fmt: skip


def _evidence(explanations: Sequence[Explained]) -> tuple[Evidence, ...]:
    return tuple(evidence for one in explanations for evidence in one.evidence)


def _order(explained: Explained) -> tuple[int, bool]:
    partly = explained.share is not None and explained.share < explained.needed
    return STRENGTHS.index(explained.strength), partly


def _agrees(one: Explained, chosen: Explained) -> bool:
    """Whether an explanation finds the chosen cause, and the chosen one names nothing itself; or
    finds that it is the host, and the chosen one why."""
    if one.cause == "host" and chosen.cause in REASONS_OF_HOSTS:
        return True
    return one.cause == chosen.cause and chosen.function is None and not chosen.kernels


def _decision(one: Explanation, explained: Explained, is_best: bool) -> Decision:
    cause = explained.cause or "no cause of its own"
    says = f"{explained.strength}: {cause}"
    if explained.evidence:
        says += f"; {explained.evidence[-1].detail}"
    return Decision(
        f"cause/{one.name}", is_best, explained.share, explained.needed, says, gate=False
    )

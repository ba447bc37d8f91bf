"""Assigns recurring slow steps to the verdicts that they belong to; the others stand beside
verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.diagnose.detect.periods import CAUSES, EVIDENCE
from stepscope.diagnose.finding import Evidence, Verdict, may_overlap
from stepscope.diagnose.shown import Period


def with_periods(
    verdicts: Sequence[Verdict], found: Sequence[Period]
) -> tuple[tuple[Verdict, ...], tuple[Period, ...]]:
    """Verdicts with the distance of their slow steps as evidence; periods with their verdict."""
    shown = list(verdicts)
    owned = []
    for one in found:
        at = next((at for at, each in enumerate(verdicts) if _is_about(each, one)), None)
        owned.append(replace(one, verdict=at))
        if at is not None:
            more = Evidence(EVIDENCE, one.says, {"every": one.every, "unit": one.unit})
            shown[at] = replace(shown[at], evidence=(*shown[at].evidence, more))
    return tuple(shown), tuple(owned)


def _is_about(verdict: Verdict, one: Period) -> bool:
    """Whether a verdict names the same ranks at the time, or the same cause of all ranks."""
    if verdict.kind != "slowdown" or not may_overlap(verdict.steps, one.steps):
        return False
    if one.ranks:
        return set(one.ranks) <= set(verdict.ranks)
    return not verdict.ranks and verdict.cause == CAUSES[one.source]

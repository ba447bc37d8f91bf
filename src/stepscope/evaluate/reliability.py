"""How often verdicts are right, by the confidence that they state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stepscope.evaluate.intervals import Rate, rate
from stepscope.evaluate.runner import Result
from stepscope.evaluate.score import CERTAIN

STEP = 0.1
"""The width of a range of confidence."""
RANGES = 5
"""From `CERTAIN` to 1."""


@dataclass(frozen=True)
class Reliability:
    """The verdicts whose confidence is within a range."""

    low: float
    high: float
    right: Rate
    stated: float | None
    """Their mean confidence; None: there is none."""

    def to_json(self) -> Mapping[str, Any]:
        return {"from": self.low, "to": self.high, "verdicts": self.right.of,
                "right": self.right.hits, "mean_confidence": self.stated}  # fmt: skip


def reliability(results: Sequence[Result]) -> list[Reliability]:
    """Suspects first, then ranges of a tenth; 1 belongs to the last one."""
    said = [(verdict.confidence, verdict.right) for one in results for verdict in one.said
            if verdict.confidence is not None]  # fmt: skip
    edges = [0.0, *(round(CERTAIN + STEP * at, 1) for at in range(RANGES)), 1.0]
    found = []
    for low, high in pairwise(edges):
        inside = [(confidence, right) for confidence, right in said
                  if low <= confidence < high or high == confidence == 1.0]  # fmt: skip
        mean = sum(confidence for confidence, _ in inside) / len(inside) if inside else None
        found.append(Reliability(low, high, rate([right for _, right in inside]),
                                 None if mean is None else round(mean, 3)))  # fmt: skip
    return found

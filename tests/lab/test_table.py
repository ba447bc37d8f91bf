"""The table counts what is worth counting."""

from __future__ import annotations

from typing import Any

from lab.score import Said, Score
from lab.table import Result, row, totals


def result(score: Score, **truth: Any) -> Result:
    job = {"name": "ddp-1"}
    known = {"id": "ddp-device-4", "family": "compute", "faults": [{}], "job": job} | truth
    return Result(known, score, [Said(0.95, score.passed)])


def test_totals_by_kind_of_fault_and_of_job() -> None:
    good = result(Score(True, True, True, True))
    bad = result(Score(False, False, True, None, accused=2))
    healthy = result(Score(False, accused=1), faults=[])
    text = totals([good, bad, healthy])
    assert "| fault: compute | 2 | 1 of 2 | 2 of 2 | 1 of 1 | 1 |" in text
    assert "| job: ddp | 2 |" in text
    assert "| healthy | 1 | - | - | - | 1 |" in text
    assert "1 of 3 right" in text


def test_a_fault_that_costs_next_to_nothing_is_shown_and_not_counted() -> None:
    small = result(Score(False, False, False), worth=False, lost=0.01)
    assert "not counted" in row(small)
    assert "compute" not in totals([small])

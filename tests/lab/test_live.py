"""How soon a fault was named while the job ran, by what was said and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.live import named_after_s
from tests.lab.test_score import fault, truth, verdict

SECOND = 1_000_000_000


def job(folder: Path, steps: int, *said: tuple[float, list[Any]]) -> Path:
    """Steps of a second each, and reports at some seconds."""
    rows = [f"{step},{step * SECOND},{(step + 1) * SECOND - 1}" for step in range(steps)]
    (folder / "steps.csv").write_text("\n".join(rows))
    lines = [json.dumps([int(at_s * SECOND), verdicts]) for at_s, verdicts in said]
    (folder / "live.jsonl").write_text("\n".join(lines))
    return folder


def test_the_first_right_report_after_the_fault_began_counts(tmp_path: Path) -> None:
    folder = job(
        tmp_path, 100, (20, [verdict([3])]), (51, []), (55, [verdict([2])]), (60, [verdict([3])])
    )
    assert named_after_s(folder, truth(fault([3]))) == 10.0


def test_nobody_named_it(tmp_path: Path) -> None:
    suspect = verdict([3], confidence=0.4)
    folder = job(tmp_path, 100, (60, [suspect]), (70, [verdict([3, 4])]))
    assert named_after_s(folder, truth(fault([3]))) is None


def test_a_step_that_hangs_began_when_the_one_before_ended(tmp_path: Path) -> None:
    hang = fault([3], kind="hang", causes=["hang"])
    stuck = verdict([3], kind="hang", cause="hang")
    seconds = named_after_s(job(tmp_path, 50, (58, [stuck])), truth(hang))
    assert seconds is not None
    assert round(seconds, 3) == 8.0

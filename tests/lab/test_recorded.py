"""Recordings of real jobs with real faults are diagnosed as well as on the day they were made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.score import judge
from lab.truth import step_times
from stepscope.cli.sources import open_window
from stepscope.diagnose.run import diagnose
from stepscope.report.json import to_json

RECORDED = Path(__file__).parent / "recorded"
"""Job folders of the lab without stacks and hardware, and the truth beside each. Those of `gpu`
were recorded by `python -m lab.gpu` on an H200."""


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.iterdir()))
def test_the_culprit_of_a_recorded_job(name: str) -> None:
    folder = RECORDED / name
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    window, _ = open_window(str(folder / "job"))
    found = to_json(diagnose(window))
    score = judge(truth, found["verdicts"], step_times(folder))
    assert score.passed, (score.remark, found["headline"])
    assert score.lost is not False, found["ledger"]

"""Real jobs on hosts in a box, with a real fault each: recorded, diagnosed, and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import record, truth
from lab.faults import Fault, SlowDevice, Stopped, When
from lab.run import main
from lab.scenarios import Case
from lab.score import judge
from lab.shapes import Job
from tests.real.conftest import diagnose

pytestmark = [pytest.mark.real, pytest.mark.alone, pytest.mark.usefixtures("permitted")]

JOB = Job("ddp-0", "ddp.py", 3, 1, 80, 400.0, {"layers": 4, "layer-ms": 4.0})
SECONDS_OF_HANG = 6.0
"""Less than in the lab: nothing live has to report it."""


def recorded(root: Path, fault: Fault) -> tuple[dict[str, Any], Path]:
    """The truth about a job with a fault, and its folder."""
    case = Case("ddp-test", "test", 0, JOB, (fault,))
    folder = record.record(case, root)
    return truth.write(case, folder, None), folder


def verdicts_of(folder: Path) -> list[dict[str, Any]]:
    verdicts: list[dict[str, Any]] = diagnose(folder / "job")[1]["verdicts"]
    return verdicts


def test_a_slow_device_on_one_of_three_hosts(tmp_path: Path) -> None:
    known, folder = recorded(tmp_path, SlowDevice(When(40), 1, 2.5))
    assert known["lost"] > 0.2
    assert known["steps"] == JOB.steps
    assert {path.name for path in (folder / "job" / "steps").iterdir()} == {
        f"recorder=host-{number}" for number in range(3)
    }
    score = judge(known, verdicts_of(folder), truth.step_times(folder))
    assert score.passed, score.remark
    assert score.lost


def test_a_stopped_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "HANG_SECONDS", SECONDS_OF_HANG)
    known, folder = recorded(tmp_path, Stopped(When(40), 2))
    assert 39 <= known["hung_after"] <= 45
    assert json.loads((folder / "truth.json").read_text())["expect"]["ranks"] == [[2]]
    hangs = [v for v in verdicts_of(folder) if v["kind"] == "hang"]
    # The end of the job stops the others too, some of which may be named with it.
    assert any(2 in verdict["ranks"] for verdict in hangs)


def test_where_hosts_cannot_be_made_the_lab_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["run", "ddp-device"]) == 0
    assert "hosts cannot be made here: unshare" in capsys.readouterr().out

"""`stepscope diagnose JOB --baseline OTHER[#STEPS]`, with job folders that `simulate` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`healthy` and `large`; `slow` and `later` with slow code, from the first step or 40 on."""
    folder = tmp_path_factory.mktemp("jobs")
    size = ("--ranks=8", "--steps=70", "--detail=brief")
    for name, more in {
        "healthy": ("--seed=1",),
        "slow": ("--seed=2", "--fault=slow_code:from=0"),
        "later": ("--seed=3", "--fault=slow_code:from=40"),
        "large": ("--ranks=16",),
    }.items():
        assert main(["simulate", *size, *more, "--out", str(folder / name)]) == 0
    return folder


def diagnosed(jobs: Path, job: str, baseline: str, capsys: Capture) -> Any:
    capsys.readouterr()
    status = main(["diagnose", str(jobs / job), "--baseline", str(jobs / baseline), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == bool(found["verdicts"])
    return found


def test_a_healthy_job(jobs: Path, capsys: Capture) -> None:
    assert main(["diagnose", str(jobs / "slow")]) == 0
    (verdict,) = diagnosed(jobs, "slow", "healthy", capsys)["verdicts"]
    assert (verdict["cause"], verdict["ranks"]) == ("code", [])
    found = diagnosed(jobs, "healthy", "later#10-39", capsys)
    assert (found["state"], found["steps"], found["verdicts"]) == ("healthy", [0, 69], [])
    assert found["compared"]["job_id"] == "later"
    assert found["compared"]["steps"][1] == 39


def test_steps_of_the_job_itself(jobs: Path, capsys: Capture) -> None:
    found = diagnosed(jobs, "later", "later#5-38", capsys)
    (verdict,) = found["verdicts"]
    assert found["steps"] == [39, 69]
    assert verdict["cause"] == "code"
    found = diagnosed(jobs, "healthy", "healthy#40-69", capsys)
    assert (found["steps"], found["verdicts"]) == ([0, 39], [])


def test_the_report_shows_both(jobs: Path, capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = ["diagnose", str(jobs / "slow"), "--baseline", str(jobs / "healthy")]
    assert main([*command, "--html", str(page)]) == 1
    text = capsys.readouterr().out
    assert "Beside job healthy, steps 5-69: a step took" in text
    assert "Beside job healthy, steps 5-69: a step took" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("baseline", "why"),
    [
        ("slow", "name its healthy steps"),
        ("slow#0-69", "leaves no step to diagnose"),
        ("slow#5-3", "the first step comes after the last one"),
        ("slow#5-", "JOB#100-200"),
        ("healthy#100-200", "it has steps 0 to 69"),
        ("large", "only jobs of one size"),
        ("nowhere", "no such folder"),
    ],
)
def test_what_cannot_be_compared(jobs: Path, capsys: Capture, baseline: str, why: str) -> None:
    capsys.readouterr()
    assert main(["diagnose", str(jobs / "slow"), "--baseline", str(jobs / baseline)]) == 2
    said = capsys.readouterr().err
    assert why in said and len(said.splitlines()) == 1


def test_not_while_a_job_is_followed(jobs: Path, capsys: Capture) -> None:
    command = ["diagnose", str(jobs / "slow"), "--follow", "--baseline", str(jobs / "healthy")]
    assert main(command) == 2
    assert "leave out --follow" in capsys.readouterr().err

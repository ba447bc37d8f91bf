"""Traces that torch.profiler wrote of real jobs, each with one fault, and what they prove."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main

pytestmark = [
    pytest.mark.real, pytest.mark.alone,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]  # fmt: skip

REPOSITORY = Path(__file__).parents[2]
CULPRIT = 2
FAULTS = {
    "burn-backward": ("compute", "backward-compute"),
    "slow-loader": ("data_loading", "data-load"),
    "sleep-forward": ("host", "forward-compute"),
}
TIMEOUT_SECONDS = 120


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    subprocess.run(
        [sys.executable, "-m", "tests.real.profiled", str(folder), "none", *FAULTS],
        cwd=REPOSITORY, check=True, timeout=TIMEOUT_SECONDS, stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return folder


def diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    status = main(["diagnose", str(folder), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_healthy_job_is_healthy(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = diagnosed(traces / "none", capsys)
    assert (status, found["verdicts"]) == (0, [])
    assert (found["ranks"], found["steps"]) == (4, [3, 8])


@pytest.mark.parametrize("fault", FAULTS)
def test_the_faulty_rank_is_named_with_phase_and_cause(
    traces: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    status, found = diagnosed(traces / fault, capsys)
    (verdict,) = found["verdicts"]
    assert (status, verdict["ranks"], verdict["victims"]) == (1, [CULPRIT], 3)
    assert (verdict["cause"], verdict["phase"]) == FAULTS[fault]

"""Real jobs with one real fault each: rank, phase and cause are named, and nobody else is."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Jobs, diagnose

pytestmark = [pytest.mark.real, pytest.mark.alone]


def the_verdict(jobs: Jobs, fault: str, *more: str) -> dict[str, Any]:
    """Runs the job with a fault of rank 1 from its middle on; its one verdict."""
    finished = jobs.run(fault, *jobs.launch(3, "train.py", "--fault", fault, *more))
    assert finished.status == 0, finished.stderr
    assert "internal fault" not in finished.stderr
    status, diagnosis = diagnose(finished.folder)
    assert status == 1
    assert len(diagnosis["verdicts"]) == 1, diagnosis["verdicts"]
    verdict: dict[str, Any] = diagnosis["verdicts"][0]
    return verdict


def test_a_rank_that_sleeps_in_forward(jobs: Jobs) -> None:
    verdict = the_verdict(jobs, "sleep-forward")
    assert verdict["ranks"] == [1]
    assert verdict["phase"] == "forward-compute"
    assert verdict["cause"] in ("compute", "host")


def test_a_rank_whose_data_loader_is_slow(jobs: Jobs) -> None:
    verdict = the_verdict(jobs, "slow-loader")
    assert verdict["ranks"] == [1]
    assert verdict["phase"] == "data-load"
    assert verdict["cause"] == "data_loading"


def test_a_rank_with_garbage_collection_storms(jobs: Jobs) -> None:
    verdict = the_verdict(jobs, "gc-storm")
    assert verdict["ranks"] == [1]
    assert verdict["cause"] == "gc"


def test_a_rank_that_shares_its_core_with_its_own_busy_processes(jobs: Jobs) -> None:
    verdict = the_verdict(jobs, "busy-core", "--steps", "200")
    assert verdict["ranks"] == [1]
    assert verdict["cause"] == "host"


def test_a_function_that_is_slow_on_all_ranks(jobs: Jobs) -> None:
    verdict = the_verdict(jobs, "slow-function")
    assert verdict["ranks"] == []
    assert verdict["cause"] == "code"
    assert "tokenize_slowly" in verdict["function"]

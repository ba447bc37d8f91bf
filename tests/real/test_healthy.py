"""Healthy jobs of different shapes end with no verdict, and unchanged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .conftest import Jobs, diagnose

pytestmark = pytest.mark.real


@pytest.mark.alone
@pytest.mark.parametrize(("shape", "ranks"), [("accumulate", 4), ("adversarial", 3), ("plain", 2)])
def test_a_healthy_job_has_no_verdict(jobs: Jobs, shape: str, ranks: int) -> None:
    finished = jobs.run(shape, *jobs.fork(ranks, "shapes.py", shape))
    assert finished.status == 0, finished.stderr
    assert "internal fault" not in finished.stderr
    _, diagnosis = diagnose(finished.folder)
    assert diagnosis["verdicts"] == []
    assert diagnosis["steps"] == [0, 119], "accumulation, evaluation and pairs do not confuse steps"
    assert diagnosis["ranks"] == ranks


@pytest.mark.parametrize(("script", "start"), [("fsdp.py", Jobs.fork),
                                               ("hf_trainer.py", Jobs.launch)])  # fmt: skip
def test_the_script_computes_the_same_to_the_last_digit(
    jobs: Jobs, script: str, start: Callable[..., list[str]]
) -> None:
    """A Trainer is known when its rank imports it, which none that is forked later does."""
    alone = subprocess.run(
        jobs.fork(2, script), env=jobs.environment(), capture_output=True, text=True,
        timeout=100, check=True,
    )  # fmt: skip
    finished = jobs.run(script, *start(jobs, 2, script))
    assert finished.status == 0, finished.stderr
    assert "internal fault" not in finished.stderr
    assert losses(finished.stdout) == losses(alone.stdout) != []
    _, diagnosis = diagnose(finished.folder)
    assert diagnosis["steps"] == [0, 29], "another loop is looked for after 200 events"


def losses(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("loss")]

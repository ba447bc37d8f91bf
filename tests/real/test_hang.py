"""A rank that stops: named while the others still wait, with its stack, long before a watchdog."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any

import psutil
import pytest

from .conftest import Jobs, diagnose, says

pytestmark = pytest.mark.real


def await_verdict(jobs: Jobs, name: str, seconds: float = 60.0) -> dict[str, Any]:
    """Asks again and again, as an operator would, once there is something; the first verdict."""
    jobs.await_steps(name)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _, diagnosis = diagnose(jobs.folder(name))
        if diagnosis["verdicts"]:
            verdict: dict[str, Any] = diagnosis["verdicts"][0]
            return verdict
        time.sleep(0.5)
    raise AssertionError(f"no verdict about {name} in {seconds} s")


@pytest.mark.alone
def test_a_stopped_rank_is_the_culprit_and_its_waiting_peers_are_not(jobs: Jobs) -> None:
    launch = jobs.fork(3, "train.py", "--scenes", "stop:24", "--pause", "0.3")
    process = jobs.start("stop", *launch)
    verdict = await_verdict(jobs, "stop")
    assert verdict["kind"] == "hang"
    assert verdict["ranks"] == [1]
    assert verdict["victims"] == 2
    assert any("main (" in frame for frame in verdict["stack"]), "its stack, from outside"
    assert says(process, "rank 1 hangs"), "the live view, too"
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # who only looked at them is gone
            child.send_signal(signal.SIGCONT)
    finished = jobs.finish("stop", process)
    assert finished.status == 0, "a rank that goes on finishes its job"
    _, diagnosis = diagnose(finished.folder)
    assert all(verdict["kind"] != "hang" for verdict in diagnosis["verdicts"]), "it went on"


def test_a_killed_rank_is_named_under_torchrun_which_ends_the_others(jobs: Jobs) -> None:
    launch = jobs.torchrun(2, "train.py", "--pause", "0.1", "--scenes", "none:200")
    process = jobs.start("killed", *launch)
    jobs.await_steps("killed")
    family = psutil.Process(process.pid).children(recursive=True)
    victim = next(one for one in family if one.environ().get("RANK") == "1")
    victim.kill()
    finished = jobs.finish("killed", process)
    assert finished.status == 1, "torchrun's own status"
    status, diagnosis = diagnose(finished.folder)
    assert (status, diagnosis["ranks"]) == (1, 2)
    (verdict,) = diagnosis["verdicts"]
    assert (verdict["kind"], verdict["ranks"], verdict["cause"]) == ("hang", [1], "unknown")
    assert any("main (" in frame for frame in verdict["stack"]), "its last one"
    assert "rank 1 was killed (SIGKILL)" in finished.stderr

"""Training goes on whatever happens to stepscope; stepscope goes on whatever launcher is used."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from .conftest import HERE, Jobs, diagnose

pytestmark = pytest.mark.real


def processors(jobs: Jobs) -> list[psutil.Process]:
    """The processors that listen on this test's socket."""
    wanted = str(jobs.root / "p.sock")
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if wanted in (process.info["cmdline"] or []) and "processor" in process.info["cmdline"]
    ]


def test_training_survives_the_processor_and_a_new_one_carries_on(jobs: Jobs) -> None:
    """Under another launcher than the other jobs: `python -m torch.distributed.run`."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(HERE / "train.py"), "--pause", "0.1", "--scenes", "none:70"]
    process = jobs.start("survivor", *launch, *script)
    jobs.await_steps("survivor")
    for victim in processors(jobs):
        victim.send_signal(signal.SIGKILL)
    finished = jobs.finish("survivor", process)
    assert finished.status == 0, finished.stderr
    assert "the processor is gone" in finished.stderr
    _, diagnosis = diagnose(finished.folder)
    assert diagnosis["ranks"] == 2
    assert diagnosis["steps"] == [0, 69], "what happened meanwhile came in later"


def test_plain_python_and_the_commands_own_exit_status(jobs: Jobs) -> None:
    code = "import sys, torch; print('trained'); sys.exit(7)"
    finished = jobs.run("plain-python", sys.executable, "-c", code)
    assert finished.status == 7
    assert finished.stdout == "trained\n"
    assert "Traceback" not in finished.stderr


def test_a_command_that_does_not_exist_is_one_line(jobs: Jobs) -> None:
    finished = jobs.run("nothing", "no-such-launcher")
    assert finished.status == 2
    assert finished.stderr.strip().splitlines()[-1].startswith("stepscope: cannot start no-such")

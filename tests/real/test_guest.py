"""What a script sees of itself, and what is seen of it, is the same with and without us."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import HERE, TIMEOUT_SECONDS, Jobs, diagnose

pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Seen:
    status: int
    stdout: str
    stderr: str
    """Of the script alone, without what `stepscope run` says."""


def run(jobs: Jobs, folder: Path, name: str = "") -> Seen:
    """Under `stepscope run` if it has a name there."""
    work = folder / "work"
    work.mkdir(parents=True)
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("greeting = 'hello'\n")
    script = shlex.join([sys.executable, "-m", "guest", str(work.relative_to(folder))])
    shell = ["sh", "-c", f"exec {script} 2> stderr"]
    done = subprocess.run(
        jobs.command(name, *shell) if name else shell, cwd=folder, input="a line\n", text=True,
        stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_SECONDS,
        env=jobs.environment() | {"PYTHONPATH": os.pathsep.join([str(own), str(HERE)])},
    )  # fmt: skip
    return Seen(done.returncode, done.stdout, (folder / "stderr").read_text())


def test_a_script_with_habits_of_its_own_sees_no_difference(jobs: Jobs, tmp_path: Path) -> None:
    """`-m`, an own `sitecustomize`, another folder, alarms, and children of both other kinds."""
    folder = tmp_path / "run"
    plain = run(jobs, folder)
    folder.rename(tmp_path / "plain")
    recorded = run(jobs, folder, "guest")
    assert recorded == plain
    assert plain.status == 5
    assert "child ended with 3" in plain.stdout and "time is up" in plain.stdout
    _, diagnosis = diagnose(jobs.folder("guest"))
    assert diagnosis["ranks"] == 1 and diagnosis["steps"][1] > 4, "it was recorded"


def test_profiling_does_not_crash_ranks_that_always_have_sends_under_way(jobs: Jobs) -> None:
    """Gloo writes into the event of a send when it has ended; torch frees the event before, if its
    profiler ends in between."""
    done = jobs.run("in-flight", *jobs.torchrun(2, "in_flight.py"))
    assert done.status == 0, done.stderr
    assert sorted(line.split()[:2] for line in done.stdout.splitlines() if "done" in line) == [
        ["done", "0"],
        ["done", "1"],
    ]
    assert done.stderr.count("profiled optimizer steps 22 to ") == 2

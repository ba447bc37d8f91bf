"""Commands whose Python never runs our start-up."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.unrecorded import why_unrecorded


@pytest.mark.parametrize(("command", "why"), [
    ("python -I train.py", "ignores PYTHONPATH"),
    ("/venv/bin/python3 -u -X dev -E train.py", "ignores PYTHONPATH"),
    ("mpirun -n 2 python -uI -m train", "ignores PYTHONPATH"),
    ("python -S train.py", "does not import sitecustomize"),
    ("env PYTHONPATH=/mine python train.py", "the command sets PYTHONPATH"),
])  # fmt: skip
def test_a_command_that_hides_us(command: str, why: str) -> None:
    said = why_unrecorded(command.split())
    assert said is not None and why in said and "\n" not in said


@pytest.mark.parametrize("command", [
    "python train.py -I", "python -u -W error train.py", "python -X dev -m train -E",
    "torchrun x.py", "python -c code -I", "bash -c PYTHON", "train.py -E", "python",
])  # fmt: skip
def test_a_command_that_does_not(command: str) -> None:
    assert why_unrecorded(command.split()) is None


def run(socket_path: Path, store: Path, *command: str) -> str:
    """What `stepscope run` says of a command that trains unseen."""
    ours = [sys.executable, "-m", "stepscope.cli", "run", "--socket", str(socket_path)]
    trains = ["--store", str(store), "--", *command]
    done = subprocess.run([*ours, *trains], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    return done.stderr


def test_run_says_so_in_one_line(socket_path: Path, tmp_path: Path) -> None:
    said = run(socket_path, tmp_path, sys.executable, "-I", "-c", "print('trained')")
    assert said.count("nothing can be recorded: `python -I` ignores PYTHONPATH") == 1


def test_of_a_script_that_does_it_the_reason_is_guessed_at_the_end(
    socket_path: Path, tmp_path: Path
) -> None:
    script = f"{shlex.quote(sys.executable)} -E -c \"print('trained')\""
    said = run(socket_path, tmp_path, "sh", "-c", script)
    (line,) = (line for line in said.splitlines() if "nothing was recorded of " in line)
    assert "Python's -I, -E and -S, and a PYTHONPATH that a script sets" in line

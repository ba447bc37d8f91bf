"""Starts real jobs under `stepscope run`, and asks `stepscope diagnose --json` about them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
TIMEOUT_SECONDS = 120.0


@dataclass
class Finished:
    """A job that has ended: its exit status, what it printed, where its folder is."""

    status: int
    stdout: str
    stderr: str
    folder: Path


@dataclass
class Jobs:
    """Starts jobs that share one processor and one store."""

    root: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "STEPSCOPE_RAISE": ""}

    def command(self, name: str, *launch: str) -> list[str]:
        ours = ["stepscope", "run", "--store", str(self.root / "store"), "--job", name]
        return [str(BIN / ours[0]), *ours[1:], "--socket", str(self.root / "p.sock"), "--", *launch]

    def torchrun(self, ranks: int, script: str, *arguments: str) -> list[str]:
        launch = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        return [*launch, str(HERE / script), *arguments]

    def launch(self, ranks: int, script: str, *arguments: str) -> list[str]:
        """Sooner there than torchrun: one import of torch less."""
        return [sys.executable, str(HERE / "launch.py"), str(ranks), str(HERE / script), *arguments]

    def fork(self, ranks: int, script: str, *arguments: str) -> list[str]:
        """Much sooner there: one import of torch for all ranks."""
        launcher, *rest = self.launch(ranks, script, *arguments)[1:]
        return [sys.executable, launcher, "--fork", *rest]

    def start(self, name: str, *launch: str) -> subprocess.Popen[str]:
        return self.start_command(self.command(name, *launch))

    def start_command(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, env=self.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process

    def run(self, name: str, *launch: str) -> Finished:
        return self.finish(name, self.start(name, *launch))

    def finish(self, name: str, process: subprocess.Popen[str]) -> Finished:
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
        assert "internal error" not in stderr, stderr  # which would leave the exit status alone
        return Finished(process.returncode, stdout, stderr, self.folder(name))

    def await_steps(self, name: str) -> None:
        """Until a running job's first steps are stored."""
        until = time.monotonic() + 60
        while not list(self.folder(name).glob("steps/**/*.parquet")):
            assert time.monotonic() < until, "no steps in a minute"
            time.sleep(0.2)

    def folder(self, name: str) -> Path:
        return self.root / "store" / name

    def stop_all(self) -> None:
        """Kills whatever a failed test left, ranks included."""
        for process in self.running:
            if process.poll() is None:
                kill_tree(process.pid)


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all its descendants, stopped ones too."""
    import psutil

    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def says(process: subprocess.Popen[str], text: str, seconds: float = 60.0) -> bool:
    """Waits until a running job prints a line with this text on standard error."""
    assert process.stderr is not None
    too_late = threading.Timer(seconds, kill_tree, [process.pid])
    too_late.start()
    try:
        return any(text in line for line in process.stderr)
    finally:
        too_late.cancel()


def diagnose(folder: Path | str) -> tuple[int, dict[str, Any]]:
    """Exit status and the JSON of `stepscope diagnose`, without a process of its own."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(["diagnose", str(folder), "--json"])
    return status, json.loads(printed.getvalue())


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture
def jobs(shared_root: Path) -> Iterator[Jobs]:
    jobs = Jobs(shared_root)
    yield jobs
    jobs.stop_all()

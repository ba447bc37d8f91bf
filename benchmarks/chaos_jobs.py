"""Jobs of `benchmarks/chaos.py`: how they are started, and what is found after they have ended."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import psutil

from stepscope.errors import StepscopeError
from stepscope.store.reader import JobReader

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[1]
LAUNCH = REPOSITORY / "tests" / "real" / "launch.py"
TRAIN = REPOSITORY / "benchmarks" / "chaos_train.py"
STATUS = 7
"""The script's own: none that a launcher or a signal would give."""
PATIENCE_SECONDS = 600.0
PLAIN_SECONDS = 3600.0
"""Hours of steps are repeated without pauses by the plain job, on a host that others may load."""
SAID = re.compile(r"missing|lost|dropped|gone|refused|not store|cannot|no response|unreachable")


@dataclass
class Job:
    """One job under `stepscope run`, or a plain one, with its output in files."""

    name: str
    folder: Path
    store: str
    process: subprocess.Popen[bytes]

    @property
    def losses(self) -> list[str]:
        return (self.folder / "stdout").read_text().split()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def trains(self, steps: int = 60) -> None:
        """Waits until it has done so many steps more."""
        goal = len(self.losses) + steps
        wait_for(lambda: len(self.losses) >= goal, f"{steps} steps of {self.name}")

    def stored(self) -> None:
        """Waits until steps are stored in its folder."""
        steps = Path(self.store, self.name, "steps")
        wait_for(lambda: any(steps.rglob("*.parquet")), f"rows of {self.name}")

    def finish(self) -> None:
        (self.folder / "stop").touch()
        self.process.wait(PATIENCE_SECONDS)


@dataclass(frozen=True)
class Outcome:
    """What was found after a job had ended."""

    case: str
    losses: Sequence[str]
    status: int
    diagnosis: int
    """Exit status of `stepscope diagnose`."""
    stored: int
    """Rows of table `steps`."""
    counted: int
    """Rows of that table that table `losses` says are missing."""
    said: Sequence[str]

    def missing(self, ranks: int) -> int:
        return ranks * len(self.losses) - self.stored

    def faults(self, plain: Sequence[str], ranks: int) -> list[str]:
        found = []
        if not self.losses or list(self.losses) != list(plain[: len(self.losses)]):
            found.append("losses differ")
        if self.status != STATUS:
            found.append(f"exit status {self.status}")
        if self.diagnosis not in ((0, 1) if self.stored else (2,)):
            found.append(f"diagnose ended with {self.diagnosis}")
        if self.missing(ranks) > self.counted and not self.said:
            found.append("rows are missing and nothing says so")
        return found


@dataclass
class Room:
    """Where jobs run: one socket, and a folder for all of them."""

    folder: Path
    ranks: int
    kills: int
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def socket_path(self) -> Path:
        return self.folder / "s" / "socket"

    @contextmanager
    def job(
        self, name: str, store: Path | str | None = None, env: dict[str, str] | None = None,
        forks: int = 0, pause: float = 0.05,
    ) -> Iterator[Job]:  # fmt: skip
        """Runs until the block ends; then its outcome is noted."""
        url = str(store or self.folder / "store")
        ours = [str(BIN / "stepscope"), "run", "--store", url, "--job", name,
                "--socket", str(self.socket_path), "--"]  # fmt: skip
        options = ["--forks", str(forks), "--pause", str(pause)]
        job = self.start(name, url, ours, options, env or {})
        try:
            yield job
            job.finish()
            self.outcomes.append(outcome(job, env or {}))
        finally:
            end(job.process)

    def plain(self, steps: int) -> list[str]:
        """The losses without stepscope."""
        job = self.start("plain", "", [], ["--steps", str(steps), "--pause", "0"], {})
        job.process.wait(PLAIN_SECONDS)
        return job.losses

    def start(
        self, name: str, store: str, ours: list[str], options: list[str], env: dict[str, str]
    ) -> Job:
        folder = self.folder / name
        folder.mkdir()
        launch = [sys.executable, str(LAUNCH), str(self.ranks), str(TRAIN), str(folder / "stop")]
        around = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [*ours, *launch, "--status", str(STATUS), *options], stdout=out, stderr=err,
                env=around | {"OMP_NUM_THREADS": "1"} | env,
            )  # fmt: skip
        return Job(name, folder, store, process)

    def processor(self) -> psutil.Process:
        """The one that listens on our socket, waiting for it to be started."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            wanted = {"processor", str(self.socket_path)}
            found[:] = [one for one in psutil.process_iter(["cmdline"])
                        if wanted <= set(one.info["cmdline"] or ())]  # fmt: skip
            return bool(found)

        wait_for(is_there, "processor")
        return min(found, key=lambda one: one.create_time())  # not a child of it that is starting

    def connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(str(self.socket_path))
        return line


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} in {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills what a failed case left."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            one.kill()
        process.kill()
    process.wait()


def outcome(job: Job, env: dict[str, str]) -> Outcome:
    url = f"{job.store.rstrip('/')}/{job.name}"
    command = [str(BIN / "stepscope"), "diagnose", url, "--json"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | env
    )
    (job.folder / "diagnosis").write_text(done.stdout + done.stderr)
    with mock.patch.dict(os.environ, env):
        stored, counted = rows(url)
    said = [line for line in job.stderr.splitlines() if SAID.search(line)]
    return Outcome(
        job.name, job.losses, job.process.returncode, done.returncode, stored, counted, said
    )


def rows(url: str) -> tuple[int, int]:
    """Steps that are stored, and those that are known to be lost."""
    try:
        window = JobReader(url).refresh()
    except StepscopeError:
        return 0, 0
    steps, losses = window.table("steps"), window.table("losses")
    lost = 0 if losses is None else losses.ints("rows")[losses.strings("table").equals("steps")]
    return (0 if steps is None else len(steps)), int(getattr(lost, "sum", int)())

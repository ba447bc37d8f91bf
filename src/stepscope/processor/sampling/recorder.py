"""One `py-spy record`: it writes its samples only when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import which

ALL_THREADS = ("--idle", "--format", "chrometrace")
"""Every thread, waiting or not, with times."""
GIL_HOLDERS = ("--gil", "--format", "raw")
"""The thread that holds the GIL; how often each stack was seen. With times, py-spy would write a
thread that held the GIL twice as if it had held it in between, too."""


@dataclass
class Recorder:
    """A running or ending recorder; `from_ns` and `until_ns` are what is used of its samples."""

    process: subprocess.Popen[bytes]
    path: Path
    spawned_ns: int
    from_ns: int
    until_ns: int | None = None

    @classmethod
    def start(
        cls, py_spy: str, folder: Path, pid: int, hz: int, overlap_ns: int = 0,
        what: tuple[str, ...] = ALL_THREADS,
    ) -> Recorder:  # fmt: skip
        """Starts to sample a process; the first samples are used after the overlap."""
        now = time.time_ns()
        path = folder / f"{pid}-{now}"
        command = [
            py_spy, "record", "--pid", str(pid), "--nonblocking", "--threads", "--rate", str(hz),
            "--duration", "3600", *what, "--output", str(path),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        return cls(process, path, now, now + overlap_ns)

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def end(self, until_ns: int) -> None:
        """Has it write its samples; later ones are not used."""
        if self.until_ns is None:
            self.until_ns = until_ns
            if not self.is_over:
                self.process.send_signal(signal.SIGINT)

    def read(self, wait_seconds: float) -> bytes | None:
        """What it has written, after waiting for its end; None: it was killed, or has nothing.

        Raises:
            RecordingError: it could not sample.
        """
        try:
            _, errors = self.process.communicate(timeout=wait_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            self.path.unlink(missing_ok=True)
            return None
        if not self.path.exists():
            if self.process.returncode not in {0, -signal.SIGINT}:
                raise RecordingError(_first_line(errors))
            return None
        try:
            return self.path.read_bytes()
        finally:
            self.path.unlink()


class RecordingError(Exception):
    """What py-spy reports."""


def _first_line(errors: bytes) -> str:
    return (errors.decode(errors="replace").strip().splitlines() or ["no output"])[0]


def find_py_spy() -> str | None:
    """The path of py-spy: next to our own interpreter, else the one in PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if beside.exists() else which("py-spy")


def may_exist(pid: int) -> bool:
    """False only if there is no such process; one of another user counts as existing."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True

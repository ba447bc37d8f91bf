"""Sets up a command to run under stepscope: its environment, and the processor of this host."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import stepscope
from stepscope.cli.deaths import Death
from stepscope.cli.processor import SUPERSEDED
from stepscope.cli.request import connect, request
from stepscope.collect import identity
from stepscope.errors import StoreError, UsageError, WireError
from stepscope.processor.settings import FINISH_SECONDS
from stepscope.processor.sockets.private import make_private, open_private
from stepscope.wire.control import decode_flushed, decode_notes, encode_exited, encode_flush
from stepscope.wire.frames import PacketKind, pack

logger = logging.getLogger(__name__)

_START_SECONDS = 15.0
_CHECK_SECONDS = 2.0
_FLUSH_SECONDS = 15.0
_JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PET_RDZV_ID", "JOB_NAME")
"""Variables with the same value on all hosts of a job; the first one set goes into its name."""


def environment(base: Mapping[str, str], job: str, store: str, socket_path: Path) -> dict[str, str]:
    """The command's environment: `base` plus our variables, with our folder first in PYTHONPATH."""
    inject = str(Path(stepscope.__file__).parent / "collect" / "inject")
    python_path = [inject, *filter(None, [base.get("PYTHONPATH")])]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(python_path),
        identity.SOCKET_VARIABLE: str(socket_path),
        identity.JOB_VARIABLE: job,
        identity.STORE_VARIABLE: store,
    }


def job_name(command: Sequence[str], env: Mapping[str, str], now: datetime | None = None) -> str:
    """The name of the script, with the job id of the scheduler or else the time and our process:
    of several jobs that a script starts within a second, each has a folder of its own."""
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    stem = scripts[0] if scripts else Path(command[0]).name
    shared = next((env[key] for key in _JOB_VARIABLES if env.get(key)), None)
    if shared and shared == env.get("SLURM_JOB_ID") and env.get("SLURM_STEP_ID", "").isdecimal():
        shared = f"{shared}.{env['SLURM_STEP_ID']}"
    when = (now or datetime.now(timezone.utc)).strftime("%Y%m%d-%H%M%S")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stem}-{shared or f'{when}-{os.getpid()}'}")


def absolute_store(store: str) -> str:
    """The store as an absolute path, valid for processes in any working folder; URLs unchanged."""
    return store if "://" in store else str(Path(store).absolute())


class HostProcessor:
    """The processor of this host: one that already runs, or one that we start and restart."""

    def __init__(self, path: Path, options: Sequence[str] = ()) -> None:
        """`options` are for a processor that we start; one that already runs ignores them."""
        self.path = path
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._log = path.with_suffix(".log")
        self._started_at = self._checked_at = 0.0
        self._deaths: list[Death] = []
        self._dead: int | None = None

    def ensure(self) -> None:
        """Starts a processor if none answers. One that is slow to start, as on a busy host, is not
        waited for longer than `_START_SECONDS`: ranks connect once it listens.

        Raises:
            UsageError: it does not start, and the message names its log; or another user has
                access to the socket's folder, or listens there.
        """
        make_private(self.path)
        if not self._answers():
            self._start()
            self._wait()
        elif self._options:
            logger.warning(
                "a processor is already running on %s and keeps its own options; ignored here: %s",
                self.path, shlex.join(self._options),
            )  # fmt: skip

    def keep(self) -> None:
        """Restarts the processor if it has exited; training is not affected.

        Each check also keeps an idle processor from exiting while ranks are still importing.
        """
        if time.monotonic() - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        self._forget_superseded()
        starting = self._process is not None and self._process.poll() is None
        try:
            if not starting and not self._answers():
                logger.warning("the processor is gone (log: %s); starting another", self._log)
                self._note_death()
                self._start()
        except (OSError, UsageError) as error:
            logger.warning("cannot start another processor: %s", error)

    def deaths(self) -> Sequence[Death]:
        """Processors that died, also just now, since the last call."""
        self._forget_superseded()
        if self._process is not None and self._process.poll() is not None:
            self._note_death()
        deaths, self._deaths = self._deaths, []
        return deaths

    def _note_death(self) -> None:
        """One that is idle exits by itself, with status 0; one that is replaced has died."""
        ours = self._process
        if ours is None:
            self._deaths.append(Death(time.time_ns()))
        elif ours.poll() != 0 and ours.pid != self._dead:
            self._dead = ours.pid
            self._deaths.append(Death(time.time_ns(), ours.pid, ours.poll()))

    def _forget_superseded(self) -> None:
        """Commands that start at once each start a processor, and all but one of those exit."""
        if self._process is not None and self._process.poll() == SUPERSEDED:
            self._process = None

    def flush(self, job: str, *, finish: bool = False) -> tuple[str, ...]:
        """Has the processor store all remaining rows of a job, before the final report.

        Args:
            finish: the job has ended; windows of profiling that wait are summarized first.

        Returns lines about what the recording lacks.

        Raises:
            StoreError: the processor could not store them, or did not confirm it in time.
        """
        try:
            seconds = _FLUSH_SECONDS + (FINISH_SECONDS if finish else 0.0)
            answer = request(self.path, encode_flush(job, finish=finish), seconds)
            trouble, notes = decode_flushed(answer), decode_notes(answer)
        except (OSError, WireError) as error:
            message = f"the processor did not store the last rows of {job}: {error}"
            raise StoreError(message) from error
        if trouble is not None:
            raise StoreError("; ".join((trouble, *notes)))
        return notes

    def exited(self, pid: int, returncode: int) -> None:
        """Tells the processor how the command ended, which only its parent knows for sure."""
        with (
            suppress(OSError, UsageError),
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line,
        ):
            line.settimeout(_CHECK_SECONDS)
            connect(line, self.path)
            line.send(pack(PacketKind.CONTROL, encode_exited(pid, returncode), os.getpid(), 0))

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(2)
                connect(connection, self.path)
        except OSError:
            return False
        return True

    def _start(self) -> None:
        command = [
            sys.executable, "-m", "stepscope.cli", "-v", "processor",
            "--socket", str(self.path), "--exit-when-idle", *self._options,
        ]  # fmt: skip
        logger.info("starting %s", shlex.join(command))
        with self._opened_log() as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._started_at = time.monotonic()

    def _opened_log(self) -> IO[bytes]:
        try:
            return os.fdopen(open_private(self._log, os.O_WRONLY | os.O_APPEND), "ab")
        except OSError as error:
            raise UsageError(f"cannot write {self._log}: {error.strerror}") from error

    def _wait(self) -> None:
        while not self._answers():
            self._forget_superseded()
            exited = self._process is not None and self._process.poll() is not None
            if exited and not self._answers():
                raise UsageError(f"the processor did not start; see its log {self._log}")
            if time.monotonic() - self._started_at > _START_SECONDS:
                logger.warning(
                    "the processor does not answer yet; the command starts without it, and is "
                    "recorded once it does (log: %s)", self._log,
                )  # fmt: skip
                return
            time.sleep(0.05)

"""Starting a command under stepscope: its environment, and the processor of this host."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import stepscope
from stepscope.cli.asking import asked
from stepscope.collect import identity
from stepscope.errors import StoreError, UsageError, WireError
from stepscope.wire.control import decode_flushed, encode_flush

logger = logging.getLogger(__name__)

_START_SECONDS = 15.0
_ASK_SECONDS = 2.0
_FLUSH_SECONDS = 15.0
_JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PET_RDZV_ID", "JOB_NAME")
"""What all hosts of a job agree on; the first one set becomes part of the job's name."""


def environment(base: Mapping[str, str], job: str, store: str, socket_path: Path) -> dict[str, str]:
    """The command's environment: ours in front of what was there, nothing removed."""
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
    """A name people recognise: the script's, and the scheduler's job id or the time."""
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    stem = scripts[0] if scripts else Path(command[0]).name
    shared = next((env[key] for key in _JOB_VARIABLES if env.get(key)), None)
    when = (now or datetime.now(timezone.utc)).strftime("%Y%m%d-%H%M%S")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stem}-{shared or when}")


def absolute_store(store: str) -> str:
    """The same store for every process, whatever folder it runs in."""
    return store if "://" in store else str(Path(store).absolute())


class HostProcessor:
    """The processor of this host: found running, or started and kept running by us."""

    def __init__(self, path: Path, options: Sequence[str] = ()) -> None:
        """`options` are for the processor, should we start it."""
        self.path = path
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.gettempdir()) / f"stepscope-processor-{os.getuid()}.log"
        self._started_at = self._asked_at = 0.0

    def ensure(self) -> None:
        """Starts one if none answers.

        Raises:
            UsageError: it does not start; the message says where its log is.
        """
        if not self._answers():
            self._start()
            self._wait()
        elif self._options:
            logger.warning(
                "a processor runs already on %s: what was said to it at its start holds, not %s",
                self.path, shlex.join(self._options),
            )  # fmt: skip

    def keep(self) -> None:
        """Starts one again if it is gone; training does not notice either.

        The question alone keeps a processor from stopping for idleness while ranks still import.
        """
        if time.monotonic() - self._asked_at < _ASK_SECONDS:
            return
        self._asked_at = time.monotonic()
        starting = self._process is not None and self._process.poll() is None
        if not starting and not self._answers():
            logger.warning("the processor is gone (log: %s); starting another", self._log)
            self._start()

    def flush(self, job: str) -> None:
        """Has everything known of a job stored before the final report.

        Raises:
            StoreError: the processor did not say so in time, or could not store it.
        """
        try:
            trouble = decode_flushed(asked(self.path, encode_flush(job), _FLUSH_SECONDS))
        except (OSError, WireError) as error:
            why = f"the processor did not store the last rows of {job}: {error}"
            raise StoreError(why) from error
        if trouble is not None:
            raise StoreError(trouble)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.settimeout(2)
                line.connect(str(self.path))
        except OSError:
            return False
        return True

    def _start(self) -> None:
        command = [
            sys.executable, "-m", "stepscope.cli", "-v", "processor",
            "--socket", str(self.path), "--exit-when-idle", *self._options,
        ]  # fmt: skip
        logger.info("starting %s", shlex.join(command))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._started_at = time.monotonic()

    def _wait(self) -> None:
        assert self._process is not None
        while not self._answers():
            if self._process.poll() is not None and not self._answers():
                raise UsageError(f"the processor did not start; its log is {self._log}")
            if time.monotonic() - self._started_at > _START_SECONDS:
                raise UsageError(f"the processor does not answer; its log is {self._log}")
            time.sleep(0.05)

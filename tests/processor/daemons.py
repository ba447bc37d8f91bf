"""A processor as a process of its own, and connections to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import SourceError
from stepscope.store.reader import JobReader
from stepscope.trace import Job
from stepscope.window import Window
from stepscope.wire.control import encode_flush
from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack, unpack

PATIENCE_SECONDS = 60.0
"""Nothing is measured by it: what takes longer hangs."""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"no {what} after {PATIENCE_SECONDS} s"
        time.sleep(0.02)


def command(path: Path, *options: str) -> list[str]:
    """It stays until it is told to go: on a busy machine tests pause for longer than it would."""
    module = [sys.executable, "-m", "stepscope.cli", "-v", "processor"]
    return [*module, "--socket", str(path), "--no-stacks", *options]


class Daemon:
    """`stepscope processor`."""

    def __init__(self, path: Path, *options: str, **environment: str) -> None:
        self.path = path
        self._options, self._environment = options, environment
        self._log = path.with_suffix(".log")
        self.start()

    def start(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command(self.path, "--flush-seconds", "0.1", *self._options),
                stderr=log, env=env | self._environment,
            )  # fmt: skip
        wait_for(self._answers, "processor")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            return line.connect_ex(str(self.path)) == 0

    @property
    def log(self) -> str:
        return self._log.read_text()

    def log_of(self, word: str) -> list[str]:
        return [line for line in self.log.splitlines() if word in line]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def connect(self, *packets: bytes) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(str(self.path))
        line.settimeout(PATIENCE_SECONDS)
        for packet in packets:
            line.send(packet)
        return line

    def flush(self, job: str, *, finish: bool = False) -> Any:
        """Asks as `stepscope run` does, and gives the answer."""
        request = pack(PacketKind.CONTROL, encode_flush(job, finish=finish), os.getpid(), 0)
        with self.connect(request) as line:
            header, payload = unpack(line.recv(MAX_PACKET_BYTES))
        assert header.kind == PacketKind.CONTROL
        return json.loads(bytes(payload))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


def read(folder: Path) -> Window:
    """The job as it lies there; empty where there is nothing yet."""
    try:
        return JobReader(str(folder)).refresh()
    except SourceError:
        return Window(Job("", 0))


def ints(folder: Path, table: str, column: str) -> list[int]:
    rows = read(folder).table(table)
    return [] if rows is None else [int(value) for value in rows.ints(column)]


def strings(folder: Path, table: str, column: str) -> list[str | None]:
    rows = read(folder).table(table)
    if rows is None:
        return []
    texts = rows.strings(column)
    return [texts[row] for row in range(len(texts))]

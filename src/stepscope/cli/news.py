"""Hearing from this host's processor whenever it has stored something of a job."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path

from stepscope.wire.control import encode_follow
from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""A processor that is gone is started again by `stepscope run`, which looks every two seconds."""


class News:
    """A connection that comes back by itself. Only that something was said counts: it says that a
    look at the job's folder is worth it."""

    def __init__(self, path: Path, job: str) -> None:
        """`path` is the processor's socket."""
        self._path = path
        self._job = job
        self._line: socket.socket | None = None
        self._retry_at = 0.0

    @property
    def descriptor(self) -> int | None:
        """Readable when there are news; None while there is no processor."""
        if self._line is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._line = self._connected()
        return None if self._line is None else self._line.fileno()

    def heard(self) -> bool:
        """Whether something was stored since the last question."""
        heard = False
        while self._line is not None:
            try:
                said = self._line.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                break
            except OSError:
                said = b""
            if said:
                heard = True
            else:
                self.close()
        return heard

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connected(self) -> socket.socket | None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.setblocking(False)
            line.connect(str(self._path))
            line.send(pack(PacketKind.CONTROL, encode_follow(self._job), os.getpid(), 0))
        except OSError as error:
            logger.debug("no news from %s: %s", self._path, error)
            line.close()
            return None
        return line

"""Notifications from this host's processor that it has stored new rows of a job."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path

from stepscope.cli.request import connect
from stepscope.errors import UsageError
from stepscope.wire.control import encode_follow
from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Until the next attempt to connect. `stepscope run` restarts a processor within two seconds."""


class Notifications:
    """A connection to the processor that reconnects by itself.

    The content of a notification does not matter: any one means that the job's folder has changed.
    """

    def __init__(self, path: Path, job: str) -> None:
        """`path` is the processor's socket."""
        self._path = path
        self._job = job
        self._connection: socket.socket | None = None
        self._retry_at = 0.0

    @property
    def descriptor(self) -> int | None:
        """Readable when a notification waits; None while there is no processor."""
        if self._connection is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._connection = self._connected()
        return None if self._connection is None else self._connection.fileno()

    def received(self) -> bool:
        """Whether a notification has arrived since the last call."""
        received = False
        while self._connection is not None:
            try:
                packet = self._connection.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if packet:
                received = True
            else:
                self.close()
        return received

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connect(connection, self._path)
            connection.send(pack(PacketKind.CONTROL, encode_follow(self._job), os.getpid(), 0))
        except (OSError, UsageError) as error:
            logger.debug("no notifications from %s: %s", self._path, error)
            connection.close()
            return None
        return connection

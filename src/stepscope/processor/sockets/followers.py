"""Connections that are notified whenever something of a job was stored.

These are live views of `stepscope run`; without notifications they would have to poll files many
times a second for as long as the job runs.
"""

from __future__ import annotations

import logging
import os
import socket

from stepscope.wire.control import encode_stored
from stepscope.wire.frames import PacketKind, pack

logger = logging.getLogger(__name__)


class Followers:
    """Connections by job. `notify` may be called from any thread, the other methods from one."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[socket.socket, ...]] = {}

    def add(self, job: str, line: socket.socket) -> None:
        self._lines[job] = (*self._lines.get(job, ()), line)

    def remove(self, line: socket.socket) -> None:
        """Removes a connection, which need not have followed any job."""
        lines = {job: tuple(one for one in some if one is not line)
                 for job, some in self._lines.items()}  # fmt: skip
        self._lines = {job: some for job, some in lines.items() if some}

    def notify(self, job: str) -> None:
        """Notifies the followers of a job; never waits, as unread notifications suffice."""
        for line in self._lines.get(job, ()):
            try:
                line.send(pack(PacketKind.CONTROL, encode_stored(job), os.getpid(), 0))
            except OSError:
                logger.debug("cannot notify a follower of %s", job)

"""Who is told at once whenever something of a job was stored: the live view of `stepscope run`.

It would have to look at files many times a second otherwise, for as long as the job lives.
"""

from __future__ import annotations

import logging
import os
import socket

from stepscope.wire.control import encode_stored
from stepscope.wire.frames import PacketKind, pack

logger = logging.getLogger(__name__)


class Followers:
    """Connections by job. `tell` may be called from another thread than the others."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[socket.socket, ...]] = {}

    def add(self, job: str, line: socket.socket) -> None:
        self._lines[job] = (*self._lines.get(job, ()), line)

    def remove(self, line: socket.socket) -> None:
        """Of a connection that never followed any job, too."""
        lines = {job: tuple(one for one in some if one is not line)
                 for job, some in self._lines.items()}  # fmt: skip
        self._lines = {job: some for job, some in lines.items() if some}

    def notify(self, job: str) -> None:
        """Never waits: who has not read what was said before knows enough."""
        for line in self._lines.get(job, ()):
            try:
                line.send(pack(PacketKind.CONTROL, encode_stored(job), os.getpid(), 0))
            except OSError:
                logger.debug("a follower of %s does not listen", job)

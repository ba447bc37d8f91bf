"""The socket that producers connect to: owned by one processor, accessible to one user."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from stepscope.errors import UsageError
from stepscope.processor.sockets.private import make_private, open_private
from stepscope.wire.files import identity

BACKLOG = 256
"""Pending connections; a producer that finds the queue full tries again in a second."""
LONGEST_SOCKET_PATH = 100
"""sun_path holds 108 bytes; the rest is for the suffix of the lock file."""


class AlreadyRunningError(UsageError):
    """Another processor already listens on the socket."""


def take_lock(path: Path) -> IO[str]:
    """Takes the lock file next to the socket and holds it until this process ends.

    Raises:
        AlreadyRunningError: another processor holds it.
        UsageError: the socket cannot be created there.
    """
    if len(str(path).encode()) > LONGEST_SOCKET_PATH:
        raise UsageError(
            f"cannot listen on {path}: a socket's path has at most {LONGEST_SOCKET_PATH} bytes; "
            "try a shorter --socket"
        )
    make_private(path)
    try:
        lock = os.fdopen(open_private(path.with_suffix(".lock"), os.O_RDWR), "w", encoding="ascii")
    except OSError as error:
        raise UsageError(f"cannot listen on {path}: {error.strerror}; try --socket") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AlreadyRunningError(f"a processor already listens on {path}") from error
    return lock


class Listener:
    """The socket with its lock, held until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises what `take_lock` raises."""
        self._path = path
        self._lock = take_lock(path)
        self.socket = _listen(path)
        self._file = identity(path)

    def renew(self) -> bool:
        """Listens again if the socket's file was deleted; True: `socket` is another one now.

        Cleaners of temporary folders delete sockets, and producers that start later would find
        none. Nothing is done where another processor listens in the meantime.

        Raises:
            UsageError: the socket cannot be created again.
        """
        if identity(self._path) is not None:
            return False
        if identity(self._path.with_suffix(".lock")) != identity(self._lock.fileno()):
            before, self._lock = self._lock, take_lock(self._path)
            before.close()
        self.socket.close()
        self.socket = _listen(self._path)
        self._file = identity(self._path)
        return True

    def close(self) -> None:
        """Deletes the socket's file, unless it is another processor's."""
        self.socket.close()
        if identity(self._path) == self._file:
            self._path.unlink(missing_ok=True)
        self._lock.close()


def _listen(path: Path) -> socket.socket:
    """Creates the socket that producers connect to, accessible to its owner only."""
    path.unlink(missing_ok=True)  # left by a processor that was killed; we hold its lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener

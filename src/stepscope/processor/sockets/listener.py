"""The socket that producers connect to: one processor owns it, for one user."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path
from typing import IO

from stepscope.errors import UsageError

BACKLOG = 256
"""Connections that may wait at the door; who finds it full tries again in a second."""
_LONGEST_SOCKET_PATH = 100
"""sun_path holds 108 bytes; the rest is for the lock file's ending."""


class AlreadyRunningError(UsageError):
    """Another processor owns the socket: there is one per host."""


def take_lock(path: Path) -> IO[str]:
    """Takes the lock beside the socket; it is held for as long as this process lives.

    Raises:
        AlreadyRunningError: another processor holds it.
        UsageError: the socket cannot be there.
    """
    if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
        raise UsageError(
            f"cannot listen on {path}: a socket's path has at most {_LONGEST_SOCKET_PATH} bytes; "
            "try a shorter --socket"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w", encoding="ascii")
    except OSError as error:
        raise UsageError(f"cannot listen on {path}: {error.strerror}; try --socket") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AlreadyRunningError(f"a processor already listens on {path}") from error
    return lock


def listen(path: Path) -> socket.socket:
    """Where producers connect; for the owner's processes only."""
    path.unlink(missing_ok=True)  # a predecessor that was killed; we hold its lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener

"""Who is at the other end of a socket: only this user and root are believed.

Another user may have created the socket that a rank connects to, or may have got access to the
processor's. The system knows with which user the peer listened or connected (SO_PEERCRED); the
peer cannot choose it.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("iII")
"""`struct ucred` of Linux: process, user, group."""
_ROOT = 0


def other_user(connection: socket.socket) -> str | None:
    """Which other user is at the other end; None if it is this user or root."""
    _, uid = _peer(connection)
    return None if uid in (os.geteuid(), _ROOT) else f"user {uid}"


def is_running(connection: socket.socket) -> bool:
    """Whether the process at the other end runs; also where this host cannot see it."""
    pid, _ = _peer(connection)
    return pid == 0 or Path(f"/proc/{pid}").exists()


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user that listened or connected; process 0: in another namespace."""
    size = _CREDENTIALS.size
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return pid, uid

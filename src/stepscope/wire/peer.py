"""Who is at the other end of a socket: only this user and root are believed.

Another user may have created the socket that a rank connects to, or may have got access to the
processor's. The system knows with which user the peer listened or connected (SO_PEERCRED); the
peer cannot choose it.
"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")
"""`struct ucred` of Linux: process, user, group."""
_ROOT = 0


def other_user(connection: socket.socket) -> str | None:
    """Which other user is at the other end; None if it is this user or root."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(credentials)[1]
    return None if uid in (os.geteuid(), _ROOT) else f"user {uid}"

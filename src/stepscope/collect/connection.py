"""Connects a training process to the processor of its own user."""

from __future__ import annotations

import socket

from stepscope.collect.descriptors import OwnSocket
from stepscope.collect.guard import say_once
from stepscope.wire.peer import other_user


def connect(path: str, timeout: float) -> OwnSocket:
    """A connection to the processor's socket; with a timeout of 0 it never blocks.

    Raises:
        OSError: no processor listens, or another user does, which is reported once.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
        _check(sock, path)
    except OSError:
        sock.close()
        raise
    return OwnSocket(sock)


def _check(sock: socket.socket, path: str) -> None:
    user = other_user(sock)
    if user is not None:
        say_once(path, f"stepscope: not recorded: {user} listens on {path}, not our processor")
        raise PermissionError(f"{user} listens on {path}")

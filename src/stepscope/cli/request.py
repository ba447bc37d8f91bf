"""Sends a request to this host's processor and waits for the answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack, unpack
from stepscope.wire.peer import other_user


def request(path: Path, payload: bytes, seconds: float) -> memoryview:
    """Sends one CONTROL packet; returns the payload of the answer.

    Args:
        path: the processor's socket.
        payload: of the CONTROL packet.
        seconds: the timeout.

    Raises:
        OSError: no processor listens, or it does not answer in time.
        WireError: the answer is not a valid packet.
        UsageError: another user listens there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(seconds)
        connect(connection, path)
        connection.send(pack(PacketKind.CONTROL, payload, os.getpid(), 0))
        _, answer = unpack(connection.recv(MAX_PACKET_BYTES))
        return answer


def connect(connection: socket.socket, path: Path) -> None:
    """Connects to a processor of this user or of root.

    Raises:
        OSError: no processor listens.
        UsageError: another user listens there.
    """
    connection.connect(str(path))
    user = other_user(connection)
    if user is not None:
        raise UsageError(f"{user} listens on {path}, not our processor; choose another --socket")

"""Sends a request to this host's processor and waits for the answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack, unpack


def request(path: Path, payload: bytes, seconds: float) -> memoryview:
    """Sends one CONTROL packet; returns the payload of the answer.

    Args:
        path: the processor's socket.
        payload: of the CONTROL packet.
        seconds: the timeout.

    Raises:
        OSError: no processor listens, or it does not answer in time.
        WireError: the answer is not a valid packet.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        connection.send(pack(PacketKind.CONTROL, payload, os.getpid(), 0))
        _, answer = unpack(connection.recv(MAX_PACKET_BYTES))
        return answer

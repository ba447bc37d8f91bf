"""A question to this host's processor, and its answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack, unpack


def asked(path: Path, request: bytes, seconds: float) -> memoryview:
    """The payload of the answer to a request, which is itself the payload of a CONTROL packet.

    Args:
        path: the processor's socket.
        seconds: how long it may take.

    Raises:
        OSError: there is no processor, or it does not answer in time.
        WireError: what it says is no packet.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(seconds)
        line.connect(str(path))
        line.send(pack(PacketKind.CONTROL, request, os.getpid(), 0))
        _, answer = unpack(line.recv(MAX_PACKET_BYTES))
        return answer

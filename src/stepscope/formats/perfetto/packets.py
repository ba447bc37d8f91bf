"""Finds the packets of a trace in its bytes: `0A`, a length, and a `TracePacket`."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import FormatError
from stepscope.formats.limits import MOST_PACKET_BYTES
from stepscope.formats.perfetto.messages import Field, fields_of, varint_at
from stepscope.perfetto import fields
from stepscope.perfetto.protobuf import BYTES, LONGEST, VARINT, tag

_TAG = tag(fields.PACKET, BYTES)[0]


@dataclass
class Packet:
    """A packet from byte `start` to `stop`, and what it contains."""

    start: int
    stop: int
    sequence: int = 0
    flags: int = 0
    time: Field | None = None
    event: Field | None = None
    interned: Field | None = None
    descriptor: Field | None = None


class BrokenError(FormatError):
    """Bytes that are no packet, so that the next one cannot be found either."""


def bounds_at(data: bytes, start: int) -> tuple[int, int] | None:
    """Where the message of the packet at `start` begins and ends; None if it is not complete.

    Raises:
        BrokenError: there is no packet.
    """
    if start >= len(data):
        return None
    if data[start] != _TAG:
        raise BrokenError("no packet begins there")
    try:
        size, at = varint_at(data, start + 1, len(data))
    except FormatError:
        if len(data) - start <= LONGEST:
            return None
        raise BrokenError("a packet without a length begins there") from None
    if size > MOST_PACKET_BYTES:
        raise BrokenError(f"a packet of {size} bytes begins there")
    return (at, at + size) if at + size <= len(data) else None


def packet_at(data: bytes, start: int, at: int, stop: int) -> Packet:
    """The packet at `start`, whose message has these bounds.

    Raises:
        FormatError: its contents are damaged.
    """
    packet = Packet(start, stop)
    for one in fields_of(data, at, stop):
        if one.wire_type == VARINT:
            if one.number == fields.TIMESTAMP:
                packet.time = one
            elif one.number == fields.SEQUENCE:
                packet.sequence = one.value
            elif one.number == fields.FLAGS:
                packet.flags = one.value
        elif one.wire_type == BYTES:
            if one.number == fields.TRACK_EVENT:
                packet.event = one
            elif one.number == fields.INTERNED:
                packet.interned = one
            elif one.number == fields.DESCRIPTOR:
                packet.descriptor = one
    return packet

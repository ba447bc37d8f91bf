"""Decodes protobuf messages one field at a time, with the places of values in the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stepscope.errors import FormatError
from stepscope.perfetto.protobuf import BYTES, FIXED64, LONGEST, VARINT

_FIXED32 = 5
_MASK = (1 << 64) - 1
_SIGN = 1 << 63


class Field(NamedTuple):
    """One field: its number and wire type, and its value.

    The value of a message or text is empty; its bytes are those from `at` to `stop`.
    """

    number: int
    wire_type: int
    value: int
    tag_at: int
    at: int
    stop: int


def fields_of(data: bytes, at: int, stop: int) -> Iterator[Field]:
    """The fields of the message in these bytes.

    Raises:
        FormatError: they are no message.
    """
    while at < stop:
        tag_at = at
        tag, at = varint_at(data, at, stop)
        number, wire_type = tag >> 3, tag & 7
        value, end = 0, at
        if wire_type == VARINT:
            value, end = varint_at(data, at, stop)
        elif wire_type == FIXED64:
            end = at + 8
            value = int.from_bytes(data[at:end], "little")
        elif wire_type == BYTES:
            size, at = varint_at(data, at, stop)
            end = at + size
        elif wire_type == _FIXED32:
            end = at + 4
        else:
            raise FormatError(f"no field has the wire type {wire_type}")
        if number == 0 or end > stop:
            raise FormatError("a field ends behind its message" if number else "field number 0")
        yield Field(number, wire_type, value, tag_at, at, end)
        at = end


def varint_at(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The number at a place, and where it ends.

    Raises:
        FormatError: it does not end before `stop`, or is longer than any.
    """
    value = 0
    for place in range(at, min(at + LONGEST, stop)):
        byte = data[place]
        value |= (byte & 0x7F) << 7 * (place - at)
        if byte < 0x80:
            return value & _MASK, place + 1
    raise FormatError("a number without an end")


def signed(value: int) -> int:
    """An int64, which a varint holds as its two's complement."""
    return value - (1 << 64) if value & _SIGN else value


def text_of(data: bytes, field: Field) -> str:
    return data[field.at : field.stop].decode("utf-8", "replace")

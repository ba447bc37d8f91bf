"""A trace file as a stream of batches of events, with what stands before and after them.

A batch ends where the text reads `}, {`. That may be inside an event or a string; but the bytes
from one boundary to the next only decode as an array if both are boundaries between events, so a
wrong guess is noticed, and the bytes are looked at closely (`structure`). Lossy where the file is:
an event that cannot be decoded is counted and left out, a cut-off end is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from stepscope.formats.kineto.events import UNREADABLE, Batch, Decoder, mended
from stepscope.formats.kineto.structure import scan

LONGEST_EVENT_BYTES = 4 << 20
"""No event comes near it; without a limit a file of one string would be held in memory."""
LONGEST_FRAME_BYTES = 16 << 20
"""What stands outside the events: device properties, groups, log lines."""
_GUESSES = 16
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")
_COMMA = re.compile(rb"\s*,?")
_NEXT_EVENT = re.compile(rb"\s*\{")


class Frame(msgspec.Struct):
    """What a trace says outside its events."""

    distributed: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="distributedInfo")
    base_ns: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"0"), name="baseTimeNanoseconds")
    host: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="host_name")


class Document:
    """Iterating over `batches` reads the file once; the rest is known afterwards."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = Decoder()
        self.head, self.tail = b"", b""
        self.found = False
        """Whether there is an array of events at all."""
        self.closed = False
        """Whether that array came to its end."""
        self.oversized = False
        self.unreadable = 0

    def batches(self) -> Iterator[Batch]:
        buffer = self._opened()
        if buffer is None:
            return
        for piece in self._pieces:
            batch, used = self._next(buffer)
            yield batch
            # an event longer than a piece is not looked at again for each piece of it
            enough = 0 if used or self.closed else 2 * len(buffer)
            buffer = self._longer(buffer[used:], piece, enough)
            if self.closed or self._too_long(buffer):
                break
        if not self.closed and not self.oversized:
            batch, used = self._careful(buffer)
            yield batch
            buffer = buffer[used:]
        if self.closed:
            self._close(buffer)

    def frames(self) -> Iterator[Frame]:
        """What stands before and after the events, as far as it is whole."""
        for text in (self.head + b"]}", b'{"traceEvents":[' + self.tail):
            try:
                yield msgspec.json.decode(text, type=Frame)
            except UNREADABLE:
                continue

    def _opened(self) -> bytes | None:
        """Reads up to the first event; returns what was read of the events."""
        buffer = b""
        for piece in self._pieces:
            # what was looked at in vain is not looked at again for each piece
            buffer = self._longer(buffer, piece, 2 * len(buffer))
            start = _array_start(buffer)
            if start is not None:
                self.head, self.found = buffer[:start], True
                return buffer[start:]
            if len(buffer) > LONGEST_FRAME_BYTES:
                break
        return None

    def _longer(self, buffer: bytes, piece: bytes, enough: int) -> bytes:
        """The buffer with the piece, and with further ones until it is long enough."""
        parts, size = [buffer, piece], len(buffer) + len(piece)
        while size < enough and (more := next(self._pieces, None)) is not None:
            parts.append(more)
            size += len(more)
        return b"".join(parts)

    def _too_long(self, buffer: bytes) -> bool:
        self.oversized = len(buffer) > LONGEST_EVENT_BYTES
        return self.oversized

    def _close(self, buffer: bytes) -> None:
        parts, size = [buffer], len(buffer)
        for piece in self._pieces:
            size += len(piece)
            if size > LONGEST_FRAME_BYTES:
                break
            parts.append(piece)
        self.tail = b"".join(parts)

    def _next(self, buffer: bytes) -> tuple[Batch, int]:
        """Whole events at the beginning of the buffer, and how many bytes they took."""
        end = _likely_boundary(buffer)
        if end:
            try:
                array = b"".join((b"[", memoryview(buffer)[:end], b"]"))
                return self._decoder.decode(array), end + 1
            except UNREADABLE:
                pass
        return self._careful(buffer)

    def _careful(self, buffer: bytes) -> tuple[Batch, int]:
        structure = scan(buffer)
        self.closed = structure.closed_at is not None
        ends = structure.ends
        if not ends:
            return [], structure.closed_at or 0
        used = ends[-1] if structure.closed_at is None else structure.closed_at
        used = _COMMA.match(buffer, used).end()  # type: ignore[union-attr]
        for attempt in (buffer[: ends[-1]], mended(buffer[: ends[-1]])):
            try:
                return self._decoder.decode(b"[" + attempt.lstrip(b", \t\r\n") + b"]"), used
            except UNREADABLE:
                continue
        return self._one_by_one(buffer, ends), used

    def _one_by_one(self, buffer: bytes, ends: tuple[int, ...]) -> Batch:
        batch: list[object] = []
        for start, end in zip((0, *ends), ends, strict=False):
            event = buffer[start:end].lstrip(b", \t\r\n")
            try:
                batch += self._decoder.decode(b"[" + mended(event) + b"]")
            except UNREADABLE:
                self.unreadable += 1
        return batch  # type: ignore[return-value]


def _array_start(buffer: bytes) -> int | None:
    """Where the first event begins: `traceEvents` may also occur in a string or deeper inside."""
    bare = _BARE.match(buffer)
    if bare:
        return bare.end()
    for match in islice(_ARRAY.finditer(buffer), _GUESSES):
        try:
            msgspec.json.decode(buffer[: match.end()] + b"]}", type=Frame)
        except UNREADABLE:
            continue
        return match.end()
    return None


def _likely_boundary(buffer: bytes) -> int:
    """Where the last event that is followed by another probably ends; 0 if it is hard to say."""
    end = len(buffer)
    for _ in range(_GUESSES):
        end = buffer.rfind(b"},", 0, end)
        if end < 0:
            break
        if _NEXT_EVENT.match(buffer, end + 2):
            return end + 1
    return 0

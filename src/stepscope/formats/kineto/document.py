"""Reads a trace file in one pass: feeds events to a scanner, and keeps the text around them.

    {"schemaVersion": 1, …, "traceEvents": [{…}, {…}, …], "traceName": …}
    └─ head ──────────────────────────────┘ └─ events ─┘└─ tail ────────┘

Events are parsed in `native/src/event.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from stepscope.formats.kineto.compiled import Scanner, members

LONGEST_FRAME_BYTES = 16 << 20
"""Most bytes around the events: device properties, groups, log lines."""
FRAME = ("distributedInfo", "baseTimeNanoseconds", "host_name", "deviceProperties")
"""The keys read from there."""
_GUESSES = 16
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"\s*\[")


class Document:
    """A file in pieces; `read` consumes them and sets the attributes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.head, self.tail = b"", b""
        self.found = False
        """Whether there is an array of events."""

    def read(self, scanner: Scanner) -> None:
        """Feeds the events to a scanner until it has enough, or the file ends."""
        piece = self._opened()
        while piece is not None and scanner.feed(piece):
            piece = next(self._pieces, None)
        scanner.finish()
        if scanner.closed:
            self._close(scanner.rest())

    def frames(self) -> Iterator[dict[str, bytes]]:
        """The complete JSON values before and after the events, by key."""
        for text in (self.head + b"]}", b'{"traceEvents":[' + self.tail):
            try:
                yield members(text, FRAME)
            except ValueError:
                continue

    def _opened(self) -> bytes | None:
        """Reads up to the first event; returns the first bytes of the events."""
        buffer = b""
        for piece in self._pieces:
            # doubling the buffer avoids searching the same bytes again for each piece
            buffer = self._longer(buffer, piece, 2 * len(buffer))
            start = _array_start(buffer)
            if start is not None:
                self.head, self.found = buffer[:start], True
                return buffer[start:]
            if len(buffer) > LONGEST_FRAME_BYTES:
                break
        return None

    def _longer(self, buffer: bytes, piece: bytes, enough: int) -> bytes:
        """Appends the piece, and further ones until the buffer is long enough."""
        parts, size = [buffer, piece], len(buffer) + len(piece)
        while size < enough and (more := next(self._pieces, None)) is not None:
            parts.append(more)
            size += len(more)
        return b"".join(parts)

    def _close(self, begin: bytes) -> None:
        parts, size = [begin], len(begin)
        for piece in self._pieces:
            size += len(piece)
            if size > LONGEST_FRAME_BYTES:
                break
            parts.append(piece)
        self.tail = b"".join(parts)


def _array_start(buffer: bytes) -> int | None:
    """The position of the first event; `traceEvents` may also occur in strings or nested."""
    bare = _BARE.match(buffer)
    if bare:
        return bare.end()
    for match in islice(_ARRAY.finditer(buffer), _GUESSES):
        try:
            members(buffer[: match.end()] + b"]}", ())
        except ValueError:
            continue
        return match.end()
    return None

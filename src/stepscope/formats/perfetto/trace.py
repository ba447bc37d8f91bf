"""Reads one file: its packets in order, with the strings that each sequence has interned so far."""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import FormatError, SourceError
from stepscope.formats.contents import Advance, Contents, gathered
from stepscope.formats.limits import MOST_RANKS, MOST_STRINGS, MOST_TRACKS
from stepscope.formats.perfetto.gathered import Description, Gathered, Interned
from stepscope.formats.perfetto.messages import Field, fields_of, text_of
from stepscope.formats.perfetto.packets import BrokenError, Packet, bounds_at, packet_at
from stepscope.formats.perfetto.runs import row_of, run_at
from stepscope.perfetto import fields
from stepscope.perfetto.description import MARK
from stepscope.perfetto.protobuf import BYTES, VARINT

_PIECE_BYTES = 1 << 22
"""Enough for runs of many rows."""


def read_file(path: Path, file: int, into: Gathered, advance: Advance) -> list[str]:
    """Adds the rows of a file, whose number is `file`; returns one line per problem.

    Raises:
        SourceError: the file cannot be opened, or there is too much in it.
    """
    reader = _Reader(into, file)
    contents = Contents(path, advance)
    problems: list[str] = []
    data = b""
    try:
        for piece in gathered(contents, _PIECE_BYTES):
            into.count_bytes(len(piece))
            data = data[reader.read(data) :] + piece if data else piece
        left = len(data) - reader.read(data)
        if left and contents.problem is None:
            problems.append(f"its last {left} bytes are no complete packet")
    except BrokenError as error:
        problems.append(f"its contents are damaged: {error}; what follows is left out")
    if contents.problem is not None:
        problems.append(f"{contents.problem}; what was read before is used")
    if reader.unread:
        problems.append(f"{reader.unread} packets that stepscope does not write are left out")
    return problems


class _Reader:
    """Reads the packets of one file."""

    def __init__(self, into: Gathered, file: int) -> None:
        self._into = into
        self._file = file
        self._strings: dict[int, Interned] = {}
        self._held = 0
        """Strings in all of them."""
        self.unread = 0
        """Packets left out because of their contents."""

    def read(self, data: bytes) -> int:
        """Reads all complete packets and slices; returns where the first other one begins.

        Raises:
            BrokenError: there is something else than packets.
            SourceError: there is too much.
        """
        at = 0
        while (bounds := bounds_at(data, at)) is not None:
            try:
                stop = self._packet(data, packet_at(data, at, *bounds))
            except BrokenError:
                raise
            except FormatError:
                self.unread += 1
                stop = bounds[1]
            if stop is None:
                break
            at = stop
        return at

    def _packet(self, data: bytes, packet: Packet) -> int | None:
        """Reads one packet, or the run that begins with it; returns where it ends, or None if more
        data is needed."""
        if packet.flags & fields.STATE_CLEARED:
            self._held -= len(self._strings.pop(packet.sequence, Interned()))
        if packet.interned is not None:
            self._intern(data, packet.interned, self._interned_of(packet.sequence))
        if packet.descriptor is not None:
            self._describe(data, packet.descriptor)
        if packet.event is None:
            return packet.stop
        row = row_of(data, packet)
        if row is None:
            return None
        run = run_at(data, packet.start, row)
        self._into.add(run, self._interned_of(run.sequence), self._file)
        return run.stop

    def _interned_of(self, sequence: int) -> Interned:
        if len(self._strings) > MOST_TRACKS:
            raise SourceError(f"it has more than {MOST_TRACKS} packet sequences")
        return self._strings.setdefault(sequence, Interned())

    def _intern(self, data: bytes, interned: Field, strings: Interned) -> None:
        for entry in fields_of(data, interned.at, interned.stop):
            if entry.wire_type != BYTES:
                continue
            number, text = 0, ""
            for one in fields_of(data, entry.at, entry.stop):
                if one.wire_type == VARINT:
                    number = one.value
                elif one.wire_type == BYTES:
                    text = text_of(data, one)
            if entry.number == fields.ANNOTATION_STRINGS and text.startswith(MARK):
                self._into.describe_job(text.removeprefix(MARK))
                continue
            self._held += strings.add(entry.number, number, text, self._into.texts)
        if self._held > MOST_STRINGS:
            raise SourceError(f"it has more than {MOST_STRINGS} strings at a time")

    def _describe(self, data: bytes, descriptor: Field) -> None:
        uuid, name, parent, pid = 0, "", 0, None
        for one in fields_of(data, descriptor.at, descriptor.stop):
            key = one.number, one.wire_type
            if key == (fields.UUID, VARINT):
                uuid = one.value
            elif key == (fields.NAME, BYTES):
                name = text_of(data, one)
            elif key == (fields.PARENT, VARINT):
                parent = one.value
            elif key == (fields.PROCESS, BYTES):
                name, pid = _process(data, one)
        self._into.describe(uuid, Description(name, parent, pid))


def _process(data: bytes, process: Field) -> tuple[str, int]:
    """The name and the number of a rank.

    Raises:
        FormatError: it is no rank's.
    """
    name, pid = "", -1
    for one in fields_of(data, process.at, process.stop):
        if (one.number, one.wire_type) == (fields.PID, VARINT):
            pid = one.value
        elif (one.number, one.wire_type) == (fields.PROCESS_NAME, BYTES):
            name = text_of(data, one)
    if not 0 <= pid < MOST_RANKS:
        raise FormatError(f"{pid} is no number of a rank")
    return name, pid

"""Encodes slices and counters as Perfetto packets, a block of rows at a time.

A trace is a list of packets, and concatenated traces are a trace. A slice is two packets:

    0A n                            Trace.packet
       40 t t t t t t t t t            timestamp
       50 s..                          trusted_packet_sequence_id, of the process
       68 02                           sequence_flags: needs earlier interned strings
       5A n                            track_event
          48 01                           type: slice begins
          58 u..                          track_uuid
          50 i..                          name_iid
          22 n 08 i.. 20 v..              debug_annotations: name_iid, int_value, and so on
          F9 02 f f f f f f f f           flow_ids
    0A n 40 t t t t t t t t t 50 s.. 68 02 5A n 48 02 58 u..      the end of the slice

and if all slices of a track have zero length, one: type 3, an instant.

Layout: `protos/perfetto/trace` of https://github.com/google/perfetto. trace_processor sorts packets
by time and keeps file order among equal times, so non-overlapping rows in the order of `lanes` keep
their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as member
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from stepscope.perfetto import fields
from stepscope.perfetto.lanes import apart, drawing_order, in_order, lanes
from stepscope.perfetto.protobuf import (
    TIME_WIDTH,
    Pattern,
    encoded,
    field,
    fixed64s,
    varints,
    varints_or_text,
    width_of,
)
from stepscope.perfetto.slices import Counter, Group, Slices, Track
from stepscope.window import NULL, Ints, Strings

UNKNOWN = "not known"
"""Shown for null; `varints_or_text` needs exactly nine characters."""
NAMELESS = "(no name)"
STEP = "step "
"""How names of steps begin."""

_NEEDS_STATE_FIELD = field(fields.FLAGS, fields.NEEDS_STATE)
_TYPE_FIELD = {
    kind: field(fields.TYPE, kind)
    for kind in (fields.BEGIN, fields.END, fields.INSTANT, fields.COUNTER)
}


def clock_packet() -> bytes:
    """Declares times as nanoseconds since 1970, so that Perfetto can show them as dates.

    It is the same in every file: Perfetto would report clocks that run backwards in joined files.
    """
    clocks = [
        field(1, field(1, clock) + field(2, 1)) for clock in (fields.BOOT_TIME, fields.REAL_TIME)
    ]
    body = field(fields.TIMESTAMP, 1) + field(fields.CLOCK_SNAPSHOT, b"".join(clocks))
    return field(fields.PACKET, body + field(fields.SEQUENCE, 1))


@dataclass
class Interned:
    """The interned strings of one kind in a packet sequence, with their numbers."""

    kind: int
    known: dict[str, int] = member(default_factory=dict)
    fresh: list[bytes] = member(default_factory=list)
    _coded: dict[tuple[str, ...], Ints] = member(default_factory=dict)
    """The numbers by code for columns that share their strings, as those of streams do; 0 where not
    used yet."""

    def number(self, text: str) -> int:
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = len(self.known) + 1
            self.fresh.append(field(self.kind, _numbered(found) + _spelt(text)))
        return found

    def numbers(self, column: Strings, null: str) -> Ints:
        """The number of each row's string."""
        codes = column.codes + np.int32(1)
        size = len(column.values) + 1
        numbers = self._coded.setdefault((null, *column.values), np.zeros(size, np.int64))
        used = np.bincount(codes, minlength=size) > 0
        for code in np.flatnonzero(used & (numbers == 0)).tolist():
            numbers[code] = self.number(column.values[code - 1] if code else null)
        found: Ints = numbers[codes]
        return found


@lru_cache(4096)
def _numbered(number: int) -> bytes:
    """The number of a string in an interned entry."""
    return field(1, number)


def _spelt(text: str) -> bytes:
    """The text in an interned entry. Later parts use the same texts; names of steps, which come
    once, would fill the cache for an hour."""
    return field(2, text) if text.startswith(STEP) else _known_text(text)


@lru_cache(2048)
def _known_text(text: str) -> bytes:
    return field(2, text)


class _InternedStrings:
    """All strings interned so far in a packet sequence."""

    def __init__(self) -> None:
        self.names = Interned(fields.EVENT_NAMES)
        self.labels = Interned(fields.ANNOTATION_NAMES)
        self.texts = Interned(fields.ANNOTATION_STRINGS)


class GroupWriter:
    """Writes the packets of one group as its own packet sequence, so that files can be joined.

    A group may be written in parts, each beginning with `head`: later slices that overlap slices of
    earlier parts get another lane.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sequence = field(fields.SEQUENCE, group.sequence)
        self._strings = _InternedStrings()
        self._uuid = _uuid(group.path)
        self._descriptions: dict[int, bytes] = {}
        self._until_ns: dict[str, list[int]] = {}
        self.slices = 0
        """Number of slices written so far."""

    def head(self) -> bytes:
        """Describes the group; packets after it depend on nothing before it."""
        self._strings = _InternedStrings()
        group = self._group
        body = field(fields.UUID, self._uuid)
        if group.pid is None:
            body += field(fields.NAME, group.name)
        else:
            body += field(fields.PROCESS, _process(group))
        body += field(fields.CHILD_ORDERING, fields.EXPLICIT)
        flags = field(fields.FLAGS, fields.STATE_CLEARED)
        return field(fields.PACKET, self._sequence + flags + field(fields.DESCRIPTOR, body))

    def track(self, track: Track) -> Iterator[bytes]:
        """Writes one track, with as many lanes as its slices need."""
        slices = track.slices.drawable()
        if not in_order(slices.start_ns, slices.end_ns):
            slices = slices.take(drawing_order(slices.start_ns, slices.end_ns))
        for number, rows in self._in_lanes(track.name, slices):
            self._take_place(track.name, number, rows)
            yield from self._lane(f"{track.name}/{number}", track.name, rows)

    def _in_lanes(self, name: str, slices: Slices) -> Iterator[tuple[int, Slices]]:
        until_ns = self._until_ns.get(name, ())
        if apart(slices.start_ns, slices.end_ns, until_ns):
            yield 0, slices
            return
        lane = lanes(slices.start_ns, slices.end_ns, until_ns)
        for number in range(int(lane.max()) + 1):
            yield number, slices.take(lane == number)

    def nested(self, track: Track) -> Iterator[bytes]:
        """Writes a track of nested slices, each after the one that contains it."""
        path = f"{track.name}/nested"
        slices = track.slices.after(self._until_ns.get(path, [0])[0])
        self._take_place(path, 0, slices)
        yield from self._lane(path, track.name, slices)

    def _take_place(self, path: str, lane: int, slices: Slices) -> None:
        """Records until when a lane is occupied, for later parts."""
        until_ns = self._until_ns.setdefault(path, [])
        until_ns += [0] * (lane + 1 - len(until_ns))
        until_ns[lane] = max(until_ns[lane], int(slices.end_ns.max(initial=0)))

    def _lane(self, path: str, name: str, slices: Slices) -> Iterator[bytes]:
        if not len(slices):
            return
        uuid = _uuid(f"{self._group.path}/{path}")
        yield self._described(uuid, name)
        packets = self._packets(uuid, slices)
        yield self._interned()
        yield from packets.blocks(len(slices))
        self.slices += len(slices)

    def _packets(self, uuid: int, slices: Slices) -> Pattern:
        """One packet per slice if all have zero length, like launches; else two."""
        if (slices.start_ns == slices.end_ns).all():
            return self._packet(slices.start_ns, self._begin(fields.INSTANT, uuid, slices))
        begin = self._packet(slices.start_ns, self._begin(fields.BEGIN, uuid, slices))
        ended = Pattern.of(_TYPE_FIELD[fields.END] + _of_track(uuid))
        return begin + self._packet(slices.end_ns, ended)

    def counters(self, name: str, counters: Iterable[Counter]) -> Iterator[bytes]:
        """Writes counters below a track of this name, so that they can be collapsed together."""
        parent = _uuid(f"{self._group.path}/{name}/counters")
        for number, counter in enumerate(map(Counter.drawable, counters)):
            if number == 0:
                yield self._described(parent, name)
            uuid = _uuid(f"{self._group.path}/{counter.name}/counter")
            unit = field(fields.UNIT_NAME, counter.unit) if counter.unit else b""
            about = field(fields.COUNTER_TRACK, unit)
            yield self._described(uuid, counter.name, parent, about)
            yield from self._values(uuid, counter)

    def _values(self, uuid: int, counter: Counter) -> Iterator[bytes]:
        event = Pattern.of(_TYPE_FIELD[fields.COUNTER] + _of_track(uuid))
        event += fixed64s(fields.DOUBLE_VALUE, counter.value)
        yield from self._packet(counter.time_ns, event).blocks(counter.time_ns.size)

    def _described(self, uuid: int, name: str, parent: int = 0, more: bytes = b"") -> bytes:
        """Describes a track below another one, or below the group; the same in every part."""
        description = self._descriptions.get(uuid)
        if description is None:
            description = self._descriptions[uuid] = self._description(uuid, name, parent, more)
        return description

    def _description(self, uuid: int, name: str, parent: int, more: bytes) -> bytes:
        place = len(self._descriptions) + 1
        body = field(fields.UUID, uuid) + field(fields.NAME, name)
        body += field(fields.PARENT, parent or self._uuid)
        body += field(fields.CHILD_ORDERING, fields.EXPLICIT)
        body += field(fields.SIBLING_RANK, place) + more
        return field(fields.PACKET, self._sequence + field(fields.DESCRIPTOR, body))

    def _begin(self, kind: int, uuid: int, slices: Slices) -> Pattern:
        event = Pattern.of(_TYPE_FIELD[kind] + _of_track(uuid))
        event += _numbers(fields.NAME_IID, self._strings.names.numbers(slices.names, NAMELESS))
        for label, column in slices.details.items():
            name = Pattern.of(field(fields.ANNOTATION_NAME, self._strings.labels.number(label)))
            event += (name + self._value(column)).within(fields.ANNOTATIONS)
        return event if slices.flow is None else event + fixed64s(fields.FLOWS, slices.flow)

    def _value(self, column: Ints | Strings) -> Pattern:
        if isinstance(column, Strings):
            return _numbers(fields.STRING_IID, self._strings.texts.numbers(column, UNKNOWN))
        lowest = int(column.min())
        if lowest < 0:
            return varints_or_text(fields.INT_VALUE, column, NULL, fields.STRING_VALUE, UNKNOWN)
        return _numbers(fields.INT_VALUE, column)

    def _packet(self, time_ns: Ints, event: Pattern) -> Pattern:
        """One packet per row."""
        head = varints(fields.TIMESTAMP, time_ns, TIME_WIDTH)
        head += self._sequence + _NEEDS_STATE_FIELD
        return (head + event.within(fields.TRACK_EVENT)).within(fields.PACKET)

    def _interned(self) -> bytes:
        """Defines the strings used for the first time in the packets that follow."""
        kinds = (self._strings.names, self._strings.labels, self._strings.texts)
        fresh = b"".join(b"".join(kind.fresh) for kind in kinds)
        for kind in kinds:
            kind.fresh.clear()
        if not fresh:
            return b""
        body = self._sequence + _NEEDS_STATE_FIELD + field(fields.INTERNED, fresh)
        return field(fields.PACKET, body)


def _numbers(number: int, values: Ints) -> Pattern:
    """A field of non-negative numbers, in as many bytes as the largest needs."""
    return varints(number, values, width_of(int(values.max(initial=0))))


def _process(group: Group) -> bytes:
    assert group.pid is not None
    about = field(fields.PID, group.pid) + field(fields.SORT_INDEX, group.order)
    about += field(fields.PROCESS_NAME, group.name)
    return about + b"".join(field(fields.LABELS, label) for label in group.labels)


@lru_cache(4096)
def _of_track(uuid: int) -> bytes:
    """The field with an event's track."""
    return field(fields.TRACK, uuid)


@lru_cache(4096)
def _uuid(path: str) -> int:
    """A stable id of a track, the same in every file; 56 bits suffice for millions of tracks."""
    return int.from_bytes(blake2b(encoded(path), digest_size=7).digest(), "big")

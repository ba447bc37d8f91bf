"""Learns from one event how the packets of a track are laid out: what differs from row to row.

    0A n 40 t t t t t t t t t 50 s.. 68 02 5A n 48 01 58 u.. 50 i.. 22 n 08 i.. 20 v.. F9 02 f…
            └─ timestamp ───┘                                   └┘             └┘         └ flow

Our writer pads numbers so that all packets of a block have equal length. Two packets of a block
differ only in holes: times, numbers of strings, values of details, and flows.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as member

from stepscope.errors import FormatError
from stepscope.formats.limits import MOST_DETAILS
from stepscope.formats.perfetto.messages import Field, fields_of
from stepscope.perfetto import fields
from stepscope.perfetto.packets import UNKNOWN
from stepscope.perfetto.protobuf import BYTES, FIXED64, LONGEST, VARINT, field, tag

NULL_FIELD = field(fields.STRING_VALUE, UNKNOWN)
"""Stands for a null number; as long as the field of a number with `LONGEST` bytes."""
INT_TAG = tag(fields.INT_VALUE, VARINT)


@dataclass(frozen=True)
class Hole:
    """Bytes that differ from row to row, from the row's byte `at` on."""

    at: int
    width: int


@dataclass(frozen=True)
class Detail:
    """One detail of a slice: the number of its label, and where its value is.

    A nullable value is a whole field, which is `NULL_FIELD` if it is null. A text is the number of
    an interned string.
    """

    label: int
    hole: Hole
    is_text: bool = False
    is_nullable: bool = False


@dataclass
class Layout:
    """How one packet of a track event is laid out, and what all packets like it have in common."""

    size: int
    sequence: int = 0
    kind: int = 0
    track: int = 0
    time: Hole | None = None
    name: Hole | None = None
    value: Hole | None = None
    details: list[Detail] = member(default_factory=list)
    ignored: list[Hole] = member(default_factory=list)
    """Holes that are not read: flows."""

    def varints(self) -> list[Hole]:
        """The holes with numbers that are always there."""
        found = [hole for hole in (self.time, self.name) if hole is not None]
        return found + [one.hole for one in self.details if not one.is_nullable]

    def nullables(self) -> list[Hole]:
        return [one.hole for one in self.details if one.is_nullable]

    def eights(self) -> list[Hole]:
        """The holes of eight bytes each."""
        return self.ignored if self.value is None else [self.value, *self.ignored]


def layout_of(data: bytes, start: int, event: Field, size: int) -> Layout:
    """The layout of the packet that begins at `start` and contains this track event.

    Raises:
        FormatError: the event is damaged.
    """
    layout = Layout(size)
    for one in fields_of(data, event.at, event.stop):
        key = one.number, one.wire_type
        if key == (fields.TYPE, VARINT):
            layout.kind = one.value
        elif key == (fields.TRACK, VARINT):
            layout.track = one.value
        elif key == (fields.NAME_IID, VARINT):
            layout.name = _hole(one, start)
        elif key == (fields.DOUBLE_VALUE, FIXED64):
            layout.value = _hole(one, start)
        elif key == (fields.FLOWS, FIXED64):
            layout.ignored.append(_hole(one, start))
        elif key == (fields.ANNOTATIONS, BYTES):
            layout.details += _detail(data, start, one)
        if len(layout.details) + len(layout.ignored) > MOST_DETAILS:
            raise FormatError("more details than any slice has")
    return layout


def _hole(one: Field, start: int) -> Hole:
    return Hole(one.at - start, one.stop - one.at)


def _detail(data: bytes, start: int, annotation: Field) -> list[Detail]:
    """The detail in an annotation; none if its value is of a kind that we do not write."""
    label, value = 0, None
    for one in fields_of(data, annotation.at, annotation.stop):
        if (one.number, one.wire_type) == (fields.ANNOTATION_NAME, VARINT):
            label = one.value
        else:
            value = one
    if value is None:
        return []
    key = value.number, value.wire_type
    if key == (fields.STRING_IID, VARINT):
        return [Detail(label, _hole(value, start), is_text=True)]
    whole = Hole(value.tag_at - start, value.stop - value.tag_at)
    if data[value.tag_at : value.stop] == NULL_FIELD:
        return [Detail(label, whole, is_nullable=True)]
    if key != (fields.INT_VALUE, VARINT):
        return []
    if value.stop - value.at == LONGEST:
        return [Detail(label, whole, is_nullable=True)]
    return [Detail(label, _hole(value, start))]

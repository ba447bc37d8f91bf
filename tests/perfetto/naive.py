"""The packets of slices with Perfetto's own messages, one field at a time: slow, and plain."""

from __future__ import annotations

from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from stepscope.perfetto.packets import NAMELESS, UNKNOWN
from stepscope.perfetto.slices import Slices
from stepscope.window import NULL, Strings


class Names:
    """Numbers of strings, from 1 on, in the order in which they are first named."""

    def __init__(self, into: Any) -> None:
        self._into = into
        self._known: dict[str, int] = {}

    def learn(self, column: Strings, null: str) -> None:
        """What stands in a column: null first, then in the order of its values."""
        for code in sorted(set(column.codes.tolist())):
            self.number(null if code < 0 else column.values[code])

    def number(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self._known) + 1
            entry = self._into.add()
            entry.iid = self._known[text]
            value = text.replace("\0", "?").encode("utf-8", "replace").decode()
            if "name" in entry.DESCRIPTOR.fields_by_name:
                entry.name = value
            else:
                entry.str = value.encode()
        return self._known[text]


def trace_of(slices: Slices, sequence: int, uuid: int) -> Any:
    """What is interned, and a begin and an end for each slice."""
    trace = Trace()
    interned = trace.packet.add()
    interned.trusted_packet_sequence_id = sequence
    interned.sequence_flags = 2
    data = interned.interned_data
    names = Names(data.event_names)
    labels = Names(data.debug_annotation_names)
    texts = Names(data.debug_annotation_string_values)
    names.learn(slices.names, NAMELESS)
    for label, column in slices.details.items():
        labels.number(label)
        if isinstance(column, Strings):
            texts.learn(column, UNKNOWN)
    for at in range(len(slices)):
        event = _event(trace, int(slices.start_ns[at]), sequence, uuid)
        event.type = TrackEvent.TYPE_SLICE_BEGIN
        name = slices.names[at]
        event.name_iid = names.number(NAMELESS if name is None else name)
        for label, column in slices.details.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = labels.number(label)
            if isinstance(column, Strings):
                text = column[at]
                annotation.string_value_iid = texts.number(UNKNOWN if text is None else text)
            elif column[at] == NULL:
                annotation.string_value = UNKNOWN
            else:
                annotation.int_value = int(column[at])
        if slices.flow is not None:
            event.flow_ids.append(int(slices.flow[at]) % 2**64)
        _event(trace, int(slices.end_ns[at]), sequence, uuid).type = TrackEvent.TYPE_SLICE_END
    return trace


def _event(trace: Any, time_ns: int, sequence: int, uuid: int) -> Any:
    packet = trace.packet.add()
    packet.timestamp = time_ns
    packet.trusted_packet_sequence_id = sequence
    packet.sequence_flags = 2
    packet.track_event.track_uuid = uuid
    return packet.track_event

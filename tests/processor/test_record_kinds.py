"""The kinds of records in a packet: the same in C++ and in numpy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import WireError
from stepscope.processor.records import record_kinds
from stepscope.wire.frames import HEADER, MAX_TIME_NS, PacketKind, pack
from stepscope.wire.records import RECORD, RecordKind

native = pytest.importorskip("stepscope._native")
WAYS = (native.record_kinds, record_kinds.kinds_slowly)
numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from(
    [MAX_TIME_NS, -MAX_TIME_NS, MAX_TIME_NS + 1, -MAX_TIME_NS - 1]
)


def packet(*records: tuple[int, ...]) -> bytes:
    payload = b"".join(RECORD.pack(*record) for record in records)
    return pack(PacketKind.RECORDS, payload, 1, 0, len(records))


def a_record(kind: int, *fields: int) -> tuple[int, ...]:
    return (kind, 1, 2, *fields, *[0] * (7 - len(fields)))


@pytest.mark.parametrize("look", WAYS)
def test_kinds_that_are_there(look: Callable[[bytes, int, int], int]) -> None:
    def found(*kinds: int) -> int:
        return look(packet(*(a_record(kind) for kind in kinds)), HEADER.size, MAX_TIME_NS)

    assert found() == 0
    assert found(RecordKind.KERNEL, RecordKind.KERNEL) == record_kinds.KERNELS
    assert found(RecordKind.EVENT, RecordKind.COMM) == record_kinds.EVENTS | record_kinds.COMMS
    assert found(62) == found(63) == found(65535) == 1 << 62


@given(st.lists(st.tuples(st.integers(0, 65535), *[numbers] * 7), max_size=4))
def test_both_ways_agree(records: list[tuple[int, ...]]) -> None:
    data = packet(*(a_record(*record) for record in records))
    fast, slow = (look(data, HEADER.size, MAX_TIME_NS) for look in WAYS)
    assert fast == slow
    beyond = any(abs(number) > MAX_TIME_NS for _, *fields in records for number in fields)
    assert (fast == -1) == beyond


def test_numbers_beyond_any_clock_are_refused() -> None:
    widest = packet(a_record(2, 0, MAX_TIME_NS, -MAX_TIME_NS))
    assert record_kinds.kinds_in(widest) == record_kinds.PHASES
    with pytest.raises(WireError, match="beyond"):
        record_kinds.kinds_in(packet(a_record(2, 0, MAX_TIME_NS + 1)))


def test_records_that_begin_behind_the_packet_are_refused() -> None:
    with pytest.raises(ValueError, match="behind the packet"):
        native.record_kinds(b"short", 6, MAX_TIME_NS)

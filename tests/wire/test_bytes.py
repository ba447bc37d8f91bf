"""The layout is a promise to native producers: these bytes, and no others."""

from __future__ import annotations

from stepscope.wire.frames import (
    MAX_PACKET_BYTES,
    MAX_RECORDS,
    GroupInfo,
    Names,
    PacketKind,
    encode_names,
    pack,
    unpack,
)
from stepscope.wire.records import (
    COMM_OPEN,
    RECORD,
    RECORD_BYTES,
    RecordKind,
    pack_peer,
    unpack_peer,
)


def test_a_packet_header_byte_by_byte() -> None:
    packet = pack(PacketKind.RECORDS, b"", pid=0x1234, packet=7, count=0, dropped=3)

    assert packet.hex(" ", 4) == (
        "53536370 "  # magic: SScp
        "01000300 "  # version 1, kind RECORDS
        "00000000 "  # count
        "03000000 "  # dropped
        "07000000 00000000 "  # packet
        "34120000 00000000"  # pid
    )


def test_a_record_byte_by_byte() -> None:
    record = RECORD.pack(RecordKind.COMM, COMM_OPEN, 5, 2, pack_peer(3, -1), 9, 1024, 77, -1, -1)

    assert record.hex(" ", 8) == (
        "0300010005000000 "  # kind COMM, flags OPEN, ordinal 5
        "0200000000000000 "  # group
        "ffffffff03000000 "  # peer -1, operator 3
        "0900000000000000 "  # seq
        "0004000000000000 "  # bytes
        "4d00000000000000 "  # enqueue
        "ffffffffffffffff "  # end: unknown
        "ffffffffffffffff"  # blocked: unknown
    )
    assert unpack_peer(RECORD.unpack(record)[4]) == (3, -1)


def test_the_largest_packet_is_full_of_records() -> None:
    packet = pack(PacketKind.RECORDS, bytes(MAX_RECORDS * RECORD_BYTES), 1, 0, count=MAX_RECORDS)

    assert MAX_PACKET_BYTES - RECORD_BYTES < len(packet) <= MAX_PACKET_BYTES
    assert unpack(packet)[0].count == MAX_RECORDS


def test_a_drop_counter_beyond_its_field_stays_at_the_most() -> None:
    assert unpack(pack(PacketKind.NAMES, b"", 1, 0, dropped=1 << 40))[0].dropped == 0xFFFFFFFF


def test_ranks_of_a_group_travel_as_runs() -> None:
    group = GroupInfo("dp-1", "dp", (0, 8, 16, 24, 5))

    (payload,) = encode_names(Names({4: "forward-compute"}, (group,), {"dp": 5}))

    assert payload == (
        b'{"names":{"4":"forward-compute"},'
        b'"groups":[{"id":"dp-1","kind":"dp","ranks":[[0,4,8],[5,1,1]]}],'
        b'"parallelism":{"dp":5}}'
    )

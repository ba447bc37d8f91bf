"""What is sent is what arrives, whatever it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from stepscope.wire.frames import (
    MAX_MEMBERS,
    MAX_PAYLOAD_BYTES,
    AtRisk,
    GroupInfo,
    Header,
    Hello,
    Names,
    PacketKind,
    decode_hello,
    decode_names,
    encode_hello,
    encode_names,
    pack,
    records,
    unpack,
)
from stepscope.wire.records import RECORD, RecordKind, pack_peer, unpack_peer

_int64 = st.integers(-(1 << 63), (1 << 63) - 1)
_number = st.integers(0, (1 << 31) - 1)
_time = st.integers(0, 1 << 61)
_text = st.text(st.characters(), max_size=40)
_record = st.tuples(
    st.sampled_from(RecordKind), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), *[_int64] * 7
)
_risk = st.builds(AtRisk, _time, _time, st.dictionaries(_text, _number, max_size=3))
_world = st.integers(0, MAX_MEMBERS)
_hello = st.builds(
    Hello, *[_text] * 3, _number, _world, *[_number] * 3, _time, _time, _number,
    st.none() | _risk, _text,
)  # fmt: skip
_group = st.builds(GroupInfo, _text, _text, st.lists(_number, max_size=30).map(tuple))
_names = st.builds(
    Names,
    st.dictionaries(_number, _text, max_size=5),
    st.lists(_group, max_size=4).map(tuple),
    st.dictionaries(_text, _number, max_size=3),
)


@given(st.lists(_record, max_size=5), _number, _number, _number)
def test_records(rows: list[tuple[int, ...]], pid: int, packet: int, dropped: int) -> None:
    payload = b"".join(RECORD.pack(*row) for row in rows)
    data = pack(PacketKind.RECORDS, payload, pid, packet, count=len(rows), dropped=dropped)

    header, received = unpack(data)

    assert header == Header(PacketKind.RECORDS, len(rows), dropped, packet, pid)
    assert list(records(received)) == rows


@given(_number, st.integers(-(1 << 31), (1 << 31) - 1))
def test_operator_and_peer(op: int, peer: int) -> None:
    assert unpack_peer(pack_peer(op, peer)) == (op, peer)


@given(_hello)
def test_hello(hello: Hello) -> None:
    assert decode_hello(memoryview(encode_hello(hello))) == hello


@given(_names)
def test_names(names: Names) -> None:
    (payload,) = encode_names(names)
    assert decode_names(memoryview(payload)) == names


def _joined(payloads: Iterable[bytes]) -> Names:
    parts = [decode_names(memoryview(payload)) for payload in payloads]
    return Names(
        {id: name for part in parts for id, name in part.names.items()},
        tuple(itertools.chain.from_iterable(part.groups for part in parts)),
        {kind: size for part in parts for kind, size in part.parallelism.items()},
    )


def test_more_names_than_fit_a_packet_travel_in_several() -> None:
    names = Names(
        {id: f"a phase with a long name, number {id}" for id in range(3000)},
        tuple(GroupInfo(f"dp-{g}", "dp", tuple(range(g, 10_000, 7))) for g in range(500)),
        {"dp": 4},
    )

    payloads = encode_names(names)

    assert len(payloads) > 1
    assert all(len(payload) <= MAX_PAYLOAD_BYTES for payload in payloads)
    assert _joined(payloads) == names


def test_the_groups_of_ten_thousand_ranks_fit_one_packet() -> None:
    world = GroupInfo("world-0", "world", tuple(range(10_000)))
    pipeline = GroupInfo("pp-1", "pp", tuple(range(3, 10_000, 64)))

    assert sum(map(len, encode_names(Names(groups=(world, pipeline))))) < 200


def test_a_group_too_irregular_for_a_packet_is_left_out_alone() -> None:
    squares = GroupInfo("odd", "other", tuple(n * n for n in range(20_000)))
    plain = GroupInfo("dp-0", "dp", (0, 1))

    sent = _joined(encode_names(Names({1: "x"}, (plain, squares), {"dp": 2})))

    assert sent == Names({1: "x"}, (plain,), {"dp": 2})
    assert encode_names(Names(groups=(squares,), parallelism={"dp": 2})) == encode_names(
        Names(parallelism={"dp": 2})
    )

"""Malformed packets raise nothing but WireError."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.errors import WireError
from stepscope.wire.frames import (
    HEADER,
    MAGIC,
    VERSION,
    Hello,
    PacketKind,
    decode_hello,
    decode_names,
    encode_hello,
    pack,
    unpack,
)
from stepscope.wire.records import RECORD_BYTES

HELLO = Hello("job", "store", "host", 1, 2, 1, 42, 42, 10, 5)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_header = st.builds(
    HEADER.pack,
    st.sampled_from([MAGIC, 0]),
    st.sampled_from([VERSION, 0, 2]),
    st.integers(0, 6),
    st.integers(0, 0xFFFFFFFF),
    *[st.just(0)] * 3,
)


def _object(**fields: Any) -> memoryview:
    """A JSON payload, `Infinity` and all."""
    return memoryview(json.dumps(fields).encode())


def _hello_but(**fields: Any) -> memoryview:
    return _object(**{**json.loads(encode_hello(HELLO)), **fields})


@given(st.binary(max_size=200) | st.builds(lambda a, b: a + b, _header, st.binary(max_size=200)))
def test_random_bytes(data: bytes) -> None:
    with contextlib.suppress(WireError):
        unpack(data)


@given(st.integers(0, 31))
def test_every_truncation_of_a_header(length: int) -> None:
    with pytest.raises(WireError, match=f"packet of {length} bytes is shorter"):
        unpack(pack(PacketKind.HELLO, encode_hello(HELLO), 1, 0)[:length])


@pytest.mark.parametrize("count", [0, 1, 3, 0xFFFFFFFF])
def test_a_count_that_is_not_the_payloads(count: int) -> None:
    with pytest.raises(WireError, match=f"{count} records announced, 128 payload bytes"):
        unpack(pack(PacketKind.RECORDS, bytes(2 * RECORD_BYTES), 1, 0, count=count))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ((0x20544547, VERSION, 1, 0, 0, 0, 0), "not a stepscope producer"),
        ((MAGIC, 9, 1, 0, 0, 0, 0), "packet version 9, this processor expects 1"),
        ((MAGIC, VERSION, 77, 0, 0, 0, 0), "unknown packet kind 77"),
    ],
)
def test_an_invalid_packet_is_refused_with_a_reason(header: tuple[int, ...], says: str) -> None:
    with pytest.raises(WireError, match=says):
        unpack(HEADER.pack(*header))


@given(st.binary(max_size=100) | _json.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 60_000)
@example(b'{"a":' * 12_000)
@example(b'{"rank": ' + b"9" * 20_000 + b"}")
@example("{}".encode("utf-16"))
@example(b"\xff\xfe\x00")
@example(b'{"names": {"1": "x"}, "groups": null}')
def test_any_payload(payload: bytes) -> None:
    for decode in (decode_hello, decode_names):
        with contextlib.suppress(WireError):
            decode(memoryview(payload))


@given(st.sampled_from(sorted(vars(HELLO))), _json)
def test_any_value_in_any_field_of_a_hello(name: str, value: Any) -> None:
    with contextlib.suppress(WireError):
        decode_hello(_hello_but(**{name: value}))


@given(st.sampled_from(["names", "groups", "parallelism"]), _json)
def test_any_value_in_any_field_of_names(name: str, value: Any) -> None:
    with contextlib.suppress(WireError):
        decode_names(_object(**{name: value}))


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": -1},
        {"rank": 1 << 31},
        {"rank": "1"},
        {"rank": True},
        {"rank": 1.0},
        {"world_size": float("inf")},
        {"wall_ns": 1 << 63},
        {"job": 7},
        {"job": "x" * 5000},
        {"at_risk": []},
        {"at_risk": {"start_ns": 1, "end_ns": 2, "rows": {"steps": 1 << 70}}},
    ],
)
def test_a_hello_that_no_table_could_hold(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="hello packet"):
        decode_hello(_hello_but(**fields))


@pytest.mark.parametrize(
    "ranks",
    [
        [[0, 1 << 40, 1]],
        [[0, 1 << 20, 1]] * 3,
        [[0, 3, -1]],
        [[0, 2, 1 << 31]],
        [[0, 2, 0.5]],
        [[0, 1]],
        [0, 1],
        "01",
    ],
)
def test_a_group_that_no_job_has(ranks: Any) -> None:
    """A few bytes that announce more ranks than memory holds, too."""
    with pytest.raises(WireError, match="names packet"):
        decode_names(_object(groups=[{"id": "a", "kind": "dp", "ranks": ranks}]))


def test_a_hello_lacks_a_field() -> None:
    with pytest.raises(WireError, match=r"KeyError.*'job'"):
        decode_hello(_object(rank=1))

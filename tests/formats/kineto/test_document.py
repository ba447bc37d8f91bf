"""Bytes to events: right wherever pieces end, and for whatever the strings hold."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.formats.kineto.contents import Contents
from stepscope.formats.kineto.document import Document
from stepscope.formats.kineto.structure import scan

from .traces import gpu_events, trace

AWKWARD = st.text(alphabet='ab"\\{}[],: \n\u00e9', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | AWKWARD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(AWKWARD, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.builds(lambda name, args: {"name": name, "ph": "X", "args": {"x": args}},
                            AWKWARD, VALUES), max_size=12)  # fmt: skip


def names(pieces: list[bytes]) -> list[str | None]:
    return [event.name for batch in Document(pieces).batches() for event in batch]


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@given(EVENTS, st.sampled_from([None, 1, "\t"]))
def test_structure_finds_what_a_parser_finds(events: list[Any], indent: Any) -> None:
    text = json.dumps(events, indent=indent, ensure_ascii=False).encode()
    found = scan(text[1:])
    assert found.closed_at == len(text) - 2
    assert len(found.ends) == len(events)
    begin = 0
    for end, event in zip(found.ends, events, strict=True):
        assert json.loads(text[1:][begin:end].lstrip(b", \n\t")) == event
        begin = end


@settings(deadline=None)
@given(EVENTS, st.integers(1, 60), st.sampled_from([None, 2]))
def test_events_are_the_same_wherever_pieces_end(events: Any, size: int, indent: Any) -> None:
    text = json.dumps({"a": "traceEvents", "traceEvents": events, "z": [{}]}, indent=indent)
    assert names(cut(text.encode(), size)) == [event["name"] for event in events]


def test_what_stands_before_and_after_the_events_is_kept() -> None:
    whole = json.dumps(trace(gpu_events(), rank=3)).encode()
    document = Document(cut(whole, 100))
    assert sum(map(len, document.batches())) == len(gpu_events())
    frames = [(bytes(f.distributed), bytes(f.base_ns)) for f in document.frames()]
    assert frames[0][0] == b'{"rank": 3, "world_size": 2}'
    assert frames[1][1] == b"1711964646000000000"


def test_a_bare_list_is_a_trace() -> None:
    assert names([json.dumps(gpu_events(1)).encode()])[0] == "ProfilerStep#5"


def test_numbers_that_are_none_and_bytes_that_are_no_text_spoil_nothing() -> None:
    text = (
        b'[{"name":"a","dur":NaN},{"name":"b\xff","ts":-inf},{"name":"c","dur":[1]},{"name":"d"}]'
    )
    document = Document([text])
    found = [event.name for batch in document.batches() for event in batch]
    assert found == ["a", "b\ufffd", "d"]
    assert document.unreadable == 1


def test_times_beyond_a_float_keep_their_nanoseconds() -> None:
    text = b'[{"ts":1712195495502094.565},{"ts":1712195495502094.566}]'
    events = [event for batch in Document([text]).batches() for event in batch]
    assert [event.ts for event in events] == [
        Decimal("1712195495502094.565"), Decimal("1712195495502094.566")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", [b'[{"a":' + b"[" * 10_000, b"[" * 100_000, b'[{"a":"' + b"x" * 99]
)
def test_nesting_and_strings_without_an_end_are_no_events(text: bytes) -> None:
    assert names([text]) == []


def test_one_endless_event_stops_the_reading() -> None:
    pieces = iter([b'[{"name":"ok"},{"name":"', *[b"x" * (1 << 20)] * 40])
    document = Document(pieces)
    assert [e.name for batch in document.batches() for e in batch] == ["ok"]
    assert document.oversized
    assert len(list(pieces)) > 0


def test_gzip_in_several_members_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    contents = Contents(path)
    assert b"".join(contents) == b"one two"
    assert contents.problem is None


def test_cut_off_gzip_gives_what_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 999)[:-20])
    contents = Contents(path)
    assert len(b"".join(contents)) > 200_000
    assert contents.problem == "its gzip data is cut off"

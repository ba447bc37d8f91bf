"""Bytes to events: right wherever pieces end, and for whatever the strings hold."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope._native import Scanner
from stepscope.formats.contents import Contents
from stepscope.formats.kineto.document import Document
from stepscope.formats.kineto.recording import scanner

from .traces import event, gpu_events, trace

AWKWARD = st.text(alphabet='ab"\\{}[],: \n\u00e9', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | AWKWARD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(AWKWARD, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.builds(lambda name, args: {**event("cpu_op", name, 1, 1), "args": {"x": args}},
                            AWKWARD, VALUES), max_size=12)  # fmt: skip


def read(pieces: Iterable[bytes]) -> tuple[Document, Scanner]:
    document, found = Document(pieces), scanner()
    document.read(found)
    return document, found


def names(pieces: Iterable[bytes]) -> list[str]:
    """The names of the operators, in order."""
    found = read(pieces)[1]
    values = [name.decode("utf-8", "replace") for name in found.names()]
    return [values[at] for at in np.frombuffer(found.take("cpu")["name"], np.int32)]


def operators(*fields: bytes) -> bytes:
    """A list of operators with the fields given."""
    return b"[" + b",".join(b'{"ph":"X","cat":"cpu_op","ts":1,' + one for one in fields) + b"]"


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@settings(deadline=None)
@given(EVENTS, st.integers(1, 60), st.sampled_from([None, 2]))
def test_events_are_the_same_wherever_pieces_end(events: Any, size: int, indent: Any) -> None:
    text = json.dumps({"a": "traceEvents", "traceEvents": events, "z": [{}]}, indent=indent)
    assert names(cut(text.encode(), size)) == [event["name"] for event in events]


def test_what_stands_before_and_after_the_events_is_kept() -> None:
    whole = json.dumps(trace(gpu_events(), rank=3)).encode()
    document, found = read(cut(whole, 100))
    assert found.kept == len(gpu_events())
    before, after = document.frames()
    assert before["distributedInfo"] == b'{"rank": 3, "world_size": 2}'
    assert after["baseTimeNanoseconds"] == b"1711964646000000000"


def test_a_bare_list_is_a_trace() -> None:
    assert "aten::linear" in names([json.dumps(gpu_events(1)).encode()])


def test_numbers_that_are_none_and_bytes_that_are_no_text_spoil_nothing() -> None:
    text = operators(b'"name":"a","dur":NaN}', b'"name":"b\xff","x":-inf}',
                     b'"name":"c","dur":[1]}', b'"name":"d"}')  # fmt: skip
    assert names([text]) == ["a", "b\ufffd", "d"]
    assert read([text])[1].unreadable == 1


@pytest.mark.parametrize(
    "text", [b'[{"a":' + b"[" * 10_000, b"[" * 100_000, b'[{"a":"' + b"x" * 99]
)
def test_nesting_and_strings_without_an_end_are_no_events(text: bytes) -> None:
    assert names([text]) == []


def test_one_endless_event_stops_the_reading() -> None:
    begin = operators(b'"name":"ok"}')[:-1] + b',{"name":"'
    pieces = iter([begin, *[b"x" * (1 << 20)] * 40])
    found = read(pieces)[1]
    assert found.kept == 1
    assert found.oversized
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
    assert contents.problem == "its gzip data is truncated"

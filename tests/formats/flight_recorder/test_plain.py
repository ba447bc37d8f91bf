"""The unpickler: plain data is the same as from Python's, and nothing else is accepted."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.errors import FormatError
from stepscope.formats.flight_recorder.plain import loads

from .recorders import a_job, everyone

LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20)
    | st.floats(allow_nan=False)
)  # fmt: skip
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(-(2**31), 2**31), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(PLAIN, st.integers(1, 5))
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("value", [b"", b"short", b"long" * 100])
def test_bytes_come_back(value: bytes, protocol: int) -> None:
    assert loads(pickle.dumps([value], protocol)) == [value]


def test_the_oldest_protocol_too() -> None:
    value = {"a": [1, -2, 2**60, True, None, 1.5, "x"], "b": ((), (1,), (1, 2), (1, 2, 3, 4))}
    assert loads(pickle.dumps(value, 0)) == value


class Runs:
    """Would write a file if anybody believed it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(5))
def test_nothing_is_executed(tmp_path: Any, protocol: int) -> None:
    with pytest.raises(FormatError, match=r"more than plain data \((STACK_)?(GLOBAL|REDUCE)\)"):
        loads(pickle.dumps({"entries": [Runs(str(tmp_path / "ran"))]}, protocol))
    assert not (tmp_path / "ran").exists()


def billion_laughs(times: int) -> bytes:
    """A list of ten references to a list of ten references to ..."""
    data = b"\x80\x02]q\x00"
    for at in range(times):
        data += b"](" + b"h" + bytes([at]) + (b"h" + bytes([at])) * 9 + b"eq" + bytes([at + 1])
    return data + b"."


def nested_keys(times: int) -> bytes:
    """A dict whose key is a tuple of twice a tuple of twice ...: hashing it takes for ever."""
    return b"\x80\x02})" + b"q\x00h\x00\x86q\x00" * times + b"K\x01s."


BOMBS = {
    "shared lists": billion_laughs(100),
    "keys that take long to hash": nested_keys(60),
    "a giant memo index": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a giant memo index in text": b"Np99999999999999999999\n.",
    "a terabyte of text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "a terabyte of bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a giant frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    "a giant integer": b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b".",
    "a giant decimal": b"L" + b"9" * 100_000 + b"L\n.",
    "negative lengths": b"\x80\x02\x8b" + struct.pack("<i", -5) + b".",
    "ten thousand levels": b"]" * 100_000 + b"a" * 99_999 + b".",
    "a list in itself": b"]q\x00h\x00a.",
    "marks": b"(" * 1_000_000 + b".",
    "no end": b"N" * 1_000_000,
    "an empty stack": b"\x80\x02e.",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_take_neither_time_nor_memory(name: str) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for _ in outcome(BOMBS[name]):
        pass
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def outcome(data: bytes) -> Iterator[Any]:
    """What came out, if anything did."""
    try:
        yield loads(data)
    except FormatError as error:
        assert "\n" not in str(error)


def a_dump() -> bytes:
    ranks = a_job(2)
    everyone(ranks, "all_reduce", times=2)
    return pickle.dumps(ranks[0].dump(), 2)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
@example(b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff.")
def test_bytes_of_any_kind(data: bytes) -> None:
    list(outcome(data))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_dump_with_bytes_changed(data: st.DataObject) -> None:
    dump = bytearray(a_dump())
    for _ in range(data.draw(st.integers(1, 5))):
        dump[data.draw(st.integers(0, len(dump) - 1))] = data.draw(st.integers(0, 255))
    list(outcome(bytes(dump[: data.draw(st.integers(0, len(dump)))])))

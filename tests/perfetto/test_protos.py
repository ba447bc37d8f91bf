"""The encoder against Perfetto's own messages, and in C++ against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope._native import rows
from stepscope.perfetto import protobuf
from stepscope.perfetto.packets import GroupWriter
from stepscope.perfetto.protobuf import Hole, write_rows, write_rows_slowly
from stepscope.perfetto.slices import Group, Slices, Track
from stepscope.window import NULL, Ints, Strings

from .test_packets import RANK, T0, ints, tracks

_int64 = st.integers(NULL, -NULL - 1)


def messages(group: Group, track: Track) -> Any:
    """The head, the track, and the rest, by the official protos."""
    pytest.importorskip("perfetto")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    writer = GroupWriter(group)
    data = b"".join([writer.head(), *writer.track(track)])
    return Trace.FromString(data)


@settings(max_examples=40)
@given(tracks())
def test_perfettos_own_messages_are_the_same(drawn: list[Track]) -> None:
    """Slices of one track that do not overlap, in order: they are written as they come."""
    from .naive import trace_of

    for track in drawn:
        some = track.slices.drawable()
        start = T0 + np.arange(len(some)) * 10
        some = Slices(start, start + 7, some.names, some.details, some.flow)
        if not len(some):
            continue
        trace = messages(RANK, Track(track.name, some))
        head, described, *events = trace.packet
        descriptor = described.track_descriptor
        assert (head.track_descriptor.process.pid, head.sequence_flags) == (RANK.pid, 1)
        assert (descriptor.name, descriptor.parent_uuid) == (
            track.name, head.track_descriptor.uuid
        )  # fmt: skip
        assert events == list(trace_of(some, RANK.sequence, descriptor.uuid).packet)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[bytes, int, list[Hole]]:
    """Holes of every width, side by side and apart."""
    count = draw(st.integers(0, 600))
    shared, holes = b"", []
    for _ in range(draw(st.integers(0, 4))):
        shared += draw(st.binary(max_size=5))
        width = draw(st.integers(0, 10))
        few = draw(st.lists(_int64 | st.integers(0, 300), min_size=1, max_size=9))
        values: Ints = np.resize(ints(*few), count)
        holes.append(Hole(len(shared), width, values))
        shared += bytes(width or 8)
    return shared + draw(st.binary(max_size=3)), count, holes


@given(patterns())
def test_rows_in_cpp_are_those_of_numpy(drawn: tuple[bytes, int, list[Hole]]) -> None:
    assert vars(protobuf)["native_rows"] is rows
    assert write_rows(*drawn) == write_rows_slowly(*drawn)


def test_without_cpp_traces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Strings.of(["gemm", None, "flash"])
    details: dict[str, Ints | Strings] = {"bytes": ints(1, NULL, 3)}
    track = Track("stream 7", Slices(ints(1, 5, 9), ints(2, 6, 12), names, details, ints(1, 1, 2)))

    def written() -> bytes:
        return b"".join(GroupWriter(RANK).track(track))

    compiled = written()
    monkeypatch.setattr(protobuf, "native_rows", None)
    assert written() == compiled


@pytest.mark.parametrize(
    ("shared", "count", "holes"),
    [
        (b"abc", 1, ((0, 4, bytes(8)),)),
        (b"abcdefgh", 1, ((1, 0, bytes(8)),)),
        (b"abc", 2, ((0, 1, bytes(8)),)),
        (b"abc", 1, ((-1, 1, bytes(8)),)),
        (b"abc", 1, ((0, 11, bytes(8)),)),
        (b"abc", -1, ()),
    ],
)
def test_holes_that_do_not_fit_are_refused(shared: bytes, count: int, holes: Any) -> None:
    with pytest.raises(ValueError, match=r"hole|columns|rows"):
        rows(shared, count, holes)

"""The bytes of a trace, and that Perfetto's engine reads back what was written."""

from __future__ import annotations

from collections import Counter as Bag
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.perfetto.lanes import drawing_order, lanes
from stepscope.perfetto.packets import NAMELESS, UNKNOWN, GroupWriter, clock_packet
from stepscope.perfetto.protobuf import field, varint, varints
from stepscope.perfetto.slices import LATEST_NS, Counter, Group, Slices, Track
from stepscope.window import NULL, Ints, Strings

if TYPE_CHECKING:
    from tests.perfetto.engine import TraceProcessor

T0 = 1_766_000_000_000_000_000
RANK = Group("rank 3", "rank 3 · host-000", 5, pid=3, order=3)
AWKWARD = [NULL, -1, 0, LATEST_NS, np.iinfo(np.int64).max, T0]

# the engine lives for the session: each example loads a trace of its own into it
ENGINE = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def slices(*rows: tuple[int, int, str | None]) -> Slices:
    start, end, names = zip(*rows, strict=True) if rows else ((), (), ())
    return Slices(ints(*start), ints(*end), Strings.of(list(names)))


def written(*tracks: Track, counters: Iterable[Counter] = (), group: Group = RANK) -> bytes:
    writer = GroupWriter(group)
    packets = [writer.head()]
    for track in tracks:
        packets += writer.track(track)
    packets += writer.counters("counters", counters)
    return b"".join(packets)


def test_a_slice_byte_for_byte() -> None:
    writer = GroupWriter(RANK)
    writer.head()
    described, *packets = writer.track(Track("steps", slices((1, 300, "step 0"))))
    uuid = described[described.index(b"steps") - 10 :][:8].hex(" ")
    assert b"".join(packets).hex(" ") == " ".join((
        "0a 12 50 05 68 02 62 0c 12 0a 08 01 12 06 73 74 65 70 20 30",  # 1 is "step 0"
        "0a 1d 40 81 80 80 80 80 80 80 80 00 50 05 68 02 5a 0d 48 01 58", uuid, "50 01",
        "0a 1b 40 ac 82 80 80 80 80 80 80 00 50 05 68 02 5a 0b 48 02 58", uuid,
    ))  # fmt: skip


def test_slices_of_zero_length_are_one_packet() -> None:
    writer = GroupWriter(RANK)
    described, _, packet = writer.track(Track("launches", slices((1, 1, "gemm"))))
    uuid = described[described.index(b"launches") - 10 :][:8].hex(" ")
    head = "0a 1d 40 81 80 80 80 80 80 80 80 00 50 05 68 02 5a 0d 48 03 58"
    assert packet.hex(" ") == f"{head} {uuid} 50 01"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**63 - 1, -1, NULL])
def test_a_padded_varint_is_the_same_number(value: int) -> None:
    [row] = varints(1, ints(value), 10).blocks(1)
    padded = row[1:]
    assert len(padded) == 10
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(padded)) % 2**64 == value % 2**64
    assert varint(value) == bytes([*(b for b in padded[: len(varint(value)) - 1]),
                                   padded[len(varint(value)) - 1] & 0x7F])  # fmt: skip


def test_what_utf8_and_perfetto_cannot_say_is_replaced() -> None:
    assert field(2, "a\0b\ud800") == b"\x12\x04a?b?"


def names() -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(["kernel", "", "汉字 ∑", "a\0b", "\ud800"]) | st.text()


def times(rows: int) -> st.SearchStrategy[Ints]:
    near = st.integers(T0, T0 + 40) | st.sampled_from(AWKWARD)
    return st.lists(near, min_size=rows, max_size=rows).map(lambda items: ints(*items))


@st.composite
def tracks(draw: st.DrawFn) -> list[Track]:
    """Slices that touch, cross, lie in one another, last nothing, or cannot be."""
    made = []
    for number in range(draw(st.integers(0, 3))):
        rows = draw(st.integers(0, 25))
        whole = st.lists(st.integers(NULL, -NULL - 1), min_size=rows, max_size=rows)
        texts = st.lists(names(), min_size=rows, max_size=rows).map(Strings.of)
        details: dict[str, Ints | Strings] = {}
        if draw(st.booleans()):
            details = {"bytes": ints(*draw(whole)), "op": draw(texts)}
        flow = ints(*draw(whole)) if draw(st.booleans()) else None
        row = Slices(draw(times(rows)), draw(times(rows)), draw(texts), details, flow)
        made.append(Track(f"track {number}", row))
    return made


def said(text: str | None, null: str) -> str:
    return null if text is None else text.replace("\0", "?").encode("utf-8", "replace").decode()


def expected(track: Track) -> Iterable[tuple[object, ...]]:
    """One row at a time, without any of the code that writes them."""
    rows = track.slices
    for at in range(len(rows)):
        start, end = int(rows.start_ns[at]), int(rows.end_ns[at])
        if 0 <= start <= end < LATEST_NS:
            name = said(rows.names[at], NAMELESS)
            yield track.name, start, end - start, name, *details_of(rows, at)


def details_of(rows: Slices, at: int) -> Iterable[str]:
    for column in rows.details.values():
        if isinstance(column, Strings):
            yield said(column[at], UNKNOWN)
        else:
            yield UNKNOWN if column[at] == NULL else str(column[at])


def read_back(perfetto: TraceProcessor) -> list[tuple[object, ...]]:
    details: dict[int, dict[str, str]] = {}
    for row in perfetto.query("select arg_set_id, key, display_value from args order by id"):
        details.setdefault(row["arg_set_id"], {})[row["key"]] = row["display_value"]
    rows = perfetto.query(
        "select track.name as track, ts, dur, slice.name as name, slice.arg_set_id as args "
        "from slice join track on track.id = track_id"
    )
    plain = ("track", "ts", "dur", "name")
    return [(*(row[key] for key in plain), *details.get(row["args"], {}).values()) for row in rows]


@ENGINE
@given(tracks())
def test_the_engine_reads_back_what_was_written(
    perfetto: TraceProcessor, drawn: list[Track]
) -> None:
    perfetto.load(clock_packet() + written(*drawn))
    assert Bag(read_back(perfetto)) == Bag(row for track in drawn for row in expected(track))
    assert perfetto.complaints() == {}


def test_more_rows_than_a_block_holds(perfetto: TraceProcessor) -> None:
    count = 50_000
    start = T0 + np.arange(count) * 10
    names = Strings(np.arange(count, dtype=np.int32) % 300, tuple(map(str, range(300))))
    perfetto.load(written(Track("stream 7", Slices(start, start + 7, names))))
    [row] = perfetto.query("select count(*) as n, sum(dur) as ns, min(ts) as first, "
                           "count(distinct name) as names from slice")  # fmt: skip
    assert row == {"n": count, "ns": 7 * count, "first": T0, "names": 300}


def test_counters_without_what_is_no_number(perfetto: TraceProcessor) -> None:
    values = np.array([1.5, np.nan, -2.0, np.inf, 4.0])
    time = ints(T0, T0 + 1, T0 + 2, T0 + 3, -1)
    perfetto.load(written(counters=[Counter("gpu_power_w", "W", time, values)]))
    rows = perfetto.query("select name, unit, ts, value from counter join counter_track as t "
                          "on t.id = track_id order by ts")  # fmt: skip
    assert [(row["name"], row["unit"], row["ts"] - T0, row["value"]) for row in rows] == [
        ("gpu_power_w", "W", 0, 1.5), ("gpu_power_w", "W", 2, -2.0)
    ]  # fmt: skip


def test_times_are_shown_as_times_of_day(perfetto: TraceProcessor) -> None:
    perfetto.load(clock_packet() + written(Track("steps", slices((T0 + 5, T0 + 9, "step 0")))))
    [row] = perfetto.query("select ts, to_realtime(ts) as wall from slice")
    assert row == {"ts": T0 + 5, "wall": T0 + 5}


def test_files_joined_are_one_trace(perfetto: TraceProcessor) -> None:
    other = Group("rank 4", "rank 4", 6, pid=4)
    early = written(Track("steps", slices((T0, T0 + 5, "step 0"))))
    late = written(Track("steps", slices((T0 + 5, T0 + 9, "step 1"))))
    perfetto.load(early + written(Track("steps", slices((T0, T0 + 5, "zero"))), group=other) + late)
    rows = perfetto.query(
        "select pid, slice.name as name from slice join process_track as t on t.id = track_id "
        "join process using (upid) order by pid, ts"
    )
    assert [(row["pid"], row["name"]) for row in rows] == [
        (3, "step 0"), (3, "step 1"), (4, "zero")
    ]  # fmt: skip


def test_rows_of_one_flow_are_joined_in_the_order_of_their_beginnings(
    perfetto: TraceProcessor,
) -> None:
    rows = slices((T0 + 5, T0 + 9, "last"), (T0, T0 + 9, "first"), (T0 + 2, T0 + 9, "second"))
    flow = ints(-77, -77, -77)
    perfetto.load(written(Track("a", Slices(rows.start_ns, rows.end_ns, rows.names, {}, flow))))
    arrows = perfetto.query(
        "select a.name as source, b.name as target from flow "
        "join slice as a on a.id = slice_out join slice as b on b.id = slice_in order by a.ts"
    )
    assert [tuple(row.values()) for row in arrows] == [("first", "second"), ("second", "last")]


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=40)


@given(spans)
def test_lanes_hold_no_overlap_and_are_as_few_as_can_be(drawn: list[tuple[int, int]]) -> None:
    start = ints(*(first for first, _ in drawn))
    end = start + ints(*(length for _, length in drawn))
    order = drawing_order(start, end)
    lane = lanes(start[order], end[order])
    for number in np.unique(lane):
        mine = order[lane == number]
        assert (start[mine][1:] >= end[mine][:-1]).all()
    deepest = max((int(((start <= t) & (end > t)).sum()) for t in range(42)), default=0)
    assert lane.max(initial=-1) + 1 <= max(deepest, bool(drawn)) + int((start == end).any())

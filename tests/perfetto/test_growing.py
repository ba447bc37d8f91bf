"""Traces that grow while a job runs, read back by Perfetto's engine."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from obstore.store import MemoryStore

from stepscope.errors import StoreError
from stepscope.perfetto.members import packed
from stepscope.processor.folders import traces
from stepscope.processor.folders.traces import LATE_NS, WINDOW_NS, JobTraces
from stepscope.processor.records.normalise import Rows
from stepscope.store.buffer import Loss
from stepscope.store.location import Location
from stepscope.store.traces import TraceFiles, whole_members
from stepscope.trace import Host, Job
from stepscope.window import NULL, Strings

from .shown import brief, shown

if TYPE_CHECKING:
    from .engine import TraceProcessor

T0 = 1_766_000_000_000_000_000 // WINDOW_NS * WINDOW_NS
S = 1_000_000_000
JOB = Job("job", 16, (Host("host-0", (3, 4)),))


def kernels(rank: int, *spans: tuple[int, int], name: str = "gemm", launched: int = 5) -> Rows:
    start, took = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    count = len(spans)
    return {
        "rank": np.full(count, rank, np.int32),
        "step": np.zeros(count, np.int64),
        "kernel": Strings(np.zeros(count, np.int32), (name,)),
        "stream": np.full(count, 7),
        "start_ns": T0 + start,
        "duration_ns": took,
        "enqueue_ns": T0 + start - launched,
    }


def phase(rank: int, at: int, took: int, name: str = "optimizer") -> Rows:
    return {"rank": [rank], "step": [0], "phase": [name], "microbatch": [-1],
            "start_ns": [T0 + at], "duration_ns": [took]}  # fmt: skip


class Recorder:
    """A job's traces in a folder, on a made-up clock."""

    def __init__(self, folder: Path, host: str = "host-0") -> None:
        self.folder = folder
        self.traces = JobTraces(TraceFiles(Location.parse(str(folder))), host)
        self.traces.job = JOB

    def tell(self, at_s: float, *rows: Rows, table: str = "kernels") -> None:
        for one in rows:
            self.traces.append(table, one)
        self.traces.flush(T0 + int(at_s * S))

    def files(self, who: str = "rank=3") -> list[Path]:
        return sorted((self.folder / "traces" / who).glob("*.perfetto-trace.gz"))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def members(path: Path) -> list[bytes]:
    """What stands between gzip's headers, each with its own."""
    data = path.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(b"\x1f\x8b\x08", at)]
    cuts = []
    for at in places:
        try:
            gzip.decompress(data[at:])
        except (OSError, EOFError):
            continue
        cuts.append(at)
    return [data[a:b] for a, b in zip(cuts, [*cuts[1:], len(data)], strict=True)]


def test_a_file_grows_member_by_member_and_is_one_trace(
    recorder: Recorder, perfetto: TraceProcessor
) -> None:
    recorder.tell(5, kernels(3, (10, 30), (50, 5)))
    recorder.tell(10, kernels(3, (S, 30), name="flash"), kernels(4, (S, 9)))
    [path] = recorder.files()
    assert len(members(path)) == 2
    rows = shown(perfetto, path.read_bytes(), T0)
    assert brief(rows, "rank", "who", "track", "name", "at", "dur") == [
        (3, "rank 03 · host-0", "launches", "gemm", 5, 0),
        (3, "rank 03 · host-0", "launches", "gemm", 45, 0),
        (3, "rank 03 · host-0", "launches", "flash", S - 5, 0),
        (3, "rank 03 · host-0", "stream 7", "gemm", 10, 30),
        (3, "rank 03 · host-0", "stream 7", "gemm", 50, 5),
        (3, "rank 03 · host-0", "stream 7", "flash", S, 30),
    ]
    assert len(recorder.files("rank=4")) == 1


def test_every_member_is_readable_though_those_before_it_are_gone(
    recorder: Recorder, perfetto: TraceProcessor
) -> None:
    recorder.tell(5, kernels(3, (10, 30)))
    recorder.tell(10, kernels(3, (S, 30)), kernels(3, (2 * S, 30), name="flash"))
    _, last = members(recorder.files()[0])
    rows = shown(perfetto, last, T0)
    assert brief(rows, "rank", "track", "name")[2:] == [
        (3, "stream 7", "gemm"), (3, "stream 7", "flash")
    ]  # fmt: skip


def test_half_a_member_that_a_crash_left_is_cut_off_by_the_next_processor(
    recorder: Recorder, perfetto: TraceProcessor
) -> None:
    recorder.tell(5, kernels(3, (10, 30)))
    recorder.tell(10, kernels(3, *((S + n, 1) for n in range(500))))
    [path] = recorder.files()
    first, last = members(path)
    path.write_bytes(first + last[: len(last) // 2])
    Recorder(recorder.folder).tell(15, kernels(3, (2 * S, 7)))
    assert path.read_bytes() == first
    joined = b"".join(file.read_bytes() for file in recorder.files())
    assert brief(shown(perfetto, joined, T0), "track", "at", "dur")[2:] == [
        ("stream 7", 10, 30), ("stream 7", 2 * S, 7)
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [0, 1, 10, 25])
def test_complete_members_are_found_wherever_a_file_is_truncated(cut: int) -> None:
    member = packed(b"something")
    assert whole_members(member * 2 + member[:cut]) == 2 * len(member)
    assert whole_members(member + b"something else") == len(member)


def test_arrows_lead_from_launches_to_kernels(recorder: Recorder, perfetto: TraceProcessor) -> None:
    recorder.tell(5, kernels(3, (10, 30), (50, 5)), kernels(3, (90, 5), name="flash"))
    perfetto.load(recorder.files()[0].read_bytes())
    arrows = perfetto.query(
        "select a.dur as launch, b.name as name, b.ts - a.ts as queued from flow "
        "join slice as a on a.id = slice_out join slice as b on b.id = slice_in order by b.ts"
    )
    assert brief(arrows, "launch", "name", "queued") == [
        (0, "gemm", 5), (0, "gemm", 5), (0, "flash", 5)
    ]  # fmt: skip


def test_slices_of_two_members_that_overlap_do_not_cross(
    recorder: Recorder, perfetto: TraceProcessor
) -> None:
    recorder.tell(5, phase(3, 0, 2 * S, "backward-compute"), table="phases")
    recorder.tell(10, phase(3, S, 2 * S, "pp-recv"), phase(3, 4 * S, S), table="phases")
    rows = shown(perfetto, recorder.files()[0].read_bytes(), T0)
    assert brief(rows, "track", "name", "at", "dur") == [
        ("Phases", "backward-compute", 0, 2 * S), ("Phases", "pp-recv", S, 2 * S),
        ("Phases", "optimizer", 4 * S, S),
    ]  # fmt: skip


def stacks(*samples: tuple[int, int, str]) -> Rows:
    count = len(samples)
    start, took, frames = zip(*samples, strict=True)
    return {"rank": [3] * count, "thread": ["MainThread"] * count,
            "start_ns": [T0 + at for at in start], "duration_ns": list(took),
            "frames": list(frames), "active": [None] * count, "gil": [None] * count}  # fmt: skip


def test_stacks_and_counters_come_too(recorder: Recorder, perfetto: TraceProcessor) -> None:
    recorder.tell(5, stacks((0, 40, "main;train"), (40, 40, "main;save")), table="stacks")
    recorder.tell(9, stacks((70, 40, "main;save")), table="stacks")
    hardware = {"rank": [3, -1], "host": ["host-0"] * 2, "metric": ["cpu_util", "load1"],
                "ts_ns": [T0 + 5] * 2, "value": [1.5, 4.0]}  # fmt: skip
    recorder.tell(10, hardware, table="hardware")
    rows = shown(perfetto, recorder.files()[0].read_bytes(), T0)
    assert brief(rows, "track", "name", "at", "dur", "depth") == [
        ("stack of MainThread", "main", 0, 80, 0), ("stack of MainThread", "train", 0, 40, 1),
        ("stack of MainThread", "save", 40, 40, 1), ("stack of MainThread", "main", 80, 30, 0),
        ("stack of MainThread", "save", 80, 30, 1),
    ]  # fmt: skip
    [value] = perfetto.query("select value from counter")
    assert value == {"value": 1.5}
    perfetto.load(recorder.files("host=host-0")[0].read_bytes())
    assert perfetto.query("select value from counter") == [{"value": 4.0}]


def test_an_operator_that_did_not_end_lasts_as_long_as_the_job(
    recorder: Recorder, perfetto: TraceProcessor
) -> None:
    outstanding = {"rank": [3], "step": [7], "group": ["tp-0"], "op": ["AllReduce"], "seq": [9],
                   "bytes": [64], "enqueue_ns": [T0 + 5], "start_ns": [T0 + 5],
                   "end_ns": [NULL]}  # fmt: skip
    recorder.traces.outstanding = outstanding
    recorder.tell(5, phase(3, 10, 30), table="phases")
    recorder.traces.close(T0 + 90 * S)  # the processor lives longer than the job
    rows = shown(perfetto, recorder.files()[0].read_bytes(), T0)
    assert brief(rows, "track", "name", "at", "dur") == [
        ("Phases", "optimizer", 10, 30), ("collectives tp-0", "AllReduce (never ended)", 5, 35)
    ]  # fmt: skip


def test_rows_lie_in_the_minute_in_which_they_began(recorder: Recorder) -> None:
    recorder.tell(59, kernels(3, (1, 1)))
    recorder.tell(64, kernels(3, (61 * S, 1)), kernels(3, (59 * S, 1)))
    first, second = recorder.files()
    assert (len(members(first)), len(members(second))) == (2, 1)
    assert first.name < second.name


def test_what_comes_very_late_lies_in_the_oldest_minute_that_is_open(recorder: Recorder) -> None:
    late = 60 + LATE_NS / S + 1
    recorder.tell(late, kernels(3, (1, 1)))
    [path] = recorder.files()
    recorder.tell(late + 1, kernels(3, (61 * S, 1)))
    assert recorder.files() == [path]


def test_what_has_no_room_is_counted_by_rank(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_ROWS", 3)
    recorder.traces.append("kernels", kernels(3, (1, 1), (5, 1)))
    recorder.traces.append("kernels", kernels(4, (2, 1), (9, 1)))
    recorder.traces.append("kernels", kernels(3, (7, 1)))
    assert recorder.traces.take_lost() == {4: Loss(T0 + 2, T0 + 9, 2)}
    assert recorder.traces.take_lost() == {}
    recorder.tell(1, kernels(4, (12, 1)))
    assert recorder.traces.take_lost() == {4: Loss(T0 + 12, T0 + 12, 1)}
    recorder.tell(2, kernels(4, (20, 1)))
    assert recorder.traces.take_lost() == {}


def test_kernels_of_the_future_are_lost_and_no_more(recorder: Recorder) -> None:
    recorder.tell(1, kernels(3, (1, 1), (5, 1 << 60), (10**15, 1)))
    assert recorder.traces.take_lost() == {3: Loss(T0 + 5, T0 + 10**15, 2)}
    assert len(recorder.files()) == 1


def test_a_full_disk_is_logged_once(
    recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "traces").write_text("a file where a folder should be")
    recorder.tell(1, kernels(3, (1, 1)))
    recorder.tell(2, kernels(3, (5, 1)))
    assert recorder.traces.take_lost() == {3: Loss(T0 + 1, T0 + 5, 2)}
    assert [line.levelname for line in caplog.records] == ["WARNING"]


class Bucket:
    """Objects that cannot grow."""

    def __init__(self) -> None:
        self.location = Location("memory://traces", MemoryStore(), "")
        self.now_s = 0.0
        self.files = TraceFiles(self.location, lambda: self.now_s)

    def names(self) -> list[str]:
        return [entry.path for entry in self.location.files()]


def test_a_bucket_gets_one_object_per_rank_and_window_when_that_is_over() -> None:
    bucket = Bucket()
    recorder = JobTraces(bucket.files, "host-0")
    for at in (5, 10):
        recorder.append("kernels", kernels(3, (at * S, 1)))
        recorder.flush(T0 + at * S + S)
    assert bucket.names() == []
    recorder.flush(T0 + WINDOW_NS + LATE_NS)
    [name] = bucket.names()
    assert name.startswith("traces/rank=3/") and name.endswith(".perfetto-trace.gz")
    recorder.append("kernels", kernels(3, (100 * S, 1)))
    recorder.close(T0 + 101 * S)
    assert len(bucket.names()) == 2


def test_a_bucket_that_fails_is_tried_again_and_memory_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket()
    bucket.files.add("traces/a", 1, b"x")

    def refuse(self: Location, path: str, data: bytes) -> None:
        raise StoreError("no")

    with monkeypatch.context() as broken:
        broken.setattr(Location, "put", refuse)
        with pytest.raises(StoreError):
            bucket.files.settle(2)
        bucket.files.settle(2)  # too early for another try
        broken.setattr("stepscope.store.traces.MOST_BYTES", 2)
        with pytest.raises(StoreError, match="too many traces wait"):
            bucket.files.add("traces/a", 1, b"yz")
    bucket.now_s = 31
    bucket.files.settle(2)
    assert bucket.names() == ["traces/a"]
    assert bucket.location.get("traces/a") == b"x"

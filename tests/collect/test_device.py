"""Phases as the device executes them: marks, their pool, capture, and where they lie in time."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field

import pytest

from stepscope.collect import guard
from stepscope.collect.device import marks as marks_module
from stepscope.collect.device.clock import DRIFT, RETRY_NS
from stepscope.collect.device.marks import MISSED, Between, Mark, Marks
from stepscope.collect.hooks import cuda
from stepscope.collect.session import Session
from stepscope.wire.records import ON_DEVICE, UNKNOWN, RecordKind

from .fake_gpu import LATENCY_NS, FakeGpu, FakeStream
from .listener import Heard, Listener

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass
class Bench:
    """Marks on a GPU that is not there, and what they tell."""

    gpu: FakeGpu = field(default_factory=FakeGpu)
    told: list[tuple[int, int]] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    lost: int = 0

    def __post_init__(self) -> None:
        self.marks = Marks(self.gpu, self._lose, self.errors.append, self.gpu.now)

    def _lose(self) -> None:
        self.lost += 1

    def mark(self) -> Mark:
        mark = self.marks.set()
        assert isinstance(mark, Mark)
        return mark

    def phase(self, work_ns: int) -> tuple[int, int]:
        """The host hands over work of this length; gives when the device will have done it."""
        start_ns, start = self.gpu.now_ns, self.mark()
        begins_ns = max(self.gpu.current.busy_until_ns, start_ns + LATENCY_NS)
        self.gpu.current.launch(work_ns)
        self.marks.add(Between(start, self.mark(), start_ns, self._tell))
        return begins_ns, self.gpu.current.busy_until_ns

    def _tell(self, start_ns: int, duration_ns: int, _wait_ns: int | None) -> None:
        self.told.append((start_ns, duration_ns))

    def later(self, ns: int) -> None:
        self.gpu.now_ns += ns
        self.marks.settle()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_phase_is_as_long_as_the_device_took_and_lies_when_it_did(bench: Bench) -> None:
    begins_ns, ends_ns = bench.phase(40 * MS)
    bench.later(60 * MS)
    ((start_ns, duration_ns),) = bench.told

    assert duration_ns == pytest.approx(ends_ns - begins_ns, abs=10_000)
    assert abs(start_ns - begins_ns) <= max(bench.errors)
    assert max(bench.errors) < 20_000, "an idle stream of ours answers in some microseconds"


def test_a_device_that_lags_behind_is_not_waited_for(bench: Bench) -> None:
    bench.phase(500 * MS)
    bench.phase(500 * MS)
    for _ in range(4):
        bench.later(100 * MS)
    assert bench.told == [], "the host is at 0.4 s, the device still in the first phase"
    bench.later(200 * MS)
    assert len(bench.told) == 1
    bench.later(SECOND)
    assert [round(duration / MS) for _, duration in bench.told] == [500, 500]
    assert bench.told[1][0] - bench.told[0][0] == pytest.approx(500 * MS, abs=20_000)


def test_events_are_reused(bench: Bench) -> None:
    for _ in range(200):
        bench.phase(MS)
        bench.later(5 * MS)
    assert len(bench.told) == 200
    assert len(bench.gpu.events) < 10 and bench.gpu.recorded >= 400


def test_an_event_is_not_reused_while_a_phase_still_needs_it(bench: Bench) -> None:
    shared = bench.mark()
    bench.gpu.current.launch(10 * MS)
    middle = bench.mark()
    bench.marks.add(Between(shared, middle, 0, lambda *_: None))
    event = middle.event
    del shared, middle
    others = [bench.mark().event for _ in range(5)]
    assert all(other is not event for other in others)


def test_steps_of_many_microbatches_lose_nothing(bench: Bench) -> None:
    for _ in range(30):
        for _ in range(200):
            bench.phase(MS // 10)
        bench.later(50 * MS)
    for _ in range(20):
        bench.later(MS)
    assert len(bench.told) == 30 * 200
    assert len(bench.gpu.events) < marks_module.MOST_EVENTS


def test_without_optimizer_steps_marks_come_back_too(bench: Bench) -> None:
    for _ in range(3000):
        bench.phase(MS // 10)
        bench.gpu.now_ns += MS
    assert len(bench.told) > 2000


def test_an_empty_pool_costs_marks_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks_module, "MOST_EVENTS", 4)
    bench.gpu.current.launch(SECOND)
    kept = [bench.mark() for _ in range(4)]
    assert bench.marks.set() is MISSED
    kept.pop()
    gc.collect()
    assert isinstance(bench.marks.set(), Mark)


def test_nothing_is_touched_while_a_graph_is_captured(bench: Bench) -> None:
    bench.phase(MS)
    bench.marks.capture_begins()
    bench.gpu.capturing = True
    assert bench.marks.set() is MISSED
    bench.later(10 * MS)
    bench.gpu.capturing = False
    bench.marks.capture_ended()
    assert bench.told == []
    bench.later(0)
    assert len(bench.told) == 1


def test_a_capture_of_the_current_stream_that_nobody_announced_is_seen(bench: Bench) -> None:
    bench.phase(MS)
    bench.gpu.off_limits = bench.gpu.capturing = True
    assert bench.marks.set() is MISSED
    bench.later(10 * MS)
    assert bench.told == []


def test_where_no_device_is_used_there_are_no_marks(bench: Bench) -> None:
    bench.gpu.in_use = False
    assert bench.marks.set() is None
    bench.later(MS)
    assert bench.gpu.events == []


def test_a_fault_of_cuda_is_told_once_and_we_touch_nothing_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(guard.RAISE_VARIABLE)
    monkeypatch.setattr(guard, "_seen", set())
    bench.phase(MS)

    def broken(_stream: object = None) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench.gpu, "stream", broken)
    assert bench.marks.set() is None and bench.marks.set() is None
    assert capfd.readouterr().err.count("illegal memory access") == 1
    recorded = bench.gpu.recorded
    bench.later(10 * MS)
    bench.marks.finish()
    assert (bench.gpu.recorded, bench.told, bench.lost) == (recorded, [], 1)


def test_what_the_device_never_came_by_is_lost_at_the_end(bench: Bench) -> None:
    bench.phase(MS)
    bench.phase(3600 * SECOND)
    bench.later(10 * MS)
    bench.marks.finish()
    assert (len(bench.told), bench.lost) == (1, 1)


def test_a_device_whose_clock_runs_fast_stays_within_the_stated_error(bench: Bench) -> None:
    """The anchor is renewed every second, so a drift does not add up."""
    bench.gpu.rate = 1 + DRIFT / 2
    truths = []
    for _ in range(300):
        truths.append(bench.phase(50 * MS)[0])
        bench.later(100 * MS)
    starts = [start for start, _ in bench.told]
    worst = max(abs(start - truth) for start, truth in zip(starts, truths, strict=True))
    assert len(starts) == 300 and worst < 20_000 + 1.2 * SECOND * DRIFT
    assert len(bench.errors) >= 25, "30 s, an anchor a second"


def test_with_one_queue_for_all_streams_an_anchor_waits_and_says_so(bench: Bench) -> None:
    bench.gpu.one_queue = True
    bench.gpu.current.launch(50 * MS)
    bench.later(0)
    assert bench.errors == [], "the queue is full: no anchor yet"
    begins_ns, _ = bench.phase(MS)
    bench.later(RETRY_NS)
    (wide,) = bench.errors
    assert wide >= 25 * MS
    ((start_ns, _),) = bench.told
    assert abs(start_ns - begins_ns) <= wide
    bench.later(11 * SECOND)
    assert bench.errors[-1] < 20_000, "idle now"


def test_a_bad_anchor_does_not_replace_a_good_one(bench: Bench) -> None:
    bench.later(0)
    bench.gpu.one_queue = True
    bench.marks._clock._stream = bench.gpu.current
    bench.gpu.current.launch(2 * SECOND)
    bench.later(SECOND + MS)
    bench.later(2 * SECOND)
    assert max(bench.errors) < 20_000, "the late one was a second wide"


def test_marks_go_where_the_work_goes(bench: Bench) -> None:
    """A phase ends in the stream in which it began, whatever is current then."""
    side = FakeStream(bench.gpu)
    bench.gpu.current.launch(30 * MS)
    bench.later(0)
    start_ns = bench.gpu.now_ns
    start = bench.marks.set(side)
    side.launch(5 * MS)
    assert isinstance(start, Mark)
    end = bench.marks.set(start.stream)
    assert isinstance(end, Mark)
    bench.marks.add(Between(start, end, start_ns, bench._tell))
    bench.later(10 * MS)
    ((_, duration_ns),) = bench.told
    assert duration_ns == pytest.approx(5 * MS, abs=10_000)


class Graph:
    """`torch.cuda.CUDAGraph`, as far as we wrap it."""

    fails = False

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def capture_begin(self, pool: object = None) -> object:
        if self.fails:
            raise RuntimeError("no capture")
        self.bench.gpu.capturing = True
        return pool

    def capture_end(self) -> None:
        self.bench.gpu.capturing = False


def test_torchs_captures_announce_themselves(bench: Bench) -> None:
    class Watched(Graph):
        pass

    cuda.watch_captures(Watched, bench.marks)
    graph = Watched(bench)
    assert graph.capture_begin(pool=7) == 7
    assert bench.marks.set() is MISSED
    graph.capture_end()
    assert isinstance(bench.marks.set(), Mark)


def test_a_capture_that_did_not_begin_is_none(bench: Bench) -> None:
    class Failing(Graph):
        fails = True

    cuda.watch_captures(Failing, bench.marks)
    with pytest.raises(RuntimeError, match="no capture"):
        Failing(bench).capture_begin()
    assert isinstance(bench.marks.set(), Mark)


def _step(session: Session, gpu: FakeGpu, ordinal: int) -> list[int]:
    """Forward 20 ms, backward 40 ms, optimizer 5 ms; the host is done at once.

    Gives when the host began them.
    """
    began: list[int] = []
    phases, begun = session.phases, session.now()
    loaded = session.mark()
    session.note(phases.loaded, ordinal, "loader", begun, loaded)
    for work_ms, handler in ((20, None), (40, phases.backward), (5, phases.optimizer)):
        start = session.mark() if handler else loaded
        began.append(start[0])
        gpu.current.launch(work_ms * MS)
        if handler == phases.backward:
            session.shared.calls += 1  # DDP's reducer
            session.note(handler, ordinal, start, session.mark())
        elif handler:
            session.note(handler, ordinal, "optimizer", start, session.mark())
    return began


def _four_phases(heard: Heard) -> bool:
    return len(heard.records(RecordKind.PHASE)) == 4


def test_the_processor_gets_the_devices_times(session: Session, listener: Listener) -> None:
    gpu = FakeGpu(now_ns=time.monotonic_ns())
    session.time_by_device(gpu).settle()
    began = _step(session, gpu, 0)
    heard = listener.accept()
    heard.read_until(lambda heard: len(heard.records(RecordKind.EVENT)) == 2)
    gpu.now_ns += SECOND
    session.stepped()
    records = heard.read_until(_four_phases).records(RecordKind.PHASE)

    assert [r.name for r in records] == [
        "data-load", "forward-compute", "backward-compute", "optimizer",
    ]  # fmt: skip
    assert [r.flags for r in records] == [0, ON_DEVICE, ON_DEVICE, ON_DEVICE]
    assert [round(r.fields[2] / MS) for r in records[1:]] == [20, 40, 5]
    assert [r.fields[3] for r in records] == [0, 0, UNKNOWN, 0], "backward called an operator"
    forward, backward = records[1:3]
    assert backward.fields[1] - forward.fields[1] == pytest.approx(20 * MS, abs=20_000)
    assert [r.fields[6] for r in records[1:]] == began


def test_what_a_device_waits_at_the_end_of_backward_is_waiting(
    session: Session, listener: Listener
) -> None:
    gpu = FakeGpu(now_ns=time.monotonic_ns())
    session.time_by_device(gpu).settle()
    start = session.mark()
    gpu.current.launch(40 * MS)
    session.shared.calls += 1
    (*_, computed) = session.mark()
    gpu.current.launch(25 * MS)  # until the other ranks' gradients are there
    session.note(session.phases.backward, 0, start, session.mark(), computed)
    gpu.now_ns += SECOND
    session.close()
    (backward,) = listener.accept().read_to_the_end().records(RecordKind.PHASE)
    assert [round(backward.fields[at] / MS) for at in (2, 3)] == [65, 25]


def test_a_phase_without_marks_is_counted_as_lost(session: Session, listener: Listener) -> None:
    gpu = FakeGpu(now_ns=time.monotonic_ns())
    session.time_by_device(gpu)
    gpu.off_limits = True
    _step(session, gpu, 0)
    heard = listener.accept().read_until(lambda heard: heard.dropped()["phases"] == 3)
    assert [r.name for r in heard.records(RecordKind.PHASE)] == ["data-load"]


def test_what_is_done_at_the_end_is_still_told(session: Session, listener: Listener) -> None:
    gpu = FakeGpu(now_ns=time.monotonic_ns())
    session.time_by_device(gpu)
    _step(session, gpu, 0)
    gpu.now_ns += SECOND
    session.close()
    heard = listener.accept().read_to_the_end()
    assert [r.name for r in heard.records(RecordKind.PHASE)][1:] == [
        "forward-compute", "backward-compute", "optimizer",
    ]  # fmt: skip

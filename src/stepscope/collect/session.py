"""One training process's recording: moments, names, the ordinal of the step, the connection.

Between two steps the training thread finds every line of ours with cold caches: 5 µs for a Python
function that takes half a microsecond in a loop (measured). So its hooks only note a moment, a
tuple of a handler and what it needs; the sender's thread runs the handlers of a whole batch.

Nothing happens until the first event: launchers, compilers and data-loader workers inherit our
environment, import torch, and never iterate a loader, step an optimizer or call a collective.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from stepscope.collect import guard, identity
from stepscope.collect.device.gpu import Gpu
from stepscope.collect.device.marks import Between, Marks
from stepscope.collect.phases import Moment, Phases
from stepscope.collect.sender import QUEUE_RECORDS, RecordQueue, Sender, leave_child_alone
from stepscope.collect.shared import Shared
from stepscope.wire.frames import (
    AtRisk,
    GroupInfo,
    Hello,
    Names,
    PacketKind,
    encode_hello,
    encode_names,
)
from stepscope.wire.records import RecordKind

R = TypeVar("R")

_SIGNS_OF_TRAINING = (RecordKind.EVENT, RecordKind.PHASE, RecordKind.COMM)
"""A garbage collection happens in launchers, too."""
COST_SECONDS = 5.0
"""How often our own CPU time is reported."""
MOST_NAMES = 10_000
"""A script that numbers its phases would else fill our memory: the rest share a name."""
LONGEST_NAME = 200
_OTHER = "(other)"


class Session:
    """What the hooks write to. All methods are cheap and safe on any thread."""

    def __init__(self, socket_path: str, who: identity.Identity) -> None:
        self.who = who
        self.shared = Shared()
        self.enabled = True
        # one pair for the whole life: a wall clock that is set meanwhile moves nothing
        self._wall_ns, self._mono_ns = time.time_ns(), time.monotonic_ns()
        self.main_thread = threading.main_thread().ident
        self.before_flush: list[Callable[[], None]] = []
        self.before_hello: list[Callable[[], None]] = []
        self.find_rank: Callable[[], tuple[int, int] | None] = lambda: None
        self._queue = RecordQueue()
        self._names: dict[str, int] = {}
        self._ids = itertools.count()
        self._groups: list[GroupInfo] = []
        self._parallelism: dict[str, int] = {}
        self.started = False
        self._lock = threading.RLock()  # a garbage collection may come back to us while we hold it
        self._moments: deque[tuple[Any, ...]] = deque()
        self.marks: Marks | None = None
        """Where phases are timed by the device."""
        self.after_step: list[Callable[[], None]] = []
        """Called on the training thread after each optimizer step; must not raise."""
        self.in_backward = False
        self._closing = False
        self.phases = Phases(self.name, self.record, self._on_device, self._lost_phase)
        self._seen_moments = 0
        self._sender = Sender(
            socket_path, self._queue, self._introduce, self._flushing, self._is_busy
        )
        leave_child_alone(self._in_child)

    # --- moments and records -----------------------------------------------------------------

    def now(self) -> Moment:
        """What a phase of the host needs to know of both its ends, on the thread it runs on."""
        shared = self.shared
        return time.monotonic_ns(), time.thread_time_ns(), shared.blocked_ns, shared.calls, None

    def mark(self, stream: Any = None) -> Moment:
        """The same of a phase that the device works in, with a mark in its stream if it has one."""
        marks, shared = self.marks, self.shared
        place = None
        if marks is not None and threading.get_ident() == self.main_thread:
            place = marks.set(stream)
        return time.monotonic_ns(), time.thread_time_ns(), shared.blocked_ns, shared.calls, place

    def note(self, *moment: Any) -> None:
        """Something of the training happened: a handler, and what it is to be called with soon.

        Moments are handled in the order they were noted in, on the sender's thread.
        """
        if not self.enabled:
            return
        if not self.started:
            self._start()
        if len(self._moments) < QUEUE_RECORDS:
            self._moments.append(moment)
        else:
            self._queue.count_dropped(RecordKind.PHASE)

    def record(self, kind: RecordKind, flags: int, ordinal: int, *fields: int) -> None:
        """Queues one record, padded to seven fields."""
        if self.enabled:
            self._queue.put(kind, flags, ordinal, *fields, *(0,) * (7 - len(fields)))

    def emit(self, kind: RecordKind, flags: int, *fields: int) -> None:
        """Queues a record of the step at hand, once there is a sign of training."""
        if self.enabled and not self.started and kind in _SIGNS_OF_TRAINING:
            self._start()
        if self.started:
            self.record(kind, flags, self.shared.ordinal, *fields)

    def phase(self, name: str, start: Moment, end: Moment) -> None:
        """Notes a finished phase."""
        self.note(self.phases.phase, self.shared.ordinal, name, start, end)

    def name(self, text: str) -> int:
        """The id of a string, told to the processor the first time.

        Takes no lock: a garbage collection that starts in here comes back for a name of its own.
        """
        id = self._names.get(text)
        if id is None:
            text = _short(text) if len(self._names) < MOST_NAMES else _OTHER
            fresh = next(self._ids)
            id = self._names.setdefault(text, fresh)
            if id == fresh:
                self._say(Names({id: text}))
        return id

    def add_group(self, group: GroupInfo) -> None:
        """Tells the processor of a process group, once."""
        with self._lock:
            self._groups = [known for known in self._groups if known.id != group.id] + [group]
        self._say(Names(groups=(group,)))

    def add_parallelism(self, sizes: dict[str, int]) -> None:
        self._parallelism.update(sizes)
        self._say(Names(parallelism=sizes))

    # --- life --------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Recording starts now, if it has not; False in a process that is none of the job's own."""
        if self.enabled and not self.started:
            self._start()
        return self.enabled

    def lost(self, kind: RecordKind, count: int) -> None:
        """So many records never came to be, for want of room."""
        for _ in range(count):
            self._queue.count_dropped(kind)

    def _lost_phase(self) -> None:
        self.lost(RecordKind.PHASE, 1)

    def _on_device(self, phase: Between) -> None:
        if self.marks is not None:
            self.marks.add(phase)

    def time_by_device(self, gpu: Gpu) -> Marks:
        """From now on phases are timed by the device, where the script uses it."""
        self.marks = Marks(gpu, self._lost_phase, self._tell_clock)
        self.after_step.append(self.marks.settle)
        return self.marks

    def _tell_clock(self, error_ns: int) -> None:
        self.count("stepscope_device_clock_error_ns", error_ns)

    def stepped(self) -> None:
        """An optimizer has stepped."""
        self.shared.ordinal += 1
        for task in list(self.after_step):
            task()

    def disable(self) -> None:
        """Stops recording for good, without a word: we are a forked child, or not wanted."""
        self.enabled = False
        self.shared.enabled = 0

    def _in_child(self) -> None:
        self.disable()
        self._sender.abandon()

    def close(self) -> None:
        self._closing = True
        if self.started and self.enabled:
            self._sender.close()

    def _start(self) -> None:
        with self._lock:
            if self.started:
                return
            self.started = True
        owner = os.environ.setdefault(identity.OWNER_VARIABLE, str(os.getpid()))
        if owner != str(os.getpid()):
            self.disable()
            return
        atexit.register(self.close)
        self._sender.start()

    def _is_busy(self) -> bool:
        """Whether something was noted since the last look."""
        seen, self._seen_moments = self._seen_moments, len(self._moments)
        return self._seen_moments > seen

    def _flushing(self) -> None:
        self._handle_moments()
        if self._closing and self.marks is not None:  # the training thread only waits for us now
            self.marks.finish()
        for task in self.before_flush:
            _quietly(task)
        for drop in self._queue.newly_dropped():
            name = self.name(f"dropped.{drop.table}")
            fields = (drop.rows, drop.end_ns, drop.start_ns)
            self._queue.put_always(RecordKind.COUNT, 0, self.shared.ordinal, name, *fields, 0, 0, 0)

    def _handle_moments(self) -> None:
        self._seen_moments = 0
        for _ in range(len(self._moments)):  # those that come meanwhile wait for the next turn
            handler, *arguments = self._moments.popleft()
            try:
                handler(*arguments)
            except Exception as error:  # noqa: BLE001 - the guest's promise
                guard.report(handler.__qualname__, error)

    def count(self, name: str, value: int) -> None:
        """One sample of a counter, for the `hardware` table."""
        self.emit(RecordKind.COUNT, 0, self.name(name), value, time.monotonic_ns())

    @property
    def is_hurried(self) -> bool:
        """Whether a rank has stopped, so that what is in flight is told of early."""
        return self._sender.is_hurried

    def _say(self, names: Names) -> None:
        for payload in encode_names(names):
            self._sender.say(PacketKind.NAMES, payload)

    @property
    def sender_cpu_ns(self) -> int:
        return self._sender.cpu_ns

    def _introduce(self, at_risk: AtRisk | None) -> list[tuple[PacketKind, bytes]]:
        for task in self.before_hello:
            _quietly(task)
        found: tuple[int, int] | None = _quietly(self.find_rank)
        rank, world = found or (self.who.rank, self.who.world_size)
        hello = Hello(
            self.who.job, self.who.store, self.who.host, rank, world, self.who.local_rank,
            os.getpid(), threading.main_thread().native_id or 0,
            self._wall_ns, self._mono_ns, self.who.attempt, at_risk,
        )  # fmt: skip
        names = {id: text for text, id in dict(self._names).items()}
        told = Names(names, tuple(self._groups), dict(self._parallelism))
        packets = [(PacketKind.HELLO, encode_hello(hello))]
        return packets + [(PacketKind.NAMES, payload) for payload in encode_names(told)]


def _quietly(task: Callable[[], R | None]) -> R | None:
    """One task that fails must not keep the others, or the records, from their way."""
    try:
        return task()
    except Exception as error:  # noqa: BLE001 - the guest's promise
        guard.report(task.__qualname__, error)
        return None


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def fault_counter(session: Session) -> Callable[[], None]:
    """A `before_flush` task that reports new internal faults and our own CPU time."""
    told_faults, told_at = 0, 0.0

    def report() -> None:
        nonlocal told_faults, told_at
        if guard.faults.value > told_faults:
            told_faults = guard.faults.value
            session.count("stepscope_internal_faults", told_faults)
        if time.monotonic() - told_at >= COST_SECONDS and session.started:
            session.count("stepscope_sender_cpu_ns", session.sender_cpu_ns)
            told_at = time.monotonic()

    return report

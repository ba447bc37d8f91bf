"""The recording of one training process: moments, names, the current step, and the connection.

Between two steps the training thread finds all our code with cold caches: a Python function that
takes half a microsecond in a loop then takes 5 µs (measured). So hooks only note a moment: a tuple
of a handler and its arguments. The sender's thread runs the handlers of a whole batch.

Nothing happens until the first event. Launchers, compilers and data-loader workers inherit our
environment and import torch, but never iterate a loader, step an optimizer or call a collective.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from stepscope.collect import guard, identity
from stepscope.collect.device.gpu import Gpu
from stepscope.collect.device.marks import Between, Marks
from stepscope.collect.phases import Moment, Phases
from stepscope.collect.sender import QUEUE_RECORDS, RecordQueue, Sender, leave_child_alone
from stepscope.collect.shared import Shared
from stepscope.trace.names import FAULTS
from stepscope.wire.control import Leaving, encode_leaving
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
"""A garbage collection is not among them: launchers have those, too."""
COST_SECONDS = 5.0
"""How often our own CPU time is reported."""
MOST_NAMES = 10_000
"""Limits memory if a script numbers its phases: all further names share one id."""
LONGEST_NAME = 200
LONGEST_ERROR = 500
"""Of an exception's text: gloo says what does not match only after 190 characters of path and
condition."""
_OTHER = "(other)"


class Session:
    """What the hooks record to. All methods are cheap and safe on any thread."""

    def __init__(self, socket_path: str, who: identity.Identity) -> None:
        self.who = who
        self.shared = Shared()
        self.enabled = True
        # one pair for the whole process: setting the wall clock later does not move the times
        self._wall_ns, self._mono_ns = time.time_ns(), time.monotonic_ns()
        self.main_thread = threading.main_thread().ident
        self.shared.training_thread = self.main_thread or 0
        self._stepped_last = self.shared.training_thread
        self.before_flush: list[Callable[[], None]] = []
        self.before_hello: list[Callable[[], None]] = []
        self.before_close: list[Callable[[], None]] = []
        """Called at exit, on the main thread, while packets can still be sent."""
        self.requests: list[Callable[[memoryview], bool]] = []
        """Called on the sender's thread with requests of the processor until one takes it."""
        self.open_since: Callable[[int], int] = lambda _: 0
        """How many operators on CPUs that began since then have not ended as far as is known."""
        self.find_rank: Callable[[], tuple[int, int] | None] = lambda: None
        self._queue = RecordQueue()
        self._names: dict[str, int] = {}
        self._ids = itertools.count()
        self._groups: list[GroupInfo] = []
        self._parallelism: dict[str, int] = {}
        self.started = False
        self._lock = threading.RLock()  # reentrant: a garbage collection may interrupt the holder
        self._moments: deque[tuple[Any, ...]] = deque()
        self.marks: Marks | None = None
        """Set if phases are timed by the device."""
        self.after_step: list[Callable[[], None]] = []
        """Called on the training thread after each optimizer step; must not raise."""
        self.in_backward = False
        self.aborts = False
        """Whether a library is ending the process because of an error of its own."""
        self._closing = False
        self.phases = Phases(self.name, self.record, self._on_device, self._lost_phase)
        self._seen_moments = 0
        self._error: BaseException | None = None
        """What ends the process, known from the moment it closes."""
        self._is_forked = False
        self._socket_path = socket_path
        self._sender = self._new_sender()
        leave_child_alone(self._in_child)

    def _new_sender(self) -> Sender:
        return Sender(
            self._socket_path, self._queue, self._introduce, self._flushing, self._is_busy,
            self._asked,
        )  # fmt: skip

    # --- moments and records -----------------------------------------------------------------

    def now(self) -> Moment:
        """One end of a phase of the host, taken on the thread that runs the phase."""
        shared = self.shared
        return time.monotonic_ns(), time.thread_time_ns(), shared.blocked_ns, shared.calls, None

    def mark(self, stream: Any = None) -> Moment:
        """One end of a phase with device work, with a mark in the stream if there is a device."""
        marks, shared = self.marks, self.shared
        place = None
        if marks is not None and threading.get_ident() == self.training_thread:
            place = marks.set(stream)
        return time.monotonic_ns(), time.thread_time_ns(), shared.blocked_ns, shared.calls, place

    def note(self, *moment: Any) -> None:
        """Notes an event of the training: a handler, and the arguments to call it with later.

        Moments are handled in the order in which they were noted, on the sender's thread.
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
        """Queues a record for the current step, once there is a sign of training."""
        if self.enabled and not self.started and kind in _SIGNS_OF_TRAINING:
            self._start()
        if self.started:
            self.record(kind, flags, self.shared.ordinal, *fields)

    def phase(self, name: str, start: Moment, end: Moment) -> None:
        """Notes a finished phase."""
        self.note(self.phases.phase, self.shared.ordinal, name, start, end)

    def name(self, text: str) -> int:
        """The id of a string, which is sent to the processor the first time.

        Takes no lock: a garbage collection that starts in here needs a name itself.
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
        """Announces a process group to the processor, once."""
        with self._lock:
            self._groups = [known for known in self._groups if known.id != group.id] + [group]
        self._say(Names(groups=(group,)))

    def add_parallelism(self, sizes: dict[str, int]) -> None:
        self._parallelism.update(sizes)
        self._say(Names(parallelism=sizes))

    # --- life --------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Starts recording, if it has not started; False if this process must not record."""
        if self.enabled and not self.started:
            self._start()
        return self.enabled

    def lost(self, kind: RecordKind, count: int) -> None:
        """Counts records that were never made because there was no room."""
        for _ in range(count):
            self._queue.count_dropped(kind)

    def _lost_phase(self) -> None:
        self.lost(RecordKind.PHASE, 1)

    def _on_device(self, phase: Between) -> None:
        if self.marks is not None:
            self.marks.add(phase)

    def time_by_device(self, gpu: Gpu) -> Marks:
        """From now on, phases are timed by the device if the script uses it."""
        self.marks = Marks(gpu, self._lost_phase, self._tell_clock)
        self.after_step.append(self.marks.settle)
        return self.marks

    def _tell_clock(self, error_ns: int) -> None:
        self.count("stepscope_device_clock_error_ns", error_ns)

    @property
    def training_thread(self) -> int:
        """The thread whose phases and waits are measured: the one that steps the optimizer."""
        return self.shared.training_thread

    def _adopt_thread(self) -> None:
        """Some scripts train in a thread of their own: the one that steps twice in a row."""
        thread = threading.get_ident()
        if thread == self._stepped_last:
            self.shared.training_thread = thread
        self._stepped_last = thread

    def stepped(self) -> None:
        """Called when an optimizer has stepped."""
        self.shared.ordinal += 1
        self._adopt_thread()
        for task in list(self.after_step):
            task()

    def disable(self) -> None:
        """Stops recording for good and silently: in a forked child, or if not wanted."""
        self.enabled = False
        self.shared.enabled = 0

    def _in_child(self) -> None:
        """A child that is forked before its parent trains may be a rank: notebooks and launchers
        fork theirs. It records once it belongs to a group of its own; others work for a rank."""
        if self.started or not self.enabled or self._is_rank:
            self.disable()
            self._sender.abandon()
            return
        self._is_forked = True
        self._lock, self._sender = threading.RLock(), self._new_sender()
        self.main_thread = self._stepped_last = threading.get_ident()
        self.shared.training_thread = self.main_thread

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._error = _ending_error()
        if self.started and self.enabled:
            for task in self.before_close:
                _quietly(task)
            self._sender.say(*_goodbye(self._error))
            self._sender.close()

    def _start(self) -> None:
        with self._lock:
            if self.started:
                return
            self.started = True
        if self._is_forked:
            if not self._is_rank:
                self.disable()
                return
            self.who = identity.from_environment()
        owner = os.environ.setdefault(identity.OWNER_VARIABLE, str(os.getpid()))
        if owner != str(os.getpid()):
            self.disable()
            return
        _at_exit(self.close)
        self._sender.start()

    def _is_busy(self) -> bool:
        """Whether anything was noted since the last call."""
        seen, self._seen_moments = self._seen_moments, len(self._moments)
        return self._seen_moments > seen

    def _flushing(self) -> None:
        self._handle_moments()
        if self._closing and self.marks is not None:  # the training thread just waits for us now
            self.marks.finish()
        for task in self.before_flush:
            _quietly(task)
        for drop in self._queue.newly_dropped():
            name = self.name(f"dropped.{drop.table}")
            fields = (drop.rows, drop.end_ns, drop.start_ns)
            self._queue.put_always(RecordKind.COUNT, 0, self.shared.ordinal, name, *fields, 0, 0, 0)

    def _handle_moments(self) -> None:
        self._seen_moments = 0
        for _ in range(len(self._moments)):  # those noted meanwhile wait for the next turn
            handler, *arguments = self._moments.popleft()
            try:
                handler(*arguments)
            except Exception as error:  # noqa: BLE001 - the guest's promise
                guard.report(handler.__qualname__, error)

    def count(self, name: str, value: int) -> None:
        """One sample of a counter, for the `hardware` table."""
        self.emit(RecordKind.COUNT, 0, self.name(name), value, time.monotonic_ns())

    @property
    def is_failing(self) -> bool:
        """Whether an error is ending the process."""
        return self.aborts or self._error is not None

    def abort(self, error: str) -> None:
        """The last message of a process that a library is ending: on the sender's thread."""
        self.aborts = True
        self._sender.say(PacketKind.CONTROL, encode_leaving(Leaving(_short(error, LONGEST_ERROR))))

    @property
    def is_hurried(self) -> bool:
        """Whether a rank has stopped, so that outstanding operators are reported early."""
        return self._sender.is_hurried

    def reply(self, payload: bytes) -> None:
        """Queues a message to the processor; it is lost if the connection is."""
        self._sender.say(PacketKind.CONTROL, payload)

    def _asked(self, payload: memoryview) -> bool:
        return any(take(payload) for take in self.requests)

    def _say(self, names: Names) -> None:
        for payload in encode_names(names):
            self._sender.say(PacketKind.NAMES, payload)

    @property
    def sender_cpu_ns(self) -> int:
        return self._sender.cpu_ns

    @property
    def _is_rank(self) -> bool:
        """Whether torch.distributed is initialised in this process."""
        found: tuple[int, int] | None = _quietly(self.find_rank)
        return found is not None

    def _introduce(self, at_risk: AtRisk | None) -> list[tuple[PacketKind, bytes]]:
        for task in self.before_hello:
            _quietly(task)
        found: tuple[int, int] | None = _quietly(self.find_rank)
        rank, world = found or (self.who.rank, self.who.world_size)
        hello = Hello(
            self.who.job, self.who.store, self.who.host, rank, world, self.who.local_rank,
            os.getpid(), os.getpid(),  # of a forked process `threading` knows its parent's thread
            self._wall_ns, self._mono_ns, self.who.attempt, at_risk,
        )  # fmt: skip
        names = {id: text for text, id in dict(self._names).items()}
        told = Names(names, tuple(self._groups), dict(self._parallelism))
        packets = [(PacketKind.HELLO, encode_hello(hello))]
        packets += [(PacketKind.NAMES, payload) for payload in encode_names(told)]
        return [*packets, _goodbye(self._error)] if self._closing else packets


def _quietly(task: Callable[[], R | None]) -> R | None:
    """Runs one task; if it fails, the other tasks and the records still go on."""
    try:
        return task()
    except Exception as error:  # noqa: BLE001 - the guest's promise
        guard.report(task.__qualname__, error)
        return None


def _goodbye(error: BaseException | None) -> tuple[PacketKind, bytes]:
    """The message that this process ends by itself, and by which exception, if any did."""
    if error is None:
        return PacketKind.CONTROL, encode_leaving(Leaving())
    return PacketKind.CONTROL, encode_leaving(Leaving(_named(error), _frames(error)))


def _at_exit(close: Callable[[], None]) -> None:
    """Children of `multiprocessing` end without `atexit` if they were forked, and forget the
    exception that ends them in any case: it is known while their finalizers run."""
    atexit.register(close)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, close, exitpriority=0)


def _ending_error() -> BaseException | None:
    """The exception that ends the process: Python has printed it, or `multiprocessing` will.

    `torch.multiprocessing` writes it down, and then exits with status 1.
    """
    error: BaseException | None = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return error.__context__ if error.code else None
    return error


def _frames(error: BaseException) -> tuple[str, ...]:
    """Where it was raised, outermost first, in the form of sampled stacks."""
    try:
        walk = traceback.walk_tb(error.__traceback__)
        return tuple(_frame(frame.f_code, line) for frame, line in walk)
    except Exception:  # noqa: BLE001 - the guest's promise
        return ()


def _named(error: BaseException) -> str:
    try:
        return _short(f"{type(error).__name__}: {error}".split("\n", 1)[0], LONGEST_ERROR)
    except Exception:  # noqa: BLE001 - its own __str__ may fail
        return type(error).__name__


def _frame(code: CodeType, line: int) -> str:
    name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
    return f"{name} ({code.co_filename}:{line})"


def _short(text: str, most: int = LONGEST_NAME) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def fault_counter(session: Session) -> Callable[[], None]:
    """A `before_flush` task that reports new internal faults and our own CPU time."""
    reported: dict[str, int] = {}
    told_at = 0.0

    def report() -> None:
        nonlocal told_at
        for where, times in guard.faults.places().items():
            if times > reported.get(where, 0):
                reported[where] = times
                session.count(f"{FAULTS}:{where}", times)
                session.count(FAULTS, sum(reported.values()))
        if time.monotonic() - told_at >= COST_SECONDS and session.started:
            session.count("stepscope_sender_cpu_ns", session.sender_cpu_ns)
            told_at = time.monotonic()

    return report

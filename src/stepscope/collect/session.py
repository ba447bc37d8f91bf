"""One training process's recording: names, phases, the ordinal of the step, the connection.

Nothing happens until the first event: launchers, compilers and data-loader workers inherit our
environment, import torch, and never iterate a loader, step an optimizer or call a collective.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from stepscope.collect import guard, identity
from stepscope.collect.sender import RecordQueue, Sender, leave_child_alone
from stepscope.trace.names import BACKWARD, FORWARD
from stepscope.wire.frames import (
    AtRisk,
    GroupInfo,
    Hello,
    Names,
    PacketKind,
    encode_hello,
    encode_names,
)
from stepscope.wire.records import UNKNOWN, RecordKind

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
        self.ordinal = 0
        self.blocked_ns = 0
        """Host time of the main thread inside waits for communication, ever growing."""
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
        self._forward_from: tuple[int, int, int] | None = None
        self._microbatch = 0
        self._sender = Sender(socket_path, self._queue, self._introduce, self._flushing)
        leave_child_alone(self._in_child)

    # --- records -----------------------------------------------------------------------------

    def emit(self, kind: RecordKind, flags: int, *fields: int) -> None:
        """Queues one record, padded to seven fields."""
        if not self.enabled:
            return
        if not self.started:
            if kind not in _SIGNS_OF_TRAINING:
                return
            self._start()
        self._queue.put(kind, flags, self.ordinal, *fields, *(0,) * (7 - len(fields)))

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

    # --- phases ------------------------------------------------------------------------------

    def now(self) -> tuple[int, int, int]:
        """(time, this thread's CPU time, blocked time): what a phase needs at both ends."""
        return time.monotonic_ns(), time.thread_time_ns(), self.blocked_ns

    def phase(self, name: str, start: tuple[int, int, int], end: tuple[int, int, int],
              microbatch: int = UNKNOWN) -> None:  # fmt: skip
        """One finished phase on the main thread; waiting is what `blocked_ns` grew by."""
        duration, cpu, wait = end[0] - start[0], end[1] - start[1], end[2] - start[2]
        self.emit(
            RecordKind.PHASE, 0, self.name(name), start[0], duration,
            min(max(wait, 0), duration), cpu, microbatch,
        )  # fmt: skip

    def batch_in_hand(self, at: tuple[int, int, int]) -> None:
        """A batch was loaded: forward runs from here until the next backward begins."""
        self._forward_from = at

    def backward_begins(self, at: tuple[int, int, int]) -> None:
        if self._forward_from is not None:
            self.phase(FORWARD, self._forward_from, at, self._microbatch)

    def backward_ends(self, start: tuple[int, int, int], end: tuple[int, int, int]) -> None:
        self.phase(BACKWARD, start, end, self._microbatch)
        self._microbatch += 1
        self._forward_from = end

    def optimizer_stepped(self, at: tuple[int, int, int]) -> None:
        self.ordinal += 1
        self._microbatch = 0
        self._forward_from = at

    # --- life --------------------------------------------------------------------------------

    def disable(self) -> None:
        """Stops recording for good, without a word: we are a forked child, or not wanted."""
        self.enabled = False

    def _in_child(self) -> None:
        self.disable()
        self._sender.abandon()

    def close(self) -> None:
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

    def _flushing(self) -> None:
        for task in self.before_flush:
            _quietly(task)
        for drop in self._queue.newly_dropped():
            name = self.name(f"dropped.{drop.table}")
            fields = (drop.rows, drop.end_ns, drop.start_ns)
            self._queue.put_always(RecordKind.COUNT, 0, self.ordinal, name, *fields, 0, 0, 0)

    def count(self, name: str, value: int) -> None:
        """One sample of a counter, for the `hardware` table."""
        self.emit(RecordKind.COUNT, 0, self.name(name), value, time.monotonic_ns())

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
    return guard.guarded(task)()


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

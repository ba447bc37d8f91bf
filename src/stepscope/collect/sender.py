"""Sends records from a bounded queue to the processor's socket, on its own thread.

The training thread only appends to the queue. If it is full, records are dropped and counted by
table. The sender's thread wakes a few times a second, never blocks on the socket, and reconnects
for as long as the process lives. What it sent just before a connection broke may not have been
stored, so the next hello reports those rows as at risk, and each one after it until a processor
confirms that it has stored that. When a rank has stopped, the processor asks
the others to send sooner ("hurry").
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.collect.connection import connect
from stepscope.collect.descriptors import OwnSocket, Wake
from stepscope.collect.guard import Tally, guarded, report
from stepscope.wire.control import decode_hurry, decode_losses_stored
from stepscope.wire.frames import MAX_PACKET_BYTES, MAX_RECORDS, AtRisk, PacketKind, pack, unpack
from stepscope.wire.records import RECORD, TABLE_OF_KIND, EventKind, RecordKind

QUEUE_RECORDS = 65_536
"""4 MiB of records: enough for minutes of an ordinary job while the processor is away."""
LOOK_SECONDS = 0.1
"""How often the thread wakes: everything that an idle rank knows is sent within this time."""
HURRIED_LOOK_SECONDS = 0.01
"""How often it wakes while another rank has stopped: a rank that waits can afford it."""
FLUSH_SECONDS = 0.5
"""A busy rank waits at least this long: a flush costs as much as the records of three steps."""
RECONNECT_SECONDS = 1.0
AT_RISK_NS = 15_000_000_000
"""Younger rows may be lost if the processor dies: it holds some for 8 s (`KERNEL_DELAY_NS`), stores
at least every 5 s, and may take 2 s to write."""
EXIT_SECONDS = 1.0
_EXIT_TURN_SECONDS = 0.01
# a script may have restored SIGPIPE's default action: a dead processor would then end the training
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


@dataclass(frozen=True)
class Drop:
    """Rows of one table that were dropped in an interval."""

    table: str
    rows: int
    start_ns: int
    end_ns: int


class RecordQueue:
    """A bounded queue, safe with several threads and with a GC callback that interrupts a put."""

    def __init__(self, capacity: int = QUEUE_RECORDS) -> None:
        self._records: deque[bytes] = deque()
        self._capacity = capacity
        self._dropped = {kind: Tally() for kind in RecordKind}
        self._any_dropped = False
        self._reported = dict.fromkeys(RecordKind, 0)
        self._checked_ns = time.monotonic_ns()

    def put(self, kind: int, flags: int, ordinal: int, *fields: int) -> None:
        if len(self._records) >= self._capacity:
            self.count_dropped(RecordKind(kind))
        else:
            self.put_always(kind, flags, ordinal, *fields)

    def count_dropped(self, kind: RecordKind) -> None:
        self._any_dropped = True
        self._dropped[kind].add()

    def put_always(self, kind: int, flags: int, ordinal: int, *fields: int) -> None:
        """For the few records that report dropped records; they ignore the limit."""
        self._records.append(RECORD.pack(kind, flags, ordinal, *fields))

    def take(self, most: int) -> list[bytes]:
        """The oldest records, at most this many."""
        out: list[bytes] = []
        while self._records and len(out) < most:
            out.append(self._records.popleft())
        return out

    def give_back(self, records: list[bytes]) -> None:
        """Puts records that could not be sent back to the front."""
        self._records.extendleft(reversed(records))

    def newly_dropped(self) -> list[Drop]:
        """Drops by table since the last call; none while the queue has no room to report them."""
        if len(self._records) >= self._capacity:
            return []
        now, since = time.monotonic_ns(), self._checked_ns
        self._checked_ns = now
        if not self._any_dropped:
            return []
        out: list[Drop] = []
        for kind, tally in self._dropped.items():
            total = tally.value
            if total > self._reported[kind]:
                out.append(Drop(TABLE_OF_KIND[kind], total - self._reported[kind], since, now))
                self._reported[kind] = total
        return out

    @property
    def total_dropped(self) -> int:
        """Number of records of all kinds dropped in this process so far."""
        if not self._any_dropped:
            return 0
        return sum(tally.value for tally in self._dropped.values())

    def __len__(self) -> int:
        return len(self._records)


class Sender:
    """Owns the socket and the thread.

    Args:
        path: the processor's socket.
        queue: what to send.
        introduce: returns the packets that open a connection.
        before_flush: called before records are taken from the queue.
        busy: whether more records are about to come, so that waiting a little saves work.
        asked: takes the payload of a request, or says that it is not one of its kind.
    """

    def __init__(
        self,
        path: str,
        queue: RecordQueue,
        introduce: Callable[[AtRisk | None], list[tuple[PacketKind, bytes]]],
        before_flush: Callable[[], None],
        busy: Callable[[], bool],
        asked: Callable[[memoryview], bool] = lambda _: False,
    ) -> None:
        self._path = path
        self._queue = queue
        self._introduce = introduce
        self._before_flush = before_flush
        self._busy = busy
        self._asked = asked
        self._socket: OwnSocket | None = None
        self._packet = 0
        self._dropped_told = 0
        self._retry_at = 0.0
        self._recent: deque[tuple[int, bytes, bytes]] = deque()
        self._named: AtRisk | None = None
        self._unstored: AtRisk | None = None
        self._urgent: deque[tuple[PacketKind, bytes]] = deque()
        self._wake = Wake()
        self._hurried_until = 0.0
        self._stop = False
        self.cpu_ns = 0
        self._thread = threading.Thread(target=self._run, name="stepscope-sender", daemon=True)

    @property
    def is_hurried(self) -> bool:
        """Whether the processor asked recently to be informed at once."""
        return self._hurried_until > 0.0 and time.monotonic() < self._hurried_until

    def start(self) -> None:
        self._thread.start()

    def say(self, kind: PacketKind, payload: bytes) -> None:
        """Queues a packet that is sent before the next records. A new connection discards it,
        because the introduction repeats its content."""
        self._urgent.append((kind, payload))

    def close(self) -> None:
        """Sends what is left, for at most a second, and stops."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(EXIT_SECONDS)

    def abandon(self) -> None:
        """In a forked child: drops the parent's connection without closing it for the parent."""
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        flush_at = 0.0
        while not self._stop:
            self._wait(HURRIED_LOOK_SECONDS if self.is_hurried else LOOK_SECONDS)
            if not self._busy() or self.is_hurried or time.monotonic() >= flush_at:
                self._turn()
                flush_at = time.monotonic() + FLUSH_SECONDS
                self.cpu_ns = time.thread_time_ns()
        self._finish(time.monotonic() + EXIT_SECONDS)
        self._disconnect()
        self._wake.close()

    @guarded
    def _wait(self, seconds: float) -> None:
        """Waits for the timeout, a packet from the processor, or the request to stop."""
        wake, line = self._wake.descriptor, self._line()
        poll = select.poll()
        for number in (wake, line):
            if number is not None:
                poll.register(number, select.POLLIN)
        ready = {number for number, _ in poll.poll(seconds * 1e3)}
        if line in ready:
            self._listen()
        elif ready and not self._stop:
            time.sleep(seconds)  # the script has just closed our descriptor

    def _line(self) -> int | None:
        """The descriptor of the connection, if there is one that the script has not closed."""
        if self._socket is not None and self._socket.descriptor is None:
            self._disconnect()
        return None if self._socket is None else self._socket.descriptor

    def _listen(self) -> None:
        """Handles packets from the processor, or notices that it has gone."""
        assert self._socket is not None
        try:
            data = self._socket.get().recv(MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
        elif decode_losses_stored(data):
            self._named = None
        elif not self._asked(unpack(data)[1]):
            self._hurried_until = time.monotonic() + decode_hurry(data).seconds

    def _finish(self, deadline: float) -> None:
        """Sends the last records, which may need more room than the socket has at once."""
        self._turn()
        while (
            self._socket is not None
            and (self._urgent or len(self._queue))
            and time.monotonic() < deadline
        ):
            time.sleep(_EXIT_TURN_SECONDS)
            self._turn()

    @guarded
    def _turn(self) -> None:
        self._before_flush()
        if self._socket is None:
            self._socket = self._connect()
        if self._socket is None:
            return
        try:
            self._send_all()
        except BlockingIOError:
            pass  # the processor reads slowly: the queue keeps the rest until the next turn
        except OSError:
            self._disconnect()

    def _connect(self) -> OwnSocket | None:
        now = time.monotonic()
        if now < self._retry_at:
            return None
        self._retry_at = now + RECONNECT_SECONDS
        try:
            own = connect(self._path, timeout=0.0)
        except OSError:
            return None
        self._packet = 0
        self._urgent.clear()
        # in front of packets that other threads have queued meanwhile: the hello must be first
        self._urgent.extendleft(reversed(self._introduce(self._at_risk())))
        return own

    def _disconnect(self) -> None:
        """A processor that has not confirmed which rows are lost is not the last to hear of it."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._unstored, self._named = _together(self._unstored, self._named), None

    def _send_all(self) -> None:
        while self._urgent:
            kind, payload = self._urgent[0]
            self._send(kind, payload)
            self._urgent.popleft()
            if kind == PacketKind.HELLO:  # it reports the rows at risk
                self._named, self._unstored = self._at_risk(), None
                self._recent.clear()
        while records := self._queue.take(MAX_RECORDS):
            payload = b"".join(records)
            try:
                self._send(PacketKind.RECORDS, payload, len(records))
            except OSError:
                self._queue.give_back(records)
                raise
            self._remember(payload)

    def _send(self, kind: PacketKind, payload: bytes, count: int = 0) -> None:
        assert self._socket is not None
        dropped = self._queue.total_dropped
        packet = pack(
            kind, payload, pid=os.getpid(), packet=self._packet, count=count,
            dropped=dropped - self._dropped_told,
        )  # fmt: skip
        self._socket.get().send(packet, _SEND_FLAGS)
        self._packet += 1
        self._dropped_told = dropped

    def _remember(self, payload: bytes) -> None:
        """Remembers each record's kind and flags, one byte of each."""
        now = time.monotonic_ns()
        self._recent.append((now, payload[:: RECORD.size], payload[2 :: RECORD.size]))
        while self._recent[0][0] < now - AT_RISK_NS:
            self._recent.popleft()

    def _at_risk(self) -> AtRisk | None:
        if not self._recent:
            return self._unstored
        sent: Counter[tuple[int, int]] = Counter()
        for _, kinds, flags in self._recent:
            sent.update(zip(kinds, flags, strict=True))
        risk = AtRisk(self._recent[0][0], self._recent[-1][0], _rows(sent))
        return _together(self._unstored, risk)


def _rows(sent: Counter[tuple[int, int]]) -> Counter[str]:
    """Rows by table of what was sent, by kind and flags.

    A step has several events: a call of an optimizer ends it or, where none is called, a batch
    begins it. So two optimizers make the count too high.
    """
    rows: Counter[str] = Counter()
    ends_steps = (RecordKind.EVENT, EventKind.OPTIMIZER) in sent
    for (kind, flags), count in sent.items():
        if kind != RecordKind.EVENT or (flags == EventKind.OPTIMIZER) == ends_steps:
            rows[TABLE_OF_KIND[RecordKind(kind)]] += count
    return rows


def _together(earlier: AtRisk | None, later: AtRisk | None) -> AtRisk | None:
    if earlier is None or later is None:
        return earlier or later
    rows = Counter(earlier.rows) + Counter(later.rows)
    return AtRisk(earlier.start_ns, later.end_ns, rows)


def leave_child_alone(disable: Callable[[], None]) -> None:
    """Stops recording in forked children (e.g. data-loader workers), which share our memory."""
    try:
        os.register_at_fork(after_in_child=disable)
    except (AttributeError, ValueError) as error:
        report("register_at_fork", error)

"""Follows operators from call to end: numbers them, records them, and reports those still open.

The threads that call and finish operators only note that they did. The sender's thread handles
these moments in order, and runs everything here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.collect.hooks.groups import GroupRegistry
from stepscope.collect.hooks.operators import Call
from stepscope.collect.session import Session
from stepscope.trace.names import UNKNOWN_PEER
from stepscope.wire.records import COMM_DONE, COMM_OPEN, UNKNOWN, RecordKind, pack_peer

BLOCKED_NS = 50_000
"""If a wait blocked for longer than a call takes, its end is the end of the operator."""
OPEN_AFTER_NS = 100_000_000
"""An operator in flight for longer is reported before it ends: a member may be missing."""
HURRIED_OPEN_AFTER_NS = 10_000_000
"""The same while another rank is known to have stopped: as often as the sender then wakes."""


@dataclass(eq=False, slots=True)
class Operator:
    """One operator from its call to its end. The sender's thread sets fields that start as 0."""

    call: Call
    group: str
    peer: int
    size: int
    enqueue_ns: int
    ordinal: int
    is_async: bool = False
    group_id: int = 0
    op_peer: int = 0
    seq: int = 0
    work: Any = None
    """For the Python hooks: torch's work object."""
    output: int = 0
    """Address of its result, if no future is followed: `wait_tensor` has nothing else to go by."""
    reported_open: bool = False
    done: bool = False


class InFlight:
    """Every operator that began, until it ends.

    Args:
        is_over: whether an operator is known to have ended although nothing waited for it.
    """

    def __init__(
        self, session: Session, registry: GroupRegistry, is_over: Callable[[Operator], bool]
    ) -> None:
        self._session = session
        self._registry = registry
        self._is_over = is_over
        self._open: dict[int, Operator] = {}
        self._sequence: dict[tuple[int, bool], int] = {}
        session.before_flush.append(self._report_open)
        session.before_hello.append(self._forget_reports)

    def begun(self, op: Operator) -> None:
        """Records the next operator of its group, which the registry knows."""
        info = self._registry.known[op.group]
        op.group_id = self._session.name(info.id)
        op.op_peer = pack_peer(self._session.name(op.call.op), _global_rank(op.peer, info.ranks))
        key = (op.group_id, op.call.is_p2p)
        op.seq = self._sequence[key] = self._sequence.get(key, -1) + 1
        self._open[id(op)] = op

    def launched(self, op: Operator) -> None:
        """It was passed to a device: the host will not learn when it ends."""
        self.begun(op)
        self.ended(op, UNKNOWN, UNKNOWN)

    def ended(self, op: Operator, end_ns: int, blocked_ns: int) -> None:
        """Records the end; only the first of several sources counts."""
        if not op.done:
            op.done = True
            self._open.pop(id(op), None)
            self._record(op, COMM_DONE, end_ns, blocked_ns)

    def _report_open(self) -> None:
        """Before each flush: reports operators that have been in flight for long, once."""
        deadline = open_deadline_ns(self._session)
        for op in list(self._open.values()):
            if not op.reported_open and op.enqueue_ns < deadline:
                self._say_open(op)

    def _say_open(self, op: Operator) -> None:
        if self._is_over(op):
            self.ended(op, UNKNOWN, UNKNOWN)
        else:
            op.reported_open = True
            self._record(op, COMM_OPEN, UNKNOWN, UNKNOWN)

    def _forget_reports(self) -> None:
        """A new processor does not know what the previous one was sent."""
        for op in self._open.values():
            op.reported_open = False

    def _record(self, op: Operator, flags: int, end_ns: int, blocked_ns: int) -> None:
        self._session.record(
            RecordKind.COMM, flags, op.ordinal, op.group_id, op.op_peer, op.seq, op.size,
            op.enqueue_ns, end_ns, blocked_ns,
        )  # fmt: skip


def open_deadline_ns(session: Session) -> int:
    """Operators called before this time have been in flight for long; all, if an error ends the
    process: what it still waited for may be why."""
    patience = HURRIED_OPEN_AFTER_NS if session.is_hurried else OPEN_AFTER_NS
    patience = 0 if session.is_failing else patience
    return time.monotonic_ns() - patience


def _global_rank(peer: int, ranks: tuple[int, ...]) -> int:
    """The global rank of a rank within a group."""
    if peer < 0:
        return peer
    return ranks[peer] if peer < len(ranks) else UNKNOWN_PEER

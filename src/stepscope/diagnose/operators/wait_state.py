"""A job that may hang: its open operators, the ranks that wait in them, and those they wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.operators.calls_only import unanswered
from stepscope.diagnose.operators.endings import while_all_ran
from stepscope.diagnose.operators.liveness import (
    Liveness,
    StepTiming,
    last_alive_ns,
    last_progress_ns,
)
from stepscope.diagnose.operators.open_ops import OpenOperator, is_finished, open_operators
from stepscope.diagnose.operators.standstill import (
    innermost,
    loads_data,
    waits_for_device,
    waits_for_ranks,
)
from stepscope.diagnose.prepare.call_times import last_step_end_ns
from stepscope.diagnose.views.frames import is_torchs
from stepscope.window import NULL, Mask, Table, Window

SILENT_STEPS = 0.5
"""Calls are compared once no rank has made one for half a step, as for a stopped process in `hang`.
Our simulator."""

_NEVER = 2**63


@dataclass(frozen=True)
class WaitState:
    """All open operators, and which ranks keep them open."""

    open: tuple[OpenOperator, ...]
    now_ns: int
    timing: StepTiming
    by_calls: bool = False
    """Whether only the hosts' calls are known, and not that anybody waits in them."""
    held: frozenset[int] = frozenset()
    """Ranks whose host waits in an operator that all members entered."""

    @property
    def waiting(self) -> frozenset[int]:
        return frozenset().union(*(one.waiting for one in self.open))

    @property
    def incomplete(self) -> tuple[OpenOperator, ...]:
        """Operators that some members have not entered."""
        return tuple(one for one in self.open if one.absent)

    @property
    def complete(self) -> tuple[OpenOperator, ...]:
        """Operators that all members entered and whose data does not move."""
        return tuple(one for one in self.open if not one.absent)

    @property
    def roots(self) -> frozenset[int]:
        """Absent ranks that are not blocked by an earlier operator themselves.

        A device waits on several streams at once. So an operator that its host called after the
        one from which it is absent does not block it.
        """
        waits_since, behind = _called(self.incomplete, min), self._behind_stalled
        return frozenset(
            rank
            for one in self.incomplete
            for rank in one.absent - behind
            if waits_since.get(rank, _NEVER + 1) > one.called_ns.get(rank, _NEVER)
        )

    @property
    def _behind_stalled(self) -> frozenset[int]:
        """Ranks that have not reached an operator because an earlier transfer is stalled.

        Their devices have not, though their hosts called it, or their hosts wait for the transfer.
        """
        stalled_since = _called(self.complete, min)
        unreached = frozenset(
            rank
            for one in self.incomplete
            for rank in one.unreached
            if stalled_since.get(rank, _NEVER) <= one.called_ns[rank]
        )
        return unreached | self.held

    @property
    def circle(self) -> frozenset[int]:
        """Ranks that wait, and that others wait for."""
        return frozenset().union(*(one.absent for one in self.incomplete)) & self.waiting

    @property
    def alone(self) -> frozenset[int]:
        """The only ranks in an operator from which most of its members are absent."""
        lone = {one.entered for one in self.incomplete if len(one.entered) < len(one.absent)}
        return next(iter(lone)) if len(lone) == 1 else frozenset()

    @property
    def stalled(self) -> OpenOperator | None:
        """The first operator whose data does not move, if it blocks other operators."""
        blocking = [one for one in self.complete if one.waiting & self._behind_stalled]
        return min(blocking, key=lambda one: one.since_ns, default=None)

    @property
    def since_ns(self) -> int:
        return min(one.since_ns for one in self.open)

    def as_of(self, until_ns: int) -> WaitState:
        """The same at an earlier moment."""
        return replace(self, now_ns=min(self.now_ns, until_ns))


def _called(operators: Iterable[OpenOperator], pick: Callable[[int, int], int]) -> dict[int, int]:
    """When each rank called the first (`min`) or last (`max`) of the given operators in which it
    waits."""
    called: dict[int, int] = {}
    for one in operators:
        for rank in one.waiting:
            at = one.called_ns[rank]
            called[rank] = pick(called.get(rank, at), at)
    return called


def read_wait_state(window: Window, now: int, timing: StepTiming) -> WaitState | None:
    """The open operators of a window, by their ends or by calls alone; None if there are none."""
    comm = window.table("comm_ops")
    if comm is None:
        return None
    state = WaitState(_open(window, comm), now, timing)
    if not state.open:
        return _by_calls(window, comm, state)
    return replace(state, held=_held(window, comm, state)) if state.incomplete else state


def _open(window: Window, comm: Table) -> tuple[OpenOperator, ...]:
    if not (comm.has("end_ns") or comm.has("state")):
        return ()
    finished = is_finished(comm)
    if not finished.all():
        finished = finished | _without_ends(comm, finished, last_step_end_ns(window))
    return () if finished.all() else open_operators(window, comm, finished)


def _by_calls(window: Window, comm: Table, state: WaitState) -> WaitState | None:
    """What calls alone show, as far as the processes were observed to live on without a call."""
    last_step_ns, alive_ns = last_step_end_ns(window), last_alive_ns(window)
    if last_step_ns == NULL or alive_ns is None:
        return None
    until_ns, progress_ns = min(state.now_ns, alive_ns), last_progress_ns(window)
    if until_ns - progress_ns <= SILENT_STEPS * state.timing.step_ns:
        return None  # of a job that runs, the calls need not be compared
    found = unanswered(window, comm, last_step_ns)
    if not found:
        return None
    found = tuple(replace(one, since_ns=max(one.since_ns, progress_ns)) for one in found)
    return replace(state, open=found, now_ns=until_ns, by_calls=True)


def _held(window: Window, comm: Table, state: WaitState) -> frozenset[int]:
    """Ranks that made their last call for a stalled operator and wait, by their stacks if known."""
    since = _called(state.complete, max)
    own = comm.take(np.isin(comm.ints("rank"), sorted(since)))
    last = {rank for rank, calls in own.per_rank()
            if int(calls.ints("enqueue_ns").max()) <= since[rank]}  # fmt: skip
    liveness = Liveness(while_all_ran(window), state.since_ns) if last else None
    return frozenset(rank for rank in last if liveness and _may_wait(liveness.of(rank).stack))


def _may_wait(stack: tuple[str, ...]) -> bool:
    """Whether a host with this stack may wait for others; C++ that waits is within torch."""
    frame = innermost(stack)
    if loads_data(stack):
        return False
    return not frame or waits_for_ranks(stack) or waits_for_device(stack) or is_torchs(frame)


def _without_ends(comm: Table, finished: Mask, last_step_ns: int) -> Mask:
    """Rows of groups of which no end was recorded although steps ended after their first call.

    With NCCL, host calls return at once, and the ends on the device are unknown.
    """
    if comm.has("state"):
        finished = finished | (comm.strings("state").codes >= 0)
    group = comm.strings("group").codes + 1
    first = np.full(int(group.max()) + 1, _NEVER - 1)
    np.minimum.at(first, group, comm.ints("enqueue_ns"))
    silent = np.bincount(group, weights=finished, minlength=first.size) == 0
    return np.asarray((silent & (first < last_step_ns))[group])

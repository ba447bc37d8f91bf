"""The steps of all ranks as one graph: the own work of each rank, and what it waited for.

A lane is one rank in one step. A row of `comm_ops` follows, on its lane, the latest end of a row
that the rank was blocked by (a *gate*), or the start of the step. The time in between is the rank's
own work. All rows of one operator wait for each other: data moves when the last one has arrived.

    begin ── own ──▶ arrive ┐
                            ├ last arrival ── transfer ──▶ end ── own ──▶ next arrive … finish
    begin ── own ──▶ arrive ┘               (of a gate)

Papers: VenusTrace (Jiao et al., 2025), section 3, builds the graph of a pipeline from its known
schedule; ARGUS (2026), section 6.3, leaves the path to people and to HolisticTraceAnalysis, which
follows one rank. Here the edges are derived from times, so any schedule works.
Lossy: in long recordings only a sample of the steps is used, with about `MOST_ROWS` rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.busy import Lanes, busy, waited_at_end
from stepscope.diagnose.numeric.intervals import Axis, axis_over
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, arrivals, match, match_among
from stepscope.diagnose.thresholds import AT_ONCE_NS
from stepscope.diagnose.views.awaited import awaited_since, order_known
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Ints, Mask, Table, Window, count_until, stable_order

MOST_ROWS = 700_000
"""Rows of `comm_ops`: about two steps of ten thousand ranks, or a hundred of sixty-four ranks."""
NOTED_LATE = 0.5
"""If an operator's end was recorded after the wait for it had ended, but late by no more than this
share of the wait, the end of the wait counts instead. So does the last arrival if it was recorded
after that end. Our simulator."""
FARTHEST = 64
"""Operators that a host may have called ahead of its device, and that ended before what the device
does: so many are looked back. Our choice; real hosts run a few layers ahead."""
BEGIN = -1
"""Instead of a row: the start of the step."""


@dataclass(frozen=True)
class StepGraph:
    """The graph; its rows are those of `comm`, its lanes those of `lanes`."""

    lanes: Lanes
    comm: Table
    lane: Ints
    op: Ints
    """The number of each row's operator."""
    arrive_ns: Ints
    end_ns: Ints
    """The arrival, where the end is unknown."""
    before: Ints
    """The row whose end each row followed, or `BEGIN`."""
    begin_ns: Ints
    """The start of each lane; NULL if the rank did not run the step."""
    finish_ns: Ints
    last: Ints
    """For each lane, the row that the end of the step followed."""

    @cached_property
    def order(self) -> Ints:
        """Rows ordered by operator."""
        return stable_order(self.op)

    @cached_property
    def bounds(self) -> Ints:
        """The index in `order` at which each operator begins, and the number of rows at the end."""
        length = np.bincount(self.op)
        return np.concatenate(([0], np.cumsum(length)))

    @cached_property
    def last_arrival_ns(self) -> Ints:
        """The last arrival of each operator."""
        return np.asarray(np.maximum.reduceat(self.arrive_ns[self.order], self.bounds[:-1]))

    @cached_property
    def waits(self) -> Mask:
        """Rows that waited for all members; a row that ended before the last arrival did not.

        Clocks of hosts are aligned to a millisecond or so. A receive, or a member of a collective,
        cannot end before the last arrival, so if it seems to, by less than it waited, it did wait.
        """
        late = self.last_arrival_ns[self.op] - self.end_ns
        bound = self.comm.strings("op").equals("Recv", *SYNCHRONIZING)
        by_clocks = bound & (late <= NOTED_LATE * (self.end_ns - self.arrive_ns))
        return np.asarray((late <= 0) | by_clocks)

    @cached_property
    def holder(self) -> Ints:
        """The row that each row waited for: the last arrival of its operator, else itself."""
        latest = self.arrive_ns[self.order] == self.last_arrival_ns[self.op[self.order]]
        late = self.order[latest][::-1]
        last = np.full(self.bounds.size - 1, -1)
        last[self.op[late]] = late
        return np.where(self.waits, last[self.op], np.arange(self.op.size))

    @cached_property
    def transfer_ns(self) -> Ints:
        """From the last arrival to each row's end; below 0 where clocks disagree."""
        took = self.end_ns - self.arrive_ns[self.holder]
        return np.asarray(np.where(self.waits, took, np.maximum(took, 0)))

    @cached_property
    def since_ns(self) -> Ints:
        """When the own work before each row began."""
        return np.where(
            self.before == BEGIN, self.begin_ns[self.lane], self.end_ns[np.maximum(self.before, 0)]
        )

    @cached_property
    def tail_since_ns(self) -> Ints:
        """When the own work at the end of each lane began."""
        if not self.end_ns.size:
            return self.begin_ns
        gate = self.end_ns[np.maximum(self.last, 0)]
        return np.where(self.last == BEGIN, self.begin_ns, gate)

    def ended_ns(self, finish_ns: Ints) -> Ints:
        """When the last rank finished each step."""
        return np.asarray(finish_ns.reshape(-1, self.lanes.columns.size).max(axis=0))

    def ends_last(self, finish_ns: Ints) -> Ints:
        """The lane that finishes each step last; -1 if no rank ran the step."""
        finish = finish_ns.reshape(-1, self.lanes.columns.size)
        row, at = finish.argmax(axis=0), np.arange(self.lanes.columns.size)
        return np.where(finish[row, at] == NULL, -1, row * self.lanes.columns.size + at)


def step_graph(window: Window, line: Timeline, columns: Ints) -> StepGraph | None:
    """The graph of these columns of the grid; None if no operator ends were recorded."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("step", "end_ns") or not columns.size:
        return None
    lanes = Lanes(line, columns)
    window = lanes.about(window)
    comm = window.tables["comm_ops"]
    lane = lanes.when(comm, arrivals(comm))
    known = (lane >= 0) & _took_place(comm)
    near, comm, lane = comm, comm.take(known), lane[known]
    op = _operators(near, comm, known, known | (lanes.of(near) >= 0))
    window = replace(window, tables={**window.tables, "comm_ops": comm})  # the others are let go
    begin, finish = _steps(line, columns)
    arrive = arrivals(comm)
    end = _as_waited_for(window, lanes, lane, arrive, _ended(comm, arrive))
    axis = axis_over(len(lanes), arrive, end, begin[begin != NULL], finish[finish != NULL])
    if axis is None or not lane.size:
        return None
    gates = _Gates.of(axis, lane, arrive, end, _gates(window, comm, lanes, lane, end, axis))
    called = comm.ints("enqueue_ns")
    before = gates.before(lane, arrive, called, called)
    done = np.where(finish == NULL, begin, finish)
    last = gates.before(np.arange(len(lanes)), done, called, done)
    comm = near.take(known)  # of what is copied now the graph needs little
    return StepGraph(lanes, comm, lane, op, arrive, end, before, begin, finish, last)


def _ended(comm: Table, arrive: Ints) -> Ints:
    """The end of each row, or its arrival where no end is known."""
    end = comm.ints("end_ns")
    return np.where(end == NULL, arrive, end)


def _took_place(comm: Table) -> Mask:
    """Rows that ended, and rows of which only the call is known because no rank waited for their
    end.

    Gloo notes no end of a send that nobody waits for, but its receive cannot end before it began.
    """
    sent, called = comm.strings("op").equals("Send"), arrivals(comm) != NULL
    if comm.has("state"):
        sent = sent | comm.strings("state").equals("done")
    return np.asarray((comm.ints("end_ns") != NULL) | (sent & called))


def spread(window: Window, line: Timeline, columns: Ints) -> Ints:
    """As many columns as a graph may have, evenly spread."""
    comm = window.table("comm_ops")
    return spread_rows(0 if comm is None else len(comm), line, columns)


def spread_rows(rows: int, line: Timeline, columns: Ints) -> Ints:
    """The same for a graph of so many rows of `comm_ops` in all steps."""
    most = max(int(MOST_ROWS / max(rows / max(len(line.steps), 1), 1.0)), 1)
    if columns.size <= most:
        return columns
    return columns[((np.arange(most) + 0.5) * columns.size / most).astype(np.int64)]


def _steps(line: Timeline, columns: Ints) -> tuple[Ints, Ints]:
    """Start and finish of every lane; NULL if unknown.

    A lane lasts until the rank's next step begins: others wait for what it does between two steps.
    """
    begin, lasted = line.start_ns[:, columns].ravel(), line.period_ns[:, columns].ravel()
    known = (begin != NULL) & np.isfinite(lasted)
    finish = np.where(known, begin, 0) + np.where(known, lasted, 0.0).astype(np.int64)
    return np.where(known, begin, NULL), np.where(known, finish, NULL)


def _operators(comm: Table, some: Table, known: Mask, near: Mask) -> Ints:
    """The number of each row's operator; each unmatched row is an operator by itself.

    Args:
        some: the rows of `comm` that are `known`, to be numbered.
        near: rows of the same steps, too: what meets what depends on all of them.
    """
    whole = np.array_equal(known, near)  # mostly
    key = match(some).key if whole else match_among(comm.take(near), known[near]).key
    alone = np.flatnonzero(key < 0)
    numbers = key.copy()
    numbers[alone] = key.max(initial=-1) + 1 + np.arange(alone.size)
    return numbers


def _gates(window: Window, comm: Table, lanes: Lanes, lane: Ints, end: Ints, axis: Axis) -> Mask:
    """Rows whose end allowed a blocked rank to continue.

    This is known if it was measured how long operators blocked ranks. Otherwise all operators
    within passes are gates, and any other operator at whose end the rank was not computing. Of
    operators alone, a receive is none that was posted ahead and ended before its rank came to it.
    """
    at_work = busy(window, lanes.of, axis)
    idle = ~comm.strings("op").equals("Send")
    inside = [group.id for group in window.job.groups_of_kind(*WITHIN_PASSES)]
    within = comm.strings("group").equals(*inside)
    if at_work is not None:
        idle &= ~at_work.holds(axis.at(lane, end - AT_ONCE_NS)) | within
    elif order_known(comm, arrivals(comm), within):
        proofs = within | comm.strings("op").equals("Send")
        since = awaited_since(comm, lane, arrivals(comm), end, axis, proofs)
        idle &= since < axis.at(lane, end)
    if not comm.has("blocked_ns"):
        return idle
    blocked = comm.ints("blocked_ns")
    return np.where(blocked == NULL, idle, blocked >= AT_ONCE_NS)


def _as_waited_for(window: Window, lanes: Lanes, lane: Ints, arrive: Ints, end: Ints) -> Ints:
    """The ends of operators, but no later than the end of a phase that waited for them.

    The thread that records an end may run later than the thread that waited for it: by milliseconds
    if all CPUs are busy.
    """
    phases = window.table("phases")
    if phases is None or not phases.has("step") or not end.size:
        return end
    phases, at, done, waited = _waits(window, lanes, phases)
    axis = axis_over(len(lanes), arrive, end, done)
    if axis is None or not len(phases):
        return end
    place = axis.at(at, done)
    order = np.argsort(place, kind="stable")
    place, done, waited, at = place[order], done[order], waited[order], at[order]
    ended = axis.at(lane, end)
    ends, after = np.sort(ended), place + AT_ONCE_NS
    timely = count_until(ends, place - AT_ONCE_NS - 1) < count_until(ends, after)
    last = np.maximum(count_until(place, ended - 1) - 1, 0)
    late = (at[last] == lane) & (arrive < done[last]) & ~timely[last]
    late &= (end > done[last]) & (end - done[last] <= NOTED_LATE * waited[last])
    return np.where(late, done[last], end)


def _waits(window: Window, lanes: Lanes, phases: Table) -> tuple[Table, Ints, Ints, Ints]:
    """Phases that waited at their end; with their lanes, their ends, and how long they waited."""
    lane, waited = lanes.of(phases), waited_at_end(window, phases)
    kept = (lane >= 0) & (waited > AT_ONCE_NS)
    phases = phases.take(kept)
    return phases, lane[kept], phases.ints("start_ns") + phases.ints("duration_ns"), waited[kept]


@dataclass(frozen=True)
class _Gates:
    """The ends of gates and of all rows, in order on the axis."""

    axis: Axis
    gate: Ints
    gate_row: Ints
    every: Ints
    every_row: Ints
    lane: Ints
    arrived: Ints
    """Where each row of the graph arrived on the axis."""

    @classmethod
    def of(cls, axis: Axis, lane: Ints, arrive: Ints, end: Ints, gates: Mask) -> _Gates:
        """Rows without duration are left out, so that each row follows one that arrived earlier."""
        rows = np.flatnonzero(end > arrive)
        place = axis.at(lane[rows], end[rows])
        order = np.argsort(place, kind="stable")
        rows, place = rows[order], place[order]
        kept = gates[rows]
        arrived = axis.at(lane, arrive)
        return cls(axis, place[kept], rows[kept], place, rows, lane, arrived)

    def before(self, lane: Ints, time_ns: Ints, called_ns: Ints, until_ns: Ints) -> Ints:
        """The last gate that ended before a time on a lane, or the row that ended at that time; of
        those that were called until then. A device that is behind its host waits for nothing that
        its program calls later. An end that was noted a moment late is at that time as well.

        Args:
            called_ns: when each row of the graph was called.
            until_ns: when what follows was called.
        """
        place = self.axis.at(lane, time_ns)
        gate, _ = self._latest(self.gate, self.gate_row, lane, place, called_ns, until_ns)
        row, ended = self._latest(self.every, self.every_row, lane, place, called_ns, until_ns)
        return np.where((row >= 0) & (place - ended <= AT_ONCE_NS), row, gate)

    def _latest(
        self, ends: Ints, rows: Ints, lane: Ints, place: Ints, called_ns: Ints, until_ns: Ints
    ) -> tuple[Ints, Ints]:
        at = count_until(ends, place + AT_ONCE_NS) - 1
        if not rows.size:
            return np.full(lane.size, BEGIN), place
        unsettled = np.flatnonzero(at >= 0)
        for _ in range(FARTHEST):
            row = rows[at[unsettled]]
            here = place[unsettled]
            later = (self.lane[row] == lane[unsettled]) & (
                (called_ns[row] > until_ns[unsettled])
                | (ends[at[unsettled]] - here > here - self.arrived[row])  # it is beside
            )
            unsettled = unsettled[later]
            at[unsettled] -= 1
            unsettled = unsettled[at[unsettled] >= 0]
        row, ended = rows[np.maximum(at, 0)], ends[np.maximum(at, 0)]
        return np.where((at >= 0) & (self.lane[row] == lane), row, BEGIN), ended

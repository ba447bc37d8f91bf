"""The part of a step in no phase: gaps between its phases, and what comes before and after them.

What ranks do between two steps is logging and checkpoints, often on one rank and by design; what
holds one up between two phases of a step is neither. So the two are told apart, except in traces
of operators, where a phase begins with its first operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis, Spans, union_of_rows
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals
from stepscope.diagnose.views.breakdown import is_communicating
from stepscope.diagnose.views.phase_rows import PhaseRows, rows_of
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Ints, Mask, Table, Union, Window, union

OUTSIDE = "outside-phases"
"""Before the first phase of a step and after its last; in traces of operators all of the rest."""
GAPS = "between-phases"
BETWEEN = "between-collectives"
"""Of jobs of which only communication was recorded: the time between operators."""
UNNAMED = (OUTSIDE, GAPS, BETWEEN)
"""Our own names, which no table holds."""
POINT_TO_POINT_KERNEL = "SendRecv"
"""So NCCL and RCCL call the kernel by which stages hand over."""

Named = list[tuple[str, Floats]]


def outside_phases(window: Window, rows: PhaseRows) -> Named:
    """Own time of each rank and step in no phase, `[rank, step]` in ns; nothing where unknown."""
    one = _Steps(rows, ~rows.inner)
    if not one.outermost.any() or window.table("steps") is None:
        return []
    comm = window.table("comm_ops")
    if window.table("host_ops") is not None:
        return _of_a_trace(one, comm)
    if len(rows.line.ranks) == 1 and comm is None:
        return _in_two(one, one.inside)
    if comm is not None and comm.has("blocked_ns"):
        return _in_two(one, _busy(one, comm, wait_times))
    if comm is not None and _all_waiting_is_seen(window, comm):
        return _in_two(one, _busy(one, comm, _under_way))
    waiting = _waiting_kernels(window)
    return [] if waiting is None else _in_two(one, _busy(one, waiting, _running))


def idle_times(window: Window, line: Timeline) -> Named:
    """The same of jobs that recorded nothing but kernels: when none of them runs on a device."""
    kernels = window.table("kernels")
    if kernels is None or window.table("host_ops") is not None or not len(line.steps):
        return []
    rows = None if _waiting_kernels(window) is None else rows_of(kernels, "kernel", line)
    if rows is None:
        return []
    one = _Steps(rows, np.ones(len(rows.rank), np.bool_))
    return _in_two(one, one.inside)


@dataclass(frozen=True)
class _Steps:
    """The steps of all ranks, and what of them lies in phases."""

    rows: PhaseRows
    outermost: Mask

    @cached_property
    def inside(self) -> Union:
        return union(self.rows.begin[self.outermost], self.rows.end[self.outermost])

    @cached_property
    def first_ns(self) -> Ints:
        """When the first phase of each rank's step begins; far in the future without any."""
        first = np.full(self._cells, np.iinfo(np.int64).max)
        np.minimum.at(first, self._cell[self.outermost], self.rows.start[self.outermost])
        return first.reshape(self.shape)

    @cached_property
    def last_ns(self) -> Ints:
        """When its last phase ends; NULL without any."""
        last = np.full(self._cells, NULL)
        end = self.rows.start + self.rows.duration
        np.maximum.at(last, self._cell[self.outermost], end[self.outermost])
        return last.reshape(self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows.line.ranks), len(self.rows.line.steps)

    @property
    def _cells(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def _cell(self) -> Ints:
        return self.rows.cell


def _of_a_trace(one: _Steps, comm: Table | None) -> Named:
    """Profilers know when operators ran but not who stood in a wait for them."""
    line, axis = one.rows.line, one.rows.axis
    if comm is None:
        return [(OUTSIDE, uncovered(line, axis, one.inside))]
    return (
        [(OUTSIDE, uncovered(line, axis, _busy(one, comm, _under_way)))]
        if comm.has("end_ns")
        else []
    )


def _busy(one: _Steps, comm: Table, spans: Callable[[Table], Spans]) -> Union:
    """Where a rank is in a phase, or by `spans` in an operator."""
    rank = one.rows.line.rows(comm.ints("rank"))
    return union_of_rows(one.rows.axis, rank, comm, spans, one.inside)


def _under_way(comm: Table) -> Spans:
    """From arrival to end, where that is known."""
    start, end = arrivals(comm), comm.ints("end_ns")
    return start, end, end != NULL


def _running(kernels: Table) -> Spans:
    """From start to end."""
    start, lasted = kernels.ints("start_ns"), kernels.ints("duration_ns")
    return start, start + lasted, lasted > 0


def wait_times(comm: Table) -> Spans:
    """When ranks stood for an operator, where they say how long: a wait ends with its operator,
    which may have been called long before, or else where nobody knows the end began with the call.
    """
    blocked, call = np.maximum(comm.ints("blocked_ns"), 0), comm.ints("enqueue_ns")
    end = comm.ints("end_ns") if comm.has("end_ns") else np.full_like(call, NULL)
    end = np.where(end == NULL, call + blocked, end)
    return end - blocked, end, blocked > 0


def _all_waiting_is_seen(window: Window, comm: Table) -> bool:
    """Whether a device that waits does so in an operator that was recorded.

    Where stages hand over unseen, a gap may be a stage waiting for its neighbour.
    """
    if not comm.has("start_ns", "end_ns"):
        return False
    return not _is_staged(window) or bool(comm.strings("op").equals(*POINT_TO_POINT).any())


def _is_staged(window: Window) -> bool:
    return any(len(group.ranks) > 1 for group in window.job.groups_of_kind("pp"))


def _waiting_kernels(window: Window) -> Table | None:
    """The kernels in which devices wait for each other, where each execution was recorded; None
    where some waiting shows in none of them."""
    kernels = window.table("kernels")
    if kernels is None:
        return None
    names = kernels.strings("kernel")
    waiting = [name for name in names.values if is_communicating(name)]
    between = any(POINT_TO_POINT_KERNEL in name for name in waiting)
    if not waiting or (_is_staged(window) and not between):
        return None
    return kernels.take(names.equals(*waiting))


def _in_two(one: _Steps, busy: Union) -> Named:
    """What nothing covers, between the phases of a step and around them; NaN without phases."""
    line, axis = one.rows.line, one.rows.axis
    whole = uncovered(line, axis, busy)
    known = np.isfinite(whole) & (one.last_ns > one.first_ns)
    rank = np.arange(one.shape[0])[:, None]
    first = axis.at(rank, np.where(known, one.first_ns, axis.origin_ns))
    last = axis.at(rank, np.where(known, one.last_ns, axis.origin_ns))
    between = last - first - busy.within(first, last)
    gaps = np.where(known, np.minimum(between, whole), np.nan)
    return [(GAPS, gaps), (OUTSIDE, whole - gaps)]


def uncovered(line: Timeline, axis: Axis, busy: Union) -> Floats:
    """How much of each step no interval covers."""
    known = (line.start_ns != NULL) & np.isfinite(line.period_ns)
    start = np.where(known, line.start_ns, axis.origin_ns)
    period = np.where(known, line.period_ns, 0.0).astype(np.int64)
    rank = np.arange(len(line.ranks))[:, None]
    begin, end = axis.at(rank, start), axis.at(rank, start + period)
    return np.where(known, end - begin - busy.within(begin, end), np.nan)

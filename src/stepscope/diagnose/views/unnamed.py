"""The time of a step that is in no phase: gaps between its phases, and time before and after them.

Between two steps ranks log and write checkpoints, often on one rank only and by design. A delay
between two phases of a step has other causes. So the two are distinguished, except in traces of
operators, where a phase begins with its first operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis, Spans, axis_over, union_of_rows
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import computing, is_communicating, passes_on
from stepscope.diagnose.views.hidden_waits import has_hidden_operators
from stepscope.diagnose.views.lost import lost_operators
from stepscope.diagnose.views.phase_rows import PhaseRows, rows_of
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Ints, Mask, Table, Union, Window, runs, union

OUTSIDE = "outside-phases"
"""Before the first phase of a step and after its last; in traces of operators all other time."""
GAPS = "between-phases"
BETWEEN = "between-collectives"
"""The time between operators, in jobs of which only communication was recorded."""
KERNELS = "kernels"
"""All kernels that compute, beside those of the optimizer, where no phases were recorded."""
UNNAMED = (OUTSIDE, GAPS, BETWEEN)
"""Names that only diagnosis uses; no table contains them."""

Named = list[tuple[str, Floats]]


def outside_phases(window: Window, rows: PhaseRows) -> Named:
    """Own time of each rank and step in no phase, `[rank, step]` in ns; empty if unknown."""
    steps = _Steps(rows, ~rows.inner)
    if not steps.outermost.any() or window.table("steps") is None:
        return []
    comm = window.table("comm_ops")
    if window.table("host_ops") is not None:
        return _of_a_trace(window, steps, comm)
    if len(rows.line.ranks) == 1 and comm is None:
        return _in_two(steps, steps.inside)
    if comm is not None and has_hidden_operators(window, comm):
        comm = None
    if comm is not None and comm.has("blocked_ns"):
        return _in_two(steps, _busy(steps, comm, wait_times))
    if comm is not None and all_waits_recorded(window, comm):
        return _in_two(steps, _busy(steps, comm, under_way))
    waiting = _waiting_kernels(window)
    return [] if waiting is None else _in_two(steps, _busy(steps, waiting, _running))


def waiting(window: Window, rows: PhaseRows) -> Union | None:
    """When ranks were in operators or waited in them, as far as that was recorded."""
    comm, row_of = window.table("comm_ops"), rows.line.rows
    if comm is not None and comm.has("blocked_ns"):
        return union_of_rows(rows.axis, row_of, comm, wait_times)
    if comm is not None and comm.has("start_ns", "end_ns"):
        return union_of_rows(rows.axis, row_of, comm, under_way)
    kernels = _waiting_kernels(window)
    if kernels is None:
        return None
    return union_of_rows(rows.axis, row_of, kernels, _running)


def idle_times(window: Window, kernels: Table, line: Timeline) -> Named:
    """The same for jobs that recorded only kernels: the time in which no kernel runs."""
    rows = None if _waiting_kernels(window) is None else rows_of(kernels, "kernel", line)
    if rows is None:
        return []
    steps = _Steps(rows, np.ones(len(rows.rank), np.bool_))
    return _in_two(steps, steps.inside)


@dataclass(frozen=True)
class _Steps:
    """The steps of all ranks, and which parts of them are in phases."""

    rows: PhaseRows
    outermost: Mask

    @cached_property
    def inside(self) -> Union:
        return self.rows.union_of(self.outermost)

    @cached_property
    def first_ns(self) -> Ints:
        """When the first phase of each rank and step begins; far in the future without phases."""
        first = np.full(prod(self.rows.line.shape), np.iinfo(np.int64).max)
        for cell, start, _ in self._parts():
            begins, _ = runs(cell)
            np.minimum.at(first, cell[begins], np.minimum.reduceat(start, begins))
        return first.reshape(self.rows.line.shape)

    @cached_property
    def last_ns(self) -> Ints:
        """When the last phase of each rank and step ends; NULL without phases."""
        last = np.full(prod(self.rows.line.shape), NULL)
        for cell, start, duration in self._parts():
            begins, _ = runs(cell)
            np.maximum.at(last, cell[begins], np.maximum.reduceat(start + duration, begins))
        return last.reshape(self.rows.line.shape)

    def _parts(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Cell, start and duration of the outermost rows, some at a time, at least one."""
        for part, _, _ in self.rows.parts():
            own, rows = self.outermost[part], (self.rows.cell, self.rows.start, self.rows.duration)
            some = slice(None) if own.all() else own
            cell, start, duration = (column[part][some] for column in rows)
            if cell.size:
                yield cell, start, duration


def _of_a_trace(window: Window, steps: _Steps, comm: Table | None) -> Named:
    """The time outside phases in a profiler trace, which shows operators, but not who waits.

    Unknown where rows of operators are known to be lost: nobody could tell waiting from work.
    """
    line, axis = steps.rows.line, steps.rows.axis
    if comm is None:
        return [(OUTSIDE, uncovered(line, axis, steps.inside))]
    if not comm.has("end_ns"):
        return []
    busy = _busy(steps, comm, under_way)
    kernels = window.table("kernels")
    if kernels is not None:  # a device that computes meanwhile does not wait
        computes = kernels.take(computing(kernels.strings("kernel")))
        work = union_of_rows(axis, line.rows, computes, _running)
        busy = busy.without(work.without(steps.inside))
    own = uncovered(line, axis, busy)
    return [(OUTSIDE, np.where(lost_operators(window, line), np.nan, own))]


def _busy(steps: _Steps, comm: Table, spans: Callable[[Table], Spans]) -> Union:
    """When a rank is in a phase, or in an operator according to `spans`."""
    rows = steps.rows
    return union_of_rows(rows.axis, rows.line.rows, comm, spans, steps.inside)


def under_way(comm: Table) -> Spans:
    """Operators from arrival to end, if the end is known."""
    start, end = arrivals(comm), comm.ints("end_ns")
    return start, end, end != NULL


def _running(kernels: Table) -> Spans:
    """Kernels from start to end."""
    start, lasted = kernels.ints("start_ns"), kernels.ints("duration_ns")
    return start, start + lasted, lasted > 0


def wait_times(comm: Table) -> Spans:
    """When ranks were blocked by an operator, if that was measured.

    A wait ends with its operator, which may have been called long before. If the end is unknown,
    the wait is taken to begin with the call.
    """
    blocked, call = np.maximum(comm.ints("blocked_ns"), 0), comm.ints("enqueue_ns")
    end = comm.ints("end_ns") if comm.has("end_ns") else np.full_like(call, NULL)
    end = np.where(end == NULL, call + blocked, end)
    return end - blocked, end, blocked > 0


def all_waits_recorded(window: Window, comm: Table) -> bool:
    """Whether devices wait only in recorded operators.

    If transfers between pipeline stages are not recorded, a gap may be a stage that waits for its
    neighbour. If most ends are unknown, because only some moments were recorded, it may be any.
    """
    if not comm.has("start_ns", "end_ns"):
        return False
    if len(comm) and float((comm.ints("end_ns") != NULL).mean()) <= HALF:
        return False
    return not is_staged(window) or bool(comm.strings("op").equals(*POINT_TO_POINT).any())


def is_staged(window: Window) -> bool:
    """Whether the model is split into pipeline stages, also where nobody listed their ranks."""
    listed = any(len(group.ranks) > 1 for group in window.job.groups_of_kind("pp"))
    return listed or window.job.parallelism.get("pp", 1) > 1


def _waiting_kernels(window: Window) -> Table | None:
    """The kernels in which devices wait for each other, if each execution was recorded; None if
    some waiting is in other operators."""
    kernels = window.table("kernels")
    if kernels is None:
        return None
    names = kernels.strings("kernel")
    waiting = [name for name in names.values if is_communicating(name)]
    if not waiting or (is_staged(window) and not any(map(passes_on, waiting))):
        return None
    return kernels.take(names.equals(*waiting))


def _in_two(steps: _Steps, busy: Union) -> Named:
    """Uncovered time between the phases of a step, and around them; NaN without phases."""
    line, axis = steps.rows.line, steps.rows.axis
    whole = uncovered(line, axis, busy)
    known = np.isfinite(whole) & (steps.last_ns > steps.first_ns)
    rank = np.arange(len(line.ranks))[:, None]
    first = axis.at(rank, np.where(known, steps.first_ns, axis.origin_ns))
    last = axis.at(rank, np.where(known, steps.last_ns, axis.origin_ns))
    between = last - first - busy.within(first, last)
    gaps = np.where(known, np.minimum(between, whole), np.nan)
    return [(GAPS, gaps), (OUTSIDE, whole - gaps)]


def uncovered(line: Timeline, axis: Axis, busy: Union) -> Floats:
    """How much of each step is not covered by any interval."""
    known = (line.start_ns != NULL) & np.isfinite(line.period_ns)
    start = np.where(known, line.start_ns, axis.origin_ns)
    period = np.where(known, line.period_ns, 0.0).astype(np.int64)
    rank = np.arange(len(line.ranks))[:, None]
    begin, end = axis.at(rank, start), axis.at(rank, start + period)
    return np.where(known, end - begin - busy.within(begin, end), np.nan)


def covered(line: Timeline, row: Ints, start: Ints, end: Ints) -> Floats:
    """How much of each step some intervals of ranks cover, `[rank, step]`; NaN if unknown."""
    axis = axis_over(len(line.ranks), start, end, line.start_ns[line.start_ns != NULL])
    if axis is None:
        return np.full(line.period_ns.shape, np.nan)
    kept = row >= 0
    busy = union(axis.at(row[kept], start[kept]), axis.at(row[kept], end[kept]))
    return line.period_ns - uncovered(line, axis, busy)

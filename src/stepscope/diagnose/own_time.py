"""Own busy time per rank, step and phase: blame rule 1, waiting for others is not one's own.

Where the collector measured it, own time is `duration_ns - wait_ns`. Elsewhere the communication
operators inside a phase that block are subtracted (transfer included, which is nobody's own
either); data-parallel operators overlap the backward pass and are not. A phase that may have
waited an unknown time is not comparable between ranks and is left out, with a word why.

Phases nested in others (a user's `stepscope.phase` inside the forward pass) would count twice and
are set aside. The time of a step outside every phase is the phase `outside-phases`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.intervals import Axis, Union, axis_over, union
from stepscope.diagnose.timeline import Timeline
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPERATORS, OPTIMIZER
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window

CANONICAL = (DATA_LOAD, FORWARD, BACKWARD, OPTIMIZER)
OUTSIDE = "outside-phases"
BETWEEN = "between-collectives"
"""Pseudo-phase of jobs of which only communication was recorded: the time between operators."""
BLOCKING_KINDS = ("tp", "cp", "ep", "pp", "mp")
"""Groups whose operators stand between two pieces of computation, so that the device waits."""
MOSTLY = 0.5
"""A phase is nested, or lacks its waiting time, when that holds for more than half of its rows."""


@dataclass(frozen=True)
class OwnTime:
    """Own and processor time, `[phase, rank, step]` in ns, NaN where unknown."""

    phases: tuple[str, ...]
    own: Floats
    cpu: Floats
    skipped: tuple[Skipped, ...] = ()

    @property
    def total(self) -> Floats:
        """Own time of each rank and step over all phases; NaN where nothing is known."""
        known = np.isfinite(self.own).any(axis=0)
        return np.where(known, np.nansum(self.own, axis=0), np.nan)


@dataclass(frozen=True)
class _Rows:
    """The rows of `phases` that lie on the grid, as arrays."""

    line: Timeline
    axis: Axis
    rank: Ints
    column: Ints
    start: Ints
    duration: Ints
    names: Strings
    table: Table
    inner: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))

    def grid(self, values: Floats, rows: Mask) -> Floats:
        """Sums of the values per rank and step; NaN where no row is or a value is unknown."""
        shape = (len(self.line.ranks), len(self.line.steps))
        cell = (self.rank * shape[1] + self.column)[rows]
        count = np.bincount(cell, minlength=shape[0] * shape[1])
        total = np.bincount(cell, weights=values[rows], minlength=shape[0] * shape[1])
        return np.where(count > 0, total, np.nan).reshape(shape)


def own_time(window: Window, line: Timeline) -> OwnTime:
    """Own time of everything comparable in the window."""
    rows = _rows(window, line)
    if rows is None:
        return _between_collectives(window, line)
    blocked = _blocking(window, rows)
    waits = _waited(window, rows, blocked)
    names, skipped = _comparable(rows, waits)
    own = [rows.grid(np.maximum(rows.duration - waits, 0), rows.names.equals(n)) for n in names]
    cpu = [rows.grid(_nullable(rows.table, "cpu_ns"), rows.names.equals(n)) for n in names]
    outside = _outside(window, rows)
    if outside is not None:
        names, own, cpu = [*names, OUTSIDE], [*own, outside], [*cpu, np.full_like(outside, np.nan)]
    return _bundle(line, names, own, cpu, skipped)


def _bundle(
    line: Timeline, names: list[str], own: list[Floats], cpu: list[Floats], skipped: list[Skipped]
) -> OwnTime:
    shape = (len(names), len(line.ranks), len(line.steps))
    if not names:
        return OwnTime((), np.zeros(shape), np.zeros(shape), tuple(skipped))
    return OwnTime(tuple(names), np.stack(own), np.stack(cpu), tuple(skipped))


def _rows(window: Window, line: Timeline) -> _Rows | None:
    table = window.table("phases")
    if table is None:
        return None
    rank, column = line.rows(table.ints("rank")), line.columns(table.ints("step"))
    table = table.take((rank >= 0) & (column >= 0) & (table.strings("phase").codes >= 0))
    start, duration = table.ints("start_ns"), table.ints("duration_ns")
    axis = axis_over(len(line.ranks), start, start + duration)
    if axis is None or not len(table):
        return None
    rank, column = line.rows(table.ints("rank")), line.columns(table.ints("step"))
    rows = _Rows(line, axis, rank, column, start, duration, table.strings("phase"), table)
    return _mark_inner(rows)


def _mark_inner(rows: _Rows) -> _Rows:
    """Marks the rows of all phases but the canonical whose middle lies inside a canonical one."""
    canonical = rows.names.equals(*CANONICAL)
    begin = rows.axis.at(rows.rank, rows.start)
    outer = union(begin[canonical], (begin + rows.duration)[canonical])
    inner = ~canonical & outer.holds(begin + rows.duration // 2)
    return _Rows(**{**vars(rows), "inner": inner})


def _nullable(table: Table, column: str) -> Floats:
    if not table.has(column):
        return np.full(len(table), np.nan)
    values = table.ints(column)
    return np.where(values == NULL, np.nan, values.astype(np.float64))


def _waited(window: Window, rows: _Rows, blocked: Union | None) -> Floats:
    """How long each row waited: measured, or covered by blocking operators, or NaN: unknown."""
    waits = _nullable(rows.table, "wait_ns")
    if blocked is not None:
        begin = rows.axis.at(rows.rank, rows.start)
        covered = blocked.covered(begin + rows.duration) - blocked.covered(begin)
        return np.where(np.isnan(waits), covered, waits)
    return np.where(np.isnan(waits) & ~_may_wait(window, rows), 0.0, waits)


def _may_wait(window: Window, rows: _Rows) -> Mask:
    """Rows that may contain waiting nobody measured."""
    if rows.table.has("waits"):
        return np.asarray(rows.table.ints("waits") == 1)
    names = [name for name in rows.names.values if communicates(name)]
    if any(len(group.ranks) > 1 for group in window.job.groups_of_kind("tp", "cp", "ep", "mp")):
        names += [FORWARD, BACKWARD]
    return rows.names.equals(*names)


def communicates(phase: str) -> bool:
    """Phases named `<group kind>-<operator>` carry communication."""
    _, _, operator = phase.partition("-")
    return operator.replace("-", "") in {name.lower() for name in OPERATORS}


def _blocking(window: Window, rows: _Rows) -> Union | None:
    """The intervals in which a rank stood in a blocking operator, where they were recorded."""
    comm = window.table("comm_ops")
    kinds = {group.id for group in window.job.groups_of_kind(*BLOCKING_KINDS)}
    if comm is None or not comm.has("end_ns") or not kinds:
        return None
    begin, end = arrivals(comm), comm.ints("end_ns")
    rank = rows.line.rows(comm.ints("rank"))
    rank = np.where(comm.strings("group").equals(*kinds), rank, -1)
    keep = (rank >= 0) & (end != NULL)
    return union(rows.axis.at(rank[keep], begin[keep]), rows.axis.at(rank[keep], end[keep]))


def arrivals(comm: Table) -> Ints:
    """When each operator was there: the head of its stream where known, else the host call."""
    enqueue = comm.ints("enqueue_ns")
    if not comm.has("start_ns"):
        return enqueue
    start = comm.ints("start_ns")
    return np.where(start == NULL, enqueue, start)


def _comparable(rows: _Rows, waits: Floats) -> tuple[list[str], list[Skipped]]:
    """Phases whose own time is known and that do not count anything twice."""
    names: list[str] = []
    skipped: list[Skipped] = []
    for name in (*CANONICAL, *sorted(set(rows.names.values) - set(CANONICAL))):
        chosen = rows.names.equals(name)
        if not chosen.any() or communicates(name):
            continue
        if np.isnan(waits[chosen]).mean() > MOSTLY:
            skipped.append(Skipped(f"own time of {name}", "it may contain waiting nobody measured"))
        elif rows.inner[chosen].mean() <= MOSTLY or _parent_unknown(rows, chosen, names):
            names.append(name)
    return names, skipped


def _parent_unknown(rows: _Rows, chosen: Mask, known: list[str]) -> bool:
    """Whether a nested phase stands in for its parent, because the parent's own is unknown."""
    present = {name for name in (FORWARD, BACKWARD) if rows.names.equals(name).any()}
    return bool(chosen.any()) and not present & set(known)


def _outside(window: Window, rows: _Rows) -> Floats | None:
    """The period less all outermost phases and what was blocked in operators outside them."""
    outermost = ~rows.inner
    if not outermost.any() or window.table("steps") is None:
        return None
    begin = rows.axis.at(rows.rank, rows.start)
    inside = union(begin[outermost], (begin + rows.duration)[outermost])
    if window.table("host_ops") is not None:
        return _outside_trace(window, rows, inside)
    blocked = _blocked_outside(window, rows, inside)
    if blocked is None:
        return None
    covered = rows.grid(rows.duration.astype(np.float64), outermost)
    return np.maximum(rows.line.period_ns - covered - blocked, 0.0)


def _outside_trace(window: Window, rows: _Rows, inside: Union) -> Floats | None:
    """In a profiler's trace, which knows when operators ran but not who stood in a wait for them:
    the part of each step in no phase and in no operator."""
    comm = window.table("comm_ops")
    if comm is None:
        return _uncovered(rows.line, rows.axis, inside)
    if not comm.has("end_ns"):
        return None
    rank, start, end = rows.line.rows(comm.ints("rank")), arrivals(comm), comm.ints("end_ns")
    keep = (rank >= 0) & (end != NULL)
    start, end = rows.axis.at(rank, start)[keep], rows.axis.at(rank, end)[keep]
    busy = union(np.concatenate((inside.start, start)), np.concatenate((inside.end, end)))
    return _uncovered(rows.line, rows.axis, busy)


def _blocked_outside(window: Window, rows: _Rows, inside: Union) -> Floats | None:
    """Per rank and step, host time blocked in operators outside phases; None where unknown."""
    shape = (len(rows.line.ranks), len(rows.line.steps))
    comm = window.table("comm_ops")
    if comm is None:
        return np.zeros(shape) if shape[0] == 1 else None
    if not comm.has("blocked_ns", "step"):
        return None
    rank, column = rows.line.rows(comm.ints("rank")), rows.line.columns(comm.ints("step"))
    blocked = np.nan_to_num(_nullable(comm, "blocked_ns"))
    keep = (rank >= 0) & (column >= 0)
    keep &= ~inside.holds(rows.axis.at(rank, comm.ints("enqueue_ns")))
    cell = (rank * shape[1] + column)[keep]
    return stats.sums(cell, blocked[keep], shape[0] * shape[1]).reshape(shape)


def _between_collectives(window: Window, line: Timeline) -> OwnTime:
    """Without phases: the step less the time in which an operator was under way on the rank."""
    comm = window.table("comm_ops")
    empty = _bundle(line, [], [], [], [Skipped("own time", "no tables phases or comm_ops")])
    if comm is None or not comm.has("end_ns") or not len(line.steps):
        return empty
    rank, end = line.rows(comm.ints("rank")), comm.ints("end_ns")
    keep = (rank >= 0) & (end != NULL)
    begin = arrivals(comm)[keep]
    axis = axis_over(len(line.ranks), begin, end[keep], line.begins_ns)
    if axis is None or not keep.any():
        return empty
    busy = union(axis.at(rank[keep], begin), axis.at(rank[keep], end[keep]))
    own = _uncovered(line, axis, busy)
    return _bundle(line, [BETWEEN], [own], [np.full_like(own, np.nan)], [])


def _uncovered(line: Timeline, axis: Axis, busy: Union) -> Floats:
    """How much of each step no interval covers."""
    known = (line.start_ns != NULL) & np.isfinite(line.period_ns)
    start = np.where(known, line.start_ns, axis.origin_ns)
    period = np.where(known, line.period_ns, 0.0).astype(np.int64)
    rank = np.arange(len(line.ranks))[:, None]
    begin, end = axis.at(rank, start), axis.at(rank, start + period)
    return np.where(known, end - begin - (busy.covered(end) - busy.covered(begin)), np.nan)

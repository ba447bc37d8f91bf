"""Own busy time per rank, step and phase: blame rule 1, waiting for others is not one's own.

Where the collector measured it, own time is `duration_ns - wait_ns`. Elsewhere the communication
operators inside a phase that block are subtracted (transfer included, which is nobody's own
either); data-parallel operators overlap the backward pass and are not. A phase that may have
waited an unknown time is not comparable between ranks and is left out, with a word why.

Phases nested in others (a user's `stepscope.phase` inside the forward pass) would count twice and
are set aside. The time of a step in no phase is told apart in `unnamed`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.numeric.intervals import Spans, axis_over, union_of_rows
from stepscope.diagnose.prepare.matching import arrivals
from stepscope.diagnose.views.phase_rows import CANONICAL, PhaseRows, nullable, phase_rows
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import (
    BETWEEN,
    idle_times,
    outside_phases,
    uncovered,
    wait_times,
)
from stepscope.trace import BACKWARD, FORWARD, OPERATORS
from stepscope.window import NULL, Floats, Mask, Table, Union, Window, union

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


def own_time(window: Window, line: Timeline) -> OwnTime:
    """Own time of everything comparable in the window."""
    rows = phase_rows(window, line)
    if rows is None:
        return _without_phases(window, line)
    waits = _waited(window, rows)
    names, skipped = _comparable(rows, waits)
    own = [*rows.grids(np.maximum(rows.duration - waits, 0), names)]
    cpu = [*_cpu(rows, names)]
    for name, values in outside_phases(window, rows):
        names, own, cpu = [*names, name], [*own, values], [*cpu, np.full_like(values, np.nan)]
    return _bundle(line, names, own, cpu, skipped)


def _cpu(rows: PhaseRows, names: list[str]) -> Floats:
    if not rows.table.has("cpu_ns"):
        return np.full((len(names), len(rows.line.ranks), len(rows.line.steps)), np.nan)
    return rows.grids(nullable(rows.table, "cpu_ns"), names)


def _bundle(
    line: Timeline, names: list[str], own: list[Floats], cpu: list[Floats], skipped: list[Skipped]
) -> OwnTime:
    shape = (len(names), len(line.ranks), len(line.steps))
    if not names:
        return OwnTime((), np.zeros(shape), np.zeros(shape), tuple(skipped))
    return OwnTime(tuple(names), np.stack(own), np.stack(cpu), tuple(skipped))


def _waited(window: Window, rows: PhaseRows) -> Floats:
    """How long each row waited: measured, or covered by blocking operators, or NaN: unknown."""
    waits = nullable(rows.table, "wait_ns")
    silent = np.isnan(waits)
    if silent.any():
        blocked = _blocking(window, rows)
        if blocked is not None:
            waits[silent] = blocked.within(rows.begin[silent], rows.end[silent])
        else:
            waits = np.where(silent & ~_may_wait(window, rows), 0.0, waits)
    stood = _stood(window, rows)
    return waits if stood is None else np.maximum(waits, stood.within(rows.begin, rows.end))


def _stood(window: Window, rows: PhaseRows) -> Union | None:
    """When ranks stood for operators, but those between stages, where they say how long.

    Who timed a pass may have left out that it waited for parameters that others had not gathered.
    """
    comm = window.table("comm_ops")
    if comm is None or not comm.has("blocked_ns"):
        return None
    within = {group.id for group in window.groups if group.kind != "pp"}
    comm = comm.take((comm.ints("blocked_ns") > 0) & comm.strings("group").equals(*within))
    return union_of_rows(rows.axis, rows.line.rows(comm.ints("rank")), comm, wait_times)


def _may_wait(window: Window, rows: PhaseRows) -> Mask:
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


def _blocking(window: Window, rows: PhaseRows) -> Union | None:
    """The intervals in which a rank stood in a blocking operator, where they were recorded."""
    comm = window.table("comm_ops")
    kinds = {group.id for group in window.job.groups_of_kind(*BLOCKING_KINDS)}
    if comm is None or not comm.has("end_ns") or not kinds:
        return None

    def spans(part: Table) -> Spans:
        end = part.ints("end_ns")
        return arrivals(part), end, part.strings("group").equals(*kinds) & (end != NULL)

    return union_of_rows(rows.axis, rows.line.rows(comm.ints("rank")), comm, spans)


def _comparable(rows: PhaseRows, waits: Floats) -> tuple[list[str], list[Skipped]]:
    """Phases whose own time is known and that do not count anything twice."""
    names: list[str] = []
    skipped: list[Skipped] = []
    silent, nested = rows.shares(np.isnan(waits)), rows.shares(rows.inner)
    passes = silent.keys() & {FORWARD, BACKWARD}
    for name in (*CANONICAL, *sorted(silent.keys() - set(CANONICAL))):
        if name not in silent or communicates(name):
            continue
        if silent[name] > MOSTLY:
            skipped.append(Skipped(f"own time of {name}", "it may contain waiting nobody measured"))
        elif nested[name] <= MOSTLY or not passes.intersection(names):
            names.append(name)  # a nested phase stands in for its parent, if that is unknown
    return names, skipped


def _without_phases(window: Window, line: Timeline) -> OwnTime:
    """By operators, or else by what kernels leave free; what these take is judged by `l3`."""
    comm = window.table("comm_ops")
    if comm is not None and comm.has("end_ns") and len(line.steps):
        return _between_collectives(comm, line)
    idle = idle_times(window, line)
    missing = Skipped("own time", "no tables phases or comm_ops")
    unknown = [np.full_like(own, np.nan) for _, own in idle]
    return _bundle(line, [name for name, _ in idle], [own for _, own in idle], unknown, [missing])


def _between_collectives(comm: Table, line: Timeline) -> OwnTime:
    """The step less the time in which an operator was under way on the rank."""
    rank, end = line.rows(comm.ints("rank")), comm.ints("end_ns")
    keep = (rank >= 0) & (end != NULL)
    begin = arrivals(comm)[keep]
    axis = axis_over(len(line.ranks), begin, end[keep], line.begins_ns)
    if axis is None or not keep.any():
        return _bundle(line, [], [], [], [Skipped("own time", "no operator ended")])
    busy = union(axis.at(rank[keep], begin), axis.at(rank[keep], end[keep]))
    own = uncovered(line, axis, busy)
    return _bundle(line, [BETWEEN], [own], [np.full_like(own, np.nan)], [])

"""How far each rank got, by the rows that it wrote: phases, calls, kernels or steps.

A row is written when its phase has ended, so what a rank is in now is the first of the rows that it
wrote in each step before and has not written in this one. Only rows that the rank wrote in all of
its newest complete steps are expected.
Cost: the rows of the newest steps, rank by rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.liveness import StepTiming
from stepscope.diagnose.prepare.communication import communicates
from stepscope.window import NULL, Ints, Rows, Table, Window

NEWEST = 4
"""Steps that are read: the unfinished one, one that some ranks are behind, and two to compare with.
Our choice."""
LEAST_STEPS = 3
"""Of fewer steps nothing shows how long they take, nor what is usual in them. Statistics."""

Row = tuple[str, int]
"""A phase and its microbatch (-1: none), or the name of an operator or a kernel."""


@dataclass(frozen=True)
class Position:
    """Where a rank is: in which step, and what it has still to do there."""

    rank: int
    step: int
    """The step after the last one that it completed."""
    expected: tuple[Row, ...]
    """What it did in each step before, in the usual order."""
    missing: tuple[Row, ...]
    """What of that it has not ended in this one."""
    has_begun: bool
    """Whether it ended anything in that step."""
    pause_ns: Mapping[int, int]
    """How long it did nothing before each row of its last complete step, by the row's number;
    only where hosts' calls are all that is known."""

    @property
    def work(self) -> tuple[Row, ...]:
        """The missing rows except communication, in which ranks wait for one another; all missing
        rows if only calls of operators are known, which do not wait."""
        return self._work_of(self.missing)

    @property
    def is_at_start(self) -> bool:
        """Whether it has all of that still to do. Parts of several passes may have one name."""
        return len(self.work) == len(self._work_of(self.expected))

    def _work_of(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        if all(is_exchange(name) for name, _ in self.expected):
            return rows
        return tuple(one for one in rows if not is_exchange(one[0]))

    @property
    def done(self) -> int:
        """How many of the expected rows it has ended."""
        return len(self.expected) - len(self.missing)

    def has_ended(self, row: Row, step: int) -> bool:
        return self.step > step or (self.step == step and row not in self.missing)


@dataclass(frozen=True)
class Positions:
    """The positions of all recorded ranks, and how long steps took."""

    of: dict[int, Position]
    timing: StepTiming


def is_exchange(name: str) -> bool:
    """Whether a phase, kernel or operator moves data between ranks."""
    return communicates(name) or "nccl" in name.lower()


def positions(window: Window) -> Positions | None:
    """How far each rank got; None if too few steps were recorded to know."""
    source = _source(window)
    if source is None:
        return None
    table, name = source
    begins = _begins(table)
    gaps = np.diff(begins).astype(np.float64)
    gaps = gaps[gaps > 0]
    if begins.size < LEAST_STEPS or not gaps.size:
        return None
    newest = int(table.ints("step").max())
    table = table.take(table.ints("step") > newest - NEWEST)
    complete = _complete(window, newest - NEWEST)
    by_calls = table.has("seq") and bool((table.ints(REACHED) == table.ints("enqueue_ns")).all())
    found = {rank: _position(rank, own, name, complete.get(rank, -1), by_calls)
             for rank, own in table.per_rank() if rank >= 0}  # fmt: skip
    timing = StepTiming(float(np.median(gaps)), float(gaps[1:].max(initial=0.0)), None)
    return Positions(found, timing)


_SOURCES = (("phases", "phase"), ("comm_ops", "op"), ("kernels", "kernel"), ("steps", ""))
"""Tables by how well they show where a rank is, and the column with names."""


REACHED = "reached_ns"
"""A column for when a rank got there: when a phase or an operator ended, or was called."""


def _source(window: Window) -> tuple[Table, str] | None:
    """The best table that reaches as far as any: some are recorded for a part of the time only."""
    known = [(_usable(window, table), name) for table, name in _SOURCES]
    tables = [(table, name) for table, name in known if table is not None and len(table)]
    newest = max((int(table.ints("step").max()) for table, _ in tables), default=0)
    return next((one for one in tables if int(one[0].ints("step").max()) >= newest - 1), None)


def _usable(window: Window, name: str) -> Table | None:
    """The rows of a table that have a rank and a step, and that ended."""
    table = window.table(name)
    if table is None or not table.has("step", "enqueue_ns" if name == "comm_ops" else "start_ns"):
        return None
    if name != "comm_ops":
        reached = table.ints("start_ns") + table.ints("duration_ns")
    else:
        reached = table.ints(_reached(window, table))
    kept = (table.ints("step") >= 0) & (table.ints("rank") >= 0) & (reached != NULL)
    return table.with_column(REACHED, reached).take(kept)


def _reached(window: Window, comm: Table) -> str:
    """The column that shows how far ranks got: ends, else calls; or starts on devices, but not in
    pipelines, where receives start before anybody sends."""
    columns = ["end_ns"] if window.job.groups_of_kind("pp") else ["end_ns", "start_ns"]
    return next(filter(comm.knows, columns), "enqueue_ns")


def _begins(table: Table) -> Ints:
    """When each step began on its first rank."""
    begin = table.ints("enqueue_ns" if table.has("enqueue_ns", "seq") else "start_ns")
    _, at = np.unique(table.ints("step"), return_inverse=True)
    first = np.full(int(at.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, at, begin)
    return first


def _complete(window: Window, since: int) -> dict[int, int]:
    """The newest step of each rank that table `steps` has."""
    steps = window.table("steps")
    if steps is None or not steps.has("step"):
        return {}
    steps = steps.take(steps.ints("step") > since)
    return {rank: int(own.ints("step").max()) for rank, own in steps.per_rank()}


def _position(rank: int, own: Table, name: str, complete: int, by_calls: bool) -> Position:
    steps = dict(_by_step(own))
    newest, before = max(steps), sorted(steps)[:-1]
    expected = _expected([_rows(own, name, steps[step]) for step in before])
    missing = tuple(_not_yet(expected, Counter(_rows(own, name, steps[newest]))))
    pauses = np.diff(own.ints(REACHED)[steps[before[-1]]]).tolist() if before and by_calls else []
    pause_ns = dict(enumerate(pauses, 1))
    if complete >= newest or (not missing and complete < 0):
        return Position(rank, max(newest, complete) + 1, expected, expected, False, pause_ns)
    return Position(rank, newest, expected, missing, True, pause_ns)


def _by_step(own: Table) -> Iterator[tuple[int, Rows]]:
    """The rows of each step in the order of their ends."""
    step = own.ints("step")
    order = np.lexsort((own.ints(REACHED), step))
    for part in np.split(order, np.flatnonzero(np.diff(step[order])) + 1):
        yield int(step[part[0]]), part


def _rows(own: Table, name: str, rows: Rows) -> list[Row]:
    if not name:
        return []
    words = own.strings(name)
    names = [words.values[code] if code >= 0 else "" for code in words.codes[rows].tolist()]
    parts = own.ints("microbatch")[rows].tolist() if own.has("microbatch") else [-1] * len(names)
    return list(zip(names, parts, strict=True))


def _expected(steps: Sequence[list[Row]]) -> tuple[Row, ...]:
    """The rows that all of these steps have, in the order of the last."""
    if not steps:
        return ()
    common = Counter(steps[-1])
    for one in steps[:-1]:
        common &= Counter(one)
    kept: list[Row] = []
    for row in steps[-1]:
        if common[row] > 0:
            common[row] -= 1
            kept.append(row)
    return tuple(kept)


def _not_yet(expected: Sequence[Row], done: Counter[Row]) -> Iterator[Row]:
    left = done.copy()
    for row in expected:
        if left[row] > 0:
            left[row] -= 1
        else:
            yield row

"""Steps and phases of which only durations were recorded, laid out one after another.

A logger prints how long each step and its phases took, not when. Diagnosis places everything on an
axis of time, so such rows are given times: ranks begin each step together, after the longest of the
step before or with the first operator of the step, and the phases of a step follow one another in
the order of their rows. Durations stay as they were recorded. The order is assumed, and reported as
such.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.prepare.totals import without_totals
from stepscope.window import NULL, Ints, Table, Window, numbered

TIMES = {"comm_ops": "enqueue_ns", "kernels": "start_ns", "stacks": "start_ns", "hardware": "ts_ns"}
"""Tables whose times tell when a job ran."""
EARLIEST_NS = 10**9
"""Where the axis begins if nothing has times: after 0, which stands for an unknown time."""
UNTIMED = ("steps", "phases")
"""Tables that are of use without times, in the order in which they are laid out."""
LATEST_NS = 4 * 10**18
"""The year 2096; the sum of two later times would overflow int64."""
LONGEST_NS = 10**15
"""No step, phase or operator lasts eleven days: the clock jumped between its start and end. Our
simulator."""


def laid_out(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window with times for tables that have only durations, and a note on each of them."""
    tables, notes, first = dict(window.tables), [], _earliest(window)
    called = window.table("comm_ops")
    for name in UNTIMED:
        table = window.table(name)
        if table is None or not _is_untimed(table):
            continue
        if name == "phases":
            table, totals = without_totals(table, tables.get("steps"))
            notes += [Skipped(f"phase {one}", "a total of other phases") for one in totals]
        begins = _steps_of(tables) if name == "phases" else _after_the_longest(table, first, called)
        begins = begins or _after_the_longest(_sums(table), first, called)
        tables[name] = table.with_column("start_ns", _starts(table, begins))
        notes.append(Skipped(f"times of {name}", "no times, only durations: order assumed"))
    return Window(window.job, tables), tuple(notes)


def _is_untimed(table: Table) -> bool:
    if not table.has("rank", "step", "duration_ns"):
        return False
    return not table.has("start_ns") or bool((table.ints("start_ns") == NULL).all())


def _earliest(window: Window) -> int:
    """The first time in any table that has times."""
    known = [EARLIEST_NS]
    for name, column in TIMES.items():
        table = window.table(name)
        if table is not None and table.has(column):
            times = table.ints(column)
            known += [int(times[times > 0].min(initial=LATEST_NS))]
    return max(known[0], min(known[1:], default=known[0]))


def _steps_of(tables: dict[str, Table]) -> _StepStarts | None:
    """The starts of recorded steps, by rank and step; None without steps."""
    steps = tables.get("steps")
    if steps is None or not len(steps) or not steps.has("rank", "step", "start_ns"):
        return None
    return _StepStarts(steps.ints("rank"), steps.ints("step"), steps.ints("start_ns"))


class _StepStarts:
    """When each rank began each step."""

    def __init__(self, rank: Ints, step: Ints, start: Ints) -> None:
        self._rank, self._step, self._start = rank, step, start

    def of(self, rank: Ints, step: Ints) -> Ints:
        """The starts for these ranks and steps; NULL where the step was not recorded."""
        own = len(self._rank)
        key = numbered(np.append(self._rank, rank), np.append(self._step, step))
        start = np.full(int(key.max(initial=-1)) + 1, NULL)
        start[key[:own]] = self._start
        return start[key[own:]]


def _after_the_longest(steps: Table, first_ns: int, called: Table | None) -> _StepStarts:
    """All ranks begin a step when the last of them finished the one before, or if they called
    operators in it, with the first call."""
    numbers, column = np.unique(steps.ints("step"), return_inverse=True)
    longest = np.zeros(len(numbers), np.int64)
    np.maximum.at(longest, column, _lasted(steps))
    before = np.cumsum(longest) - longest
    begins = before + np.maximum.accumulate(_first_calls(called, numbers, first_ns) - before)
    return _StepStarts(steps.ints("rank"), steps.ints("step"), begins[column])


def _first_calls(called: Table | None, steps: Ints, first_ns: int) -> Ints:
    """When the first operator of each step was called; `first_ns` where that is unknown."""
    unknown = np.full(len(steps), first_ns)
    if called is None or not called.has("step", "enqueue_ns"):
        return unknown
    number, call = called.ints("step"), called.ints("enqueue_ns")
    at = np.searchsorted(steps, number).clip(max=len(steps) - 1)
    known = (call > 0) & (call < LATEST_NS) & (steps[at] == number)
    first = np.full(len(steps), LATEST_NS)
    np.minimum.at(first, at[known], call[known])
    return np.where(first == LATEST_NS, unknown, first)


def _sums(phases: Table) -> Table:
    """Steps that last as long as their phases together."""
    step = numbered(phases.ints("rank"), phases.ints("step"))
    _, first = np.unique(step, return_index=True)
    lasted = np.zeros(len(first), np.int64)
    np.add.at(lasted, step, _lasted(phases))
    chosen = phases.take(first)
    return Table({name: chosen.ints(name) for name in ("rank", "step")} | {"duration_ns": lasted})


def _starts(table: Table, begins: _StepStarts) -> Ints:
    """Each row after those of its rank and step that precede it."""
    rank, step = table.ints("rank"), table.ints("step")
    key, lasted = numbered(rank, step), _lasted(table)
    order = np.argsort(key, kind="stable")
    before = np.cumsum(lasted[order]) - lasted[order]
    first = np.flatnonzero(np.diff(key[order], prepend=-1) != 0)
    before -= np.repeat(before[first], np.diff(np.append(first, len(before))))
    after = np.empty_like(before)
    after[order] = before
    begin = begins.of(rank, step)
    return np.where(begin == NULL, NULL, begin + after)


def _lasted(table: Table) -> Ints:
    """The durations; 0 for rows that are impossible or unknown."""
    lasted = table.ints("duration_ns")
    return np.where((lasted >= 0) & (lasted < LONGEST_NS), lasted, 0)

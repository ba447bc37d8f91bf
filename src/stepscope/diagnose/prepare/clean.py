"""Drops impossible rows: clocks that jumped, lost halves of pairs, values out of range.

Lossy on purpose: a row is dropped if its times or durations are impossible. The count is reported.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.prepare.blocking_calls import with_blocking_ends
from stepscope.diagnose.prepare.call_times import with_call_times, without_unrecorded_times
from stepscope.diagnose.prepare.durations import LATEST_NS, LONGEST_NS, laid_out
from stepscope.diagnose.prepare.groups import with_groups
from stepscope.diagnose.prepare.lost_rows import with_pairs
from stepscope.diagnose.prepare.order_of_passes import with_stages
from stepscope.diagnose.prepare.repeats import with_repeats
from stepscope.diagnose.prepare.rounds import with_rounds
from stepscope.diagnose.prepare.shared_names import with_own_names
from stepscope.diagnose.prepare.unnumbered import has_groups, with_numbers
from stepscope.window import NULL, UNKNOWN_STEP, Ints, Mask, Table, Window

TIMES = ("start_ns", "end_ns", "enqueue_ns", "ts_ns", "window_start_ns", "host_start_ns")
DURATIONS = ("duration_ns", "window_ns", "wait_ns", "cpu_ns", "blocked_ns")
REQUIRED = {
    "steps": ("rank", "step", "start_ns", "duration_ns"),
    "phases": ("rank", "step", "phase", "start_ns", "duration_ns"),
    "comm_ops": ("rank", "group", "seq", "op", "enqueue_ns"),
    "stacks": ("rank", "thread", "start_ns", "duration_ns", "frames"),
    "hardware": ("rank", "metric", "ts_ns", "value"),
    "pauses": ("rank", "kind", "start_ns", "duration_ns"),
    "losses": ("rank", "table", "start_ns", "end_ns", "rows"),
    "patterns": ("rank", "window_start_ns", "window_ns", "function", "kind", "beta"),
    "exits": ("rank", "ts_ns", "status", "signal", "announced", "reason", "detail"),
}
"""Columns without which a table is ignored."""


def clean(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window without impossible rows and unusable tables, and a note on each omission.

    Groups have one name per communicator, and those that the job does not list are those that
    called operators.
    """
    tables: dict[str, Table] = {}
    window, untimed = laid_out(with_numbers(window))
    notes = [*untimed]
    for name, stored in window.tables.items():
        table = _numbered(with_call_times(stored) if name == "comm_ops" else stored)
        missing = [column for column in REQUIRED.get(name, ("rank",)) if not table.has(column)]
        if name == "comm_ops" and not missing and not has_groups(table):
            missing = ["group"]
        if missing:
            notes.append(Skipped(f"table {name}", f"no column {', '.join(missing)}"))
            continue
        possible = np.concatenate([_possible(name, part) for _, part in table.parts()])
        dropped = len(table) - int(possible.sum())
        if dropped:
            notes.append(Skipped(f"table {name}", f"{dropped} rows with impossible values dropped"))
        tables[name] = table.take(possible) if dropped else table
    window = without_unrecorded_times(Window(window.job, tables))
    window, counted = with_rounds(with_stages(with_groups(with_own_names(window))))
    window, inferred = with_blocking_ends(window)
    window, repeated = with_repeats(window)
    return with_pairs(window), (*notes, *counted, *inferred, *repeated)


def _numbered(table: Table) -> Table:
    """With -1 for every step that has no number: what lies below it is for a baseline."""
    if not table.has("step") or not len(table) or table.numbers("step").min() >= UNKNOWN_STEP:
        return table
    step = table.ints("step")
    return table.with_column("step", np.where(step == NULL, NULL, np.maximum(step, UNKNOWN_STEP)))


def _possible(name: str, table: Table) -> Mask:
    possible = table.numbers("rank") >= -1
    for column in REQUIRED.get(name, ()):
        if column in TIMES:
            possible &= table.ints(column) != NULL
    for column in filter(table.has, TIMES):
        possible &= _within(table.ints(column), LATEST_NS, nullable=True)
    for column in filter(table.has, DURATIONS):
        nullable = column not in REQUIRED.get(name, ())
        possible &= _within(table.ints(column), LONGEST_NS, nullable)
    if name in ("comm_ops", "losses") and table.has("end_ns"):
        possible &= _in_order(table, "enqueue_ns" if name == "comm_ops" else "start_ns")
    if table.has("value"):
        possible &= np.isfinite(table.floats("value"))
    return possible


def _within(values: Ints, limit: int, nullable: bool) -> Mask | bool:
    # mostly all are; a negative number is a huge one without its sign
    if values.size and values.view(np.uint64).max() < limit:
        return True
    return np.asarray(((values >= 0) & (values < limit)) | (nullable & (values == NULL)))


def _in_order(table: Table, begin: str) -> Mask:
    start, end = table.ints(begin), table.ints("end_ns")
    known = (start != NULL) & (end != NULL)
    lasted = np.where(known, end, 0) - np.where(known, start, 0)
    return (lasted >= 0) & (lasted < LONGEST_NS)

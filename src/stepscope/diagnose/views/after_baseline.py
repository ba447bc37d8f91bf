"""A job with the steps of a healthy one before its own: what compares before with after then says
what is worse than there.

The healthy job's steps get negative numbers (the last is -2: -1 is an unknown one), and its times
end where the job's first step begins. First steps, in which either job warms up, are left out. The
same communicators have the same names, and their operators smaller numbers.
Cannot see: ranks that only one of both recorded, tables that the job has not, profiles and exits
of the healthy job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.prepare.clean import TIMES
from stepscope.diagnose.views.some_steps import in_columns
from stepscope.diagnose.views.timeline import Timeline, timeline
from stepscope.trace import Job
from stepscope.window import (
    NULL,
    UNKNOWN_STEP,
    Column,
    Strings,
    Table,
    Window,
    joined,
    known_steps,
    unknown,
)

LAST = UNKNOWN_STEP - 1
"""The number of the healthy job's last step."""
COMPARED = (
    "steps", "phases", "kernels", "kernel_summaries", "comm_ops", "transfers", "stacks", "hardware",
    "losses", "host_ops", "pauses",
)  # fmt: skip
NUMBERS = ("seq", "match")
"""What pairs operators with each other."""


@dataclass(frozen=True)
class _WarmedUp:
    """A job without the steps in which it warms up."""

    window: Window
    line: Timeline

    @classmethod
    def of(cls, window: Window) -> _WarmedUp:
        line = timeline(window)
        if not 0 < line.warm_up < len(line.steps):
            return cls(window, line)
        kept = in_columns(window, line, line.warm_up, len(line.steps))
        return cls(kept, timeline(kept))


def after_baseline(window: Window, healthy: Window) -> Window:
    """Both jobs as one; the job alone where one of them has no steps.

    Args:
        window: the job, on one clock.
        healthy: the other, on one clock of its own.
    """
    job, before = _WarmedUp.of(window), _WarmedUp.of(healthy)
    if not len(job.line.steps) or not len(before.line.steps):
        return window
    number = int(before.line.steps[-1]) - LAST
    end_ns = before.line.span_ns(0, len(before.line.steps))[1]
    by_ns = int(job.line.begins_ns[0]) - end_ns
    tables = dict(job.window.tables)
    for name in COMPARED:
        own, other = job.window.table(name), before.window.table(name)
        if own is None or other is None:
            continue
        other = _named_alike(other, before.window.job, job.window.job)
        other = _earlier(_numbered(other, own, number), by_ns)
        tables[name] = joined([_with_columns(other, own), own])
    return Window(job.window.job, tables)


def _earlier(table: Table, by_ns: int) -> Table:
    for name in filter(table.has, TIMES):
        times = table.ints(name)
        table = table.with_column(name, np.where(times == NULL, NULL, times + by_ns))
    return table


def _numbered(table: Table, own: Table, number: int) -> Table:
    """With numbers of steps below zero, and of operators below those of the job."""
    if table.has("step"):
        step = table.ints("step")
        table = table.with_column("step", np.where(known_steps(step), step - number, step))
    for name in NUMBERS:
        if table.has(name) and own.has(name):
            values, others = table.ints(name), own.ints(name)
            last = values[values != NULL].max(initial=0)
            by = int(others[others != NULL].min(initial=0)) - int(last) - 1
            table = table.with_column(name, np.where(values == NULL, NULL, values + by))
    return table


def _named_alike(table: Table, healthy: Job, job: Job) -> Table:
    """Its rows of ranks, hosts and groups that the job has, by the job's names of these."""
    kept = np.ones(len(table), np.bool_)
    names = {"group": {(one.kind, one.ranks): one.id for one in job.groups},
             "host": {("", one.ranks): one.name for one in job.hosts}}  # fmt: skip
    known = {"group": {one.id: (one.kind, one.ranks) for one in healthy.groups},
             "host": {one.name: ("", one.ranks) for one in healthy.hosts}}  # fmt: skip
    for column in filter(table.has, names):
        if not names[column]:
            continue
        renamed = {old: names[column].get(who) for old, who in known[column].items()}
        words = _renamed(table.strings(column), renamed)
        of_rank = table.ints("rank") >= 0 if column == "host" else np.False_
        kept &= (words.codes >= 0) | of_rank
        table = table.with_column(column, words)
    return table.take(kept)


def _renamed(words: Strings, names: Mapping[str, str | None]) -> Strings:
    """With other names; null where there is none."""
    new = [names.get(word) for word in words.values]
    values = dict.fromkeys(word for word in new if word is not None)
    place = {word: at for at, word in enumerate(values)}
    codes = np.array([*(-1 if word is None else place[word] for word in new), -1], np.int32)
    return Strings(codes[words.codes], tuple(values))


def _with_columns(table: Table, own: Table) -> Table:
    """With the columns of the job's table, and unknown values in those that were not recorded."""
    return Table({name: _like(table, name, column) for name, column in own.columns.items()})


def _like(table: Table, name: str, column: Column) -> Column:
    found = table.columns.get(name)
    if found is not None and isinstance(found, Strings) == isinstance(column, Strings):
        return found
    return unknown(column, len(table))

"""Truncates a job to what was known at an earlier time, to measure how soon it can be diagnosed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.trace import TABLES
from stepscope.window import NULL, Ints, Mask, Strings, Table, Window


def until(window: Window, moment_ns: int) -> Window:
    """What had been recorded by then: rows that had ended, and operators still running."""
    tables = {name: _known(name, table, moment_ns) for name, table in window.tables.items()}
    return Window(replace(window.job, observed_until_ns=moment_ns), tables)


def step_ends(window: Window) -> dict[int, int]:
    """When the last rank finished each step that every rank finished, by the ranks' own clocks."""
    steps = window.table("steps")
    if steps is None:
        return {}
    number, end = steps.ints("step"), steps.ints("start_ns") + steps.ints("duration_ns")
    found: dict[int, int] = {}
    for step in np.unique(number):
        here = end[number == step]
        if len(here) == len(window.ranks):
            found[int(step)] = int(here.max())
    return found


def _known(name: str, table: Table, moment_ns: int) -> Table:
    if name == "comm_ops":
        return _operators(table, moment_ns)
    if name == "stacks":
        return _samples(table, moment_ns)
    return table.take(_end(name, table) <= moment_ns)


def _end(name: str, table: Table) -> Ints:
    start = table.ints(TABLES[name].time)
    for lasting in ("duration_ns", "window_ns"):
        if table.has(lasting):
            return start + table.ints(lasting)
    return table.ints("end_ns") if table.has("end_ns") else start


def _samples(table: Table, moment_ns: int) -> Table:
    """A row is a run of equal samples; a run that was still going on is cut short."""
    start = table.ints("start_ns")
    lasted = np.minimum(table.ints("duration_ns"), moment_ns - start)
    return table.with_column("duration_ns", lasted).take(start <= moment_ns)


def _operators(table: Table, moment_ns: int) -> Table:
    """The operators that had been issued; what happened to them later is not known yet."""
    table = table.take(table.ints("enqueue_ns") <= moment_ns)
    later: dict[str, Mask] = {}
    for column in ("start_ns", "end_ns"):
        if table.has(column):
            values = table.ints(column)
            later[column] = values > moment_ns
            table = table.with_column(column, np.where(later[column], NULL, values))
    if table.has("state") and len(later) == 2:
        table = table.with_column("state", _states(table.strings("state"), later))
    return table


_STATES = ("done", "started", "scheduled")


def _states(recorded: Strings, later: dict[str, Mask]) -> Strings:
    values = tuple(dict.fromkeys((*recorded.values, *_STATES)))
    _, started, scheduled = (values.index(one) for one in _STATES)
    codes = np.where(later["end_ns"], started, recorded.codes)
    return Strings(np.where(later["start_ns"], scheduled, codes).astype(np.int32), values)

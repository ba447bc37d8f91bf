"""Events of one rank as time intervals: their ends, and which are outermost."""

from __future__ import annotations

import numpy as np

from stepscope.window import Ints, Mask, Table


def ends(table: Table) -> Ints:
    return table.ints("start_ns") + table.ints("duration_ns")


def outermost(table: Table) -> Mask:
    """Rows, in order of time, that no other row of their thread contains.

    What a thread does is nested or one after the other. Rounded times of neighbours may overlap, so
    a row is inside another only if most of it is.
    """
    thread, start, end = table.ints("thread"), table.ints("start_ns"), ends(table)
    order = np.argsort(thread, kind="stable")
    keep = np.zeros(len(table), np.bool_)
    for rows in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        reach = np.maximum.accumulate(end[rows])
        keep[rows[:1]] = True
        lasted = (end - start)[rows[1:]]
        keep[rows[1:]] = 2 * (reach[:-1] - start[rows[1:]]) <= lasted
    return keep


def named(table: Table, *prefixes: str) -> Mask:
    """Rows whose name begins with one of the prefixes."""
    names = table.strings("name")
    wanted = np.array([value.startswith(prefixes) for value in names.values] or [False], np.bool_)
    return wanted[names.codes]


def latest_before(times: Ints, moments: Ints) -> Ints:
    """The index in sorted `times` of the last one not after each moment; -1 if there is none."""
    return np.searchsorted(times, moments, side="right") - 1

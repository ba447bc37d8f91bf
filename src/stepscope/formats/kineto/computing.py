"""What the threads of the host compute themselves: their operators without the waiting in them.

An operator may call for communication and wait for it: the gradient of a user's all-reduce, a hook
of FSDP that autograd calls, an addition whose operand is a functional collective's result. Such an
operator computes only in the operators inside of it, and in the rest of its time in which no
communication is in progress.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.formats.kineto.comm import TALKS
from stepscope.formats.kineto.spans import ends, latest_before, named, outermost
from stepscope.window import NULL, Ints, Mask, Strings, Table, Union, union

_NUMBERS = ("start_ns", "duration_ns", "thread")


def in_progress(comm: Table | None) -> Union:
    """When communication whose end is known was in progress."""
    if comm is None:
        return union(np.zeros(0, np.int64), np.zeros(0, np.int64))
    comm = comm.take(comm.ints("end_ns") != NULL)
    return union(comm.ints("start_ns"), comm.ints("end_ns"))


def computing(cpu: Table, waiting: Union) -> Table:
    """The outermost operators of every thread without communication in them, in order of time.

    One that contains some is replaced by those in it, and by rows of its own name for the rest of
    its time outside `waiting`.
    """
    threads, talks = cpu.ints("thread"), named(cpu, *TALKS)
    order = np.argsort(threads, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(threads[order])) + 1)
    rows = [_of_thread(cpu.take(part), talks[part], waiting) for part in parts]
    return _stacked([one for tables in rows for one in tables])


def _of_thread(cpu: Table, talks: Mask, waiting: Union) -> Iterator[Table]:
    if not talks.any():
        yield cpu.take(outermost(cpu))
        return
    start, end = cpu.ints("start_ns"), ends(cpu)
    talk = union(start[talks], end[talks])
    inside = talks | _contained(start, end, talk)
    asked = start[talks]
    holds = ~inside & (np.searchsorted(asked, end) > np.searchsorted(asked, start))
    whole = cpu.take(~inside & ~holds)
    whole = whole.take(outermost(whole))
    yield whole
    around = cpu.take(holds)
    yield _rest(around.take(outermost(around)), _union(whole), talk, waiting)


def _contained(start: Ints, end: Ints, talk: Union) -> Mask:
    if not talk.start.size:
        return np.zeros(start.shape, np.bool_)
    at = latest_before(talk.start, start)
    return (at >= 0) & (end <= talk.end[np.maximum(at, 0)])


def _rest(around: Table, *others: Union) -> Table:
    """The time of operators that is in none of the others, under their names."""
    left = _union(around)
    for one in others:
        left = left.without(one)
    of = latest_before(around.ints("start_ns"), left.start)
    return around.take(of).with_column("start_ns", left.start).with_column(
        "duration_ns", left.end - left.start)  # fmt: skip


def _union(table: Table) -> Union:
    return union(table.ints("start_ns"), ends(table))


def _stacked(tables: list[Table]) -> Table:
    """Rows of one table as one again, in order of time."""
    columns = {one: np.concatenate([t.ints(one) for t in tables]) for one in _NUMBERS}
    names = [table.strings("name") for table in tables]
    codes = np.concatenate([one.codes for one in names])
    found = Table({**columns, "name": Strings(codes, names[0].values)})
    return found.take(np.lexsort((-columns["duration_ns"], columns["start_ns"])))

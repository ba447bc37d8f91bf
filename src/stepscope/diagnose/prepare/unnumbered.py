"""Operators whose recorder knew neither their group nor their number within it.

A log of calls often has the operator and a time only. If each rank is in one group alone, its
operators are in that one. They are numbered in the order of their rank's calls; where steps were
recorded, within each step, so that a row that was lost shifts no later ones.
Cost: one sort of `comm_ops`. Cannot see: groups of ranks that are in several; without steps, rows
that were lost, or logs that begin at different places.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.window import NULL, Ints, Strings, Table, Window, numbered, occurrence


def with_numbers(window: Window) -> Window:
    """The window whose operators have a group and a number, as far as that is certain."""
    comm = window.table("comm_ops")
    if comm is None or not len(comm):
        return window
    named = _named(window, comm)
    found = named if named.has("seq") and (named.ints("seq") != NULL).any() else _counted(named)
    return window if found is comm else replace(window, tables={**window.tables, "comm_ops": found})


def has_groups(comm: Table) -> bool:
    """Whether any row says to which group its operator belongs."""
    return not len(comm) or bool((comm.strings("group").codes >= 0).any())


def _named(window: Window, comm: Table) -> Table:
    """Each row with the only group of its rank, where no row has one and all ranks have one."""
    if has_groups(comm):
        return comm
    groups = {frozenset(one.ranks): one for one in window.groups}
    names = tuple(one.id for one in groups.values())
    ranks = np.unique(comm.ints("rank"))
    member = np.array([[int(rank) in one for one in groups] for rank in ranks])
    if not (member.sum(axis=1) == 1).all():
        return comm
    code = member.argmax(axis=1)[np.searchsorted(ranks, comm.ints("rank"))]
    return comm.with_column("group", Strings(code.astype(np.int32), names))


def _counted(comm: Table) -> Table:
    """Each row with its place among the operators of its rank in its group, or of a step of it."""
    moment = _moments(comm)
    pairs = comm.strings("op").equals(*POINT_TO_POINT).astype(np.int64)
    step = comm.ints("step") if comm.has("step") else np.zeros(len(comm), np.int64)
    step = step if (step != NULL).all() else np.zeros(len(comm), np.int64)
    group = comm.strings("group").codes.astype(np.int64)
    place = occurrence(numbered(comm.ints("rank"), group, pairs, step), moment)
    return comm.with_column("seq", (step - step.min()) * (place.max() + 1) + place)


def _moments(comm: Table) -> Ints:
    """When each operator was called, or else when it started or ended."""
    moment = np.full(len(comm), NULL)
    for name in ("enqueue_ns", "start_ns", "end_ns"):
        if comm.has(name):
            moment = np.where(moment == NULL, comm.ints(name), moment)
    return moment

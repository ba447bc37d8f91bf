"""Roles: which ranks run the same program, by what they were seen to do.

In reinforcement learning some ranks train, others generate samples and others score them, and in
any job a part of the ranks may do something now and then that the others do not, such as an
evaluation. Nobody declares that, but the phases and operators of a rank show it.

Ours: two ranks have one role if they share more than half of the phases that either of them runs;
without phases, of the operators in groups of one kind. Ranks that call none in the groups that
split or replicate a model, while others do, train no model. So a rank that also saves checkpoints
keeps its peers. Several ranks that now and then run a phase together, each time the same ones, do
so by design: they do other work than the rest in those steps. A rank that is alone with a phase may
as well hold up the others by a fault, so it is not set apart, and neither are ranks that run it in
steps of their own. Phases of communication are no work.
Cost: one pass over the rows of `phases` or `comm_ops`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.prepare.matching import kinds_and_operators
from stepscope.diagnose.thresholds import HALF
from stepscope.window import Ints, Mask, Table, Window

OF_A_MODEL = ("tp", "cp", "pp", "ep", "mp", "dp", "edp")
"""Kinds of groups that split a model or replicate it."""
OFTEN = 2
"""Times that the same ranks run a phase together: once may be chance. Our choice."""


def with_roles(window: Window, groups: Sequence[Ints]) -> list[Ints]:
    """Groups of rows of `window.ranks` without ranks that have another role than the rest.

    Ranks in none of the groups are peers of those that have the same role.
    """
    done = _done(window)
    if done is None:
        return [*groups]
    role = _role_numbers(window, done)
    if int(role.max(initial=0)) > 0:
        rest = np.setdiff1d(np.arange(len(role)), np.concatenate([*groups, np.zeros(0, np.int64)]))
        groups = [part for rows in (*groups, rest) for part in _split(rows, role[rows])]
    phases = window.table("phases")
    if phases is None or not phases.has("step"):
        return [*groups]
    steps = np.unique(phases.ints("step")).size
    return [part for rows in groups for part in _split_by_plans(window, phases, done, rows, steps)]


def roles(window: Window) -> list[Ints]:
    """The rows of `window.ranks` that have each role, also of single ranks."""
    done = _done(window)
    if done is None:
        return [np.arange(len(window.ranks))]
    number = _role_numbers(window, done)
    return [np.flatnonzero(number == one) for one in np.unique(number)]


def together_by_design(entered: Mask) -> Mask:
    """The ranks that run a phase together while others never do; `[rank, step]`: who ran it when.

    None if a rank ran it alone, or in a step in which another of them did not.
    """
    ever, when = np.asarray(entered.any(axis=1)), entered.any(axis=0)
    several = 1 < int(ever.sum()) < len(ever)
    planned = several and int(when.sum()) >= OFTEN and bool(entered[ever][:, when].all())
    return ever if planned else np.zeros(len(ever), np.bool_)


def _done(window: Window) -> Mask | None:
    """Which phases, or else operators, each rank was seen in, `[rank, what]`; None if unknown."""
    phases, comm = window.table("phases"), window.table("comm_ops")
    table = phases if phases is not None and len(phases) else comm
    if table is None or not len(table) or not len(window.ranks):
        return None
    what = _codes(table) if table is phases else kinds_and_operators(window, table)
    row, known = _rows(window, table)
    known &= what >= 0
    if table is phases:
        known &= ~table.strings("phase").equals(
            *filter(communicates, table.strings("phase").values)
        )
    done = np.zeros((len(window.ranks), int(what.max(initial=0)) + 1), np.bool_)
    done[row[known], what[known]] = True
    return done


def _codes(phases: Table) -> Ints:
    return phases.strings("phase").codes.astype(np.int64)


def _rows(window: Window, table: Table) -> tuple[Ints, Mask]:
    """The row of each entry's rank, and whether it is a known rank."""
    ranks, rank = np.array(window.ranks, np.int64), table.ints("rank")
    row = np.minimum(np.searchsorted(ranks, rank), ranks.size - 1)
    return row, np.asarray(ranks[row] == rank)


def _role_numbers(window: Window, done: Mask) -> Ints:
    """A number for the role of each rank, by what it was seen in."""
    role, comm = _role_of(done), window.table("comm_ops")
    if comm is None or window.table("phases") is not None:
        return role
    row, known = _rows(window, comm)
    trains, calls = (np.zeros(len(role), np.bool_) for _ in range(2))
    calls[row[known]] = True
    groups = (group.id for group in window.job.groups_of_kind(*OF_A_MODEL))
    trains[row[known & comm.strings("group").equals(*groups)]] = True
    return np.where(trains | ~calls | ~trains.any(), role, role + role.max(initial=0) + 1)


def _role_of(done: Mask) -> Ints:
    """A number for the role of each rank, the most frequent ones first.

    Of ranks that did nothing the role is not known: they keep the most frequent one.
    """
    kinds, kind, count = np.unique(done, axis=0, return_inverse=True, return_counts=True)
    typical: list[Mask] = []
    number = np.zeros(len(kinds), np.int64)
    for at in np.argsort(-count, kind="stable"):
        if not kinds[at].any():
            continue
        alike = [_shared(kinds[at], other) for other in typical]
        best = int(np.argmax(alike)) if alike else 0
        if not alike or alike[best] <= HALF:
            best = len(typical)
            typical.append(kinds[at])
        number[at] = best
    return np.asarray(number[kind.ravel()])


def _shared(one: Mask, other: Mask) -> float:
    return float((one & other).sum() / max((one | other).sum(), 1))


def _split(rows: Ints, number: Ints) -> list[Ints]:
    """The rows with the same number, where there are several."""
    parts = (rows[number == one] for one in np.unique(number))
    return [part for part in parts if part.size > 1]


def _split_by_plans(
    window: Window, phases: Table, done: Mask, rows: Ints, steps: int
) -> list[Ints]:
    """A group, without the ranks that now and then run a phase together which the others never
    run."""
    here = done[rows]
    partly = np.flatnonzero(here.any(axis=0) & ~here.all(axis=0) & (here.sum(axis=0) > 1))
    number = np.zeros(rows.size, np.int64)
    for phase in partly.tolist():
        entered = _entered(window, phases, phase)[rows]
        if entered.any(axis=0).sum() <= HALF * steps:
            number = 2 * number + together_by_design(entered)
    return _split(rows, number) if number.any() else [rows]


def _entered(window: Window, phases: Table, phase: int) -> Mask:
    """Who ran a phase in which of the steps in which anybody did, `[rank, step]`."""
    part = phases.take(_codes(phases) == phase)
    row, known = _rows(window, part)
    steps, column = np.unique(part.ints("step"), return_inverse=True)
    entered = np.zeros((len(window.ranks), steps.size), np.bool_)
    entered[row[known], column.ravel()[known]] = True
    return entered

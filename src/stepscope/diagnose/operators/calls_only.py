"""Operators in which a job may stand still, if only the calls of hosts are known.

With NCCL a host call returns at once, and neither CUPTI nor NCCL's plugin reports an operator that
never ends. What is known is how far each host got: in a step that did not finish, the first
operator that not all members of its group called is the one that holds up those who did. If all
made the same calls, the newest call of a group counts as one that all entered.
Where members numbered their operators differently before, a group shows nothing.
Cost: one match and a pass over the calls.
Cannot see: how far the devices got.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.open_ops import OpenOperator
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, match
from stepscope.window import NULL, Ints, Table, Window


def unanswered(window: Window, comm: Table, last_step_ns: int) -> tuple[OpenOperator, ...]:
    """The operators of the unfinished step that hold up a member, or that were called last."""
    if not comm.has("step") or not _ends_unknown(comm, last_step_ns):
        return ()
    found = [*_of_groups(window, comm, last_step_ns), *_of_pairs(comm, last_step_ns)]
    incomplete = [one for one in found if one.absent]
    return tuple(sorted(incomplete or found, key=lambda one: one.since_ns))


def _ends_unknown(comm: Table, last_step_ns: int) -> bool:
    """Whether operators were called since the last step ended, and no end of them is known."""
    newest = comm.take(comm.ints("enqueue_ns") > last_step_ns)
    if not len(newest):
        return False
    together = newest.take(~newest.strings("op").equals(*POINT_TO_POINT))
    newest = together if len(together) else newest  # with gloo, many sends end unseen
    return not newest.has("end_ns") or bool((newest.ints("end_ns") == NULL).any())


def _of_groups(window: Window, comm: Table, last_step_ns: int) -> Iterator[OpenOperator]:
    together = comm.take(~comm.strings("op").equals(*POINT_TO_POINT))
    words = together.strings("group")
    order = np.argsort(words.codes, kind="stable")
    codes, begins = np.unique(words.codes[order], return_index=True)
    for code, rows in zip(codes.tolist(), np.split(order, begins[1:]), strict=False):
        known = window.job.group(words.values[code]) if code >= 0 else None
        if known is None or len(known.ranks) < 2:
            continue
        calls = together.take(rows)
        if set(calls.ints("rank").tolist()) == set(known.ranks):
            yield from _of_group(_Calls.of(calls), known.id, last_step_ns)


@dataclass(frozen=True)
class _Calls:
    """The calls of one group, and how far each member got."""

    table: Table
    last: dict[int, int]
    """The newest sequence number of each member."""
    before: set[int]
    """The members' newest ones in the newest step that all of them finished calling."""

    @classmethod
    def of(cls, table: Table) -> _Calls:
        parts = dict(table.per_rank())
        last = {rank: int(one.ints("seq").max()) for rank, one in parts.items()}
        shared = min(int(one.ints("step").max()) for one in parts.values())
        earlier = (one.ints("seq")[one.ints("step") < shared] for one in parts.values())
        return cls(table, last, {int(seqs.max(initial=-1)) for seqs in earlier})


def _of_group(calls: _Calls, name: str, last_step_ns: int) -> Iterator[OpenOperator]:
    if len(calls.before) != 1:
        return
    least, most = min(calls.last.values()), max(calls.last.values())
    seq = least + 1 if most > least else most
    rows = calls.table.take(calls.table.ints("seq") == seq)
    if not len(rows) or int(rows.ints("enqueue_ns").max()) <= last_step_ns:
        return
    called = dict(zip(rows.ints("rank").tolist(), rows.ints("enqueue_ns").tolist(), strict=True))
    absent = frozenset(rank for rank, newest in calls.last.items() if newest < seq)
    yield _operator(rows, name, called, absent)


def _of_pairs(comm: Table, last_step_ns: int) -> Iterator[OpenOperator]:
    """Sends without a receive, and receives without a send."""
    matched = match(comm)
    rows = np.flatnonzero(matched.p2p & (matched.key >= 0))
    alone = np.bincount(matched.key[rows], minlength=1)[matched.key[rows]] == 1
    rows = rows[alone & (comm.ints("enqueue_ns")[rows] > last_step_ns)]
    for row in _first_of_each(comm, rows).tolist():
        one = comm.take(np.array([row]))
        rank, peer = int(one.ints("rank")[0]), int(one.ints("peer")[0])
        called = {rank: int(one.ints("enqueue_ns")[0])}
        yield _operator(one, one.strings("group")[0] or "", called, frozenset({peer}))


def _first_of_each(comm: Table, rows: Ints) -> Ints:
    """The first of these calls of each rank to each peer."""
    order = rows[np.argsort(comm.ints("enqueue_ns")[rows], kind="stable")]
    pairs = np.stack((comm.ints("rank")[order], comm.ints("peer")[order]))
    _, first = np.unique(pairs, axis=1, return_index=True)
    return order[first]


def _operator(
    rows: Table, group: str, called: dict[int, int], absent: frozenset[int]
) -> OpenOperator:
    entered = frozenset(called)
    return OpenOperator(
        group, rows.strings("op")[0] or "?", int(rows.ints("step").max()), int(rows.ints("seq")[0]),
        entered, entered, absent, frozenset(), called, max(called.values()),
    )  # fmt: skip

"""Ranks that came to an operator after the others had given up on it, from flight recorder dumps.

A rank that loads data or writes a checkpoint for longer than the watchdog's timeout arrives after
all. Then every member has entered, and nothing moves because the others were aborted.
Clocks of hosts may disagree by any amount. So the time since the newest operator that all of these
ranks ended counts, by the clock of each.
Cannot see: the first operator of a group; dumps before PyTorch 2.3, which lack the timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.blocked import Blocked
from stepscope.diagnose.operators.progress import Recording

Rows = Mapping[int, int]
"""The row of each rank in one operator."""


@dataclass(frozen=True)
class Tardy:
    """Ranks that called an operator after it had timed out on those that waited there."""

    where: Blocked
    ranks: frozenset[int]
    late_ns: int
    """By how much the first of them was late."""
    timeout_ms: int
    since_ns: int
    """When the others began to wait."""


def find_tardy(recording: Recording, blocked: Iterable[Blocked]) -> list[Tardy]:
    """Operators that all entered, some too late; not those of ranks that waited for such a rank."""
    found = [one for where in blocked if where.standing and not where.absent
             if (one := _tardy(recording, where)) is not None]  # fmt: skip
    kept_waiting = frozenset().union(*(one.where.waiting - one.ranks for one in found))
    return [one for one in found if one.ranks - kept_waiting]


def _tardy(recording: Recording, where: Blocked) -> Tardy | None:
    rows, before = _calls(recording, where)
    ranks = sorted(rows)
    if len(ranks) < 2 or before.keys() != rows.keys():
        return None
    here, there = (np.array([calls[rank] for rank in ranks], np.int64) for calls in (rows, before))
    comm = recording.comm
    since = comm.ints("enqueue_ns")[here] - comm.ints("enqueue_ns")[there]
    timeout_ms = int(comm.ints("timeout_ms")[here].max())
    late_ns = since - int(since.min())
    late = late_ns > timeout_ms * 10**6
    if timeout_ms <= 0 or not late.any() or 2 * late.sum() > late.size:
        return None
    began = int(comm.ints("enqueue_ns")[here[~late]].max())
    named = frozenset(ranks[at] for at in np.flatnonzero(late))
    return Tardy(where, named, int(late_ns[late].min()), timeout_ms, began)


def _calls(recording: Recording, where: Blocked) -> tuple[Rows, Rows]:
    """The calls of an operator, and those of the newest one before that all of its ranks ended."""
    if where.peer >= 0:
        return _messages(recording, where)
    lanes = {rank: lane for rank, lane in recording.lanes[where.group].items()
             if rank not in recording.outdated}  # fmt: skip
    rows = {
        rank: row for rank, lane in lanes.items() if (row := lane.row_of(where.seq)) is not None
    }
    first = next(iter(lanes.values())).seqs
    for seq in map(int, first[first < where.seq][::-1]):
        before = {rank: row for rank in rows if (row := lanes[rank].row_of(seq)) is not None}
        if len(before) == len(rows) and recording.done[list(before.values())].all():
            return rows, before
    return rows, {}


def _messages(recording: Recording, where: Blocked) -> tuple[Rows, Rows]:
    """Both ends of the first open message between two ranks, and of the last one that ended."""
    (rank,) = where.waiting
    answer = "Recv" if where.op == "Send" else "Send"
    rows: dict[int, int] = {}
    before: dict[int, int] = {}
    for key in ((where.group, where.op, rank, where.peer),
                (where.group, answer, where.peer, rank)):  # fmt: skip
        calls = recording.channels.get(key, np.zeros(0, np.int64))
        ended = recording.done[calls]
        if not ended.all():
            rows[key[2]] = int(calls[~ended][0])
        if ended.any():
            before[key[2]] = int(calls[ended][-1])
    return rows, before

"""A job that stands: operators that somebody entered and that have not ended, and who keeps them.

A host calls ahead of its device: having called is not having come, where devices were watched.
Lossy: of very many open operators the oldest are looked at, for those behind wait for the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.liveness import Pace, now_ns, pace
from stepscope.diagnose.matching import POINT_TO_POINT, Matched, match
from stepscope.window import NULL, Ints, Mask, Table, Window

MOST_OPEN = 256
"""Open operators looked at, the oldest first: those behind them wait for the same ranks."""
_NEVER = 2**63


@dataclass(frozen=True)
class Open:
    """One operator that has begun on some rank and not ended."""

    group: str
    op: str
    step: int
    seq: int
    entered: frozenset[int]
    waiting: frozenset[int]
    absent: frozenset[int]
    unreached: frozenset[int]
    """Those of the absent whose host called it, but whose device has not come to it."""
    called_ns: Mapping[int, int]
    """When the host of each member called it."""
    since_ns: int
    """The last arrival."""
    sender: int = -1
    """Of a send and its receive."""


@dataclass(frozen=True)
class Scene:
    """All open operators and who keeps them open."""

    open: tuple[Open, ...]
    now_ns: int
    pace: Pace

    @property
    def waiting(self) -> frozenset[int]:
        return frozenset().union(*(one.waiting for one in self.open))

    @property
    def missed(self) -> tuple[Open, ...]:
        return tuple(one for one in self.open if one.absent)

    @property
    def full(self) -> tuple[Open, ...]:
        """Operators that all members entered, whose data does not move."""
        return tuple(one for one in self.open if not one.absent)

    @property
    def roots(self) -> frozenset[int]:
        """Absent ranks that nothing keeps which comes before the operator they are missed in.

        A device waits on several streams at once: what its host called after the operator it is
        missed in does not keep it from coming.
        """
        held, jammed = _since(self.missed), self._jammed
        return frozenset(
            rank
            for one in self.missed
            for rank in one.absent - jammed
            if held.get(rank, _NEVER + 1) > one.called_ns.get(rank, _NEVER)
        )

    @property
    def _jammed(self) -> frozenset[int]:
        """Ranks whose device has not come to an operator because data before it does not move.

        Their hosts may have called nothing since: they wait for their devices now and then.
        """
        moving = _since(self.full)
        return frozenset(
            rank
            for one in self.missed
            for rank in one.unreached
            if moving.get(rank, _NEVER) <= one.called_ns[rank]
        )

    @property
    def jam(self) -> Open | None:
        """The first operator whose data does not move, where that is what keeps others."""
        kept = [one for one in self.full if one.waiting & self._jammed]
        return min(kept, key=lambda one: one.since_ns, default=None)

    @property
    def since_ns(self) -> int:
        return min(one.since_ns for one in self.open)


def _since(waited: tuple[Open, ...]) -> dict[int, int]:
    """When each rank called the first of some operators in which it waits."""
    since: dict[int, int] = {}
    for one in waited:
        for rank in one.waiting:
            since[rank] = min(since.get(rank, _NEVER), one.called_ns[rank])
    return since


def read_scene(window: Window) -> Scene | None:
    """The open operators of a window; None where none is, or nobody recorded ends."""
    comm, now = window.table("comm_ops"), now_ns(window)
    if comm is None or now is None or not (comm.has("end_ns") or comm.has("state")):
        return None
    finished = _finished(comm)
    if finished.all():
        return None
    stuck = ~finished & ~_overtaken(comm, finished)
    return Scene(_open(window, comm, finished, stuck), now, pace(window))


def _finished(comm: Table) -> Mask:
    done = comm.strings("state").equals("done") if comm.has("state") else np.zeros(
        len(comm), np.bool_)  # fmt: skip
    return done | (comm.ints("end_ns") != NULL) if comm.has("end_ns") else done


def _overtaken(comm: Table, finished: Mask) -> Mask:
    """Rows whose rank has since finished a later operator of their lane: their end was lost."""
    lane = _lanes(comm)
    newest = np.full(lane.max(initial=0) + 1, NULL)
    np.maximum.at(newest, lane[finished], comm.ints("seq")[finished])
    return comm.ints("seq") < newest[lane]


def _lanes(comm: Table) -> Ints:
    """Numbers of what ends in order: a rank's collectives of a group, its sends to one peer."""
    pairs = comm.strings("op").equals(*POINT_TO_POINT)
    key = comm.ints("rank")
    ways = [comm.strings("group").codes, np.where(pairs, comm.strings("op").codes, -1)]
    if comm.has("peer"):
        ways.append(np.where(pairs, comm.ints("peer"), -1))
    for way in ways:
        _, part = np.unique(way, return_inverse=True)
        _, key = np.unique(key * (part.max(initial=0) + 1) + part, return_inverse=True)
    return key


def _open(window: Window, comm: Table, finished: Mask, stuck: Mask) -> tuple[Open, ...]:
    matched = match(comm)
    waits = stuck & (matched.key >= 0)
    on_device = waits & _started(comm, slice(None))
    # what no device has come to keeps nobody, unless none is known to have come to anything
    waits = on_device if on_device.any() else waits
    keys, place = np.unique(matched.key[waits], return_index=True)
    called = comm.ints("enqueue_ns")[waits][place]
    keys = keys[np.argsort(called, kind="stable")][:MOST_OPEN]
    return tuple(
        one for key in keys if (one := _one(window, matched, finished, int(key))) is not None
    )


def _started(comm: Table, rows: Ints | slice) -> Mask:
    """Which of the rows a device has come to, as far as that was recorded."""
    called = comm.ints("enqueue_ns")[rows]
    if not comm.has("start_ns"):
        return np.zeros(len(called), np.bool_)
    return np.asarray(comm.ints("start_ns")[rows] != NULL)


def _one(window: Window, matched: Matched, finished: Mask, key: int) -> Open | None:
    comm = matched.table
    rows = np.flatnonzero(matched.key == key)
    ranks = comm.ints("rank")[rows]
    group = comm.strings("group")[int(rows[0])] or ""
    if matched.p2p[rows[0]]:
        members = set(map(int, ranks)) | {int(peer) for peer in comm.ints("peer")[rows]}
    else:
        members = _members(window, comm, group)
    begun = _begun(comm, rows) | finished[rows]
    entered, called = frozenset(map(int, ranks[begun])), frozenset(map(int, ranks))
    lost = (members - called) & _moved_on(matched, rows)
    return Open(
        group, comm.strings("op")[int(rows[0])] or "?",
        int(comm.ints("step")[rows[0]]) if comm.has("step") else -1, int(comm.ints("seq")[rows[0]]),
        entered | lost, frozenset(map(int, ranks[begun & ~finished[rows]])),
        frozenset(rank for rank in members - entered - lost if rank >= 0), called - entered,
        dict(zip(map(int, ranks), map(int, comm.ints("enqueue_ns")[rows]), strict=True)),
        int(_arrivals(comm, rows[begun]).max()),
        int(max(ranks[comm.strings("op").equals("Send")[rows]], default=-1)),
    )  # fmt: skip


def _begun(comm: Table, rows: Ints) -> Mask:
    """Which members are in an operator, of those that called it.

    A host calls ahead of its device. Where some devices have come to the operator and others have
    not, those others are still busy with what is before it.
    """
    started = _started(comm, rows)
    return started if started.any() else np.ones(len(rows), np.bool_)


def _arrivals(comm: Table, rows: Ints) -> Ints:
    called = comm.ints("enqueue_ns")[rows]
    started = _started(comm, rows)
    return np.where(started, comm.ints("start_ns")[rows], called) if started.any() else called


def _members(window: Window, comm: Table, group: str) -> set[int]:
    known = window.job.group(group)
    if known is not None:
        return set(known.ranks)
    return {int(rank) for rank in np.unique(comm.ints("rank")[comm.strings("group").equals(group)])}


def _moved_on(matched: Matched, rows: Ints) -> set[int]:
    """Ranks with rows of the same group beyond this operator: their row of it was lost."""
    comm = matched.table
    if matched.p2p[rows[0]]:
        return set()
    group = comm.strings("group").codes
    later = (group == group[rows[0]]) & ~matched.p2p
    later &= comm.ints("seq") > int(comm.ints("seq")[rows].max())
    return set(map(int, np.unique(comm.ints("rank")[later])))

"""Open operators: some rank entered them and they have not ended; and the state of each member.

A host calls ahead of its device. Where device times were recorded, a call alone therefore does not
count as an arrival. All open operators are read, however many there are: a rank that waits in an
operator that was left out would seem to wait nowhere, and would be blamed.
Cost: one match of the table, then the rows of open operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, Matched, match
from stepscope.trace import NO_PEER
from stepscope.window import NULL, Ints, Mask, Rows, Table, Window, numbered

_UNKNOWN = -1


@dataclass(frozen=True)
class OpenOperator:
    """One operator that has begun on some rank and not ended."""

    group: str
    op: str
    step: int
    seq: int
    entered: frozenset[int]
    waiting: frozenset[int]
    absent: frozenset[int]
    unreached: frozenset[int]
    """Absent ranks whose host called it, but whose device has not reached it."""
    called_ns: Mapping[int, int]
    """When the host of each member called it."""
    since_ns: int
    """The last arrival."""
    sender: int = -1
    """The sending rank of a send and its receive, else -1."""


def is_finished(comm: Table) -> Mask:
    """Which rows ended, at a known time or not."""
    done = comm.strings("state").equals("done") if comm.has("state") else np.zeros(
        len(comm), np.bool_)  # fmt: skip
    return done | (comm.ints("end_ns") != NULL) if comm.has("end_ns") else done


def open_operators(window: Window, comm: Table, finished: Mask) -> tuple[OpenOperator, ...]:
    """All open operators, in the order of their first calls."""
    matched = match(comm)
    finished = finished | _received(comm, matched, finished)
    waits = ~finished & ~_overtaken(comm, finished) & (matched.key >= 0)
    on_device = waits & _started(comm)
    # an operator that no device has reached blocks no rank, unless device times are unknown
    waits = on_device if on_device.any() else waits
    if not waits.any():
        return ()
    rows = _members_rows(matched.key, waits)
    open_rows = _OpenRows(comm.take(rows), matched.key[rows], matched.p2p[rows], finished[rows])
    reader = _Reader(window, comm, open_rows, _LaterCalls.of(comm, open_rows))
    return tuple(sorted(reader.all(), key=lambda one: min(one.called_ns.values())))


def _received(comm: Table, matched: Matched, finished: Mask) -> Mask:
    """Sends whose data has arrived. With gloo, their own end shows only once somebody waits."""
    sends = comm.strings("op").equals("Send")
    ended = np.zeros(int(matched.key.max(initial=-1)) + 2, np.bool_)  # the last is for no operator
    ended[matched.key[finished & matched.p2p & ~sends]] = True
    ended[-1] = False
    return np.asarray(sends & ended[matched.key])


def _overtaken(comm: Table, finished: Mask) -> Mask:
    """Rows without an end whose rank finished a later operator of the lane: their end was lost.

    To save work, only groups with unfinished rows are searched, from the oldest of these on.
    """
    group, seq = comm.strings("group").codes, comm.ints("seq")
    oldest = np.full(int(group.max(initial=0)) + 2, np.iinfo(np.int64).max)
    np.minimum.at(oldest, group[~finished], seq[~finished])
    rows = np.flatnonzero(~finished | (seq > oldest[group]))
    lane, ended = _lanes(comm.take(rows)), finished[rows]
    newest = np.full(lane.max(initial=0) + 1, NULL)
    np.maximum.at(newest, lane[ended], seq[rows][ended])
    overtaken = np.zeros(len(comm), np.bool_)
    overtaken[rows] = ~ended & (seq[rows] < newest[lane])
    return overtaken


def _lanes(comm: Table) -> Ints:
    """Numbers the lanes, in which operators end in order: a rank's collectives of a group, or its
    sends to one peer."""
    pairs, op = comm.strings("op").equals(*POINT_TO_POINT), comm.strings("op").codes
    columns = [comm.ints("rank"), comm.strings("group").codes.astype(np.int64),
               np.where(pairs, op, -1).astype(np.int64)]  # fmt: skip
    if comm.has("peer"):
        columns.append(np.where(pairs, comm.ints("peer"), -1))
    return numbered(*columns)


def _members_rows(key: Ints, waits: Mask) -> Rows:
    """The rows of all members of operators in which some rank waits, operator by operator."""
    wanted = np.zeros(int(key.max()) + 2, np.bool_)  # the last is for rows of no operator
    wanted[key[waits]] = True
    rows = np.flatnonzero(wanted[key])
    return rows[np.argsort(key[rows], kind="stable")]


def _started(comm: Table) -> Mask:
    """Which rows a device has reached; none if device times were not recorded."""
    if not comm.has("start_ns"):
        return np.zeros(len(comm), np.bool_)
    return np.asarray(comm.ints("start_ns") != NULL)


@dataclass(frozen=True)
class _OpenRows:
    """The rows of open operators, sorted by operator."""

    comm: Table
    key: Ints
    p2p: Mask
    finished: Mask

    def operators(self) -> Iterator[slice]:
        """The rows of each operator."""
        edges = np.flatnonzero(np.diff(self.key, prepend=_UNKNOWN, append=_UNKNOWN)).tolist()
        yield from map(slice, edges, edges[1:])

    @cached_property
    def rank(self) -> Ints:
        return self.comm.ints("rank")

    @cached_property
    def peer(self) -> Ints:
        return self._ints("peer", NO_PEER)

    @cached_property
    def step(self) -> Ints:
        return self._ints("step", _UNKNOWN)

    @cached_property
    def group(self) -> Ints:
        """Codes of the group names."""
        return self.comm.strings("group").codes.astype(np.int64)

    @cached_property
    def sends(self) -> Mask:
        return self.comm.strings("op").equals("Send")

    @cached_property
    def started(self) -> Mask:
        return _started(self.comm)

    def _ints(self, name: str, missing: int) -> Ints:
        known = self.comm.has(name)
        return self.comm.ints(name) if known else np.full(len(self.comm), missing)


@dataclass(frozen=True)
class _LaterCalls:
    """Calls of collectives that come after the oldest open one of their group."""

    ranks: Mapping[int, Ints]
    """The calling ranks, by the code of the group."""
    seqs: Mapping[int, Ints]
    """The sequence numbers, in the same order."""

    @classmethod
    def of(cls, comm: Table, open_rows: _OpenRows) -> _LaterCalls:
        codes, seq = comm.strings("group").codes.astype(np.int64), comm.ints("seq")
        oldest = np.full(int(codes.max()) + 2, np.iinfo(np.int64).max)
        together = ~open_rows.p2p
        np.minimum.at(oldest, open_rows.group[together], open_rows.comm.ints("seq")[together])
        later = np.flatnonzero(seq > oldest[codes])
        later = later[~comm.strings("op").equals(*POINT_TO_POINT)[later]]
        later = later[np.argsort(codes[later], kind="stable")]
        groups, first = np.unique(codes[later], return_index=True)
        parts = dict(zip(groups.tolist(), np.split(later, first[1:]), strict=False))
        return cls({group: comm.ints("rank")[rows] for group, rows in parts.items()},
                   {group: seq[rows] for group, rows in parts.items()})  # fmt: skip

    def ranks_after(self, group: int, seq: int) -> set[int]:
        """The ranks that called a later operator of the group: their row of this one was lost."""
        if group not in self.ranks:
            return set()
        return set(self.ranks[group][self.seqs[group] > seq].tolist())


@dataclass(frozen=True)
class _Reader:
    """Reads the state of each open operator."""

    window: Window
    comm: Table
    """All rows of `comm_ops`."""
    open_rows: _OpenRows
    later_calls: _LaterCalls

    def all(self) -> Iterator[OpenOperator]:
        return map(self._one, self.open_rows.operators())

    def _one(self, rows: slice) -> OpenOperator:
        open_rows, comm, first = self.open_rows, self.open_rows.comm, rows.start
        ranks = open_rows.rank[rows]
        begun = self._begun(rows) | open_rows.finished[rows]
        entered, called = frozenset(ranks[begun].tolist()), frozenset(ranks.tolist())
        members = self._members(rows)
        lost = self._lost(rows, members - called)
        return OpenOperator(
            comm.strings("group")[first] or "", comm.strings("op")[first] or "?",
            int(open_rows.step[first]), int(comm.ints("seq")[first]),
            entered | lost, frozenset(ranks[begun & ~open_rows.finished[rows]].tolist()),
            frozenset(rank for rank in members - entered - lost if rank >= 0), called - entered,
            dict(zip(ranks.tolist(), comm.ints("enqueue_ns")[rows].tolist(), strict=True)),
            int(self._arrivals(rows)[begun].max()),
            int(ranks[open_rows.sends[rows]].max(initial=NO_PEER)),
        )  # fmt: skip

    def _begun(self, rows: slice) -> Mask:
        """Which members are in the operator, of those that called it.

        A host calls ahead of its device. If some devices have reached the operator and others have
        not, the others are still busy with earlier work.
        """
        started = self.open_rows.started[rows]
        return started if started.any() else np.ones(len(started), np.bool_)

    def _arrivals(self, rows: slice) -> Ints:
        called, started = self.open_rows.comm.ints("enqueue_ns")[rows], self.open_rows.started[rows]
        if not started.any():
            return called
        return np.where(started, self.open_rows.comm.ints("start_ns")[rows], called)

    def _members(self, rows: slice) -> frozenset[int]:
        ranks = frozenset(self.open_rows.rank[rows].tolist())
        if self.open_rows.p2p[rows.start]:
            return ranks | frozenset(self.open_rows.peer[rows].tolist())
        name = self.open_rows.comm.strings("group")[rows.start] or ""
        known = self.window.job.group(name)
        return self._callers(name) if known is None else frozenset(known.ranks)

    def _callers(self, group: str) -> frozenset[int]:
        """All ranks that called any operator of a group: its members, if the job lists none."""
        rows = self.comm.strings("group").equals(group)
        return frozenset(self.comm.ints("rank")[rows].tolist())

    def _lost(self, rows: slice, silent: frozenset[int]) -> frozenset[int]:
        """The members without a row that called a later collective of the group."""
        at = rows.start
        if self.open_rows.p2p[at] or not silent:
            return frozenset()
        seq = int(self.open_rows.comm.ints("seq")[rows].max())
        return silent & self.later_calls.ranks_after(int(self.open_rows.group[at]), seq)

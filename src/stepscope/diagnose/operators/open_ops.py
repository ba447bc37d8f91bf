"""Operators that somebody entered and that have not ended, and who of their members is where.

A host calls ahead of its device: having called is not having come, where devices were watched.
None is left out, however many there are: a rank that waits in an operator nobody looked at would
seem to wait nowhere, and be blamed. Cost: one match of the table, then the rows of open operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, match
from stepscope.trace import NO_PEER
from stepscope.window import NULL, Ints, Mask, Rows, Table, Window

_UNKNOWN = -1


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


def is_finished(comm: Table) -> Mask:
    """Which rows have an end, known or not."""
    done = comm.strings("state").equals("done") if comm.has("state") else np.zeros(
        len(comm), np.bool_)  # fmt: skip
    return done | (comm.ints("end_ns") != NULL) if comm.has("end_ns") else done


def open_operators(window: Window, comm: Table, finished: Mask) -> tuple[Open, ...]:
    """All of them, those called first first."""
    matched = match(comm)
    waits = ~finished & ~_overtaken(comm, finished) & (matched.key >= 0)
    on_device = waits & _started(comm)
    # what no device has come to keeps nobody, unless none is known to have come to anything
    waits = on_device if on_device.any() else waits
    if not waits.any():
        return ()
    rows = _members_rows(matched.key, waits)
    sheet = _Sheet(comm.take(rows), matched.key[rows], matched.p2p[rows], finished[rows])
    reader = _Reader(window, comm, sheet, _Beyond.of(comm, sheet))
    return tuple(sorted(reader.all(), key=lambda one: min(one.called_ns.values())))


def _overtaken(comm: Table, finished: Mask) -> Mask:
    """Rows without an end whose rank has finished a later operator of their lane: it was lost.

    Only of groups with such rows, and from the oldest of these on, operators may be later.
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


def _members_rows(key: Ints, waits: Mask) -> Rows:
    """The rows of all members of operators that somebody waits in, operator by operator."""
    wanted = np.zeros(int(key.max()) + 2, np.bool_)  # the last is for rows of no operator
    wanted[key[waits]] = True
    rows = np.flatnonzero(wanted[key])
    return rows[np.argsort(key[rows], kind="stable")]


def _started(comm: Table) -> Mask:
    """Which of the rows a device has come to, as far as that was recorded."""
    if not comm.has("start_ns"):
        return np.zeros(len(comm), np.bool_)
    return np.asarray(comm.ints("start_ns") != NULL)


@dataclass(frozen=True)
class _Sheet:
    """The rows of open operators, sorted by operator."""

    comm: Table
    key: Ints
    p2p: Mask
    finished: Mask

    def operators(self) -> Iterator[slice]:
        """The rows of each."""
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
        """Codes."""
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
class _Beyond:
    """Who has called later collectives of a group than the oldest that is open."""

    ranks: Mapping[int, Ints]
    """By the code of the group."""
    seqs: Mapping[int, Ints]

    @classmethod
    def of(cls, comm: Table, sheet: _Sheet) -> _Beyond:
        codes, seq = comm.strings("group").codes.astype(np.int64), comm.ints("seq")
        oldest = np.full(int(codes.max()) + 2, np.iinfo(np.int64).max)
        together = ~sheet.p2p
        np.minimum.at(oldest, sheet.group[together], sheet.comm.ints("seq")[together])
        later = np.flatnonzero(seq > oldest[codes])
        later = later[~comm.strings("op").equals(*POINT_TO_POINT)[later]]
        later = later[np.argsort(codes[later], kind="stable")]
        groups, first = np.unique(codes[later], return_index=True)
        parts = dict(zip(groups.tolist(), np.split(later, first[1:]), strict=False))
        return cls({group: comm.ints("rank")[rows] for group, rows in parts.items()},
                   {group: seq[rows] for group, rows in parts.items()})  # fmt: skip

    def than(self, group: int, seq: int) -> set[int]:
        """The ranks with rows of a group beyond one operator: their row of it was lost."""
        if group not in self.ranks:
            return set()
        return set(self.ranks[group][self.seqs[group] > seq].tolist())


@dataclass(frozen=True)
class _Reader:
    window: Window
    comm: Table
    """All of it."""
    sheet: _Sheet
    beyond: _Beyond

    def all(self) -> Iterator[Open]:
        return map(self._one, self.sheet.operators())

    def _one(self, rows: slice) -> Open:
        sheet, first = self.sheet, rows.start
        ranks, seq = sheet.rank[rows], sheet.comm.ints("seq")
        begun = self._begun(rows) | sheet.finished[rows]
        entered, called = frozenset(ranks[begun].tolist()), frozenset(ranks.tolist())
        members = self._members(rows)
        lost = self._lost(rows, members - called)
        return Open(
            sheet.comm.strings("group")[first] or "", sheet.comm.strings("op")[first] or "?",
            int(sheet.step[first]), int(seq[first]),
            entered | lost, frozenset(ranks[begun & ~sheet.finished[rows]].tolist()),
            frozenset(rank for rank in members - entered - lost if rank >= 0), called - entered,
            dict(zip(ranks.tolist(), sheet.comm.ints("enqueue_ns")[rows].tolist(), strict=True)),
            int(self._arrivals(rows)[begun].max()),
            int(ranks[sheet.sends[rows]].max(initial=NO_PEER)),
        )  # fmt: skip

    def _begun(self, rows: slice) -> Mask:
        """Which members are in an operator, of those that called it.

        A host calls ahead of its device. Where some devices have come to the operator and others
        have not, those others are still busy with what is before it.
        """
        started = self.sheet.started[rows]
        return started if started.any() else np.ones(len(started), np.bool_)

    def _arrivals(self, rows: slice) -> Ints:
        called, started = self.sheet.comm.ints("enqueue_ns")[rows], self.sheet.started[rows]
        if not started.any():
            return called
        return np.where(started, self.sheet.comm.ints("start_ns")[rows], called)

    def _members(self, rows: slice) -> frozenset[int]:
        ranks = frozenset(self.sheet.rank[rows].tolist())
        if self.sheet.p2p[rows.start]:
            return ranks | frozenset(self.sheet.peer[rows].tolist())
        name = self.sheet.comm.strings("group")[rows.start] or ""
        known = self.window.job.group(name)
        return self._seen_in(name) if known is None else frozenset(known.ranks)

    def _seen_in(self, group: str) -> frozenset[int]:
        """Of a group that the job does not tell of: who ever called something in it."""
        here = self.comm.strings("group").equals(group)
        return frozenset(self.comm.ints("rank")[here].tolist())

    def _lost(self, rows: slice, silent: frozenset[int]) -> frozenset[int]:
        """Those of the members without a row that have come to a later collective of the group."""
        at = rows.start
        if self.sheet.p2p[at] or not silent:
            return frozenset()
        seq = int(self.sheet.comm.ints("seq")[rows].max())
        return silent & self.beyond.than(int(self.sheet.group[at]), seq)

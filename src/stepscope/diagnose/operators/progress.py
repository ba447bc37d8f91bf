"""Progress of each rank in each group, from flight recorder dumps: its last and its open operators.

A lane holds the operators of one rank in one group, in order. Lanes of one group are compared by
their sequence numbers only, never by a clock.

Where the device of a rank stands (`standing`): a host enqueues operators long before its device
reaches them. The device stands in the first operator of the rank, in the order of its own calls,
that has not ended; later ones are queued. Only operators on other communicators may be in flight at
the same time, and only what proves that is believed: the recorder saw them start, or an operator
that was called after them has ended, so all that the device had to do before them is done.
Cost: one sort of the operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, SYNCHRONIZING
from stepscope.trace import ProcessGroup
from stepscope.window import Ints, Mask, Strings, Table, Window, numbered

CLOCK_NS = 10**9
"""Clocks of file systems, hosts and processes differ by less. If a dump is older than its entries
by more than this, its time says nothing about the age of a wait. Our simulator."""

MANY_CALLS = 10
"""Calls in a row without a send or receive between them that a job makes which has none at all;
fewer may be those of its set-up. Our choice."""


@dataclass(frozen=True)
class Lane:
    """The collectives of one rank in one group: rows of the table in order of `seq`."""

    rank: int
    seqs: Ints
    rows: Ints

    @property
    def last(self) -> int:
        return int(self.seqs[-1])

    def row_of(self, seq: int) -> int | None:
        """The row of an operator; None if it was never entered or was overwritten in the ring."""
        at = int(np.searchsorted(self.seqs, seq))
        return int(self.rows[at]) if at < self.seqs.size and self.seqs[at] == seq else None

    def after(self, seq: int) -> int | None:
        """The first operator after `seq`."""
        at = int(np.searchsorted(self.seqs, seq, side="right"))
        return int(self.seqs[at]) if at < self.seqs.size else None


@dataclass(frozen=True)
class Recording:
    """The operators of all dumps, by group and rank."""

    window: Window
    comm: Table

    @cached_property
    def groups(self) -> Mapping[str, ProcessGroup]:
        return {group.id: group for group in self.window.job.groups}

    @cached_property
    def recorded(self) -> frozenset[int]:
        """Ranks that have a dump."""
        known = self.window.job.recorded_ranks
        return frozenset(self.window.ranks if known is None else known)

    @cached_property
    def p2p(self) -> Mask:
        return self.comm.strings("op").equals(*POINT_TO_POINT)

    @cached_property
    def synchronizing(self) -> Mask:
        """Operators that no rank can leave before all ranks have entered."""
        return self.comm.strings("op").equals(*SYNCHRONIZING)

    @cached_property
    def ended(self) -> Mask:
        """Rows that the recorder marked as ended."""
        return self.comm.strings("state").equals("done")

    @cached_property
    def done(self) -> Mask:
        """Rows that ended; those before an ended row of their lane did, even if not marked so."""
        done = self.ended.copy()
        proven = done & ~self.doubtful
        lanes = [lane.rows for group in self.lanes.values() for lane in group.values()]
        for rows in (*lanes, *self.channels.values()):
            last = np.flatnonzero(proven[rows])
            done[rows[: last[-1] + 1 if last.size else 0]] = True
        return done

    @cached_property
    def standing(self) -> Mask:
        """Rows in which the device of their rank stands, and not only a queue behind it; all rows
        whose end is unknown."""
        is_open = self.has_state & ~self.done
        proven = self.ended & ~self.doubtful
        return standing(self.comm, is_open, proven) | self.doubtful | ~self.has_state

    @cached_property
    def reports_starts(self) -> bool:
        """Whether the recorder tells what a device has started from what was only called."""
        return bool(self.comm.strings("seen").equals("started").any())

    @cached_property
    def has_state(self) -> Mask:
        """Rows for which the recorder reports whether they ended."""
        return np.asarray(self.comm.strings("state").codes >= 0)

    @cached_property
    def reports_ends(self) -> bool:
        """Whether the recorder follows operators until they end, as NCCL's does."""
        states = self.comm.strings("seen")
        return any(state != "scheduled" for state in states.values)

    @cached_property
    def records_sends(self) -> bool:
        """Whether sends and receives are in the dumps; gloo's are not."""
        return self.reports_ends or bool(self.p2p.any())

    @cached_property
    def sends_unseen(self) -> bool:
        """Whether the running numbers show that operators were called which nobody recorded."""
        return self._counts_all and bool((self.comm.ints("unrecorded") > 0).any())

    @property
    def _counts_all(self) -> bool:
        """Whether the running numbers are known; they are of dumps, not of job folders."""
        return self.comm.has("unrecorded")

    @cached_property
    def may_hide_sends(self) -> bool:
        """Whether a rank that seems to do nothing may wait in a send or receive."""
        return self.sends_unseen and not self.records_sends

    @cached_property
    def has_no_sends(self) -> bool:
        """Whether the running numbers of all ranks leave no room for sends and receives: there
        were none between their calls."""
        if not self._counts_all:
            return False
        ranks = self.comm.ints("rank")[self.comm.ints("unrecorded") == 0]
        calls = np.bincount(ranks, minlength=max(self.recorded, default=0) + 1)
        least = int(calls[sorted(self.recorded)].min(initial=MANY_CALLS))
        return not self.sends_unseen and least >= MANY_CALLS

    @cached_property
    def expired(self) -> Mask:
        """Rows on which the watchdog timed out: retired, but never completed."""
        return self.comm.mask("retired") & ~self.ended

    @cached_property
    def doubtful(self) -> Mask:
        """Each rank's last row, if it was retired and the recorder does not report its success.

        A rank that went on to another operator must have seen the previous one succeed.
        """
        record, rank = self.comm.ints("record"), self.comm.ints("rank")
        newest = np.full(int(rank.max(initial=0)) + 1, -1)
        np.maximum.at(newest, rank, record)
        unproven = self.ended & ~self.comm.strings("seen").equals("completed")
        return np.asarray(unproven & (record == newest[rank]))

    @cached_property
    def wrapped(self) -> frozenset[int]:
        """Ranks whose ring buffer has overwritten its oldest entries."""
        return frozenset(
            rank for rank, rows in self.comm.per_rank() if int(rows.ints("record").min()) > 0
        )

    @cached_property
    def front_lost(self) -> frozenset[int]:
        """Ranks whose ring buffer holds no operator that ended before an open one: their devices
        may stand in one that it has overwritten."""
        rank, is_open = self.comm.ints("rank"), self.has_state & ~self.done
        order = np.lexsort((self.comm.ints("record"), rank))
        oldest = order[np.flatnonzero(np.diff(rank[order], prepend=-1))]
        return self.wrapped & frozenset(rank[oldest[is_open[oldest]]].tolist())

    @cached_property
    def lanes(self) -> Mapping[str, Mapping[int, Lane]]:
        """Collectives by group and rank."""
        group, rank = self.comm.strings("group"), self.comm.ints("rank")
        rows = np.flatnonzero(~self.p2p & (group.codes >= 0))
        order = rows[np.lexsort((self.comm.ints("seq")[rows], rank[rows], group.codes[rows]))]
        lanes: dict[str, dict[int, Lane]] = {}
        for part in _split(order, group, rank):
            lane = Lane(int(rank[part[0]]), self.comm.ints("seq")[part], part)
            lanes.setdefault(group[int(part[0])] or "", {})[lane.rank] = lane
        return lanes

    @cached_property
    def channels(self) -> Mapping[tuple[str, str, int, int], Ints]:
        """Point-to-point rows in order, by (group, operator, rank, peer)."""
        found: dict[tuple[str, str, int, int], list[int]] = {}
        group, op = self.comm.strings("group"), self.comm.strings("op")
        rank, peer = self.comm.ints("rank"), self.comm.ints("peer")
        for row in map(int, np.flatnonzero(self.p2p & (peer >= 0) & (group.codes >= 0))):
            key = group[row] or "", op[row] or "", int(rank[row]), int(peer[row])
            found.setdefault(key, []).append(row)
        return {key: np.array(rows, np.int64) for key, rows in found.items()}

    @cached_property
    def outdated(self) -> frozenset[int]:
        """Ranks whose dump is older: another rank completed an operator that needs a call that is
        missing from their dump, or a later one than the first that is open in it."""
        proven = self.done & self.synchronizing & ~self.doubtful
        is_open = self.has_state & ~self.done
        old: set[int] = set()
        for name, lanes in self.lanes.items():
            last = {rank: lane.last for rank, lane in lanes.items()}
            last |= {rank: int(lane.seqs[is_open[lane.rows]][0]) for rank, lane in lanes.items()
                     if is_open[lane.rows].any()}  # fmt: skip
            ended = [int(lane.seqs[proven[lane.rows]][-1]) for lane in lanes.values()
                     if proven[lane.rows].any()]  # fmt: skip
            newest = max(ended, default=0)
            old |= {rank for rank in self.members(name) & self.recorded
                    if last.get(rank, 0) < newest and self.silence_counts(rank, name)}  # fmt: skip
        return frozenset(old)

    def members(self, group: str) -> frozenset[int]:
        known = self.groups.get(group)
        lanes = frozenset(self.lanes.get(group, {}))
        return lanes | frozenset(known.ranks) if known is not None else lanes

    def group_of(self, rank: int, groups: Iterable[str]) -> str:
        """The one of these groups in which the rank is."""
        return next(one for one in groups if rank in self.members(one))

    def silence_counts(self, rank: int, group: str, since_ns: int | None = None) -> bool:
        """Whether the absence of a rank's calls in a group means that it made none.

        A wrapped ring tells only of the time that it covers: calls since `since_ns`.
        """
        if rank in self.lanes.get(group, {}) or rank not in self.wrapped:
            return True
        return since_ns is not None and self.oldest_ns[rank] + CLOCK_NS <= since_ns

    @cached_property
    def oldest_ns(self) -> Mapping[int, int]:
        """The time of each rank's oldest entry."""
        return {rank: int(rows.ints("enqueue_ns").min()) for rank, rows in self.comm.per_rank()}

    def absent(self, group: str, seq: int) -> frozenset[int]:
        """Members whose dump shows that they have not entered an operator."""
        lanes = self.lanes.get(group, {})
        candidates = (self.members(group) & self.recorded) - self.outdated
        rows = [row for lane in lanes.values() if (row := lane.row_of(seq)) is not None]
        since_ns = int(self.comm.ints("enqueue_ns")[rows].min()) if rows else None
        return frozenset(
            rank for rank in candidates
            if (lanes[rank].last < seq if rank in lanes
                else self.silence_counts(rank, group, since_ns))
        )  # fmt: skip


def _split(order: Ints, group: Strings, rank: Ints) -> Iterator[Ints]:
    """Splits sorted rows into one part per group and rank."""
    if order.size:
        changes = (np.diff(group.codes[order]) != 0) | (np.diff(rank[order]) != 0)
        yield from np.split(order, np.flatnonzero(changes) + 1)


def device_order(comm: Table) -> Ints:
    """The place of each row in its rank's order of calls; members of a batch share one."""
    return np.asarray(comm.ints("batch" if comm.has("batch") else "record"))


def standing(comm: Table, is_open: Mask, ended: Mask) -> Mask:
    """The open rows in which the device of their rank stands.

    Args:
        is_open: rows that are known not to have ended.
        ended: rows that are known to have ended.
    """
    rank, place = comm.ints("rank"), device_order(comm)
    started = comm.strings("seen").equals("started")
    found: Mask = is_open & (place == _first(rank, place, is_open)[rank])
    if started.any():
        found |= is_open & started
        return found
    newest = np.full(int(rank.max(initial=0)) + 1, -1)
    np.maximum.at(newest, rank[ended], place[ended])
    channel = _communicators(comm)
    first = _first(channel, place, is_open)[channel]
    found |= is_open & (place < newest[rank]) & (place == first)
    return found


def _first(owner: Ints, place: Ints, is_open: Mask) -> Ints:
    """The place of the first open row of each owner."""
    first: Ints = np.full(int(owner.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, owner[is_open], place[is_open])
    return first


def _communicators(comm: Table) -> Ints:
    """A number for the communicator of each row: of the rank and its group, or its peer in that."""
    group = comm.strings("group").codes.astype(np.int64)
    return numbered(comm.ints("rank"), group, comm.ints("peer"))

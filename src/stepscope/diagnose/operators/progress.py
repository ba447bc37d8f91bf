"""What each rank's recorder shows of each group: how far it came, and what it has not left.

A lane is one rank in one group, its operators in order. Lanes of one group are compared by their
sequence numbers only: no clock is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, TOGETHER
from stepscope.trace import ProcessGroup
from stepscope.window import Ints, Mask, Strings, Table, Window


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
        """The row of an operator, None where it was never entered or the ring forgot it."""
        at = int(np.searchsorted(self.seqs, seq))
        return int(self.rows[at]) if at < self.seqs.size and self.seqs[at] == seq else None

    def after(self, seq: int) -> int | None:
        """The first operator beyond `seq`."""
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
        """Ranks of which there is a dump."""
        known = self.window.job.recorded_ranks
        return frozenset(self.window.ranks if known is None else known)

    @cached_property
    def p2p(self) -> Mask:
        return self.comm.strings("op").equals(*POINT_TO_POINT)

    @cached_property
    def together(self) -> Mask:
        """Operators that nobody can leave before all have entered."""
        return self.comm.strings("op").equals(*TOGETHER)

    @cached_property
    def ended(self) -> Mask:
        """Rows that the recorder calls ended."""
        return self.comm.strings("state").equals("done")

    @cached_property
    def done(self) -> Mask:
        """Rows that ended, also if the recorder missed it: a later one of the lane did."""
        done = self.ended.copy()
        proven = done & ~self.doubtful
        lanes = [lane.rows for group in self.lanes.values() for lane in group.values()]
        for rows in (*lanes, *self.channels.values()):
            last = np.flatnonzero(proven[rows])
            done[rows[: last[-1] + 1 if last.size else 0]] = True
        return done

    @cached_property
    def told(self) -> Mask:
        """Rows of which the recorder tells whether they ended."""
        told: Mask = self.comm.strings("state").codes >= 0
        return told

    @cached_property
    def expired(self) -> Mask:
        """The watchdog gave up on these: retired and never completed."""
        return self.comm.mask("retired") & ~self.ended

    @cached_property
    def doubtful(self) -> Mask:
        """Retired by a recorder that does not tell success from failure, and nothing after it.

        A rank that goes on to another operator has seen the one before succeed.
        """
        record, rank = self.comm.ints("record"), self.comm.ints("rank")
        newest = np.full(int(rank.max(initial=0)) + 1, -1)
        np.maximum.at(newest, rank, record)
        unproven = self.ended & ~self.comm.strings("seen").equals("completed")
        doubtful: Mask = unproven & (record == newest[rank])
        return doubtful

    @cached_property
    def wrapped(self) -> frozenset[int]:
        """Ranks whose ring lost its oldest entries."""
        return frozenset(
            rank for rank, rows in self.comm.per_rank() if int(rows.ints("record").min()) > 0
        )

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
        """Ranks dumped before the others: some rank completed what needs a call they lack."""
        proven = self.done & self.together & ~self.doubtful
        old: set[int] = set()
        for name, lanes in self.lanes.items():
            last = {rank: lane.last for rank, lane in lanes.items()}
            ended = [int(lane.seqs[proven[lane.rows]][-1]) for lane in lanes.values()
                     if proven[lane.rows].any()]  # fmt: skip
            newest = max(ended, default=0)
            old |= {rank for rank in self.members(name) & self.recorded
                    if last.get(rank, 0) < newest and self.speaks_of(rank, name)}  # fmt: skip
        return frozenset(old)

    def members(self, group: str) -> frozenset[int]:
        known = self.groups.get(group)
        lanes = frozenset(self.lanes.get(group, {}))
        return lanes | frozenset(known.ranks) if known is not None else lanes

    def speaks_of(self, rank: int, group: str) -> bool:
        """Whether a rank's silence about a group means that it called nothing there."""
        return rank in self.lanes.get(group, {}) or rank not in self.wrapped

    def absent(self, group: str, seq: int) -> frozenset[int]:
        """Members with a dump that shows that they have not come to an operator."""
        lanes = self.lanes.get(group, {})
        here = (self.members(group) & self.recorded) - self.outdated
        return frozenset(
            rank for rank in here
            if (lanes[rank].last < seq if rank in lanes else self.speaks_of(rank, group))
        )  # fmt: skip


def _split(order: Ints, group: Strings, rank: Ints) -> Iterator[Ints]:
    """Sorted rows, one part per group and rank."""
    if order.size:
        changes = (np.diff(group.codes[order]) != 0) | (np.diff(rank[order]) != 0)
        yield from np.split(order, np.flatnonzero(changes) + 1)

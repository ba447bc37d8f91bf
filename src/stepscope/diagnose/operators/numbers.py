"""A rank whose sequence numbers do not fit to those of its peers, from flight recorder dumps.

Ring buffers forget calls, but operators are numbered from the start of the job. Peers are ranks of
one pipeline stage. When they call operator n of one kind of group, they have all called as many
operators in another: a host calls in the order of its program, however long it waits. So the one
rank whose number there differs left out a call or made one too many, even if the ring lost it.
Sends and receives are counted as well, but only between peers that are in different groups: within
one group, a rank may send more than the others do, and then both of its ends are in that group.
Cost: one sort of the operators, then a pass for each pair of families and each newest operator.
Cannot see: jobs of one family of groups; a rank with fewer than three peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.equals import Departure, families
from stepscope.diagnose.operators.progress import Recording
from stepscope.window import Ints, Mask

PEERS = 3
"""Peers that have to agree, all of them: there is no earlier agreement to rely on. Our choice."""
UNKNOWN = -1


def find_misnumbered(recording: Recording) -> list[Departure]:
    """The single rank whose numbers differ from those of all of its peers; none if several do."""
    if not recording.wrapped or not recording.comm.has("number"):
        return []
    found = list(_Numbers.of(recording).departures())
    if len({one.rank for one in found}) != 1:
        return []
    return [min(found, key=lambda one: (abs(one.calls - one.expected), -one.seq, one.group))]


@dataclass(frozen=True)
class _Numbers:
    """The rows of all ranks in the order of their calls, with what they are compared by."""

    recording: Recording
    families: list[list[str]]
    rank: Ints
    family: Ints
    seq: Ints
    number: Ints
    collective: Mask
    stage: Ints
    """By rank."""

    @classmethod
    def of(cls, recording: Recording) -> _Numbers:
        comm, listed = recording.comm, families(recording)
        place = {group: at for at, family in enumerate(listed) for group in family}
        by_name = [place.get(name, UNKNOWN) for name in comm.strings("group").values]
        family = np.array([*by_name, UNKNOWN], np.int64)[comm.strings("group").codes]
        order = np.lexsort((comm.ints("record"), comm.ints("rank")))
        order = order[family[order] >= 0]
        return cls(
            recording, listed, comm.ints("rank")[order], family[order],
            comm.ints("seq")[order], comm.ints("number")[order], ~recording.p2p[order],
            _stages(recording),
        )  # fmt: skip

    def departures(self) -> Iterator[Departure]:
        for other in range(len(self.families)):
            theirs = self.family == other
            sends = bool((theirs & ~self.collective).any())
            called = self._called(theirs, self.number if sends else self.seq)
            for first in set(range(len(self.families))) - {other}:
                here = np.flatnonzero((self.family == first) & self.collective)
                for seq in self._newest(here):
                    yield from self._odd(first, other, seq, here[self.seq[here] == seq],
                                         called, sends)  # fmt: skip

    def _called(self, theirs: Mask, numbers: Ints) -> Ints:
        """For each row, the number of the rank's newest operator in a family by then."""
        rows = np.flatnonzero(theirs & (numbers > 0))
        called = np.full(self.rank.size, UNKNOWN)
        if not rows.size:
            return called
        at = np.searchsorted(rows, np.arange(self.rank.size), side="right")
        before, after = rows[np.maximum(at - 1, 0)], rows[np.minimum(at, rows.size - 1)]
        has_next = (at < rows.size) & (self.rank[after] == self.rank)
        called[has_next] = numbers[after][has_next] - 1
        has_last = (at > 0) & (self.rank[before] == self.rank)
        called[has_last] = numbers[before][has_last]
        return called

    def _newest(self, here: Ints) -> list[int]:
        """The newest operators that each rank called."""
        last = np.full(self.stage.size, UNKNOWN)
        np.maximum.at(last, self.rank[here], self.seq[here])
        return [int(seq) for seq in np.unique(last) if seq >= 0]

    def _odd(
        self, first: int, other: int, seq: int, rows: Ints, called: Ints, sends: bool
    ) -> Iterator[Departure]:
        """The ranks that differ at an operator from all of their peers, which agree."""
        rows = rows[called[rows] >= 0]
        for stage in np.unique(self.stage[self.rank[rows]]):
            peers = rows[self.stage[self.rank[rows]] == stage]
            counts, times = np.unique(called[peers], return_counts=True)
            if counts.size != 2 or times.min() != 1 or times.max() < PEERS:
                continue
            expected = int(counts[times.argmax()])
            rank = int(self.rank[peers[called[peers] != expected][0]])
            group_of, counted = self.recording.group_of, self.families[other]
            own = group_of(rank, counted)
            groups = [group_of(int(peer), counted) for peer in self.rank[peers]]
            if sends and groups.count(own) > 1:
                continue
            made = int(counts[times.argmin()])
            yield Departure(rank, group_of(rank, self.families[first]), seq, own, made, expected)


def _stages(recording: Recording) -> Ints:
    """The place of each rank in its pipeline; 0 without one."""
    world = int(recording.comm.ints("rank").max(initial=0)) + 1
    stages = np.zeros(world, np.int64)
    for group in recording.groups.values():
        members = np.array(group.ranks, np.int64)
        if group.kind == "pp":
            known = members < world
            stages[members[known]] = np.flatnonzero(known)
    return stages

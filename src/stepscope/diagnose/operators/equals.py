"""Equal groups and equal ranks, from flight recorder dumps: what a small group is compared with.

In a group of two nobody is in the majority. But the tensor groups of a job call the same operators,
and so do their ranks: equal groups tell which side of a pair is odd, and equal ranks tell whose
calls left the common order. (`unlike_equals` asks that of any recording.)

A family is a set of equal groups: one kind, one size, no rank in two of them. What a rank called in
one family between two of its calls in another is compared with ranks that agreed with it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.diagnose.operators.progress import Lane, Recording
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Ints, Mask, Table, Window, numbered, rows_by

AGREED = 2
"""Equal ranks agreed at least as often before, and not only that there was no call. Our
simulator."""
MOST_SUSPECTS = 64
"""Those whose history of calls is rarest: each is compared with all ranks."""

_UNKNOWN = -1
RECENT = 4096
"""Newest calls that are compared: twice what flight recorders keep by default."""
VOTES = 2
"""Number of equal ranks that have to agree with one another: one witness is not a majority."""


@dataclass(frozen=True)
class Departure:
    """Where a rank left the order of calls that its equals kept."""

    rank: int
    group: str
    seq: int
    other: str
    """Another group of the rank, in which it had made more or fewer calls by then."""
    calls: int
    """Its calls there since its previous call in `group`."""
    expected: int
    """Those of its equals."""

    @property
    def text(self) -> str:
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        return (f"before operator {self.seq} of {self.group}, rank {self.rank} made {calls} in "
                f"{self.other}, and ranks with the same program made {self.expected}")  # fmt: skip


def families(recording: Recording) -> list[list[str]]:
    """The groups by family: of one kind and size, without a common rank."""
    return families_of(recording.groups.values())


def equal_lanes(recording: Recording, group: str) -> list[Lane]:
    """The operators of all ranks in the other groups of a group's family."""
    family = next((one for one in families(recording) if group in one), [])
    return [lane for name in family if name != group
            for lane in recording.lanes.get(name, {}).values()]  # fmt: skip


def find_departures(recording: Recording, suspects: Iterable[int]) -> list[Departure]:
    """For each of these ranks the first call that left the order of its equals, if any."""
    calls = _Calls.of(recording)
    alike: dict[bytes, list[int]] = {}
    for rank in sorted(suspects):
        alike.setdefault(calls.history(rank), []).append(rank)
    rarest = [rank for ranks in sorted(alike.values(), key=len) for rank in ranks]
    found = (calls.departure(rank) for rank in sorted(rarest[:MOST_SUSPECTS]))
    return [one for one in found if one is not None]


@dataclass(frozen=True)
class _Between:
    """Calls in one family since the previous call in another, by rank and operator of that."""

    counts: Ints
    """-1 where unknown."""
    first: int
    """The first operator compared."""
    further: Ints
    """By rank, calls since its last one in the other family: so far, as more may have followed."""
    next: Ints
    """By rank, the operator of the other family that it had not reached, counted from `first`."""

    def odd_at(self, rank: int) -> tuple[int, int, int, Ints] | None:
        """The operator at which a rank first differs from its equals, its calls before that,
        theirs, and the ranks that made as many calls as it did."""
        counts = self.counts
        known = (counts >= 0) & (counts[rank] >= 0)
        differs = known & (counts != counts[rank])
        same = known & ~differs
        parted = np.cumsum(differs, axis=1) - differs
        agreed = np.cumsum(same & (counts > 0), axis=1) - (same & (counts > 0))
        equal = (parted == 0) & (agreed >= AGREED)
        against, with_it = equal & differs, equal & same
        odd = np.flatnonzero(_outvoted(against, with_it, counts))
        if odd.size:
            at = int(odd[0])
            expected = int(counts[against[:, at], at][0])
            return at, int(counts[rank, at]), expected, np.flatnonzero(with_it[:, at])
        return self._open_end(rank, equal)

    def _open_end(self, rank: int, equal: Mask) -> tuple[int, int, int, Ints] | None:
        """The same at an operator that the rank has not reached, if it made too many calls."""
        at, made = int(self.next[rank]), int(self.further[rank])
        if not 0 <= at < self.counts.shape[1]:
            return None
        theirs = self.counts[equal[:, at] & (self.counts[:, at] >= 0), at]
        if theirs.size < VOTES or theirs.min() != theirs.max() or made <= theirs[0]:
            return None
        return at, made, int(theirs[0]), np.flatnonzero(self.further >= made)


@dataclass(frozen=True)
class _Calls:
    """What each rank called in one family between two calls in another."""

    recording: Recording
    families: list[list[str]]
    between: Mapping[tuple[int, int], _Between]
    """By pair of families: the one whose operators are gone through, the one that is counted."""

    @classmethod
    def of(cls, recording: Recording) -> _Calls:
        listed = families(recording)
        if len(listed) < 2:
            return cls(recording, listed, {})
        number = {group: at for at, family in enumerate(listed) for group in family}
        return cls(recording, listed, dict(_counted(recording, number)))

    def history(self, rank: int) -> bytes:
        """What a rank called, as far as it is compared; equal for ranks that called the same."""
        parts = ((one.counts[rank], one.further[rank], one.next[rank])
                 for one in self.between.values() if rank < len(one.counts))  # fmt: skip
        return b"".join(np.asarray(value).tobytes() for part in parts for value in part)

    def departure(self, rank: int) -> Departure | None:
        """The earliest departure; if several are at one call, any of them."""
        compared = (self._departure(rank, *pair, one) for pair, one in self.between.items()
                    if rank < len(one.counts))  # fmt: skip
        found = (one for one in compared if one is not None)
        return min(found, key=lambda one: (self._record(one), one.group), default=None)

    def _departure(self, rank: int, first: int, second: int, between: _Between) -> Departure | None:
        odd = between.odd_at(rank)
        if odd is None:
            return None
        at, calls, expected, with_it = odd
        other = self.recording.group_of(rank, self.families[second])
        if (frozenset(map(int, with_it)) - {rank}) & self.recording.members(other):
            return None  # a group of its own kind: all of its members did so
        group = self.recording.group_of(rank, self.families[first])
        return Departure(rank, group, between.first + at, other, calls, expected)

    def _record(self, one: Departure) -> int:
        """The time of the call in the rank's own count; an operator not reached counts as the
        last."""
        row = self.recording.lanes[one.group][one.rank].row_of(one.seq)
        record = self.recording.comm.ints("record")
        return int(record[row]) if row is not None else int(record.max()) + 1


def _outvoted(against: Mask, with_it: Mask, counts: Ints) -> Mask:
    """The operators at which a rank's equals agree with one another and not with it.

    The rank itself is one of those `with_it`.
    """
    votes = against.sum(axis=0)
    highest = np.where(against, counts, _UNKNOWN).max(axis=0)
    lowest = np.where(against, counts, np.iinfo(np.int64).max).min(axis=0)
    return np.asarray((votes >= VOTES) & (votes >= with_it.sum(axis=0)) & (highest == lowest))


def _counted(
    recording: Recording, number: Mapping[str, int]
) -> Iterator[tuple[tuple[int, int], _Between]]:
    """The counts of every pair of families."""
    comm = recording.comm
    by_name = [number.get(name, _UNKNOWN) for name in comm.strings("group").values]
    family = np.array([*by_name, _UNKNOWN], np.int64)[comm.strings("group").codes]
    family[recording.p2p] = _UNKNOWN
    rows = np.lexsort((comm.ints("record"), comm.ints("rank")))
    rows = rows[family[rows] >= 0]
    rank, seq, of = comm.ints("rank")[rows], comm.ints("seq")[rows], family[rows]
    for second in range(max(number.values()) + 1):
        made = np.cumsum(of == second)
        for first in set(number.values()) - {second}:
            here = np.flatnonzero(of == first)
            if here.size > 1:
                yield (first, second), _between(rank, seq, made, here)


def _between(rank: Ints, seq: Ints, made: Ints, here: Ints) -> _Between:
    """The counts `made` between the rows `here`; all rows in order of ranks and their calls."""
    world = int(rank.max()) + 1
    to, since = here[1:], here[:-1]
    newest = int(seq[here].max())
    oldest = max(int(seq[here].min()) + 1, newest - RECENT)
    known = (rank[to] == rank[since]) & (seq[to] == seq[since] + 1) & (seq[to] >= oldest)
    counts = np.full((world, newest - oldest + 1), _UNKNOWN, np.int64)
    counts[rank[to][known], seq[to][known] - oldest] = (made[to] - made[since])[known]
    last, end = np.full(world, _UNKNOWN), np.full(world, _UNKNOWN)
    last[rank[here]], end[rank] = here, np.arange(rank.size)
    has = last >= 0
    further, after = np.zeros(world, np.int64), np.full(world, _UNKNOWN)
    further[has] = made[end[has]] - made[last[has]]
    after[has] = seq[last[has]] + 1 - oldest
    return _Between(counts, oldest, further, after)


def families_of(groups: Iterable[ProcessGroup]) -> list[list[str]]:
    """The groups by family: of one kind and size, without a common rank."""
    found: dict[tuple[str, int], list[tuple[list[str], set[int]]]] = {}
    for group in groups:
        listed = found.setdefault((group.kind, len(group.ranks)), [])
        apart = (one for one in listed if one[1].isdisjoint(group.ranks))
        family = next(apart, None)
        if family is None:
            listed.append(([group.id], set(group.ranks)))
        else:
            family[0].append(group.id)
            family[1].update(group.ranks)
    return [names for listed in found.values() for names, _ in listed]


class _Called(NamedTuple):
    """The calls of one group: operators by number, and what each was, in order."""

    seq: Ints
    call: Ints
    rank: Ints

    def before(self, seq: int) -> bytes:
        """What the group called at each number before this one."""
        earlier = self.seq < seq
        return np.unique(np.stack((self.seq[earlier], self.call[earlier])), axis=1).tobytes()


def unlike_equals(window: Window, calls: Table, group: str, seq: int) -> frozenset[int]:
    """The members of a group that called something else at this number than all members of all
    equal groups, if these had called the same as they at every number before; empty if unknown."""
    family = next((one for one in families_of(window.job.groups) if group in one), [])
    of_group = _of_groups(calls, family, seq)
    if group not in of_group:
        return frozenset()
    own, history = of_group[group], of_group[group].before(seq)
    equals = [one for name, one in of_group.items() if name != group and one.before(seq) == history]
    theirs = [int(call) for one in equals for call in one.call[one.seq == seq]]
    here = own.seq == seq
    if len(theirs) < VOTES or len(set(theirs)) > 1 or theirs[0] not in own.call[here]:
        return frozenset()
    return frozenset(own.rank[here & (own.call != theirs[0])].tolist())


def _of_groups(calls: Table, family: list[str], seq: int) -> dict[str, _Called]:
    """What each of these groups called until a number."""
    number = calls.ints("seq")
    wanted = calls.strings("group").equals(*family) & (number <= seq) & (number > seq - RECENT)
    calls = calls.take(wanted)
    if not len(calls):
        return {}
    size = calls.ints("bytes") if calls.has("bytes") else np.full(len(calls), NULL)
    kind = numbered(calls.strings("op").codes.astype(np.int64), size)
    names, codes = calls.strings("group").values, calls.strings("group").codes
    return {names[int(codes[rows[0]])]: _Called(calls.ints("seq")[rows], kind[rows],
                                                calls.ints("rank")[rows])
            for rows in rows_by(codes)}  # fmt: skip

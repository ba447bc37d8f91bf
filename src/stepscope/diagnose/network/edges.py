"""Places where data moves: a group, or two pipeline neighbours; and which places are comparable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.trace import ProcessGroup
from stepscope.window import Ints, Table, Window, first_rows, numbered

COMPARED = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Send", "Recv")
"""Operators whose transfer times are compared, if all members move as many bytes: an AllToAll may
be uneven by design. The members of a Broadcast may leave early."""


@dataclass(frozen=True)
class Place:
    """A group, or a pair of neighbours in one, and its shape."""

    group: str
    kind: str
    members: tuple[int, ...]
    """For a pair the source and the target; empty if unknown."""
    shape: tuple[object, ...]
    """Places of equal shape are comparable: they are at the same place in equal groups."""
    is_pair: bool = False
    alike: tuple[object, ...] = ()
    """Places that move the same data over the same kind of hop, wherever they are in the job."""
    distance: tuple[object, ...] = ()
    """For a pair its shape wherever in its group it is: the same work is sent over all edges of one
    pipeline."""
    hosts: tuple[str | None, ...] = ()
    """The host of each member."""


_NOWHERE = Place("", "", (), ())
"""Of operators whose members are unknown."""


@dataclass(frozen=True)
class _Location:
    """Host and pipeline stage by rank; stages move data at different times, beside other work."""

    host: Mapping[int, str]
    stage: Mapping[int, int]


@dataclass(frozen=True)
class Ends:
    """The group of each operator, and the two ends of a send."""

    group: Ints
    """Codes of names."""
    source: Ints
    target: Ints
    """-1 unless the operator is a send."""

    @classmethod
    def of(cls, table: Table, begins: Ints) -> Ends:
        """The ends of matched operators.

        Args:
            table: rows of `comm_ops`, operator by operator.
            begins: the row at which each operator begins.
        """
        op, rank = table.strings("op"), table.ints("rank")
        source = np.maximum.reduceat(np.where(op.equals("Send"), rank, -1), begins)
        target = np.maximum.reduceat(np.where(op.equals("Recv"), rank, -1), begins)
        return cls(table.strings("group").codes[begins].astype(np.int64), source, target)


class Places:
    """The places where operators ran, numbered as they are met.

    Args:
        names: names of the groups, by their codes.
    """

    def __init__(self, window: Window, names: Sequence[str]) -> None:
        self.known: list[Place] = []
        self._members: list[int] = []
        self._number: dict[tuple[int, int, int], int] = {}
        self._groups = {group.id: _Group(group) for group in window.groups}
        self._names = names
        host = {rank: one.name for one in window.job.hosts for rank in one.ranks}
        self._where = _Location(host, window.job.stage_by_rank)

    def of(self, ends: Ends) -> Ints:
        """The number of each operator's place."""
        same = numbered(ends.group, ends.source, ends.target)
        first = first_rows(same)
        each = (column[first].tolist() for column in (ends.group, ends.source, ends.target))
        return np.array([*map(self._numbered, *each)], np.int64)[same]

    def members_of(self, number: Ints) -> Ints:
        """How many members each of some places has."""
        self._members += [len(one.members) for one in self.known[len(self._members) :]]
        return np.array(self._members, np.int64)[number]

    def _numbered(self, group: int, source: int, target: int) -> int:
        key = (group, source, target)
        if key not in self._number:
            self._number[key] = len(self.known)
            named = self._groups.get(self._names[group])
            self.known.append(_place(self._where, named, (source, target)))
        return self._number[key]


def find_places(window: Window, names: Sequence[str], ends: Ends) -> tuple[list[Place], Ints]:
    """The places of some operators, and the number of each operator's place."""
    places = Places(window, names)
    number = places.of(ends)
    return places.known, number


@dataclass(frozen=True)
class _Group:
    """A group, and what all of its places share: there are hundreds of them in a large group."""

    group: ProcessGroup

    @cached_property
    def members(self) -> frozenset[int]:
        return frozenset(self.group.ranks)

    @cached_property
    def first(self) -> int:
        return min(self.group.ranks)

    @cached_property
    def relative(self) -> tuple[int, ...]:
        """The ranks relative to the first one."""
        return tuple(rank - self.first for rank in self.group.ranks)


def _place(where: _Location, group: _Group | None, ends: tuple[int, int]) -> Place:
    """The whole group, or the two ends of a send in it."""
    if max(ends) >= 0:  # nearly all places are pairs
        return _pair(where, group, *ends)
    if group is None or not group.members:
        return _NOWHERE
    members = group.group.ranks
    # lists: generators take twice as long
    hosts = tuple([where.host.get(rank) for rank in members])
    layout, per_host = _layout(hosts)
    stages = tuple([where.stage.get(rank, 0) for rank in members])
    kind, whole = group.group.kind, group.relative
    apart = (kind, whole, members[-1] - members[0], layout)
    return Place(group.group.id, kind, members, (kind, whole, whole, layout, stages),
                 False, (kind, per_host), apart, hosts)  # fmt: skip


def _pair(where: _Location, group: _Group | None, source: int, target: int) -> Place:
    if group is None or source not in group.members or target not in group.members:
        return _NOWHERE
    hosts = where.host.get(source), where.host.get(target)
    layout, per_host = ((0, 0), (2,)) if hosts[0] == hosts[1] else ((0, 1), (1, 1))
    stages = where.stage.get(source, 0), where.stage.get(target, 0)
    kind, first, whole = group.group.kind, group.first, group.relative
    part, apart = (source - first, target - first), (kind, whole, target - source, layout)
    return Place(group.group.id, kind, (source, target), (kind, whole, part, layout, stages),
                 True, ("", per_host), apart, hosts)  # fmt: skip


def _layout(hosts: Sequence[str | None]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The hosts of members, numbered as they are met, and how many members these have, in order."""
    number: dict[str | None, int] = {}
    layout = tuple([number.setdefault(host, len(number)) for host in hosts])
    return layout, tuple(sorted(Counter(layout).values()))

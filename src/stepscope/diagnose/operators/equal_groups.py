"""Equal groups: those of one kind and size without a common rank, such as the tensor parallel
groups of a job. They run the same program, so they tell which side of a pair left it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Ints, Table, Window, numbered

RECENT = 4096
"""Newest calls that are compared: twice what flight recorders keep by default."""
VOTES = 2
"""Number of equal ranks that have to agree with one another: one witness is not a majority."""


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
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return {names[int(codes[rows[0]])]: _Called(calls.ints("seq")[rows], kind[rows],
                                                calls.ints("rank")[rows])
            for rows in parts}  # fmt: skip

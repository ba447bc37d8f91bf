"""The members of groups that no call names, by who leaves collectives together.

Torch before 2.2 records neither names nor members of groups, only a stream for each. All members of
a group leave a collective at one moment, whatever delayed one of them, and the clocks of two ranks
differ by one time wherever they meet. So of the regular divisions of the ranks (blocks, or every
k-th one) each stream gets the coarsest one in which that is true: a division that is too coarse
would make ranks wait for ranks that they never meet. Where ranks of different groups always leave
within a millisecond of each other it is too coarse, and costs nothing: nobody waits for longer.

Cannot see: irregular groups, and any beside sends and receives of unknown groups: with clocks
that are right, stages of a pipeline that nobody knows to be one are late by design. These stay one
group of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod

import numpy as np

from stepscope.formats.kineto.calls import P2P
from stepscope.formats.kineto.gloo import ALONE_NS, MOST_CHOICES
from stepscope.formats.kineto.groups import SENDS
from stepscope.formats.kineto.rank_trace import GUESSED, RankTrace
from stepscope.formats.kineto.together import LEAST_SHARED, MOSTLY
from stepscope.window import NULL, Floats, Mask, Table, numbered, occurrence

Division = tuple[tuple[int, ...], ...]
"""Places by group: ranks, also those that were not recorded, or their order if nobody knows how
many ranks there are."""

_MOST_COMPARED = 100_000
"""Combinations of divisions; a third of a second. Four unknown groups of 64 ranks have more."""


@dataclass(frozen=True)
class _Left:
    """When each rank left each collective of a stream, without the clocks: `[place, collective]`,
    NaN of ranks that were not recorded."""

    group: str
    clock_ns: Floats
    """By how much each rank's clock and lateness differ from the first rank's, in the middle."""
    varies_ns: Floats
    """What remains."""

    def possible(self, divisions: Iterable[Division]) -> list[Division]:
        """Those in which members leave together, as far as they do in any: what a finer division
        explains, a late rank of another group, is no damage."""
        apart = {one: sum(_apart(self.varies_ns[list(own)]) for own in one) for one in divisions}
        counts = {one: int(np.count_nonzero(held)) for one, held in apart.items()}
        most = min((1 - MOSTLY) * self.varies_ns.shape[1], min(counts.values()) + LEAST_SHARED - 1)
        return [one for one, count in counts.items() if count <= most]


def with_members(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Gives groups of unknown members, which all ranks have, the members that leave together."""
    if len({trace.rank for trace in traces}) < len(traces) or len(traces) < 4 or not all(
        GUESSED in trace.problems for trace in traces
    ):  # fmt: skip
        return list(traces)
    ordered = sorted(traces, key=lambda trace: trace.rank or 0)
    if any(SENDS in trace.groups for trace in ordered):
        return list(traces)
    recorded = [trace.rank or 0 for trace in ordered]
    world = max(trace.world_size or 0 for trace in ordered)
    ranks = list(range(world)) if recorded[-1] < world else recorded
    place = {rank: at for at, rank in enumerate(ranks)}
    chosen = _chosen(list(_streams(ordered, place)), list(_known(ordered, place)), len(ranks))
    members = {(ranks[at], group): tuple(ranks[other] for other in own)
               for group, division in chosen.items() for own in division for at in own}  # fmt: skip
    return [replace(trace, groups=tuple(
        replace(group, ranks=members.get((trace.rank or 0, group.id), group.ranks))
        for group in trace.groups)) for trace in traces]  # fmt: skip


def _streams(traces: Sequence[RankTrace], place: Mapping[int, int]) -> Iterator[_Left]:
    unknown = [{group.id for group in trace.groups if not group.ranks} for trace in traces]
    for group in sorted(set.intersection(*unknown)):
        left = _left(traces, group, place)
        if left.varies_ns.shape[1] >= LEAST_SHARED:
            yield left


def _known(
    traces: Sequence[RankTrace], place: Mapping[int, int]
) -> Iterator[tuple[_Left, Division]]:
    """The groups of known members: these leave together, too, by their clocks."""
    of_rank = {trace.rank or 0: trace for trace in traces}
    groups = dict.fromkeys(group for trace in traces for group in trace.groups)
    for group in groups:
        members = [rank for rank in group.ranks if rank in of_rank]
        if len(members) < 2:
            continue
        left = _left([of_rank[rank] for rank in members], group.id, place)
        if left.varies_ns.shape[1] > 1 and _together(left.varies_ns):
            yield left, (tuple(place[rank] for rank in members),)


def _left(traces: Sequence[RankTrace], group: str, place: Mapping[int, int]) -> _Left:
    ends = [_ends(trace.tables.get("comm_ops"), group) for trace in traces]
    shared = sorted(set.intersection(*(set(own) for own in ends)))
    left = np.array([[own[key] - ends[0][key] for key in shared] for own in ends], float)
    clock = np.median(left, axis=1) if shared else np.zeros(len(ends))
    places = [place[trace.rank or 0] for trace in traces]
    whole = np.full((len(place), 1 + left.shape[1]), np.nan)
    whole[places] = np.column_stack((clock, left - clock[:, None]))
    return _Left(group, whole[:, 0], whole[:, 1:])


def _ends(comm: Table | None, group: str) -> dict[tuple[int, int, str], int]:
    """The end of each collective, by its step, its operator and its number among these."""
    if comm is None:
        return {}
    known = comm.strings("group").equals(group) & ~comm.strings("op").equals(*P2P)
    comm = comm.take(known & (comm.ints("end_ns") != NULL) & (comm.ints("step") != NULL))
    op, step = comm.strings("op"), comm.ints("step")
    count = occurrence(numbered(step, op.codes.astype(np.int64)), comm.ints("enqueue_ns"))
    keys = zip(step.tolist(), count.tolist(), map(op.values.__getitem__, op.codes), strict=True)
    return dict(zip(keys, comm.ints("end_ns").tolist(), strict=True))


def _chosen(
    streams: Sequence[_Left], known: Sequence[tuple[_Left, Division]], count: int
) -> dict[str, Division]:
    """The coarsest division of each stream with which none contradicts another; {} if none fits."""
    possible = [left.possible(_divisions(count)) for left in streams]
    if prod(map(len, possible)) > _MOST_COMPARED:
        return {}
    choices = sorted(product(*possible), key=_coarseness, reverse=True)
    for choice in islice(choices, MOST_CHOICES):
        if _one_clock([*known, *zip(streams, choice, strict=True)], len(known)):
            return {left.group: one for left, one in zip(streams, choice, strict=True)}
    return {}


def _coarseness(choice: Iterable[Division]) -> int:
    return prod(len(one[0]) for one in choice)


def _divisions(count: int) -> Iterator[Division]:
    """All ranks, and every division into arithmetic progressions of one length."""
    for size in (size for size in range(2, count + 1) if count % size == 0):
        for stride in (one for one in range(1, count // size + 1) if count % (size * one) == 0):
            yield tuple(tuple(range(first, first + size * stride, stride))
                        for block in range(0, count, size * stride)
                        for first in range(block, block + stride))  # fmt: skip


def _one_clock(pairs: Sequence[tuple[_Left, Division]], known: int) -> bool:
    """Whether ranks that share groups of two streams are as far apart in both; the first pairs
    are `known`."""
    return all(
        _together((left.clock_ns - other.clock_ns)[list(both), None])
        for at, (left, division) in enumerate(pairs) if at >= known
        for other, others in pairs[:at]
        for own in division for theirs in others if len(both := {*own} & {*theirs}) > 1
    )  # fmt: skip


def _together(left_ns: Floats) -> bool:
    """Whether these ranks leave together; some rows do not belong together."""
    return bool(np.mean(_apart(left_ns)) <= 1 - MOSTLY)


def _apart(left_ns: Floats) -> Mask:
    """The collectives that these ranks do not leave together."""
    return np.asarray(np.fmax.reduce(left_ns) - np.fmin.reduce(left_ns) > ALONE_NS)

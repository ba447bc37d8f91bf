"""The groups of gloo's collectives, which no trace names, from the threads of all ranks.

A process makes two threads for each group when it makes the group, so their ids are nearly adjacent
and in the order of the groups. A group that is not used while the profiler records shows no thread,
so the threads of one rank alone do not tell which groups they are of. All ranks together do:
members of a group execute the same operators, and leave them together.

Ranks with equal numbers of groups and of used groups are taken to use the same ones. Where no
choice fits, or two fit equally well, the groups stay unknown.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from stepscope.formats.kineto.matching import EQUAL_SIZES
from stepscope.formats.kineto.rank_trace import RankTrace
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Strings, Table, distinct

PAIR = 4
"""Ids of the two threads of a group are at most this far apart; threads of other processes may come
between. Measured on real data: up to 2 in 26 pairs on a busy machine, and at least 7 from one group
to the next."""
AGREES = 0.5
"""Members share this part of their collectives: profilers lose some. Our choice."""
CLEARLY = 2.0
"""In any other choice, members leave this many times further apart. Measured on real data: 3.2 to
59 in six jobs with tensor and data parallelism."""
ALONE_NS = 1_000_000
"""Counts as how far apart members leave if only one of them was recorded. Our choice: more than on
one host, less than for ranks that do not wait for each other."""
MOST_CHOICES = 1_000
"""Of more nothing is chosen: each reads all collectives. Our choice: three of six groups are 20."""
_TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Barrier")
"""Operators that all members leave together."""
_UNKNOWN = (
    "gloo does not record the groups of collectives, and their threads do not show them; those of "
    "{ranks} of {all} ranks are left out of the comparison of groups"
)
_ONE_THREAD = (
    "the groups of gloo's collectives are taken from their threads; of some groups only one of the "
    "two was recorded, so they may be mistaken"
)

Key = tuple[object, ...]
"""A collective: its step, operator and size, and its number among those like it."""
Choice = Mapping[tuple[int, int], tuple[int, ...]]
"""The places of the used groups in a rank's groups, by the numbers of groups and of used ones."""


@dataclass(frozen=True)
class _Used:
    """The threads of one group of a rank, and when the rank left each of their collectives."""

    threads: tuple[int, ...]
    ends_ns: Mapping[Key, int]


@dataclass(frozen=True)
class _Rank:
    groups: tuple[ProcessGroup, ...]
    """In the order in which it made them."""
    used: tuple[_Used, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.groups), len(self.used)

    def of(self, choice: Choice) -> Iterator[tuple[ProcessGroup, _Used]]:
        return zip((self.groups[at] for at in choice[self.shape]), self.used, strict=True)


def with_groups(traces: Sequence[RankTrace]) -> tuple[list[RankTrace], tuple[str, ...]]:
    """Sets the groups of collectives that only their threads show; problems are one line each."""
    ranks = {rank: _rank(parts) for rank, parts in _by_rank(traces).items()}
    if not ranks:
        return list(traces), ()
    choice = _chosen(ranks)
    if choice is None:
        return list(traces), (_UNKNOWN.format(ranks=len(ranks), all=_ranks(traces)),)
    named = [_named(trace, ranks[trace.rank], choice) if trace.rank in ranks else trace
             for trace in traces]  # fmt: skip
    alone = any(len(used.threads) == 1 for rank in ranks.values() for used in rank.used)
    return named, (_ONE_THREAD,) if alone else ()


def _ranks(traces: Sequence[RankTrace]) -> int:
    return len({trace.rank for trace in traces})


def _by_rank(traces: Sequence[RankTrace]) -> dict[int | None, list[RankTrace]]:
    found = defaultdict(list)
    for trace in traces:
        if "comm_ops" in trace.tables and (_threads(trace) != NULL).any():
            found[trace.rank].append(trace)
    return found


def _threads(trace: RankTrace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return trace.tables["comm_ops"].ints("thread")


def _rank(windows: Sequence[RankTrace]) -> _Rank:
    marked = all(not one.steps_found_by and "steps" in one.tables for one in windows)
    ends: dict[int, dict[Key, int]] = defaultdict(dict)
    seen = distinct(np.concatenate([_threads(one) for one in windows]))
    pairs = _pairs([one for one in seen.tolist() if one != NULL])
    pair_of = {thread: at for at, pair in enumerate(pairs) for thread in pair}
    for one in windows:
        table = one.tables["comm_ops"]
        _collect(table.take(table.ints("thread") != NULL), pair_of, marked, ends)
    groups = max((one.configured for one in windows), key=len)
    return _Rank(groups, tuple(_Used(pair, ends[at]) for at, pair in enumerate(pairs)))


def _pairs(threads: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The threads of each group, out of the ids of all in order: as many pairs of near ids as
    possible, the closest ones."""
    best: list[tuple[int, int, tuple[tuple[int, ...], ...]]] = [(0, 0, ())]
    for at in reversed(range(len(threads))):
        alone, apart, rest = best[0]
        found = (alone + 1, apart, ((threads[at],), *rest))
        if at + 1 < len(threads) and threads[at] >= 0:
            alone, apart, rest = best[1]
            gap = threads[at + 1] - threads[at]
            pair = (alone, apart + gap, ((threads[at], threads[at + 1]), *rest))
            found = min(found, pair) if gap <= PAIR else found
        best = [found, *best[:1]]
    return best[0][2]


def _collect(
    table: Table, pair_of: Mapping[int, int], marked: bool, ends: dict[int, dict[Key, int]]
) -> None:
    """Adds the ends of the collectives of one window to those of each pair of threads."""
    op, size = table.strings("op"), table.ints("bytes")
    step = table.ints("step") if marked else np.zeros(len(table), np.int64)
    counts: Counter[Key] = Counter()
    columns = (table.ints("thread"), step, size, table.ints("end_ns"))
    order = np.argsort(table.ints("start_ns"), kind="stable").tolist()
    rows = [column[order].tolist() for column in columns]
    for at, thread, number, bytes_, end_ns in zip(order, *rows, strict=True):
        name = op[at]
        like = (pair_of[thread], number, name, bytes_ if name in EQUAL_SIZES else NULL)
        counts[like] += 1
        ends[pair_of[thread]][(*like[1:], counts[like])] = end_ns


def _chosen(ranks: Mapping[int | None, _Rank]) -> Choice | None:
    """The choice in which members agree best, if it is clearly the best."""
    shapes = sorted({rank.shape for rank in ranks.values()})
    if math.prod(math.comb(*shape) for shape in shapes) > MOST_CHOICES:
        return None
    ways = [combinations(range(groups), used) for groups, used in shapes]
    best: dict[Key, tuple[float, Choice]] = {}
    for places in product(*ways):
        choice = dict(zip(shapes, places, strict=True))
        apart = _apart(ranks, choice)
        if apart is not None:
            # groups of the same members are the same choice
            who = tuple(group.ranks for rank in ranks.values() for group, _ in rank.of(choice))
            best[who] = min(best.get(who, (apart, choice)), (apart, choice), key=lambda one: one[0])
    ordered = sorted(best.values(), key=lambda one: one[0])
    if not ordered or (len(ordered) > 1 and ordered[1][0] < CLEARLY * ordered[0][0]):
        return None
    return ordered[0][1]


def _apart(ranks: Mapping[int | None, _Rank], choice: Choice) -> float | None:
    """How far apart members leave their collectives, in ns, over all groups; None if members do not
    execute the same ones."""
    users: dict[ProcessGroup, dict[int | None, _Used]] = defaultdict(dict)
    for number, rank in ranks.items():
        for group, used in rank.of(choice):
            users[group][number] = used
    total = 0.0
    for group, members in users.items():
        spread = None
        if members.keys() == ranks.keys() & (set(group.ranks) or ranks.keys()):
            spread = _spread([one.ends_ns for one in members.values()])
        if spread is None:
            return None
        total += spread
    return total


def _spread(members: Sequence[Mapping[Key, int]]) -> float | None:
    """The median over the collectives of how far apart members leave them."""
    if len(members) == 1:
        return ALONE_NS
    shared = set(members[0]).intersection(*members[1:])
    if len(shared) < AGREES * max(map(len, members)):
        return None
    together = [key for key in shared if key[1] in _TOGETHER] or list(shared)
    ends = np.array([[one[key] for key in together] for one in members], np.int64)
    return float(np.median(ends.max(axis=0) - ends.min(axis=0)))


def _named(trace: RankTrace, rank: _Rank, choice: Choice) -> RankTrace:
    """The trace with the groups of its collectives."""
    group_of = {thread: group.id for group, used in rank.of(choice) for thread in used.threads}
    table = trace.tables["comm_ops"]
    groups = table.strings("group")
    names = [group_of.get(thread, groups[at])
             for at, thread in enumerate(table.ints("thread").tolist())]  # fmt: skip
    known = table.with_column("group", Strings.of(names))
    return replace(trace, tables={**trace.tables, "comm_ops": known})

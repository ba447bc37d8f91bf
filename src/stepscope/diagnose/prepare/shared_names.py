"""Groups of one name that are several communicators: `dp` or `tp` as recorders write them for all.

Members of a collective cannot leave it before the last one has arrived. Two ranks of whom one left
before the other one arrived, and in another collective of the same few the reverse, by any offset
between their clocks, were in different ones. If a name has such ranks, its communicators are the
largest parts of equal size that leave together: within them the times between leaving vary clearly
less than across. They get a name each: `tp/0`, `tp/1`. If `job.json` lists a name several times,
its members tell; a name of sends and receives alone has the sets of ranks that reach each other.
Cost: one look at the rows; the ranks of a name pair by pair only where somebody left too early.
Cannot see: communicators of one name that are always in step, or of unequal sizes; they are
matched as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.linked import linked
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, SYNCHRONIZING, arrivals
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window, distinct, numbered

TOGETHER = 16
"""Collectives in a row that are compared with each other: clocks hardly drift while they last. Our
choice."""
PLACES = 8
"""So many such rows, evenly over the recording, are looked at. Our choice."""
MOSTLY = 0.75
"""Two ranks may share collectives if nothing speaks against it in this part of the rows: a clock
may be set once. Our choice."""
LEAST, MOST = 4, 1024
"""Ranks of a name: two communicators have four, and more are not compared pair by pair. Our
choice."""
CLEARLY = 3
"""Times by which ranks of different communicators leave further apart. Our choice: links differ by
less within one."""


def with_own_names(window: Window) -> Window:
    """The window whose groups have one name for each communicator."""
    comm = window.table("comm_ops")
    if comm is None:
        return window
    listed: dict[str, list[ProcessGroup]] = {}
    for one in window.job.groups:
        listed.setdefault(one.id, []).append(one)
    parts = {name: [one.ranks for one in several]
             for name, several in listed.items() if len(several) > 1}  # fmt: skip
    unlisted = ~comm.strings("group").equals(*listed) & (comm.ints("rank") >= 0)
    parts |= dict(_by_peers(comm.take(unlisted)))
    parts |= dict(_by_times(comm.take(unlisted)))
    if not parts:
        return window
    groups = tuple(
        replace(one, id=_name(name, at)) if name in parts else one
        for name, several in listed.items() for at, one in enumerate(several)
    )  # fmt: skip
    renamed = comm.with_column("group", _renamed(comm, parts))
    return Window(replace(window.job, groups=groups), {**window.tables, "comm_ops": renamed})


def _name(name: str, at: int) -> str:
    return f"{name}/{at}"


def _renamed(comm: Table, parts: dict[str, list[tuple[int, ...]]]) -> Strings:
    """The groups of all rows, those of `parts` by the rank's part; a rank of none has no group."""
    groups, rank = comm.strings("group"), comm.ints("rank")
    codes, values = groups.codes.copy(), list(groups.values)
    for name, sets in parts.items():
        rows = np.flatnonzero(groups.equals(name) & (rank >= 0))
        of_rank = np.full(int(rank.max(initial=0)) + 1, -1, codes.dtype)
        for at, ranks in enumerate(sets):
            of_rank[[one for one in ranks if one < of_rank.size]] = len(values) + at
        codes[rows] = of_rank[rank[rows]]
        values += [_name(name, at) for at in range(len(sets))]
    return Strings(codes, tuple(values))


def _by_peers(comm: Table) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Names of nothing but sends and receives among several sets of ranks, with these sets."""
    if not comm.has("peer"):
        return
    groups, peer = comm.strings("group"), comm.ints("peer")
    sends = comm.strings("op").equals(*POINT_TO_POINT)
    known = sends & (peer >= 0) & ~groups.equals(*groups.named(~sends))
    for name in groups.named(known):
        rows = known & groups.equals(name)
        chains = linked(comm.ints("rank")[rows], peer[rows])
        if len(chains) > 1:
            yield name, [tuple(one) for one in chains]


def _by_times(comm: Table) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Names of several communicators, as times of collectives show, with the ranks of each."""
    if not comm.has("start_ns", "end_ns", "seq"):
        return
    known = comm.strings("op").equals(*SYNCHRONIZING) & (comm.ints("end_ns") != NULL)
    calls = comm.take(known & (comm.ints("seq") != NULL) & (comm.strings("group").codes >= 0))
    groups = calls.strings("group")
    for one in np.unique(groups.codes[_left_early(calls)]).tolist():
        stays = _Stays.of(calls.take(groups.codes == one))
        if LEAST <= stays.ranks.size <= MOST and (parts := stays.parts()):
            yield groups.values[one], parts


def _left_early(calls: Table) -> Mask:
    """Calls of a collective that some rank left before the last one arrived, by their clocks."""
    if not len(calls):
        return np.zeros(0, np.bool_)
    number = numbered(calls.strings("group").codes.astype(np.int64), calls.ints("seq"))
    last = np.full(int(number.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, number, arrivals(calls))
    return np.asarray(calls.ints("end_ns") < last[number])


@dataclass(frozen=True)
class _Stays:
    """When each rank arrived at the collectives of one name, and when it left them."""

    ranks: Ints
    arrived: Floats
    """`[rank, collective]` in ns since the first; NaN: no such call."""
    left: Floats

    @classmethod
    def of(cls, calls: Table) -> _Stays:
        """Those of a few collectives in a row, at several places."""
        numbers = distinct(calls.ints("seq"))
        places = np.linspace(0, max(numbers.size - TOGETHER, 0), PLACES).astype(np.int64)
        chosen = numbers[np.unique(places[:, None] + np.arange(TOGETHER)).clip(0, numbers.size - 1)]
        calls = calls.take(np.isin(calls.ints("seq"), chosen))
        ranks, row = np.unique(calls.ints("rank"), return_inverse=True)
        chosen, column = np.unique(calls.ints("seq"), return_inverse=True)
        begin = arrivals(calls)
        arrived, left = np.full((2, ranks.size, chosen.size), np.nan)
        arrived[row, column] = begin - begin.min()
        left[row, column] = calls.ints("end_ns") - begin.min()
        return cls(ranks, arrived, left)

    def parts(self) -> list[tuple[int, ...]]:
        """The ranks of each communicator; empty: there is one, or it cannot be told."""
        places = [slice(at, at + TOGETHER) for at in range(0, self.left.shape[1], TOGETHER)]
        possible = np.mean([self._possible(one) for one in places], axis=0) > MOSTLY
        if possible.all():
            return []
        apart = np.mean([self._apart(one) for one in places], axis=0)
        found = _equal_parts(apart, possible)
        return [tuple(self.ranks[part].tolist()) for part in found]

    def _possible(self, columns: slice) -> Mask:
        """`[rank, rank]`: whether some offset of the clocks lets both leave after the other came.

        By the offset, one's clock is ahead of the other's by at least the longest time that it
        came after the other one left, and the reverse.
        """
        arrived, left = self.arrived[:, columns], self.left[:, columns]
        least = np.full((len(left), len(left)), -np.inf)
        for came, went in zip(arrived.T, left.T, strict=True):
            least = np.fmax(least, came - went[:, None])
        return np.asarray(least + least.T <= 0)

    def _apart(self, columns: slice) -> Floats:
        """`[rank, rank]`: by how much the time between their leaving varies (its standard
        deviation)."""
        late = self.left[:, columns] - stats.column_median(self.left[:, columns])
        known, late = np.isfinite(late).astype(np.float64), np.nan_to_num(late)
        shared = np.maximum(known @ known.T, 1.0)
        squares = late**2 @ known.T
        mean = (late @ known.T - known @ late.T) / shared
        spread = (squares + squares.T - 2 * late @ late.T) / shared - mean**2
        return np.sqrt(np.maximum(spread, 1.0))


def _equal_parts(apart: Floats, possible: Mask) -> list[Ints]:
    """Parts of equal size, without pairs that are impossible, whose members are clearly closer to
    each other than to those of other parts: the largest such parts; empty if there are none."""
    edges = _shortest_links(apart)
    longest = np.argsort(-apart[edges])
    for count in (one for one in range(2, len(apart) // 2 + 1) if len(apart) % one == 0):
        kept = longest[count - 1 :]
        parts = [np.array(part) for part in linked(edges[0][kept], edges[1][kept])]
        equal = len(parts) == count and len({part.size for part in parts}) == 1
        clear = apart[edges][longest[count - 2]] > CLEARLY * apart[edges][kept[0]]
        if equal and clear and all(possible[np.ix_(one, one)].all() for one in parts):
            return parts
    return []


def _shortest_links(apart: Floats) -> tuple[Ints, Ints]:
    """The pairs that connect all with the shortest links (Prim, 1957)."""
    nearest = np.zeros(len(apart), np.int64)
    distance = apart[0].copy()
    outside = np.arange(1, len(apart))
    links = []
    while outside.size:
        at = int(outside[distance[outside].argmin()])
        links.append((int(nearest[at]), at))
        outside = outside[outside != at]
        closer = apart[at] < distance
        nearest[closer], distance = at, np.minimum(distance, apart[at])
    one, other = np.array(links, np.int64).T
    return one, other

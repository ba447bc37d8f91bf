"""Transfers: how long data moved in each operator after its last member had arrived.

One entry per collective or pair of send and receive all of whose members were recorded, over any
network, with or without bytes, kernels and hardware. Until the last arrival members wait; what is
left is the time that the data itself took, and whatever held it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.network.edges import Ends, Place, find_places
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.align import IMPOSSIBLE_NS
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, SYNCHRONIZING, arrivals, match
from stepscope.trace import Host
from stepscope.window import NULL, Floats, Ints, Mask, Table, runs

LEVEL = 0.5
"""The quantile that is the level of some transfers. A link whose rate is limited lets some through
at full speed: in a real pipeline the median became ten times as long, and the middle of the faster
half twice. Between halves of 16 healthy real jobs the logarithms of medians differ by 0.06, and of
that quantile by 0.05 (standard deviations of 95 places). Measured on real data."""
LEAST_BYTES = 4096
"""What fits into a few packets shows delays of calls, not how fast data moves."""
LEAST = 8
"""Fewer transfers show no level. Statistics."""


@dataclass(frozen=True)
class Transfers:
    """Matched operators, one entry each, and the ends of all their members."""

    places: Sequence[Place]
    hosts: Sequence[tuple[str, ...]]
    """Of the members of each place, in order of their ranks."""
    adapters: Sequence[tuple[str, ...]]
    """The same with their adapters, `host/nic`, where hosts have several; empty elsewhere."""
    place: Ints
    kind: Ints
    """One number for each operator name and size."""
    ops: Sequence[str]
    """The operator of each kind; empty for sends and receives."""
    column: Ints
    took_ns: Floats
    """From the last arrival to the end: of the receive, or of the last member."""
    left_ns: Ints
    """That end."""
    last: Ints
    """The rank that arrived last."""
    begins: Ints
    """Where each operator's members begin in `rank` and `end_ns`."""
    rank: Ints
    end_ns: Ints

    @cached_property
    def between(self) -> Mask:
        """`[place]`: whether it has members on several hosts."""
        return np.array([len(set(one)) > 1 for one in self.hosts], np.bool_)

    def per_step(self, columns: int, host: str = "") -> Floats:
        """Time that data between hosts, or to and from one, moved in each step, summed over the
        operators."""
        wanted = [not host or host in hosts for hosts in self.hosts]
        kept = (self.between & np.array(wanted, np.bool_))[self.place]
        return stats.sums(self.column[kept], self.took_ns[kept], columns)

    def levels(self, columns: Mask, quantile: float = LEVEL) -> Levels:
        """The usual time of each place and kind of operator in some columns."""
        chosen = np.flatnonzero(columns[self.column])
        width = int(self.kind.max(initial=0)) + 1
        key = self.place[chosen] * width + self.kind[chosen]
        order = np.lexsort((self.took_ns[chosen], key))
        begins, count = runs(key[order])
        level = self.took_ns[chosen][order][begins + (quantile * count).astype(np.int64)]
        enough = count >= LEAST
        keys = key[order][begins][enough]
        return Levels(keys // width, keys % width, level[enough],
                      count[enough] / max(int(columns.sum()), 1))  # fmt: skip


@dataclass(frozen=True)
class Levels:
    """The usual time of one operator, one entry per place and kind."""

    place: Ints
    kind: Ints
    took_ns: Floats
    per_step: Floats
    """How many of them there are."""


def transfers(job: Observed) -> Transfers | None:
    """All transfers after the warm-up; None where their ends were not recorded."""
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("end_ns", "step", "group"):
        return None
    wanted = comm.strings("op").equals(*SYNCHRONIZING, *POINT_TO_POINT)
    wanted &= job.line.columns(comm.ints("step")) >= job.line.warm_up
    if comm.has("bytes"):
        size = comm.ints("bytes")
        wanted &= (size == NULL) | (size >= LEAST_BYTES)
    matched = match(comm.take(wanted))
    if not matched.order.size:
        return None
    return _gathered(job, matched.table.take(matched.order), matched.bounds[:-1])


def _gathered(job: Observed, table: Table, begins: Ints) -> Transfers | None:
    ends = Ends.of(table, begins)
    places, place = find_places(job.window, table.strings("group").values, ends)
    size = np.diff(np.append(begins, len(table)))
    members = np.array([len(one.members) for one in places], np.int64)
    counts = (table.ints("end_ns") != NULL) | table.strings("op").equals("Send")
    whole = np.logical_and.reduceat(counts, begins) & (members[place] == size) & (size > 1)
    if not whole.any():
        return None
    rows = np.repeat(whole, size)
    table, size, place = table.take(rows), size[whole], place[whole]
    begins, end = np.cumsum(size) - size, table.ints("end_ns")
    left, arrived = _left(table, begins, end), arrivals(table)
    latest = np.maximum.reduceat(arrived, begins)
    is_last = np.where(arrived == np.repeat(latest, size), table.ints("rank"), -1)
    took, last = left - latest, np.maximum.reduceat(is_last, begins)
    possible = took > -IMPOSSIBLE_NS
    if not possible.all():
        rows = np.repeat(possible, size)
        table, size, place = table.take(rows), size[possible], place[possible]
        begins, end = np.cumsum(size) - size, end[rows]
        left, took, last = left[possible], took[possible], last[possible]
    host = {rank: one.name for one in job.window.job.hosts for rank in one.ranks}
    adapter = {rank: name for one in job.window.job.hosts for rank, name in adapters_of(one)}
    kind, ops = _kinds(table, begins)
    return Transfers(
        places, [tuple(host.get(rank, "") for rank in sorted(one.members)) for one in places],
        [tuple(adapter.get(rank, "") for rank in sorted(one.members)) for one in places],
        place, kind, ops, job.line.columns(table.ints("step")[begins]),
        np.maximum(took, 0).astype(np.float64), left, last, begins, table.ints("rank"), end,
    )  # fmt: skip


def adapters_of(host: Host) -> Iterator[tuple[int, str]]:
    """The adapter of each rank, by its share of the host's, if there are several."""
    for at, rank in enumerate(host.ranks if len(host.nics) > 1 else ()):
        yield rank, f"{host.name}/{host.nics[at * len(host.nics) // len(host.ranks)]}"


def _left(table: Table, begins: Ints, end: Ints) -> Ints:
    """When each operator ended: for a send at the receiver, else at the last member."""
    sent = table.strings("op").equals("Send")
    return np.maximum.reduceat(np.where(sent, NULL, end), begins)


def _kinds(table: Table, begins: Ints) -> tuple[Ints, list[str]]:
    """A number for the name and the size class (power of two) of each operator; a send counts as a
    receive."""
    op = table.strings("op")
    code = np.where(op.equals(*POINT_TO_POINT), -1, op.codes)[begins].astype(np.int64)
    size = np.zeros(begins.size, np.int64)
    if table.has("bytes"):
        known = np.maximum(table.ints("bytes")[begins], 1)
        size = np.rint(np.log2(known)).astype(np.int64)
    kinds, kind = np.unique(np.stack((code, size)), axis=1, return_inverse=True)
    return kind.ravel(), [op.values[code] if code >= 0 else "" for code in kinds[0].tolist()]

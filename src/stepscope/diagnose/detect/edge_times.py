"""Whose link is slow, by what each edge between hosts takes for sends and receives.

Fault: a host whose adapter or cable moves data slowly, between stages of a pipeline over TCP
(gloo), or wherever the starts and ends of single sends were recorded.
Paper: none; VenusTrace (2025), section 4, compares durations, which contain waiting. Here a
transfer runs from the later of the two arrivals to the end of the receive, and the faster half of
an edge's transfers shows what the wire does: waiting for a busy process only makes some of them
longer. A host is slow if all of its edges to other hosts are; the other end of such an edge is
cleared by its own fast edges.
Rule: if steps got longer, an edge is compared with itself before; else with the other edges between
hosts. Cost: one sort of the sends. Cannot see: which of two hosts it is if they have no other edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect import step_time
from stepscope.diagnose.finding import Decision, Device, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.slow_edges import on_devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals, match
from stepscope.window import NULL, Floats, Ints

FASTER_HALF = 0.25
"""The middle of an edge's faster half. Statistics."""
RATIO = 2.0
"""An edge is slow at twice the usual time: with two edges it is unclear which one is normal.
Measured on real data: healthy edges between hosts differ by less than 1.6 times."""
LEAST_NS = 10**6
"""Clocks of hosts are aligned to about a millisecond over TCP. Measured on real data."""
LEAST_TRANSFERS = 20
"""Fewer transfers show no level. Statistics."""
LEAST_COST = 0.05
"""What slow transfers must add to a step that was never faster: some of them are hidden behind
compute. Our simulator."""


class EdgeTimes:
    """The host all of whose sends and receives to other hosts are slow."""

    name = "edge-times"
    needs = Needs("comm_ops.end_ns", "comm_ops.peer", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        if so_far.culprits or on_devices(job):
            return
        sends = _sends(job)
        if sends is None:
            return
        change = step_time.regression(job.line.job_period_ns[job.line.warm_up :])
        split = None if change is None else change.split + job.line.warm_up
        edges = _edges(job, sends, split)
        slow = [one for one in edges if one.is_slow]
        hosts = _guilty(edges)
        if slow and hosts:
            finding = _finding(job, slow, hosts, split)
            if finding is not None:
                yield finding


@dataclass(frozen=True)
class _Sends:
    """Sends between hosts that were received: one entry each."""

    source: Ints
    target: Ints
    column: Ints
    took_ns: Floats


@dataclass(frozen=True)
class _Edge:
    """What one direction between two ranks of different hosts takes, and what it usually does."""

    source: str
    target: str
    ranks: tuple[int, int]
    took_ns: float
    usual_ns: float
    per_step: float

    @property
    def is_slow(self) -> bool:
        return self.took_ns >= max(RATIO * self.usual_ns, self.usual_ns + LEAST_NS)

    @property
    def hosts(self) -> tuple[str, str]:
        return self.source, self.target


def _sends(job: Observed) -> _Sends | None:
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("peer", "step"):
        return None
    comm = comm.take(comm.strings("op").equals(*POINT_TO_POINT))
    matched = match(comm)
    pairs = np.flatnonzero(np.diff(matched.bounds) == 2)
    if not pairs.size:
        return None
    rows = matched.order[matched.bounds[pairs][:, None] + np.arange(2)]
    received = comm.strings("op").equals("Recv")[rows]
    rows = np.where(received[:, :1], rows[:, ::-1], rows)  # the send first
    rank, end = comm.ints("rank")[rows], comm.ints("end_ns")[rows[:, 1]]
    column = job.line.columns(comm.ints("step")[rows[:, 1]])
    host = {one: job.window.host_of(one) for one in job.window.ranks}
    apart = np.array([host.get(a) != host.get(b) for a, b in rank.tolist()])
    kept = (end != NULL) & (column >= job.line.warm_up) & apart & (received.sum(axis=1) == 1)
    took = (end - arrivals(comm)[rows].max(axis=1)).astype(np.float64)
    return _Sends(rank[kept, 0], rank[kept, 1], column[kept], took[kept])


def _edges(job: Observed, sends: _Sends, split: int | None) -> list[_Edge]:
    """All edges; usual is their own time before the change, without one that of the others."""
    found: list[_Edge] = []
    number = sends.source * (int(sends.target.max(initial=0)) + 1) + sends.target
    for edge in np.unique(number):
        mine = number == edge
        now = mine if split is None else mine & (sends.column >= split)
        before = mine & ~now
        if now.sum() < LEAST_TRANSFERS or (split is not None and before.sum() < LEAST_TRANSFERS):
            continue
        at = int(np.flatnonzero(mine)[0])
        ends = int(sends.source[at]), int(sends.target[at])
        names = [job.window.host_of(one) or "" for one in ends]
        steps = np.unique(sends.column[now]).size
        usual = _level(sends.took_ns[before]) if split is not None else np.nan
        found.append(_Edge(names[0], names[1], ends, _level(sends.took_ns[now]), usual,
                           now.sum() / steps))  # fmt: skip
    return found if split is not None else _against_others(found)


def _level(took_ns: Floats) -> float:
    return max(float(np.quantile(took_ns, FASTER_HALF)), 0.0)


def _against_others(edges: Sequence[_Edge]) -> list[_Edge]:
    """Each edge by the mean of both directions, in which a difference of clocks cancels."""
    known = {one.ranks: one.took_ns for one in edges}
    levels = np.array([(one.took_ns + known.get(one.ranks[::-1], one.took_ns)) / 2
                       for one in edges])  # fmt: skip
    return [_Edge(one.source, one.target, one.ranks, float(levels[at]),
                  float(np.median(np.delete(levels, at))), one.per_step)
            for at, one in enumerate(edges) if len(edges) > 2]  # fmt: skip


def _guilty(edges: Sequence[_Edge]) -> list[str]:
    """Hosts of which every neighbour is reached slowly, or that every neighbour reaches slowly."""
    names = sorted({name for one in edges for name in one.hosts})
    guilty = []
    for name in names:
        out = [one.is_slow for one in edges if one.source == name]
        into = [one.is_slow for one in edges if one.target == name]
        if (out and all(out)) or (into and all(into)):
            guilty.append(name)
    both = [name for name in guilty
            if all(one.is_slow for one in edges if name in one.hosts)]  # fmt: skip
    return both or guilty


def _finding(
    job: Observed, slow: Sequence[_Edge], hosts: Sequence[str], split: int | None
) -> SlowLink | None:
    line = job.line
    first = line.warm_up if split is None else split
    after = stats.median(line.job_period_ns[first:])
    if split is not None:
        lost_ns = after - stats.median(line.job_period_ns[line.warm_up : split])
    else:
        lost_ns = max((one.took_ns - one.usual_ns) * one.per_step for one in slow)
        if lost_ns < LEAST_COST * after:
            return None
    worst = max(slow, key=lambda one: one.took_ns - one.usual_ns)
    usual = max(worst.usual_ns, 1.0)
    detail = (
        f"from rank {worst.ranks[0]} to rank {worst.ranks[1]} data takes "
        f"{worst.took_ns / 1e6:.1f} ms, {worst.usual_ns / 1e6:.1f} ms "
        f"{'before' if split is not None else 'on other edges'}; slow are {len(slow)} edges, "
        f"all of {' and '.join(hosts)}"
    )
    named = hosts[:1] if len(hosts) == 1 else []
    ranks = tuple(rank for rank in job.window.ranks if job.window.host_of(rank) in named)
    devices = tuple(Device("nic", f"{name}/{job.adapter_of(name)}", round(1 / len(hosts), 3))
                    for name in hosts)  # fmt: skip
    stop = len(line.steps)
    return SlowLink(
        "edge-times", "network", detail, ranks, devices=devices, steps=line.span(first, stop),
        time_ns=line.span_ns(first, stop), slowdown=worst.took_ns / max(usual, 10.0**5),
        lost_ns=lost_ns, lost_fraction=min(max(lost_ns / after, 0.0), 1.0),
        score=0.9 if named else 0.7, where=f"through {' or '.join(hosts)} than elsewhere or before",
        columns=tuple(range(first, stop)), victims=len(job.window.ranks) - len(ranks),
        values={"took_ns": worst.took_ns, "usual_ns": worst.usual_ns, "slow_edges": len(slow)},
        decisions=(Decision("edge-times", True, worst.took_ns / usual, RATIO, detail),),
    )  # fmt: skip

"""Whose link is slow, by who ends when in collectives that pass data round a ring.

Fault: a host whose adapter or cable moves data slowly, or loses packets, in a job over TCP (gloo).
Paper: none. A rank before a slow hop waits longest for its last piece, its predecessors wait less
and less: the ends of one collective spread over the ranks like a triangle whose peak lies just
before the slow host. Healthy, all ranks end within milliseconds.
Rule: the transfers of all collectives got longer, and of the ranks that stand before a host, one
ends later than the others by more than noise. Clocks need not agree: ends are compared with the
same rank's ends before the change, and within a host where nothing changed.
Cost: one sort of `comm_ops`. Cannot see: which of two hosts it is, if there are only two; trees;
what NCCL moves in pieces so small that all ranks end together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect import step_time
from stepscope.diagnose.finding import Decision, Device, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.slow_edges import on_devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, arrivals, match
from stepscope.diagnose.thresholds import HIGHEST_SCORE
from stepscope.window import NULL, Floats, Ints, Table

LEAST_MEMBERS = 3
"""Two ranks have no ring."""
LEAST_OPERATORS = 8
"""Of two hosts one is last in all of eight operators by chance in less than one of a hundred cases.
Statistics."""
LEAST_SPREAD = 0.05
"""Part of the transfer by which ends must spread: measured on real data 0.1 to 0.3 with a slow
host, and with scatter alone 0 on the median of many operators."""
SURE = 5.0
"""Standard errors by which ends must spread: less than one false alarm in a million. Statistics."""
LONGER = 1.2
"""Transfers are slow if they take so many times what they took before. Measured on real data:
without a fault they vary by less than a tenth between halves of a job."""


class RingEnds:
    """The host before which the ends of collectives peak, where transfers got slower."""

    name = "ring-ends"
    needs = Needs("comm_ops.end_ns", ranks=LEAST_MEMBERS)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        rings = None if so_far.culprits or on_devices(job) else _rings(job)
        change = None if rings is None else _slower(job, rings)
        if rings is None or change is None:
            return
        votes = _votes(job, rings, change)
        if votes is not None:
            yield _finding(job, rings, change, votes)


@dataclass(frozen=True)
class _Rings:
    """The collectives of the group that moves most over several hosts: ends by rank of the ring."""

    group: str
    rows: Ints
    """Of the grid, in the order of the ring."""
    column: Ints
    ends: Floats
    """`[operator, place in the ring]` after the operator's median end, ns."""
    transfer: Floats
    """From the last arrival to the median end."""


@dataclass(frozen=True)
class _Change:
    """From which column transfers are slower, and by how much."""

    split: int
    before_ns: float
    after_ns: float


def _rings(job: Observed) -> _Rings | None:
    return max(_each(job), key=lambda one: float(one.transfer.sum()), default=None)


def _each(job: Observed) -> Iterator[_Rings]:
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("step"):
        return
    comm = comm.take(comm.strings("op").equals(*SYNCHRONIZING) & (comm.ints("end_ns") != NULL))
    for group in job.window.groups:
        hosts = {job.window.host_of(rank) for rank in group.ranks}
        if len(group.ranks) >= LEAST_MEMBERS and len(hosts - {None}) > 1:
            found = _of_group(job, group.id, group.ranks, comm)
            if found is not None:
                yield found


def _of_group(job: Observed, group: str, ranks: tuple[int, ...], comm: Table) -> _Rings | None:
    part = comm.take(comm.strings("group").equals(group))
    matched = match(part)
    size = np.diff(matched.bounds)
    whole = np.flatnonzero(size == len(ranks))
    if whole.size < LEAST_OPERATORS:
        return None
    rows = matched.order[matched.bounds[whole][:, None] + np.arange(len(ranks))]
    rank = part.ints("rank")[rows]
    place = {member: at for at, member in enumerate(ranks)}
    order = np.argsort(np.vectorize(place.__getitem__)(rank), axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    end, arrive = part.ints("end_ns")[rows], arrivals(part)[rows]
    middle = np.median(end, axis=1)
    column = job.line.columns(part.ints("step")[rows[:, 0]])
    kept = column >= job.line.warm_up
    return _Rings(
        group, job.line.rows(np.array(ranks)), column[kept],
        (end - middle[:, None])[kept], np.maximum(middle - arrive.max(axis=1), 0.0)[kept],
    )  # fmt: skip


def _slower(job: Observed, rings: _Rings) -> _Change | None:
    """The column from which a step's transfers take longer; None where they never do."""
    skip, columns = job.line.warm_up, len(job.line.steps)
    total = stats.sums(rings.column, rings.transfer, columns)[skip:]
    change = step_time.regression(total, LONGER)
    if change is None:
        return None
    return _Change(change.split + skip, change.before_ns, change.after_ns)


@dataclass(frozen=True)
class _Votes:
    """How often each host's predecessor ended last, of the operators in which it could."""

    hosts: tuple[str, ...]
    share: Floats
    operators: int
    late_ns: float
    """By how much the predecessor of the first host ends after the median rank."""


def _votes(job: Observed, rings: _Rings, change: _Change) -> _Votes | None:
    """The hosts by how often the rank before them ended last, most often first."""
    slow = rings.column >= change.split
    fast = rings.column < change.split
    if slow.sum() < LEAST_OPERATORS or fast.sum() < LEAST_OPERATORS:
        return None
    late = rings.ends[slow] - np.median(rings.ends[fast], axis=0)
    host = [job.window.host_of(int(job.line.ranks[row])) or "" for row in rings.rows]
    before = [at for at in range(len(host)) if host[at] != host[(at + 1) % len(host)]]
    peaks = late[:, before]
    typical = np.median(late, axis=0)
    error = np.array([stats.sigma(one) for one in late.T]) / np.sqrt(len(late))
    spread, at = float(np.ptp(typical)), int(typical.argmax())
    if spread < max(LEAST_SPREAD * np.median(rings.transfer[slow]), SURE * float(error[at])):
        return None
    names = [host[(at + 1) % len(host)] for at in before]
    last = np.bincount(peaks.argmax(axis=1), minlength=len(before)) / len(peaks)
    order = np.lexsort((-typical[before], -last))
    return _Votes(
        tuple(names[at] for at in order), last[order], len(peaks),
        float(typical[before[int(order[0])]]),
    )  # fmt: skip


def _finding(job: Observed, rings: _Rings, change: _Change, votes: _Votes) -> SlowLink:
    line, host = job.line, votes.hosts[0]
    ranks = tuple(rank for rank in job.window.ranks if job.window.host_of(rank) == host)
    before = stats.median(line.job_period_ns[line.warm_up : change.split])
    after = stats.median(line.job_period_ns[change.split :])
    share, ratio = float(votes.share[0]), change.after_ns / max(change.before_ns, 1.0)
    detail = (
        f"{rings.group} moves data {ratio:.1f} times as long as before; the rank before {host} "
        f"ends last in {100 * share:.0f} % of {votes.operators} operators, "
        f"by {votes.late_ns / 1e6:.1f} ms"
    )
    devices = tuple(Device("nic", f"{name}/{job.adapter_of(name)}", round(float(part), 3))
                    for name, part in zip(votes.hosts, votes.share, strict=True)
                    if part >= LEAST_SPREAD)  # fmt: skip
    return SlowLink(
        "ring-ends", "network", detail, ranks, devices=devices,
        steps=line.span(change.split, len(line.steps)),
        time_ns=line.span_ns(change.split, len(line.steps)), slowdown=ratio,
        lost_ns=max(after - before, 0.0), lost_fraction=max(1 - before / max(after, 1.0), 0.0),
        score=min(share, HIGHEST_SCORE), where=f"through {host} than before",
        columns=tuple(range(change.split, len(line.steps))),
        victims=len(job.window.ranks) - len(ranks),
        values={"share": share, "operators": votes.operators, "late_ns": votes.late_ns},
        decisions=(Decision("ring-ends", True, ratio, LONGER, detail),),
    )  # fmt: skip

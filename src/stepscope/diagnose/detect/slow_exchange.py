"""A network that got slower, by the phases of communication alone.

Fault: data moves slower between all ranks, or within one group, from some step on or for some time.
Paper: none. The papers compare durations of operators.
Ours: where no operators were recorded, phases whose names say that they move data show the same.
All members of a group leave together, so the member that arrived last spends the least time in the
phase, and that is the time of the transfer. If it grows, and what ranks do themselves does not, the
network got slower. Within a step, phases of one kind of group add up. A name that says that
gradients are reduced, but no kind, means the replicas (DDP, FSDP and DeepSpeed do that, and each
stage has replicas of its own). If the steps got longer at the same step, and mostly by the
exchange, it costs whatever they got longer by and no rank worked longer: the same adapter moves
what no phase shows, such as sends between stages.
Cost: sums of phases at hand. Cannot see: what was slow from the first step on in all groups, in
phases under other names, and sends between stages, whose ranks do not leave together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect import step_time
from stepscope.diagnose.finding import Decision, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST
from stepscope.diagnose.views.communication import communicates, exchanges_gradients, loads
from stepscope.diagnose.views.peers import stages
from stepscope.diagnose.views.phase_rows import PhaseRows, phase_rows
from stepscope.window import Floats

CONFIDENCE = 0.65
"""A busy machine moves data more slowly over TCP, too, and more data takes longer. As of a shared
rise whose cause is inferred (`regression`)."""
UNCHANGED = 0.25
"""Other phases may grow by at most this part of the relative rise. As in `regression.rise`."""
NOTABLE = 0.05
"""Shorter phases, as parts of a step, show nothing about the machine. Our choice."""
MOSTLY = 0.5
"""Of what the steps got longer by: an exchange that took less explains nothing else. Our choice."""
SHARED = 0.5
"""Groups that rise by half of the largest rise share it. As in `regression.rise`."""
RATIO, RATIO_OF_TWO = 1.5, 2.0
"""A group that takes 1.5 times as long as its equals is slow, twice as long as its only equal. As
in `slow_group`."""
MOST_STEPS, LEAST_STEPS = 0.8, 10
"""In this part of the steps, of ten at least. As in `slow_group`."""
_SENDS = re.compile("send|recv|receive|p2p", re.IGNORECASE)


class SlowExchange:
    """A network that got slower, for all or within one group, by phases of communication."""

    name = "slow-exchange"
    needs = Needs("phases", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        if job.arrivals is not None and np.isfinite(job.arrivals.transfer_ns).any():
            return  # operators show it better
        exchanges = _exchanges(job)
        change = _change(job, exchanges)
        if change is not None:
            yield from _findings(job, exchanges, change)
        else:
            yield from _slower_than_equals(job, exchanges)


@dataclass(frozen=True)
class _Exchange:
    """How long data moved in a group in each step, summed over its phases."""

    group: str
    kind: str
    took_ns: Floats


@dataclass(frozen=True)
class _Change:
    first: int
    stop: int

    def columns(self, job: Observed) -> tuple[Floats, Floats]:
        """The period of the steps outside and inside of it."""
        return self.parts(job, job.line.job_period_ns)

    def parts(self, job: Observed, series: Floats) -> tuple[Floats, Floats]:
        """The values of judged steps outside and inside of it."""
        at = np.arange(series.size)
        inside = (at >= self.first) & (at < self.stop)
        return series[~inside & (at >= job.line.warm_up)], series[inside]

    def rise(self, job: Observed, series: Floats) -> float:
        outside, inside = self.parts(job, series)
        return stats.median(inside) - stats.median(outside)

    def ratio(self, job: Observed, series: Floats) -> float:
        outside, inside = self.parts(job, series)
        return stats.median(inside) / max(stats.median(outside), 1.0)


def _exchanges(job: Observed) -> list[_Exchange]:
    """The least time over the members of each group in its phases of communication."""
    rows = phase_rows(job.window, job.line)
    if rows is None:
        return []
    by_kind: dict[str, list[str]] = {}
    for name in sorted(rows.names.values):
        if communicates(name) and not _SENDS.search(name):
            by_kind.setdefault(_kind(name), []).append(name)
    return [one for kind, names in by_kind.items() for one in _of_kind(job, rows, kind, names)]


def _kind(name: str) -> str:
    if exchanges_gradients(name):
        return "dp"
    return re.split("[-_/]", name.lower(), maxsplit=1)[0]


def _of_kind(
    job: Observed, rows: PhaseRows, kind: str, names: Sequence[str]
) -> Iterator[_Exchange]:
    """One exchange for each group of a kind all of whose members were recorded."""
    took = rows.grids(rows.duration.astype(np.float64), names)
    groups = {
        one.id: one.ranks for one in job.window.job.groups_of_kind(kind) if len(one.ranks) > 1
    }
    if not groups and len(job.line.ranks) < job.window.job.world_size:
        return
    for group, ranks in groups.items() or [("", tuple(job.line.ranks.tolist()))]:
        at = job.line.rows(np.array(ranks, np.int64))
        if (at < 0).any() or not np.isfinite(took[:, at]).any():
            continue
        least = [np.fmin.reduce(one[at], axis=0) for one in took]
        yield _Exchange(group, kind, np.nansum(least, axis=0))


def _change(job: Observed, exchanges: Sequence[_Exchange]) -> _Change | None:
    """Since when, or between which steps, the exchange of data takes longer."""
    skip = job.line.warm_up
    total = _longest(exchanges)
    if total is None:
        return None
    lasting = step_time.regression(total[skip:])
    if lasting is not None:
        return _Change(lasting.split + skip, total.size)
    passed = step_time.episode(total[skip:])
    return None if passed is None else _Change(passed[0].split + skip, passed[1] + skip)


def _longest(exchanges: Sequence[_Exchange]) -> Floats | None:
    """The sum over all kinds of groups of the longest exchange of each kind, per step."""
    kinds: dict[str, Floats] = {}
    for one in exchanges:
        kinds[one.kind] = np.maximum(kinds.get(one.kind, one.took_ns), one.took_ns)
    return np.asarray(np.sum(list(kinds.values()), axis=0)) if kinds else None


def _findings(
    job: Observed, exchanges: Sequence[_Exchange], change: _Change
) -> Iterator[SlowLink]:  # fmt: skip
    total = _longest(exchanges)
    assert total is not None
    ratio, period = change.ratio(job, total), stats.median(change.columns(job)[1])
    lost = _lost_ns(job, change, change.rise(job, total))
    if lost < LEAST_COST * period or _everything_rises(job, change, ratio):
        return
    rises = {one.group: change.rise(job, one.took_ns) for one in exchanges}
    slow = [group for group, rise in rises.items() if rise >= SHARED * max(rises.values())]
    members = {one.id: len(one.ranks) for one in job.window.groups}
    alone = len(slow) == 1 and members.get(slow[0], len(job.line.ranks)) < len(job.line.ranks)
    yield _finding(job, change, slow[0] if alone else None, ratio, lost, rises)


def _lost_ns(job: Observed, change: _Change, exchange_ns: float) -> float:
    """What a slower exchange costs per step: no more than the steps got longer by; all that no rank
    worked longer by, if most of it is the exchange."""
    period_ns = change.rise(job, job.line.job_period_ns)
    if exchange_ns < MOSTLY * period_ns or not job.own.phases:
        return min(exchange_ns, period_ns)
    work_ns = max(change.rise(job, stats.column_median(job.total)), 0.0)
    return min(period_ns, max(exchange_ns, period_ns - work_ns))


def _slower_than_equals(job: Observed, exchanges: Sequence[_Exchange]) -> Iterator[SlowLink]:
    """Groups that were always slower than those of their kind, size, stages and spread over hosts.

    Experts are not compared, because what they exchange may be uneven by design.
    """
    stage, alike = stages(job.window), dict[tuple[object, ...], list[_Exchange]]()
    for one in exchanges:
        group = job.window.job.group(one.group)
        if group is not None and one.kind not in ("ep", "edp"):
            hosts = len({job.window.host_of(rank) for rank in group.ranks})
            where = tuple(sorted({stage.get(rank, 0) for rank in group.ranks}))
            alike.setdefault((one.kind, len(group.ranks), hosts, where), []).append(one)
    for equals in alike.values():
        for one in equals if len(equals) > 1 else ():
            found = _slower(job, one, [other for other in equals if other is not one])
            if found is not None:
                yield found


def _slower(job: Observed, one: _Exchange, others: Sequence[_Exchange]) -> SlowLink | None:
    judged = slice(job.line.warm_up, None)
    usual = stats.column_median(np.array([other.took_ns for other in others]))[judged]
    took, period = one.took_ns[judged], stats.median(job.line.job_period_ns[judged])
    limit = RATIO if len(others) > 1 else RATIO_OF_TWO
    lost = stats.median(took) - stats.median(usual)
    if took.size < LEAST_STEPS or lost < LEAST_COST * period or (
            np.mean(took > limit * usual) < MOST_STEPS):  # fmt: skip
        return None
    ratio = stats.median(took) / max(stats.median(usual), 1.0)
    detail = (
        f"the rank that arrives last spends {ratio:.1f} times as long in phases of communication "
        f"of {one.group} as in those of {len(others)} equal groups"
    )
    return _link(job, _Change(job.line.warm_up, len(job.line.steps)), one.group,
                 f"in {one.group} than in equal groups", ratio, lost, period, detail)  # fmt: skip


def _everything_rises(job: Observed, change: _Change, ratio: float) -> bool:
    """Whether every phase of work takes longer than before: a busy machine slows down all of them.

    Of each phase the fastest rank counts. Passes may contain the communication itself.
    """
    rows = phase_rows(job.window, job.line)
    assert rows is not None
    names = [name for name in rows.names.values if not communicates(name) and not loads(name)]
    work = [
        np.fmin.reduce(one, axis=0) for one in rows.grids(rows.duration.astype(np.float64), names)
    ]
    whole = stats.median(change.columns(job)[0])
    notable = [one for one in work if stats.median(one) >= NOTABLE * whole]
    return bool(notable) and all(
        change.ratio(job, one) - 1 > UNCHANGED * (ratio - 1) for one in notable
    )


def _finding(
    job: Observed, change: _Change, group: str | None, ratio: float, lost_ns: float,
    rises: Mapping[str, float],
) -> SlowLink:  # fmt: skip
    line = job.line
    ends = change.stop == len(line.steps)
    period = stats.median(change.columns(job)[1])
    detail = (
        f"the rank that arrives last spends {ratio:.1f} times as long in phases of communication "
        f"as {'before' if ends else 'at other times'}, {max(rises.values()) / 1e6:.1f} ms per step"
    )
    where = f"in {group} than before" if group else "between all ranks than before"
    return _link(job, change, group, where, ratio, lost_ns, period, detail)


def _link(
    job: Observed, change: _Change, group: str | None, where: str, ratio: float, lost_ns: float,
    period: float, detail: str,
) -> SlowLink:  # fmt: skip
    line = job.line
    return SlowLink(
        method="slow-exchange", cause="network", detail=detail, group=group,
        steps=line.span(change.first, change.stop), time_ns=line.span_ns(change.first, change.stop),
        slowdown=ratio, lost_ns=lost_ns, lost_fraction=min(lost_ns / max(period, 1.0), 1.0),
        score=CONFIDENCE, where=where, columns=tuple(range(change.first, change.stop)),
        victims=len(line.ranks), values={"lost_ns": lost_ns, "ratio": ratio},
        decisions=(Decision("slow-exchange", True, ratio, step_time.LEAST_RISE, detail),),
    )  # fmt: skip

"""A network that got slower, by phases of communication, or kernels, alone.

Fault: data moves slower between all ranks, or within some groups, from some step on, for some time,
or now and then.
Paper: none. The papers compare durations of operators.
Ours: where no operators were recorded, phases whose names say that they move data show the same, as
do kernels of communication, whose groups are those that leave them together (`group_since`).
All members of a group leave together, so the member that arrived last spends the least time in the
phase, and that is the time of the transfer. If it grows, and what ranks do themselves does not, the
network got slower. Within a step, phases of one kind of group add up. A name that says that
gradients are reduced, but no kind, means the replicas (DDP, FSDP and DeepSpeed do that, and each
stage has replicas of its own). If the steps got longer at the same step, and mostly by the
exchange, it costs whatever they got longer by and no rank worked longer: the same adapter moves
what no phase shows, such as sends between stages.
Cost: sums of phases at hand, or a sort of each communication kernel. Cannot see: what was slow from
the first step on in all groups, in phases under other names, and sends between stages, whose ranks
do not leave together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.detect.links.group_since import groups_on, lanes, spent_ns
from stepscope.diagnose.detect.ranks import straggler_brief as brief
from stepscope.diagnose.detect.regression.rise import UNCHANGED
from stepscope.diagnose.detect.steps import step_time
from stepscope.diagnose.finding import Decision, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network import slow_edges
from stepscope.diagnose.network.delay import idle_ns
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.network.rates import device_transfers
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import communicates, exchanges_gradients, is_work
from stepscope.diagnose.thresholds import HALF, LEAST_COST
from stepscope.diagnose.views.phase_rows import PhaseRows, phase_rows
from stepscope.trace import ProcessGroup
from stepscope.window import Floats, Ints, Mask

CONFIDENCE = 0.65
"""A busy machine moves data more slowly over TCP, too, and more data takes longer. As of a shared
rise whose cause is inferred (`regression`)."""
NOTABLE = 0.05
"""Shorter phases, as parts of a step, show nothing about the machine. Our choice."""
RATIO, RATIO_OF_TWO = 1.5, 2.0
"""A group that takes 1.5 times as long as its equals is slow, twice as long as its only equal. As
in `slow_group`."""
ENOUGH = slow_edges.LEAST_STEPS
"""In so many steps `slow_link` finds by operators what is slow; of fewer it asks no level. In
traces `slow_group` compares operators."""
MOST_LISTED = 4
"""Slow groups in one sentence. Our choice."""
_SENDS = re.compile("send|recv|receive|p2p", re.IGNORECASE)


class SlowExchange:
    """A network that got slower, for all or within one group, by phases of communication."""

    name = "slow-exchange"
    needs = Needs("phases|comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        if job.arrivals is None or not np.isfinite(job.arrivals.transfer_ns).any():
            yield from _slower_exchanges(job, _by_phases(job))
            return
        is_brief = len(job.line.steps) - job.line.warm_up < ENOUGH
        if job.window.table("host_ops") is None and is_brief and on_devices(job):
            yield from _slower_than_equals(job, _by_operators(job))


def slower_by_kernels(job: Observed, method: str) -> list[SlowLink]:
    """What kernels that move data show of it, found for another method."""
    return [replace(one, method=method) for one in _slower_exchanges(job, _by_kernels(job))]


def _slower_exchanges(job: Observed, exchanges: Sequence[_Exchange]) -> list[SlowLink]:
    """Exchanges that take longer than at other times, else than those of equal groups."""
    change = _change(job, exchanges)
    found = [] if change is None else [*_findings(job, exchanges, change)]
    return found or [*_slower_than_equals(job, exchanges)]


def _by_operators(job: Observed) -> list[_Exchange]:
    """Those of groups that were recorded whole, by what the last member to arrive takes."""
    moved, columns = device_transfers(job), len(job.line.steps)
    if moved is None:
        return []
    cell = moved.place * np.int64(columns) + moved.column
    took = stats.sums(cell, moved.transfer_ns, len(moved.places) * columns).reshape(-1, columns)
    return [_Exchange(place.group, place.kind, place.members, np.where(each > 0, each, np.nan))
            for place, each in zip(moved.places, took, strict=True) if each.any()]  # fmt: skip


def _by_kernels(job: Observed) -> list[_Exchange]:
    """Those of groups recorded whole, by the kernels that their members leave together."""
    took: dict[ProcessGroup, Floats] = {}
    for lane in lanes(job):
        for group, rows in groups_on(job, lane):
            if len(rows) == len(group.ranks):
                took[group] = took.get(group, 0.0) + spent_ns(lane, rows)
    return [_Exchange(group.id, group.kind, group.ranks, spent) for group, spent in took.items()]


@dataclass(frozen=True)
class _Exchange:
    """How long data moved in a group, or from a rank to its neighbour in it, in each step, summed
    over its phases."""

    group: str
    kind: str
    members: tuple[int, ...]
    took_ns: Floats


@dataclass(frozen=True)
class _Change:
    """The steps, `inside`, in which data moves slower than in other steps that are judged."""

    inside: Mask
    judged: Mask

    @classmethod
    def of(cls, job: Observed, columns: slice | Ints) -> _Change:
        inside, judged = np.zeros((2, len(job.line.steps)), np.bool_)
        judged[job.line.warm_up :], inside[columns] = True, True
        return cls(inside, judged)

    @property
    def columns(self) -> Ints:
        return np.flatnonzero(self.inside)

    @property
    def span(self) -> tuple[int, int]:
        return int(self.columns[0]), int(self.columns[-1]) + 1

    @property
    def lasts(self) -> bool:
        """Whether it goes on until the end of the recording."""
        return bool(self.inside[self.span[0] :].all())

    def parts(self, series: Floats) -> tuple[Floats, Floats]:
        """The values of judged steps outside and inside of it."""
        return series[~self.inside & self.judged], series[self.inside]

    def rise(self, series: Floats) -> float:
        outside, inside = self.parts(series)
        return stats.median(inside) - stats.median(outside)

    def longer_ns(self, period: Floats) -> float:
        """How much longer its steps are; of those that are slow now and then the mean, with the
        step after each, in which a delay at the end of a step may show."""
        if self.lasts:
            return self.rise(period)
        late = self.inside | np.append(False, self.inside[:-1])
        usual = stats.median(period[self.judged & ~late])
        return float(np.nansum(period[late] - usual)) / self.columns.size

    def ratio(self, series: Floats) -> float:
        outside, inside = self.parts(series)
        return stats.median(inside) / max(stats.median(outside), 1.0)


def _by_phases(job: Observed) -> list[_Exchange]:
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
    took = rows.grids(rows.duration, names)
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
        yield _Exchange(group, kind, ranks, np.nansum(least, axis=0))


def _change(job: Observed, exchanges: Sequence[_Exchange]) -> _Change | None:
    """In which steps the exchange of data takes longer: since some step, for some time, or in
    single steps that no schedule explains."""
    skip = job.line.warm_up
    total = _longest(exchanges)
    if total is None:
        return None
    lasting = step_time.regression(total[skip:])
    if lasting is not None:
        return _Change.of(job, slice(lasting.split + skip, None))
    passed = step_time.episode(total[skip:])
    if passed is not None:
        return _Change.of(job, slice(passed[0].split + skip, passed[1] + skip))
    long = step_time.jitter(total[skip:], job.line.steps[skip:]).columns + skip
    if long.size < step_time.LEAST_EITHER:
        return None
    change = _Change.of(job, long)
    costs = change.rise(total) * long.size
    return change if costs >= LEAST_COST * float(np.nansum(job.line.job_period_ns[skip:])) else None


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
    ratio, lost = change.ratio(total), _lost_ns(job, change, change.rise(total))
    if _share(job, change, lost) < LEAST_COST or _everything_rises(job, change, ratio):
        return
    rises = {one.group: change.rise(one.took_ns) for one in exchanges}
    slow = [group for group, rise in rises.items() if rise >= HALF * max(rises.values())]
    members = {one.id: len(one.ranks) for one in job.window.groups}
    alone = len(slow) == 1 and members.get(slow[0], len(job.line.ranks)) < len(job.line.ranks)
    yield _finding(job, change, slow[0] if alone else None, ratio, lost, rises)


def _share(job: Observed, change: _Change, lost_ns: float) -> float:
    """What it costs of the time from its first step to its last."""
    period = float(np.nansum(job.line.job_period_ns[slice(*change.span)]))
    return min(lost_ns * change.columns.size / max(period, 1.0), 1.0)


def _lost_ns(job: Observed, change: _Change, exchange_ns: float) -> float:
    """What a slower exchange costs per step: no more than the steps got longer by; all that no rank
    worked longer by, if most of it is the exchange."""
    period_ns = change.longer_ns(job.line.job_period_ns)
    if exchange_ns < HALF * period_ns or not job.own.phases:
        return min(exchange_ns, period_ns)
    work_ns = max(change.rise(stats.column_median(job.total)), 0.0)
    return min(period_ns, max(exchange_ns, period_ns - work_ns))


def _slower_than_equals(job: Observed, exchanges: Sequence[_Exchange]) -> Iterator[SlowLink]:
    """Groups that were always slower than those of their kind, size, stages and spread over hosts.

    Experts are not compared, because what they exchange may be uneven by design.
    """
    stage, alike = job.window.job.stage_by_rank, dict[tuple[object, ...], list[_Exchange]]()
    for one in exchanges:
        if job.window.job.group(one.group) is not None and one.kind not in ("ep", "edp"):
            hosts = len({job.window.host_of(rank) for rank in one.members})
            within = tuple(dict.fromkeys(stage.get(rank, 0) for rank in one.members))
            alike.setdefault((one.kind, len(one.members), hosts, within), []).append(one)
    tests = sum(map(len, alike.values()))
    slow = [each for equals in alike.values() if len(equals) > 1
            for each in _slower(job, equals, tests)]  # fmt: skip
    worst = []
    for kind in dict.fromkeys(one.kind for one, _ in slow):
        # groups of one kind exchange data at the same time, so that the slowest hides the others
        same = [(one.group, link) for one, link in slow if one.kind == kind]
        link = max((link for _, link in same), key=lambda link: link.lost_ns)
        groups = dict.fromkeys(group for group, _ in same)
        where = f"in {', '.join([*groups][:MOST_LISTED])} than in equal groups"
        worst.append(replace(link, where=where))
    yield from _in_common(job, worst)


def _in_common(job: Observed, links: Sequence[SlowLink]) -> Sequence[SlowLink]:
    """The one rank that slow groups of several kinds share, as then its device is the cause."""
    members = [set(group.ranks) for group in job.window.groups
               for one in links if one.group == group.id]  # fmt: skip
    shared = set.intersection(*members) if len(members) > 1 else set()
    if len(shared) != 1:
        return links
    costliest = max(links, key=lambda one: one.lost_ns)
    where = f"in {' and '.join(str(one.group) for one in links)} than in equal groups"
    return [replace(
        costliest, ranks=tuple(shared), group=None, where=where,
        lost_ns=sum(one.lost_ns for one in links),
        lost_fraction=min(sum(one.lost_fraction or 0.0 for one in links), 1.0),
        step_share=min(sum(one.step_share or 0.0 for one in links), 1.0),
    )]  # fmt: skip


def _slower(
    job: Observed, equals: Sequence[_Exchange], tests: int
) -> Iterator[tuple[_Exchange, SlowLink]]:
    """Those of equal groups that are slower, throughout or since some step, as ranks in few steps
    are."""
    skip = job.line.warm_up
    took = np.array([one.took_ns[skip:] for one in equals])
    if took.shape[1] < brief.LEAST_OF_A_JOB:
        return
    ratio = RATIO if len(equals) > 2 else RATIO_OF_TWO
    everybody = [np.arange(len(equals))]
    for slow in brief.stragglers(took, everybody, job.line.typical_ns, None, tests):
        change = _Change.of(job, slice(slow.first + skip, slow.stop + skip))
        usual = stats.column_median(np.delete(took, slow.row, axis=0))[slow.first : slow.stop]
        lost = stats.median(took[slow.row, slow.first : slow.stop]) - stats.median(usual)
        times = 1 + lost / max(stats.median(usual), 1.0)
        lost = min(lost, idle_ns(job, equals[slow.row].members, change.inside))
        if times >= ratio and _share(job, change, lost) >= LEAST_COST:
            one = equals[slow.row]
            detail = (
                f"the rank that arrives last spends {times:.1f} times as long in communication "
                f"of {one.group} as in that of {len(equals) - 1} equal groups"
            )
            where = f"in {one.group} than in equal groups"
            yield one, _link(job, change, one.group, where, times, lost, detail)


def _everything_rises(job: Observed, change: _Change, ratio: float) -> bool:
    """Whether every phase of work takes longer than before: a busy machine slows down all of them.

    Of each phase the fastest rank counts. Passes may contain the communication itself. Where there
    are no phases, the ranks' own time counts.
    """
    whole = stats.median(change.parts(job.line.job_period_ns)[0])
    notable = [one for one in _work(job) if stats.median(one) >= NOTABLE * whole]
    return bool(notable) and all(change.ratio(one) - 1 > UNCHANGED * (ratio - 1) for one in notable)


def _work(job: Observed) -> list[Floats]:
    rows = phase_rows(job.window, job.line)
    known = job.own.own if rows is None else rows.grids(
        rows.duration, [*filter(is_work, rows.names.values)])  # fmt: skip
    return [np.fmin.reduce(one, axis=0) for one in known]


def _finding(
    job: Observed, change: _Change, group: str | None, ratio: float, lost_ns: float,
    rises: Mapping[str, float],
) -> SlowLink:  # fmt: skip
    than = "before" if change.lasts else "at other times"
    detail = (
        f"the rank that arrives last spends {ratio:.1f} times as long in communication "
        f"as {than}, {max(rises.values()) / 1e6:.1f} ms per step"
    )
    where = f"in {group}" if group else "between all ranks"
    return _link(job, change, group, f"{where} than {than}", ratio, lost_ns, detail)


def _link(
    job: Observed, change: _Change, group: str | None, where: str, ratio: float, lost_ns: float,
    detail: str,
) -> SlowLink:  # fmt: skip
    line, period = job.line, job.line.job_period_ns[change.columns]
    return SlowLink(
        method="slow-exchange", cause="network", detail=detail, group=group,
        steps=line.span(*change.span), time_ns=line.span_ns(*change.span),
        slowdown=ratio, lost_ns=lost_ns, lost_fraction=_share(job, change, lost_ns),
        step_share=min(lost_ns / max(stats.median(period), 1.0), 1.0),
        score=CONFIDENCE, where=where, columns=tuple(change.columns.tolist()),
        victims=len(line.ranks), values={"lost_ns": lost_ns, "ratio": ratio},
        decisions=(Decision("slow-exchange", True, ratio, step_time.LEAST_RISE, detail),),
    )  # fmt: skip

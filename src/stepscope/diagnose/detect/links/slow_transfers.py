"""Hosts whose network link is slow, by the transfers of all groups and pairs, over any network.

Fault: a host whose adapter or cable moves data slowly or loses packets; a slow path between hosts.
Papers: Holmes (2025), section 4.4, and VenusTrace (2025), section 4, compare the durations of
operators, which contain waiting.
What differs: a transfer runs from the last arrival to the end (`network.transfers`). Each group and
each direction between two ranks is compared with itself in faster steps, else with its equals; and
the ends within rings show the slow hop (`network.ring_ends`). Hosts explain all that by likelihood
(`network.slow_hosts`), and what is lost is a what-if (`network.delay`).
Cost: one sort of `comm_ops`, only where transfers between hosts are worth a verdict. Cannot see:
which of two hosts it is if there are only two; NCCL, which moves pieces so small that all ranks of
a ring end together (there `slow_link` looks at devices).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.belief import MOST_BITS, odds
from stepscope.diagnose.detect.steps import step_time
from stepscope.diagnose.finding import Decision, Device, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.delay import lost_ns
from stepscope.diagnose.network.devices import host_in
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.network.packet_loss import packet_loss, whose_link
from stepscope.diagnose.network.slow_hosts import NOTHING, Suspects, suspects
from stepscope.diagnose.network.transfers import LEAST, Transfers, adapters_of, transfers
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, HIGHEST_SCORE, LEAST_COST
from stepscope.window import Floats, Mask

RARE_BITS = 6.0
"""One job in about sixty has a slow link: so much evidence it takes to believe it. Our estimate."""
LEAST_SCORE = 0.2
"""Less likely suspects are not worth a line. Our estimate."""
CLEAR = 0.6
"""A host is named if it is to blame with this probability, as in `slow_link`."""
OF_ONE_HOP = 0.9
"""Two hosts of a ring are the ends of its slow hop with this probability. Our choice."""
SURE = 2.0
"""Standard errors by which steps must take longer where lost packets were counted. Statistics."""
MOST_HOSTS = 32
"""Of this many hosts each is asked when its transfers got longer: a millisecond each. Measured."""
SLOW = 1.2
"""What is less is not the ratio of a slow link to others: its equals pass the same host, and the
ends of rings showed it. The least factor of `slow_hosts`."""
NO_RATIO = 100.0
"""Usual transfers so much shorter took no time that could be measured: data was there before it was
waited for, and no ratio of speeds is known. Our choice."""
LIKELY = 0.03
"""Less likely devices are not named, as in `network`."""


class SlowTransfers:
    """The host through which data moves slower than before, or than through others."""

    name = "slow-transfers"
    needs = Needs("comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        if on_devices(job) or len({host.name for host in job.window.job.hosts}) < 2:
            return
        if not job.has_ends:
            return  # between a last call and an end that was inferred from it nothing moved
        moved, judged = transfers(job), np.arange(len(job.line.steps)) >= job.line.warm_up
        if moved is None or not _is_worth_it(job, moved, judged):
            return
        lost = _lossy(job, moved, judged)
        if lost is not None:
            yield lost
            return
        period = job.period_without_ns(so_far.lost_ns)
        changed = [_case(job, moved, span, period) for span in _changes(job, moved, judged, period)]
        best = max(changed, key=lambda one: one.sure * one.share, default=None)
        # links that changed and cost nothing are no reason to ask which are slow throughout
        if best is None or (best.score < LEAST_SCORE and best.found.bits < RARE_BITS):
            best = _case(job, moved, _Span(judged, None), period)
        if best.score < LEAST_SCORE or not (best.named or best.span.usual is not None):
            return
        if not _is_of_culprits(job, so_far, best):
            yield _finding(job, moved, best)


@dataclass(frozen=True)
class _Span:
    """Columns to judge, and those to compare them with."""

    now: Mask
    usual: Mask | None


@dataclass(frozen=True)
class _Case:
    """What is slow in a span, and the hosts to name for it."""

    span: _Span
    found: Suspects
    named: tuple[str, ...]
    chance: float
    share: float
    sure: float

    @property
    def score(self) -> float:
        """That data moves slowly, and through those named."""
        return self.sure * self.chance


def _is_of_culprits(job: Observed, so_far: SoFar, case: _Case) -> bool:
    """Whether processors of slow ranks, which move the data as well, explain that it is slow: on
    their hosts for most of the time, or everywhere from the step on in which they got slow."""
    ranks = [int(job.line.ranks[one.row]) for one in so_far.culprits
             if case.span.now[one.columns].sum() > HALF * case.span.now.sum()]  # fmt: skip
    named = {*map(host_in, case.named)}
    if named.intersection(map(job.window.host_of, ranks)):
        return True
    first = int(case.span.now.argmax())
    return any(abs(max(one.first, job.line.warm_up) - first) <= LEAST for one in so_far.culprits)


def _is_worth_it(job: Observed, moved: Transfers, judged: Mask) -> bool:
    """Whether transfers between hosts take long enough to cost anything."""
    if not judged.any():
        return False
    took = moved.per_step(judged.size)
    return stats.median(took[judged]) >= LEAST_COST * job.line.typical_ns


def _lossy(job: Observed, moved: Transfers, judged: Mask) -> SlowLink | None:
    """A link that loses packets, if steps take longer for it."""
    lost = packet_loss(job)
    if lost is None:
        return None
    span = _span(judged, lost.first, lost.stop)
    assert span.usual is not None
    period = job.line.job_period_ns
    if min(span.now.sum(), span.usual.sum()) < LEAST:
        return None
    now, usual = period[span.now], period[span.usual]
    more = float(np.nanmean(now) - np.nanmean(usual))
    error = math.hypot(np.nanstd(now) / len(now) ** 0.5, np.nanstd(usual) / len(usual) ** 0.5)
    if more < SURE * error:
        return None
    names, chance = whose_link(moved, lost, span.now)
    found = Suspects([(name,) for name in names], chance, SURE, NOTHING, ())
    named, sure = _named(found)
    detail = (
        f"{' and '.join(lost.hosts)} sent {lost.per_second:.0f} segments per second again, and "
        f"steps take {more / 1e6:.1f} ms longer on average"
    )
    share = more / float(np.nanmean(now))
    return _link(job, span, named, sure * odds(MOST_BITS, share), share, found, detail, None)


def _changes(job: Observed, moved: Transfers, judged: Mask, period: Floats) -> Iterator[_Span]:
    """Where transfers, or steps without what slow ranks cost, took longer than in other columns."""
    columns, count = np.flatnonzero(judged), judged.size
    hosts = [host.name for host in job.window.job.hosts][:MOST_HOSTS]
    each = (moved.per_step(count, host) for host in ("", *hosts))
    for series in (period, *each):
        change = step_time.regression(series[columns])
        if change is not None:
            yield _span(judged, columns[change.split], judged.size)
        passed = step_time.episode(series[columns])
        if passed is not None:
            yield _span(judged, columns[passed[0].split], columns[passed[1] - 1] + 1)


def _span(judged: Mask, first: int, stop: int) -> _Span:
    inside = np.zeros(judged.size, np.bool_)
    inside[first:stop] = True
    return _Span(judged & inside, judged & ~inside)


def _case(job: Observed, moved: Transfers, span: _Span, period: Floats) -> _Case:
    step_ns = max(stats.median(job.line.job_period_ns[span.now]), 1.0)
    found = suspects(moved, span.now, span.usual, LEAST_COST * step_ns)
    named, chance = _named(found)
    lost = lost_ns(job, moved, found, span.now, span.usual, period)
    share = min(max(lost / step_ns, 0.0), 1.0)
    return _Case(span, found, named, chance, share, odds(found.bits - RARE_BITS, share))


def _finding(job: Observed, moved: Transfers, case: _Case) -> SlowLink:
    slow = case.found.slowness
    at = int(slow.excess_ns.argmax())
    ratio = float(slow.took_ns[at] / max(slow.usual_ns[at], 1.0))
    detail = _detail(moved, case)
    return _link(job, case.span, case.named, case.score, case.share, case.found,
                 detail, ratio if SLOW <= ratio < NO_RATIO else None)  # fmt: skip


def _link(
    job: Observed, span: _Span, named: tuple[str, ...], sure: float, share: float,
    found: Suspects, detail: str, ratio: float | None,
) -> SlowLink:  # fmt: skip
    line, columns = job.line, np.flatnonzero(span.now)
    ranks = _behind(job, named)
    first, stop = int(columns[0]), int(columns[-1]) + 1
    than = "before" if span.usual is not None else "elsewhere"
    where = f"through {' or '.join(named)}" if named else "between all hosts"
    lost = share * stats.median(line.job_period_ns[span.now])
    return SlowLink(
        "slow-transfers", "network", detail, ranks, devices=_devices(job, found),
        steps=line.span(first, stop), time_ns=line.span_ns(first, stop), slowdown=ratio,
        lost_ns=lost, lost_fraction=share, score=min(sure, HIGHEST_SCORE),
        where=f"{where} than {than}", columns=tuple(columns.tolist()),
        victims=len(job.window.ranks) - len(ranks),
        values={"bits": found.bits, "lost_ns": lost},
        decisions=(Decision("slow-transfers", True, found.bits, RARE_BITS, detail),),
    )  # fmt: skip


def _behind(job: Observed, named: tuple[str, ...]) -> tuple[int, ...]:
    """The ranks of hosts, and those that use adapters."""
    adapter = {rank: name for one in job.window.job.hosts for rank, name in adapters_of(one)}
    return tuple(rank for rank in job.window.ranks
                 if job.window.host_of(rank) in named or adapter.get(rank) in named)  # fmt: skip


def _named(found: Suspects) -> tuple[tuple[str, ...], float]:
    """The hosts to name, and how likely they are: one, the two ends of a connection, or none.

    Of a ring's hosts the two likeliest are the ends of a hop only if hardly anything is left for
    the others.
    """
    order = np.argsort(-found.chance, kind="stable")
    best, sure = found.who[order[0]], float(found.chance[order[0]])
    if sure >= CLEAR or order.size == 1:
        return best, sure
    two = tuple(sorted({*best, *found.who[order[1]]}))
    both = float(sum(chance for one, chance in zip(found.who, found.chance, strict=True)
                     if one and set(one) <= set(two)))  # fmt: skip
    if len(two) != 2 or both < CLEAR:
        return (), 1.0
    if two[1].startswith(f"{two[0]}/"):  # a host, and one of its adapters
        return best, both
    hosts = {host_in(one[0]) for one in found.who if len(one) == 1}
    theirs = float(sum(chance for one, chance in zip(found.who, found.chance, strict=True)
                       if one and {*map(host_in, one)} <= {*map(host_in, two)}))  # fmt: skip
    connected = two in found.who or len(hosts) == 2 or theirs >= OF_ONE_HOP
    return (two, both) if connected else ((), 1.0)


def _devices(job: Observed, found: Suspects) -> tuple[Device, ...]:
    order = np.argsort(-found.chance, kind="stable")
    likely = [(found.who[at], float(found.chance[at])) for at in order if found.who[at]]
    return tuple(_device(job, who, round(chance, 3)) for who, chance in likely if chance >= LIKELY)


def _device(job: Observed, who: tuple[str, ...], chance: float) -> Device:
    ends = [name if "/" in name else f"{name}/{job.adapter_of(name)}" for name in who]
    return Device("nic" if len(ends) == 1 else "link", "--".join(ends), chance)


def _detail(moved: Transfers, case: _Case) -> str:
    slow, parts = case.found.slowness, []
    known = np.flatnonzero(slow.excess_ns > 0)
    for at in known[np.argsort(-slow.excess_ns[known])][:2].tolist():
        place = moved.places[at]
        what = f"from rank {place.members[0]} to rank {place.members[1]}" if place.is_pair else (
            f"in {place.group}")  # fmt: skip
        parts.append(f"{what} {slow.took_ns[at] / 1e6:.1f} ms (usually "
                     f"{slow.usual_ns[at] / 1e6:.1f} ms)")  # fmt: skip
    text = f"after the last arrival data moves {', '.join(parts)}" if parts else (
        "data takes its time after the last arrival")  # fmt: skip
    for one in case.found.ends:
        text += (f"; the ends of {moved.places[one.place].group} spread by "
                 f"{one.spread_ns / 1e6:.1f} ms round the ring")  # fmt: skip
    return text

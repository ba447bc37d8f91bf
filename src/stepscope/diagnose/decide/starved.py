"""The cost of a host that gets too little processor time: as measured, where the model says less.

Such a host is slow in its part of every transfer, too, which is nobody's own time. Where its steps
have others beside them, before or after, the difference is what it costs, without what the ranks of
other hosts do longer as well. No model may veto that.
A quota that was there from the first step on leaves none; but it stops its host in some periods of
100 ms and not in others, so the fastest steps are those that it hardly stopped, and the others cost
what they take longer. Where steps are longer than such periods, the fastest transfers of its host
show it instead. Neither costs more than the time in which the host was stopped. So do those of a
host that seems slow in single steps only, and was stopped in the others, too. Other processes
leave some transfers alone as well. What their host's cost beyond the fastest is at most what its
threads that move data waited for a processor, beyond those of other hosts (`comm_run_delay`).
And transfers that seem slow meanwhile, at any member of its groups, are no slow link, unless they
cost more than that: in a ring, the neighbour of a starved host looks like the slow one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide.measured_rise import others_rise_ns
from stepscope.diagnose.decide.same_loss import is_within
from stepscope.diagnose.finding import Cause, Decision, Finding, Slowdown, SlowLink, Stuck
from stepscope.diagnose.network.delay import healed_ns
from stepscope.diagnose.network.transfers import transfers
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import THROTTLED
from stepscope.window import Floats, Mask

LEAST_STEPS = 5
"""Steps on either side that a difference needs. Our simulator."""
FASTEST = 0.1
"""The quantile of steps, or of transfers, that a quota hardly stopped, as those of nearly equal
lengths in `imbalance`; of a host that it stops for longer than nine tenths of the time, the rest of
the time. Our choice."""
STARVED: tuple[Cause, ...] = ("host", "contention")


def with_measured_loss(job: Observed, blamed: Sequence[Finding]) -> list[Finding]:
    """The findings; those of starved hosts cost what the steps took longer, if that is more."""
    slow = [one for one in blamed if not isinstance(one, Stuck) and one.steps is not None]
    spans = {id(one): _columns(job, one) for one in slow}
    warm_up: Mask = np.arange(len(job.line.steps)) < job.line.warm_up
    usual: Mask = ~np.logical_or.reduce([*spans.values(), warm_up])
    return [_measured(job, one, spans[id(one)], usual)
            if _is_starved_host(job, one) and not _overlaps(spans, one) else one
            for one in blamed]  # fmt: skip


def waiting_for_starved(
    job: Observed, links: Sequence[SlowLink], blamed: Sequence[Finding]
) -> list[tuple[SlowLink, Finding]]:
    """Slow transfers that wait for a processor on a host that is starved of it, and its finding."""
    hosts = [one for one in blamed if _is_starved_host(job, one)]
    return [(link, one) for link in links for one in hosts if _waits_for(job, link, one)]


def _waits_for(job: Observed, link: SlowLink, host: Finding) -> bool:
    """Whether the host is starved for as much of the link's steps as these transfers cost."""
    if link.steps is None or not is_within(link, host) or not _meet(job, link.ranks, host.ranks):
        return False
    starved = max(_stopped(host), _delayed(job, host.ranks, job.line.within(link.steps)))
    return starved >= max(THROTTLED, link.lost_fraction or 0.0)


def _meet(job: Observed, some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether ranks of both are members of one group; no ranks mean all."""
    groups = [{*group.ranks} for group in job.window.groups]
    return not some or any(one & {*some} and one & {*others} for one in groups)


def _columns(job: Observed, one: Finding) -> Mask:
    assert one.steps is not None
    if isinstance(one, Slowdown) and one.spikes is not None and _stopped(one) >= THROTTLED:
        return np.arange(len(job.line.steps)) >= job.line.warm_up
    return job.line.within(one.steps)


def _is_starved_host(job: Observed, one: Finding) -> bool:
    """Whether all recorded ranks of one host are slow, and not by what they run."""
    if not isinstance(one, Slowdown) or one.cause not in STARVED or one.steps is None:
        return False
    hosts = {job.window.host_of(rank) for rank in one.ranks}
    there = [int(rank) for rank in job.line.ranks if job.window.host_of(int(rank)) in hosts]
    lasts = one.spikes is None or _stopped(one) >= THROTTLED
    return len(hosts) == 1 and lasts and len(there) > 1 and {*there} == {*one.ranks}


def _overlaps(spans: dict[int, Mask], one: Finding) -> bool:
    own = spans[id(one)]
    return any(bool((own & other).any()) for key, other in spans.items() if key != id(one))


def _measured(job: Observed, one: Finding, inside: Mask, usual: Mask) -> Finding:
    period = job.line.job_period_ns
    here, elsewhere = (period[part & np.isfinite(period)] for part in (inside, usual))
    if here.size < LEAST_STEPS:
        return one
    if elsewhere.size < LEAST_STEPS:
        loss, than = _beyond_fastest(job, one, inside, here), "the fastest of them"
    else:
        of_all = others_rise_ns(job, one.ranks, usual, inside)
        needed_ns = stats.median(elsewhere) + of_all
        loss, than = 1.0 - needed_ns / max(float(here.mean()), 1.0), "the others"
    if loss <= (one.lost_fraction or 0.0):
        return one
    says = f"of the step time is what its steps take longer than {than}, its transfers included"
    decision = Decision("measured-loss", True, loss, one.lost_fraction, says, gate=False)
    return replace(one, lost_fraction=loss, decisions=(*one.decisions, decision))


def _beyond_fastest(job: Observed, one: Finding, inside: Mask, period_ns: Floats) -> float:
    """What steps take longer than the fastest of them, or their transfers than the fastest."""
    own, mean_ns = one.lost_fraction or 0.0, max(float(period_ns.mean()), 1.0)
    stopped = _stopped(one)
    most = max(stopped, own + _delayed(job, one.ranks, inside))
    free = min(FASTEST, max(1.0 - stopped, 0.0))
    held_up = own + _held_up_ns(job, one.ranks, inside, free) / mean_ns if most > own else own
    steps = 1.0 - float(np.quantile(period_ns, free)) / mean_ns if stopped >= THROTTLED else 0.0
    return min(max(steps, held_up), most)


def _delayed(job: Observed, ranks: Collection[int], inside: Mask) -> float:
    """The share of the time for which threads that move data of a rank waited for a processor,
    beyond those of other ranks."""
    steps = np.flatnonzero(inside)
    waited = job.hardware("comm_run_delay", int(steps[0]), int(steps[-1]) + 1)
    theirs = np.isin(job.line.ranks, [*ranks])
    known = np.isfinite(waited)
    if not (known & theirs).any() or not (known & ~theirs).any():
        return 0.0
    beyond = float(waited[known & theirs].max()) - stats.median(waited[known & ~theirs])
    return max(beyond, 0.0)


def _held_up_ns(job: Observed, ranks: Collection[int], inside: Mask, free: float) -> float:
    """By how much shorter steps would be, if all transfers of some ranks were as fast as this
    quantile of them; 0 where that is not known."""
    moved = transfers(job)
    if moved is None:
        return 0.0
    level = moved.levels(inside, free)
    fastest = np.full((len(moved.places), int(moved.kind.max(initial=0)) + 1), np.inf)
    fastest[level.place, level.kind] = level.took_ns
    theirs = np.array([not {*one.members}.isdisjoint(ranks) for one in moved.places], np.bool_)
    beyond = np.maximum(moved.took_ns - fastest[moved.place, moved.kind], 0.0)
    shape = len(moved.places), inside.size
    cell = moved.place * inside.size + moved.column
    took, longer = (stats.sums(cell, ns, shape[0] * shape[1]).reshape(shape)
                    for ns in (moved.took_ns, beyond))  # fmt: skip
    shorter = np.where(theirs[:, None] & inside, longer / np.maximum(took, 1.0), 0.0)
    return healed_ns(job, moved.places, shorter) or 0.0


def _stopped(one: Finding) -> float:
    """The share of the time for which a quota stopped its ranks, as far as that was measured."""
    measured = one.supporting if isinstance(one, Slowdown) else ()
    known = [one.values.get("throttled"), *(each.values.get("throttled") for each in measured)]
    return max((share for share in known if isinstance(share, float)), default=0.0)

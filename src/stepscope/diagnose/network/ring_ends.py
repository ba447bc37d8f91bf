"""Which host's link a ring waits for, by the order in which members end.

Paper: none. Data goes round a ring piece by piece, and all pieces pass the slow hop. The ends of
one collective then spread over the ranks like a triangle: last are the ranks about the slow host,
first those at the other side of the ring, one piece earlier with every hop. Healthy, all ranks end
within milliseconds. In an all-to-all the ranks of the slow host themselves end last.
Ends are compared with the same rank's ends in faster steps, so that clocks need not agree; where
the link was never faster, with the ends of other ranks on the same host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.transfers import LEAST, Transfers
from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Ints, Mask, runs

LEAST_HOSTS = 3
"""Of two hosts in a ring each is before and behind the slow link."""
SPREAD, CHANCE_SPREAD = 0.05, 0.02
"""Part of the transfer by which ends must spread, and a standard deviation of what they do by
chance: measured on real data 0.1 to 0.3 with a slow host, and 0 to 0.05 without (0.1 in one of 30
jobs)."""
MUCH = 10.0
"""More evidence that somebody is slow changes nothing."""
SLOWEST = 0.2
"""Lost packets hold up some transfers by a timeout, and most not at all. Statistics."""
LONG = 0.5
"""Collectives that take less than this part of the longest show delays of calls, not of data."""
SURE = 5.0
"""Standard errors by which ends must spread: less than one false alarm in a million. Statistics."""
BEYOND_STEPS = 1.5
"""Standard deviations, from step to step, by which the usual ends must spread. Without a slow host
they spread, too, because processes wake up earlier on some hosts than on others. Measured on real
data: 0.2 to 0.9 in 14 jobs without a slow host, 2.3 and 5.1 in two with one."""


@dataclass(frozen=True)
class RingEnds:
    """What the ends of one kind of collective show."""

    place: int
    weight: Mapping[str, float]
    """Log-likelihood of each host, relative to ends that spread by chance."""
    somebody: float
    """Log-likelihood that any of them is slow."""
    spread_ns: float
    slower: tuple[float, float]
    """The part of a transfer by which the slow hop makes it longer, at least and at most.

    All pieces pass it, `n - 1` in a round. With every hop from there members end earlier by what it
    takes longer for a piece: all of them together, but between hosts aligned clocks hide some of
    that; and those of one host, but the hop between these may be faster than others between hosts.
    """


def ring_ends(
    moved: Transfers, now: Mask, usual: Mask | None, least_ns: float
) -> list[RingEnds]:  # fmt: skip
    """The collectives over several hosts whose ends spread; of each place the costliest kind.

    Args:
        now: columns to judge.
        usual: columns to compare with; None if there are none.
        least_ns: what the ends must spread by in a step, over all operators of their kind, or the
            slow hop must add to all transfers of the place.
    """
    judged = now[moved.column]
    least = least_ns * int(now.sum())
    total = stats.sums(moved.place[judged], moved.took_ns[judged], len(moved.places))
    rings = [at for at, hosts in enumerate(moved.hosts) if len(set(hosts)) >= LEAST_HOSTS]
    longest = max((float(total[at]) for at in rings), default=0.0)
    asked = [at for at in rings if total[at] > LONG * longest]
    found = [_of_place(moved, at, now, usual, least, float(total[at])) for at in asked]
    return [one for one in found if one is not None]


def ends_of_slowest(moved: Transfers, now: Mask) -> Mapping[str, float]:
    """The same for only the slowest transfers of the costliest ring, if data was lost in some;
    empty if there is no ring."""
    rings = [at for at, hosts in enumerate(moved.hosts) if len(set(hosts)) >= LEAST_HOSTS]
    here = np.flatnonzero(np.isin(moved.place, rings) & now[moved.column])
    if here.size < LEAST:
        return {}
    at = int(stats.sums(moved.place[here], moved.took_ns[here], 0).argmax())
    here = here[moved.place[here] == at]
    slowest = here[moved.took_ns[here] > np.quantile(moved.took_ns[here], 1 - SLOWEST)]
    late = _late(moved, slowest, len(moved.hosts[at])).mean(axis=0)
    return {one.name: one.weight for one in _fits(late, moved, at, apart=True, spreading=False)}


def _of_place(
    moved: Transfers, at: int, now: Mask, usual: Mask | None, least_ns: float, total_ns: float
) -> RingEnds | None:
    """What the ends of the kind that takes most time show.

    Args:
        least_ns: what must be lost in all columns.
        total_ns: how long all transfers of the place took in them.
    """
    here = np.flatnonzero((moved.place == at) & now[moved.column])
    if here.size < LEAST:
        return None
    kind = int(stats.sums(moved.kind[here], moved.took_ns[here], 0).argmax())
    here = here[moved.kind[here] == kind]
    late = _late(moved, here, len(moved.places[at].members))
    if len(late) < LEAST:
        return None
    typical = _typical(late, moved.last[here])
    if usual is not None:
        alike = np.flatnonzero((moved.place == at) & (moved.kind == kind) & usual[moved.column])
        if len(alike) < LEAST:
            return None
        typical -= _typical(_late(moved, alike, late.shape[1]), moved.last[alike])
    scatter, steps = _scatter(late, moved.column[here])
    spread, took = float(np.ptp(typical)), float(np.median(moved.took_ns[here]))
    if spread < max(SPREAD * took, BEYOND_STEPS * scatter, SURE * scatter / np.sqrt(steps)):
        return None
    hosts, op = moved.hosts[at], moved.ops[kind]
    apart = usual is not None or len(set(hosts)) == len(hosts)
    fits = [*_fits(typical, moved, at, apart, op == "AllToAll")]
    hop_ns = max(fits, key=lambda one: one.weight).hop_ns
    slower = _slower(op, len(hosts), (spread / (len(hosts) / 2), hop_ns), took)
    if max(spread * len(late), slower[1] * total_ns) < least_ns:
        return None
    somebody = min((spread / took / CHANCE_SPREAD) ** 2 / 2, MUCH)
    return RingEnds(at, {one.name: one.weight for one in fits}, somebody, spread, slower)


def _scatter(late: Floats, column: Ints) -> tuple[float, int]:
    """Standard deviation of the ends of a step, and the number of steps. The operators of a step
    are delayed together by whatever else runs then: only steps are independent of each other."""
    order = np.argsort(column, kind="stable")
    begins, count = runs(column[order])
    of_steps = np.add.reduceat(late[order], begins) / count[:, None]
    return float(max(stats.sigma(one) for one in of_steps.T)), len(of_steps)


def _slower(
    op: str, members: int, hops_ns: tuple[float, float], took_ns: float
) -> tuple[float, float]:  # fmt: skip
    """By what part of its time a hop that takes so much longer for a piece, at least and at most,
    makes an operator longer; an all-reduce goes round twice, and an all-to-all in no ring."""
    rounds = {"AllReduce": 2, "AllToAll": 0}.get(op, 1)
    least, most = (min(rounds * (members - 1) * ns / took_ns, 1.0) for ns in hops_ns)
    return least, most


def _typical(late: Floats, last: Ints) -> Floats:
    """The usual end of each member, whoever arrived last: from there data goes round, too, and so a
    rank that is late makes ends spread about itself."""
    each = [late[last == rank] for rank in np.unique(last)]
    levels = [np.median(one, axis=0) for one in each if len(one) >= LEAST]
    return np.asarray(np.median(levels or late, axis=0))


def _late(moved: Transfers, operators: Ints, members: int) -> Floats:
    """`[operator, member]`: its end after the median member's, members in order of their ranks."""
    rows = moved.begins[operators][:, None] + np.arange(members)
    rank, end = moved.rank[rows], moved.end_ns[rows]
    end = np.take_along_axis(end, np.argsort(rank, axis=1), axis=1)
    return np.asarray((end - np.median(end, axis=1)[:, None]).astype(np.float64))


@dataclass(frozen=True)
class _Fit:
    """How well the ends that a slow host, or adapter, would cause are those that were seen."""

    name: str
    weight: float
    """Its log-likelihood."""
    hop_ns: float
    """By how much members end earlier with every hop."""


def _fits(
    late: Floats, moved: Transfers, place: int, apart: bool, spreading: bool
) -> Iterator[_Fit]:  # fmt: skip
    """How much of the ends the shape of each host, and of each adapter, explains."""
    hosts, adapters = moved.hosts[place], moved.adapters[place]
    seen = _centred(late, hosts, apart)
    freedom = len(hosts) - (1 if apart else len(set(hosts)))
    for names, middles in ((hosts, _host_middles), (adapters, _adapter_middles)):
        for name in dict.fromkeys(name for name in names if name):
            own = [at for at, one in enumerate(names) if one == name]
            shapes = [np.isin(np.arange(len(hosts)), own).astype(np.float64)] if spreading else [
                _triangle(len(hosts), one) for one in middles(hosts, adapters, own)]  # fmt: skip
            tried = [_alike(_centred(one, hosts, apart), seen) for one in shapes]
            alike, hop_ns = max(tried, default=(0.0, 0.0))
            weight = -freedom / 2 * float(np.log(max(1 - alike**2, NEVER_EXACT)))
            yield _Fit(name, weight, hop_ns)


def _alike(shape: Floats, seen: Floats) -> tuple[float, float]:
    """The part of the ends that a shape explains, as a correlation, and how many times the shape
    they are; 0 if they are the opposite."""
    norm, size = float(np.linalg.norm(shape) * np.linalg.norm(seen)), float(shape @ shape)
    same = max(float(shape @ seen), 0.0)
    return (same / norm, same / size) if norm else (0.0, 0.0)


NEVER_EXACT = 0.05
"""Rings share wires and processors: no shape explains more of the ends. Measured on real data."""


def _host_middles(hosts: Sequence[str], adapters: Sequence[str], own: Sequence[int]) -> list[float]:
    """Where ends peak if a host is slow: about the hop into it (as measured), or about the middle
    of its members, if the hop out of it is as slow.

    If these go through two adapters, either alone may be slow: then one host is as likely as its
    neighbour.
    """
    middles = [(own[0] - 1 + own[-1]) / 2, (own[0] + own[-1]) / 2]
    if adapters[own[0]] != adapters[own[-1]]:
        middles += [own[0] - 0.5, own[-1] + 0.5]
    return middles


def _adapter_middles(
    hosts: Sequence[str], adapters: Sequence[str], own: Sequence[int]
) -> list[float]:
    """The same for one of several adapters of a host: the middle of the hops that pass through
    it."""
    hops = [at - 0.5 for at in own if hosts[at - 1] != hosts[at]]
    hops += [at + 0.5 for at in own if hosts[(at + 1) % len(hosts)] != hosts[at]]
    return [sum(hops) / len(hops)] if hops else []


def _triangle(members: int, middle: float) -> Floats:
    """How late members end: the farther from the slow hop, the less."""
    away = np.abs(np.arange(members) - middle)
    return np.asarray(-np.minimum(away, members - away))


def _centred(values: Floats, hosts: Sequence[str], apart: bool) -> Floats:
    """Values minus their mean; minus the mean of each host, where clocks may differ."""
    if apart:
        return np.asarray(values - values.mean())
    number = np.unique(hosts, return_inverse=True)[1]
    means = np.bincount(number, values) / np.bincount(number)
    return np.asarray(values - means[number])

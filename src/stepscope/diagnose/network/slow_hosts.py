"""Which host's link explains that transfers are slow: a likelihood ratio against "nobody".

A place (a group, or one direction between two ranks) is slow by the logarithm of its level over its
usual one. A slow link slows down the places that have members on its host and elsewhere, by about
the same factor, and no others; a busy machine slows down all of them a little. So

    slowness of a place = busy + slow * (it passes the link, and shows it) + noise.

The ends of rings add what they say of each host (`ring_ends`). A host is shorter to name than each
of its connections, so two hosts are named only where neither alone explains what is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stepscope.diagnose.network.ring_ends import RingEnds, ring_ends
from stepscope.diagnose.network.transfers import Levels, Transfers
from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Mask

RESOLUTION_NS = 10**6
"""Clocks of hosts are aligned to about a millisecond over TCP. Measured on real data."""
BUSY = 0.1
"""By how much a busy machine slows down all transfers over TCP: measured on a healthy job beside
other work."""
NOISE, UNEQUAL = 0.15, 0.25
"""Standard deviations of a place against itself, which varies by less than a tenth between halves
of a healthy job, or by more where transfers take a millisecond; and against equal places, which
differ by less than 1.6 times. Measured on real data."""
MOST = 0.7
"""Twice as long is slow: how much more it is depends on what else a transfer contains. A place that
is slower by design is ten times as long ten times as seldom as twice as long, so beyond this its
evidence grows by the logarithm alone. Statistics (a power law)."""
FACTORS, SHARED = np.linspace(0.2, MOST, 5), np.linspace(-0.2, 0.4, 13)
"""The logarithms that are tried: of a slow link (from 1.2 times on), and of a busy machine."""
SHOWS = 0.8
"""Probability that a place shows the slow link that it passes: who posts a receive late does not
notice. Measured on real data (pipelines)."""
PATH = 0.1
"""What lies between two hosts, or between all of them, is that much less often slow than an adapter
or its cable: it has no parts of its own but switches. Our estimate; Holmes (2025), section 3.1,
names links and adapters."""
ADAPTER = 0.3
"""One of several adapters of a host is that much less likely: over TCP, mostly all ranks use one.
Our estimate."""
FAST = 0.25
"""The quantile of equal places that is usual: half of them may share a slow host. Statistics."""


@dataclass(frozen=True)
class Slowness:
    """How slow each place is; NaN unknown."""

    log: Floats
    noise: float
    excess_ns: Floats
    """`[place]`: per step."""
    took_ns: Floats
    usual_ns: Floats
    """Of the place's costliest operator."""


NOTHING = Slowness(np.zeros(0), 1.0, np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Suspects:
    """Hosts, single adapters (`host/nic`), pairs of hosts (two names), or the whole network (none)
    by probability."""

    who: Sequence[tuple[str, ...]]
    chance: Floats
    bits: float
    """Evidence that it is one of them, less what it takes to name it."""
    slowness: Slowness
    ends: Sequence[RingEnds]


def suspects(
    moved: Transfers, now: Mask, usual: Mask | None, least_ns: float
) -> Suspects:  # fmt: skip
    """Hosts that may be slow in some columns, compared with other columns, or with equal places if
    there are none.

    Args:
        least_ns: the time per step that is worth a verdict.
    """
    slowness = _against_equals(moved, now) if usual is None else _against_past(moved, now, usual)
    ends = ring_ends(moved, now, usual, least_ns)
    who = [one for one in _hypotheses(moved) if one or usual is not None]
    known = np.flatnonzero(np.isfinite(slowness.log))
    passes = np.array(
        [[_passes(moved, at, one) for at in known.tolist()] for one in who], np.float64
    )
    log = slowness.log[known]
    total = likelihood(np.clip(log, -MOST, MOST), passes, slowness.noise)
    total += SHOWS * passes @ np.maximum(log - MOST, 0.0)
    total += [_prior(one) + _of_ends(ends, one) for one in who]
    total += max((each.somebody for each in ends), default=0.0) - np.log(len(who))
    best = float(total.max())
    chance = np.exp(total - best)
    bits = (best + float(np.log(chance.sum()))) / np.log(2)
    return Suspects(who, chance / chance.sum(), bits, slowness, ends)


def _prior(who: tuple[str, ...]) -> float:
    if len(who) == 1:
        return float(np.log(ADAPTER)) if "/" in who[0] else 0.0
    return float(np.log(PATH))


def _of_ends(ends: Sequence[RingEnds], who: tuple[str, ...]) -> float:
    return sum(each.weight.get(who[0], 0.0) for each in ends) if len(who) == 1 else 0.0


def _hypotheses(moved: Transfers) -> Iterator[tuple[str, ...]]:
    """Every host and adapter, every two hosts with a connection of their own, and the network as a
    whole."""
    between = [set(moved.hosts[at]) for at in np.flatnonzero(moved.between).tolist()]
    names = sorted(set().union(*between)) if between else []
    yield from ((name,) for name in names)
    yield from ((name,) for name in sorted(set().union(*moved.adapters) - {""}))
    if len(names) > 2:
        pairs = {tuple(sorted(one)) for one in between if len(one) == 2}
        yield from (two for two in combinations(names, 2) if two in pairs)
        yield ()


def _passes(moved: Transfers, at: int, who: tuple[str, ...]) -> bool:
    hosts = set(moved.hosts[at])
    if len(hosts) < 2:
        return False
    if len(who) == 1 and "/" in who[0]:
        return who[0] in moved.adapters[at]
    return hosts == set(who) if len(who) == 2 else hosts >= set(who)


def likelihood(slow: Floats, passes: Floats, noise: float, shared: Floats = SHARED) -> Floats:
    """Log-likelihood ratio of each hypothesis to "nobody", each at its likeliest factors.

    Args:
        slow: the logarithm of how slow each place is.
        passes: `[hypothesis, place]`: 1 where it would be slow.
        shared: by what all of them may be slow alike.
    """
    beyond = slow[:, None] - shared
    calm = -(beyond**2) / (2 * noise**2)
    nobody = calm.sum(axis=0) - shared**2 / (2 * BUSY**2)
    slowed = -((beyond[:, :, None] - FACTORS) ** 2) / (2 * noise**2)
    hit = np.logaddexp(np.log(SHOWS) + slowed, np.log(1 - SHOWS) + calm[:, :, None])
    gain = (hit - calm[:, :, None]).reshape(slow.size, shared.size * FACTORS.size)
    total = (passes @ gain).reshape(len(passes), shared.size, FACTORS.size)
    likeliest = (total + nobody[:, None]).max(axis=(1, 2)) if slow.size else np.zeros(len(passes))
    return np.asarray(likeliest - (nobody.max() if slow.size else 0.0))


def _against_past(moved: Transfers, now: Mask, usual: Mask) -> Slowness:
    """Compares each place with itself in other columns."""
    levels, before = moved.levels(now), moved.levels(usual)
    width = len(moved.ops)
    own, theirs = levels.place * width + levels.kind, before.place * width + before.kind
    _, at, there = np.intersect1d(own, theirs, return_indices=True)
    reference = np.full(own.size, np.nan)
    reference[at] = before.took_ns[there]
    return _slowness(moved, levels, reference, NOISE)


def _against_equals(moved: Transfers, now: Mask) -> Slowness:
    """Compares each place with the faster ones of those with as many members on as many hosts."""
    levels = moved.levels(now)
    shape = np.array([_likeness(moved, at) for at in levels.place.tolist()] or [(0, 0, 0)])
    alike = np.unique(np.column_stack((shape[: levels.kind.size], levels.kind)), axis=0,
                      return_inverse=True)[1].ravel()  # fmt: skip
    reference = np.full(levels.kind.size, np.nan)
    for one in np.unique(alike):
        rows = np.flatnonzero(alike == one)
        if rows.size > 1:
            reference[rows] = np.quantile(levels.took_ns[rows], FAST, method="lower")
    return _slowness(moved, levels, reference, UNEQUAL)


def _likeness(moved: Transfers, at: int) -> tuple[int, int, int]:
    hosts = moved.hosts[at]
    return int(moved.places[at].is_pair), len(hosts), len(set(hosts))


def _slowness(moved: Transfers, levels: Levels, reference: Floats, noise: float) -> Slowness:
    """The slowness of each place over its kinds of operators, weighted by the time that they
    take."""
    known = np.isfinite(reference)
    place, usual = levels.place[known], reference[known]
    took, often = levels.took_ns[known], levels.per_step[known]
    log = np.log((took + RESOLUTION_NS) / (usual + RESOLUTION_NS))
    size = len(moved.places)
    weight = often * np.maximum(took, usual)
    total = stats.sums(place, weight, size)
    excess = stats.sums(place, often * np.maximum(took - usual, 0.0), size)
    costliest = np.zeros((2, size))
    order = np.argsort(weight, kind="stable")
    costliest[:, place[order]] = took[order], usual[order]
    mean = stats.sums(place, weight * log, size) / np.where(total > 0, total, np.nan)
    return Slowness(mean, noise, excess, costliest[0], costliest[1])

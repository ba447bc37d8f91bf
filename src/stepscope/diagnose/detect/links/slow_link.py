"""The network device that moves data slower than it did, or than its equals do, in a job folder.

Fault: a slow adapter, cable, switch or NVLink, always or at times; a slow network.
Papers: Holmes (2025), section 4.4, accuses devices on the paths of slow operators; VenusTrace
(2025), section 4, and Holmes compare durations of operators, which contain waiting.
What differs: rates contain the transfer only (`network.rates`), and devices are weighed by
likelihood (`network.likelihood`). A place (a group or a pair) is slow in a step in which its
transfers took RATIO times what they took in its own fast steps, or, if these are slow as well, in
those of places that move the same data over the same kind of hop. Devices explain slow places. A
device is accused if it was slow in more steps than places are slow for no reason, repeatedly.
Cost: one sort of `comm_ops`; paths of places only where one is slow. Cannot see: what is slow from
the first step on in all places of a kind; a single episode that is short, or one among others; how
libraries really route; gloo.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.transient import LEAST_SPIKES, UNLIKE
from stepscope.diagnose.network.counters import RaisedCounter, likelihood_factors, raised_counters
from stepscope.diagnose.network.delay import Delay, healed_ns, idle_ns, lost_per_step
from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.likelihood import (
    PRIOR,
    Cells,
    DeviceScores,
    Paths,
    probabilities,
    score_devices,
)
from stepscope.diagnose.network.outstanding import Requests
from stepscope.diagnose.network.shared_device import of_one_device
from stepscope.diagnose.network.slow_edges import SlowPlaces, find_slow_places, slow_periods
from stepscope.diagnose.network.topology import SUFFERS, Kind, PathDevice, Topology
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import Runs, log_tail
from stepscope.diagnose.observed import Observed
from stepscope.window import Floats, Ints, Mask, union

FALSE_ALARMS = 1e-3
"""Share of healthy jobs in which a device may be slow that often by chance, as in L2. Of 840
simulated jobs with Gaussian to Cauchy noise none got a verdict, of 200 in which all places were
slow at times four did (docs/methods/slow-link.md). Statistics."""
LASTING, TIMES_PASSING = 10, 3
"""An episode lasts if it has at least so many steps, or goes on at the end of the recording after a
third of it, and if it has so many times the length of any episode elsewhere that passed by itself.
Shorter episodes must be several, or they were traffic of other jobs, unless they are far longer
than anything else. Our simulator."""
SUREST_RANKS = 0.6
"""Ranks are named if they are behind the likeliest devices with this probability. Our simulator."""
NAMED = 5
"""Number of suspects that are kept. Our simulator."""
LEAST_LIKELY = 0.005
"""Smallest probability of a suspect; each adapter of a group of two hundred has as much. Our
simulator."""
BETWEEN_TWO: tuple[Kind, ...] = ("edge", "lane")
"""Kinds of links that only two ranks use."""
STRAYS = 0.1
"""Of what a device explains: if more is slow beside it, something else contributes to the cost. Our
simulator."""
TELLING = 20.0
"""Likelihood factor if traffic left an adapter, the same as for a counter of its own
(`counters.OWN`). Our simulator."""
WORN, WORN_FOR_A_MOMENT, MOSTLY = ("link", "pcie"), 0.2, 0.5
"""Likelihood factor against a cable or PCIe link if only single transfers are slow. A worn link
carries all data more slowly. It holds up single transfers, while others in the same step are as
fast as usual, only when it is retrained: that is rarer, and counted. The factor applies if most
slow steps are of this kind. Our simulator."""
MOST_LINKS = 5
"""Largest number of slow devices in one job, each explaining what is left by those before. Our
simulator."""


@dataclass(frozen=True)
class SlowDevice:
    """A device, or one of several, that is slow."""

    suspects: tuple[tuple[PathDevice, float], ...]
    """By probability, the likeliest first."""
    ranks: tuple[int, ...]
    """Behind it; none where too many devices are as likely, or all ranks are behind it."""
    place: Place
    """Where it cost the most."""
    slow: int
    through: int
    """Of `through` places that use it, `slow` were slow."""
    columns: Ints
    """The steps in which it was slow."""
    ratio: float
    lost_ns: float
    """Per step in which it was slow."""
    signs: tuple[str, ...]
    """Counters that rose with it."""
    left: bool
    """Whether the likeliest is an adapter that its ranks do not send by any more."""
    once: bool
    """Whether it was slow for one episode or two, which count by what they cost."""


def slow_links(job: Observed, guilty: Mapping[int, tuple[int, int]]) -> list[SlowDevice]:
    """Every slow device, the most suspect first.

    Args:
        guilty: ranks that are slow themselves, and in which columns: they may move data slowly too.
    """
    looked = find_slow_places(job)
    if looked is None or not looked.cells.slow.any():
        return []
    topology = Topology(job.window)
    paths = Paths.of([topology.hops(place) for place in looked.rates.places])
    busy = np.zeros(len(job.line.steps), np.bool_)
    for span in guilty.values():
        busy[slice(*span)] = True
    case = _Case(job, looked, busy, paths, topology, Requests.of(job.window))
    return list(_by_device(case, list(_found(case))))


@dataclass(frozen=True)
class _Case:
    """The data that devices are judged by."""

    job: Observed
    looked: SlowPlaces
    guilty: Mask
    """Steps in which a rank is slow for other reasons."""
    paths: Paths
    topology: Topology
    requests: Requests | None
    """None where they were not counted."""


@dataclass(frozen=True)
class _Slow:
    """What some device explains."""

    chance: Floats
    """Of each device."""
    explained: Mask
    """`[place, step]`."""
    signs: tuple[RaisedCounter, ...]
    """The counters that rose with it."""
    once: bool


def _by_device(case: _Case, found: Sequence[_Slow]) -> Iterator[SlowDevice]:
    """One for each device that explains some of it, by all that it explains."""
    prior = np.array([PRIOR[one.kind] for one in case.paths.devices])
    for parts, chance in of_one_device([one.chance for one in found], prior):
        same = [found[at] for at in parts]
        explained = np.logical_or.reduce([one.explained for one in same])
        signs = same[0].signs if len(same) == 1 else _raised(case, explained)
        link = _slow_device(case, _Slow(chance, explained, signs, all(one.once for one in same)))
        if not _is_by_design(case, link, explained):
            yield link


def _found(case: _Case) -> Iterator[_Slow]:
    """What devices explain one after the other, each what those before it did not."""
    cells, paths = case.looked.cells, case.paths
    for _ in range(MOST_LINKS):
        scored = score_devices(paths, cells)
        if not (scored.total > 0).any():
            return
        best = int(np.argmax(scored.total))
        active = scored.scores[best] > 0
        explained = np.isin(np.arange(len(cells.slow)), paths.places_of([best]))[:, None] & active
        often = _is_often(cells, paths, best, active, explained)
        if not (often or _is_unlike_any_other(case.looked, cells.slow & explained)):
            return
        rivals = score_devices(paths, _without(cells, cells.slow & ~explained))
        signs = _raised(case, explained)
        yield _Slow(_chance(case, rivals, explained, signs), explained, signs, once=not often)
        cells = _without(cells, explained)


def _is_by_design(case: _Case, link: SlowDevice, explained: Mask) -> bool:
    """Whether data moves slowly only because it goes far: it was never faster."""
    slow = explained & case.looked.cells.slow
    return link.suspects[0][0].kind == "distance" and bool(
        case.looked.always[slow.any(axis=1)].mean() > MOSTLY
    )


def _without(cells: Cells, some: Mask) -> Cells:
    """The cells with some of them marked as unknown."""
    return Cells(cells.known & ~some, cells.slow & ~some, cells.brief)


def _is_often(cells: Cells, paths: Paths, device: int, active: Mask, explained: Mask) -> bool:
    """Whether a device is slow more often than places are without any reason.

    If not, this is asked again without what one other device explains, as two may be slow in turns:
    if both together explain nearly all slow transfers, and with a correction for the choice of the
    other device.
    """
    if _is_no_chance(cells, paths, device, active):
        return True
    scored = score_devices(paths, _without(cells, explained))
    other = int(np.argmax(scored.total))
    theirs = np.isin(np.arange(len(cells.slow)), paths.places_of([other]))[:, None]
    beside = _without(cells, theirs & (scored.scores[other] > 0) & ~explained)
    strays = int((beside.slow & ~explained).sum())
    if strays > STRAYS * int((cells.slow & explained).sum()):
        return False
    return _is_no_chance(beside, paths, device, active, len(paths.devices))


def _is_no_chance(
    cells: Cells, paths: Paths, device: int, active: Mask, ways: int = 1
) -> bool:  # fmt: skip
    """Whether a device is slow more often than places are without any reason.

    Slow steps come in episodes, so these are counted, unless one of them lasts.

    Args:
        ways: the number of devices that could have been left out; the p-value is multiplied by it.
    """
    places = paths.places_of([device])
    others = cells.slow.copy()
    others[np.ix_(places, np.flatnonzero(active))] = False
    looked_at = cells.known.any(axis=0)
    own, stray = Runs.of(active[None, looked_at]), Runs.of(others[:, looked_at])
    often, elsewhere = own.length.size, stray.length.size
    goes_on = bool(active[looked_at][-1:].any())
    lasting = min(LASTING, int(looked_at.sum()) // 3 + 1) if goes_on else LASTING
    if own.longest >= max(lasting, TIMES_PASSING * stray.passing):
        often, elsewhere = int(own.length.sum()), int(stray.length.sum())
    elif often < 2:
        return False
    chance = (elsewhere + 1) / (int(cells.known.sum()) + 2)
    steps = int(cells.known[places].any(axis=0).sum())
    tests = math.log(len(cells.slow) * ways)
    return log_tail(often, steps, chance) + tests < math.log(FALSE_ALARMS)


def _is_unlike_any_other(looked: SlowPlaces, cells: Mask) -> bool:
    """Whether transfers in these cells were delayed by far more than those of any other place, or
    of any other step: then one episode or two are enough, as for a rank (`transient`); of several,
    most must be."""
    places, columns = (np.arange(size) for size in looked.excess.shape)
    more = np.where(looked.cells.known, _excess_ns(looked, places, columns), 0.0)
    active, known = (np.asarray(one.any(axis=0)) for one in (cells, looked.cells.known))
    worst = np.sort(np.where(cells, more, 0.0).max(axis=0)[active])
    if not worst.size:
        return False
    episodes = Runs.of(active[None, known]).length.size
    usual = worst[-1] if episodes < LEAST_SPIKES else worst[(worst.size - 1) // 2]
    return bool(usual >= UNLIKE * more[~cells].max(initial=0.0))


def _raised(case: _Case, explained: Mask) -> tuple[RaisedCounter, ...]:
    return tuple(raised_counters(case.job, np.asarray(explained.any(axis=0))))


def _chance(
    case: _Case, scored: DeviceScores, explained: Mask, signs: Sequence[RaisedCounter]
) -> Floats:
    """The probability of each device, given that one of them is to blame."""
    devices = case.paths.devices
    against = likelihood_factors(case.job, signs, devices)
    weight = np.log(against) + _outstanding(case, explained) + math.log(TELLING) * _left(case)
    if case.looked.cells.brief[explained.any(axis=0)].mean() > MOSTLY:
        weight += [math.log(WORN_FOR_A_MOMENT) * (one.kind in WORN) for one in devices]
    return probabilities(case.paths, scored, weight)


def _slow_device(case: _Case, found: _Slow) -> SlowDevice:
    job, looked, paths = case.job, case.looked, case.paths
    chance, explained = found.chance, found.explained
    active = np.asarray(explained.any(axis=0))
    against = likelihood_factors(job, found.signs, paths.devices)
    order = np.argsort(-chance, kind="stable")
    best = int(order[0])
    through = paths.places_of([best])
    columns = np.flatnonzero(active)
    slow = looked.cells.slow[np.ix_(through, columns)]
    cost = np.where(slow, _excess_ns(looked, through, columns), 0.0)
    ratio = np.exp(stats.median(looked.excess[np.ix_(through, columns)][slow]))
    at = int(np.argmax(cost.sum(axis=1)))
    return SlowDevice(
        suspects_of(paths.devices, chance), ranks_behind(job, paths.devices, chance),
        looked.rates.places[int(through[at])], int((slow.mean(axis=1) > 0.5).sum()), len(through),
        columns, float(ratio), _lost(case, through, cost, explained, best),
        tuple(sign.metric for sign in found.signs) if (against > 1).any() else (),
        bool(_left(case)[best]), found.once,
    )  # fmt: skip


def _left(case: _Case) -> Mask:
    """Which devices are adapters that ranks abandoned: their traffic now goes elsewhere."""
    names = set(case.topology.abandoned.values())
    return np.array([one.kind == "nic" and one.name in names for one in case.paths.devices])


def _outstanding(case: _Case, explained: Mask) -> Floats:
    """Log-likelihood ratio of each device, by its outstanding requests."""
    if case.requests is None:
        return np.zeros(len(case.paths.devices))
    weight = case.requests.evidence_of(slow_periods(case.looked, explained))
    return weight.log_ratios(case.paths.devices, case.topology)


def _lost(case: _Case, through: Ints, cost: Floats, explained: Mask, best: int) -> float:
    """Time lost per step in which the device was slow."""
    job, looked, device = case.job, case.looked, case.paths.devices[best]
    active, slow = np.asarray(explained.any(axis=0)), looked.cells.slow
    calm = (np.arange(active.size) >= job.line.warm_up) & ~slow.any(axis=0)
    others = int((slow & ~explained)[:, active].sum())
    shared = bool(case.guilty[active].any()) or others > STRAYS * int((slow & explained).sum())
    longest = _longest_delay(looked, through, explained & slow) / max(int(active.sum()), 1)
    healed = _healed(case, through, explained, best)
    costliest = looked.rates.places[int(through[int(np.argmax(cost.sum(axis=1)))])]
    most = idle_ns(job, costliest.members, active)
    delay = Delay(min(longest if healed is None else healed, most), min(longest, most))
    together_ns = cost.sum() / max(int(active.sum()), 1) if device.kind == "fabric" else 0.0
    return lost_per_step(delay, job.line.job_period_ns, active, calm, shared, together_ns)


def _healed(case: _Case, through: Ints, explained: Mask, best: int) -> float | None:
    """The device's share of what all slow transfers of its steps cost together: while another one
    is slow, too, healing either alone may win nothing."""
    looked, active = case.looked, np.flatnonzero(explained.any(axis=0))
    slow, everywhere = looked.cells.slow[:, active], np.arange(len(looked.rates.places))
    more = np.where(slow, _excess_ns(looked, everywhere, active), 0.0)
    own = float(more[explained[:, active]].sum()) / max(float(more.sum()), 1.0)
    part = np.zeros(looked.excess.shape)
    part[:, active] = np.where(slow, 1 - np.exp(-np.nan_to_num(looked.excess[:, active])), 0.0)
    alone = through[~looked.cells.known[through].any(axis=1)]
    usual = float(np.median(part[explained & looked.cells.slow]))
    part[np.ix_(np.intersect1d(alone, _surely_through(case.paths, best)), active)] = usual
    healed = healed_ns(case.job, looked.rates.places, part)
    return None if healed is None else own * healed


def _surely_through(paths: Paths, device: int) -> Ints:
    """The places that use a device for certain. One of them that has no equals is as slow by it as
    others are."""
    return np.asarray(paths.place[(paths.device == device) & (paths.chance >= SUFFERS)])


def _longest_delay(looked: SlowPlaces, through: Ints, cells: Mask) -> float:
    """How long the transfers of any single rank exceeded their usual time, together: those that
    move data at once, as in both directions of a pair, delay it once."""
    single = looked.rates.single
    kept = np.flatnonzero(cells[single.place, single.column] & (looked.times > 1))
    ended = single.ended_ns[kept]
    begun = ended - (single.taken_ns[kept] * (1 - 1 / looked.times[kept])).astype(np.int64)
    of_rank: dict[int, list[int]] = {}
    for at in through.tolist():
        for rank in looked.rates.places[at].members:
            of_rank.setdefault(rank, []).append(at)
    delays = (_length(begun[some], ended[some]) for places in of_rank.values()
              if (some := np.isin(single.place[kept], places)).any())  # fmt: skip
    return max(delays, default=0.0)


def _length(begun: Ints, ended: Ints) -> float:
    together = union(begun, ended)
    return float((together.end - together.start).sum())


def _excess_ns(looked: SlowPlaces, places: Ints, columns: Ints) -> Floats:
    """How much longer transfers took than in fast steps."""
    at = np.ix_(places, columns)
    taken = np.nan_to_num(looked.rates.taken_ns[at])
    return np.maximum(taken - taken * np.exp(-np.nan_to_num(looked.excess[at])), 0.0)


def suspects_of(
    devices: Sequence[PathDevice], chance: Floats
) -> tuple[tuple[PathDevice, float], ...]:
    """The likeliest devices; entries with the same name are added up, because a host's NVLink has
    one name."""
    total: dict[tuple[str, str], tuple[PathDevice, float]] = {}
    for at in np.argsort(-chance, kind="stable").tolist():
        if chance[at] < LEAST_LIKELY and total:
            break
        one = devices[at]
        known, so_far = total.get((one.kind, one.name), (one, 0.0))
        total[one.kind, one.name] = (known, so_far + float(chance[at]))
    ranked = sorted(total.values(), key=lambda pair: -pair[1])
    return tuple(ranked[:NAMED])


def ranks_behind(job: Observed, devices: Sequence[PathDevice], chance: Floats) -> tuple[int, ...]:
    """The ranks behind the likeliest devices, if that is clear and not all ranks."""
    behind: dict[tuple[int, ...], float] = {}
    for at in np.flatnonzero(chance >= LEAST_LIKELY).tolist():
        ranks = devices[at].ranks
        behind[ranks] = behind.get(ranks, 0.0) + float(chance[at])
    ranks = max(behind, key=lambda one: (round(behind[one], 3), len(one)), default=())
    if any(one.kind in BETWEEN_TWO and one.ranks == ranks for one in devices):
        # it is what connects two ranks, or one of its ends
        behind[ranks] = sum(one for ends, one in behind.items() if ends and set(ends) <= set(ranks))
    if not ranks:
        return ()
    sure = behind[ranks] >= SUREST_RANKS and len(ranks) < len(job.line.ranks)
    return ranks if sure else ()

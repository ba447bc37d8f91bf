"""Which device lets data through more slowly than it did, or than its like do, in a job folder.

Fault: a slow adapter, cable, switch or NVLink, for good or now and then; a slow network.
Papers: Holmes (2025, section 4.4) accuses devices on the ways of slow operators; see `suspicion`
for what is different here. VenusTrace (2025, section 4) and Holmes compare durations of operators,
of which waiting is a part; `paces` has the transfer only.
A place is slow in a step where its transfers took RATIO times what they took in its own fast steps,
or, if these are slow as well, in those of its equals. Devices explain slow places. A device is
accused if it was slow in more steps than places are slow for no reason, again and again.
Cost: one sort of `comm_ops`; ways of places only where one is slow. Cannot see: what is slow from
the first step on in all equals; a single slow episode; how libraries really route; gloo.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.chance import Runs, log_tail
from stepscope.diagnose.counters import Noticed, noticed, speak_against
from stepscope.diagnose.delay import idle_ns, longest_delay, lost_per_step
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.paces import Paces, measure_paces
from stepscope.diagnose.places import Place
from stepscope.diagnose.routes import Carrier, Routes
from stepscope.diagnose.suspicion import Cells, Suspicion, Ways, probabilities, suspect
from stepscope.window import Floats, Ints, Mask

ON_DEVICES = ("kernels", "kernel_summaries", "transfers")
"""Tables that show that data moves between devices; with gloo it is the work of processors."""
AT_WORK = 0.1
"""Part of the time in which most ranks' devices run something, where counters alone tell: an idle
one reports 0, and a job that computes on its processors leaves it so."""
LEAST_STEPS = 20
"""As L2 wants them; of fewer steps `transfer` judges traces."""
RATIO = 1.5
"""As in `transfer`: half as long again."""
SIGMAS = 5.0
"""Beyond the noise of single steps of its equals."""
FAST, FAST_SIGMAS = 0.2, 0.84
"""A place's fast steps are its fastest fifth; of Gaussian noise their limit lies so far below."""
APART, LEAST_EQUALS = 4.0, 3
"""A place is slow against its equals if it lies so many times their own scatter above them."""
PAIR, RATIO_OF_TWO = 2, 2.0
"""Against its only equal, as in `transfer`: no third one tells which is usual."""
FALSE_ALARMS = 1e-3
"""Share of healthy jobs in which a device may be slow that often by chance, as in L2. Of 840 played
jobs with Gaussian to Cauchy noise none got a verdict, of 200 in which all places were slow now and
then four did (docs/methods/links.md)."""
LASTING, TIMES_PASSING = 10, 3
"""An episode lasts if it is so many steps long, and so many times as long as any elsewhere that
passed by itself. Other episodes must be several, or somebody else's traffic passed."""
SUREST_RANKS = 0.6
"""Ranks are named if they are behind the likeliest devices with this probability."""
NAMED = 5
"""So many suspects are kept."""
LEAST_LIKELY = 0.005
"""What is less likely is none; of the adapters of a group of two hundred each is as likely."""
STRAYS = 0.1
"""Of what a device explains: if more is slow beside it, something else has a part in the cost."""
MOST_LINKS = 5
"""So many devices are looked for one after the other."""


@dataclass(frozen=True)
class SlowLink:
    """A device, or one of several, that is slow."""

    suspects: tuple[tuple[Carrier, float], ...]
    """By probability, the likeliest first."""
    ranks: tuple[int, ...]
    """Behind it; none where too many devices are as likely, or all ranks are behind it."""
    place: Place
    """Where it cost the most."""
    slow: int
    through: int
    """So many of the places that use it were slow."""
    columns: Ints
    """The steps in which it was slow."""
    ratio: float
    lost_ns: float
    """Per step in which it was slow."""
    signs: tuple[str, ...]
    """Counters that rose with it."""


@dataclass(frozen=True)
class _Looked:
    """All places, what they take in their fast steps, and where they are slow."""

    paces: Paces
    excess: Floats
    """Logarithm of how many times what they take in their fast steps."""
    cells: Cells
    guilty: Mask
    """Steps in which somebody is slow for other reasons."""


def slow_links(seen: Observed, guilty: Mapping[int, tuple[int, int]]) -> list[SlowLink]:
    """Every slow device, the most suspect first.

    Args:
        guilty: ranks that are slow themselves, and in which columns: they may move data slowly too.
    """
    looked = _look(seen, guilty)
    if looked is None or not looked.cells.slow.any():
        return []
    routes = Routes(seen.window)
    ways = Ways.of([routes.ways(place) for place in looked.paces.places])
    return list(_found(seen, looked, ways))


def _look(seen: Observed, guilty: Mapping[int, tuple[int, int]]) -> _Looked | None:
    if not _on_devices(seen):
        return None
    if len(seen.line.steps) - seen.line.warm_up < LEAST_STEPS:
        return None
    paces = measure_paces(seen)
    if paces is None:
        return None
    slowness = paces.slowness
    slowness[:, : seen.line.warm_up] = np.nan
    for at, place in enumerate(paces.places):
        for rank in guilty.keys() & set(place.members):
            slowness[at, slice(*guilty[rank])] = np.nan
    classes = _classes(seen, paces)
    noise = _noise(slowness, classes)
    excess = slowness - _fast(slowness, classes, noise)[:, None]
    limit = np.maximum(math.log(RATIO), SIGMAS * noise)[:, None]
    known = np.isfinite(excess)
    slow = known & (np.nan_to_num(excess) > limit)
    known &= slow | ~_without_scale(known, slow, classes)[:, None]
    busy = np.zeros(slowness.shape[1], np.bool_)
    for span in guilty.values():
        busy[slice(*span)] = True
    return _Looked(paces, excess, Cells(known, slow), busy)


def _on_devices(seen: Observed) -> bool:
    """Whether the job is seen to run on devices."""
    if any(seen.window.table(name) is not None for name in ON_DEVICES):
        return True
    busy = stats.median(seen.hardware("sm_active", seen.line.warm_up, len(seen.line.steps)))
    return busy >= AT_WORK


def _classes(seen: Observed, paces: Paces) -> list[Ints]:
    """Equals that also lie under equally many leaves."""
    routes, found = Routes(seen.window), dict[tuple[int, int], list[int]]()
    for at, place in enumerate(paces.places):
        found.setdefault((int(paces.equals[at]), routes.crosses_leaves(place)), []).append(at)
    return [np.array(places, np.int64) for places in found.values()]


def _noise(slowness: Floats, classes: Sequence[Ints]) -> Floats:
    """Scatter of single steps, of each place's class."""
    noise = np.zeros(len(slowness))
    for places in classes:
        noise[places] = max(stats.step_noise(slowness[places]), stats.NOISE_FLOOR)
    return noise


def _fast(slowness: Floats, classes: Sequence[Ints], noise: Floats) -> Floats:
    """What each place takes in its fast steps; in those of its equals, if it has no fast ones."""
    counts = np.isfinite(slowness).sum(axis=1)
    at = np.maximum((counts * FAST).astype(np.int64), 0)
    ordered = np.sort(slowness, axis=1)
    fast = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0] + FAST_SIGMAS * noise
    fast[counts < LEAST_STEPS] = np.nan
    for places in classes:
        own = fast[places]
        usual, spread = stats.median(own), stats.sigma(own)
        if np.isfinite(own).sum() >= LEAST_EQUALS:
            slow = own > usual + max(math.log(RATIO), APART * spread)
            fast[places] = np.where(slow, usual, own)
        elif np.isfinite(own).sum() == PAIR:
            least = float(np.nanmin(own))
            fast[places] = np.where(own > least + math.log(RATIO_OF_TWO), least, own)
    return fast


def _without_scale(known: Mask, slow: Mask, classes: Sequence[Ints]) -> Mask:
    """Places that seem well and may not be: something is slow in so many of their steps that their
    own fast ones need not be without it, and they have no equals."""
    often = (known & slow.any(axis=0)).sum(axis=1) > (1 - FAST) * known.sum(axis=1)
    for places in classes:
        if known[places].any(axis=1).sum() > 1:
            often[places] = False
    return np.asarray(often)


def _found(seen: Observed, looked: _Looked, ways: Ways) -> Iterator[SlowLink]:
    """One device after the other, each explaining what the ones before it left."""
    cells = looked.cells
    for _ in range(MOST_LINKS):
        suspicion = suspect(ways, cells)
        if not (suspicion.total > 0).any():
            return
        best = int(np.argmax(suspicion.total))
        active = suspicion.scores[best] > 0
        if not _is_no_chance(cells, ways, best, active):
            return
        explained = np.isin(np.arange(len(cells.slow)), ways.places_of([best]))[:, None] & active
        rivals = suspect(ways, _without(cells, cells.slow & ~explained))
        yield _slow_link(seen, looked, ways, rivals, explained)
        cells = _without(cells, explained)


def _without(cells: Cells, some: Mask) -> Cells:
    """As if nobody had seen some of them."""
    return Cells(cells.known & ~some, cells.slow & ~some)


def _is_no_chance(cells: Cells, ways: Ways, carrier: int, active: Mask) -> bool:
    """Whether a device is slow more often than places are for no reason.

    Slow steps come in episodes, so these are counted, unless one of them lasts.
    """
    places = ways.places_of([carrier])
    others = cells.slow.copy()
    others[np.ix_(places, np.flatnonzero(active))] = False
    looked_at = cells.known.any(axis=0)
    own, stray = Runs.of(active[None, looked_at]), Runs.of(others[:, looked_at])
    often, elsewhere = own.length.size, stray.length.size
    if own.longest >= max(LASTING, TIMES_PASSING * stray.passing):
        often, elsewhere = int(own.length.sum()), int(stray.length.sum())
    elif often < 2:
        return False
    chance = (elsewhere + 1) / (int(cells.known.sum()) + 2)
    steps = int(cells.known[places].any(axis=0).sum())
    return log_tail(often, steps, chance) + math.log(len(cells.slow)) < math.log(FALSE_ALARMS)


def _slow_link(
    seen: Observed, looked: _Looked, ways: Ways, suspicion: Suspicion, explained: Mask
) -> SlowLink:
    active = np.asarray(explained.any(axis=0))
    signs = noticed(seen, active)
    against = speak_against(seen, signs, ways.carriers)
    chance = probabilities(ways, suspicion, against)
    order = np.argsort(-chance, kind="stable")
    best = int(order[0])
    through = ways.places_of([best])
    columns = np.flatnonzero(active)
    slow = looked.cells.slow[np.ix_(through, columns)]
    cost = np.where(slow, _excess_ns(looked, through, columns), 0.0)
    ratio = np.exp(stats.median(looked.excess[np.ix_(through, columns)][slow]))
    at = int(np.argmax(cost.sum(axis=1)))
    return SlowLink(
        _suspects(ways.carriers, chance), _ranks(seen, ways.carriers, chance),
        looked.paces.places[int(through[at])], int((slow.mean(axis=1) > 0.5).sum()), len(through),
        columns, float(ratio), _lost(seen, looked, through, cost, explained, ways.carriers[best]),
        _signs(signs, against),
    )  # fmt: skip


def _lost(
    seen: Observed, looked: _Looked, through: Ints, cost: Floats, explained: Mask, best: Carrier
) -> float:  # fmt: skip
    """Per step in which the device was slow."""
    active, slow = np.asarray(explained.any(axis=0)), looked.cells.slow
    calm = (np.arange(active.size) >= seen.line.warm_up) & ~slow.any(axis=0)
    others = int((slow & ~explained)[:, active].sum())
    shared = bool(looked.guilty[active].any()) or others > STRAYS * int((slow & explained).sum())
    longest = longest_delay([looked.paces.places[at] for at in through.tolist()], cost)
    costliest = looked.paces.places[int(through[int(np.argmax(cost.sum(axis=1)))])]
    longest = min(longest, idle_ns(seen, costliest.members, active))
    return lost_per_step(longest, seen.line.job_period_ns, active, calm, shared,
                         best.kind == "fabric")  # fmt: skip


def _signs(signs: Sequence[Noticed], against: Floats) -> tuple[str, ...]:
    return tuple(sign.metric for sign in signs) if (against > 1).any() else ()


def _excess_ns(looked: _Looked, places: Ints, columns: Ints) -> Floats:
    """By how much transfers took longer than in fast steps."""
    at = np.ix_(places, columns)
    taken = np.nan_to_num(looked.paces.taken_ns[at])
    return np.maximum(taken - taken * np.exp(-np.nan_to_num(looked.excess[at])), 0.0)


def _suspects(carriers: Sequence[Carrier], chance: Floats) -> tuple[tuple[Carrier, float], ...]:
    """The likeliest, ranks of one device together: a host's NVLink has one name."""
    total: dict[tuple[str, str], tuple[Carrier, float]] = {}
    for at in np.argsort(-chance, kind="stable").tolist():
        if chance[at] < LEAST_LIKELY and total:
            break
        one = carriers[at]
        known, so_far = total.get((one.kind, one.name), (one, 0.0))
        total[one.kind, one.name] = (known, so_far + float(chance[at]))
    ranked = sorted(total.values(), key=lambda pair: -pair[1])
    return tuple(ranked[:NAMED])


def _ranks(seen: Observed, carriers: Sequence[Carrier], chance: Floats) -> tuple[int, ...]:
    """Who is behind whatever it is, if that is clear and not everybody."""
    behind: dict[tuple[int, ...], float] = {}
    for at in np.flatnonzero(chance >= LEAST_LIKELY).tolist():
        ranks = carriers[at].ranks
        behind[ranks] = behind.get(ranks, 0.0) + float(chance[at])
    ranks = max(behind, key=lambda one: behind[one], default=())
    if not ranks:
        return ()
    sure = behind[ranks] >= SUREST_RANKS and len(ranks) < len(seen.line.ranks)
    return ranks if sure else ()

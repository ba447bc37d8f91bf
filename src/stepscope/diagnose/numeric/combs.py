"""Events at regular distances: combs of slots, of which most have an event.

    step      0         50        100       150       200
    events    .    x    |    .    |  x      |         |        | slot, x an event beside the comb
    comb                50        100       150       200      distance 50, 4 slots, 4 hits

Source: ours. A comb is judged against events at random places. Of a process whose gaps are
geometric and at least `APART` steps (neighbouring events count as one), any slot has an event with
a chance of at most c, whatever the other slots have (`most_chance`). So the hits of a given comb
are at most binomial. The comb itself was chosen by the data: by one pair of its events, by the
slots between them and by its ends; the first two hits are its own and the tail is multiplied by the
number of such choices (Bonferroni). The density of events is taken within the comb, its own events
included, so a dense burst of events makes no comb.
For a comb in steps from the first event to the last, the only one with these ends, chance is
counted instead of bounded (`_log_share`): of all ways to place the events between its ends, those
that make a comb at least as unlikely. It has most of the false alarms, because few other events lie
beside the comb where all long steps have one cause, and all other combs share the rest.
Distances are looked for in steps (exactly) and in seconds (within about a step), separately: a
checkpoint comes every so many steps, a timer every so many seconds.
Cost: O(longest distance x events) in steps; O(events^2) for each of a few distances in seconds.
Cannot see: distances below `LEAST_DISTANCE`, or fewer than `LEAST_HITS` events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from stepscope.diagnose.numeric.chance import log_tail
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints, Mask

LEAST_DISTANCE = 3
"""Steps between two events: with every second step, neither of the two is the unusual one. Our
choice."""
APART = 2
"""Steps between the begins of two events, because neighbouring slow steps are one. Definition."""
LEAST_HITS = 5
"""Events of a comb: four at random places pass the limit below only in long jobs. Statistics."""
REGULAR = 0.8
"""Part of the slots that must have an event, as in `step_time`. Our simulator."""
ENDS = 0.8
"""Part of the false alarms that is left to combs from the first event to the last: a fifth of the
slots may be empty, and as many events may lie beside a comb. Our choice."""
MOST_EVENTS = 500
"""With more events than this they are not rare, and the search would take seconds. Our choice."""
LAGS = 3
"""Distances in seconds are looked for between an event and this many of the next ones: one slot in
five may be empty, and other events lie between. Our choice."""
GUESSES = 5
"""The most frequent distances that are tried in seconds. Our choice."""
WINDOW_STEPS = 0.75
"""A moment lies anywhere in the step that it makes slow: half a step to each side of the middle,
and half as much again for the error of the fit. Statistics."""
SLACK = 0.005
"""Timers are late by so much of their distance: 0.3 s a minute, as services that check once a
second. Our choice."""

Unit = Literal["steps", "seconds"]


@dataclass(frozen=True)
class Axis:
    """The steps that were judged: their numbers and begins, in order."""

    steps: Ints
    begins_ns: Ints
    typical_ns: float

    @cached_property
    def since_begin(self) -> Floats:
        """When each step began, in ns since the first: nanoseconds since 1970 do not fit a
        float64."""
        return np.asarray(self.begins_ns - self.begins_ns[0], np.float64)


@dataclass(frozen=True)
class Comb:
    """Events that recur: `distance` is in steps, or in ns if the unit is seconds."""

    unit: Unit
    distance: float
    columns: Ints
    """The columns of its events."""
    slots: int
    log_chance: float
    """Logarithm of the bound on its chance among random events."""
    either: float | None = None
    """The distance in the other unit, if that fits as well: steps were too even to tell."""


def combs(axis: Axis, events: Ints, tests: int, most: int) -> list[Comb]:
    """The combs of events, the least likely first; the next ones without the events of the first.

    Args:
        events: columns in which events begin.
        tests: how many series are looked at in all.
        most: how many combs may be found.
    """
    limit = math.log(FALSE_ALARMS / max(tests, 1))
    found: list[Comb] = []
    while len(found) < most and (comb := best(axis, events)) and comb.log_chance <= limit:
        found.append(comb)
        events = events[~np.isin(events, comb.columns)]
    return found


def best(axis: Axis, events: Ints) -> Comb | None:
    """The comb that is least likely by chance, in the unit that fits better."""
    if not LEAST_HITS <= events.size <= MOST_EVENTS:
        return None
    in_steps, in_seconds = _in_steps(axis, events), _in_seconds(axis, events)
    known = [one for one in (in_steps, in_seconds) if one is not None]
    if not known:
        return None
    first, *others = sorted(known, key=lambda one: one.log_chance)
    also = [one for one in others if _is_same(first, one)]
    return replace(first, either=also[0].distance if also else None)


def _is_same(one: Comb, other: Comb) -> bool:
    """Whether a comb in the other unit has the same events."""
    both = np.intersect1d(one.columns, other.columns).size
    return both >= max(one.columns.size, other.columns.size) * (REGULAR + 1) / 2


def _in_steps(axis: Axis, events: Ints) -> Comb | None:
    number = axis.steps[events]
    longest = int(number[-1] - number[0]) // (LEAST_HITS - 1)
    found = (_every(axis, events, distance) for distance in range(LEAST_DISTANCE, longest + 1))
    return min((one for one in found if one is not None), key=lambda one: one.log_chance,
               default=None)  # fmt: skip


def _every(axis: Axis, events: Ints, distance: int) -> Comb | None:
    """The comb of one distance in steps, at the place with most events."""
    place = axis.steps[events] % distance
    often = np.bincount(place)
    if often.max() < LEAST_HITS:
        return None
    own = events[place == often.argmax()]
    inside = axis.steps[own[0] : own[-1] + 1]
    slots = int((inside % distance == often.argmax()).sum())
    found = _judged(Comb("steps", float(distance), own, slots, 0.0), events, 1.0)
    if found is None or (own[0], own[-1]) != (events[0], events[-1]):
        return found
    counted = _log_share(inside.size, int(inside[-1] - inside[0]), events.size, found)
    return replace(found, log_chance=min(counted - math.log(ENDS), found.log_chance))


def _log_share(columns: int, apart: int, events: int, comb: Comb) -> float:
    """Logarithm of the share of placements of events between the ends of a comb, `APART` columns
    from each other, that make a comb with these ends that is at least as unlikely.

    Args:
        columns: from its first event to its last.
        apart: the same in steps.
    """
    free, hits = columns - 2 * APART, comb.columns.size
    found = _log_ways(comb.slots, hits, free, events)
    fits = [apart // distance + 1 for distance in range(LEAST_DISTANCE, apart + 1)
            if apart % distance == 0]  # fmt: skip
    others = {(slots, number) for slots in fits for number in range(LEAST_HITS, events + 1)
              if REGULAR * slots <= number <= slots}  # fmt: skip
    others -= {(comb.slots, hits)}
    logs = [_log_ways(slots, number, free, events) for slots, number in others]
    rarer = [found, *(log for log in logs if log <= found)]
    ways = _log_choose(free - (APART - 1) * (events - 3), events - 2)
    return float(np.logaddexp.reduce(rarer)) - ways


def _log_ways(slots: int, hits: int, free: int, events: int) -> float:
    """Logarithm of the number of placements with these hits, at most."""
    return _log_choose(slots - 2, hits - 2) + _log_choose(free - (hits - 2), events - hits)


def _log_choose(of: int, some: int) -> float:
    if not 0 <= some <= of:
        return -math.inf
    return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)


def _judged(comb: Comb, events: Ints, wide: float) -> Comb | None:
    """The comb with its chance; None if too many of its slots are empty.

    Args:
        wide: how many steps a slot has room for.
    """
    hits = comb.columns.size
    if hits < LEAST_HITS or hits < REGULAR * comb.slots:
        return None
    first, last = int(comb.columns[0]), int(comb.columns[-1])
    inside = int(((events >= first) & (events <= last)).sum())
    chance = min(most_chance(inside, last - first + 1) * wide, 1.0)
    choices = math.log(max(events.size * (events.size - 1) / 2, 1)) + 2 * math.log(comb.slots)
    choices += math.log(comb.slots) if comb.unit == "seconds" else 0.0
    tail = log_tail(hits - 2, max(comb.slots, hits) - 2, chance)
    return replace(comb, log_chance=min(tail + choices - math.log(1 - ENDS), 0.0))


def most_chance(events: int, columns: int) -> float:
    """The largest chance that a step has an event, whatever the others have.

    With gaps of 2, 3, ... steps and probabilities p, p(1-p), ..., a place between two events at
    least two steps away has the odds p / (1-p)^2.
    """
    p = events / max(columns - (APART - 1) * events, 1)
    if p >= 1:
        return 1.0
    odds = p / (1 - p) ** APART
    return odds / (1 + odds)


def _in_seconds(axis: Axis, events: Ints) -> Comb | None:
    at = axis.since_begin[events]
    found = [_timed(axis, events, at, distance) for distance in _distances(axis, at)]
    return min((one for one in found if one is not None), key=lambda one: one.log_chance,
               default=None)  # fmt: skip


def _distances(axis: Axis, at: Floats) -> Floats:
    """The most frequent distances between an event and one of the next few."""
    apart = np.sort(np.concatenate([at[lag:] - at[:-lag] for lag in range(1, LAGS + 1)]))
    apart = apart[(apart >= LEAST_DISTANCE * axis.typical_ns)
                  & (apart <= (at[-1] - at[0]) / (LEAST_HITS - 1) + axis.typical_ns)]  # fmt: skip
    found: list[float] = []
    while apart.size and len(found) < GUESSES:
        stop = np.searchsorted(apart, apart + axis.typical_ns * 2 + SLACK * apart, side="right")
        first = int(np.argmax(stop - np.arange(apart.size)))
        found.append(float(np.median(apart[first : stop[first]])))
        apart = np.delete(apart, np.s_[first : stop[first]])
    return np.array(found)


def _timed(axis: Axis, events: Ints, at: Floats, distance: float) -> Comb | None:
    """The comb of about this distance in ns, begun at the event that reaches most others."""
    grown = _grown(axis, at, distance)
    row = int(np.argmax(grown.hits.sum(axis=1)))
    hit = grown.hits[row]
    if hit.sum() < LEAST_HITS:
        return None
    turn, first = np.unique(grown.turns[row, hit], return_index=True)  # one event per slot
    distance = float(grown.distance[row])
    slots = _slots(axis, float(grown.begin[row]), distance, turn)
    comb = Comb("seconds", distance, events[hit][first], slots, 0.0)
    half = WINDOW_STEPS * axis.typical_ns + SLACK * distance
    return _judged(comb, events, 2 * half / axis.typical_ns)


@dataclass(frozen=True)
class _Grown:
    """Combs begun at each event: distances, begins; slot numbers and hits by `[comb, event]`."""

    distance: Floats
    begin: Floats
    turns: Ints
    hits: Mask


def _grown(axis: Axis, at: Floats, distance: float) -> _Grown:
    """Fits a line through the events near the slots, with twice as many slots each time.

    The error of the distance grows with the number of slots, so it must be fitted on the way.
    """
    each, begin = np.full(at.size, distance), at.copy()
    reach, whole = 2.0, (at[-1] - at[0]) / max(distance, 1.0)
    turns, hits = _hits(axis, at, begin, each, reach)
    while True:
        begin, each = _fitted(at, begin, each, turns, hits)
        turns, hits = _hits(axis, at, begin, each, reach)
        if reach > 2 * whole:
            return _Grown(each, begin, turns, hits)
        reach *= 2


def _hits(axis: Axis, at: Floats, begin: Floats, each: Floats, reach: float) -> tuple[Ints, Mask]:
    turns = np.rint((at - begin[:, None]) / each[:, None])
    apart = np.abs(at - begin[:, None] - turns * each[:, None])
    half = WINDOW_STEPS * axis.typical_ns + SLACK * each[:, None]
    near = np.abs(turns) <= reach
    return turns.astype(np.int64), np.asarray((apart <= half) & near)


def _fitted(
    at: Floats, begin: Floats, each: Floats, turns: Ints, hits: Mask
) -> tuple[Floats, Floats]:
    """Least squares of the times of hits by their slot numbers."""
    weight = hits.astype(np.float64)
    count = np.maximum(weight.sum(axis=1), 1.0)
    middle = (weight * turns).sum(axis=1) / count
    mean = (weight * at).sum(axis=1) / count
    from_middle = weight * (turns - middle[:, None])
    power = (from_middle * turns).sum(axis=1)
    slope = (from_middle * (at - mean[:, None])).sum(axis=1) / np.maximum(power, 1e-9)
    usable = (power > 0) & (slope > each / 2)
    each = np.where(usable, slope, each)
    return np.where(usable, mean - each * middle, begin), each


def _slots(axis: Axis, begin: float, distance: float, turn: Ints) -> int:
    """The slots from the first hit to the last that have an event or lie in recorded steps."""
    empty = np.setdiff1d(np.arange(turn[0], turn[-1] + 1), turn)
    moments = begin + empty * distance
    nearest = np.maximum(np.searchsorted(axis.since_begin, moments, side="right") - 1, 0)
    recorded = moments - axis.since_begin[nearest] <= 2 * axis.typical_ns
    return turn.size + int(recorded.sum())

"""Orders to profile the same steps on all ranks: when one is written, and which one counts.

Every processor of a job lists the folder `control/` every `Timing.poll_s`. One that detects that
the job is slower or blocked writes an order there, unless it has seen one. Two may do so at once,
neither having seen the other's: at most a poll and the delay of the store lie between them. So each
processor lists the folder once more when `Timing.settle_s` have passed since it saw an order, and
then obeys the first of all that overlap, by name. All see the same ones by then, so all obey the
same one, without locks and without a leader. An order by hand comes before one that was detected.

EROICA (section 4.1) has rank 0 compute the steps, "the start set a few steps ahead to ensure no
worker would miss it", and others poll; here any host may.

Pure: times are given, and orders are what was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from random import Random
from typing import Literal

from stepscope.processor.state.pace import Now
from stepscope.store.layout import safe_name
from stepscope.wire.profiling import LONGEST_SECONDS, ProfileOrder, Why

WINDOW_STEPS = 20
"""Of a window. Our choice: a loader's turn of eight workers comes twice."""
WINDOW_SECONDS = 20.0
"""A window has fewer steps if they would take longer than this; EROICA, section 4.1."""
FEWEST_STEPS = 2
"""Of a window with long steps. Our choice: one may be odd."""
COOL_DOWN_SECONDS = 600.0
"""Between two windows for the same reason. Our choice: what is still slow was profiled."""
MOST_PER_HOUR = 3
"""Windows that were not asked for by hand. Our choice: three of 20 s are 1.7 % of an hour."""
MOST_RANKS = 1_024
"""Jobs with more profile a sample. Our choice: with fewer ranks all are profiled, as EROICA does
with thousands."""
PEERS = 256
"""Ranks drawn at random in larger jobs, beside those of the host that detected and those that each
host suspects (KAIR, section III-A: suspects "and a random subset of their peers"). Our choice."""
FOLDER_POLL_SECONDS, BUCKET_POLL_SECONDS = 1.0, 2.0
"""Listing `control/` is 0.1 ms of work in a folder, and a request to a bucket (measured)."""
RANKS_PER_POLL_SECOND = 8_192
"""In a bucket, jobs of more than 16,384 ranks poll less often, so that all their hosts of eight
make about a thousand requests a second: S3 serves 5,500 for each prefix. Our choice."""
DELAY_SECONDS = 0.5
"""From writing an order until a listing on another host shows it. Our choice."""
RELAY_SECONDS = 1.0
"""From a processor to a rank's training thread: a tick, the sender's turn, some slack. Our
choice."""
AT_ONCE = -1
_HOUR_NS = 3_600_000_000_000
_OVER_NS = 60_000_000_000
"""After which an order that begins at once has begun everywhere."""


@dataclass(frozen=True)
class Timing:
    """How long it takes until all processors of a job know an order."""

    poll_s: float
    delay_s: float

    @classmethod
    def of(cls, *, is_local: bool, world_size: int) -> Timing:
        """The same on all hosts of a job."""
        if is_local:
            return cls(FOLDER_POLL_SECONDS, DELAY_SECONDS)
        poll_s = max(BUCKET_POLL_SECONDS, world_size / RANKS_PER_POLL_SECOND)
        return cls(poll_s, DELAY_SECONDS)

    @property
    def settle_s(self) -> float:
        """After the first sight of an order, listings show all that compete with it.

        Somebody may write one until a poll after this one is visible, and it may then take as long
        to be visible as this one has.
        """
        return self.poll_s + 2 * self.delay_s

    @property
    def lead_s(self) -> float:
        """From the decision to profile until every rank has been asked."""
        seen_s = self.delay_s + self.poll_s
        return seen_s + self.settle_s + self.poll_s + RELAY_SECONDS


def order(
    why: Why, now: Now | None, timing: Timing, host: str, ranks: tuple[int, ...], now_ns: int
) -> ProfileOrder:
    """The order to profile a few steps as soon as every rank can; without `now`, at once."""
    moment = datetime.fromtimestamp(now_ns / 1e9, timezone.utc)
    window = f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03}Z-{safe_name(host)[:60]}"
    if now is None:
        return ProfileOrder(window, AT_ONCE, AT_ONCE, ranks, WINDOW_SECONDS, why, now_ns)
    first = _first_step(now, timing.lead_s, now_ns)
    count = min(WINDOW_STEPS, max(FEWEST_STEPS, int(WINDOW_SECONDS / now.slow_step_s)))
    seconds = max(WINDOW_SECONDS, 2 * count * now.slow_step_s)
    last = first + count - 1
    return ProfileOrder(window, first, last, ranks, min(seconds, LONGEST_SECONDS), why, now_ns)


def _first_step(now: Now, lead_s: float, now_ns: int) -> int:
    """The first step that begins after the lead time, if steps are as short as they may become."""
    later_s = max((now_ns - now.ended_ns) / 1e9, 0.0) + lead_s
    return now.step + 2 + math.floor(later_s / now.step_s)


def ranks_to_profile(world_size: int, here: Iterable[int], seed: str) -> tuple[int, ...]:
    """All (none named) up to `MOST_RANKS`; beyond, those of this host and random peers."""
    if world_size <= MOST_RANKS:
        return ()
    peers = Random(seed).sample(range(world_size), PEERS)
    return tuple(sorted({*here, *peers}))


Fate = Literal["new", "obeyed", "lost", "late"]
"""Of an order here: not decided yet, ranks were asked, another one counts, it came too late."""


@dataclass
class _Known:
    order: ProfileOrder
    seen_s: float
    fate: Fate = "new"


@dataclass
class Orders:
    """The orders of one job that this processor has seen."""

    _known: dict[str, _Known] = field(default_factory=dict)
    _listed_s: float = 0.0

    def see(self, orders: Iterable[ProfileOrder], listed_s: float) -> None:
        """Takes what is new in a listing, and when that began, by a clock that is never set."""
        self._listed_s = listed_s
        for one in orders:
            self._known.setdefault(one.window, _Known(one, listed_s))

    def decided(self, step: int, settle_s: float, now_ns: int) -> list[Decided]:
        """Orders whose ranks are to be asked now, and orders that came too late for that."""
        waiting = [one for one in self._known.values() if one.fate == "new"]
        for one in waiting:
            if one.fate == "new" and not _may_begin(one.order, step, now_ns):
                one.fate = "late"
            elif one.fate == "new" and self._listed_s - one.seen_s >= settle_s:
                self._decide(one)
        return [Decided(one.order, one.fate) for one in waiting if one.fate in ("obeyed", "late")]

    def is_pending(self, step: int, now_ns: int) -> bool:
        """Whether a window is under way or to come, so that no other may be ordered."""
        live = (one for one in self._known.values() if one.fate in ("new", "obeyed"))
        return any(not _has_ended(one.order, step, now_ns) for one in live)

    def may_write(self, why: Why, now_ns: int) -> bool:
        """Whether cool-down and budget allow an order that nobody asked for by hand."""
        orders = [one.order for one in self._known.values() if one.fate != "lost"]
        recent = [one for one in orders if one.why != "user" and now_ns - one.asked_ns < _HOUR_NS]
        since_ns = now_ns - round(COOL_DOWN_SECONDS * 1e9)
        resting = any(one.why == why and one.asked_ns > since_ns for one in recent)
        return not resting and len(recent) < MOST_PER_HOUR

    def _decide(self, one: _Known) -> None:
        """Obeys the first of all that overlap with this one; the others never are."""
        live = [other for other in self._known.values() if other.fate in ("new", "obeyed")]
        rivals = [other for other in live if _overlap(one.order, other.order)]
        obeyed = (other for other in rivals if other.fate == "obeyed")
        first = next(obeyed, None) or min(rivals, key=lambda other: _precedence(other.order))
        for other in rivals:
            other.fate = "obeyed" if other is first else "lost"


@dataclass(frozen=True)
class Decided:
    """An order, and what becomes of it on this host."""

    order: ProfileOrder
    fate: Fate


def _precedence(one: ProfileOrder) -> tuple[bool, str]:
    return one.why != "user", one.window


def _overlap(one: ProfileOrder, other: ProfileOrder) -> bool:
    if one.first_step < 0 or other.first_step < 0:
        return abs(one.asked_ns - other.asked_ns) < max(one.seconds, other.seconds) * 1e9
    return one.first_step <= other.last_step and other.first_step <= one.last_step


def _may_begin(one: ProfileOrder, step: int, now_ns: int) -> bool:
    if one.first_step < 0:
        return not _has_ended(one, step, now_ns)
    return step < one.first_step


def _has_ended(one: ProfileOrder, step: int, now_ns: int) -> bool:
    if one.first_step < 0:
        return now_ns - one.asked_ns > one.seconds * 1e9 + _OVER_NS
    return step >= one.last_step

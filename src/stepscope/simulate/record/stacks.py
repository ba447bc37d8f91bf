"""Tables `stacks` and `pauses`: where each main thread was, as an external sampler sees it.

A sampler takes ten samples a second. A run of equal samples is one row, and what happens between
two samples is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np

from stepscope.simulate.conditions import Stall
from stepscope.simulate.engine import NEVER
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.world import World
from stepscope.trace import DATA_LOAD
from stepscope.window import Ints

PERIOD_NS = 100_000_000
ROOT = "<module> (train.py:88);main (train.py:64);"
LOADING = (
    ROOT + "train (train.py:41);__next__ (dataloader.py:708);_try_get_data (dataloader.py:1131)"
)
ISSUING = ROOT + "train (train.py:47);forward_backward (schedules.py:530);forward (block.py:212)"
COUNTING = ISSUING + (
    ";_maybe_dtoh_and_synchronize (token_dispatcher.py:712);synchronize (streams.py:92)"
)
"""The host must know the token counts before the all-to-all; Megatron-LM waits for them here."""
WAITING = ROOT + "train (train.py:52);step (optimizer.py:380);synchronize (streams.py:92)"
SAVING = ROOT + "train (train.py:57);save_checkpoint (checkpointing.py:310)"
EVALUATING = ROOT + "train (train.py:60);evaluate (training.py:880)"
NO_GIL = frozenset({WAITING, COUNTING, LOADING})


@dataclass(frozen=True)
class Part:
    """What hosts did from one moment to another, by place; empty if the end is not later."""

    frames: str
    begin: Ints
    end: Ints
    active: bool = True


@dataclass
class StackRows:
    """One row per run of equal samples of one main thread."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"thread", "frames"})))
    until: Ints = field(init=False)
    """Up to when each host has been sampled."""

    def __post_init__(self) -> None:
        self.until = np.zeros(self.world.scenario.ranks, np.int64)

    def add(self, moment: Moment, watched_until_ns: int) -> None:
        """Records what hosts did in a step, and between it and the previous step."""
        parts = sorted(self.parts(moment), key=_seen_as)
        for _, alike in groupby(parts, _seen_as):
            self._sample(list(alike), watched_until_ns)
        self.until = np.minimum(moment.times.done.ravel(), watched_until_ns)

    def parts(self, moment: Moment) -> list[Part]:
        """What hosts did in a step and before it, without overlap."""
        start, done = moment.start.ravel(), moment.times.done.ravel()
        loaded, issued = self._loaded(moment), self._issued(moment)
        parts = [
            Part(self._between(moment.step), self.until, start),
            Part(LOADING, start, loaded, active=False),
            *self._issuing(moment, loaded, issued),
            Part(WAITING, issued, done),
        ]
        stalls = [self._stalled(moment, stall) for stall in moment.stalls]
        for stall in stalls:
            parts = [piece for part in parts for piece in _without(part, stall)]
        return [*parts, *stalls]

    def _issuing(self, moment: Moment, since: Ints, until: Ints) -> Iterator[Part]:
        """Hosts issue operations, and now and then wait for a result."""
        stages = np.arange(self.world.cluster.stages)
        for slots in self._waits:
            begin, end = (table[slots, stages].ravel()
                          for table in (moment.times.issued, moment.times.end))  # fmt: skip
            yield Part(ISSUING, since, begin)
            yield Part(COUNTING, begin, end)
            since = end
        yield Part(ISSUING, since, until)

    @cached_property
    def _waits(self) -> Ints:
        """`[wait, stage]`: the slots in which hosts wait within a step, in order."""
        program = self.world.program
        found = [[program.slot[op.key] for op in ops if op.kind == "sync"][:-1]
                 for ops in program.stages]  # fmt: skip
        return np.array(found, np.int64).T

    def _between(self, step: int) -> str:
        """The call stack of what hosts did before a step."""
        noise = self.world.scenario.noise
        saved = noise.checkpoint_every and step % noise.checkpoint_every == 0
        return SAVING if saved or not noise.evaluate_every else EVALUATING

    def _loaded(self, moment: Moment) -> Ints:
        slot = self.world.program.slot[(DATA_LOAD,)]
        loaded: Ints = moment.times.issued[slot].ravel()
        return loaded

    def _issued(self, moment: Moment) -> Ints:
        """When each host had issued everything, or stalled for good."""
        last = self._last
        stages = np.arange(len(last))
        return moment.times.issued[last, stages].ravel()

    @cached_property
    def _last(self) -> Ints:
        """Per stage, what its hosts wait for at the end of the step."""
        return np.array([order[-1] for order in self.world.program.host_order])

    def _stalled(self, moment: Moment, stall: Stall) -> Part:
        """A stall ends when the operation after it is issued, if it ever is."""
        places = stall.places
        issued = moment.times.issued.reshape(len(self.world.ops), -1)[stall.slot, places]
        begin, end = (np.zeros(self.world.scenario.ranks, np.int64) for _ in range(2))
        stood = np.array([self._before(moment, stall.slot, int(place)) for place in places])
        begin[places] = np.where(issued < NEVER, issued - stall.lasting_ns, stood)
        end[places] = issued
        return Part(f"{ROOT}train (train.py:47);{stall.frames}", begin, end, stall.active)

    def _before(self, moment: Moment, slot: int, place: int) -> int:
        """When a host had issued the operation before this one."""
        stage, within = divmod(place, self.world.cluster.per_stage)
        at = self._turn[stage][slot]
        if at == 0:
            return int(moment.start[stage, within])
        return int(moment.times.issued[self.world.program.host_order[stage][at - 1], stage, within])

    @cached_property
    def _turn(self) -> list[dict[int, int]]:
        """Per stage, the position of each slot in the order in which its hosts issue them."""
        orders = self.world.program.host_order
        return [{int(slot): at for at, slot in enumerate(order)} for order in orders]

    def _sample(self, parts: Sequence[Part], until_ns: int) -> None:
        """Adds rows for parts that look the same. Each rank has its own sampling times."""
        begin, end = (np.minimum(np.stack([getattr(part, edge) for part in parts]), until_ns)
                      for edge in ("begin", "end"))  # fmt: skip
        first = -(-(begin - self._phase) // PERIOD_NS)
        count = -(-(end - self._phase) // PERIOD_NS) - first
        places, first, count = _runs(first, count)
        start, part = first * PERIOD_NS + self._phase[places], parts[0]
        self.rows.add(
            rank=self.world.cluster.rank_of[places].astype(np.int32),
            thread=np.int32(self.rows.code("MainThread")),
            start_ns=self.clocks.show(start, places), duration_ns=count * PERIOD_NS,
            frames=np.int32(self.rows.code(part.frames)), active=np.bool_(part.active),
            gil=np.bool_(part.active and part.frames not in NO_GIL),
        )  # fmt: skip

    @cached_property
    def _phase(self) -> Ints:
        source = self.world.random.source("sampler")
        return source.integers(0, PERIOD_NS, self.world.scenario.ranks)


def _seen_as(part: Part) -> tuple[str, bool]:
    return part.frames, part.active


def _runs(first: Ints, count: Ints) -> tuple[Ints, Ints, Ints]:
    """The places, first samples and lengths of unbroken runs, from samples `[part, place]` in order
    of time."""
    place, part = np.nonzero((count > 0).T)
    first, count = first[part, place], count[part, place]
    fresh = np.ones(len(place), np.bool_)
    fresh[1:] = (place[1:] != place[:-1]) | (first[1:] != (first + count)[:-1])
    begins = np.flatnonzero(fresh)
    whole: Ints = np.add.reduceat(count, begins) if len(begins) else count
    return place[begins], first[begins], whole


def _without(part: Part, stall: Part) -> list[Part]:
    """A part without the time of a stall, in up to two pieces."""
    inside = (part.begin < stall.end) & (stall.begin < part.end) & (stall.begin < stall.end)
    if not inside.any():
        return [part]
    before = np.where(inside, np.minimum(part.end, stall.begin), part.end)
    after = np.where(inside, np.maximum(part.begin, stall.end), part.end)
    pieces = [(part.begin, before), (after, part.end)]
    return [Part(part.frames, a, b, part.active) for a, b in pieces if (a < b).any()]


@dataclass
class PauseRows:
    """One row per pause of the interpreter, as the hooks record them."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"kind"})))

    def add(self, moment: Moment) -> None:
        issued = moment.times.issued.reshape(len(self.world.ops), -1)
        for stall in moment.stalls:
            end = issued[stall.slot, stall.places]
            known = end < NEVER
            if stall.pause and known.any():
                self._add(moment.step, stall.pause, stall.places[known], end[known],
                          stall.lasting_ns[known])  # fmt: skip

    def _add(self, step: int, kind: str, places: Ints, end: Ints, lasted: Ints) -> None:
        self.rows.add(
            rank=self.world.cluster.rank_of[places].astype(np.int32), step=np.int64(step),
            kind=np.int32(self.rows.code(kind)),
            start_ns=self.clocks.show(end - lasted, places), duration_ns=lasted,
        )  # fmt: skip

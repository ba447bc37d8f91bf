"""Detects training steps from `DataLoader` and optimizer events.

EROICA (Guan et al., "EROICA: Online Performance Troubleshooting for Large-scale Model Training"),
section 4.1: a training iteration is a sequence of `dataloader.next()` calls followed by
`optimizer.step()` calls. M = 10 identical sequences in a row that start with the former and end
with the latter define *the* sequence. An iteration lasts from the first load to the last optimizer
step. After K = 200 events without a complete match the sequence is detected again. The job counts
as blocked when no event arrived for 5 average iterations.

Where we differ:
- the M sequences that led to the detection are reported afterwards, so no step is missed;
- during a new detection the old sequence still counts if it comes back, so that a long evaluation
  does not cost ten steps;
- a job without `DataLoader` has sequences of optimizer steps only, each starting where the
  previous one ended; if there was a load in the last `LONGEST` events, ten optimizer steps in a
  row are one iteration of many optimizers, not ten iterations;
- steps are numbered by completed optimizer steps, which are the same on all ranks of a synchronous
  job, also if one rank runs an evaluation; a new sequence continues numbering where the last
  iteration of the old one ended.

Cost: one vector comparison of at most `LONGEST` elements per event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from stepscope.wire.records import EventKind

IDENTICAL_SEQUENCES = 10
"""M of EROICA."""
REDETECT_AFTER = 200
"""K of EROICA: events without a complete match."""
BLOCKED_AFTER = 5.0
"""EROICA: average iterations of silence that mean the training is blocked."""
ON_THE_WAY_NS = 1_000_000_000
"""Silence that is no evidence: a busy rank sends twice a second."""
LONGEST = 512
"""Most events per iteration: 500 micro-batches of gradient accumulation."""
MOST_EVENTS = LONGEST * IDENTICAL_SEQUENCES
"""So many events are remembered: what the detection of the longest iteration looks at."""
_AVERAGE_OVER = 50
"""N of EROICA: the number of recent iterations in the average."""


@dataclass(frozen=True)
class Event:
    """One call of `dataloader.next()` or `optimizer.step()`. `ordinal` is the number of optimizer
    steps that finished before it."""

    kind: EventKind
    name: int
    start_ns: int
    end_ns: int
    ordinal: int

    @property
    def symbol(self) -> int:
        return self.name * 2 + self.kind


@dataclass(frozen=True)
class Step:
    """One training iteration."""

    step: int
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Sequence:
    """The training iteration sequence, and how optimizer steps map to steps."""

    symbols: tuple[int, ...]
    optimizer_steps: int
    offset: int

    def step_of(self, ordinal: int) -> int:
        return (ordinal + self.offset) // self.optimizer_steps

    def ordinals_of(self, step: int) -> tuple[int, int]:
        """The first and the last optimizer step of a step."""
        first = step * self.optimizer_steps - self.offset
        return max(first, 0), first + self.optimizer_steps - 1


class RecentEvents:
    """The newest events of a rank, in one block of memory that is taken at the start: as Python
    objects they took four times as much, and grew for 47 minutes of one step a second."""

    def __init__(self) -> None:
        self._rows = np.zeros((MOST_EVENTS, 5), dtype=np.int64)
        self._count = 0

    def add(self, event: Event) -> None:
        self._rows[self._count % MOST_EVENTS] = (
            event.kind, event.name, event.start_ns, event.end_ns, event.ordinal
        )  # fmt: skip
        self._count += 1

    def last(self, count: int) -> list[Event]:
        """The newest `count` events, oldest first; fewer if there are not so many."""
        first = max(self._count - min(count, MOST_EVENTS), 0)
        rows = self._rows[np.arange(first, self._count) % MOST_EVENTS]
        return [Event(EventKind(kind), *rest) for kind, *rest in rows.tolist()]


class StepTracker:
    """Takes one rank's events in order; returns its steps."""

    def __init__(self) -> None:
        self.sequence: Sequence | None = None
        self._events = RecentEvents()
        self._symbols = np.full(LONGEST, -1, dtype=np.int64)
        self._repeats = np.zeros(LONGEST, dtype=np.int64)
        self._partial: list[Event] = []
        self._unmatched = 0
        self._since_load = LONGEST
        self._previous_end_ns = 0
        self._next_ordinal = 0
        self._next_step = 0
        self._durations: deque[int] = deque(maxlen=_AVERAGE_OVER)
        self._average_ns = 0.0
        self._last_event_ns = 0

    def add(self, event: Event) -> list[Step]:
        """Takes the next event; returns the steps that it completed."""
        self._last_event_ns = event.end_ns
        self._events.add(event)
        self._since_load = 0 if event.kind == EventKind.LOAD else self._since_load + 1
        self._count_repeats(event.symbol)
        self._unmatched += 1
        done = self._match(event)
        if done or (self.sequence is not None and self._unmatched <= REDETECT_AFTER):
            return done
        return self._detect()

    def blocked(self, now_ns: int) -> bool:
        """EROICA's second condition: no event for five average iterations."""
        silence = now_ns - self._last_event_ns - ON_THE_WAY_NS
        return bool(self._durations) and silence > BLOCKED_AFTER * self.average_ns

    @property
    def last_event_ns(self) -> int:
        """When the newest event ended, by the clock of its process; 0 before the first."""
        return self._last_event_ns

    @property
    def average_ns(self) -> float:
        """Average duration of the recent steps; 0 before the first."""
        return self._average_ns

    def _count_repeats(self, symbol: int) -> None:
        """`_repeats[L-1]`: how many events in a row equalled the one L before each."""
        same = self._symbols == symbol
        self._repeats = np.where(same, self._repeats + 1, 0)
        self._symbols[1:] = self._symbols[:-1]
        self._symbols[0] = symbol

    def _match(self, event: Event) -> list[Step]:
        if self.sequence is None:
            return []
        symbols = self.sequence.symbols
        self._partial.append(event)
        if event.symbol != symbols[len(self._partial) - 1]:
            # an extra load, for example, costs that load and not the iteration that follows
            while not _begins_with(self._partial, symbols):
                self._partial.pop(0)
        if len(self._partial) < len(symbols):
            return []
        step = self._finish(self._partial)
        self._partial = []
        return [step]

    def _detect(self) -> list[Step]:
        """Adopts the shortest sequence that came M times in a row and looks like an iteration."""
        lengths = np.flatnonzero(self._repeats >= np.arange(1, LONGEST + 1) * _NEEDED) + 1
        for length in lengths.tolist():
            block = self._events.last(length * IDENTICAL_SEQUENCES)
            if self._is_iteration(block[:length]):
                return self._adopt(block, length)
        return []

    def _is_iteration(self, events: list[Event]) -> bool:
        """Loads first and an optimizer step last; or no loads, and none for a long time."""
        starts_right = events[0].kind == EventKind.LOAD or self._since_load >= LONGEST
        return starts_right and events[-1].kind == EventKind.OPTIMIZER

    def _adopt(self, block: list[Event], length: int) -> list[Step]:
        first = block[:length]
        optimizers = sum(event.kind == EventKind.OPTIMIZER for event in first)
        self.sequence = Sequence(
            tuple(e.symbol for e in first), optimizers, self._offset(block[-1].ordinal, optimizers)
        )
        self._partial = []
        iterations = [block[at : at + length] for at in range(0, len(block), length)]
        fresh = [events for events in iterations if events[0].start_ns >= self._previous_end_ns]
        return [self._finish(events) for events in fresh]

    def _offset(self, last_ordinal: int, optimizers: int) -> int:
        """Numbers whole iterations from where the last sequence ended; what is left over of
        it, less than an iteration, is a step of its own."""
        left_over = (last_ordinal + 1 - self._next_ordinal) % optimizers
        first_step = self._next_step + (left_over > 0)
        return first_step * optimizers - self._next_ordinal - left_over

    def _finish(self, events: list[Event]) -> Step:
        assert self.sequence is not None
        self._unmatched = 0
        first, last = events[0], events[-1]
        start = first.start_ns
        if first.kind == EventKind.OPTIMIZER and self._previous_end_ns:
            start = self._previous_end_ns
        self._previous_end_ns = last.end_ns
        self._durations.append(last.end_ns - start)
        # stored, because it is read twenty times a second
        self._average_ns = sum(self._durations) / len(self._durations)
        step = self.sequence.step_of(last.ordinal)
        self._next_ordinal, self._next_step = last.ordinal + 1, step + 1
        return Step(step, start, last.end_ns - start)


_NEEDED = IDENTICAL_SEQUENCES - 1


def _begins_with(events: list[Event], symbols: tuple[int, ...]) -> bool:
    """Whether a sequence begins with these events; checks the newest first, as it differs most."""
    if not events:
        return True
    return events[-1].symbol == symbols[len(events) - 1] and all(
        event.symbol == symbol for event, symbol in zip(events, symbols, strict=False)
    )

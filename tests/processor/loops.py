"""Training loops as the events they cause: one letter is one call, and takes a millisecond."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.processor.state.steps import Event, Step, StepTracker
from stepscope.wire.records import EventKind

MS = 1_000_000


@dataclass
class Loop:
    """Feeds a tracker. Lower case letters are loads, capitals optimizer steps."""

    tracker: StepTracker = field(default_factory=StepTracker)
    steps: list[Step] = field(default_factory=list)
    ordinal: int = 0
    now_ns: int = 0

    def run(self, events: str) -> Loop:
        for letter in events:
            kind = EventKind.OPTIMIZER if letter.isupper() else EventKind.LOAD
            event = Event(kind, ord(letter), self.now_ns, self.now_ns + MS, self.ordinal)
            self.steps += self.tracker.add(event)
            self.now_ns += MS
            self.ordinal += letter.isupper()
        return self

    @property
    def sequence(self) -> str:
        found = self.tracker.sequence
        return "" if found is None else "".join(chr(symbol // 2) for symbol in found.symbols)

    @property
    def numbers(self) -> list[int]:
        return [step.step for step in self.steps]

"""One training process and what it has told us, in the processor's memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from stepscope.processor.operators.communicators import Members
from stepscope.processor.operators.joiner import Joiner
from stepscope.processor.records.normalise import Records, Translation
from stepscope.processor.records.record_kinds import Kinds
from stepscope.processor.state.natives import StepEnds, is_native, with_ordinals
from stepscope.processor.state.steps import ON_THE_WAY_NS, StepTracker
from stepscope.window import NULL, Ints
from stepscope.wire.frames import GroupInfo, Hello
from stepscope.wire.records import COMM_DONE, UNKNOWN

PATIENT_STEPS = 0.5
"""As `hang.STOPPED_STEPS`: by then somebody may be missing, and fresh samples are wanted."""

USUAL_TIMES = 1.25
"""A job does not get on if an operator is in flight for longer than is usual by this: beside a slow
rank, in pipelines, and where a host is ahead of its device, some are in every step."""
USUAL_STEPS = 2.0
"""And no longer than this, whatever was usual."""
_USUAL_PACKETS = 16
"""Over which that is found: eight seconds."""

OpenKey = tuple[int, int, bool]
"""Of an operator in flight: its group, its number in it, and whether it is a send or a receive."""


@dataclass
class Producer:
    """One training process and what it has told us; native producers in it have their own."""

    hello: Hello
    python: Producer | None = None
    """Of a native one: the Python producer of its process, once it has been heard of."""
    names: dict[int, str] = field(default_factory=dict)
    groups: dict[str, GroupInfo] = field(default_factory=dict)
    parallelism: dict[str, int] = field(default_factory=dict)
    tracker: StepTracker = field(default_factory=StepTracker)
    step_ends: StepEnds = field(default_factory=StepEnds)
    held: list[tuple[Kinds, Records]] = field(default_factory=list)
    kernels: list[memoryview] = field(default_factory=list)
    kernels_bytes: int = 0
    kernels_since_ns: int | None = None
    kernels_until_ns: int = 0
    held_since_ns: int | None = None
    holding: bool = True
    open_ops: dict[OpenKey, Records] = field(default_factory=dict)
    lasted_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_USUAL_PACKETS))
    """The longest operators of recent packets."""
    has_calls: bool = False
    """It has told of operators."""
    joiner: Joiner | None = None
    """Of the one that tells most of a process that NCCL's plugin tells of."""
    blocked: bool = False

    @property
    def is_native(self) -> bool:
        return is_native(self.hello)

    @property
    def identity(self) -> Hello:
        """As its process is known."""
        return self.hello if self.python is None else self.python.hello

    @property
    def main(self) -> Producer:
        """The one of its process that tells most."""
        return self if self.python is None else self.python

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def offset_ns(self) -> int:
        return self.identity.wall_ns - self.identity.mono_ns

    @property
    def patience_ns(self) -> float:
        """For how long an operator may be in flight before the job does not get on."""
        step_ns, usual_ns = self.tracker.average_ns, max(self.lasted_ns, default=0)
        return max(PATIENT_STEPS * step_ns, min(USUAL_TIMES * usual_ns, USUAL_STEPS * step_ns))

    def note_durations(self, comm: Records) -> None:
        """Learns from operators how long they usually are in flight."""
        ended = comm["field"][(comm["flags"] == COMM_DONE) & (comm["field"][:, 5] != UNKNOWN)]
        if len(ended):
            self.lasted_ns.append(int((ended[:, 5] - ended[:, 4]).max()))

    def is_stuck(self, now_ns: int, part: float = 1.0) -> bool:
        """Whether an operator is in flight for longer than this part of its patience: one of which
        the end may be on its way is not known to be."""
        if not self.open_ops:
            return False
        enqueued = min(int(record["field"][0, 4]) for record in self.open_ops.values())
        in_flight_ns = now_ns - ON_THE_WAY_NS - self.offset_ns - enqueued
        return in_flight_ns > part * self.patience_ns

    def step_of(self, ordinal: int) -> int:
        if self.is_native:
            return NULL if self.python is None else self.python.known_step(ordinal)
        sequence = self.tracker.sequence
        return ordinal if sequence is None else sequence.step_of(ordinal)

    def known_step(self, ordinal: int) -> int:
        """The step, null where it is not known yet how many optimizer steps make one."""
        unknown = self.holding and self.tracker.sequence is None and not self.is_native
        return NULL if unknown else self.step_of(ordinal)

    def with_ordinals(self, records: Records) -> Records:
        """A native one's records, as the Python producer of its process can tell."""
        return records if self.python is None else with_ordinals(records, self.python.step_ends)

    def steps_at(self, times_ns: Ints) -> Ints:
        """The step at each time of its process's clock; null where only native ones tell of it."""
        if self.is_native:
            return np.full(len(times_ns), NULL, np.int64)
        steps = [self.known_step(one) for one in self.step_ends.ordinals(times_ns).tolist()]
        return np.array(steps, np.int64)

    def translation(self) -> Translation:
        return Translation(self.rank, self.offset_ns, self.names, self.step_of)

    def counts_loss_of(self, table: str) -> bool:
        """Whether rows of a table that it lost count: operators Python's hooks tell of as well."""
        return table != "comm_ops" or self.python is None

    def members(self) -> Members:
        """Who is in the communicators of its process."""
        groups = None if self.main.is_native else self.main.groups.values()
        return Members(self.names, self.rank, self.identity.world_size, groups)

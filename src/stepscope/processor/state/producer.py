"""One producer and what it has reported, in the processor's memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.errors import WireError
from stepscope.processor.operators.communicators import Members
from stepscope.processor.operators.joiner import Joiner
from stepscope.processor.records.normalise import Records, Translation
from stepscope.processor.records.record_kinds import Kinds
from stepscope.processor.state.natives import StepEnds, is_native, with_ordinals
from stepscope.processor.state.steps import ON_THE_WAY_NS, StepTracker
from stepscope.window import NULL, Ints
from stepscope.wire.frames import MAX_MEMBERS, GroupInfo, Hello, Names
from stepscope.wire.records import COMM_DONE, UNKNOWN

PATIENT_STEPS = 0.5
"""As `hang.STOPPED_STEPS`: by then a rank may be missing, and fresh samples are needed."""

USUAL_TIMES = 1.25
"""A job has stalled if an operator is outstanding for this many times as long as usual. Beside a
slow rank, in pipelines, and when a host runs ahead of its device, some are in every step."""
USUAL_STEPS = 2.0
"""And in any case after this many steps, whatever was usual."""
_USUAL_PACKETS = 16
"""The packets that the usual duration is taken from: eight seconds."""

MOST_NAMES = 1 << 17
"""Names of one connection. Python's hooks stop at 10,000; a large job has some thousand kernels."""

OpenKey = tuple[int, int, bool]
"""Key of an outstanding operator: group, number in it, and whether it is point-to-point."""


@dataclass
class Producer:
    """One producer and what it has reported; native producers of a process are separate ones."""

    hello: Hello
    python: Producer | None = None
    """For a native producer: the Python producer of its process, once it is connected."""
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
    parts: int = 1
    """One in how many parts of the time its kernels are recorded."""
    held_since_ns: int | None = None
    holding: bool = True
    open_ops: dict[OpenKey, Records] = field(default_factory=dict)
    lasted_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_USUAL_PACKETS))
    """The longest operators of recent packets."""
    has_calls: bool = False
    """It has reported operators."""
    joiner: Joiner | None = None
    """Set on the main producer of a process that has NCCL's plugin."""
    blocked: bool = False

    @property
    def is_native(self) -> bool:
        return is_native(self.hello)

    @property
    def identity(self) -> Hello:
        """How its process is known: the hello of the main producer."""
        return self.hello if self.python is None else self.python.hello

    @property
    def main(self) -> Producer:
        """The main producer of its process: the Python one if there is one."""
        return self if self.python is None else self.python

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def offset_ns(self) -> int:
        return self.identity.wall_ns - self.identity.mono_ns

    @property
    def patience_ns(self) -> float:
        """For how long an operator may be outstanding before the job counts as stalled."""
        step_ns, usual_ns = self.tracker.average_ns, max(self.lasted_ns, default=0)
        return max(PATIENT_STEPS * step_ns, min(USUAL_TIMES * usual_ns, USUAL_STEPS * step_ns))

    def check_room(self, new: Names) -> None:
        """Raises WireError if a connection announces more than any job has."""
        groups = self.groups | {group.id: group for group in new.groups}
        members = sum(len(group.ranks) for group in groups.values())
        if members > MAX_MEMBERS:
            raise WireError(f"{members} members of groups, at most {MAX_MEMBERS} are allowed")
        names = len(self.names.keys() | new.names.keys())
        if names > MOST_NAMES:
            raise WireError(f"{names} names, at most {MOST_NAMES} are allowed")

    def note_durations(self, comm: Records) -> None:
        """Learns how long operators usually are outstanding."""
        ended = comm["field"][(comm["flags"] == COMM_DONE) & (comm["field"][:, 5] != UNKNOWN)]
        if len(ended):
            self.lasted_ns.append(int((ended[:, 5] - ended[:, 4]).max()))

    def is_stuck(self, now_ns: int, part: float = 1.0) -> bool:
        """Whether an operator has been outstanding for longer than this part of `patience_ns`, not
        counting the time that the record of its end may take to arrive."""
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

    def ordinals_of(self, step: int) -> tuple[int, int]:
        """The first and the last optimizer step of a step, of a Python producer."""
        sequence = self.tracker.sequence
        return (step, step) if sequence is None else sequence.ordinals_of(step)

    def known_step(self, ordinal: int) -> int:
        """The step; null while it is unknown how many optimizer steps make one."""
        unknown = self.holding and self.tracker.sequence is None and not self.is_native
        return NULL if unknown else self.step_of(ordinal)

    def with_ordinals(self, records: Records) -> Records:
        """A native producer's records with ordinals from the Python producer of its process."""
        return records if self.python is None else with_ordinals(records, self.python.step_ends)

    def steps_at(self, times_ns: Ints) -> Ints:
        """The step at each time of its process's clock; null without a Python producer."""
        if self.is_native:
            return np.full(len(times_ns), NULL, np.int64)
        steps = [self.known_step(one) for one in self.step_ends.ordinals(times_ns).tolist()]
        return np.array(steps, np.int64)

    def translation(self) -> Translation:
        return Translation(self.rank, self.offset_ns, self.names, self.step_of)

    def counts_loss_of(self, table: str) -> bool:
        """Whether its lost rows of a table are losses: Python's hooks report operators, too."""
        return table != "comm_ops" or self.python is None

    def members(self) -> Members:
        """The members of the communicators of its process."""
        groups = None if self.main.is_native else self.main.groups.values()
        members = Members(self.names, self.rank, self.identity.world_size, groups)
        joiner = self.main.joiner
        return members if joiner is None else replace(members, placed=joiner.places.of)

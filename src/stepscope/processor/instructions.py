"""The instructions that `state` gives and `daemon` carries out, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.processor.records.normalise import Rows
from stepscope.trace import Job
from stepscope.wire.profiling import Profiled, ProfileOrder

_HOST_LEVEL = -1


@dataclass(frozen=True)
class Append:
    """Add rows to a table of a job."""

    job: str
    table: str
    rows: Rows


@dataclass(frozen=True)
class Confirm:
    """Once everything appended so far is stored, confirm to a producer that its losses are."""

    connection: int
    job: str


@dataclass(frozen=True)
class OpenOps:
    """All outstanding operators of a job on this host; replaces the previous list."""

    job: str
    rows: Rows


@dataclass(frozen=True)
class JobKnown:
    """A new job, or new facts about it: its store and this host's part of `job.json`."""

    job: str
    store: str
    fragment: Job


@dataclass(frozen=True)
class Watch:
    """Start sampling this process from outside."""

    job: str
    rank: int
    pid: int
    thread_id: int
    host: str = ""


@dataclass(frozen=True)
class Unwatch:
    """Stop sampling this process: it closed its connection."""

    job: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Left:
    """A rank's process announced that it ends by itself, and which exception ends it, if any."""

    job: str
    pid: int
    error: str | None
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exited:
    """The parent of a process reports how it ended: a status, or minus a signal."""

    pid: int
    returncode: int


@dataclass(frozen=True)
class Refuse:
    """Close a connection that sent something invalid."""

    connection: int
    why: str


@dataclass(frozen=True)
class Stalled:
    """A job makes no progress: sample its processes immediately."""

    job: str
    outstanding: Mapping[str, int]
    """Number of outstanding operators of the ranks served here, by host."""

    def rows(self, now_ns: int) -> Rows:
        """The observation as rows of `hardware`."""
        count = len(self.outstanding)
        return {
            "rank": [_HOST_LEVEL] * count,
            "host": list(self.outstanding),
            "metric": ["operators_in_flight"] * count,
            "ts_ns": [now_ns] * count,
            "value": [float(value) for value in self.outstanding.values()],
        }


@dataclass(frozen=True)
class StoreNow:
    """Store everything of a job and reply to the requester."""

    connection: int
    job: str
    finish: bool = False
    """The job has ended: summarize its windows of profiling first."""


@dataclass(frozen=True)
class Follow:
    """From now on, notify the requester whenever something of a job was stored."""

    connection: int
    job: str


@dataclass(frozen=True)
class Parent:
    """A launcher reports from now on which children of a process stop; one may just have."""

    connection: int
    pid: int
    stopped: bool


@dataclass(frozen=True)
class Relay:
    """Pass a request on to producers; `requester` gets the number of those reached."""

    connections: tuple[int, ...]
    payload: bytes
    requester: int | None = None


@dataclass(frozen=True)
class ProfileRanks:
    """Send ranks requests to profile (`state.profiling.requests_for`)."""

    requests: tuple[tuple[int, bytes], ...]
    """Connections, and what to send to each."""


@dataclass(frozen=True)
class LookClosely:
    """Sample ranks closely from now on: their window has begun, or begins soon."""

    job: str
    pids: tuple[int, ...]
    seconds: float
    """Until then, unless the rank's window is over before, or this is said again."""


@dataclass(frozen=True)
class RankProfiled:
    """A rank has profiled what it was asked for, or reports why it has not."""

    job: str
    host: str
    rank: int
    pid: int
    reply: Profiled
    first_step: int
    """The steps that the trace covers; without meaning if there is none."""
    last_step: int


@dataclass(frozen=True)
class WriteOrder:
    """Put an order to profile some steps where all processors of a job read it."""

    job: str
    order: ProfileOrder


@dataclass(frozen=True)
class NotProfiled:
    """A rank was to profile some steps and has not, as far as is known."""

    job: str
    host: str
    rank: int
    order: ProfileOrder
    trouble: str


@dataclass(frozen=True)
class SampleCounters:
    """Sample counters of this host's GPUs for a while and send the requester the result."""

    connection: int
    hz: float
    seconds: float


Instruction = (
    Stalled
    | Append
    | Confirm
    | OpenOps
    | JobKnown
    | Watch
    | Unwatch
    | Left
    | Exited
    | Refuse
    | StoreNow
    | Follow
    | Parent
    | Relay
    | ProfileRanks
    | LookClosely
    | RankProfiled
    | WriteOrder
    | NotProfiled
    | SampleCounters
)

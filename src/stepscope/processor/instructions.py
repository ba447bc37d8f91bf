"""What `state` decides that `daemon` is to do, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.processor.records.normalise import Rows
from stepscope.trace import Job

_HOST_LEVEL = -1


@dataclass(frozen=True)
class Append:
    """Add rows to a table of a job."""

    job: str
    table: str
    rows: Rows


@dataclass(frozen=True)
class OpenOps:
    """All operators of a job that are in flight on this host, replacing the previous list."""

    job: str
    rows: Rows


@dataclass(frozen=True)
class JobKnown:
    """A job, or something new about it: its store and this host's part of `job.json`."""

    job: str
    store: str
    fragment: Job


@dataclass(frozen=True)
class Watch:
    """Look at this process from outside, from now on."""

    job: str
    rank: int
    pid: int
    thread_id: int


@dataclass(frozen=True)
class Unwatch:
    """The process closed its connection."""

    job: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Refuse:
    """Close a connection that does not speak our language."""

    connection: int
    why: str


@dataclass(frozen=True)
class Stalled:
    """A job does not get on: look at its processes at once."""

    job: str
    in_flight: Mapping[str, int]
    """Operators that the ranks served here have begun and not finished, by the host they are on."""

    def rows(self, now_ns: int) -> Rows:
        """That it was seen so, for the table `hardware`."""
        count = len(self.in_flight)
        return {
            "rank": [_HOST_LEVEL] * count,
            "host": list(self.in_flight),
            "metric": ["operators_in_flight"] * count,
            "ts_ns": [now_ns] * count,
            "value": [float(value) for value in self.in_flight.values()],
        }


@dataclass(frozen=True)
class StoreNow:
    """Store all of a job, and say so to who asked."""

    connection: int
    job: str


@dataclass(frozen=True)
class Follow:
    """Say to who asked, from now on, whenever something of a job was stored."""

    connection: int
    job: str


@dataclass(frozen=True)
class Parent:
    """Somebody tells from now on which children of a process stop; perhaps one just did."""

    connection: int
    pid: int
    stopped: bool


@dataclass(frozen=True)
class Relay:
    """Pass a request on to producers; `requester` is told to how many."""

    connections: tuple[int, ...]
    payload: bytes
    requester: int | None = None


@dataclass(frozen=True)
class SampleCounters:
    """Sample counters of this host's GPUs for a while, and say to who asked what came of it."""

    connection: int
    hz: float
    seconds: float


Instruction = (
    Stalled
    | Append
    | OpenOps
    | JobKnown
    | Watch
    | Unwatch
    | Refuse
    | StoreNow
    | Follow
    | Parent
    | Relay
    | SampleCounters
)

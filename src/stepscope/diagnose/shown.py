"""What reports show besides verdicts; none of it accuses anybody.

Step times, own times, functions of profiled steps, last arrivals, the parts of a step, slow steps
that come back, and the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Source = Literal[
    "checkpoint", "evaluation", "garbage collection", "compilation", "data loading",
    "NCCL heartbeat", "other processes", "other processes on GPUs", "busy processors",
    "too few processors", "a function", "unknown source",
]  # fmt: skip
PLANNED: tuple[Source, ...] = ("checkpoint", "evaluation")
"""Sources that a job has by design."""


@dataclass(frozen=True)
class ClockFit:
    """How far a clock is from the reference: `host` for a machine, `rank` for one process."""

    host: str
    offset_ns: int
    drift_ppm: float
    rank: int | None = None


@dataclass(frozen=True)
class Opinion:
    """The ranks or devices that one method points to in the steps of a verdict."""

    by: str
    """A method, or `own time`, `arrival`, `K-S`."""
    ranks: tuple[int, ...]
    places: tuple[str, ...] = ()
    """Devices or groups, where it names no ranks; empty as well: nobody stands out."""


@dataclass(frozen=True)
class Period:
    """Slow steps that come back every so many steps, or every so many seconds."""

    unit: Literal["steps", "seconds"]
    """The unit that fits better."""
    every: float
    """The distance, in this unit."""
    either: float | None
    """The distance in the other unit, if that fits as well: the steps were too even to tell."""
    hits: int
    slots: int
    """How many times it was due, from the first hit to the last."""
    chance: float
    """At most the chance that slow steps at random places show any such period."""
    steps: tuple[int, int]
    """The first and the last of the slow steps."""
    at: tuple[int, ...]
    """All of them."""
    excess_ns: float
    """What each costs the job, mean."""
    lost_fraction: float
    """The same as a share of the time from the first to the last."""
    ranks: tuple[int, ...] = ()
    """Whose own time it takes; empty: all, changing ones, or unknown."""
    hosts: tuple[str, ...] = ()
    phase: str | None = None
    kernel: str | None = None
    function: str | None = None
    source: Source = "unknown source"
    because: str = ""
    """The evidence for the source."""
    says: str = ""
    """All of it in a sentence."""
    advice: str = ""
    """What to do next."""
    verdict: int | None = None
    """The verdict, by its place among them, that these steps belong to."""


@dataclass(frozen=True)
class FunctionUse:
    """What the ranks spent in one function in profiled steps, as shares of these steps."""

    name: str
    """With its file and line, where they are known."""
    kind: str
    caller: str
    """The nearest caller in code of the user."""
    thread: str
    """Empty: the training thread."""
    steps: tuple[int, int] | None
    ranks: int
    """How many ranks were profiled."""
    least: float
    median: float
    most: float
    most_rank: int
    resource: str
    use: float | None
    """Median use of its resource; None where it is unknown."""
    expected: float | None
    """The largest share that is expected; None where nothing is, because it waits."""
    learned: bool
    """Whether that was learned from the user's healthy jobs."""


@dataclass(frozen=True)
class LastArrival:
    """The rank that made the others wait most in the collectives of one group and operator."""

    group: str
    op: str
    rank: int
    last: int
    """In how many of them it arrived last."""
    operators: int
    caused_ns: int
    """Waiting of all others for this rank alone, per step."""


@dataclass(frozen=True)
class Limit:
    """A part of an average step, besides compute, that takes a large share of it."""

    part: Literal["exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns"]
    share: float


@dataclass(frozen=True)
class StepSeries:
    """The job's step times as reports draw them: one value per step, over all ranks."""

    steps: tuple[int, ...]
    duration_ns: tuple[int, ...]


NO_SERIES = StepSeries((), ())


@dataclass(frozen=True)
class Change:
    """What a typical rank spends per step on a phase or kernel, in ns: in a healthy job, and in
    this one."""

    kind: Literal["phase", "kernel", "rest"]
    name: str
    before_ns: float
    now_ns: float


@dataclass(frozen=True)
class Compared:
    """A job beside the healthy one that it was compared with."""

    job_id: str
    steps: tuple[int, int]
    """The healthy job's first and last step, by its own numbers."""
    before_ns: float
    """Its median step, in ns."""
    now_ns: float
    changes: tuple[Change, ...]
    """The largest first."""


class RankPhase(NamedTuple):
    """Median own time per step of one rank in one phase, for the rank map of the reports."""

    rank: int
    phase: str
    own_ns: int


@dataclass(frozen=True)
class RankTime:
    """Where an average step of one rank went, in ns; hidden communication runs beside computing
    and is no part of the sum."""

    rank: int
    compute_ns: int
    exposed_ns: int
    hidden_ns: int
    copy_ns: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


class Entry(NamedTuple):
    """What one verdict takes of the job's time."""

    verdict: int
    """Its place among the verdicts."""
    fraction: float
    """Of the step time of the whole period."""


@dataclass(frozen=True)
class Ledger:
    """Where the job's time went: `step_ns` is `needed_ns`, the entries, and what is unexplained."""

    steps: tuple[int, int]
    step_ns: int
    """The mean measured step time."""
    needed_ns: int
    """What a step would take with every entry healed and nothing unexplained."""
    lost: tuple[Entry, ...]
    unexplained_fraction: float

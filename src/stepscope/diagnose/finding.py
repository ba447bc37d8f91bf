"""What diagnosis says: findings of single methods, verdicts out of all of them, the diagnosis.

Field for field the JSON of `docs/diagnosis-json.md`; `report` only renders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Cause = Literal[
    "compute", "memory_copy", "network", "host", "data_loading", "gc", "jit_compile",
    "load_imbalance", "contention", "code", "unknown",
]  # fmt: skip
Kind = Literal["slowdown", "hang", "mismatch"]
State = Literal["healthy", "jitter", "regression", "both", "slow", "hang"]
WindowKind = Literal["jitter", "regression", "slow", "hang"]
Value = float | int | str | bool | None | list[float] | list[int] | list[str]
Span = tuple[int, int]


@dataclass(frozen=True)
class Device:
    """A piece of hardware by its full name (`host-000/gpu-5`) and how likely it is to blame."""

    type: Literal["gpu", "nic", "link", "switch", "nvlink", "pcie", "cpu", "host"]
    name: str
    probability: float


@dataclass(frozen=True)
class Evidence:
    """What one method saw, in one sentence a person can check, and its numbers."""

    method: str
    detail: str
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One method's observation, before blame is decided.

    `lost_ns` is the time per affected step that would come back (0: not known), `slowdown` how many
    times longer than its peers. A finding with empty `ranks` is about everyone.
    """

    method: str
    kind: Kind
    cause: Cause
    detail: str
    ranks: tuple[int, ...] = ()
    group: str | None = None
    devices: tuple[Device, ...] = ()
    """Where the method itself says which; else they follow from cause and ranks."""
    phase: str | None = None
    function: str | None = None
    kernels: tuple[str, ...] = ()
    steps: Span | None = None
    time_ns: Span | None = None
    slowdown: float | None = None
    lost_ns: float = 0.0
    confidence: float = 0.0
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """One culprit: who, why, since when, what it costs, what to do."""

    kind: Kind
    cause: Cause
    summary: str
    advice: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    group: str | None = None
    devices: tuple[Device, ...] = ()
    phase: str | None = None
    kernels: tuple[str, ...] = ()
    function: str | None = None
    steps: Span | None = None
    time_ns: Span | None = None
    slowdown: float | None = None
    lost_fraction: float | None = None
    confidence: float = 0.0
    victims: int = 0
    evidence: tuple[Evidence, ...] = ()
    stack: tuple[str, ...] = ()
    """The culprit's call stack, outermost first, where one was caught (hangs)."""


@dataclass(frozen=True)
class AnomalousWindow:
    """A range of steps in which the job as a whole was not itself."""

    kind: WindowKind
    steps: Span


@dataclass(frozen=True)
class ClockFit:
    """How far a clock is from the reference: `host` for a machine, `rank` for one process."""

    host: str
    offset_ns: int
    drift_ppm: float
    rank: int | None = None


@dataclass(frozen=True)
class Skipped:
    """A method that could not run, and for want of what."""

    method: str
    why: str


@dataclass(frozen=True)
class StepSeries:
    """The job's step times as reports draw them: one value per step, over all ranks."""

    steps: tuple[int, ...]
    duration_ns: tuple[int, ...]


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


@dataclass(frozen=True)
class Latecomer:
    """Who made the others wait the most in the collectives of one group and operator."""

    group: str
    op: str
    rank: int
    last: int
    """In how many of them it came last."""
    operators: int
    caused_ns: int
    """Waiting of all others for this rank alone, per step."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything a report needs. `verdicts` are ranked, most likely and costly first."""

    job_id: str
    ranks: int
    state: State
    steps: Span | None = None
    windows: tuple[AnomalousWindow, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    clocks: tuple[ClockFit, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    series: StepSeries = StepSeries((), ())
    rank_phases: tuple[RankPhase, ...] = ()
    rank_times: tuple[RankTime, ...] = ()
    """Only of traces that show every kernel or operator."""
    latecomers: tuple[Latecomer, ...] = ()
    losses: Mapping[str, int] = field(default_factory=dict)
    """Rows known to be lost, by table."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """What stepscope itself cost: `processor_cpu` in cores and the like."""

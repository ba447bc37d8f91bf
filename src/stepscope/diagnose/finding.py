"""The results of a diagnosis: findings of single methods, verdicts, and the diagnosis itself.

Verdict and Diagnosis have the fields of the JSON in `docs/diagnosis-json.md`; `report` only renders
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stepscope.diagnose.shown import (
    NO_SERIES,
    ClockFit,
    Compared,
    Entry,
    FunctionUse,
    LastArrival,
    Ledger,
    Limit,
    Opinion,
    Period,
    RankPhase,
    RankTime,
    StepSeries,
)
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import (
    LEAST_COST,
    LEAST_COST_REPEATED,
    LEAST_SCORE,
    PROCESSOR_TIME,
)

Cause = Literal[
    "compute", "memory_copy", "network", "host", "data_loading", "gc", "jit_compile",
    "load_imbalance", "contention", "code", "unknown",
]  # fmt: skip
Kind = Literal["slowdown", "hang", "mismatch"]
State = Literal["healthy", "jitter", "regression", "both", "slow", "hang", "unknown"]
WindowKind = Literal["jitter", "regression", "slow", "hang"]
Outcome = Literal["found", "unexplained", "limited", "healthy", "unknown", "no data"]
Value = float | int | str | bool | None | list[float] | list[int] | list[str]
Span = tuple[int, int]


def may_overlap(one: Span | None, other: Span | None) -> bool:
    """Whether two ranges of steps share a step; an unknown range may share any."""
    return one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])


Ended = Literal["", "out of memory", "killed", "crashed", "aborted", "failed", "left"]
Extent = Literal["passes", "everything", "some"]


@dataclass(frozen=True)
class Device:
    """A piece of hardware by its full name (`host-000/gpu-5`) and how likely it is to blame."""

    type: Literal["gpu", "nic", "link", "switch", "nvlink", "pcie", "cpu", "host"]
    name: str
    probability: float


@dataclass(frozen=True)
class Evidence:
    """What one method observed, in a sentence that a person can check, with its numbers."""

    method: str
    detail: str
    values: Mapping[str, Value] = field(default_factory=dict)


def is_processor_time(evidence: Sequence[Evidence]) -> bool:
    """Whether an excess is known to be processor time, so that no device is the reason."""
    known = [one.values.get("computed") for one in evidence if one.method == "processor-use"]
    return any(isinstance(part, float) and part >= PROCESSOR_TIME for part in known)


@dataclass(frozen=True)
class Place:
    """Where a rank that hangs is in the schedule of its pipeline."""

    rank: int
    phase: str
    """`forward-compute`, `backward-compute` or `backward-weight`."""
    stage: int | None
    """From 0; with interleaved stages, the one that the rank is in. None: there is no pipeline."""
    microbatch: int
    """From 0."""
    microbatches: int
    """Of a step."""


@dataclass(frozen=True)
class Decision:
    """One rule applied to one candidate: the value, its limit, and whether it was reached."""

    rule: str
    fired: bool
    value: float | None = None
    limit: float | None = None
    says: str = ""
    gate: bool = True
    """Whether a candidate is rejected if this did not fire; else it only informs."""


BY_STOPS = ("stopped", "stopped-process")
"""Methods that find processes stopped from outside: neither code nor a device is at fault."""


@dataclass(frozen=True)
class Finding:
    """What one method found, before blame is decided; empty `ranks` mean all ranks.

    `lost_ns` is the time per affected step that would come back (0: not known), `lost_fraction`
    the same as a share of step time, `slowdown` how many times longer than its peers, `victims` how
    many ranks wait (None: the other members of the culprits' groups). `values` are numbers for the
    JSON; no code decides by them.
    """

    method: str
    cause: Cause
    detail: str
    ranks: tuple[int, ...] = ()
    group: str | None = None
    devices: tuple[Device, ...] = ()
    """The devices, if the method itself names them; else they follow from cause and ranks."""
    phase: str | None = None
    function: str | None = None
    kernels: tuple[str, ...] = ()
    steps: Span | None = None
    time_ns: Span | None = None
    slowdown: float | None = None
    lost_ns: float = 0.0
    lost_fraction: float | None = None
    victims: int | None = None
    score: float = 0.0
    values: Mapping[str, Value] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    lost_of: Span | None = None
    """The steps of whose time `lost_fraction` is a share, if these are not `steps`."""

    @property
    def kind(self) -> Kind:
        return "slowdown"

    @property
    def costs_enough(self) -> bool:
        """Whether it costs the job anything worth a verdict."""
        return True


@dataclass(frozen=True)
class Slowdown(Finding):
    """Ranks that take longer than their peers."""

    suspect: Suspect | None = None
    """The rank, if a method found it by its own time; its cost and cause are then determined."""
    supporting: tuple[Evidence, ...] = ()
    """The evidence for its cause."""
    least_fraction: float = LEAST_COST
    """The least cost that is worth a verdict."""
    lag_ns: float | None = None
    """By how much it arrived last in collectives, per step."""
    spikes: int | None = None
    """In how many of its `of_steps` steps it is slow; None: in all of them."""
    of_steps: int = 0
    clock: float | None = None
    """Its device's clock divided by its peers'."""
    extent: Extent = "some"
    """Which parts of a step it is slow in."""
    of_gpu: bool = False
    """Whether others compete for its GPU, and not for its host."""
    beside: tuple[int, ...] = ()
    """All ranks of the host that the same cause slows down, where that was measured."""
    shared_devices: bool = False
    """Whether something that was not observed seems to use all devices of its host."""
    columns: frozenset[int] = frozenset()
    """Steps, or windows, in which it is slow, as numbers within what was judged."""
    costs_alone: bool = False
    """Whether its cost is only its own excess: of several ranks, the others wait for the last."""
    measured_cost: bool = False
    """Whether its cost is by how much the job's steps are longer, so that no rise adds to it."""
    has_onset: bool = False
    """Whether it was normal for a part of the time, so that the onsets of two can be compared."""
    says: str = ""
    """The summary, where the usual sentence does not fit."""

    @property
    def costs_enough(self) -> bool:
        """Whether it costs the job enough for a verdict.

        An unknown cost is enough if the method itself accuses the ranks.
        """
        if self.lost_fraction is None:
            return self.suspect is None
        return self.lost_fraction >= self.least_fraction


@dataclass(frozen=True)
class SlowLink(Finding):
    """Data that moves slower in one place than elsewhere, or than before."""

    where: str = ""
    """`in dp-3 than in equal groups`."""
    columns: tuple[int, ...] = ()
    """The steps in which it is slow, as numbers within what was judged; where they are known."""
    step_share: float | None = None
    """What it costs, as a share of the steps in which it is slow; None: `lost_fraction`."""

    @property
    def costs_enough(self) -> bool:
        share, least = self.share_and_least
        return share is None or share >= least

    @property
    def share_and_least(self) -> tuple[float | None, float]:
        """What decides whether it costs enough, and the least: the share of the steps in which it
        is slow, but of all from the first to the last of them, where these lose less together than
        repeated spikes must. A single episode must cost as much of all steps as anything else."""
        lost, share = self.lost_fraction, self.step_share
        least = LEAST_COST_REPEATED if self.lost_of is None else LEAST_COST
        if share is not None and lost is not None and lost < least:
            return lost, least
        return (lost if share is None else share), LEAST_COST


@dataclass(frozen=True)
class Regression(Finding):
    """Steps that take longer on all ranks."""

    split: int | None = None
    """The column from which steps take longer; None: they do so now and then."""
    measured: bool = False
    """Whether a measurement shows the cause; else it follows from what rose at the same time."""
    exposed: str | None = None
    """The operator that computing now waits for."""
    of_gpu: bool = False
    """Whether other processes began to compute on the devices of most ranks."""
    paused_steps: int | None = None
    """In how many steps some rank collected garbage, where ranks collect in turns."""
    gradual: Span | None = None
    """The first and the last step of a rise that took many steps; None: steps became longer at
    once."""
    phases: tuple[str, ...] = ()
    """Where every rank takes longer, and may wait for something that was not recorded."""


@dataclass(frozen=True)
class Waste(Finding):
    """Time that a job loses by its own structure: unequal stages or samples, waiting for data."""

    says: str = ""
    """The summary."""
    in_turns: bool = False
    """Whether in each step another rank loses it, and the others wait for that one."""
    one_source: bool = False
    """Whether ranks wait for a source that they share, always the same ones for longest."""
    holds_gil: bool = False
    """Whether a helper thread holds the GIL, so that whatever its ranks run takes longer."""

    @property
    def costs_enough(self) -> bool:
        """Whether it is worth a verdict: every job has some of it, so only a loss that is likely
        more than usual is reported."""
        return (self.lost_fraction or 0.0) >= LEAST_COST and self.score >= LEAST_SCORE


@dataclass(frozen=True)
class Recurring(Finding):
    """Slow steps that come back at a regular distance."""

    says: str = ""
    """The summary."""
    advises: str = ""
    """What to do next: it depends on the source, and not on the cause alone."""
    in_turns: tuple[int, ...] = ()
    """The ranks that are slow in turns, if the job waits for another one each time."""

    @property
    def costs_enough(self) -> bool:
        return (self.lost_fraction or 0.0) >= LEAST_COST


@dataclass(frozen=True)
class Unsteady(Finding):
    """Single long steps, or a lasting rise, of the whole job's step times. It accuses no rank."""

    spikes: tuple[int, ...] = ()
    """Columns of long steps that no schedule explains."""
    split: int | None = None
    """The column from which steps take longer."""
    why: str = ""
    """What is known about it: that the job's own work grew by as much, or which steps are long."""


@dataclass(frozen=True)
class Stuck(Finding):
    """A hang, or members of a group that called different operators."""

    mismatched: bool = False
    unfinished: bool = False
    """Whether members that disagree are still in the operator."""
    without_dump: tuple[int, ...] = ()
    """Ranks whose state only a missing dump could show."""
    ended: Ended = ""
    """How the processes of the ranks ended, if that is what happened."""
    says: str = ""
    """The summary, where the usual sentence does not fit."""
    places: tuple[Place, ...] = ()
    """Where the ranks are in the schedule, as far as that is known."""
    stack: tuple[str, ...] | None = None
    """Where the exception was raised that ended it, outermost first; None: as sampled last."""

    @property
    def kind(self) -> Kind:
        return "mismatch" if self.mismatched else "hang"


@dataclass(frozen=True)
class Candidate:
    """A rank, group or all ranks considered for a verdict, with every rule that was applied."""

    who: str
    """`rank 7`, `group dp-3`, `all ranks`."""
    ranks: tuple[int, ...]
    verdict: int | None
    """Its place among the verdicts; None: not accused."""
    decisions: tuple[Decision, ...]

    @property
    def ended_by(self) -> Decision | None:
        """The rule that rejected it; None if it has a verdict."""
        if self.verdict is not None:
            return None
        return next((one for one in self.decisions if one.gate and not one.fired), None)


@dataclass(frozen=True)
class Verdict:
    """One culprit: which ranks, why, since when, at what cost, and what to do."""

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
    """How likely it is right (`decide.confidence`)."""
    victims: int = 0
    evidence: tuple[Evidence, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """Every rule that was applied on the way to it."""
    lasted_ns: int = 0
    """How long it lasted, by wall clock, or else as the sum of the steps it spans; 0: unknown."""
    lost_rank_ns: float = 0.0
    """What it cost, in nanoseconds of one rank: a GPU-hour is 3.6e12."""
    stack: tuple[str, ...] = ()
    """The culprit's call stack, outermost first, where one was sampled (hangs)."""
    ended: Ended = ""
    """How the culprit's process ended, if that is what happened."""
    lost_of: Span | None = None
    """The steps of whose time `lost_fraction` is a share, if these are not `steps`."""
    places: tuple[Place, ...] = ()
    """Where in the schedule the ranks hang, as far as that is known."""
    opinions: tuple[Opinion, ...] = ()
    """What each method says about its steps; empty if fewer than two do."""
    agreement: str = ""
    """The same in a line, with why ranks that some of them name are not accused."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """What the confidence was computed from; empty: it is the method's score."""

    @property
    def stands_still(self) -> bool:
        """Whether it is a hang, or a mismatch that causes one: the job makes no progress."""
        return self.kind == "hang" or any(one.rule == "no-progress" for one in self.decisions)

    @property
    def is_suspect(self) -> bool:
        """Whether it is too uncertain to accuse anybody; it does not change the exit status."""
        return self.confidence < LEAST_SCORE


@dataclass(frozen=True)
class AnomalousWindow:
    """A range of steps in which the job as a whole was abnormal."""

    kind: WindowKind
    steps: Span
    why: str = ""
    """What is known about it: that the job's own work grew, or which steps are long."""


@dataclass(frozen=True)
class Skipped:
    """A method that could not run, and the reason: what data is missing, or an error of ours."""

    method: str
    why: str
    fault: Exception | None = None  # the internal error that ended it
    unrecorded: bool = False  # whether it lacks nothing but data


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
    series: StepSeries = NO_SERIES
    rank_phases: tuple[RankPhase, ...] = ()
    rank_times: tuple[RankTime, ...] = ()
    """Only for traces that show every kernel or operator."""
    last_arrivals: tuple[LastArrival, ...] = ()
    limits: tuple[Limit, ...] = ()
    """What limits an average step, the largest first; only of traces, too."""
    functions: tuple[FunctionUse, ...] = ()
    """What ranks spent profiled steps in; empty where nobody profiled."""
    periods: tuple[Period, ...] = ()
    """Slow steps that come back at regular distances."""
    hosts: tuple[str, ...] = ()
    """All hosts of the job, by name."""
    methods: tuple[str, ...] = ()
    """The only methods that ran; empty: all that run by default."""
    candidates: tuple[Candidate, ...] = ()
    """All candidates, with a verdict or without."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """Rows known to be lost, by table."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """What stepscope itself cost: `processor_cpu` in cores and the like."""
    ledger: Ledger | None = None
    """Where the time of the steps went; None where no steps were recorded."""
    unaccounted: str = ""
    """Why the time cannot be accounted for, if the state is unknown."""
    unrecorded: str = ""
    """How many of the job's ranks were recorded, and which were not; empty if all were."""
    compared: Compared | None = None
    """The job beside a healthy one, where one was given."""

    def with_verdicts(self, verdicts: tuple[Verdict, ...]) -> Diagnosis:
        """The diagnosis with other verdicts; the ledger no longer explains what these lack."""
        return replace(self, verdicts=verdicts, ledger=self._ledger_of(verdicts))

    def _ledger_of(self, verdicts: tuple[Verdict, ...]) -> Ledger | None:
        if self.ledger is None:
            return None
        kept = [(verdicts.index(self.verdicts[one.verdict]), one.fraction)
                for one in self.ledger.lost if self.verdicts[one.verdict] in verdicts]  # fmt: skip
        dropped = sum(one.fraction for one in self.ledger.lost) - sum(part for _, part in kept)
        return replace(
            self.ledger, lost=tuple(Entry(at, part) for at, part in kept),
            unexplained_fraction=self.ledger.unexplained_fraction + max(dropped, 0.0),
        )  # fmt: skip

    @property
    def accused(self) -> tuple[Verdict, ...]:
        """The verdicts that are more than suspects."""
        return tuple(one for one in self.verdicts if not one.is_suspect)

    @property
    def faults(self) -> tuple[Exception, ...]:
        """Internal errors that ended methods; the others ran on."""
        return tuple(one.fault for one in self.skipped if one.fault is not None)

    @property
    def outcome(self) -> Outcome:
        """The state in words: a job without ranks, one that is limited only by its own work, or one
        whose steps changed for no known reason, is neither healthy nor does it have a culprit."""
        if not self.ranks:
            return "no data"
        if self.state == "unknown" and not self.verdicts:
            return "unknown"
        if self.verdicts or self.state == "hang":
            return "found"
        if self.state != "healthy":
            return "unexplained"
        return "limited" if self.limits else "healthy"

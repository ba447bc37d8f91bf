"""Scores one diagnosis against the known faults of the simulated job.

A fault is costly if removing it would save at least `MIN_COST` of the time of the steps in which
it was active. A delay that a bubble or an overlap absorbs, or that the next step makes up for,
deserves no verdict (docs/diagnosis-json.md), so missing it does not count against the diagnosis.
A verdict about what the job loses by its own nature (`Truth.inherent`) is right and changes nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.simulate import FaultTruth, Truth
from stepscope.trace import Job

MIN_COST = 0.02
"""Diagnosis promises no verdict for less than two percent of the step time."""
MIN_SHARE_OF_RANKS = 0.5
"""Share of the ranks behind a shared device that a verdict must name: fewer are some victims."""
CERTAIN = 0.5
"""A verdict below this confidence is a suspect (docs/evaluation.md): it neither finds anybody
nor accuses anybody."""
SHARED = ("host", "cpu", "switch")
"""Types of devices that several ranks share."""


@dataclass(frozen=True)
class Score:
    """The score of one job. A field is None if it does not apply to the job."""

    costly: bool
    """Whether the job has a fault that deserves a verdict."""
    hangs: bool
    """Whether the job really hangs."""
    alarms: int
    """Verdicts on a job that deserves none."""
    found: bool | None = None
    """The first verdict names a culprit and no innocent rank."""
    complete: bool | None = None
    """All verdicts together name every culprit."""
    cause: bool | None = None
    device: bool | None = None
    """The most likely device of the first verdict is a faulty one."""
    accused: int = 0
    """Innocent ranks that any verdict names."""
    said_hang: bool = False
    found_hang: bool = False
    """The first verdict of kind hang names a culprit of the hang and no innocent rank."""
    suspects: int = 0
    """Verdicts that are only suspects."""
    suspected: bool = False
    """Whether the first suspect is a culprit, and nobody else."""


def score(truth: Truth, job: Job, diagnosis: Diagnosis) -> Score:
    """Scores a diagnosis. Suspects are counted, and otherwise ignored."""
    costly = [fault for fault in truth.faults if is_costly(fault)]
    verdicts = _about_faults(truth, job, diagnosis)
    suspects = [one for one in diagnosis.verdicts if one.confidence < CERTAIN]
    stuck = [fault for fault in costly if fault.kind == "hang"]
    said = [verdict for verdict in verdicts if verdict.kind == "hang"]
    known = Score(
        bool(costly), bool(stuck), 0 if costly else len(verdicts),
        accused=len(_accused(truth, job, verdicts)), said_hang=bool(said),
        found_hang=any(names_culprit(fault, job, one) for fault in stuck for one in said[:1]),
        suspects=len(suspects),
        suspected=any(names_culprit(fault, job, one) for fault in costly for one in suspects[:1]),
    )  # fmt: skip
    return _with_culprits(known, costly, job, verdicts) if costly else known


def accusations(diagnosis: Diagnosis) -> tuple[Verdict, ...]:
    """The verdicts that are more than suspects."""
    return tuple(one for one in diagnosis.verdicts if one.confidence >= CERTAIN)


def _about_faults(truth: Truth, job: Job, diagnosis: Diagnosis) -> list[Verdict]:
    """The accusations without those that say what the job loses by its own nature."""
    return [one for one in accusations(diagnosis) if not _is_inherent(truth, job, one)]


def is_right(truth: Truth, job: Job, verdict: Verdict) -> bool:
    """Whether what a verdict says is true of a fault that was there, however little it cost.

    It names a culprit; or it names nobody, and its cause, and its group if it has one, are right.
    """
    return _is_inherent(truth, job, verdict) or any(
        names_culprit(fault, job, verdict) or _tells_what(fault, job, verdict)
        for fault in truth.faults if fault.steps
    )  # fmt: skip


def _tells_what(fault: FaultTruth, job: Job, verdict: Verdict) -> bool:
    """Whether a verdict that names nobody says rightly what is wrong."""
    if verdict.ranks or verdict.devices or (fault.kind == "hang") != (verdict.kind == "hang"):
        return False
    members = _members(verdict.group, job)
    if members and fault.ranks and not members & set(fault.ranks):
        return False
    return fault.kind == "hang" or verdict.cause == fault.cause


def _is_inherent(truth: Truth, job: Job, verdict: Verdict) -> bool:
    """Whether it says what the job loses by its own nature, and blames no fault."""
    if any(names_culprit(fault, job, verdict) for fault in truth.faults):
        return False
    return any(
        is_costly(one) and one.cause == verdict.cause and names_culprit(one, job, verdict)
        for one in truth.inherent
    )


def is_costly(fault: FaultTruth) -> bool:
    """Whether the fault was ever active and cost time."""
    if fault.steps is None:
        return False
    return fault.kind == "hang" or (fault.lost_fraction or 0.0) >= MIN_COST


def is_found(truth: Truth, job: Job, diagnosis: Diagnosis) -> bool:
    """Whether the first verdict names a culprit."""
    costly = [fault for fault in truth.faults if is_costly(fault)]
    first = _about_faults(truth, job, diagnosis)[:1]
    return any(names_culprit(fault, job, one) for fault in costly for one in first)


def names_culprit(fault: FaultTruth, job: Job, verdict: Verdict) -> bool:
    """Whether a verdict names the culprits of this fault, and no innocent rank.

    For a device that ranks share, the verdict must name the device or most of the ranks behind it.
    For a fault of all ranks or of a different rank each time, it must name no rank (or the device,
    if there is one). If the truth is a group, the group is accepted too. If none of the culprits
    was recorded (`Job.recorded_ranks`), it may name nobody.
    """
    if (fault.kind == "hang") != (verdict.kind == "hang"):
        return False
    if _first_device(verdict) in _devices(fault) or _names_group(fault, job, verdict):
        return True
    named, guilty = set(verdict.ranks), set(fault.ranks)
    if not guilty:
        return not named and not fault.devices
    if not _recorded(guilty, job):
        return named <= guilty
    if not named or not named <= guilty:
        return False
    units = [_recorded(unit, job) for unit in _shared_units(fault, job)]
    return not units or any(len(named & unit) >= MIN_SHARE_OF_RANKS * len(unit) for unit in units)


def _recorded(ranks: set[int], job: Job) -> set[int]:
    return ranks if job.recorded_ranks is None else ranks & set(job.recorded_ranks)


def _names_group(fault: FaultTruth, job: Job, verdict: Verdict) -> bool:
    return (
        fault.group is not None
        and fault.group == verdict.group
        and (set(verdict.ranks) <= _members(fault.group, job))
    )


def _members(name: str | None, job: Job) -> set[int]:
    """The ranks of a group, by its name; none if there is no such group."""
    return {rank for group in job.groups if group.id == name for rank in group.ranks}


def _shared_units(fault: FaultTruth, job: Job) -> list[set[int]]:
    """The culprits behind each shared device; empty if every culprit has a device of its own."""
    if not any(kind in SHARED or _joins_switches(kind, name) for kind, name in fault.devices):
        return []
    if any(kind in ("switch", "link") for kind, _ in fault.devices):
        return [set(fault.ranks)]
    return [set(host.ranks) & set(fault.ranks) for host in job.hosts if host.name in fault.hosts]


def _joins_switches(kind: str, name: str) -> bool:
    """Whether it is a cable between two switches; other cables have an adapter (`host/nic`)."""
    return kind == "link" and "/" not in name


def _with_culprits(
    known: Score, costly: Sequence[FaultTruth], job: Job, verdicts: Sequence[Verdict]
) -> Score:
    if not verdicts:
        missing = any(fault.devices for fault in costly)
        device = False if missing else None
        return replace(known, found=False, complete=False, cause=False, device=device)
    first = verdicts[0]
    named = [fault for fault in costly if names_culprit(fault, job, first)]
    alike = next((one for one in costly if one.kind == first.kind), costly[0])
    against = _matching_cause(named, first) if named else alike
    device = _first_device(first) in _devices(against) if against.devices else None
    return replace(
        known, found=bool(named), complete=_complete(costly, job, verdicts),
        cause=first.cause == against.cause, device=device,
    )  # fmt: skip


def _matching_cause(faults: Sequence[FaultTruth], verdict: Verdict) -> FaultTruth:
    """The fault whose cause the verdict names, if it fits several, e.g. two on one host."""
    return next((one for one in faults if one.cause == verdict.cause), faults[0])


def _complete(
    costly: Sequence[FaultTruth], job: Job, verdicts: Sequence[Verdict]
) -> bool:  # fmt: skip
    named = {rank for verdict in verdicts for rank in verdict.ranks}
    return all(
        (
            any(names_culprit(fault, job, one) for one in verdicts)
            and named >= _recorded(set(fault.ranks), job)
        )
        or any(_names_group(fault, job, one) for one in verdicts)
        or (bool(fault.devices) and _devices(fault) <= set(map(_first_device, verdicts)))
        for fault in costly
    )  # fmt: skip


def _accused(truth: Truth, job: Job, verdicts: Sequence[Verdict]) -> set[int]:
    guilty = {
        rank for fault in truth.faults for rank in {*fault.ranks, *_members(fault.group, job)}
    }
    return {rank for verdict in verdicts for rank in verdict.ranks} - guilty


def _devices(fault: FaultTruth) -> set[str]:
    return {name for _, name in fault.devices}


def _first_device(verdict: Verdict) -> str | None:
    likeliest = max(verdict.devices, key=lambda one: one.probability, default=None)
    return None if likeliest is None else likeliest.name

"""Simulates, diagnoses and scores the jobs of a suite, in several processes if wanted."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import psutil

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import DEFAULT, Settings
from stepscope.evaluate.conditions import WHOLE, Condition
from stepscope.evaluate.excerpt import first_and_last
from stepscope.evaluate.path import through_the_store
from stepscope.evaluate.pool import each
from stepscope.evaluate.prefix import step_ends, until
from stepscope.evaluate.remaining import Remaining, active_steps, remaining
from stepscope.evaluate.score import Score, is_costly, is_found, is_right, score
from stepscope.evaluate.strip import Context
from stepscope.evaluate.suite import Case
from stepscope.memory import freed_memory_kept
from stepscope.simulate import Simulation, Truth, simulate
from stepscope.simulate.world import World
from stepscope.trace import Job
from stepscope.window import Window

FAST_BYTES, WIRE_BYTES = 250_000_000, 600_000_000
"""Measured memory of a process for the smallest jobs, without and with the wire."""
FAST_OPERATION, WIRE_OPERATION = 80, 280
"""Additional memory per operation, rank and step: 52 bytes were measured without the wire (10,240
ranks, 50 steps, 7.1 GB), and at most 280 with it."""
ROOM = 0.8
"""Share of the memory free at the start that the jobs may use; the rest is for other processes."""

Conditions = tuple[Condition, ...]
"""What is removed before each diagnosis of a job; empty: one diagnosis, of the job as it is."""
Progress = Callable[[int, int], None]
Keep = Callable[[Sequence["Result"]], None]
"""Called with all results so far, whenever there is a new one."""


@dataclass(frozen=True)
class ReportedVerdict:
    """One verdict of a diagnosis, reduced to what is scored and shown."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    summary: str
    confidence: float | None = None
    right: bool = False
    """Whether it names a culprit and no innocent rank."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """What the confidence was computed from."""


@dataclass(frozen=True)
class Result:
    """One job: what was simulated, what was diagnosed, and how it scored."""

    id: str
    row: str
    family: str
    ranks: int
    dimensions: int
    seed: int
    fault: str
    """The injected faults and where they are, in words; empty: healthy."""
    slowdown: float | None
    """How many times longer the steps with the first fault took."""
    state: str
    said: tuple[ReportedVerdict, ...]
    score: Score
    steps_to_verdict: int | None
    """Steps from the onset until the first repeated diagnosis that named a culprit."""
    computing_s: float
    """CPU time of one diagnosis of the whole job."""
    form: str = ""
    """As `Case.form`."""
    size: int = 0
    """As `Case.nominal`; 0: `ranks`."""
    failed: str = ""
    """Why there is no diagnosis: the simulator or the diagnosis failed, or the process died."""
    condition: str = ""
    """What was removed before the diagnosis; empty: nothing."""
    cost: float | None = None
    """The share of the time that the faults cost since they began, as far as they are in what was
    left; None: no fault deserves a verdict."""
    unrecorded: bool = False
    """Whether all culprits are ranks that were not recorded."""


def run(
    cases: Sequence[Case], *, fast: bool, jobs: int, progress: Progress | None = None,
    keep: Keep | None = None, settings: Settings = DEFAULT, conditions: Conditions = (),
) -> list[Result]:  # fmt: skip
    """All results in the order of the cases; after an interrupt, those that are finished.

    With `conditions`, each job is simulated once and diagnosed under each of them.
    """
    found: dict[int, tuple[Result, ...]] = {}
    with (
        suppress(KeyboardInterrupt),
        closing(_each(cases, fast, jobs, settings, conditions)) as every,
    ):
        for done, (at, results) in enumerate(every, 1):
            found[at] = results
            if progress is not None:
                progress(done, len(cases))
            if keep is not None:
                keep(_in_order(found))
    return _in_order(found)


def _in_order(found: Mapping[int, tuple[Result, ...]]) -> list[Result]:
    return [result for at in sorted(found) for result in found[at]]


def _each(
    cases: Sequence[Case], fast: bool, jobs: int, settings: Settings, conditions: Conditions
) -> Generator[tuple[int, tuple[Result, ...]]]:
    """Indices and results of the cases as they finish; large jobs start first, beside small."""
    if jobs == 1:
        for at, case in enumerate(cases):
            yield at, run_case(case, fast, settings, conditions)
        return
    needs = [memory_of(case, fast) for case in cases]
    room = int(ROOM * psutil.virtual_memory().available)
    work = partial(run_case, fast=fast, settings=settings, conditions=conditions)
    for at, results in each(work, cases, needs, room, jobs):
        why = "its process died, perhaps out of memory"
        yield at, results or _unknown(cases[at], why, conditions)


def run_case(
    case: Case, fast: bool, settings: Settings = DEFAULT, conditions: Conditions = ()
) -> tuple[Result, ...]:
    """Runs one job from simulation to score. It never raises: a failure is part of the result.

    Without conditions there is one result, of the job as it is.
    """
    with freed_memory_kept():
        return _played(case, fast, settings, conditions)


def result_id(case: Case, condition: Condition) -> str:
    """The id of the result of a case under a condition."""
    return case.id if condition == WHOLE else f"{case.id} / {condition.name}"


def result_ids(case: Case, conditions: Conditions) -> tuple[str, ...]:
    """The ids of all results of a case."""
    return tuple(result_id(case, one) for one in conditions or (WHOLE,))


def _played(
    case: Case, fast: bool, settings: Settings, conditions: Conditions
) -> tuple[Result, ...]:
    try:
        simulation = _simulated(case)
    except Exception as error:  # noqa: BLE001  the other jobs must go on
        return _unknown(case, _why(error), conditions)
    every = conditions or (WHOLE,)
    looks = () if conditions else case.looks
    try:
        window = simulation.window if fast else through_the_store(simulation.window)
        job = _Job(case, simulation.job, simulation.truth, window, settings, looks)
    except Exception as error:  # noqa: BLE001
        silent = _Job(case, simulation.job, simulation.truth, simulation.window, settings, ())
        return tuple(silent.silence(one, _why(error)) for one in every)
    return tuple(job.under(one) for one in every)


def _simulated(case: Case) -> Simulation:
    """Simulates the job; its truth is as precise as the paper's own diagnosis was."""
    simulation = simulate(case.scenario)
    faults = tuple(replace(one, group=case.group or None) for one in simulation.truth.faults)
    return replace(simulation, truth=replace(simulation.truth, faults=faults))


@dataclass(frozen=True)
class _Outcome:
    """A diagnosis, what it took, and the truth that it can be held to."""

    diagnosis: Diagnosis
    left: Remaining
    job: Job
    steps_to_verdict: int | None = None
    computing_s: float = 0.0


@dataclass(frozen=True)
class _Job:
    """A recorded job, to be diagnosed under several conditions."""

    case: Case
    job: Job
    truth: Truth
    window: Window
    settings: Settings
    looks: tuple[int, ...]

    def under(self, condition: Condition) -> Result:
        """A diagnosis that fails has found nothing."""
        try:
            return self._result(condition, self._diagnosed(condition))
        except Exception as error:  # noqa: BLE001
            return self.silence(condition, _why(error))

    def silence(self, condition: Condition, why: str) -> Result:
        scenario = self.case.scenario
        nothing = Diagnosis(scenario.name, scenario.ranks, "healthy")
        return self._result(
            condition, _Outcome(nothing, Remaining(self.truth, None, False), self.job), why
        )

    @cached_property
    def _active(self) -> list[list[int]]:
        return active_steps(self.case.scenario)

    def _diagnosed(self, condition: Condition) -> _Outcome:
        begun = [fault.steps[0] for fault in self.truth.faults if fault.steps]
        context = Context(self.case.scenario.seed, min(begun, default=None))
        window = condition.apply(self.window, context)
        seen = first_and_last(window if condition.cuts_steps else self.window)
        left = remaining(self.truth, self._active, window, seen or (0, self.case.scenario.steps))
        if condition == WHOLE:
            left = replace(left, truth=self.truth)
        job = replace(self.job, recorded_ranks=window.job.recorded_ranks)
        began = time.process_time()
        diagnosis = diagnose(window, self.settings)
        computing_s = time.process_time() - began
        steps = None
        if self.looks and score(left.truth, job, diagnosis).found:
            steps = _steps_to_verdict(self.looks, window, left.truth, self.settings)
        return _Outcome(diagnosis, left, job, steps, computing_s)

    def _result(self, condition: Condition, outcome: _Outcome, failed: str = "") -> Result:
        case, one, left = self.case, self.case.scenario, outcome.left
        return Result(
            result_id(case, condition), case.row, case.family, one.ranks, case.dimensions, one.seed,
            _in_words(self.truth), self.truth.faults[0].slowdown if self.truth.faults else None,
            outcome.diagnosis.state, _reported(outcome.diagnosis, left.truth, outcome.job),
            score(left.truth, outcome.job, outcome.diagnosis), outcome.steps_to_verdict,
            round(outcome.computing_s, 3), case.form, case.nominal, failed,
            "" if condition == WHOLE else condition.name, left.cost, left.unrecorded,
        )  # fmt: skip


def _unknown(case: Case, why: str, conditions: Conditions) -> tuple[Result, ...]:
    """The results of a job that could not be simulated, so that its truth is unknown."""
    one = case.scenario
    return tuple(
        Result(
            result_id(case, condition), case.row, case.family, one.ranks, case.dimensions, one.seed,
            " + ".join(fault.name for fault in one.faults), None, "healthy", (),
            Score(costly=False, hangs=False, alarms=0), None, 0.0, case.form, case.nominal, why,
            "" if condition == WHOLE else condition.name,
        )
        for condition in conditions or (WHOLE,)
    )  # fmt: skip


def _why(error: Exception) -> str:
    """`ValueError: no such rank (l2.py:88)`."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({Path(last.filename).name}:{last.lineno})"


def memory_of(case: Case, fast: bool) -> int:
    """Estimated peak memory of a process for one job, in bytes."""
    one = case.scenario
    operations = one.ranks * one.steps * len(World(one).ops)
    if fast:
        return FAST_BYTES + operations * FAST_OPERATION
    return WIRE_BYTES + operations * WIRE_OPERATION


def _steps_to_verdict(
    looks: Sequence[int], window: Window, truth: Truth, settings: Settings
) -> int | None:
    """Diagnoses what was known after each of `looks`; None if none of them named a culprit."""
    onset = min(fault.steps[0] for fault in truth.faults if fault.steps and is_costly(fault))
    ends = step_ends(window)
    for steps in looks:
        moment_ns = moment_of(ends, onset, steps)
        if moment_ns is None:
            return None
        if is_found(truth, window.job, diagnose(until(window, moment_ns), settings)):
            return steps
    return None


def moment_of(ends: dict[int, int], onset: int, steps: int) -> int | None:
    """When that many steps since the onset have passed; after a hang, steps of typical length."""
    wanted = onset + steps - 1
    if not ends or max(ends) < onset - 1:
        return None
    if wanted in ends:
        return ends[wanted]
    last = max(ends)
    typical = float(np.median(np.diff([ends[one] for one in sorted(ends)]))) if len(ends) > 1 else 0
    return ends[last] + round((wanted - last) * typical)


def _reported(diagnosis: Diagnosis, truth: Truth, job: Job) -> tuple[ReportedVerdict, ...]:
    return tuple(
        ReportedVerdict(verdict.kind, verdict.cause, verdict.ranks,
                        tuple(device.name for device in verdict.devices), verdict.summary,
                        verdict.confidence, is_right(truth, job, verdict), verdict.facts)
        for verdict in diagnosis.verdicts
    )  # fmt: skip


def _in_words(truth: Truth) -> str:
    return " + ".join(
        f"{fault.fault} at {_where(fault.ranks, fault.hosts, fault.devices)}"
        for fault in truth.faults
    )


def _where(
    ranks: tuple[int, ...], hosts: tuple[str, ...], devices: tuple[tuple[str, str], ...]
) -> str:  # fmt: skip
    named = [name for _, name in devices] or list(hosts if len(ranks) > 4 else ())
    return ", ".join([*map(str, ranks[:4]), *named[:4]]) or "no rank in particular"

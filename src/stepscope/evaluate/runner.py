"""Simulates, diagnoses and scores the jobs of a suite, in several processes if wanted."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import DEFAULT, Settings
from stepscope.evaluate.path import through_the_store
from stepscope.evaluate.pool import each
from stepscope.evaluate.prefix import step_ends, until
from stepscope.evaluate.score import Score, is_costly, is_found, score
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


def run(
    cases: Sequence[Case], *, fast: bool, jobs: int, progress: Progress | None = None,
    keep: Keep | None = None, settings: Settings = DEFAULT,
) -> list[Result]:  # fmt: skip
    """All results in the order of the cases; after an interrupt, those that are finished."""
    found: dict[int, Result] = {}
    with suppress(KeyboardInterrupt), closing(_each(cases, fast, jobs, settings)) as results:
        for done, (at, result) in enumerate(results, 1):
            found[at] = result
            if progress is not None:
                progress(done, len(cases))
            if keep is not None:
                keep([found[one] for one in sorted(found)])
    return [found[at] for at in sorted(found)]


def _each(
    cases: Sequence[Case], fast: bool, jobs: int, settings: Settings
) -> Generator[tuple[int, Result]]:
    """Indices and results of the cases as they finish; large jobs start first, beside small."""
    if jobs == 1:
        for at, case in enumerate(cases):
            yield at, run_case(case, fast, settings)
        return
    needs = [memory_of(case, fast) for case in cases]
    room = int(ROOM * psutil.virtual_memory().available)
    for at, result in each(
        partial(run_case, fast=fast, settings=settings), cases, needs, room, jobs
    ):
        yield at, result or _unknown(cases[at], "its process died, perhaps out of memory")


def run_case(case: Case, fast: bool, settings: Settings = DEFAULT) -> Result:
    """Runs one job from simulation to score. It never raises: a failure is part of the result."""
    with freed_memory_kept():
        return _played(case, fast, settings)


def _played(case: Case, fast: bool, settings: Settings) -> Result:
    try:
        simulation = _simulated(case)
    except Exception as error:  # noqa: BLE001  the other jobs must go on
        return _unknown(case, _why(error))
    try:
        outcome = _diagnosed(case, simulation, fast, settings)
        return _result(case, simulation.job, simulation.truth, outcome)
    except Exception as error:  # noqa: BLE001  a diagnosis that fails has found nothing
        silence = _Outcome(Diagnosis(case.scenario.name, case.scenario.ranks, "healthy"))
        return _result(case, simulation.job, simulation.truth, silence, _why(error))


def _simulated(case: Case) -> Simulation:
    """Simulates the job; its truth is as precise as the paper's own diagnosis was."""
    simulation = simulate(case.scenario)
    faults = tuple(replace(one, group=case.group or None) for one in simulation.truth.faults)
    return replace(simulation, truth=replace(simulation.truth, faults=faults))


@dataclass(frozen=True)
class _Outcome:
    """A diagnosis, and what it took."""

    diagnosis: Diagnosis
    steps_to_verdict: int | None = None
    computing_s: float = 0.0


def _diagnosed(case: Case, simulation: Simulation, fast: bool, settings: Settings) -> _Outcome:
    window = simulation.window if fast else through_the_store(simulation.window)
    began = time.process_time()
    diagnosis = diagnose(window, settings)
    computing_s = time.process_time() - began
    if not score(simulation.truth, simulation.job, diagnosis).found:
        return _Outcome(diagnosis, None, computing_s)
    steps = _steps_to_verdict(case, window, simulation.truth, settings)
    return _Outcome(diagnosis, steps, computing_s)


def _result(case: Case, job: Job, truth: Truth, outcome: _Outcome, failed: str = "") -> Result:
    one = case.scenario
    return Result(
        case.id, case.row, case.family, one.ranks, case.dimensions, one.seed, _in_words(truth),
        truth.faults[0].slowdown if truth.faults else None, outcome.diagnosis.state,
        _reported(outcome.diagnosis), score(truth, job, outcome.diagnosis),
        outcome.steps_to_verdict, round(outcome.computing_s, 3), case.form, case.nominal, failed,
    )  # fmt: skip


def _unknown(case: Case, why: str) -> Result:
    """The result of a job that could not be simulated, so that its truth is unknown."""
    one = case.scenario
    return Result(
        case.id, case.row, case.family, one.ranks, case.dimensions, one.seed,
        " + ".join(fault.name for fault in one.faults), None, "healthy", (),
        Score(costly=False, hangs=False, alarms=0), None, 0.0, case.form, case.nominal, why,
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


def _steps_to_verdict(case: Case, window: Window, truth: Truth, settings: Settings) -> int | None:
    """Diagnoses what was known after each of `case.looks`; None if none of them named a culprit."""
    onset = min(fault.steps[0] for fault in truth.faults if fault.steps and is_costly(fault))
    ends = step_ends(window)
    for steps in case.looks:
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


def _reported(diagnosis: Diagnosis) -> tuple[ReportedVerdict, ...]:
    return tuple(
        ReportedVerdict(verdict.kind, verdict.cause, verdict.ranks,
                        tuple(device.name for device in verdict.devices), verdict.summary)
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

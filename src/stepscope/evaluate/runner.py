"""Plays the jobs of a suite, diagnoses and scores them, in as many processes as wanted."""

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
"""What a process needs for the smallest jobs, without the wire and with it (measured)."""
FAST_OPERATION, WIRE_OPERATION = 80, 280
"""More for each operation of a rank and step: 52 were measured with 10,240 ranks and 50 steps (7.1
GB), and by wire 280 at most."""
ROOM = 0.8
"""Of the memory that is free at the start: the rest is for whoever else grows."""

Progress = Callable[[int, int], None]
Keep = Callable[[Sequence["Result"]], None]
"""Told all results there are, whenever there is another one."""


@dataclass(frozen=True)
class Said:
    """One verdict, as far as it is judged."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    devices: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class Result:
    """One job: what it was, what was said about it, and how good that is."""

    id: str
    row: str
    family: str
    ranks: int
    dimensions: int
    seed: int
    fault: str
    """Its faults in words of the command line; empty: healthy."""
    slowdown: float | None
    """Of the steps with the first fault."""
    state: str
    said: tuple[Said, ...]
    score: Score
    steps_to_verdict: int | None
    """Steps from the fault's first until the first look that named a culprit."""
    computing_s: float
    """CPU time of one diagnosis of the whole job."""
    form: str = ""
    """As `Case.form`."""
    size: int = 0
    """As `Case.nominal`; 0: `ranks`."""
    failed: str = ""
    """What went wrong: simulator or diagnosis gave up, or the process died. Nothing was said."""


def run(
    cases: Sequence[Case], *, fast: bool, jobs: int, progress: Progress | None = None,
    keep: Keep | None = None,
) -> list[Result]:  # fmt: skip
    """All results in the order of the cases; after an interrupt, those there are."""
    found: dict[int, Result] = {}
    with suppress(KeyboardInterrupt), closing(_each(cases, fast, jobs)) as results:
        for done, (at, result) in enumerate(results, 1):
            found[at] = result
            if progress is not None:
                progress(done, len(cases))
            if keep is not None:
                keep([found[one] for one in sorted(found)])
    return [found[at] for at in sorted(found)]


def _each(cases: Sequence[Case], fast: bool, jobs: int) -> Generator[tuple[int, Result]]:
    """Numbers and results of the cases as they come; large jobs begin first, beside small ones."""
    if jobs == 1:
        for at, case in enumerate(cases):
            yield at, run_case(case, fast)
        return
    needs = [memory_of(case, fast) for case in cases]
    room = int(ROOM * psutil.virtual_memory().available)
    for at, result in each(partial(run_case, fast=fast), cases, needs, room, jobs):
        yield at, result or _unknown(cases[at], "its process died, perhaps for want of memory")


def run_case(case: Case, fast: bool) -> Result:
    """One job, from the first step to its score. It never raises: what fails is told."""
    with freed_memory_kept():
        return _played(case, fast)


def _played(case: Case, fast: bool) -> Result:
    try:
        simulation = _simulated(case)
    except Exception as error:  # noqa: BLE001  other jobs go on
        return _unknown(case, _why(error))
    try:
        return _result(case, simulation.job, simulation.truth, _told(case, simulation, fast))
    except Exception as error:  # noqa: BLE001  a diagnosis that gives up has found nothing
        silence = _Told(Diagnosis(case.scenario.name, case.scenario.ranks, "healthy"))
        return _result(case, simulation.job, simulation.truth, silence, _why(error))


def _simulated(case: Case) -> Simulation:
    """Its truth ends where the paper's did."""
    simulation = simulate(case.scenario)
    faults = tuple(replace(one, group=case.group or None) for one in simulation.truth.faults)
    return replace(simulation, truth=replace(simulation.truth, faults=faults))


@dataclass(frozen=True)
class _Told:
    """What diagnosis said."""

    diagnosis: Diagnosis
    steps_to_verdict: int | None = None
    computing_s: float = 0.0


def _told(case: Case, simulation: Simulation, fast: bool) -> _Told:
    window = simulation.window if fast else through_the_store(simulation.window)
    began = time.process_time()
    diagnosis = diagnose(window)
    computing_s = time.process_time() - began
    if not score(simulation.truth, simulation.job, diagnosis).found:
        return _Told(diagnosis, None, computing_s)
    return _Told(diagnosis, _steps_to_verdict(case, window, simulation.truth), computing_s)


def _result(case: Case, job: Job, truth: Truth, told: _Told, failed: str = "") -> Result:
    one = case.scenario
    return Result(
        case.id, case.row, case.family, one.ranks, case.dimensions, one.seed, _in_words(truth),
        truth.faults[0].slowdown if truth.faults else None, told.diagnosis.state,
        _said(told.diagnosis), score(truth, job, told.diagnosis), told.steps_to_verdict,
        round(told.computing_s, 3), case.form, case.nominal, failed,
    )  # fmt: skip


def _unknown(case: Case, why: str) -> Result:
    """A job of which not even the truth is known."""
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
    """About what a process needs for one job at its peak, in bytes."""
    one = case.scenario
    operations = one.ranks * one.steps * len(World(one).ops)
    if fast:
        return FAST_BYTES + operations * FAST_OPERATION
    return WIRE_BYTES + operations * WIRE_OPERATION


def _steps_to_verdict(case: Case, window: Window, truth: Truth) -> int | None:
    """The first look at which the culprit was named, in steps; None where later ones unsaid it."""
    onset = min(fault.steps[0] for fault in truth.faults if fault.steps and is_costly(fault))
    ends = step_ends(window)
    for steps in case.looks:
        moment_ns = moment_of(ends, onset, steps)
        if moment_ns is None:
            return None
        if is_found(truth, window.job, diagnose(until(window, moment_ns))):
            return steps
    return None


def moment_of(ends: dict[int, int], onset: int, steps: int) -> int | None:
    """When so many steps since the onset have passed; in a job that hangs, typical ones."""
    wanted = onset + steps - 1
    if not ends or max(ends) < onset - 1:
        return None
    if wanted in ends:
        return ends[wanted]
    last = max(ends)
    typical = float(np.median(np.diff([ends[one] for one in sorted(ends)]))) if len(ends) > 1 else 0
    return ends[last] + round((wanted - last) * typical)


def _said(diagnosis: Diagnosis) -> tuple[Said, ...]:
    return tuple(
        Said(one.kind, one.cause, one.ranks, tuple(device.name for device in one.devices),
             one.summary)
        for one in diagnosis.verdicts
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
    return ", ".join([*map(str, ranks[:4]), *named[:4]]) or "nobody in particular"

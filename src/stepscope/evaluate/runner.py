"""Plays the jobs of a suite, diagnoses and scores them, in as many processes as wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.runner import diagnose
from stepscope.evaluate.path import through_the_store
from stepscope.evaluate.prefix import step_ends, until
from stepscope.evaluate.score import Score, is_costly, is_found, score
from stepscope.evaluate.suites import Case
from stepscope.simulate import Truth, simulate
from stepscope.window import Window

LOOKS = (2, 5, 10, 15, 20, 30, 45)
"""After so many steps with the fault a look is taken; time to verdict is one of these."""

Progress = Callable[[int, int], None]


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


def run(
    cases: Sequence[Case], *, fast: bool, jobs: int, progress: Progress | None = None
) -> list[Result]:
    """All results in the order of the cases."""
    found: dict[int, Result] = {}
    for done, (at, result) in enumerate(_each(cases, fast, jobs), 1):
        found[at] = result
        if progress is not None:
            progress(done, len(cases))
    return [found[at] for at in sorted(found)]


def run_case(case: Case, fast: bool) -> Result:
    """One job, from the first step to its score."""
    simulation = simulate(case.scenario)
    window = simulation.window if fast else through_the_store(simulation.window)
    began = time.process_time()
    diagnosis = diagnose(window)
    computing_s = time.process_time() - began
    truth = simulation.truth
    judged = score(truth, simulation.job, diagnosis)
    soon = _steps_to_verdict(window, truth) if judged.found else None
    one = case.scenario
    return Result(
        case.id, case.row, case.family, one.ranks, case.dimensions, one.seed, _in_words(truth),
        truth.faults[0].slowdown if truth.faults else None, diagnosis.state, _said(diagnosis),
        judged, soon, round(computing_s, 3), case.form,
    )  # fmt: skip


def _each(cases: Sequence[Case], fast: bool, jobs: int) -> Iterator[tuple[int, Result]]:
    """Numbers and results of the cases as they come; large jobs begin first."""
    order = sorted(range(len(cases)), key=lambda at: -cases[at].scenario.ranks)
    if jobs == 1:
        yield from ((at, run_case(cases[at], fast)) for at in order)
        return
    # arrow has threads of its own, which a fork would lose
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting: dict[Future[Result], int] = {
            pool.submit(run_case, cases[at], fast): at for at in order
        }
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _steps_to_verdict(window: Window, truth: Truth) -> int | None:
    """The first look at which the culprit was named, in steps; None where later ones unsaid it."""
    onset = min(fault.steps[0] for fault in truth.faults if fault.steps and is_costly(fault))
    ends = step_ends(window)
    for steps in LOOKS:
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

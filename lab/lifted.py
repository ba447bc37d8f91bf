"""Lifts faults that are there from the first step on: the job goes on for some steps without them.

Only they say what a step takes without the fault. The same healthy job took 250 to 307 ms a step
from one run to the next, while the thirds of a run differ by 6 % (seed 156), so a run of its
own says little. The steps without the fault are not part of the recording that is diagnosed.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from lab.faults import When
from lab.scenarios import Case
from stepscope.cli.writing import write_window
from stepscope.evaluate.excerpt import first_and_last, of_steps
from stepscope.store import JobReader, Location

STEPS = 50
"""Without the fault, at the end."""
SETTLING = 3
"""The first of them, in which what the fault delayed may still come."""
AFTER = "steps-after.csv"
"""Like `steps.csv`, of the steps without the fault."""


def can_be(case: Case) -> bool:
    """Whether there are such faults, all of them made from outside or by conditions, not by how
    the job was started, and the job goes on."""
    fixed = any(fault.hangs or fault.options() for fault in case.faults)
    return case.slow_from_start and not fixed


def lifted(case: Case) -> Case:
    """The case to run: it goes on for `STEPS` steps after its faults have ended."""
    last = case.job.steps - 1
    faults = tuple(replace(fault, when=When(fault.when.first, min(last, fault.when.last or last)))
                   for fault in case.faults)  # fmt: skip
    return replace(case, job=replace(case.job, steps=case.job.steps + STEPS), faults=faults)


def cut(folder: Path, steps: int) -> None:
    """Ends a recording after so many steps; times of the others go to `AFTER`."""
    lines = (folder / "steps.csv").read_text().splitlines(keepends=True)
    later = [line for line in lines if int(line.partition(",")[0]) >= steps]
    (folder / AFTER).write_text("".join(later))
    (folder / "steps.csv").write_text("".join(lines[: len(lines) - len(later)]))
    _cut_job(folder / "job", steps)


def _cut_job(job: Path, steps: int) -> None:
    window = JobReader(str(job)).refresh()
    known = first_and_last(window)
    assert known is not None, "a job that ran has steps"
    shorter = of_steps(window, range(known[0], steps))
    shutil.rmtree(job)
    write_window(shorter, Location.parse(str(job)), "lab")

"""Ranks whose process was stopped for a while, and went on.

Fault: SIGSTOP (a job manager that suspends, a debugger, Ctrl-Z), a frozen control group or machine.
Paper: none. While it lasts it is a hang (`hang`); afterwards a single long step is left, for which
no rank has own time beyond the others'. The kernel's account of the process decides alone: neither
arrivals nor own times have to agree. What it cost is by how much the steps that it falls into are
longer than the median step, and at most as long as it lasted.
If all ranks were stopped at once, somebody suspended the job, and no rank is accused.
Cost: one sort of the samples. Cannot see: what is shorter than two samples of a process; processes
that nobody sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stepscope.diagnose.finding import Decision, Finding, Slowdown, Span, Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.stops import METRIC, Stop
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import Ints

SCORE = 0.97
"""As of a process that is stopped (`hang`): the kernel itself says so."""


class Stopped:
    """Ranks whose process was stopped and went on, so that all others waited for it."""

    name = "stopped"
    needs = Needs(f"hardware:{METRIC}", "steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        by_ranks: dict[tuple[int, ...], list[Stop]] = {}
        for stop in job.stops:
            if not _is_known(job, stop, so_far):
                by_ranks.setdefault(stop.ranks, []).append(stop)
        for ranks, stops in by_ranks.items():
            yield from _finding(job, ranks, stops)


def _is_known(job: Observed, stop: Stop, so_far: SoFar) -> bool:
    """Whether one of its ranks has a verdict about these very steps."""
    columns = set(columns_of(job, stop).tolist())
    return any(int(job.line.ranks[one.row]) in stop.ranks and columns & set(one.spikes)
               for one in so_far.culprits)  # fmt: skip


def columns_of(job: Observed, stop: Stop) -> Ints:
    """The steps during which it was stopped."""
    first, last = job.line.column_at(np.array([stop.begin_ns, stop.last_ns])).tolist()
    return np.arange(first, last + 1) if first >= 0 and last >= 0 else np.zeros(0, np.int64)


def _finding(job: Observed, ranks: tuple[int, ...], stops: Sequence[Stop]) -> Iterator[Finding]:
    columns = [columns_of(job, one) for one in stops]
    lost_ns = sum(_lost_ns(job, one, at) for one, at in zip(stops, columns, strict=True))
    inside, line = np.unique(np.concatenate(columns)), job.line
    if lost_ns <= 0 or not inside.size:
        return
    first, stop = int(inside[0]), int(inside[-1]) + 1
    judged = min(line.warm_up, first)
    stopped_ns = sum(one.end_ns - one.begin_ns for one in stops)
    says = _says(job, ranks, stops, line.span(first, stop))
    detail = f"{says}; every look at it in that time found it stopped"
    shown = line.span(first, stop), (stops[0].begin_ns, stops[-1].end_ns)
    lost = min(lost_ns / float(np.nansum(line.job_period_ns[judged:])), 1.0)
    if len(ranks) == len(line.ranks) > 1:
        yield Waste(
            Stopped.name, "host", detail, steps=shown[0], time_ns=shown[1], lost_fraction=lost,
            score=SCORE, says=says, values={"stopped_ns": stopped_ns},
        )  # fmt: skip
        return
    yield Slowdown(
        Stopped.name, "host", detail, ranks, steps=shown[0], time_ns=shown[1],
        lost_ns=lost_ns / inside.size, lost_fraction=lost, score=SCORE, says=says,
        lost_of=line.span(judged, len(line.steps)), values={"stopped_ns": stopped_ns},
        decisions=(Decision("stopped", True, stopped_ns / 1e9, None, says),), measured_cost=True,
        columns=frozenset(inside.tolist()),
    )  # fmt: skip


def _lost_ns(job: Observed, stop: Stop, columns: Ints) -> float:
    """By how much its steps are longer than the median, and at most as long as it lasted."""
    longer = np.maximum(job.line.job_period_ns[columns] - job.line.typical_ns, 0.0)
    return min(float(np.nansum(longer)), float(stop.end_ns - stop.begin_ns))


def _says(job: Observed, ranks: tuple[int, ...], stops: Sequence[Stop], steps: Span) -> str:
    """`rank 1 stood still for 8.2 s in step 205: its process was stopped, and went on`."""
    lasted = sum(one.end_ns - one.begin_ns for one in stops) / 1e9
    where = f"in step {steps[0]}" if steps[0] == steps[1] else f"in steps {steps[0]} to {steps[1]}"
    who = "all ranks" if len(ranks) == len(job.line.ranks) > 1 else name_ranks(ranks)
    times = "" if len(stops) == 1 else f" in {len(stops)} stops"
    whose = "its process was" if len(ranks) == 1 else "their processes were"
    return f"{who} stood still for {lasted:.1f} s{times} {where}: {whose} stopped, and went on"

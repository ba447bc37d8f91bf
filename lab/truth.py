"""What is true about a recorded case: who, and what it cost by rank 0's own clock."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import lifted
from lab.faults import Fault
from lab.scenarios import Case
from lab.shapes import Job

WARM_UP = 5
"""First steps, which allocate and connect."""
WORTH = 0.05
"""A fault that costs less is no case: nobody could be expected to find it."""
SURE = 3.0
"""Standard deviations by which steps with a fault rank above those without, if it costs the same in
each: with fewer, chance may have made its cost (one in 700)."""
SLACK = 0.1
"""Between the loss that is named and the measured one."""


def step_spans(folder: Path, file: str = "steps.csv") -> dict[int, tuple[int, int]]:
    """When rank 0 began and ended each step that it finished (CLOCK_MONOTONIC), in order."""
    spans = {}
    for line in (folder / file).read_text().splitlines():
        step, began, ended = map(int, line.split(","))
        spans[step] = began, ended
    return spans


def step_times(folder: Path, file: str = "steps.csv") -> dict[int, int]:
    """Nanoseconds of each step that rank 0 finished."""
    return {step: ended - began for step, (began, ended) in step_spans(folder, file).items()}


def write(case: Case, folder: Path, twin: Path | None) -> dict[str, Any]:
    """Writes `truth.json` beside the job; `twin` is the healthy run of the same job, where nothing
    else says what a step takes without the fault."""
    truth: dict[str, Any] = {
        "id": case.name, "scenario": case.scenario, "family": case.family, "seed": case.seed,
        "held_out": case.held_out, "job": dataclasses.asdict(case.job),
        "faults": [_described(fault, case.job) for fault in case.faults],
    }  # fmt: skip
    times = step_times(folder)
    truth["steps"] = len(times)
    if case.faults and not case.faults[0].hangs:
        truth |= _cost(case, times, _without(case, folder, times, twin))
    elif case.faults:
        truth["hung_after"] = max(times, default=-1)
    truth["expect"] = _expect(case, truth)
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def needs_twin(case: Case) -> bool:
    """Whether nothing in the run says what a step takes without the fault, if it is not lifted."""
    return case.slow_from_start


def is_recorded(case: Case, folder: Path) -> bool:
    """Whether a folder holds this very case, not one that was drawn by earlier code."""
    path = folder / "truth.json"
    if not path.exists():
        return False
    job = json.loads(json.dumps(dataclasses.asdict(case.job)))
    return bool(json.loads(path.read_text())["job"] == job)


def _described(fault: Fault, job: Job) -> dict[str, Any]:
    expected = fault.expected(job)
    ranks = [list(accepted) for accepted in expected.ranks]
    hosts = sorted({f"host-{job.host_of(rank)}" for accepted in ranks for rank in accepted})
    return {
        "type": type(fault).__name__, **dataclasses.asdict(fault), "kind": expected.kind,
        "ranks": ranks, "causes": list(expected.causes), "hosts": hosts,
    }  # fmt: skip


def _without(case: Case, folder: Path, times: dict[int, int], twin: Path | None) -> list[int]:
    """Times of steps without a fault: those before it, those after it was lifted, or the twin's."""
    first = min(fault.when.first for fault in case.faults)
    if first > 0:
        return [ns for step, ns in _ordinary(case.job, times).items() if step < first]
    if (folder / lifted.AFTER).exists():
        later = step_times(folder, lifted.AFTER)
        settled = case.job.steps + lifted.SETTLING
        return [ns for step, ns in _ordinary(case.job, later).items() if step >= settled]
    assert twin is not None
    return list(_ordinary(case.job, step_times(twin)).values())


def _cost(case: Case, times: dict[int, int], healthy: list[int]) -> dict[str, Any]:
    """What a step takes without faults, and the share of the faulty steps that they cost."""
    ordinary = _ordinary(case.job, times)
    each = [_lost(healthy, ordinary, [fault], fault.steady) for fault in case.faults]
    steady = all(fault.steady for fault in case.faults)
    return {
        "needed_ns": round(_typical(healthy, steady)), "lost_each": each,
        "lost": _lost(healthy, ordinary, case.faults, steady),
        "lost_mean": _lost(healthy, ordinary, case.faults, steady=False),
        "worth": min(each) >= WORTH and all(
            not fault.steady or _rank_sum(healthy, _during([fault], ordinary)) >= SURE
            for fault in case.faults),
    }  # fmt: skip


def _lost(
    healthy: list[int], ordinary: dict[int, int], faults: Sequence[Fault], steady: bool
) -> float:
    during = _during(faults, ordinary)
    return round(1 - _typical(healthy, steady) / _typical(during, steady), 4)


def _rank_sum(some: Sequence[int], others: Sequence[int]) -> float:
    """By how many standard deviations the others rank higher (Mann and Whitney, 1947)."""
    below = sum((one < other) + 0.5 * (one == other) for one in some for other in others)
    pairs = len(some) * len(others)
    deviation = math.sqrt(pairs * (len(some) + len(others) + 1) / 12)
    return (below - pairs / 2) / deviation


def _during(faults: Sequence[Fault], times: dict[int, int]) -> list[int]:
    """Times of the steps with one of these faults."""
    return [ns for step, ns in times.items() if any(one.when.includes(step) for one in faults)]


def _typical(times: list[int], steady: bool) -> float:
    """The lower quartile of what is alike in every step, for other work on this machine makes
    some of them longer; the mean of what is not."""
    if steady:
        return sorted(times)[len(times) // 4]
    return sum(times) / len(times)


def _ordinary(job: Job, times: dict[int, int]) -> dict[int, int]:
    """Without warm-up, checkpoints and evaluations, which healthy and faulty steps have alike."""
    save, judge = (int(job.options.get(f"{what}-every", 0)) for what in ("checkpoint", "evaluate"))
    return {
        step: ns for step, ns in times.items()
        if step >= WARM_UP and not (save and step % save == save - 1)
        and not (judge and step % judge == 0)
    }  # fmt: skip


def _expect(case: Case, truth: dict[str, Any]) -> dict[str, Any]:
    """In the form that scorers of other people's jobs use."""
    if not case.faults:
        return {"type": "healthy", "states": ["healthy"]}
    described = truth["faults"]
    accepted = [
        sorted(set().union(*choice)) for choice in _choices([f["ranks"] for f in described])
    ]
    expect: dict[str, Any] = {
        "type": "culprit" if all(accepted) else "spread",
        "kind": described[0]["kind"], "ranks": accepted,
        "hosts": sorted({host for fault in described for host in fault["hosts"]}),
        "causes": sorted({cause for fault in described for cause in fault["causes"]}),
    }  # fmt: skip
    if expect["type"] == "spread":
        expect["min_ranks"] = case.job.world
    last = max(f["when"]["last"] or case.job.steps - 1 for f in described)
    if described[0]["kind"] == "slowdown":
        expect["steps"] = [min(f["when"]["first"] for f in described), last]
        expect["steps_slack"] = 10
        expect["lost"] = [round(truth["lost"] - SLACK, 3), round(truth["lost"] + SLACK, 3)]
    return expect


def _choices(options: list[list[list[int]]]) -> list[list[list[int]]]:
    """One accepted set of each fault, in all combinations."""
    chosen: list[list[list[int]]] = [[]]
    for accepted in options:
        chosen = [[*before, ranks] for before in chosen for ranks in accepted]
    return chosen

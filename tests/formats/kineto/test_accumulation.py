"""Scripts that call the profiler's `step` after each microbatch, and step the optimizer rarely."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from stepscope.formats.kineto.read import Reading
from stepscope.window import Table

from .traces import Event, event, trace, write

RANKS, MARKS, EVERY = 4, 48, 4
MS = 1e3


def mark(name: str, start: float, end: float) -> Event:
    return event("user_annotation", name, start * MS, (end - start) * MS)


def microbatch(rank: int, start: float, jitter: float) -> tuple[list[Event], float]:
    """A forward and a backward pass."""
    half, end = start + 4.0 + jitter, start + 10.0 + 2 * jitter
    name = "autograd::engine::evaluate_function: Mm"
    backward = event("cpu_op", name, half * MS, (end - half) * MS)
    return [event("cpu_op", "aten::mm", start * MS, (4.0 + jitter) * MS), backward], end


def update(start: float, late: float, last: float) -> tuple[list[Event], float]:
    """Gradients are exchanged; then the optimizer steps, on one rank after a delay."""
    stepped = last + late
    return [
        event("cpu_op", "c10d::allreduce_", start * MS, 5),
        mark("gloo:all_reduce", start + 0.01, last), mark("Optimizer.step#SGD.step", stepped,
        stepped + 1), event("cpu_op", "aten::add_", stepped * MS, MS),
    ], stepped + 1  # fmt: skip


def traces(
    folder: Path, first: int = 4, late: float = 0.0, every: int = EVERY, skipped: int | None = None
) -> Reading:
    """Ranks that meet after each fourth microbatch; the last one may be late for the next step.

    Args:
        skipped: one of the profiler's steps in which the optimizer does not step.
    """
    clocks, events = [0.0] * RANKS, [list[Event]() for _ in range(RANKS)]
    for number in range(first, first + MARKS):
        begins = list(clocks)
        for rank in range(RANKS):
            did, clocks[rank] = microbatch(
                rank,
                clocks[rank] + 0.1 * (1 + (3 * number + rank) % 4),
                0.2 * ((number + rank) % 3),
            )
            events[rank] += did
        if number % every == every - 1 and number != skipped:
            met = max(clocks) + 0.2
            for rank in range(RANKS):
                delay = late + 0.5 * (number % 3) if rank == RANKS - 1 else 0.0
                did, clocks[rank] = update(clocks[rank], delay, met)
                events[rank] += did
        for rank in range(RANKS):
            events[rank].append(mark(f"ProfilerStep#{number}", begins[rank], clocks[rank]))
    for rank in range(RANKS):
        write(folder / f"rank{rank}.json", trace(events[rank], distributedInfo={"rank": rank}))
    return read(folder)


def steps(reading: Reading) -> list[int]:
    table = reading.window.tables["steps"]
    numbers: list[int] = table.ints("step")[table.ints("rank") == 0].tolist()
    return numbers


def of_rank_and_step(table: Table, rank: int, step: int) -> Table:
    return table.take((table.ints("rank") == rank) & (table.ints("step") == step))


def test_four_of_the_profilers_steps_are_one_if_the_optimizer_steps_in_every_fourth(
    tmp_path: Path,
) -> None:
    reading = traces(tmp_path)
    assert steps(reading) == list(range(1, 13))
    phases = of_rank_and_step(reading.window.tables["phases"], 1, 3)
    names = phases.strings("phase")
    found = [(names[at], microbatch) for at, microbatch in enumerate(
        phases.ints("microbatch").tolist())]  # fmt: skip
    passes = [(name, at) for at in range(4) for name in ("forward-compute", "backward-compute")]
    assert found == [*passes, ("optimizer", -1)]
    assert [one for one in reading.problems if "every 4th" in one]


def test_a_step_that_began_before_the_recording_is_left_out(tmp_path: Path) -> None:
    assert steps(traces(tmp_path, first=2)) == list(range(1, 12))


def test_an_optimizer_that_steps_each_time_makes_each_a_step(tmp_path: Path) -> None:
    reading = traces(tmp_path, every=1)
    assert steps(reading) == list(range(4, 4 + MARKS)) and not reading.problems


def test_an_optimizer_that_skipped_once_joins_nothing(tmp_path: Path) -> None:
    assert steps(traces(tmp_path, skipped=19)) == list(range(4, 4 + MARKS))


def test_a_rank_that_is_late_after_each_update_is_no_schedule_of_its_own(tmp_path: Path) -> None:
    (verdict,) = diagnose(traces(tmp_path, late=30.0).window).verdicts
    assert verdict.ranks == (3,)
    assert verdict.lost_fraction == pytest.approx(30 / 73, abs=0.05)


def test_healthy_accumulation_has_no_verdict(tmp_path: Path) -> None:
    found = diagnose(traces(tmp_path).window)
    assert found.state == "healthy" and not found.verdicts

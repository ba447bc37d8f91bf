"""Files that end in the middle: events of a rank are missing, and nobody knows which of its
collectives are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from stepscope.formats.kineto.read import Reading

from .traces import Event, event, trace, write

RANKS, STEPS, SLOW, CUT = 4, 20, 2, 6


def host(name: str, start: float, end: float) -> Event:
    return event("cpu_op", name, start * 1e3, (end - start) * 1e3)


def mark(name: str, start: float, end: float) -> Event:
    return event("user_annotation", name, start * 1e3, (end - start) * 1e3)


def traces(folder: Path, cut: bool, slow_ms: float = 40.0) -> Reading:
    """Ranks that reduce their gradients one by one, without marks of steps; one is slow in its
    backward passes, and its file may be cut off."""
    events: list[list[Event]] = [[] for _ in range(RANKS)]
    clock = 0.0
    for number in range(STEPS):
        began = [clock + 0.1 * ((number + rank) % 3) for rank in range(RANKS)]
        done = [at + 24.0 + 0.3 * (number % 4) + (slow_ms if rank == SLOW else 0.0)
                for rank, at in enumerate(began)]  # fmt: skip
        met = max(done) + 0.5
        for rank, (begin, end) in enumerate(zip(began, done, strict=True)):
            lost = cut and rank == SLOW
            if lost and number >= CUT:
                continue
            events[rank] += [
                host("aten::mm", begin, begin + 9),
                host("autograd::engine::evaluate_function: Mm", begin + 9, end),
            ]
            for at in range(4):
                start, left = (end if at == 0 else met + at - 1 + 0.1), met + at
                events[rank].append(host("c10d::allreduce_", start, start + 0.01))
                if not (lost and at % 2):
                    events[rank].append(mark("gloo:all_reduce", start + 0.02, left))
            last = met + 3.2
            events[rank] += [mark("Optimizer.step#SGD.step", last, last + 1),
                             host("aten::add_", last, last + 1)]  # fmt: skip
        clock = met + 5.0
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        write(path, trace(events[rank], distributedInfo={"rank": rank}))
        if cut and rank == SLOW:
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) * 9 // 10])
    return read(folder)


@pytest.mark.parametrize("cut", [False, True])
def test_a_slow_rank_is_named_by_the_steps_that_its_file_has(tmp_path: Path, cut: bool) -> None:
    (verdict,) = diagnose(traces(tmp_path, cut).window).verdicts
    assert verdict.ranks == (SLOW,) and verdict.phase == "backward-compute"
    assert verdict.cause == "compute"
    assert verdict.lost_fraction == pytest.approx(40 / 70, abs=0.05)
    assert verdict.steps is not None and (verdict.steps[1] < CUT) == cut


def test_collectives_of_a_rank_that_lost_some_are_not_paired_by_their_order(tmp_path: Path) -> None:
    found = diagnose(traces(tmp_path, cut=True).window)
    assert all(abs(one.offset_ns) < 2_000_000 for one in found.clocks)


def test_a_healthy_job_with_a_file_that_was_cut_off_has_no_verdict(tmp_path: Path) -> None:
    assert not diagnose(traces(tmp_path, cut=True, slow_ms=0.0).window).verdicts

"""Files that end in the middle: events of a rank are missing, and nobody knows which of its
collectives are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from stepscope.formats.kineto.read import Reading

from .traces import COLLECTIVE, Event, event, trace, write

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


def devices(rank: int, kernels_until: int = 6) -> list[Event]:
    """Hosts that launch six steps ahead of their devices; the second device is 15 % slower."""
    events, marks, at = [], [], 1000.0
    for number in range(6):
        marks.append(event("user_annotation", f"ProfilerStep#{number}", 1000 + 50 * number, 49))
        for part in range(2):
            slow = 1.15 if rank == 1 else 1.0
            id = 100 * number + 10 * part + 1
            launch = 1000 + 50 * number + 20 * part
            marks.append(event("cuda_runtime", "cudaLaunchKernel", launch, 5, correlation=id))
            if number < kernels_until - 1 or (number < kernels_until and not part):
                events.append(event("kernel", "gemm", at, 5000 * slow, 7, correlation=id,
                                    stream=7, device=0))  # fmt: skip
            at += 5000 * slow
        meet = 1000.0 + (number + 1) * 12_000
        events.append(
            event(
                "kernel",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                at,
                meet - at,
                20,
                stream=20,
                device=0,
                correlation=100 * number + 31,
                **COLLECTIVE,
            )
        )
        marks.append(event("cuda_runtime", "cudaLaunchKernel", 1045 + 50 * number, 4,
                           correlation=100 * number + 31))  # fmt: skip
        at = meet
    return [*marks, *events]


def test_steps_that_a_cut_file_has_the_marks_of_but_not_the_kernels_are_unknown(
    tmp_path: Path,
) -> None:
    for rank in range(4):
        path = write(tmp_path / f"rank{rank}.json", trace(devices(rank), rank, 4))
        if rank == 3:
            whole = path.read_bytes()
            path.write_bytes(whole[: whole.rindex(b'"ts": 25000.0')])
    reading = read(tmp_path)
    steps = reading.window.tables["steps"]
    assert steps.ints("step")[steps.ints("rank") == 3].tolist() == [0, 1]
    assert 3 not in reading.window.tables["patterns"].ints("rank")
    (verdict,) = diagnose(reading.window).verdicts
    assert verdict.ranks == (1,)

"""Where time goes and which rank arrives last, also in healthy jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.shown import RankTime
from stepscope.trace import ProcessGroup
from stepscope.window import Window

from .jobs import MS, a_job, put, without
from .traces import BETWEEN_STEPS_MS, TRANSFER_MS, Piece, a_trace

COPY = "Memcpy HtoD (Pinned -> Device)"
USUAL = (Piece("gemm", 20), Piece(COPY, 3), Piece("softmax", 10))


def a_late_rank(more_ms: float, ranks: int = 4) -> Window:
    def work(rank: int, step: int) -> Sequence[Piece]:
        return (*USUAL, Piece("gemm", more_ms)) if rank == 2 else USUAL

    return a_trace(work, ranks, spread=0.0)


def time_of(found: Diagnosis, rank: int) -> RankTime:
    return next(one for one in found.rank_times if one.rank == rank)


def whole_ms(one: RankTime) -> float:
    parts = (one.compute_ns, one.exposed_ns, one.copy_ns, one.host_wait_ns, one.kernel_wait_ns,
             one.other_ns)  # fmt: skip
    return sum(parts) / MS


def test_where_an_average_step_goes() -> None:
    found = diagnose(a_late_rank(12))
    usual, late = time_of(found, 0), time_of(found, 2)
    assert (usual.compute_ns, usual.copy_ns) == (30 * MS, 3 * MS)
    assert usual.exposed_ns == int((12 + TRANSFER_MS) * MS)
    assert (late.compute_ns, late.exposed_ns) == (42 * MS, int(TRANSFER_MS * MS))


def test_the_parts_are_the_whole_step_of_every_rank() -> None:
    found = diagnose(a_late_rank(12))
    step_ms = 33 + 12 + TRANSFER_MS + BETWEEN_STEPS_MS
    for one in found.rank_times:
        assert whole_ms(one) == pytest.approx(step_ms, abs=1)


def test_a_late_launch_is_waiting_for_the_host() -> None:
    late = (Piece("gemm", 20), Piece("softmax", 10, late_ms=7))
    found = diagnose(a_trace(lambda rank, step: late, spread=0.0))
    assert time_of(found, 1).host_wait_ns == 7 * MS


def test_one_rank_has_its_breakdown_all_the_same() -> None:
    found = diagnose(a_trace(lambda rank, step: USUAL, ranks=1, spread=0.0))
    (one,) = found.rank_times
    assert (one.rank, one.compute_ns, one.copy_ns) == (0, 30 * MS, 3 * MS)
    assert found.last_arrivals == ()


def test_on_cpu_operators_compute_and_idle_time_has_no_reason() -> None:
    late = (Piece("aten::mm", 20), Piece("aten::relu", 10, late_ms=7))
    found = diagnose(a_trace(lambda rank, step: late, on_device=False, spread=0.0))
    one = time_of(found, 1)
    assert (one.compute_ns, one.host_wait_ns, one.kernel_wait_ns) == (30 * MS, 0, 0)
    assert one.other_ns == pytest.approx(7 * MS, abs=MS)


def test_a_trace_without_steps_has_a_breakdown_of_the_whole_recording() -> None:
    window = without(a_trace(lambda rank, step: USUAL, steps=3, spread=0.0), "steps", "phases")
    tables = {name: table.with_column("step", table.ints("step") * 0 - 1)
              for name, table in window.tables.items()}  # fmt: skip
    found = diagnose(Window(window.job, tables))
    assert time_of(found, 0).compute_ns == 3 * 30 * MS


def test_a_job_without_a_trace_has_no_breakdown() -> None:
    assert diagnose(a_job(steps=30)).rank_times == ()


def test_the_last_arrival_and_the_waiting_that_it_caused() -> None:
    (late,) = diagnose(a_late_rank(12)).last_arrivals
    assert (late.group, late.op, late.rank) == ("dp-0", "AllReduce", 2)
    assert (late.last, late.operators) == (6, 6)
    assert late.caused_ns == 12 * MS


def test_waiting_that_costs_nothing_is_not_listed() -> None:
    assert diagnose(a_late_rank(0.3)).last_arrivals == ()


def test_without_aligned_clocks_there_is_no_last_arrival() -> None:
    """In a single collective the last arrival is known only with one clock."""
    window = a_trace(lambda rank, step: USUAL, steps=1)
    comm = window.tables["comm_ops"]
    ahead = (comm.ints("rank") == 2) * 300 * MS
    for name in ("enqueue_ns", "start_ns", "end_ns"):
        comm = comm.with_column(name, comm.ints(name) + ahead)
    found = diagnose(put(window, comm_ops=comm))
    assert found.last_arrivals == ()
    assert "clock of rank 2" in {one.method for one in found.skipped}


def test_each_group_has_its_own_last_arrival_the_costliest_first() -> None:
    def work(rank: int, step: int) -> Sequence[Piece]:
        return (*USUAL, Piece("gemm", {1: 5.0, 3: 9.0}.get(rank, 0.001)))

    found = diagnose(a_trace(work, groups=((0, 1), (2, 3)), spread=0.0))
    assert [(one.group, one.rank) for one in found.last_arrivals[:2]] == [("dp-1", 3), ("dp-0", 1)]
    assert found.last_arrivals[0].caused_ns == pytest.approx(9 * MS, rel=0.01)


def test_ranks_that_take_turns_share_the_blame() -> None:
    """Each is last in a third of the steps; the one that caused the most waiting is listed."""

    def work(rank: int, step: int) -> Sequence[Piece]:
        return (*USUAL, Piece("gemm", 12.0 + rank if step % 3 == rank else 0.001))

    (late,) = diagnose(a_trace(work, ranks=3, steps=9, spread=0.0)).last_arrivals
    assert (late.rank, late.last, late.operators) == (2, 3, 9)


def test_the_last_stage_of_a_pipeline_is_last_by_design() -> None:
    """The embedding's gradients lie on the first and the last stage, and that is done last."""
    window = a_late_rank(12)
    whole = ProcessGroup("dp-0", "embedding", (0, 1, 2, 3))
    stages = tuple(ProcessGroup(f"pp-{at}", "pp", (at, at + 2)) for at in range(2))
    staged = replace(window, job=replace(window.job, groups=(whole, *stages)))
    assert diagnose(staged).last_arrivals == ()
    assert diagnose(replace(window, job=replace(window.job, groups=(whole,)))).last_arrivals != ()

"""The small parts: statistics, intervals, matching, own time, stacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.prepare.matching import match
from stepscope.diagnose.views.arrivals import collect_arrivals
from stepscope.diagnose.views.frames import compiles, function_of, waits
from stepscope.diagnose.views.own_time import own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window, union

from .jobs import MS, START, Fault, a_job, a_table, without

values = st.lists(st.lists(st.floats(-10, 10) | st.just(float("nan")), min_size=3, max_size=3),
                  min_size=1, max_size=7)  # fmt: skip


@given(values)
def test_leave_one_out_medians_are_those_of_the_others(rows: list[list[float]]) -> None:
    matrix = np.array(rows)
    expected = medians_of_others(matrix)
    for way in (stats.leave_one_out_median, stats.sorted_peer_median):
        assert way(matrix) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("members", [16, 17, 18, 101, 256])
@pytest.mark.parametrize("digits", [0, 6])
def test_large_groups_have_medians_too(members: int, digits: int) -> None:
    """Rounded to whole numbers most members are equal to others; nine columns are more than are
    worked on at once."""
    random = np.random.default_rng(members)
    matrix = np.round(random.normal(size=(2, members, 9)), digits)
    matrix[random.random(matrix.shape) < 0.1] = np.nan
    result = stats.leave_one_out_median(matrix)
    for group in range(2):
        assert result[group] == pytest.approx(medians_of_others(matrix[group]), nan_ok=True)
    assert stats.sorted_peer_median(matrix) == pytest.approx(result, nan_ok=True)


def medians_of_others(matrix: Floats) -> Floats:
    """One by one."""
    medians = np.full(matrix.shape, np.nan)
    for row, column in np.ndindex(matrix.shape):
        others = np.delete(matrix[:, column], row)
        others = others[np.isfinite(others)]
        if np.isfinite(matrix[row, column]) and others.size:
            medians[row, column] = np.median(others)
    return medians


def test_block_means_drop_extremes_and_unknowns() -> None:
    series = np.array([[9.0, 1, 1, 1, 1, 100, 1, 1, 1, 1, 0, 2, 2, np.nan, 2, 2, 2, 2, 2, 2, 2]])
    assert stats.block_means(series, 10).tolist() == [[1.0, 2.0]]


def test_the_worst_stretch_has_both_ends() -> None:
    found = stats.worst_stretch(np.array([[0.0, 0, 3, 4, 3, 0, 0], [0, 0, 0, 0, 0, 0, 0]]), 0.5)
    assert (found.first[0], found.stop[0], found.mean[0]) == (2, 5, pytest.approx(10 / 3))


def test_memory_of_noise_widens_the_error_of_a_mean() -> None:
    random = np.random.default_rng(0)
    fresh = random.normal(size=(4, 400))
    slow = fresh.copy()
    for column in range(1, 400):
        slow[:, column] += 0.6 * slow[:, column - 1]
    assert stats.noise_of(fresh).memory < 1.15
    assert stats.noise_of(slow).memory == pytest.approx(2.0, abs=0.3)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_unions_cover_what_their_parts_cover(parts: list[tuple[int, int]]) -> None:
    covered = np.zeros(100, np.bool_)
    for start, length in parts:
        covered[start : start + length] = True
    begins = np.array([part[0] for part in parts], np.int64)
    merged = union(begins, begins + np.array([part[1] for part in parts], np.int64))
    points = np.arange(100)
    assert (merged.holds(points) == covered).all()
    assert (merged.covered(points) == np.concatenate(([0], np.cumsum(covered)[:-1]))).all()


def test_sends_and_receives_pair_up_in_order() -> None:
    table = a_table("rank group seq op peer enqueue_ns", [
        (0, "pp", 0, "Send", 1, 0), (1, "pp", 0, "Recv", 0, 0), (0, "pp", 1, "Send", 1, 1),
        (1, "pp", 1, "Send", 0, 1), (0, "pp", 2, "Recv", 1, 2), (1, "pp", 2, "Recv", 0, 2),
    ])  # fmt: skip
    key = match(table).key
    assert key[0] == key[1]
    assert key[2] == key[5]
    assert key[3] == key[4]
    assert len(set(key.tolist())) == 3


def test_a_match_column_counts_alone() -> None:
    table = a_table("rank group seq op peer enqueue_ns match", [
        (0, "g", 7, "AllReduce", -1, 0, 1), (1, "g", 9, "AllReduce", -1, 0, 1),
    ])  # fmt: skip
    key = match(table).key
    assert key[0] == key[1] >= 0


def test_which_rank_arrives_last_and_what_that_alone_costs() -> None:
    job = a_job(steps=40, noise=0.0, faults=[Fault((2,), "forward-compute", 0, ms=60)])
    line = timeline(job)
    arrivals = collect_arrivals(job, line)
    assert arrivals is not None
    assert set(arrivals.last_rank.tolist()) == {2}
    assert np.allclose(arrivals.alone_ns.sum(), 40 * 3 * 60 * MS)
    assert arrivals.transfer_ns[0] == 2 * MS


def test_own_time_is_what_waiting_leaves() -> None:
    job = a_job(steps=20, noise=0.0, faults=[Fault((2,), "forward-compute", 0, ms=60)])
    own = own_time(job, timeline(job))
    backward = own.of("backward-compute")
    assert np.allclose(backward[:, 5:], 50 * MS)
    assert np.allclose(own.of(OUTSIDE)[:, :-1], 0.2 * MS, atol=1000)


def a_pause_between_passes(comm: str, operators: list[tuple[object, ...]]) -> Window:
    """A step of 200 ms: forward, 40 ms of nothing, backward, and 50 ms of nothing at its end."""
    job = a_job(ranks=2, steps=1).job
    steps = [(rank, 0, START, 200 * MS) for rank in (0, 1)]
    rows = [
        (rank, 0, name, START + begin * MS, length * MS)
        for rank in (0, 1)
        for name, begin, length in (("forward-compute", 0, 50), ("backward-compute", 90, 60))
    ]
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", rows),
        "comm_ops": a_table(f"rank step group seq op peer enqueue_ns {comm}", operators),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("comm", "times"),
    [
        pytest.param("start_ns end_ns", (START + 55 * MS, START + 65 * MS), id="device"),
        pytest.param("blocked_ns", (10 * MS,), id="host"),
    ],
)
def test_gaps_between_phases_are_distinguished_from_times_before_and_after(
    comm: str, times: tuple[int, ...]
) -> None:
    operators = [(rank, 0, "dp-0", 0, "AllReduce", -1, START + 55 * MS, *times) for rank in (0, 1)]
    window = a_pause_between_passes(comm, [*operators])
    own = own_time(window, timeline(window))
    assert np.allclose(own.of(GAPS), 30 * MS)
    assert np.allclose(own.of(OUTSIDE), 50 * MS)


def test_a_wait_ends_with_its_operator_however_early_that_was_called() -> None:
    """Called in forward, waited for in the gap; another ends in backward and blocks no rank."""
    operators = [
        (rank, 0, "dp-0", seq, "AllReduce", -1, START + 20 * MS, START + end * MS, blocked * MS)
        for rank in (0, 1)
        for seq, end, blocked in ((0, 65, 15), (1, 100, 0))
    ]
    window = a_pause_between_passes("end_ns blocked_ns", [*operators])
    own = own_time(window, timeline(window))
    assert np.allclose(own.of(GAPS), 25 * MS)
    assert np.allclose(own.of(OUTSIDE), 50 * MS)


def test_gaps_may_be_waiting_where_stage_transfers_are_unrecorded() -> None:
    operators = [(rank, 0, "dp-0", 0, "AllReduce", -1, START, START, START + MS) for rank in (0, 1)]
    window = a_pause_between_passes("start_ns end_ns", [*operators])
    groups = (*window.job.groups, ProcessGroup("pp-0", "pp", (0, 1)))
    staged = Window(replace(window.job, groups=groups), window.tables)
    assert not {GAPS, OUTSIDE} & set(own_time(staged, timeline(staged)).phases)


@pytest.mark.parametrize("kernel", ["ncclDevKernel_SendRecv", "ncclDevKernel_AllReduce_Sum"])
def test_kernels_in_which_devices_wait_tell_gaps_as_operators_do(kernel: str) -> None:
    """Of stages only where those that hand over were recorded."""
    window = a_pause_between_passes("blocked_ns", [])
    kernels = [(rank, 0, kernel, 7, START + 55 * MS, 10 * MS) for rank in (0, 1)]
    names = "rank step kernel stream start_ns duration_ns"
    tables = {"kernels": a_table(names, kernels), **window.tables}
    job = replace(window.job, groups=(*window.job.groups, ProcessGroup("pp-0", "pp", (0, 1))))
    window = without(Window(job, tables), "comm_ops")
    own = own_time(window, timeline(window))
    if "SendRecv" in kernel:
        assert np.allclose(own.of(GAPS), 30 * MS)
    else:
        assert not {GAPS, OUTSIDE} & set(own.phases)


def test_blocking_operators_are_taken_out_where_waiting_was_not_measured() -> None:
    """Forward lasts 100 ms, 30 of them in a tensor-parallel operator."""
    job = Job("tp", 2, (Host("h", (0, 1)),), groups=(ProcessGroup("tp-0", "tp", (0, 1)),))
    second = START + 1000 * MS
    window = Window(job, {
        "steps": a_table("rank step start_ns duration_ns", [(0, 0, second, 200 * MS)]),
        "phases": a_table("rank step phase start_ns duration_ns",
                          [(0, 0, "forward-compute", second, 100 * MS)]),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns end_ns", [
            (0, 0, "tp-0", 0, "AllReduce", -1, second + 20 * MS, second + 50 * MS)]),
    })  # fmt: skip
    own = own_time(window, timeline(window))
    assert own.own[0, 0, 0] == 70 * MS


def test_a_phase_that_may_have_waited_is_left_out() -> None:
    job = Job("tp", 2, (Host("h", (0, 1)),), groups=(ProcessGroup("tp-0", "tp", (0, 1)),))
    lengths = (("forward-compute", 100), ("mlp", 40))
    rows = [(rank, 0, name, START, length * MS) for rank in (0, 1) for name, length in lengths]
    phases = a_table("rank step phase start_ns duration_ns", rows)
    window = Window(job, {"phases": phases})
    own = own_time(window, timeline(window))
    assert "mlp" in own.phases
    assert "forward-compute" not in own.phases
    assert own.skipped[0].method == "own time of forward-compute"


def test_nested_phases_count_once() -> None:
    job = a_job(ranks=1, steps=2, noise=0.0)
    phases = a_table("rank step phase start_ns duration_ns wait_ns", [
        (0, 0, "forward-compute", START, 100 * MS, 0),
        (0, 0, "attention", START + 10 * MS, 50 * MS, 0),
        (0, 0, "logging", START + 120 * MS, 5 * MS, 0)])  # fmt: skip
    own = own_time(Window(job.job, {"phases": phases}), timeline(job))
    assert own.phases == ("forward-compute", "logging", "between-phases", "outside-phases")


@pytest.mark.parametrize(
    ("phase", "does"),
    [("dp-reduce-scatter", True), ("ep-alltoall", True), ("pp-send", True), ("optimizer", False),
     ("forward-compute", False), ("data-load", False)],
)  # fmt: skip
def test_phases_that_communicate(phase: str, does: bool) -> None:
    assert communicates(phase) is does


@pytest.mark.parametrize(
    ("frame", "does"),
    [("_compile_fx (torch/_inductor/compile_fx.py)", True), ("compile (cute.py)", True),
     ("run (triton/runtime/jit.py)", True), ("compile (lib/python3.11/re/__init__.py)", False),
     ("forward (model.py)", False)],
)  # fmt: skip
def test_functions_that_compile_code(frame: str, does: bool) -> None:
    assert compiles(frame) is does


def test_frames() -> None:
    assert function_of("work (train.py:12)") == "work (train.py)"
    assert function_of("<native>") == "<native>"
    assert waits("all_reduce (torch/distributed/distributed_c10d.py:2501)")
    assert not waits("forward (model.py:3)")


def test_gaps_are_own_time_where_phases_say_how_long_they_waited() -> None:
    """Rank 1 stands still for 10 ms before its optimizer; in the gap of 2 ms all wait for it."""
    steps, phases = [], []
    for step in range(30):
        for rank in range(4):
            begin = START + step * 100 * MS
            late, wait = (10, 0) if rank == 1 else (0, 10)
            steps.append((rank, step, begin, 100 * MS))
            phases += [
                (rank, step, "forward-compute", begin, 40 * MS, 0),
                (rank, step, "dp-allreduce", begin + (40 + late) * MS, (10 + wait) * MS, wait * MS),
                (rank, step, "optimizer", begin + 60 * MS, 40 * MS, 0),
            ]
    job = Job("gaps", 4, (Host("h", (0, 1, 2, 3)),),
              groups=(ProcessGroup("dp-0", "dp", (0, 1, 2, 3)),))  # fmt: skip
    window = Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
    })  # fmt: skip
    own = own_time(window, timeline(window))
    gaps = own.of("between-phases")
    assert (gaps[1] == 10 * MS).all()
    assert (np.delete(gaps, 1, axis=0) == 0).all()


def test_a_phase_of_few_steps_takes_no_time_in_the_others() -> None:
    """A rank that saves in every tenth step does not save in all of them."""
    phases = [(0, step, "forward-compute", START + step * 100 * MS, 40 * MS, 0)
              for step in range(30)]  # fmt: skip
    phases += [(0, step, "save-checkpoint", START + (step * 100 + 40) * MS, 50 * MS, 0)
               for step in range(0, 30, 10)]  # fmt: skip
    window = Window(a_job(ranks=1, steps=2, noise=0.0).job, {
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases)})  # fmt: skip
    own = own_time(window, timeline(window))
    saving = own.of("save-checkpoint")
    assert saving.sum() == 150 * MS
    assert np.isfinite(saving).all()

"""What the GPU benchmark makes of what its jobs said; the jobs themselves need a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu, gpu_results
from benchmarks.gpu_results import MODES, Row

from stepscope.processor.counters.frames import SAMPLE_TYPE, Failure, Lost, Samples
from stepscope.store import JobReader, JobWriter, Location
from stepscope.trace import Job
from stepscope.window import Window

MS = 1_000_000


def test_modes_take_turns_there_and_back() -> None:
    """A machine that gets slower over time favours none of them."""
    places = [list(gpu_results.order(turn)) for turn in (0, 1)]
    assert places[0] == list(MODES) and places[1] == places[0][::-1]


def test_the_bound_is_above_the_median_and_below_the_worst() -> None:
    ratios = [1.0, 1.001, 1.002, 1.003, 1.05]
    assert 1.002 < gpu_results.upper_bound(ratios) <= 1.05
    assert gpu_results.upper_bound([1.004] * 5) == 1.004


@pytest.mark.parametrize(("cost", "holds"), [(0.002, True), (0.02, False)])
def test_overhead_is_counted_in_runs_of_the_same_round(cost: float, holds: bool) -> None:
    """A round that was slow for all says nothing."""
    rounds = (0.04, 0.08, 0.05)
    seconds = {mode: [one * (1 + cost * (mode == "all")) for one in rounds] for mode in MODES}
    rows = {row.what: row for row in gpu_results.overhead_rows("big", seconds, has_goal=True)}
    assert rows["big: all"].holds is holds and rows["big: cupti"].holds is True
    (free, *_) = gpu_results.overhead_rows("small", seconds, has_goal=False)[-1:]
    assert free.holds is None


def test_processes_in_turn_are_compared_by_what_all_rounds_cost() -> None:
    """A tenth of the time is recorded, and costs a tenth more there."""
    plain = [0.03, 0.04, 0.03, 0.05] * 25
    recorded = [one * (1.1 if at % 10 == 0 else 1.0) for at, one in enumerate(plain)]
    blocks = {"none": plain, "all": recorded, "none again": plain}
    step, everything, control = gpu_results.turns_rows("big", blocks, has_goal=True)
    assert step.result == "37.50 ms (100 rounds)"
    assert everything.result.startswith("1.008") and everything.holds is False
    assert control.result == "1.0000, 1.0000 to 1.0000" and control.holds is None


def test_one_record_too_few_or_counted_as_lost_is_told() -> None:
    assert gpu_results.launches_row(30_000, 30_000, 0).holds is True
    assert gpu_results.launches_row(30_000, 29_999, 0).holds is False
    assert gpu_results.launches_row(30_000, 29_999, 1).holds is False


def test_durations_are_close_within_five_percent() -> None:
    assert gpu_results.close_row("a kernel", 1.04e6, 1e6).holds is True
    assert gpu_results.close_row("a kernel", 0.94e6, 1e6).holds is False
    assert gpu_results.close_row("a kernel", float("nan"), 1e6).holds is False


def test_the_profiler_has_its_kernels_and_we_have_ours() -> None:
    both = gpu_results.profiler_rows(10, 10, 20)
    assert [row.holds for row in both] == [True, True]
    robbed = gpu_results.profiler_rows(10, 0, 30)
    assert [row.holds for row in robbed] == [False, False]


@pytest.mark.parametrize(
    ("named", "holds"), [([[1]], True), ([], False), ([[0]], False), ([[1], [0]], False)]
)
def test_only_the_delayed_rank_is_to_be_named(named: list[list[int]], holds: bool) -> None:
    row = gpu_results.ranks_row(1, [{"ranks": ranks} for ranks in named])
    assert row.holds is holds


def test_a_plugin_that_nobody_loaded_tells_nothing() -> None:
    assert gpu_results.plugin_row(10, 3).holds is True
    assert gpu_results.plugin_row(0, 3).holds is False
    assert gpu_results.plugin_row(10, 0).holds is False


def test_recording_is_compared_with_the_steps_beside_it() -> None:
    """A machine that becomes slower in between changes both alike."""
    row = gpu_results.paired_row([0.030, 0.060], [0.0303, 0.0606], kernels=1000)
    assert row.what == "every kernel recorded, 2 pairs"
    assert row.result == "1.0100, at most 1.0100, 0.45 µs for each of 1000"


def test_kernels_may_be_missing_only_while_a_profiler_has_them() -> None:
    output = {"count": 10_000, "seconds": 100.0}
    assert gpu_results.around_row(output, 9_500, 1.0).holds is True
    assert gpu_results.around_row(output, 9_000, 1.0).holds is False
    assert gpu_results.around_row(output, 10_001, 1.0).holds is False


def test_memory_that_grows_is_not_flat() -> None:
    flat = [{"rss_bytes": 10**9, "gpu_bytes": 10**9}] * 9
    leak = [{"rss_bytes": 10**9 + second * 2**20, "gpu_bytes": 10**9} for second in range(60)]
    assert [row.holds for row in gpu_results.memory_rows(flat, 1)] == [True, True]
    assert [row.holds for row in gpu_results.memory_rows(leak, 1)] == [False, True]


def test_counters_are_to_come_as_often_as_asked_and_without_gaps() -> None:
    of = np.zeros(1000, SAMPLE_TYPE)
    of["start_ns"] = np.arange(1000) * 100_000
    of["end_ns"] = of["start_ns"] + 100_000
    row = gpu_results.counters_row(10_000, [Samples(of)], 0.02)
    assert row.holds is True
    assert row.result == "1000 samples, 0 lost, of 100.0 µs (100.0 to 100.0), 20.0% of a core"
    assert gpu_results.counters_row(10_000, [Samples(of), Lost(1, 0, 1)], 0.02).holds is False
    assert gpu_results.counters_row(20_000, [Samples(of)], 0.02).holds is False
    refused = gpu_results.counters_row(10_000, [Failure("no")], 0.02)
    assert refused.holds is None and refused.result == "not sampled: no"


def test_the_table_is_markdown() -> None:
    text = gpu_results.table([Row("a", "1", "2", True), Row("b", "3", "4", False), Row("c", "5")])
    assert text.splitlines()[2:] == ["| a | 1 | 2 | yes |", "| b | 3 | 4 | NO |", "| c | 5 |  |  |"]


@pytest.fixture
def window(tmp_path: Path) -> Window:
    """Of a job with two modes of one kernel, another kernel, and passes that took ever longer."""
    writer = JobWriter(Location.parse(str(tmp_path / "job")), "host-0")
    writer.write_job(Job("job", 1))
    minute = {"rank": [0] * 3, "window_start_ns": [0] * 3, "window_ns": [60_000 * MS] * 3}
    writer.append("kernel_summaries", {
        **minute, "kernel": ["erfinv_kernel", "erfinv_kernel", "gemm"], "stream": [7] * 3,
        "cluster": [0, 1, 0], "count": [90, 10, 5], "p50_ns": [3_000, 9_000, 2 * MS],
        "p99_ns": [4_000, 9_500, 2 * MS],
    })  # fmt: skip
    steps = list(range(20))
    writer.append("phases", {
        "rank": [0] * 20, "step": steps, "phase": ["backward-compute"] * 20,
        "microbatch": [0] * 20, "start_ns": [step * 100 * MS for step in steps],
        "duration_ns": [(10 + step) * MS for step in steps],
    })  # fmt: skip
    writer.append("comm_ops", {
        "rank": [0, 0], "step": [1, 1], "group": ["dp-0"] * 2, "seq": [0, 1],
        "op": ["AllReduce"] * 2, "peer": [-1, -1], "bytes": [64, 64], "enqueue_ns": [1, 2],
        "algorithm": ["ring", None],
    })  # fmt: skip
    writer.append("hardware", {
        "rank": [0] * 3, "host": ["host-0"] * 3, "ts_ns": [1, 2, 3], "value": [7.0, 9.0, 1.0],
        "metric": ["stepscope_device_clock_error_ns"] * 2 + ["cpu_util"],
    })  # fmt: skip
    writer.append("losses", {
        "rank": [0, 0], "table": ["kernels", "phases"], "start_ns": [0, 0], "end_ns": [1, 1],
        "rows": [3, 100],
    })  # fmt: skip
    writer.flush()
    return JobReader(str(tmp_path / "job")).read()


def test_kernels_are_counted_and_timed_by_their_summaries(window: Window) -> None:
    assert gpu.kernels(window, "erfinv") == (100, 3_000)
    assert gpu.kernels(window, "gemm") == (5, 2 * MS)
    assert gpu.kernels(window, "conv")[0] == 0
    assert gpu.lost(window) == 3


def test_what_only_the_plugin_and_the_clock_of_the_device_tell(window: Window) -> None:
    assert gpu.counts_from_nccl(window) == (1, 0)
    assert gpu.metric(window, "stepscope_device_clock_error_ns").tolist() == [7.0, 9.0]


def test_the_first_passes_do_not_count(window: Window) -> None:
    assert gpu.phase(window, "backward-compute") == 24.5 * MS

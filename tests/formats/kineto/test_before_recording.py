"""What the device still executes when the recording begins was launched before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.formats.kineto import read
from stepscope.window import NULL, Table

from .traces import AUTOGRAD, COLLECTIVE, STEP_US, Event, event, gpu_step, launched, trace, write

REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"
STEPS = 4


def before(at: float) -> list[Event]:
    """A step's kernels, whose launches were not recorded."""
    kernels = [one for one in gpu_step(4, at, marked=False)
               if one["cat"] in ("kernel", "gpu_memcpy")]  # fmt: skip
    return [{**one, "args": {**one["args"], "correlation": -1}} for one in kernels]


def with_ahead(rank: int, ahead_steps: int, marked: bool = True) -> list[Event]:
    """Steps of which the device executes all `ahead_steps` later than the host launches them."""
    late = ahead_steps * STEP_US
    steps = [one for n in range(STEPS) for one in gpu_step(n + 5, 1000 + n * STEP_US, marked)]
    moved = [{**one, "ts": one["ts"] + late} if one["cat"] in ("kernel", "gpu_memcpy") else one
             for one in steps]  # fmt: skip
    earlier = [one for n in range(ahead_steps) for one in before(1000 + n * STEP_US)]
    return [*earlier, *moved, *([mark(rank)] if marked else [])]


def mark(rank: int) -> Event:
    return event("user_annotation", f"rank {rank}", 1000, 1)


def read_ranks(folder: Path, *ranks: list[Event]) -> dict[str, Table]:
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", trace(events, rank, len(ranks)))
    return dict(read(folder).window.tables)


def test_kernels_that_were_launched_before_belong_to_no_step(tmp_path: Path) -> None:
    tables = read_ranks(tmp_path, with_ahead(0, 2))
    steps = tables["kernels"].ints("step").tolist()
    assert {step: steps.count(step) for step in set(steps)} == {
        NULL: 10, **{5 + n: 5 for n in range(STEPS)}
    }  # fmt: skip
    comm = tables["comm_ops"]
    assert sorted(comm.ints("step").tolist()) == [NULL, NULL, 5, 6, 7, 8]


@pytest.mark.parametrize("marked", [True, False])
def test_they_do_not_shift_the_collectives_of_a_rank(tmp_path: Path, marked: bool) -> None:
    comm = read_ranks(tmp_path, with_ahead(0, 0, marked), with_ahead(1, 2, marked))["comm_ops"]
    first, second = (comm.take(comm.ints("rank") == rank) for rank in (0, 1))
    match = second.ints("match").tolist()
    assert match.count(NULL) == 2
    assert [one for one in match if one != NULL] == first.ints("match").tolist()


def test_a_kernel_whose_launch_was_lost_is_of_the_step_before_it(tmp_path: Path) -> None:
    events = with_ahead(0, 1)
    calls = [one for one in events if one["cat"] == "cuda_runtime" and one["tid"] != AUTOGRAD]
    lost = calls[-1]
    kernels = read_ranks(tmp_path, [one for one in events if one is not lost])["kernels"]
    assert kernels.ints("enqueue_ns").tolist().count(NULL) == 6
    assert kernels.ints("step").tolist().count(8) == 5


def test_without_any_launch_the_times_of_the_device_decide(tmp_path: Path) -> None:
    events = [one for one in with_ahead(0, 0) if one["cat"] != "cuda_runtime"]
    kernels = read_ranks(tmp_path, events)["kernels"]
    assert NULL not in kernels.ints("step").tolist()


def test_one_collective_without_a_number_leaves_the_others_theirs(tmp_path: Path) -> None:
    def reduces(first: int, silent: bool) -> list[Event]:
        said = [{**COLLECTIVE, "Seq": number} for number in range(first, 10)]
        last = dict(COLLECTIVE) if silent else said[-1]
        return [one for at, args in enumerate([*said[:-1], last]) for one in
                launched(REDUCE, first + at + 0.5, 1000 + first + at, 0.5, 20, args)]  # fmt: skip

    comm = read_ranks(tmp_path, reduces(0, silent=True), reduces(3, silent=False))["comm_ops"]
    first, second = (comm.take(comm.ints("rank") == rank).ints("match").tolist() for rank in (0, 1))
    assert first[3:-1] == second[:-1] and first[-1] == NULL


def test_steps_are_as_long_as_devices_take_that_are_behind(tmp_path: Path) -> None:
    """The host has marked all steps before the device begins the first one."""
    steps = read_ranks(tmp_path, with_ahead(0, 5))["steps"]
    start, lasted = steps.ints("start_ns"), steps.ints("duration_ns")
    assert (abs(lasted[1:] - STEP_US * 1000) <= 1000).all()
    assert start.tolist() == sorted(start.tolist()) and lasted[0] > 0


def test_a_step_begins_when_its_first_copy_is_free_to(tmp_path: Path) -> None:
    """A copy of the first batch waits, in the stream that computes, for kernels that nobody
    recorded; the host waits for the copy, so that its kernels do not queue."""
    behind = 3 * STEP_US
    copy = [{**one, "name": "Memcpy HtoD", "cat": "gpu_memcpy"} if one["cat"] == "kernel" else one
            for one in launched("", 1000.0, 1000.0 + behind, 10)]  # fmt: skip
    steps = [one for n in range(STEPS) for one in gpu_step(n + 5, 1001 + behind + n * STEP_US)]
    first = min(steps, key=lambda one: one["ts"] if "ProfilerStep" in one["name"] else 1e18)
    moved = [{**one, "ts": 1000.0, "dur": behind + STEP_US} if one is first else one
             for one in steps]  # fmt: skip
    tables = read_ranks(tmp_path, [*copy, *moved])
    assert tables["steps"].ints("duration_ns")[0] <= 1.1 * STEP_US * 1000


def test_a_host_works_on_a_step_while_it_is_not_blocked_by_its_device(tmp_path: Path) -> None:
    """It synchronizes for 300 us with a device that computes, as `.item()` does."""
    waits = event("cuda_runtime", "cudaStreamSynchronize", 1205, 300, correlation=7)
    busy = launched("gemm", 1203, 1204, 299)
    tables = read_ranks(tmp_path, with_ahead(0, 0), [*with_ahead(1, 0), waits, *busy])
    steps = tables["steps"]
    first = steps.ints("step") == 5
    alone, blocked = (
        steps.ints("host_ns")[first & (steps.ints("rank") == rank)] for rank in (0, 1)
    )
    assert (alone - blocked).tolist() == [300_000]


def test_what_a_long_call_takes_beyond_its_device_is_work_of_the_host(tmp_path: Path) -> None:
    """Freeing memory waits for the device, and then takes as long again."""
    frees = event("cuda_runtime", "cudaFree", 1705, 200, correlation=7)
    busy = launched("gemm", 1700, 1704, 101)
    steps = read_ranks(tmp_path, with_ahead(0, 0), [*with_ahead(1, 0), frees, *busy])["steps"]
    first = steps.take(steps.ints("step") == 5)
    assert np.ptp(first.ints("host_ns")) == 100_000


def test_it_also_waits_for_what_its_device_does_before_its_first_recorded_kernel(
    tmp_path: Path,
) -> None:
    behind = [one for one in with_ahead(0, 2) if one["args"].get("correlation") != -1]
    waits = event("cuda_runtime", "cudaStreamSynchronize", 1205, 300, correlation=7)
    steps = read_ranks(tmp_path, [*behind, waits], with_ahead(1, 0))["steps"]
    first = steps.take(steps.ints("step") == 5)
    assert sorted(first.ints("host_ns").tolist()) == [699_000, 999_000]


def test_kernels_that_an_optimizer_launches_in_a_row_are_one(tmp_path: Path) -> None:
    """Only the device was recorded: layers repeat within a step, and the optimizer does not."""
    names = ("gemm", "norm", "gemm", "norm", "gemm", "norm", "adam", "adam", "adam")
    events = [one for at, name in enumerate(names * STEPS)
              for one in launched(name, at * 100 + 1, at * 100 + 10, 50)]  # fmt: skip
    write(tmp_path / "rank0.json", trace(events, 0, 1))
    reading = read(tmp_path)
    assert reading.window.tables["steps"].ints("step").tolist() == list(range(STEPS - 1))
    assert any("sequence of kernels" in one for one in reading.problems)

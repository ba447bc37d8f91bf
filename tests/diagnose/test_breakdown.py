"""The breakdown equals what counting nanosecond by nanosecond gives, and HTA's on real traces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.views import breakdown as module
from stepscope.diagnose.views.breakdown import breakdown
from stepscope.trace import Job
from stepscope.window import NULL, Strings, Table, Window

COMPUTE, COMM, COPY = "gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"


@dataclass(frozen=True)
class Kernel:
    rank: int
    step: int
    name: str
    stream: int
    start: int
    length: int
    launch: int | None


KERNELS = st.lists(
    st.builds(
        Kernel, st.integers(0, 2), st.just(0), st.sampled_from([COMPUTE, COMM, COPY]),
        st.integers(1, 2), st.integers(0, 120), st.integers(0, 25),
        st.none() | st.integers(0, 120),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


def in_steps(kernels: list[Kernel]) -> list[Kernel]:
    """Steps of forty, in order of time, so that a step's first kernel begins it."""
    return [Kernel(k.rank, k.start // 40, *list(vars(k).values())[2:]) for k in kernels]


def window(kernels: list[Kernel]) -> Window:
    launch = [NULL if k.launch is None else k.launch for k in kernels]
    table = Table({
        "rank": np.array([k.rank for k in kernels]), "step": np.array([k.step for k in kernels]),
        "kernel": Strings.of([k.name for k in kernels]),
        "stream": np.array([k.stream for k in kernels]), "enqueue_ns": np.array(launch),
        "start_ns": np.array([k.start for k in kernels]),
        "duration_ns": np.array([k.length for k in kernels]),
    })  # fmt: skip
    return Window(Job("a-job", 3), {"kernels": table})


def oracle(kernels: list[Kernel], first: int, last: int, short: int) -> dict[str, int]:
    """One rank's parts between two moments, moment by moment."""
    parts = dict.fromkeys(
        ("compute", "exposed", "hidden", "copy", "host_wait", "kernel_wait", "other"), 0
    )
    for now in range(first, last):
        running = {k.name for k in kernels if k.start <= now < k.start + k.length}
        if COMPUTE in running:
            parts["compute"] += 1
            parts["hidden"] += COMM in running
        elif COMM in running:
            parts["exposed"] += 1
        elif COPY in running:
            parts["copy"] += 1
        else:
            parts[_idle(kernels, now, short)] += 1
    return parts


def _idle(kernels: list[Kernel], now: int, short: int) -> str:
    busy = [k for k in kernels if k.length]
    begin = max(k.start + k.length for k in busy if k.start + k.length <= now)
    end = min(k.start for k in busy if k.start > now)
    next_ = next(k for k in busy if k.start == end)
    if next_.launch is not None and next_.launch > begin:
        return "host_wait"
    return "kernel_wait" if end - begin < short else "other"


def numbers(table: Table, row: int) -> dict[str, int]:
    return {name.removesuffix("_ns"): int(table.ints(name)[row]) for name in table.columns}


@settings(deadline=None, max_examples=200)
@given(KERNELS)
def test_breakdown_counts_as_one_would_by_hand(kernels: list[Kernel]) -> None:
    kernels = [k for k in in_steps(kernels) if k.length]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KERNEL_WAIT_NS", 6)
        found = breakdown(window(kernels)) if kernels else None
    if found is None:
        assert not kernels
        return
    for row in range(len(found.steps)):
        got = numbers(found.steps, row)
        own = [k for k in kernels if k.rank == got["rank"]]
        want = oracle(own, got["start"], got["start"] + got["duration"], 6)
        assert {name: got[name] for name in want} == want
        assert got["start"] == min(k.start for k in own if k.step == got["step"])
    for row in range(len(found.ranks)):
        got = numbers(found.ranks, row)
        steps = found.steps.take(found.steps.ints("rank") == got["rank"])
        if (np.diff(np.sort(steps.ints("step"))) > 1).any():
            continue  # what was not recorded is in no step
        for name in ("compute", "exposed", "hidden", "copy", "idle", "duration", "host_wait"):
            assert got[name] == steps.ints(f"{name}_ns").sum()
        assert got["compute"] + got["exposed"] + got["copy"] + got["idle"] == got["duration"]


def test_no_device_idles_between_two_windows_of_a_profiler() -> None:
    """Steps 0 and 1 of a window, and 9 of the next one."""
    rows = [Kernel(0, step, COMPUTE, 1, at, 10, at - 2) for step, at in ((0, 5), (1, 17), (9, 90))]
    found = breakdown(window(rows))
    assert found is not None
    assert found.steps.ints("duration_ns").tolist() == [12, 10, 10]
    assert found.steps.ints("idle_ns").tolist() == [2, 0, 0]


def test_on_cpu_operators_compute_and_calls_do_not() -> None:
    ops = Table({
        "rank": np.zeros(2, np.int64), "step": np.zeros(2, np.int64),
        "name": Strings.of(["aten::mm", "c10d::allreduce_"]), "thread": np.zeros(2, np.int64),
        "start_ns": np.array([0, 100]), "duration_ns": np.array([50, 100]),
    })  # fmt: skip
    comm = Table({
        "rank": np.zeros(1, np.int64), "step": np.zeros(1, np.int64),
        "start_ns": np.array([40]), "end_ns": np.array([90]),
    })  # fmt: skip
    found = breakdown(Window(Job("a-job", 1), {"host_ops": ops, "comm_ops": comm}))
    assert found is not None
    whole = numbers(found.ranks, 0)
    assert (whole["compute"], whole["hidden"], whole["exposed"]) == (50, 10, 40)


def test_nothing_recorded_has_no_breakdown() -> None:
    assert breakdown(Window(Job("a-job", 1), {})) is None


def test_times_too_far_apart_for_one_axis_have_none_either() -> None:
    far = [Kernel(rank, 0, COMPUTE, 1, rank * 2**60, 5, None) for rank in range(3)]
    assert breakdown(window(far)) is None

"""The windows of patterns: the device's time of the steps, however far ahead the host is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from stepscope.trace import ALLOCATION
from stepscope.window import Table

from .test_before_recording import STEPS, with_ahead
from .traces import STEP_US, Event, event, launched, trace, write


def patterns(folder: Path, *ranks: list[Event]) -> list[Table]:
    for rank, events in enumerate(ranks):
        write(folder / f"rank{rank}.json", trace(events, rank, len(ranks)))
    table = read(folder).window.tables["patterns"]
    return [table.take(table.ints("rank") == rank) for rank in range(len(ranks))]


def shares(table: Table, kind: str = "kernel") -> dict[str, float]:
    names, of_kind = table.strings("function"), table.strings("kind").equals(kind)
    return {names[at] or "": float(table.floats("beta")[at])
            for at in range(len(table)) if of_kind[at]}  # fmt: skip


@pytest.mark.parametrize("recorded", [True, False])
def test_ranks_whose_hosts_are_ahead_have_equal_patterns(tmp_path: Path, recorded: bool) -> None:
    """Whether or not the trace has what the device did before."""
    ahead = with_ahead(1, 2)
    if not recorded:
        ahead = [one for one in ahead if one["args"].get("correlation") != -1]
    first, second = patterns(tmp_path, with_ahead(0, 0), ahead)
    assert shares(second) == pytest.approx(shares(first), rel=0.15)
    lasted = [int(one.ints("window_ns")[0]) / 1e3 for one in (first, second)]
    assert lasted == pytest.approx([STEPS * STEP_US] * 2, rel=0.15)


def waits(start: float, length: float, kernels: list[Event]) -> list[Event]:
    return [
        event("user_annotation", "ProfilerStep#1", 0, 10_000),
        event("cpu_op", "aten::mm", 0, 9500),
        *kernels,
        event("cuda_runtime", "cudaLaunchKernel", start, length, correlation=1),
    ]


def test_a_host_that_is_blocked_by_the_device_does_not_compute(tmp_path: Path) -> None:
    """A full queue blocks its thread in the runtime, also between two kernels."""
    kernels = [one for at in range(9) for one in
               launched("gemm", 10 + 5 * at, 100 + 1000 * at, 800)]  # fmt: skip
    (table,) = patterns(tmp_path, waits(60, 9000, kernels))
    found = shares(table, "operator")
    assert found["Synchronize (call of the runtime)"] == pytest.approx(0.17, abs=0.02)
    assert found["aten::mm"] == pytest.approx(0.05, abs=0.02)


def test_a_call_of_the_runtime_while_the_device_is_idle_is_the_operators_own(
    tmp_path: Path,
) -> None:
    (table,) = patterns(tmp_path, waits(1000, 8000, launched("gemm", 10, 20, 800)))
    assert shares(table, "operator") == pytest.approx({"aten::mm": 0.87}, abs=0.01)


def allocating(length: float) -> list[Event]:
    """Three steps of 10 ms, each with an operator that asks the device for memory for so long."""
    events: list[Event] = []
    for step in range(3):
        at = step * 10_000.0
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 10_000),
            event("cpu_op", "aten::empty", at + 4900, length + 200),
            event("cuda_runtime", "hipFree" if step else "cudaFree", at + 5000, length / 2),
            event("cuda_runtime", "cudaMalloc", at + 5000 + length / 2, length / 2),
            *launched("gemm", at + 50, at + 100, 4700),
            *launched("gemm", at + 5150 + length, at + 5200 + length, 4700 - length),
        ]
    return events


def test_memory_that_is_asked_of_the_device_in_every_step_has_a_function(tmp_path: Path) -> None:
    (table,) = patterns(tmp_path, allocating(2500))
    assert shares(table, "operator")[ALLOCATION] == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(("length", "named"), [(2500, True), (90, False)])
def test_a_job_short_of_memory_is_told_so(tmp_path: Path, length: float, named: bool) -> None:
    for rank in range(4):
        write(tmp_path / f"rank{rank}.json", trace(allocating(length), rank, 4))
    found = diagnose(read(tmp_path).window).verdicts
    assert [one.cause for one in found] == ["code"] * named
    assert all("expandable_segments" in one.advice for one in found)

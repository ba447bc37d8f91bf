"""Waiting inside of operators is no computing: gradients of all-reduces, hooks of FSDP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.breakdown import breakdown
from stepscope.formats.kineto import read
from stepscope.formats.kineto.spans import outermost
from stepscope.window import Table, Window

from .traces import Event, event, trace, write

GLOO = 200
"""The thread that executes gloo's collectives."""
STEP_MS, STEPS = 100.0, 12
HOOK = "RegisterPostBackwardFunctionBackward"


def operator(name: str, start: float, end: float) -> Event:
    return event("cpu_op", name, start * 1e3, (end - start) * 1e3)


def gloo(start: float, end: float, name: str = "gloo:all_reduce") -> Event:
    return event("user_annotation", name, start * 1e3, (end - start) * 1e3, GLOO)


def window(folder: Path, *events: Event) -> Window:
    step = event("user_annotation", "ProfilerStep#1", 0, STEP_MS * 1e3)
    write(folder / "rank0.json", trace([step, *events]))
    return read(folder).window


def waits_ms(seen: Window, phase: str) -> float:
    phases = seen.tables["phases"]
    return float(phases.ints("wait_ns")[phases.strings("phase").equals(phase)].sum() / 1e6)


def hooked(start: float, end: float, asked: float) -> list[Event]:
    """A hook that reduces gradients and waits, in a backward pass from `start - 10`."""
    autograd = "autograd::engine::evaluate_function: "
    return [
        operator(f"{autograd}MmBackward0", start - 10, start),
        operator(f"{autograd}{HOOK}", start, end),
        operator(HOOK, start + 0.1, end),
        operator("aten::cat", start + 1, asked - 1),
        operator("c10d::_reduce_scatter_base_", asked, asked + 0.1),
        gloo(asked + 0.1, end - 0.5, "gloo:reduce_scatter"),
    ]


def test_an_operator_in_which_a_hook_reduces_waits(tmp_path: Path) -> None:
    seen = window(tmp_path, operator("aten::mm", 5, 20), *hooked(30, 70, 35))
    assert waits_ms(seen, "backward-compute") == pytest.approx(34.4)
    assert seen.tables["comm_ops"].ints("blocked_ns").tolist() == [34_400_000]


def test_what_it_computes_during_communication_is_no_waiting(tmp_path: Path) -> None:
    events = [*hooked(30, 70, 35), operator("aten::add_", 40, 50)]
    assert waits_ms(window(tmp_path, *events), "backward-compute") == pytest.approx(24.4)


def test_a_call_without_length_contains_nothing(tmp_path: Path) -> None:
    events = [operator("c10d::allreduce_", 10, 10), operator("aten::mm", 9, 12)]
    lasted = window(tmp_path, *events).tables["host_ops"].ints("duration_ns")
    assert lasted.tolist() == [3_000_000]


def test_a_functional_collective_waits_in_the_operator_that_uses_its_result(tmp_path: Path) -> None:
    seen = window(
        tmp_path,
        operator("_c10d_functional::all_reduce", 10, 10.5),
        operator("c10d::allreduce_", 10.1, 10.2),
        gloo(10.2, 40),
        operator("aten::add", 11, 41), operator("PythonSubclass", 11.1, 41),
        operator("_c10d_functional::wait_tensor", 11.5, 40.2), operator("aten::add", 40.3, 41),
        operator("autograd::engine::evaluate_function: MmBackward0", 50, 60),
    )  # fmt: skip
    assert waits_ms(seen, "forward-compute") == pytest.approx(29.8)


def test_calling_a_collective_is_the_callers_own_time(tmp_path: Path) -> None:
    """On a processor that others use, enqueueing may take long."""
    events = [operator("c10d::allreduce_", 10, 25), gloo(12, 40), operator("aten::mm", 45, 46),
              operator("autograd::engine::evaluate_function: MmBackward0", 50, 60)]  # fmt: skip
    assert waits_ms(window(tmp_path, *events), "forward-compute") == pytest.approx(15)


def test_an_operator_that_waits_is_shown_as_what_it_computes(tmp_path: Path) -> None:
    seen = window(tmp_path, operator("aten::mm", 5, 20), *hooked(30, 70, 35))
    rows = seen.tables["host_ops"]
    lasted = (rows.ints("duration_ns") / 1e6).tolist()
    names = [rows.strings("name")[at] for at in range(len(rows))]
    hook = f"autograd::engine::evaluate_function: {HOOK}"
    expected = [
        ("aten::mm", 15), ("autograd::engine::evaluate_function: MmBackward0", 10), (hook, 1),
        ("aten::cat", 3), (hook, 1), (hook, 0.5),
    ]  # fmt: skip
    assert list(zip(names, lasted, strict=True)) == [
        (name, pytest.approx(ms)) for name, ms in expected
    ]
    found = breakdown(seen)
    assert found is not None
    assert total_ms(found.ranks, "compute_ns") == pytest.approx(30.5)
    assert total_ms(found.ranks, "exposed_ns") == pytest.approx(34.4)


def total_ms(table: Table, column: str) -> float:
    return float(table.ints(column).sum() / 1e6)


def sharded(rank: int, slow: int | None) -> list[Event]:
    """Steps of a rank whose backward is a product and a hook that waits for the slow rank's."""
    events = []
    for number in range(STEPS):
        at = number * STEP_MS
        product = 60.0 if rank == slow else 20.0
        until = 90.0 if slow is not None else 50.0
        noise = 0.3 * ((7 * rank + 3 * number) % 5)
        events += [
            event("user_annotation", f"ProfilerStep#{number}", at * 1e3, STEP_MS * 1e3 - 1),
            operator("aten::mm", at + 2, at + 10 + noise),
            operator("autograd::engine::evaluate_function: MmBackward0", at + 12,
                     at + 12 + product + noise),
            *(moved(one, at) for one in hooked(13 + product + 2, until, 13 + product + 4)[1:]),
            event("user_annotation", "Optimizer.step#SGD.step", (at + until + 1) * 1e3, 3e3),
            operator("aten::add_", at + until + 1, at + until + 4),
        ]  # fmt: skip
    return events


def moved(one: Event, ms: float) -> Event:
    return {**one, "ts": one["ts"] + ms * 1e3}


def traces(folder: Path, slow: int | None) -> Path:
    for rank in range(4):
        write(folder / f"rank{rank}.json", trace(sharded(rank, slow), rank, 4))
    return folder


def test_a_slow_backward_is_found_though_the_others_wait_within_theirs(tmp_path: Path) -> None:
    (verdict,) = diagnose(read(traces(tmp_path, slow=1)).window).verdicts
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((1,), "backward-compute", "compute")


def test_ranks_that_wait_alike_within_operators_are_healthy(tmp_path: Path) -> None:
    assert diagnose(read(traces(tmp_path, slow=None)).window).verdicts == ()


def test_neighbours_whose_rounded_times_overlap_are_none_inside_the_other() -> None:
    times = {"start_ns": (0, 10, 99, 149), "duration_ns": (100, 20, 50, 30)}
    columns = {name: np.array(values) for name, values in times.items()}
    rows = Table({"thread": np.zeros(4, np.int64), **columns})
    assert outermost(rows).tolist() == [True, False, True, True]

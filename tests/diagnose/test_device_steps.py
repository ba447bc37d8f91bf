"""Jobs whose phases have device times, while the host ran ahead of the device."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.prepare.device_steps import device_steps
from stepscope.diagnose.run import diagnose
from stepscope.window import NULL, Window

from .jobs import MS, Fault, a_job, put

SLOW = (Fault((2,), "backward-compute", 60, times=1.4),)


def ran_ahead(window: Window, ms: int) -> Window:
    """The same job on devices: its hosts ended each step that much earlier."""
    steps, phases = window.table("steps"), window.table("phases")
    assert steps is not None and phases is not None
    start = phases.ints("start_ns")
    on_device = ~phases.strings("phase").equals("data-load")
    host = np.where(on_device, start - ms * MS, NULL)
    return put(
        window,
        steps=steps.with_column("start_ns", steps.ints("start_ns") - ms * MS),
        phases=phases.with_column("host_start_ns", host),
    )


@pytest.mark.parametrize("ms", [0, 10, 70, 250])
def test_a_slow_device_is_named_however_far_its_host_is_ahead(ms: int) -> None:
    (verdict,) = diagnose(ran_ahead(a_job(faults=SLOW), ms)).verdicts
    assert (verdict.ranks, verdict.phase) == ((2,), "backward-compute")


@pytest.mark.parametrize("ms", [10, 250])
def test_a_healthy_job_stays_healthy(ms: int) -> None:
    assert diagnose(ran_ahead(a_job(), ms)).verdicts == ()


def test_a_host_that_waits_for_its_device_keeps_its_steps() -> None:
    window = ran_ahead(a_job(), 0)
    same = device_steps(window).table("steps")
    steps = window.table("steps")
    assert same is not None and steps is not None
    for column in ("start_ns", "duration_ns"):
        assert np.array_equal(same.ints(column), steps.ints(column))


def test_without_a_device_nothing_changes() -> None:
    window = a_job()
    assert device_steps(window) is window
    phases = window.table("phases")
    assert phases is not None
    nobody = put(window, phases=phases.with_column("host_start_ns", np.full(len(phases), NULL)))
    assert device_steps(nobody) is nobody


def test_steps_follow_one_another_on_each_rank() -> None:
    steps = device_steps(ran_ahead(a_job(), 250)).table("steps")
    assert steps is not None
    for rank in range(4):
        rows = steps.take(steps.ints("rank") == rank)
        start, end = rows.ints("start_ns"), rows.ints("start_ns") + rows.ints("duration_ns")
        assert (start[1:] >= end[:-1]).all() and (end > start).all()


@pytest.mark.parametrize("ms", [0, 70, 250])
def test_operators_show_it_where_there_are_no_phases(ms: int) -> None:
    window = ran_ahead(a_job(faults=SLOW, stacks=False), ms)
    tables = {name: window.tables[name] for name in ("steps", "comm_ops")}
    (verdict,) = diagnose(Window(window.job, tables)).verdicts
    assert verdict.ranks == (2,)
    assert verdict.lost_fraction == pytest.approx(20 / 108, abs=0.05)


def test_an_operator_that_ends_later_now_and_then_moves_no_step() -> None:
    window = a_job(stacks=False)
    comm = window.tables["comm_ops"]
    late = np.arange(len(comm)) % 20 == 0
    moved = {name: comm.ints(name) + late * 300 * MS for name in ("start_ns", "end_ns")}
    tables = {"steps": window.tables["steps"],
              "comm_ops": comm.with_column("start_ns", moved["start_ns"])
                              .with_column("end_ns", moved["end_ns"])}  # fmt: skip
    assert device_steps(Window(window.job, tables)).tables["steps"] is tables["steps"]

"""Simulated jobs reduced to what collectors write."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.evaluate.collectors import COLLECTORS, EVERY_NS, SAMPLED_NS, collected
from stepscope.evaluate.columns import with_tables
from stepscope.evaluate.conditions import as_collected
from stepscope.evaluate.excerpt import first_and_last
from stepscope.window import NULL, Table, Window
from tests.evaluate.jobs import a_job


@cache
def recorded(fault: str = "gpu_slow:rank=5,factor=2,from=6") -> Window:
    return a_job(fault).window


def operators(name: str) -> Table:
    return collected(recorded(), name).tables["comm_ops"]


@pytest.mark.parametrize("name", COLLECTORS)
def test_what_no_collector_writes_is_removed(name: str) -> None:
    assert recorded().job.fabric and recorded().job.schedule
    window = collected(recorded(), name)
    job = window.job
    assert (job.fabric, job.schedule, job.observed_until_ns) == (None, None, None)
    assert job.groups == recorded().job.groups
    assert not window.tables["comm_ops"].has("match")
    if "transfers" in window.tables:
        assert (window.tables["transfers"].strings("nic").codes < 0).all()
    if "hardware" in window.tables:
        hardware = window.tables["hardware"]
        assert not hardware.strings("metric").equals("xid", "nic_rx_errors").any()
    phases = set(np.array(window.tables["phases"].strings("phase").values)[
        np.unique(window.tables["phases"].strings("phase").codes)
    ].tolist())  # fmt: skip
    assert phases == {"data-load", "forward-compute", "backward-compute", "optimizer"}


def test_the_user_may_supply_the_switches() -> None:
    assert collected(recorded(), "all", topology=True).job.fabric == recorded().job.fabric


@pytest.mark.parametrize(("name", "tables"), [
    ("hooks", {"steps", "phases", "comm_ops", "stacks", "hardware"}),
    ("cupti", {"steps", "phases", "comm_ops", "stacks", "hardware", "kernel_summaries"}),
    ("nccl", {"steps", "phases", "comm_ops", "stacks", "hardware", "transfers"}),
    ("all", {"steps", "phases", "comm_ops", "stacks", "hardware", "transfers",
             "kernel_summaries"}),
    ("kineto", {"steps", "phases", "comm_ops"}),
])  # fmt: skip
def test_tables(name: str, tables: set[str]) -> None:
    assert {
        one for one, table in collected(recorded(), name).tables.items() if len(table)
    } == tables


def test_hooks_see_calls_of_the_device_only() -> None:
    for name in ("hooks", "cupti"):
        assert (operators(name).ints("start_ns") == NULL).all()
        assert (operators(name).ints("end_ns") == NULL).all()


def test_kernels_give_every_operator_its_times_if_it_ended() -> None:
    assert (operators("all").ints("start_ns") != NULL).all()
    stuck = collected(recorded("hang:rank=3,from=8"), "all").tables["comm_ops"]
    silent = stuck.ints("end_ns") == NULL
    assert silent.any() and (stuck.ints("start_ns")[silent] == NULL).all()
    assert stuck.strings("state").equals("done").all()


def test_nccl_samples_operators_in_half_a_second_of_ten() -> None:
    whole, left = recorded().tables["comm_ops"].ints("end_ns"), operators("nccl").ints("end_ns")
    sampled = whole % EVERY_NS < SAMPLED_NS
    assert ((left != NULL) == sampled).all() and sampled.any() and not sampled.all()


def test_the_device_may_have_waited_where_an_operator_was_called() -> None:
    """Both passes call tensor-parallel operators; loading data and the optimizer call none."""
    phases = collected(recorded(), "hooks").tables["phases"]
    names, wait = phases.strings("phase"), phases.ints("wait_ns")
    assert (wait[names.equals("forward-compute", "backward-compute")] == NULL).all()
    assert (wait[names.equals("data-load")] == 0).all()
    assert (phases.mask("waits") == (wait != 0)).all()


def test_a_pass_may_have_waited_although_its_operators_were_not_recorded() -> None:
    """As in large simulated jobs."""
    whole = recorded()
    operators = whole.tables["comm_ops"]
    across = operators.take(operators.strings("group").equals("dp-0"))
    phases = collected(with_tables(whole, {"comm_ops": across}), "hooks").tables["phases"]
    wait = phases.ints("wait_ns")
    assert (wait[phases.strings("phase").equals("forward-compute")] == NULL).all()


def test_a_trace_knows_how_long_phases_waited_and_nothing_of_what_never_ended() -> None:
    window = collected(recorded("hang:rank=3,from=8"), "kineto")
    assert (window.tables["comm_ops"].ints("end_ns") != NULL).all()
    assert window.tables["phases"].has("wait_ns") and not window.tables["phases"].has("waits")


def test_a_job_that_stands_writes_no_trace_of_the_step_in_which_it_does() -> None:
    window = collected(recorded("hang:rank=3,from=8"), "kineto")
    assert first_and_last(window) == (0, 7)
    assert not diagnose(window).verdicts, "nothing of the hang was recorded"
    assert first_and_last(collected(recorded("hang:rank=3,from=8"), "all")) == (0, 8)
    (condition,) = as_collected("kineto")
    assert condition.cuts_steps, "the fault is in no step that is left"

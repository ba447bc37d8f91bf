"""Where in a step a rank takes longer decides what its excess costs."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.window import Table, Window


def only_operators(window: Window) -> Window:
    """What a recorder of NCCL's operators sees: device times, and the steps."""
    comm = {name: column for name, column in window.tables["comm_ops"].columns.items()
            if name != "blocked_ns"}  # fmt: skip
    return Window(window.job, {"steps": window.tables["steps"], "comm_ops": Table(comm)})


def test_a_wait_for_data_costs_as_much_without_phases() -> None:
    fault = parse_fault("data_slow:ranks=1,ms=400")
    layout = Parallelism(sharding="fsdp")
    job = simulate(Scenario(ranks=4, steps=40, seed=3, parallelism=layout, faults=(fault,))).window
    true, found = diagnose(job).verdicts, diagnose(only_operators(job)).verdicts
    assert [one.ranks for one in found] == [one.ranks for one in true] == [(1,)]
    assert found[0].lost_fraction == pytest.approx(true[0].lost_fraction, abs=0.02)


def test_slow_transfers_from_the_start_are_found_by_operators_alone() -> None:
    fault = parse_fault("nvlink_slow:ranks=4,factor=5")
    layout = Parallelism(tp=8)
    job = simulate(Scenario(ranks=16, steps=40, seed=5, parallelism=layout, faults=(fault,))).window
    (found,) = diagnose(only_operators(job)).verdicts
    assert (found.cause, found.group) == ("network", "tp-0")

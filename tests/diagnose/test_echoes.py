"""Two slow ranks in the same steps: culprits both, or one and its echo."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.evaluate.strip import STRIPS, Context
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism, Workload
from stepscope.window import Window

FAULTS = ("data_slow:ranks=1,ms=400,from=25", "data_slow:ranks=2,ms=400")


@pytest.fixture(scope="module")
def unmarked() -> Window:
    """Two ranks wait for data, and nothing says how long anybody waited."""
    faults = tuple(map(parse_fault, FAULTS))
    layout = Parallelism(sharding="zero1")
    job = simulate(Scenario(ranks=4, steps=60, seed=2, parallelism=layout, faults=faults))
    return STRIPS["no-wait-marks"].apply(job.window, Context())


def named(window: Window) -> list[tuple[int, ...]]:
    return sorted(one.ranks for one in diagnose(window).verdicts if one.confidence >= 0.5)


def test_excess_outside_of_operators_is_no_echo(unmarked: Window) -> None:
    assert named(unmarked) == [(1,), (2,)]


def test_without_operators_either_may_be_the_echo(unmarked: Window) -> None:
    tables = {name: table for name, table in unmarked.tables.items() if name != "comm_ops"}
    assert set(named(Window(unmarked.job, tables))) <= {(1,), (2,)}


def test_who_begins_with_a_culprit_and_shows_nothing_else_may_be_late_for_it() -> None:
    """Tensor parallel operators were not recorded: neighbours of those that wait for the slow GPU
    seem to compute longer from its onset on."""
    layout = Parallelism(tp=4, pp=4, microbatches=8, sharding="fsdp")
    slow = parse_fault("gpu_slow:rank=14,factor=1.5,from=30")
    job = simulate(Scenario(ranks=32, steps=50, seed=3, parallelism=layout, faults=(slow,),
                            workload=Workload(kind="dense", blocks=2, layers=8, shape_spread=0.25),
                            detail="brief"))  # fmt: skip
    assert named(job.window) == [(14,)]

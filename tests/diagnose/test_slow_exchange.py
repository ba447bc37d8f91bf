"""A slow network beside slow ranks, and by phases of communication alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.evaluate.columns import only_tables, without_columns, without_tables
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.window import Strings, Table, Window

DATA = Parallelism(microbatches=1)
NETWORK, GPU = "fabric_slow:from=20,factor=20", "gpu_slow:rank=5,factor=1.25"


def simulated(*faults: str, parallelism: Parallelism = DATA) -> Window:
    known = tuple(map(parse_fault, faults))
    return simulate(Scenario(ranks=16, steps=60, seed=2, parallelism=parallelism,
                             faults=known)).window  # fmt: skip


def verdicts(job: Window) -> list[Verdict]:
    return list(diagnose(job).verdicts)


def named(job: Window) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.cause, one.ranks) for one in verdicts(job)]


def logged(job: Window) -> Window:
    """Only steps and phases, of which nothing says what in them is waiting."""
    return without_columns(only_tables(job, "steps", "phases"), "phases", "waits", "wait_ns")


def test_a_network_that_is_slow_for_all_is_no_fault_of_a_rank_that_is_slow_beside_it() -> None:
    job = simulated(NETWORK, GPU)
    assert named(job) == [("network", ()), ("compute", (5,))]
    network, rank = verdicts(job)
    assert (network.lost_fraction or 0) > 8 * (rank.lost_fraction or 0)


def test_a_slow_adapter_in_the_group_of_a_slow_rank_is_named_beside_it() -> None:
    tensor = Parallelism(tp=4, microbatches=1, sharding="fsdp")
    job = simulated("nic_slow:rank=9,from=20,factor=6", GPU, parallelism=tensor)
    assert named(job) == [("network", (9,)), ("compute", (5,))]


@pytest.mark.parametrize("sharding", ["zero1", "fsdp"])
def test_phases_of_communication_alone_show_a_slower_network(sharding: str) -> None:
    layout = Parallelism(microbatches=1, sharding=sharding)  # type: ignore[arg-type]
    (network,) = verdicts(logged(simulated(NETWORK, parallelism=layout)))
    assert (network.cause, network.ranks, network.group) == ("network", (), None)
    assert network.steps is not None
    assert abs(network.steps[0] - 20) <= 1


def test_a_group_that_was_always_slower_than_its_equals_is_named_by_phases_alone() -> None:
    tensor = Parallelism(tp=4, microbatches=1)
    (network,) = verdicts(logged(simulated("nic_slow:rank=9,factor=20", parallelism=tensor)))
    assert (network.cause, network.ranks, network.group) == ("network", (), "dp-1")
    assert verdicts(logged(simulated(parallelism=tensor))) == []


def test_a_slow_rank_does_not_hide_it_and_takes_no_blame_for_it() -> None:
    assert named(logged(simulated(NETWORK, GPU))) == [("network", ()), ("compute", (5,))]


def test_a_slow_rank_alone_is_no_slow_network() -> None:
    assert named(logged(simulated("gpu_slow:rank=5,factor=1.25,from=20"))) == [("compute", (5,))]
    assert named(logged(simulated())) == []


@pytest.mark.parametrize("left_out", [("kernels", "kernel_summaries"), ("kernel_summaries",)])
def test_a_few_steps_of_operators_show_the_rank_that_slow_groups_of_two_kinds_share(
    left_out: tuple[str, ...],
) -> None:
    tensor = Parallelism(tp=4, microbatches=1)
    slow = parse_fault("nvlink_down:rank=9,factor=20")
    scenario = Scenario(ranks=16, steps=7, seed=2, parallelism=tensor, faults=(slow,))
    job = without_tables(simulate(scenario).window, *left_out)
    (network,) = verdicts(job)
    assert (network.cause, network.ranks) == ("network", (9,))
    assert network.lost_fraction is not None and network.lost_fraction > 0.5


def as_deepspeed_names_it(job: Window) -> Window:
    """Gradients are summed in `bwd_allreduce_microstep`, and no other phase moves data."""
    phases = job.tables["phases"]
    names = phases.strings("phase")
    others = [name for name in names.values if name.startswith(("dp-all", "world"))]
    values = tuple("bwd_allreduce_microstep" if name == "dp-reduce-scatter" else name
                   for name in names.values)  # fmt: skip
    columns = {name: phases.columns[name] for name in phases.columns}
    table = Table({**columns, "phase": Strings(names.codes, values)})
    return replace(job, tables={**job.tables, "phases": table.take(~names.equals(*others))})


def test_gradients_are_exchanged_by_replicas_also_where_the_name_says_no_kind() -> None:
    """Those of the other replicas stay as fast as before."""
    layout = Parallelism(tp=4, microbatches=1)
    job = logged(simulated("nic_slow:rank=2,from=20,factor=20", parallelism=layout))
    (network,) = verdicts(as_deepspeed_names_it(job))
    assert (network.cause, network.ranks, network.group) == ("network", (), "dp-2")
    assert network.steps is not None and abs(network.steps[0] - 20) <= 1
    before, after = 1.0, network.lost_fraction or 0
    assert before > after > 0.8  # forward passes of the next step, which others spend waiting, too


def test_a_few_steps_show_the_pipeline_whose_sends_are_slow_by_operators_alone() -> None:
    slow = parse_fault("nic_slow:rank=10,factor=30,from=3")
    layout = Parallelism(tp=4, pp=4)
    scenario = Scenario(ranks=32, steps=9, seed=2, parallelism=layout, faults=(slow,))
    job = only_tables(simulate(scenario).window, "steps", "comm_ops")
    assert [one.cause for one in verdicts(job)] == ["network"]
    healthy = only_tables(simulate(replace(scenario, faults=())).window, "steps", "comm_ops")
    assert not verdicts(healthy)

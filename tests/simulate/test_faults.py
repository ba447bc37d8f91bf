"""Every fault does what it says, to whom it says, when it says, and its truth says so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.finding import Cause
from stepscope.errors import UsageError
from stepscope.simulate import FAULTS, FaultTruth, Simulation, Truth, parse_fault, simulate
from stepscope.simulate.engine import NEVER
from stepscope.window import NULL, Table
from tests.simulate.jobs import a_scenario, a_step

PIPELINE: dict[str, Any] = {"ranks": 16, "tp": 2, "pp": 2}
SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "gpu_slow": ("rank=5,factor=2", PIPELINE),
    "gpu_ecc": ("rank=5,chance=1", PIPELINE),
    "gpu_shared": ("host=host-001,factor=2", PIPELINE),
    "pcie_slow": ("rank=1", {"ranks": 4}),
    "nvlink_slow": ("rank=5", PIPELINE),
    "nvlink_down": ("rank=5", PIPELINE),
    "nic_slow": ("rank=5,factor=8", {"ranks": 16}),
    "nic_down": ("rank=5,factor=8", {"ranks": 16}),
    "adapter_pcie_slow": ("rank=5,factor=8", {"ranks": 16}),
    "link_slow": ("rank=5,factor=8", {"ranks": 16}),
    "switch_slow": ("switch=leaf-0,factor=8", {"ranks": 16}),
    "congestion": ("switch=leaf-0,factor=8,chance=1", {"ranks": 16}),
    "fabric_slow": ("factor=8", {"ranks": 16}),
    "gc": ("rank=5", PIPELINE),
    "data_slow": ("rank=5", PIPELINE),
    "pin_memory": ("rank=5", PIPELINE),
    "jit_compile": ("rank=5,chance=1,microbatch=3", PIPELINE),
    "late_compile": ("rank=5", PIPELINE),
    "slow_code": ("ms=300", PIPELINE),
    "cpu_contention": ("host=host-000,factor=30", PIPELINE),
    "few_cores": ("host=host-000,factor=30", PIPELINE),
    "expert_imbalance": ("rank=5", {"ep": 2, "kind": "moe"}),
    "uneven_inputs": ("replica=1", PIPELINE),
    "no_overlap": ("", {"ranks": 16}),
    "irregular": ("rank=5,type=degradation", PIPELINE),
    "delay": ("rank=0,microbatch=0", PIPELINE),
}
HANGS = {
    "hang": "rank=5,from=2",
    "missing_recv": "rank=13,from=2,microbatch=1",
    "stuck_loader": "rank=5,from=2",
}


def with_fault(name: str, keys: str, degrees: dict[str, Any], **more: Any) -> Simulation:
    return simulate(a_scenario(f"{name}:{keys}", **{**degrees, **more}))


def the_truth(simulation: Simulation) -> FaultTruth:
    [truth] = simulation.truth.faults
    return truth


def test_every_fault_is_tested_here() -> None:
    assert {*SLOW, *HANGS} == set(FAULTS)


@pytest.mark.parametrize("name", SLOW)
def test_a_slowdown_costs_time_and_has_a_cause_of_the_contract(name: str) -> None:
    keys, degrees = SLOW[name]
    scenario = a_scenario(f"{name}:{keys}", **degrees)
    truth = the_truth(simulate(replace(scenario, detail="brief")))
    assert truth.fault == name
    assert truth.kind == "slowdown"
    assert truth.cause in Cause.__args__  # type: ignore[attr-defined]
    assert truth.lost_ns is not None and truth.lost_ns > 0
    assert truth.slowdown is not None and truth.slowdown > 1
    assert truth.steps == (0, 3)


@pytest.mark.parametrize("name", SLOW)
def test_a_fault_that_is_over_leaves_no_trace_in_later_work(name: str) -> None:
    keys, degrees = SLOW[name]
    scenario = a_scenario(f"{name}:{keys},until=2" if keys else f"{name}:until=2", **degrees)
    healthy = a_scenario(**degrees)
    for step in (2, 3):
        _, costs, _ = a_step(scenario, step)
        _, usual, _ = a_step(healthy, step)
        assert (costs.lasting == usual.lasting).all()
        assert (costs.issuing == usual.issuing).all()


def test_only_the_named_ranks_compute_longer() -> None:
    world, costs, _ = a_step(a_scenario("gpu_slow:ranks=5+6,factor=2", **PIPELINE))
    _, usual, _ = a_step(a_scenario(**PIPELINE))
    ratio = (costs.lasting / np.maximum(usual.lasting, 1)).reshape(len(world.ops), -1)
    computing = world.program.slots(lambda op: op.kind == "compute")
    assert sorted(set(np.nonzero(ratio[computing] > 1.5)[1].tolist())) == [5, 6]
    transfers = world.program.slots(lambda op: op.kind != "compute")
    assert (ratio[transfers] <= 1).all()


def test_a_fault_may_come_and_go() -> None:
    scenario = a_scenario("gpu_slow:rank=1,from=2,every=4,lasting=2", steps=10)
    assert the_truth(simulate(scenario)).active_steps == 4  # 2, 3, 6, 7
    often = a_scenario("gpu_slow:rank=1,chance=0.5", steps=200, quiet=True, microbatches=1)
    fault, world = often.faults[0], a_step(often)[0]
    hits = [fault.active(step, world) for step in range(200)]
    assert 60 < sum(hits) < 140
    assert hits == [fault.active(step, world) for step in range(200)]


def test_what_a_fault_says_can_be_written_and_read_back() -> None:
    scenario = a_scenario("gpu_slow:rank=1", "hang:rank=2,from=3")
    truth = simulate(scenario).truth
    assert Truth.from_json(json.loads(json.dumps(truth.to_json()))) == truth


def test_samples_of_unequal_length_cost_what_equal_ones_would_save() -> None:
    varied = simulate(a_scenario(kind="variable", steps=6)).truth
    assert varied.faults == ()
    (lengths,) = varied.inherent
    assert (lengths.cause, lengths.ranks, lengths.steps) == ("load_imbalance", (), (0, 5))
    assert lengths.lost_fraction is not None
    assert 0.1 < lengths.lost_fraction < 0.6
    assert Truth.from_json(json.loads(json.dumps(varied.to_json()))) == varied
    assert simulate(a_scenario(steps=2)).truth.inherent == ()


def test_a_truth_names_devices_as_findings_do() -> None:
    named = {
        "nic_slow:rank=9": ("nic", "host-001/nic-1"),
        "link_slow:rank=9": ("link", "host-001/nic-1--leaf-0"),
        "gpu_slow:rank=9": ("gpu", "host-001/gpu-1"),
        "nvlink_slow:rank=9": ("nvlink", "host-001/nvlink"),
        "pcie_slow:rank=9": ("pcie", "host-001/pcie-1"),
        "cpu_contention:host=host-001": ("cpu", "host-001/cpu"),
        "switch_slow:switch=leaf-0": ("switch", "leaf-0"),
    }
    for text, device in named.items():
        world, _, _ = a_step(a_scenario(ranks=16))
        assert parse_fault(text).blame(world).devices == (device,)


def test_a_dead_transfer_is_blamed_on_what_carries_it() -> None:
    jobs: list[dict[str, Any]] = [{"ranks": 8}, {"ranks": 16, "tp": 8}]
    found = [
        the_truth(with_fault("hang", "rank=5,at=transfer,from=1", one)).devices for one in jobs
    ]
    assert found == [(("nvlink", "host-000/nvlink"),), (("nic", "host-000/nic-5"),)]


def test_a_switch_is_to_blame_for_those_behind_it() -> None:
    big = replace(a_scenario(ranks=32), hardware=replace(a_scenario().hardware, hosts_per_leaf=2))
    world, _, _ = a_step(big)
    behind = parse_fault("switch_slow:switch=leaf-1").blame(world)
    assert behind.ranks == tuple(range(16, 32))
    assert parse_fault("switch_slow:switch=spine-0").blame(world).ranks != ()
    with pytest.raises(UsageError, match="leaf-0"):
        parse_fault("switch_slow:switch=leaf-9").blame(world)


@pytest.mark.parametrize("device", ["gpu", "nic", "link", "switch", "cpu"])
def test_each_device_can_be_irregular(device: str) -> None:
    keys = f"rank=5,device={device},type=degradation"
    truth = the_truth(with_fault("irregular", keys, {"ranks": 16}, steps=3))
    assert truth.lost_ns is not None and truth.lost_ns > 0


# ---- hangs ----


def unfinished(table: Table) -> Table:
    return table.take(table.ints("end_ns") == NULL)


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_ends_the_job_in_its_step(name: str) -> None:
    simulation = with_fault(name, HANGS[name], PIPELINE)
    truth = the_truth(simulation)
    assert (truth.kind, truth.steps) == ("hang", (2, 2))
    assert (truth.slowdown, truth.lost_ns) == (None, None)
    steps = simulation.window.tables["steps"].ints("step")
    assert set(steps.tolist()) == {0, 1}
    left = unfinished(simulation.window.tables["comm_ops"])
    assert len(left) and set(left.ints("step").tolist()) == {2}


@pytest.mark.parametrize("name", HANGS)
def test_collectors_look_on_for_a_minute_after_a_hang(name: str) -> None:
    simulation = with_fault(name, HANGS[name], PIPELINE)
    until = simulation.job.observed_until_ns
    assert until is not None
    for table, column in (
        ("comm_ops", "enqueue_ns"),
        ("stacks", "start_ns"),
        ("hardware", "ts_ns"),
    ):
        newest = int(simulation.window.tables[table].ints(column).max())
        assert newest <= until + 10_000_000, table  # clocks differ
    last = int(simulation.window.tables["comm_ops"].ints("enqueue_ns").max())
    assert until - last > 50_000_000_000


def test_whose_device_hangs_has_issued_what_it_never_starts() -> None:
    simulation = with_fault("hang", "rank=5,from=2,at=forward,microbatch=0", PIPELINE)
    left = unfinished(simulation.window.tables["comm_ops"])
    mine = left.take(left.ints("rank") == 5)
    peers = left.take(left.ints("rank") == 4)
    tp = {one: table.take(table.strings("op").equals("AllReduce")) for one, table in
          (("mine", mine), ("peers", peers))}  # fmt: skip
    assert len(tp["mine"]) and (tp["mine"].ints("start_ns") == NULL).all()
    assert (tp["peers"].ints("start_ns") != NULL).any()


def test_whose_host_hangs_issues_nothing_more() -> None:
    simulation = with_fault("hang", "rank=5,from=2,at=host,microbatch=1", PIPELINE)
    comm = simulation.window.tables["comm_ops"]
    last = comm.take(comm.ints("step") == 2)
    issued = {rank: int((last.ints("rank") == rank).sum()) for rank in (4, 5)}
    assert issued[5] < issued[4]
    stacks = simulation.window.tables["stacks"]
    mine = stacks.take(stacks.ints("rank") == 5)
    newest = int(np.argmax(mine.ints("start_ns")))
    assert "launch (cuda.cpp:88)" in str(mine.strings("frames")[newest])
    assert mine.ints("duration_ns")[newest] > 50_000_000_000


def test_in_a_dead_transfer_all_have_begun_and_none_has_ended() -> None:
    simulation = with_fault(
        "hang", "rank=5,from=2,at=transfer,microbatch=1", {"ranks": 16, "pp": 2}
    )
    left = unfinished(simulation.window.tables["comm_ops"])
    begun = left.take(left.ints("start_ns") != NULL)
    pair = begun.take(begun.strings("op").equals("Send"))
    assert set(pair.ints("rank").tolist()) == {5}
    state = begun.strings("state")
    assert {state[row] for row in range(len(begun))} == {"started"}


def in_flight(simulation: Simulation) -> set[int]:
    """Ranks whose work requests did not all complete."""
    sent = simulation.window.tables["transfers"]
    return set(sent.ints("rank")[sent.ints("posted") > sent.ints("completed")].tolist())


def test_only_requests_of_a_dead_transfer_stay_in_flight() -> None:
    """Who waits for somebody else's data, or for somebody who does not come, posts nothing."""
    jobs = {"rank=5,from=2,at=transfer": {5}, "rank=5,from=2,at=host": set()}
    for keys, ranks in jobs.items():
        assert in_flight(with_fault("hang", keys, {"ranks": 16})) == ranks


def test_requests_of_a_transfer_that_stands_still_for_a_while_are_in_flight_meanwhile() -> None:
    """Nobody else's are, and in the end all complete."""
    simulation = with_fault("delay", "rank=5,from=2,until=3,at=transfer,ms=5000", {"ranks": 16})
    assert in_flight(simulation) == {5}
    sent = simulation.window.tables["transfers"]
    assert sent.ints("posted").sum() == sent.ints("completed").sum()
    waiting = sent.take(sent.ints("posted") > sent.ints("completed"))
    moving = sent.take(
        (sent.ints("rank") == 5) & (sent.ints("start_ns") > waiting.ints("end_ns")[0])
    )
    assert moving.ints("start_ns").min() - waiting.ints("end_ns")[0] > 3_000_000_000


def test_the_traffic_of_an_adapter_that_is_down_is_counted_at_another_one() -> None:
    sent = with_fault("nic_down", "rank=5,from=1", {"ranks": 16}).window.tables["transfers"]
    rank, nic = sent.ints("rank"), sent.strings("nic")
    nics = {one: {nic[int(row)] for row in np.flatnonzero(rank == one)} for one in (5, 6)}
    assert nics == {5: {"nic-5", "nic-1"}, 6: {"nic-6"}}


def test_counters_show_what_a_processor_would_see_of_a_device() -> None:
    """Under the names that it gives them, on the ranks and adapters that have the fault alone."""
    shown = {
        "nic_slow:rank=5": ("nic_retrans.nic-5", {-1}),
        "pcie_slow:rank=5": ("pcie_link_gb_per_s", {5}),
        "gpu_shared:host=host-001": ("gpu_strangers", set(range(8, 16))),
    }
    for fault, (metric, ranks) in shown.items():
        hardware = simulate(a_scenario(fault, ranks=16)).window.tables["hardware"]
        rows = hardware.take(hardware.strings("metric").equals(metric))
        value, rank = rows.floats("value"), rows.ints("rank")
        odd = value < 63 if metric.startswith("pcie") else value > 0
        assert set(rank[odd].tolist()) == ranks


def test_a_hang_after_a_slowdown_has_both_truths() -> None:
    scenario = a_scenario("gpu_slow:rank=3,factor=2", "hang:rank=5,from=3", **PIPELINE)
    slow, stuck = simulate(scenario).truth.faults
    assert (slow.kind, stuck.kind) == ("slowdown", "hang")
    assert slow.lost_ns is not None and 0 < slow.lost_ns < NEVER
    assert slow.slowdown is not None and slow.slowdown > 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hang:rank=5,at=nowhere", "nowhere"),
        ("hang:rank=5,microbatch=99", "99"),
        ("missing_recv:rank=0", "first stage"),
        ("delay:rank=1,at=host", "host"),
        ("switch_slow:switch=spine-0", "no traffic"),
        ("gpu_slow:rank=1,factor=0", "factor"),
        ("gpu_slow:rank=1,only=lunch", "lunch"),
        ("gpu_slow:rank=1,decoy=lunch", "lunch"),
        ("expert_imbalance:rank=1", "experts"),
        ("uneven_inputs:replica=9", "9"),
        ("cpu_contention:host=host-777", "host-777"),
        ("irregular:device=lamp", "lamp"),
        ("irregular:type=lamp", "lamp"),
        ("jit_compile:rank=1,microbatch=55", "55"),
    ],
)
def test_a_fault_that_does_not_fit_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulate(a_scenario(text, **PIPELINE))

"""What must hold in any job: who leaves together, what waits for what, what a delay costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepscope.simulate import Scenario, simulate
from stepscope.simulate.engine import Times
from stepscope.simulate.program import Key, Op
from stepscope.simulate.schedule import order_of
from stepscope.simulate.world import World
from stepscope.window import Column, Ints
from tests.simulate.jobs import a_scenario, a_step, without_faults

MS = 1_000_000


def ends_ns(scenario: Scenario) -> list[int]:
    """When each step of a job ended."""
    steps = simulate(replace(scenario, detail="brief")).window.tables["steps"]
    end = steps.ints("start_ns") + steps.ints("duration_ns")
    return [int(end[steps.ints("step") == step].max()) for step in range(scenario.steps)]


def of(world: World, table: Ints, key: Key) -> Ints:
    """Times of one operation, `[stage, rank within the stage]`."""
    found: Ints = table[world.program.slot[key]]
    return found


@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 2}, {"ep": 2, "kind": "moe"}, {"cp": 2}])
def test_members_of_a_collective_leave_together(degrees: dict[str, Any]) -> None:
    one_clock = replace(a_scenario().noise, clock_offset_us=0, clock_drift_ppm=0)
    scenario = replace(a_scenario(**degrees, steps=2), noise=one_clock)
    comm = simulate(scenario).window.tables["comm_ops"]
    keys = zip(comm.strings("group").codes.tolist(), comm.ints("seq").tolist(), strict=True)
    ends: dict[tuple[int, int], set[int]] = {}
    for key, peer, end in zip(keys, comm.ints("peer"), comm.ints("end_ns"), strict=True):
        if peer == -1:
            ends.setdefault(key, set()).add(int(end))
    assert ends
    assert all(len(times) == 1 for times in ends.values())


def test_a_transfer_begins_when_the_last_has_come() -> None:
    world, costs, times = a_step(a_scenario(tp=2))
    for op in world.ops:
        if op.group == "tp":
            slot = world.program.slot[op.key]
            last = times.begin[slot].reshape(-1, 2).max(axis=1)
            took = costs.lasting[slot].reshape(-1, 2)[:, 0]
            assert (times.end[slot].reshape(-1, 2).max(axis=1) == last + took).all()


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(4, 1, 8), (2, 1, 1), (4, 2, 8)])
def test_a_stage_runs_each_microbatch_forward_then_backward(
    stages: int, chunks: int, microbatches: int
) -> None:
    for stage in range(stages):
        order = order_of(stage, stages, microbatches, chunks)
        forwards = [cell[1:] for cell in order if cell.direction == "forward"]
        backwards = [cell[1:] for cell in order if cell.direction == "backward"]
        assert len(order) == len(set(order)) == 2 * microbatches * chunks
        assert set(forwards) == set(backwards)
        for at, cell in enumerate(order):
            if cell.direction == "backward":
                assert ("forward", *cell[1:]) in order[:at]


def test_1f1b_is_one_forward_then_one_backward_in_turn() -> None:
    words = ["".join(cell.direction[0] for cell in order_of(stage, 3, 4)) for stage in range(3)]
    assert words == ["fffbfbbb", "ffbfbfbb", "fbfbfbfb"]


def _quiet(*faults: str, **degrees: Any) -> Scenario:
    return a_scenario(*faults, quiet=True, steps=1, **degrees)


def _makespan(times: Times) -> int:
    return int(times.done.max())


def test_a_slower_rank_lengthens_a_job_without_pipeline_by_just_what_it_takes_longer() -> None:
    _, costs, before = a_step(_quiet())
    world, slower, after = a_step(_quiet("gpu_slow:rank=3,factor=1.5,only=forward-compute"))
    more = int((slower.lasting - costs.lasting)[:, 0, 3].sum())
    assert more > 0
    assert _makespan(after) - _makespan(before) == more
    assert world.scenario.dp == 8


def test_a_delay_inside_a_bubble_costs_nothing() -> None:
    """The first stage waits for the gradients of its first microbatch."""
    quiet = _quiet(pp=4, microbatches=4)
    _, _, before = a_step(quiet)
    _, _, after = a_step(_quiet("delay:rank=0,at=forward,microbatch=3,ms=5", pp=4, microbatches=4))
    assert _makespan(after) == _makespan(before)


def test_a_delay_on_the_critical_path_costs_all_of_it() -> None:
    """Nothing can begin before the first microbatch has left the first stage."""
    _, _, before = a_step(_quiet(pp=4, microbatches=4))
    _, _, after = a_step(_quiet("delay:rank=0,at=forward,microbatch=0,ms=5", pp=4, microbatches=4))
    assert _makespan(after) - _makespan(before) == 5 * MS


def test_communication_overlaps_computation() -> None:
    """Gradients of the first buckets travel while the backward pass goes on."""
    world, _, times = a_step(_quiet())
    grads: list[Op] = [op for op in world.ops if op.key[-1] == "grads"]
    begin, end = (of(world, one, grads[0].key) for one in (times.begin, times.end))
    computing = world.program.slots(lambda op: op.phase == "backward-compute")
    beside = (times.begin[computing] < end) & (times.end[computing] > begin)
    assert beside.any(axis=0).all()


def test_a_pass_begins_when_the_operators_within_the_one_before_it_have_ended() -> None:
    world, _, times = a_step(a_scenario("gpu_slow:rank=5,factor=2", tp=2, pp=2, steps=1))
    for stage, ops in enumerate(world.program.stages):
        ended = np.zeros(world.cluster.per_stage, np.int64)
        for op in ops:
            slot = world.program.slot[op.key]
            if op.kind == "compute":
                assert (times.begin[slot, stage] >= ended).all()
            elif op.group == "tp":
                ended = times.end[slot, stage]


def test_without_overlap_a_step_is_longer() -> None:
    _, _, before = a_step(_quiet())
    _, _, after = a_step(_quiet("no_overlap"))
    assert _makespan(after) > _makespan(before)


def test_a_host_stall_that_the_device_does_not_notice_costs_nothing() -> None:
    """The host runs ahead: what it issues late is not yet needed."""
    _, _, before = a_step(_quiet())
    _, _, after = a_step(_quiet("jit_compile:rank=2,microbatch=3,ms=20,chance=1"))
    assert _makespan(after) == _makespan(before)


def test_a_slow_host_makes_its_device_wait() -> None:
    _, _, before = a_step(_quiet())
    _, _, after = a_step(_quiet("cpu_contention:host=host-000,factor=30"))
    assert _makespan(after) > 1.3 * _makespan(before)


def test_data_moves_as_fast_as_the_slowest_link_lets_it() -> None:
    jobs = [a_scenario(*faults, ranks=16, quiet=True, steps=1)
            for faults in ([], ["nic_slow:rank=5,factor=4"])]  # fmt: skip
    took = []
    for job in jobs:
        world, costs, _ = a_step(job)
        took.append(costs.lasting[world.program.slot[("params",)]].astype(float))
    # healthy, eight adapters of 48 GB/s carry a little more than NVLink's 370
    assert took[1] == pytest.approx(4 * 370 / (8 * 48) * took[0], rel=0.01)


def test_gpus_that_share_an_adapter_share_its_bandwidth() -> None:
    took = []
    for nics in (8, 2):
        scenario = a_scenario(ranks=16, quiet=True, steps=1)
        scenario = replace(scenario, hardware=replace(scenario.hardware, nics_per_host=nics))
        world, costs, _ = a_step(scenario)
        took.append(int(costs.lasting[world.program.slot[("params",)]].max()))
    assert took[1] == pytest.approx(370 / (2 * 48) * took[0], rel=0.01)


def test_traffic_within_a_host_does_not_use_the_network() -> None:
    world, costs, _ = a_step(a_scenario("nic_slow:rank=1,factor=9", tp=8, quiet=True, steps=1))
    _, healthy, _ = a_step(a_scenario(tp=8, quiet=True, steps=1))
    assert (costs.lasting == healthy.lasting).all()
    assert world.scenario.dp == 1


def test_no_fault_no_loss() -> None:
    assert simulate(a_scenario()).truth.faults == ()
    never = a_scenario("gpu_slow:rank=1,factor=3,from=99")
    [truth] = simulate(never).truth.faults
    assert (truth.steps, truth.slowdown, truth.lost_ns) == (None, None, 0)


def test_lost_time_is_what_the_same_job_takes_less_without_the_fault() -> None:
    scenario = a_scenario("gpu_slow:rank=1,factor=2,from=2", pp=2, tp=2)
    lost = ends_ns(scenario)[-1] - ends_ns(without_faults(scenario))[-1]
    [truth] = simulate(scenario).truth.faults
    assert truth.lost_ns == pytest.approx(lost, abs=10_000)  # clocks drift
    assert truth.lost_ns is not None and truth.lost_ns > 0
    assert truth.steps == (2, 3)


def test_each_of_two_faults_has_a_truth_of_its_own() -> None:
    both = ("gpu_slow:rank=1,factor=2", "data_slow:rank=1,ms=200")
    together = simulate(a_scenario(*both)).truth.faults
    alone = [simulate(a_scenario(one)).truth.faults[0] for one in both]
    assert [one.fault for one in together] == ["gpu_slow", "data_slow"]
    for one, other in zip(together, alone, strict=True):
        assert one.lost_ns == pytest.approx(other.lost_ns, rel=0.05)


def test_a_fault_that_another_hides_costs_nothing() -> None:
    """Rank 6 waits for rank 1 anyhow."""
    scenario = a_scenario("gpu_slow:rank=1,factor=3", "data_slow:rank=6,ms=100")
    assert [one.lost_ns == 0 for one in simulate(scenario).truth.faults] == [False, True]


def test_a_fault_changes_nothing_before_its_onset() -> None:
    scenario = a_scenario("gpu_slow:rank=1,factor=2,from=2", pp=2, tp=2)
    assert ends_ns(scenario)[:2] == ends_ns(without_faults(scenario))[:2]


@pytest.mark.parametrize(
    "fault", ["gpu_slow:chance=0.5", "gpu_ecc:chance=0.7", "late_compile:ms=9"]
)
def test_renumbering_ranks_renumbers_truth_and_nothing_else(fault: str) -> None:
    order = tuple(np.random.default_rng(3).permutation(8).tolist())
    plain = a_scenario(f"{fault},rank=5", tp=2, pp=2, steps=3)
    renamed = replace(a_scenario(f"{fault},rank={order[5]}", tp=2, pp=2, steps=3), rank_of=order)
    before, after = simulate(plain), simulate(renamed)
    [truth], [other] = before.truth.faults, after.truth.faults
    named = dict(other.parameters, ranks=(5,))
    assert replace(other, ranks=(5,), parameters=named) == truth
    for name, table in before.window.tables.items():
        its = after.window.tables[name]
        ranks = np.append(np.array(order), -1)[table.ints("rank")]
        assert its.ints("rank").tolist() == ranks.tolist(), name
        for column in set(table.columns) - {"rank", "peer"}:
            values, others = table.columns[column], its.columns[column]
            assert _plain(values) == _plain(others), (name, column)


def _plain(values: Column) -> list[Any]:
    return [values[at] for at in range(len(values))]


def test_equal_scenarios_give_equal_rows_and_other_seeds_do_not() -> None:
    assert ends_ns(a_scenario(seed=3)) == ends_ns(a_scenario(seed=3))
    assert ends_ns(a_scenario(seed=3)) != ends_ns(a_scenario(seed=4))

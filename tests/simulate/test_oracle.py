"""The fast engine agrees with a slow and obvious simulation, to the nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.simulate.engine import NEVER, Costs, play
from stepscope.simulate.program import Key
from stepscope.simulate.world import World
from tests.simulate.jobs import a_scenario, a_step
from tests.simulate.oracle import Cost, Oracle

JOBS: list[dict[str, Any]] = [
    {"ranks": 4},
    {"ranks": 1},
    {"ranks": 8, "tp": 2, "pp": 2},
    {"ranks": 8, "tp": 2, "pp": 4, "microbatches": 3},
    {"ranks": 8, "cp": 2, "pp": 2, "sharding": "ddp"},
    {"ranks": 8, "pp": 4, "chunks": 2, "microbatches": 8},
    {"ranks": 8, "pp": 2, "chunks": 2},
    {"ranks": 8, "ep": 2, "pp": 2, "kind": "moe"},
    {"ranks": 8, "ep": 4, "tp": 2, "kind": "moe"},
    {"ranks": 8, "sharding": "fsdp"},
    {"ranks": 8, "sharding": "fsdp", "pp": 2, "tp": 2, "kind": "variable"},
]


def reading(world: World, table: Any) -> Cost:
    """One of the engine's cost tables, as the oracle asks for it."""

    def cost(key: Key, stage: int, within: int) -> int:
        return int(table[world.program.slot[key], stage, within])

    return cost


def assert_agree(scenario: Any, step: int = 0) -> None:
    world, costs, times = a_step(scenario, step)
    serial = any(fault.name == "no_overlap" for fault in scenario.faults)
    program = world.serial_plan.program if serial else world.program
    played = _play(world, costs, program)
    for rank in played:
        for op in rank.program:
            at = (world.program.slot[op.key], rank.stage, rank.within)
            for name in ("issued", "begin", "end"):
                told = getattr(rank, name).get(op.key, NEVER)
                assert int(getattr(times, name)[at]) == min(told, NEVER), (name, op.key, at)


def _play(world: World, costs: Costs, program: Any) -> Any:
    lasting, issuing = reading(world, costs.lasting), reading(world, costs.issuing)
    return Oracle(program, world.cluster, lasting, issuing).play()


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_every_event_happens_when_the_oracle_says(job: dict[str, Any]) -> None:
    for step in range(2):
        assert_agree(a_scenario(**job), step)


@pytest.mark.parametrize("job", JOBS[2:6], ids=str)
def test_without_overlap_too(job: dict[str, Any]) -> None:
    assert_agree(a_scenario("no_overlap", **job))


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Any job of up to 16 ranks."""
    tp, cp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    pp, dp = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    kind = draw(st.sampled_from(["dense", "moe", "variable"]))
    chunks = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    return {
        "ranks": tp * cp * pp * dp, "tp": tp, "cp": cp, "pp": pp, "kind": kind, "chunks": chunks,
        "ep": dp if kind == "moe" else 1, "microbatches": pp * draw(st.integers(1, 2)),
        "sharding": draw(st.sampled_from(["ddp", "zero1", "fsdp"])),
        "seed": draw(st.integers(0, 9)),
    }  # fmt: skip


@given(jobs())
@settings(max_examples=25)
def test_any_job_happens_as_the_oracle_says(job: dict[str, Any]) -> None:
    assert_agree(a_scenario(**job))


@pytest.mark.parametrize("at", ["host", "forward", "backward", "transfer"])
def test_what_never_ends_holds_back_the_same_operations(at: str) -> None:
    assert_agree(a_scenario(f"hang:rank=5,at={at}", ranks=8, tp=2, pp=2))
    assert_agree(a_scenario(f"hang:rank=5,at={at}", ranks=8, ep=2, kind="moe"))


def test_hosts_that_are_slower_than_their_devices() -> None:
    world, costs, times = a_step(a_scenario(ranks=8, tp=2, pp=2))
    slow = Costs(costs.lasting, costs.issuing * 40)
    times = play(world.plan, world.cluster.grid, slow, np.zeros_like(times.done))
    played = _play(world, slow, world.program)
    ends = {world.cluster.per_stage * r.stage + r.within: max(r.end.values()) for r in played}
    assert times.done.ravel().tolist() == [ends[place] for place in range(8)]

"""Scenarios and faults, as people write them down."""

from __future__ import annotations

import pytest

from stepscope.errors import UsageError
from stepscope.simulate import FAULTS, Parallelism, Scenario, parse_fault, simulate
from stepscope.simulate.cases import CASES, case_values
from stepscope.simulate.faults import GpuSlow, SwitchSlow
from stepscope.simulate.parse import from_values
from stepscope.simulate.world import World


def test_a_fault_is_a_name_and_keys() -> None:
    fault = parse_fault("gpu_slow:ranks=3+4,factor=1.5,from=50,seen=no")
    assert fault == GpuSlow(ranks=(3, 4), factor=1.5, onset=50, seen=False)
    assert parse_fault("gpu_slow:rank=3,until=9") == GpuSlow(ranks=(3,), until=9)
    assert parse_fault("switch_slow:switch=leaf-0--spine-1").parameters()["switch"] == (
        "leaf-0--spine-1"
    )


def test_a_scenario_file_names_sections_and_faults() -> None:
    scenario = Scenario.parse(
        """
        name = "llama"
        ranks = 16
        seed = 3
        [parallelism]
        tp = 2
        pp = 2
        sharding = "fsdp"
        [workload]
        kind = "variable"
        attention_ms = 4
        [hardware]
        nics_per_host = 4
        [noise]
        warm_up = [2.0]
        [[fault]]
        name = "gpu_slow"
        ranks = [3, 4]
        from = 2
        [[fault]]
        name = "switch_slow"
        switch = "leaf-0"
        """
    )
    assert (scenario.name, scenario.ranks, scenario.seed, scenario.dp) == ("llama", 16, 3, 4)
    assert scenario.parallelism == Parallelism(tp=2, pp=2, sharding="fsdp")
    assert (scenario.workload.attention_ms, scenario.noise.warm_up) == (4.0, (2.0,))
    assert scenario.faults == (GpuSlow(ranks=(3, 4), onset=2), SwitchSlow(switch="leaf-0"))


def test_without_degrees_a_job_is_split_as_is_usual() -> None:
    assert from_values({"ranks": 64}).parallelism == Parallelism(tp=4, pp=4)
    assert from_values({"ranks": 10240}).parallelism == Parallelism(tp=8, pp=8)
    assert from_values({"ranks": 6}).parallelism == Parallelism()
    few = from_values({"ranks": 64, "parallelism": {"microbatches": 2}})
    assert few.parallelism == Parallelism(tp=4, pp=4, microbatches=2)
    assert from_values({"ranks": 64, "parallelism": {"tp": 2}}).parallelism == Parallelism(tp=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ranks =", "not valid TOML"),
        ("ranks = true", "ranks=True"),
        ("gpus = 3", "gpus"),
        ("[workload]\nspeed = 1", "speed"),
        ("workload = 3", "table of keys"),
        ("fault = 3", r"\[\[fault\]\]"),
        ("[[fault]]\nrank = 3", "needs a name"),
        ('detail = "much"', "auto, full, normal, brief"),
        ("[parallelism]\ntp = 2\nchunks = 2", "chunks=2"),
        ("ranks = 4\nrank_of = [0, 1, 2, 2]", "rank_of"),
        ("[noise]\ncompute = nope", "not valid TOML"),
        ('[noise]\ncompute = "nope"', "not a number"),
    ],
)
def test_nonsense_is_refused_by_its_name(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Scenario.parse(text)


@pytest.mark.parametrize("name", CASES)
def test_every_case_fits_its_job(name: str) -> None:
    scenario = from_values(case_values(name))
    world = World(scenario)
    for fault in scenario.faults:
        fault.check(world)
        assert fault.onset < scenario.steps


def test_a_case_can_be_played() -> None:
    truth = simulate(from_values({**case_values("eroica-5"), "steps": 4, "ranks": 8})).truth
    assert [one.cause for one in truth.faults] == ["contention"]


def test_every_fault_says_what_it_is_and_where_it_comes_from() -> None:
    for name, fault in FAULTS.items():
        assert fault.name == name
        assert fault.help and fault.family and fault.__doc__

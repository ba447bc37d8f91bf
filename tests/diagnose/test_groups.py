"""Groups that no job.json lists, from who calls operators together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.order_of_passes import with_stages
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism, Workload
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Strings, Window

from .jobs import MS, START, a_table, put
from .roles import GENERATE, a_job_of_roles

LAYOUTS = [
    Parallelism(tp=2, pp=2), Parallelism(tp=2, pp=4, chunks=2), Parallelism(tp=2, pp=2, ep=2),
    Parallelism(tp=2), Parallelism(pp=4), Parallelism(tp=2, pp=2, sharding="fsdp"),
]  # fmt: skip


def unlisted(job: Window) -> Window:
    """The job without groups, whose names in `comm_ops` say nothing."""
    comm = job.tables["comm_ops"]
    names = comm.strings("group")
    opaque = Strings(names.codes, tuple(f"0x{at:04x}" for at in range(len(names.values))))
    bare = replace(job.job, groups=(), parallelism={}, schedule=None)
    return put(Window(bare, job.tables), comm_ops=comm.with_column("group", opaque))


def groups(job: Window) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((one.kind, one.ranks) for one in job.job.groups if len(one.ranks) > 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_are_who_calls_together_and_stages_who_sends_first(layout: Parallelism) -> None:
    workload = Workload("moe" if layout.ep > 1 else "dense")
    scenario = Scenario(ranks=16, steps=4, parallelism=layout, workload=workload, detail="normal")
    job = simulate(scenario).window
    assert groups(clean(unlisted(job))[0]) == groups(job)


def test_names_that_begin_with_a_kind_are_believed() -> None:
    rows = [(rank, 0, f"cp-{rank // 2}", seq, "AllReduce", START + seq * MS)
            for rank in range(4) for seq in range(3)]  # fmt: skip
    window = Window(Job("named", 4), {"comm_ops": a_table("rank step group seq op enqueue_ns",
                                                          rows)})  # fmt: skip
    assert groups(clean(window)[0]) == [("cp", (0, 1)), ("cp", (2, 3))]


def test_one_group_alone_is_the_job_as_it_is() -> None:
    rows = [(rank, 0, "0x1", 0, "AllReduce", START) for rank in (0, 1)]
    window = Window(Job("one", 3), {"comm_ops": a_table("rank step group seq op enqueue_ns", rows)})
    assert clean(window)[0].job.groups == ()


def test_a_slow_rank_is_found_where_no_groups_are_listed() -> None:
    fault = parse_fault("gpu_slow:rank=5,factor=1.5")
    scenario = Scenario(ranks=16, steps=30, parallelism=LAYOUTS[0], faults=(fault,),
                        detail="normal")  # fmt: skip
    job = simulate(scenario).window
    assert [one.ranks for one in diagnose(unlisted(job)).verdicts] == [(5,)]


def test_ranks_of_other_programs_that_send_to_each_other_are_no_pipeline() -> None:
    job = unlisted(a_job_of_roles({GENERATE[3]: 1.8}))
    assert not clean(job)[0].job.groups_of_kind("pp")
    assert [one.ranks for one in diagnose(job).verdicts] == [(GENERATE[3],)]


def test_a_model_parallel_group_across_stages_does_not_meet_within_a_pass() -> None:
    """As Megatron lists it: the ranks of a replica, which reduce the norm of gradients."""
    found = [ProcessGroup("pp-0", "pp", (0, 2)), ProcessGroup("pp-1", "pp", (1, 3)),
             ProcessGroup("tp-0", "tp", (0, 1)),
             ProcessGroup("mp-0", "mp", (0, 1, 2, 3))]  # fmt: skip
    window = clean(Window(Job("megatron", 4, groups=tuple(found)), {}))[0]
    assert [one.id for one in window.job.groups_of_kind(*WITHIN_PASSES)] == ["tp-0"]
    alone = (ProcessGroup("mp-0", "mp", (0, 1, 2, 3)),)
    window = clean(Window(Job("tensor", 4, groups=alone), {}))[0]
    assert [one.id for one in window.job.groups_of_kind(*WITHIN_PASSES)] == ["mp-0"]


def test_a_pipeline_has_the_name_that_its_recorded_members_use() -> None:
    scenario = Scenario(ranks=8, steps=4, parallelism=Parallelism(pp=4), detail="normal")
    job = unlisted(simulate(scenario).window)
    comm = job.tables["comm_ops"]
    recorded = put(job, comm_ops=comm.take(comm.ints("rank") > 1))
    names = {one.id for one in clean(recorded)[0].job.groups_of_kind("pp")}
    assert names == {one.id for one in clean(job)[0].job.groups_of_kind("pp")}


def test_the_order_of_passes_shows_the_stages_of_a_pipeline_that_nobody_listed() -> None:
    """Nothing but phases, without degrees of parallelism: stage p of 4 begins with 4 - p passes."""
    layout = Parallelism(pp=4)
    job = simulate(Scenario(ranks=16, steps=8, seed=3, parallelism=layout)).window
    bare = replace(job.job, groups=(), parallelism={}, schedule=None)
    found = with_stages(Window(bare, {"phases": job.tables["phases"]})).job
    assert [one.ranks for one in found.groups_of_kind("pp")] == [
        one.ranks for one in job.job.groups_of_kind("pp")
    ]
    alone = simulate(Scenario(ranks=16, steps=8, seed=3)).window
    bare = replace(alone.job, groups=(), parallelism={}, schedule=None)
    assert with_stages(Window(bare, {"phases": alone.tables["phases"]})).job.groups == ()

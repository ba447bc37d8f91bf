"""Waiting that nobody marked, in phases in which only some ranks wait for each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import OwnTime, own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Host
from stepscope.window import Floats, Window

from .jobs import MS, put
from .meetings import Named, Slower, a_job_that_meets, phase, split

TENSOR = split(tensor=4, replicas=4)
REPLICAS = split(tensor=1, replicas=8)
CULPRIT = 5


def tensor_parallel(
    data: str = "data", passes: str = "fwd", update: str = "opt_step"
) -> list[Named]:
    """Loading ends with a broadcast within each `tp` group, passes reduce activations."""
    return [
        phase("prepare", (10, None)), phase(data, (5, "tp")),
        phase(passes, (20, "tp"), (20, "tp"), (20, "tp")),
        phase("bwd", (40, "tp"), (40, "tp"), (40, "tp"), (2, "dp")), phase(update, (8, None)),
    ]  # fmt: skip


def data_parallel() -> list[Named]:
    return [phase("data", (5, None)), phase("fwd", (60, None)), phase("bwd", (120, "world")),
            phase("opt_step", (8, None))]  # fmt: skip


def own(window: Window) -> OwnTime:
    return own_time(window, timeline(window))


def of(window: Window, name: str) -> Floats:
    """Median own time of each rank in a phase, in ms."""
    found = own(window)
    values: Floats = np.nanmedian(found.own[found.phases.index(name)], axis=1) / MS
    return values


def blamed(window: Window) -> list[tuple[tuple[int, ...], str | None]]:
    return [(one.ranks, one.phase) for one in diagnose(window).verdicts]


@pytest.mark.parametrize("since", [0, 40])
@pytest.mark.parametrize("slow", ["prepare", "opt_step"])
def test_ranks_that_wait_in_a_broadcast_are_not_slow_at_loading(slow: str, since: int) -> None:
    window = a_job_that_meets(
        tensor_parallel(), TENSOR, 16, faults=[Slower(CULPRIT, slow, 40, since)]
    )
    assert blamed(window) == [((CULPRIT,), slow)]


@pytest.mark.parametrize("slow", ["data", "fwd", "bwd"])
def test_nobody_is_accused_where_any_member_of_a_group_may_have_held_up_others(slow: str) -> None:
    window = a_job_that_meets(tensor_parallel(), TENSOR, 16, faults=[Slower(CULPRIT, slow, 40)])
    found = diagnose(window)
    assert all(one.is_suspect and one.ranks == (4, 5, 6, 7) for one in found.verdicts)
    assert found.state != "healthy"


def test_waiting_within_a_group_is_inferred_under_any_name() -> None:
    program = tensor_parallel(data="get_batch", passes="step1")
    window = a_job_that_meets(program, TENSOR, 16, faults=[Slower(CULPRIT, "prepare", 40)])
    assert {"get_batch", "bwd"} <= set(own(window).inferred)
    assert blamed(window) == [((CULPRIT,), "prepare")]


@pytest.mark.parametrize("since", [0, 40])
def test_groups_that_nobody_listed_are_those_who_leave_together(since: int) -> None:
    window = a_job_that_meets(
        tensor_parallel(), TENSOR, 16, faults=[Slower(CULPRIT, "prepare", 40, since)]
    )
    window = replace(window, job=replace(window.job, groups=()))
    assert {"data", "fwd"} & {one.method.removeprefix("own time of ")
                              for one in own(window).skipped}  # fmt: skip
    assert blamed(window) == [((CULPRIT,), "prepare")]


@pytest.mark.parametrize("per_host", [8, 4, 2])
@pytest.mark.parametrize("since", [0, 40])
def test_a_rank_that_begins_its_steps_late_is_waited_for(since: int, per_host: int) -> None:
    """Nobody waits between the update of one step and backward of the next."""
    window = a_job_that_meets(
        data_parallel(), REPLICAS, 8, faults=[Slower(CULPRIT, "opt_step", 40, since)]
    )
    hosts = tuple(Host(f"h{at}", tuple(range(at, at + per_host))) for at in range(0, 8, per_host))
    window = replace(window, job=replace(window.job, hosts=hosts))
    assert blamed(window) == [((CULPRIT,), "opt_step")]


def off_by(window: Window, ranks: range, ms: float) -> Window:
    """The job with the clock of some ranks off."""
    tables = {}
    for name, table in window.tables.items():
        wrong = np.isin(table.ints("rank"), list(ranks))
        start = table.ints("start_ns") + np.where(wrong, int(ms * MS), 0)
        tables[name] = table.with_column("start_ns", start)
    return put(window, **tables)


@pytest.mark.parametrize("ms", [-700, -30, 30, 700])
@pytest.mark.parametrize("slow", ["data", "opt_step"])
def test_clocks_of_hosts_that_differ_change_no_verdict(slow: str, ms: float) -> None:
    window = a_job_that_meets(data_parallel(), REPLICAS, 8, faults=[Slower(CULPRIT, slow, 40)])
    assert blamed(off_by(window, range(4, 8), ms)) == [((CULPRIT,), slow)]


@pytest.mark.parametrize("ms", [-40, 40])
def test_the_clock_of_one_process_that_is_off_is_no_lateness(ms: float) -> None:
    for program, groups, ranks in ((data_parallel(), REPLICAS, 8), (tensor_parallel(), TENSOR, 16)):
        window = a_job_that_meets(program, groups, ranks)
        assert blamed(off_by(window, range(3, 4), ms)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_healthy_jobs_accuse_nobody(noise: float, seed: int) -> None:
    for program, groups, ranks in ((data_parallel(), REPLICAS, 8), (tensor_parallel(), TENSOR, 16)):
        assert blamed(a_job_that_meets(program, groups, ranks, noise=noise, seed=seed)) == []


def hidden(per_host: int) -> Window:
    """Devices timed the passes, which gather parameters; the culprit stays behind after that."""
    program = [phase("forward-compute", (20, "world"), (40, None)),
               phase("backward-compute", (80, "world"))]  # fmt: skip
    window = a_job_that_meets(program, REPLICAS, 8, noise=0.01)
    phases, steps = window.tables["phases"], window.tables["steps"]
    behind = (phases.ints("rank") == CULPRIT) & phases.strings("phase").equals("forward-compute")
    longer = np.where(behind, 20 * MS, 0)
    phases = phases.with_column("duration_ns", phases.ints("duration_ns") + longer)
    phases = phases.with_column("waits", np.ones(len(phases), np.int64))
    hosts = tuple(Host(f"h{at}", tuple(range(at, at + per_host))) for at in range(0, 8, per_host))
    return Window(replace(window.job, hosts=hosts), {"steps": steps, "phases": phases})


def test_a_rank_that_leaves_a_hidden_phase_after_the_others_worked_there_itself() -> None:
    window = hidden(per_host=4)
    assert "forward-compute" in {
        one.method.removeprefix("own time of ") for one in own(window).skipped
    }
    assert of(window, "forward-compute").round(-1).tolist() == [0] * 5 + [20] + [0] * 2


def test_nothing_is_certain_of_ranks_that_share_no_clock() -> None:
    assert "forward-compute" not in own(hidden(per_host=1)).phases


def test_nothing_is_certain_where_starts_were_made_up() -> None:
    window = hidden(per_host=4)
    phases = window.tables["phases"]
    order = np.lexsort((phases.ints("start_ns"), phases.ints("step"), phases.ints("rank")))
    phases = phases.take(order)
    starts = phases.ints("start_ns").copy()
    second = phases.strings("phase").equals("backward-compute")
    starts[second] = (starts + phases.ints("duration_ns"))[np.flatnonzero(second) - 1]
    assert (
        "forward-compute"
        not in own(put(window, phases=phases.with_column("start_ns", starts))).phases
    )

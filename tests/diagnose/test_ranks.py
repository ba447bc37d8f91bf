"""One rank is slow: it alone is named, with where, why, since when and at what cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.report.text import render_text
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Window

from .jobs import LOOP, MS, Fault, a_job, put, with_samples, without

NOISES = (0.05, 0.3)


def the_verdict(diagnosis: Diagnosis) -> Verdict:
    assert len(diagnosis.verdicts) == 1, [verdict.summary for verdict in diagnosis.verdicts]
    return diagnosis.verdicts[0]


@pytest.mark.parametrize("noise", NOISES)
def test_a_rank_that_computes_longer_in_backward(noise: float) -> None:
    burn = Fault((2,), "backward-compute", 100, ms=60, function="burn (train.py:99)")
    diagnosis = diagnose(a_job(noise=noise, faults=[burn]))
    verdict = the_verdict(diagnosis)
    assert (verdict.kind, verdict.cause) == ("slowdown", "compute")
    assert (verdict.ranks, verdict.phase) == ((2,), "backward-compute")
    assert verdict.function == "burn (train.py:99)"
    assert verdict.victims == 3
    assert verdict.steps is not None
    assert abs(verdict.steps[0] - 100) <= 5
    assert verdict.slowdown == pytest.approx(110 / 50, rel=0.15)
    assert diagnosis.state == "regression"


def test_of_two_ranks_a_slightly_slow_one_is_no_alibi_for_a_very_slow_one() -> None:
    burn = Fault((1,), "backward-compute", 100, ms=80)
    petty = Fault((0,), "optimizer", 0, ms=1.5)
    verdict = the_verdict(diagnose(a_job(ranks=2, noise=0.02, faults=[burn, petty])))
    assert verdict.ranks == (1,)
    assert verdict.lost_fraction == pytest.approx(80 / 170, rel=0.15)


def test_the_cost_is_what_the_steps_would_lose() -> None:
    fault = Fault((2,), "backward-compute", 100, ms=60)
    verdict = the_verdict(diagnose(a_job(noise=0.01, faults=[fault])))
    assert verdict.lost_fraction == pytest.approx(60 / (1 + 30 + 110 + 2 + 5 + 0.2), rel=0.03)
    assert verdict.summary == (
        "rank 2 computes 2.2x slower than its peers in backward-compute from step 100"
    )


@pytest.mark.parametrize("noise", NOISES)
def test_a_rank_that_sleeps_in_forward_is_the_host(noise: float) -> None:
    nap = Fault((1,), "forward-compute", 100, ms=60, computes=False, function="nap (train.py:98)")
    verdict = the_verdict(diagnose(a_job(noise=noise, faults=[nap])))
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("host", (1,), "forward-compute")
    assert verdict.function == "nap (train.py:98)"


def test_a_training_loop_that_sleeps_is_named_with_its_line() -> None:
    """Everybody is in it all the time; only here it is what runs."""
    nap = Fault((1,), "forward-compute", 100, ms=60, computes=False, function=LOOP)
    verdict = the_verdict(diagnose(a_job(noise=0.01, faults=[nap])))
    assert (verdict.cause, verdict.function) == ("host", "train (train.py:44)")
    (stacks,) = [each for each in verdict.evidence if each.method == "slow-function"]
    assert (
        stacks.detail == "train (train.py:44) itself runs in 41 % of the samples, 0 % on its peers"
    )


def test_where_everything_is_slower_no_function_is_named() -> None:
    """None carries half of the excess."""
    phases = ("forward-compute", "backward-compute", "optimizer")
    slow = [Fault((1,), phase, 100, ms=30) for phase in phases]
    verdict = the_verdict(diagnose(a_job(noise=0.01, faults=slow)))
    assert (verdict.ranks, verdict.function) == ((1,), None)


@pytest.mark.parametrize("noise", NOISES)
def test_a_slow_loader(noise: float) -> None:
    load = Fault((3,), "data-load", 100, ms=60, computes=False)
    verdict = the_verdict(diagnose(a_job(noise=noise, faults=[load])))
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("data_loading", (3,), "data-load")
    assert "more than 100x" not in verdict.summary


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("ms", "every"), [(60, 1), (200, 5)])
def test_storms_of_garbage_collection(noise: float, ms: float, every: int) -> None:
    storm = Fault((3,), "forward-compute", 100, ms=ms, every=every, gc=True)
    verdict = the_verdict(diagnose(a_job(noise=noise, faults=[storm])))
    assert (verdict.cause, verdict.ranks) == ("gc", (3,))
    assert "gc.freeze()" in verdict.advice


def a_pinned_rank(strangers: float) -> Window:
    job = a_job(noise=0.2, faults=[Fault((3,), None, 100, times=2, computes=False)])
    job = with_samples(job, "run_delay", lambda rank, _: 0.6 if rank == 3 else 0.15)
    return with_samples(job, "allowed_cpus", lambda *_: 1.0) if not strangers else with_strangers(
        job, strangers)  # fmt: skip


def with_strangers(job: Window, cores: float) -> Window:
    """Turns the samples of `proc_stopped` into ones of `stranger_cpu_util` on rank 3."""
    table = job.tables["hardware"]
    metric = table.strings("metric")
    values = tuple("stranger_cpu_util" if v == "proc_stopped" else v for v in metric.values)
    job = put(job, hardware=table.with_column("metric", Strings(metric.codes, values)))
    return with_samples(job, "stranger_cpu_util", lambda rank, _: cores if rank == 3 else 0.0)


def test_a_rank_without_its_processor() -> None:
    verdict = the_verdict(diagnose(a_pinned_rank(strangers=0.0)))
    assert (verdict.cause, verdict.ranks, verdict.phase) == ("host", (3,), None)


def test_what_the_threads_that_move_its_data_lack_is_part_of_the_evidence() -> None:
    job = with_samples(a_pinned_rank(strangers=0.0), "comm_run_delay", lambda rank, _: (
        0.35 if rank == 3 else 0.05))  # fmt: skip
    said = {one.method: one.detail for one in the_verdict(diagnose(job)).evidence}
    assert "that move data wait for one for 30 % of the time" in said["processor-use"]


def test_other_processes_on_its_processor_are_contention() -> None:
    verdict = the_verdict(diagnose(a_pinned_rank(strangers=0.9)))
    assert (verdict.cause, verdict.ranks) == ("contention", (3,))


def test_what_a_processor_computes_is_no_fault_of_a_device() -> None:
    job = a_job(faults=[Fault((3,), "forward-compute", 100, times=2.0)], stacks=False)
    found = diagnose(job)
    assert the_verdict(found).cause == "compute" and "device" not in the_verdict(found).advice
    assert "its processor computes for longer: more work" in render_text(found, width=200)


def test_on_a_shared_processor_computing_takes_longer_too() -> None:
    """Caches are cold after each turn of somebody else."""
    colder = Fault((3,), None, 100, times=1.6)
    waits = Fault((3,), None, 100, times=1.35, computes=False)
    job = with_samples(a_job(noise=0.2, faults=[colder, waits]), "run_delay",
                       lambda rank, _: 0.6 if rank == 3 else 0.15)  # fmt: skip
    alone, shared = the_verdict(diagnose(job)), the_verdict(diagnose(with_strangers(job, 0.9)))
    assert (alone.cause, shared.cause) == ("compute", "contention")


def test_everyone_waiting_for_processors_is_no_reason() -> None:
    """On an oversubscribed host all ranks wait to run; a sleeping one is still a sleeping one."""
    nap = Fault((1,), "forward-compute", 100, ms=60, computes=False)
    job = with_samples(a_job(noise=0.2, faults=[nap]), "run_delay", lambda *_: 0.5)
    assert the_verdict(diagnose(job)).phase == "forward-compute"


def test_a_fault_that_was_there_from_the_start() -> None:
    diagnosis = diagnose(a_job(noise=0.1, faults=[Fault((0,), "optimizer", 0, ms=20)]))
    verdict = the_verdict(diagnosis)
    assert (verdict.ranks, verdict.phase, diagnosis.state) == ((0,), "optimizer", "slow")
    assert verdict.steps is not None
    assert verdict.steps[0] <= 10


def test_two_slow_ranks_of_four() -> None:
    faults = [Fault((1, 2), "backward-compute", 100, ms=60)]
    diagnosis = diagnose(a_job(noise=0.1, faults=faults))
    assert [verdict.ranks for verdict in diagnosis.verdicts] == [(1, 2)]


def test_one_of_two_ranks() -> None:
    faults = [Fault((1,), "backward-compute", 100, ms=60)]
    assert the_verdict(diagnose(a_job(ranks=2, noise=0.2, faults=faults))).ranks == (1,)


def test_waiting_ranks_look_as_slow_and_are_victims() -> None:
    """All durations are equal in backward: ranks that wait for the culprit leave with it."""
    job = a_job(noise=0.02, faults=[Fault((2,), "backward-compute", 100, ms=60)])
    phases = job.tables["phases"]
    late = phases.strings("phase").equals("backward-compute") & (phases.ints("step") > 100)
    walls = [np.median(phases.ints("duration_ns")[late & (phases.ints("rank") == r)])
             for r in range(4)]  # fmt: skip
    assert max(walls) < 1.05 * min(walls)
    assert the_verdict(diagnose(job)).ranks == (2,)


def test_a_delay_that_costs_nothing_is_no_verdict() -> None:
    """Rule 4: the rank loads longer and has less to compute, so that no rank waits for it."""

    def lighter(own: Floats) -> Floats:
        own[2, 2] -= 30 * MS
        return own

    job = a_job(noise=0.02, faults=[Fault((2,), "data-load", 100, ms=20)], edit=lighter)
    assert diagnose(job).verdicts == ()


def test_renumbering_ranks_renumbers_verdicts() -> None:
    job = a_job(noise=0.2, faults=[Fault((2,), "backward-compute", 100, ms=60)])
    renamed = np.array([3, 0, 1, 2])
    tables = {
        name: table.with_column(
            "rank", np.where(table.ints("rank") >= 0, renamed[table.ints("rank")], -1)
        )
        for name, table in job.tables.items()
    }
    there, here = diagnose(Window(job.job, tables)), diagnose(job)
    assert the_verdict(here).ranks == (2,)
    assert the_verdict(there).ranks == (1,)
    assert the_verdict(there).lost_fraction == pytest.approx(the_verdict(here).lost_fraction)


def test_order_of_rows_does_not_matter() -> None:
    job = a_job(noise=0.2, faults=[Fault((2,), "backward-compute", 100, ms=60)])
    random = np.random.default_rng(1)
    mixed = {name: table.take(random.permutation(len(table))) for name, table in job.tables.items()}
    there, here = the_verdict(diagnose(Window(job.job, mixed))), the_verdict(diagnose(job))
    assert (there.summary, there.steps, there.time_ns) == (here.summary, here.steps, here.time_ns)


@pytest.mark.parametrize("name", ["steps", "comm_ops", "stacks", "hardware", "pauses"])
def test_without_one_table_the_rest_still_names_the_rank(name: str) -> None:
    job = without(a_job(faults=[Fault((2,), "backward-compute", 100, ms=60)]), name)
    diagnosis = diagnose(job)
    assert the_verdict(diagnosis).ranks == (2,)
    assert any(name in skipped.why for skipped in diagnosis.skipped)


def test_without_phases_the_time_between_collectives_counts() -> None:
    job = without(a_job(faults=[Fault((2,), "forward-compute", 100, ms=60)]), "phases")
    verdict = the_verdict(diagnose(job))
    assert (verdict.ranks, verdict.phase) == ((2,), None)


def test_ranks_are_compared_only_with_their_own_stage() -> None:
    """The second pipeline stage has twice the work by design; one of its replicas is slow."""
    job = a_job(ranks=4, noise=0.03, faults=[
        Fault((2, 3), "forward-compute", 0, ms=30), Fault((3,), "forward-compute", 100, ms=40),
    ])  # fmt: skip
    groups = (
        ProcessGroup("dp-0", "dp", (0, 1)),
        ProcessGroup("dp-1", "dp", (2, 3)),
        ProcessGroup("pp-0", "pp", (0, 2)),
        ProcessGroup("pp-1", "pp", (1, 3)),
    )
    staged = Window(Job("staged", 4, (Host("host-000", (0, 1, 2, 3)),), groups=groups), job.tables)
    assert the_verdict(diagnose(staged)).ranks == (3,)


def test_all_ranks_of_one_host_of_three_are_that_host() -> None:
    job = a_job(ranks=6, noise=0.1, faults=[Fault((2, 3), None, 100, times=2, computes=False)])
    job = with_samples(job, "run_delay", lambda rank, _: 0.6 if rank in (2, 3) else 0.1)
    hosts = tuple(Host(f"host-{n}", (2 * n, 2 * n + 1)) for n in range(3))
    verdict = the_verdict(diagnose(Window(replace(job.job, hosts=hosts), job.tables)))
    assert (verdict.ranks, verdict.hosts, verdict.cause) == ((2, 3), ("host-1",), "host")
    assert [device.name for device in verdict.devices] == ["host-1/cpu"]
    assert verdict.victims == 4


def test_the_evidence_can_be_checked() -> None:
    verdict = the_verdict(diagnose(a_job(faults=[Fault((2,), "backward-compute", 100, ms=60)])))
    methods = [evidence.method for evidence in verdict.evidence]
    assert methods[:3] == ["argus-l2", "last-arrival", "processor-use"]
    assert "100 % of the excess is processor time" not in verdict.evidence[0].detail


@pytest.mark.parametrize(("since", "state"), [(0, "slow"), (60, "regression")])
def test_what_a_job_is_called_by_when_it_began(since: int, state: str) -> None:
    """Also where the step time has recovered at the end, so that no rise of it lasts."""
    slow = Fault((5,), "backward-compute", since, 110 if since else 160, ms=8)
    assert diagnose(a_job(ranks=8, steps=160, faults=[slow])).state == state


def test_a_rank_that_becomes_slow_little_by_little_was_slow_from_the_beginning_of_that() -> None:
    ramp = [Fault((5,), "backward-compute", at, at + 10, ms=(at - 50) / 2)
            for at in range(60, 160, 10)]  # fmt: skip
    verdict = the_verdict(diagnose(a_job(ranks=8, steps=160, faults=ramp)))
    assert verdict.ranks == (5,)
    assert verdict.steps is not None and abs(verdict.steps[0] - 60) <= 10


@pytest.mark.parametrize("stop", [193, 180, 154])
def test_a_slowdown_that_ended_ended_when_it_did(stop: int) -> None:
    """Also if it did so a few steps before the recording."""
    burn = Fault((2,), "backward-compute", 60, stop, ms=60)
    verdict = the_verdict(diagnose(a_job(faults=[burn])))
    assert verdict.steps is not None and abs(verdict.steps[1] - (stop - 1)) <= 1


def test_a_storm_of_collections_begins_with_the_first_that_follow_each_other() -> None:
    """And not with one long before, as any rank has now and then."""
    faults = [Fault((1,), "forward-compute", 30, 31, ms=9, gc=True),
              Fault((1,), "forward-compute", 140, ms=30, gc=True)]  # fmt: skip
    verdict = the_verdict(diagnose(a_job(faults=faults)))
    assert (verdict.ranks, verdict.cause) == ((1,), "gc")
    assert verdict.steps is not None and abs(verdict.steps[0] - 140) <= 2
    assert verdict.lost_fraction == pytest.approx(30 / 120, abs=0.06)

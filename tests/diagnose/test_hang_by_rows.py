"""Hangs of jobs of which no operator was recorded: rows of phases, kernels, calls or steps end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.evaluate.columns import only_tables, without_columns
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_job, a_table, put
from .test_hang import CULPRIT, SECOND, a_stuck_job, missed_ns, the_hang

DATA, PIPELINE = Parallelism(), Parallelism(pp=4)
TENSOR = Parallelism(tp=4)


def watched(job: Window, *tables: str, seconds: float) -> Window:
    """Only some tables of the job, and when it was last looked at, after its last phase."""
    phases = job.tables["phases"]
    last = int((phases.ints("start_ns") + phases.ints("duration_ns")).max())
    until_ns = last + int(seconds * SECOND)
    return Window(replace(job.job, observed_until_ns=until_ns), only_tables(job, *tables).tables)


def simulated(*faults: str, parallelism: Parallelism = DATA, ranks: int = 16) -> Window:
    """A simulated job that hangs in step 12 and is watched for a minute after that."""
    known = tuple(map(parse_fault, faults))
    return simulate(Scenario(ranks=ranks, steps=14, seed=3, parallelism=parallelism,
                             faults=known, detail="full")).window  # fmt: skip


def hang_of(job: Window, *tables: str) -> Verdict:
    """The hang, and no other verdicts, which a slow rank has, too."""
    found = diagnose(only_tables(job, *tables))
    hangs = tuple(one for one in found.verdicts if one.kind == "hang")
    return the_hang(replace(found, verdicts=hangs))


def test_by_phases_alone_the_rank_that_has_not_ended_what_others_have_is_named() -> None:
    job = watched(a_stuck_job(seconds=30), "phases", seconds=29)
    for found in (find_hang(job), diagnose(job)):
        verdict = the_hang(found)
        assert (verdict.ranks, verdict.cause, verdict.victims) == ((CULPRIT,), "unknown", 3)
        assert "forward-compute" in verdict.summary


def test_a_rank_that_never_got_its_batch_is_stuck_in_its_loader() -> None:
    job = simulated("stuck_loader:rank=6,from=12")
    for tables in (("phases",), ("steps", "phases")):
        verdict = hang_of(job, *tables)
        assert (verdict.ranks, verdict.cause) == ((6,), "data_loading")


@pytest.mark.parametrize("table", ["phases", "kernels", "comm_ops"])
def test_each_table_alone_shows_who_is_behind_though_a_rank_was_slow_before(table: str) -> None:
    job = simulated("gpu_slow:rank=3,from=6", "hang:rank=5,from=12,at=host")
    job = without_columns(job, "comm_ops", "start_ns", "end_ns", "state", "blocked_ns")
    assert hang_of(job, table).ranks == (5,)
    assert hang_of(job, table, "steps").ranks == (5,)


def test_two_ranks_that_stopped_are_both_named() -> None:
    job = simulated("hang:rank=5,from=12,at=host", "hang:rank=9,from=12,at=host")
    assert hang_of(job, "phases").ranks == (5, 9)


def test_where_all_wait_in_one_transfer_the_job_hangs_and_nobody_is_named() -> None:
    verdict = hang_of(simulated("hang:rank=5,from=12,at=transfer"), "phases")
    assert (verdict.ranks, verdict.cause) == ((), "unknown")
    assert verdict.confidence >= 0.5


def test_of_steps_alone_only_that_they_ended_is_known() -> None:
    verdict = hang_of(simulated("hang:rank=5,from=12,at=host"), "steps")
    assert verdict.ranks == ()
    assert verdict.is_suspect
    assert hang_of(simulated("hang:rank=5,from=12,at=host"), "steps", "stacks").ranks == (5,)


@pytest.mark.parametrize("logs", [True, False])
def test_a_host_that_waits_in_each_step_where_it_stopped_now_is_only_a_suspect(logs: bool) -> None:
    """Rank 0 logs the loss after its second call, so it may just wait for a device."""
    calls = [
        (rank, step, "dp-0", 4 * step + at, "AllReduce", -1,
         START + step * SECOND + (at * 100 + 500 * (logs and rank == 0 and at > 1)) * MS)
        for step in range(6) for rank in range(4)
        for at in range(2 if (rank, step) == (0, 5) else 4)
    ]  # fmt: skip
    table = a_table("rank step group seq op peer enqueue_ns", calls)
    job = Job("nccl", 4, (Host("h", (0, 1, 2, 3)),), observed_until_ns=START + 60 * SECOND)
    verdict = the_hang(find_hang(Window(job, {"comm_ops": table})))
    assert (verdict.ranks, verdict.is_suspect) == ((0,), logs)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_rank_behind_its_tensor_parallel_partner_does_not_wait_for_it(recorded: bool) -> None:
    """Rank 2 called an operator less than all others; unless rank 3 was recorded and is ahead, it
    may be what rank 2 waits for."""
    groups = (ProcessGroup("tp-0", "tp", (0, 1)), ProcessGroup("tp-1", "tp", (2, 3)))
    calls = [
        (rank, step, f"tp-{rank // 2}", 4 * step + at, "AllReduce", -1,
         START + step * SECOND + at * 100 * MS)
        for step in range(6) for rank in range(4)
        for at in range(2 if (rank, step) == (2, 5) else 4)
        if recorded or rank != 3
    ]  # fmt: skip
    table = a_table("rank step group seq op peer enqueue_ns", calls)
    job = Job("tensor", 4, (Host("h", (0, 1, 2, 3)),), {}, groups,
              recorded_ranks=None if recorded else (0, 1, 2),
              observed_until_ns=START + 60 * SECOND)  # fmt: skip
    verdict = the_hang(find_hang(Window(job, {"comm_ops": table})))
    assert verdict.ranks == (2,)
    assert verdict.is_suspect != recorded


def test_devices_that_started_an_operator_are_ahead_of_the_one_that_did_not() -> None:
    job = simulated("hang:rank=5,from=12,at=forward")
    job = without_columns(job, "comm_ops", "end_ns", "state", "blocked_ns")
    assert hang_of(job, "comm_ops").ranks == (5,)


def test_in_a_pipeline_the_rank_that_has_its_input_is_suspected_until_its_stack_is_known() -> None:
    job = simulated("hang:rank=6,from=12,at=host", parallelism=PIPELINE)
    alone = hang_of(job, "phases")
    assert (alone.ranks, alone.is_suspect) == ((6,), True)
    assert not hang_of(job, "phases", "stacks").is_suspect
    received = simulated("missing_recv:rank=6,from=12", parallelism=PIPELINE)
    assert hang_of(received, "phases").ranks == (6,)


def test_ranks_that_share_layers_stop_together_and_only_a_stack_distinguishes_them() -> None:
    job = simulated("hang:rank=5,from=12,at=host", parallelism=TENSOR)
    assert hang_of(job, "phases").ranks == ()
    assert hang_of(job, "phases", "stacks").ranks == (5,)


def test_silence_of_a_rank_that_was_not_recorded_means_nothing() -> None:
    job = simulated("hang:rank=5,from=12,at=host")
    even = {name: table.take(table.ints("rank") % 2 == 0) for name, table in job.tables.items()}
    half = Window(replace(job.job, recorded_ranks=tuple(range(0, 16, 2))), even)
    assert hang_of(half, "phases").ranks == ()


@pytest.mark.parametrize("tables", [("phases",), ("steps",), ("steps", "phases")])
def test_a_job_that_ended_or_whose_step_goes_on_does_not_hang(tables: tuple[str, ...]) -> None:
    job = a_job(steps=30)
    assert find_hang(only_tables(job, *tables)) is None, "nobody watched"
    for seconds in (0.05, 2.0, 9.0):
        assert find_hang(watched(job, *tables, seconds=seconds)) is None
    late = a_stuck_job(seconds=1)
    assert find_hang(watched(late, *tables, seconds=3)) is None


def test_a_long_checkpoint_or_an_evaluation_at_the_end_is_no_hang() -> None:
    job = a_job(steps=30)
    end = int((job.tables["steps"].ints("start_ns")).max()) + SECOND
    saving = a_table("rank thread start_ns duration_ns frames", [
        (rank, "MainThread", end, 90 * SECOND,
         "train (train.py:9);save_checkpoint (train.py:70)" if rank == 0 else
         "train (train.py:9);barrier (distributed.py:5)") for rank in range(4)
    ])  # fmt: skip
    assert find_hang(put(watched(job, "steps", "phases", seconds=90), stacks=saving)) is None


def test_a_job_that_paused_as_long_before_may_pause_again() -> None:
    job = a_stuck_job(seconds=30)
    phases = job.tables["phases"]
    later = phases.ints("step") >= 20
    moved = phases.with_column("start_ns", phases.ints("start_ns") + later * 40 * SECOND)
    assert find_hang(watched(put(job, phases=moved), "phases", seconds=45)) is None
    assert find_hang(watched(put(job, phases=moved), "phases", seconds=75)) is not None


def test_rows_that_were_lost_may_have_shown_progress() -> None:
    job = watched(a_stuck_job(seconds=30), "phases", seconds=29)
    since = missed_ns(a_stuck_job(seconds=30))
    lost = a_table(
        "rank table start_ns end_ns rows", [(0, "phases", since, since + 25 * SECOND, 9)]
    )
    assert find_hang(put(job, losses=lost)) is None


def test_ranks_of_one_role_are_compared_where_some_generate_and_others_train() -> None:
    """Rank 2 stops while it generates; trainers have much more left, as they wait for it."""
    programs = {True: ("rollout", "update_weights"), False: ("actor_step", "update_weights")}
    rows = [(rank, step, phase, -1, START + (step * 1000 + at * 400) * MS, 400 * MS)
            for step in range(12) for rank in range(8)
            for at, phase in enumerate(programs[rank < 4])
            if step < 11 or (rank in (0, 1, 3) and phase == "rollout")]  # fmt: skip
    phases = a_table("rank step phase microbatch start_ns duration_ns", rows)
    job = Window(Job("rl", 8, observed_until_ns=START + 90 * SECOND), {"phases": phases})
    assert the_hang(find_hang(job)).ranks == (2,)


def test_stages_that_nobody_listed_may_wait_for_one_another() -> None:
    job = watched(simulated("hang:rank=5,from=12,at=host", parallelism=PIPELINE),
                  "phases", seconds=60)  # fmt: skip
    job = Window(replace(job.job, groups=(), parallelism={}, schedule=None), job.tables)
    assert set(hang_of(job, "phases").ranks) <= {5}


def test_times_that_were_made_up_show_no_silence() -> None:
    job = watched(a_stuck_job(seconds=30), "phases", seconds=29)
    job = without_columns(job, "phases", "start_ns")
    assert not any(one.kind == "hang" for one in diagnose(job).verdicts)


def test_parts_of_several_passes_may_have_one_name() -> None:
    """Attention runs in both passes. Rank 6 has the last stage of the first of two pipelines."""
    passes = ["forward-compute", "backward-compute"]
    parts = [(name, batch) for each in passes for batch in range(2)
             for name in ("self_attention", each)]  # fmt: skip
    ended = {0: 4, 2: 4, 4: 4, 6: 4}  # of the last step, in which both forward passes were done
    rows = [
        (rank, step, *part, START + step * SECOND + at * 50 * MS, 40 * MS)
        for step in range(6) for rank in range(8)
        for at, part in enumerate(parts[: ended.get(rank, 8) if step == 5 else 8])
    ]  # fmt: skip
    groups = tuple(ProcessGroup(f"pp-{at}", "pp", tuple(range(at, 8, 2))) for at in range(2))
    job = Job("staged", 8, (Host("h", tuple(range(8))),), groups=groups,
              observed_until_ns=START + 60 * SECOND)  # fmt: skip
    table = a_table("rank step phase microbatch start_ns duration_ns", rows)
    assert the_hang(find_hang(Window(job, {"phases": table}))).ranks == (6,)

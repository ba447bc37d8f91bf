"""What a job loses again and again: too much saving, and ranks that are late in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window

from .jobs import MS, START, Fault, a_job, a_table, put
from .traces import Piece, a_trace

EVERYBODY = tuple(range(8))
STEPS = 100


def verdict(found: Diagnosis) -> Verdict:
    assert found.state != "healthy"
    (one,) = found.verdicts
    return one


@pytest.mark.parametrize("ranks", [EVERYBODY, (0,)])
def test_a_checkpoint_that_costs_too_much_accuses_nobody_but_is_told(
    ranks: tuple[int, ...],
) -> None:
    fault = Fault(ranks, "optimizer", 0, ms=1_000, every=20, function="save (torch/x.py:1)")
    one = verdict(diagnose(a_job(8, STEPS, faults=[fault])))
    assert (one.ranks, one.evidence[0].method) == ((), "recurring-loss")
    assert one.summary.startswith("every 20 steps, steps take ")
    assert "checkpoint" in one.summary and "save less often" in one.advice
    assert one.lost_fraction == pytest.approx(50 / 143, abs=0.05)


def test_one_stop_of_minutes_among_checkpoints_does_not_come_back() -> None:
    window = a_job(8, STEPS, faults=[Fault(EVERYBODY, "optimizer", 0, ms=60, every=10)])
    moved = {}
    for name in ("steps", "phases"):
        table = window.tables[name]
        later = np.where(table.ints("step") > 60, 60_000 * MS, 0)
        moved[name] = table.with_column("start_ns", table.ints("start_ns") + later)
    assert not diagnose(put(window, **moved)).verdicts


def test_who_runs_a_function_that_saves_nothing_is_named() -> None:
    """The first rank has duties, so that a schedule of its own is none of a slow device."""
    fault = Fault((0,), "optimizer", 0, ms=1_000, every=20, function="flush (train.py:9)")
    one = verdict(diagnose(a_job(8, STEPS, faults=[fault])))
    assert (one.cause, one.ranks, one.function) == ("host", (0,), "flush (train.py:9)")
    assert one.summary.startswith("every 20 steps, rank 0 takes 993 ms longer in optimizer")


@pytest.mark.parametrize(("function", "named"), [("flush", True), ("save", False)])
def test_half_as_much_is_enough_to_name_it(function: str, named: bool) -> None:
    fault = Fault((0,), "optimizer", 0, ms=700, every=70, function=f"{function} (train.py:9)")
    verdicts = diagnose(a_job(8, 3 * STEPS, faults=[fault])).verdicts
    assert [one.ranks for one in verdicts if one.confidence >= 0.5] == [(0,)] * named


def test_pauses_of_all_ranks_on_a_schedule_are_told_from_a_tenth_on() -> None:
    def diagnosed(ms: float) -> Diagnosis:
        fault = Fault(EVERYBODY, "forward-compute", 0, ms=ms, every=12)
        return diagnose(a_job(8, STEPS, faults=[fault], stacks=False))

    assert verdict(diagnosed(240)).phase == "forward-compute"
    assert diagnosed(100).verdicts == ()


@pytest.mark.parametrize(
    ("function", "told"),
    [("compile_fx (torch/_inductor/compile_fx.py:9)", True), ("flush (train.py:9)", False)],
)
def test_what_nobody_plans_needs_no_tenth_of_the_time(function: str, told: bool) -> None:
    """Code is compiled anew in steps that keep no interval; a flush of logs may be wanted."""
    faults = [Fault(EVERYBODY, "forward-compute", at, at + 1, ms=110, function=function)
              for at in (12, 25, 31, 50, 57, 76, 88)]  # fmt: skip
    found = diagnose(a_job(8, STEPS, faults=faults))
    assert [(one.cause, one.ranks) for one in found.verdicts] == [("jit_compile", ())] * told
    assert found.state == "jitter"


def steps_alone(every: int) -> Verdict:
    """Of steps alone it is not known whether the job saves, or is held up."""
    rows, clock = [], START
    for step in range(STEPS):
        ms = 100 + (step % 3) + 400 * (step % every == every - 1)
        rows += [(rank, step, clock, ms * MS) for rank in range(8)]
        clock += ms * MS
    steps = a_table("rank step start_ns duration_ns", rows)
    return verdict(diagnose(Window(Job("steps", 8), {"steps": steps})))


def test_pauses_on_a_schedule_that_nothing_names_may_be_planned() -> None:
    one = steps_alone(every=10)
    assert one.summary.startswith("every 10 steps, steps take 400 ms longer (unknown source)")
    assert one.confidence < 0.5


def test_nobody_plans_to_stop_every_few_steps() -> None:
    one = steps_alone(every=5)
    assert one.confidence > 0.5 and one.ranks == ()


def test_equal_distances_by_chance_are_no_schedule() -> None:
    """Long steps at 5, 9, 60, 64 and 90: two of four gaps are the same, and cover nothing."""
    faults = [Fault(EVERYBODY, "forward-compute", at, at + 1, ms=900) for at in (5, 9, 60, 64, 90)]
    one = verdict(diagnose(a_job(8, STEPS, faults=faults, stacks=False)))
    assert one.summary.startswith("in 5 of ") and "every" not in one.summary


def with_pauses(pauses: Callable[[int], list[tuple[str, int]]], ranks: int = 8) -> Diagnosis:
    """A job in which some ranks do other things after a step, in phases; the others wait."""
    steps, phases, clock = [], [], START
    for step in range(80):
        beside = pauses(step)
        whole = 100 + sum(ms for _, ms in beside)
        for rank in range(8):
            steps.append((rank, step, clock, whole * MS))
            begin = clock
            lengths = [("forward-compute", 40), ("backward-compute", 60)]
            for name, ms in [*lengths, *(beside if rank < ranks else ())]:
                phases.append((rank, step, name, begin, ms * MS, 0))
                begin += ms * MS
        clock += whole * MS
    job = Job("beside", 8, (Host("h", EVERYBODY),),
              groups=(ProcessGroup("dp-0", "dp", EVERYBODY),))  # fmt: skip
    return diagnose(Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
    }))  # fmt: skip


def test_two_schedules_that_cross_are_told_by_the_names_of_their_phases() -> None:
    """All ranks save every 16 steps and evaluate every 15; together these keep no interval."""

    def pauses(step: int) -> list[tuple[str, int]]:
        saves = [("save-checkpoint", 500)] * (step % 16 == 15)
        return saves + [("evaluate", 300)] * (step % 15 == 14)

    one = verdict(with_pauses(pauses))
    assert (one.ranks, one.cause) == ((), "code")
    assert one.lost_fraction == pytest.approx(4000 / 12000, abs=0.05)


def test_what_one_rank_does_while_all_wait_needs_no_more_than_a_tenth() -> None:
    """All ranks together may evaluate for as long."""

    def pauses(step: int) -> list[tuple[str, int]]:
        return [("autre", 260)] * (step % 20 == 19)

    one = verdict(with_pauses(pauses, ranks=1))
    assert (one.ranks, one.phase) == ((), "autre")
    assert one.lost_fraction == pytest.approx(260 / 2260, abs=0.02)
    assert with_pauses(pauses).verdicts == ()


@pytest.mark.parametrize(("ms", "told"), [(400, True), (120, False)])
def test_long_steps_without_a_schedule_are_told_if_they_cost_more_than_jobs_usually_lose(
    ms: int, told: bool
) -> None:
    """All ranks wait within their passes, and nothing shows for what."""
    odd = np.random.default_rng(4).choice(np.arange(10, 80), 12, replace=False)
    found = with_pauses(lambda step: [("pass", 100 + (ms if step in odd else 0))])
    assert found.state == "jitter"
    assert [(one.ranks, one.cause) for one in found.verdicts] == [((), "unknown")] * told


def late_in_turns(ms: float, every: int, rows: tuple[int, ...] = EVERYBODY) -> Diagnosis:
    """Every so many steps some rank is held up, and not the same one as before."""

    def hold_up(own: Floats) -> Floats:
        for turn, step in enumerate(range(5, own.shape[2], every)):
            own[1, rows[turn * 3 % len(rows)], step] += ms * MS
        return own

    window = a_job(8, STEPS, 0.02, edit=hold_up, stacks=False)
    hosts = (Host("a", (0, 1, 2, 3)), Host("b", (4, 5, 6, 7)))
    return diagnose(replace(window, job=replace(window.job, hosts=hosts)))


@pytest.mark.parametrize("every", [2, 3])
def test_a_different_rank_each_time_on_a_schedule(every: int) -> None:
    one = verdict(late_in_turns(100, every))
    assert (one.ranks, one.cause, one.phase) == ((), "host", "forward-compute")
    assert "hold up all others in turns" in one.summary
    assert one.lost_fraction == pytest.approx(100 / (93 * every + 100), abs=0.05)


def test_a_few_percent_in_turns_are_ordinary() -> None:
    assert late_in_turns(40, 6).verdicts == ()


def test_ranks_of_one_host_in_turns_are_the_host() -> None:
    one = verdict(late_in_turns(150, 4, rows=(4, 5, 6, 7)))
    assert (one.ranks, one.cause) == ((4, 5, 6, 7), "host")


def idle_in_turns(late_ms: float, late: Sequence[int]) -> Diagnosis:
    """A trace in which one host after the other launches its second kernel too late."""

    def work(rank: int, step: int) -> list[Piece]:
        mine = late[step] == rank
        return [Piece("gemm", 20.0), Piece("relu", 10.0, 1.0 + late_ms if mine else 0.0)]

    return diagnose(a_trace(work, ranks=8, steps=len(late)))


@pytest.mark.parametrize("late", [(5, 2, 7, 1), (5, 5, 2, 2, 7, 7), (-1, 3, -1, 6, 0, 4)])
def test_devices_that_idle_in_turns_in_a_trace(late: tuple[int, ...]) -> None:
    times = sum(rank >= 0 for rank in late)
    one = verdict(idle_in_turns(20.0, late))
    assert (one.ranks, one.cause) == ((), "host")
    assert one.evidence[0].method == "in-turns" and "launches nothing" in one.evidence[0].detail
    assert one.lost_fraction == pytest.approx(21 * times / (33 * len(late) + 21 * times), abs=0.03)


@pytest.mark.parametrize("late", [(-1, -1, -1, -1), (-1, 2, -1, 5)])
def test_one_late_launch_or_two_are_no_turns(late: tuple[int, ...]) -> None:
    found = idle_in_turns(20.0, late)
    assert "in-turns" not in {seen.method for one in found.verdicts for seen in one.evidence}


def test_the_last_rank_has_no_costly_duties() -> None:
    fault = Fault((7,), "data-load", 0, ms=400, every=25)
    one = verdict(diagnose(a_job(8, 200, faults=[fault], stacks=False)))
    assert one.ranks == (7,)


def test_operators_of_a_compiler_say_what_all_ranks_do_in_long_steps() -> None:
    """A trace without stacks shows them; the source is what most of the excess is."""

    def work(rank: int, step: int) -> Sequence[Piece]:
        return [Piece("gemm", 10.0, 200.0 if step in (7, 11, 18, 21, 30) else 0.0)]

    job = a_trace(work, ranks=4, steps=40)
    steps = job.tables["steps"]
    columns = ("rank", "step", "start_ns", "duration_ns")
    rows = [(rank, step, "_compile.compile_inner (dynamo_timed)", start, 200 * MS)
            for rank, step, start, took in zip(*map(steps.ints, columns), strict=True)
            if took > 100 * MS]  # fmt: skip
    assert verdict(diagnose(job)).cause != "jit_compile"
    compiled = put(job, host_ops=a_table("rank step name start_ns duration_ns", rows))
    one = verdict(diagnose(compiled))
    assert (one.cause, one.evidence[0].method) == ("jit_compile", "recurring-loss"), one

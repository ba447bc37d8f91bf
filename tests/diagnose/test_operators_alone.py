"""Jobs of which only the calls of operators and their ends were recorded."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from stepscope.diagnose.explain.elimination import _is_slow_throughout
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.rounds import round_of_calls, with_rounds
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Ints, Strings, Table, Window

from .jobs import MS, START, a_table

RANKS, STEPS, SLOW, LATE_MS = 8, 120, 5, 30


def operators_alone() -> Window:
    """One rank computes 130 ms before its first operator of each step, the others 100 ms."""
    random, rows, now = np.random.default_rng(0), [], np.full(RANKS, float(START))
    for step in range(STEPS):
        for seq, work_ms in ((2 * step, 100), (2 * step + 1, 10)):
            own = work_ms * random.lognormal(0, 0.01, RANKS)
            own[SLOW] += LATE_MS if work_ms > 10 else 0
            called = now + own * MS
            now = np.full(RANKS, called.max() + 2 * MS)
            rows += [(rank, step, "dp-0", seq, "AllReduce", -1, int(called[rank]), int(now[rank]))
                     for rank in range(RANKS)]  # fmt: skip
    job = Job("calls", RANKS, groups=(ProcessGroup("dp-0", "dp", tuple(range(RANKS))),))
    return Window(job, {"comm_ops": a_table("rank step group seq op peer enqueue_ns end_ns", rows)})


def test_work_before_the_first_operator_of_a_step_belongs_to_that_step() -> None:
    line = timeline(operators_alone())
    durations = line.duration_ns[:, 1:] / MS
    assert np.median(durations) == pytest.approx(100 + LATE_MS + 10 + 4, rel=0.05)
    assert (np.ptp(line.start_ns[:, 1:], axis=0) == 0).all(), "all begin when the operator ended"


def test_a_rank_that_is_late_from_the_first_step_on_is_named() -> None:
    """Its lateness was in no step, so that a replay without it took as long."""
    (verdict,) = diagnose(operators_alone()).verdicts
    assert verdict.ranks == (SLOW,)
    assert verdict.lost_fraction == pytest.approx(LATE_MS / (100 + LATE_MS + 14), abs=0.03)


@pytest.mark.parametrize("recorded", [(0, 2, SLOW, 7), (0, 2, 6, 7)])
def test_ranks_of_which_only_steps_are_known_are_not_slow(recorded: tuple[int, ...]) -> None:
    """All ranks have steps, and half of them operators: the others' steps are no own time."""
    job = operators_alone()
    line, comm = timeline(job), job.tables["comm_ops"]
    rows = [(rank, step, int(line.start_ns[rank, step]), int(line.duration_ns[rank, step]))
            for rank in range(RANKS) for step in range(STEPS)]  # fmt: skip
    steps = a_table("rank step start_ns duration_ns", rows)
    sampled = comm.take(np.isin(comm.ints("rank"), recorded))
    window = Window(job.job, {"steps": steps, "comm_ops": sampled})
    blamed = {rank for one in diagnose(window).verdicts for rank in one.ranks}
    assert blamed == {SLOW} & set(recorded)


def test_pauses_of_a_process_that_counts_no_steps_belong_to_rounds_of_calls() -> None:
    """It updates its model by hand, so that each row of its recorder is one of step 0."""
    job = operators_alone()
    comm = job.tables["comm_ops"]
    first = (comm.ints("rank") == SLOW) & (comm.ints("seq") % 2 == 0)
    rows = [(SLOW, 0, "gc", int(called) - LATE_MS * MS, LATE_MS * MS)
            for called in comm.ints("enqueue_ns")[first]]  # fmt: skip
    pauses = a_table("rank step kind start_ns duration_ns", rows)
    uncounted = comm.with_column("step", np.zeros(len(comm), np.int64))
    (verdict,) = diagnose(Window(job.job, {"comm_ops": uncounted, "pauses": pauses})).verdicts
    assert (verdict.ranks, verdict.cause) == ((SLOW,), "gc")


@pytest.mark.parametrize(("spikes", "computes"), [((), True), ((7, 12, 19), False)])
def test_what_comes_now_and_then_between_operators_may_be_any_pause(
    spikes: tuple[int, ...], computes: bool
) -> None:
    """In pipelines it is not known in which part of its step a rank is late."""
    job = cast(Observed, SimpleNamespace(own=SimpleNamespace(elsewhere=None)))
    one = Suspect(2, "between-collectives", ("between-collectives",), 7, 20, 0.3, 20.0, 5.0, 1e7,
                  1.3, 1, spikes)  # fmt: skip
    assert _is_slow_throughout(job, one) == computes
    worst = replace(one, spikes=(), worst=(7, 8) if spikes else None)
    assert _is_slow_throughout(job, worst) == computes


def unnumbered(window: Window, **columns: Ints) -> Window:
    """The same without the numbers of steps, as a profiler of the library writes it."""
    comm = window.tables["comm_ops"]
    kept = {name: column for name, column in comm.columns.items() if name != "step"}
    return Window(window.job, {"comm_ops": Table({**kept, **columns})})


def test_steps_are_counted_though_sizes_differ_from_step_to_step() -> None:
    """As those of an all-to-all between experts, which sends each time another number of tokens."""
    window = operators_alone()
    sizes = np.random.default_rng(1).integers(1, 10**6, len(window.tables["comm_ops"]))
    (verdict,) = diagnose(unnumbered(window, bytes=sizes)).verdicts
    assert verdict.ranks == (SLOW,)


def test_steps_are_counted_though_a_coarse_clock_does_not_show_the_order_of_calls() -> None:
    random, rows = np.random.default_rng(0), []
    for step in range(30):
        begin = START + step * 100 * MS
        for rank, (group, count) in product(range(2), (("dp-0", 4), ("tp-0", 6))):
            called = np.sort(random.integers(0, 20, count))
            rows += [(rank, group, 5 * step + at if group == "dp-0" else 6 * step + at, "AllGather",
                      -1, begin + int(ms) * MS) for at, ms in enumerate(called)]  # fmt: skip
        rows += [(rank, "dp-0", 5 * step + 4, "AllReduce", -1, begin + 50 * MS)
                 for rank in range(2)]  # fmt: skip
    groups = (ProcessGroup("dp-0", "dp", (0, 1)), ProcessGroup("tp-0", "tp", (0, 1)))
    comm = a_table("rank group seq op peer enqueue_ns", rows)
    counted = round_of_calls(Window(Job("coarse", 2, groups=groups), {"comm_ops": comm}))
    assert counted is not None
    assert (np.bincount(counted)[:30] == 22).all()


def test_kernels_belong_to_the_step_whose_operators_end_after_they_began() -> None:
    window = operators_alone()
    comm = window.tables["comm_ops"]
    began = comm.ints("enqueue_ns") - 5 * MS
    kernels = Table({"rank": comm.ints("rank"), "start_ns": began,
                     "duration_ns": np.full(len(comm), MS), "stream": np.zeros(len(comm), np.int64),
                     "kernel": Strings.of(["gemm"] * len(comm))})  # fmt: skip
    both = Window(window.job, {**unnumbered(window).tables, "kernels": kernels})
    counted, _ = with_rounds(both)
    same = counted.tables["kernels"].ints("step") == counted.tables["comm_ops"].ints("step")
    assert same.all()


def test_operators_without_steps_that_do_not_repeat_are_no_healthy_job() -> None:
    window = operators_alone()
    few = window.tables["comm_ops"].take(window.tables["comm_ops"].ints("step") < 3)
    found = diagnose(unnumbered(Window(window.job, {"comm_ops": few})))
    assert (found.state, found.unaccounted) == ("unknown", "no steps were recorded")

"""Logs of calls alone: whether calls wait shows in them, and then who is slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.blocking_calls import WHY, with_blocking_ends
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, STEPS, OPERATORS, TRANSFER_MS = 8, 40, 4, 1.0


def a_log(
    waits: bool, slow: Callable[[int], float] = lambda rank: 1.0, jitter: float = 0.03
) -> Window:
    """Each rank works for 2 to 30 ms, then calls. If calls wait, all go on together."""
    random, clock, rows = np.random.default_rng(0), np.zeros(RANKS), []
    for step in range(STEPS):
        for at, work_ms in enumerate((2.0, 30.0, 4.0, 10.0)):
            clock += [work_ms * slow(rank) * random.normal(1, jitter) for rank in range(RANKS)]
            rows += [(rank, step, "dp-0", step * OPERATORS + at, "AllReduce", -1,
                      START + int(clock[rank] * MS)) for rank in range(RANKS)]  # fmt: skip
            if waits:
                clock[:] = clock.max() + TRANSFER_MS
    everybody = tuple(range(RANKS))
    job = Job("calls", RANKS, (Host("a", everybody),), {}, (ProcessGroup("dp-0", "dp", everybody),))
    return Window(job, {"comm_ops": a_table("rank step group seq op peer enqueue_ns", rows)})


def test_who_waits_calls_again_when_all_have_called() -> None:
    window, notes = clean(a_log(waits=True, slow=lambda rank: 1.5 if rank == 3 else 1.0))
    comm = window.tables["comm_ops"]
    assert WHY in notes
    assert (comm.ints("end_ns") >= comm.ints("enqueue_ns")).all()
    assert np.unique(comm.ints("end_ns")).size == STEPS * OPERATORS


def test_the_slow_rank_of_such_a_log_is_named_with_what_it_costs() -> None:
    (verdict,) = diagnose(a_log(waits=True, slow=lambda rank: 1.5 if rank == 3 else 1.0)).verdicts
    assert verdict.ranks == (3,)
    assert verdict.lost_fraction == pytest.approx(0.28, abs=0.1)


def test_ranks_that_run_ahead_of_the_others_did_not_wait() -> None:
    log = a_log(waits=False, slow=lambda rank: 1.5 if rank == 3 else 1.0)
    assert with_blocking_ends(log) == (log, ())


def test_where_nobody_was_early_and_all_is_regular_nothing_is_known() -> None:
    log = a_log(waits=True, jitter=0.0)
    few = log.tables["comm_ops"]
    few = few.take(few.ints("seq") % OPERATORS == 1)
    rare = Window(log.job, {"comm_ops": few})
    assert with_blocking_ends(rare) == (rare, ())


def test_a_stage_after_a_link_between_hosts_is_a_suspect() -> None:
    """What data takes to arrive counts as what its receiver does next."""
    window = a_log(waits=True, slow=lambda rank: 1.5 if rank == 3 else 1.0)
    hosts = (Host("a", (0, 1, 2, 3)), Host("b", (4, 5, 6, 7)))
    pipeline = tuple(replace(one, kind="pp") for one in window.job.groups)
    apart = replace(window, job=replace(window.job, hosts=hosts))
    staged = replace(window, job=replace(window.job, hosts=hosts, groups=pipeline))
    for job, accused in ((apart, True), (staged, False)):
        sure = [one.ranks for one in diagnose(job).verdicts if one.confidence >= 0.5]
        assert sure == ([(3,)] if accused else [])

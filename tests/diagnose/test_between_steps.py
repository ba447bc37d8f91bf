"""A rank that is slow between its steps, where no phase and no step is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import NULL, Column, Ints, Window
from tests.diagnose.jobs import MS, START, Fault, a_job, a_table, with_samples


def test_what_a_rank_does_between_steps_costs_what_others_wait_for_it() -> None:
    slow = Fault((1,), "data-load", start=0, ms=40.0)
    (verdict,) = diagnose(loading_between_steps(a_job(faults=[slow], stacks=False))).verdicts
    assert verdict.ranks == (1,)
    assert verdict.lost_fraction == pytest.approx(40 / 132, abs=0.05)


def loading_between_steps(window: Window) -> Window:
    """The same job; steps begin with the forward pass, and loading is no phase."""
    steps, phases = window.tables["steps"], window.tables["phases"]
    loads = phases.strings("phase").equals("data-load")
    spent = _by_step(phases.take(loads).ints("rank"), phases.take(loads).ints("step"))
    order = np.argsort(spent)
    at = order[np.searchsorted(spent[order], _by_step(steps.ints("rank"), steps.ints("step")))]
    lasted = phases.take(loads).ints("duration_ns")[at]
    begun: dict[str, Column] = {
        "start_ns": steps.ints("start_ns") + lasted,
        "duration_ns": steps.ints("duration_ns") - lasted,
    }
    later = replace(steps, columns={**steps.columns, **begun})
    return Window(window.job, {**window.tables, "steps": later, "phases": phases.take(~loads)})


def _by_step(rank: Ints, step: Ints) -> Ints:
    return rank * 100_000 + step


def test_a_rank_that_computes_there_is_not_starved_because_its_host_is_crowded() -> None:
    """Whoever computes on a crowded host waits for a processor, while those that wait do not."""
    slow = Fault((1,), "data-load", start=0, ms=40.0, function="confuse (train.py:98)")
    job = loading_between_steps(a_job(faults=[slow]))
    job = with_samples(job, "run_delay", lambda rank, _: 0.3 if rank == 1 else 0.05)
    job = with_samples(job, "stranger_cpu_util", lambda rank, _: 1.0)
    for used, function in ((0.1, None), (0.2, "confuse (train.py:98)")):
        (verdict,) = diagnose(with_samples(job, "cpu_util", uses(used))).verdicts
        assert (verdict.ranks, verdict.function) == ((1,), function)
        assert "other processes use 1.0 cores" in " ".join(one.detail for one in verdict.evidence)


def uses(share: float) -> Callable[[int, int], float]:
    return lambda rank, _: share if rank == 1 else 0.1


def test_a_rank_that_waits_for_a_processor_in_what_its_peers_run_as_well_is_starved() -> None:
    starved = Fault((1,), None, start=0, times=1.6, computes=False)
    job = with_samples(a_job(faults=[starved]), "run_delay", lambda rank, _: 0.4 * (rank == 1))
    job = with_samples(job, "stranger_cpu_util", lambda rank, _: 1.0)
    (verdict,) = diagnose(with_samples(job, "cpu_util", lambda *_: 0.5)).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "contention")
    helped = with_samples(job, "cpu_util", lambda rank, _: 1.4 if rank == 1 else 0.9)
    (verdict,) = diagnose(helped).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "host")
    assert "its other threads use" in " ".join(one.detail for one in verdict.evidence)


def test_a_function_of_its_own_is_the_reason_however_crowded_its_host_is() -> None:
    slow = Fault((1,), "data-load", start=0, ms=40.0, function="confuse (train.py:98)")
    job = loading_between_steps(a_job(faults=[slow]))
    job = with_samples(job, "cpu_util", lambda rank, _: 0.2 if rank == 1 else 0.1)
    for usual in (0.02, 0.15):
        (verdict,) = diagnose(with_samples(job, "run_delay", waits(usual))).verdicts
        assert (verdict.ranks, verdict.function) == ((1,), "confuse (train.py:98)")


def waits(usual: float) -> Callable[[int, int], float]:
    """Rank 1 waits for a processor for 15 % of the time more than others."""
    return lambda rank, _: usual + 0.15 if rank == 1 else usual


def averaging_the_loss(slow: int, late_ms: float, since: int = 40) -> Window:
    """After each step all ranks average the loss, in an operator that has the next step's number.

    Gradients are exchanged during 60 ms of backward; from a step on, one rank computes longer than
    that.
    """
    rng = np.random.default_rng(7)
    steps, phases, comm = [], [], []
    begin = np.full(8, START)
    for step in range(80):
        forward = (rng.normal(30, 0.3, 8) * MS).astype(np.int64)
        backward = (rng.normal(40, 0.3, 8) * MS).astype(np.int64)
        backward[slow] += int((20 + late_ms) * MS) if step >= since else 0
        exchanged = int((begin + forward).max()) + 60 * MS
        computed = begin + forward + backward
        done = np.maximum(computed, exchanged)
        ended = done + 5 * MS
        averaged = int(ended.max()) + MS
        for rank in range(8):
            of, at = (rank, step), int(begin[rank] + forward[rank])
            waited = int(max(exchanged - computed[rank], 0))
            steps.append((*of, int(begin[rank]), int(ended[rank] - begin[rank])))
            phases.append((*of, "forward-compute", int(begin[rank]), int(forward[rank]), 0))
            phases.append((*of, "backward-compute", at, int(done[rank]) - at, waited))
            phases.append((*of, "optimizer", int(done[rank]), 5 * MS, 0))
            comm.append((*of, "dp-0", step, "AllReduce", at, at, exchanged, NULL))
            own = int(ended[rank])
            blocked = averaged - own
            comm.append((rank, step + 1, "loss", step, "AllReduce", own, own, averaged, blocked))
        begin = np.full(8, averaged)
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
        "comm_ops": a_table("rank step group seq op enqueue_ns start_ns end_ns blocked_ns", comm),
    }
    return Window(Job("averaged", 8, (Host("h", tuple(range(8))),)), tables)


def test_who_is_late_for_an_operator_between_two_steps_costs_what_others_wait_there() -> None:
    (verdict,) = diagnose(averaging_the_loss(slow=5, late_ms=20)).verdicts
    assert verdict.ranks == (5,)
    assert verdict.lost_fraction == pytest.approx(20 / 116, abs=0.03)


def test_who_computes_while_others_exchange_delays_nobody() -> None:
    assert diagnose(averaging_the_loss(slow=5, late_ms=-5)).verdicts == ()

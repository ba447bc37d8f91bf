"""Logs of calls of which some wait and others return at once, as DDP with gloo writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.blocking_calls import BY_SPREAD
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Floats, Table, Window

from .jobs import MS, START, a_table

RANKS, STEPS, BUCKETS = 8, 60, 3
FORWARD_MS, BACKWARD_MS, TRANSFER_MS = 40.0, 10.0, 2.0


def a_log(
    slow: Callable[[int, int], float] = lambda rank, step: 1.0, device_ms: float = 0.0
) -> Window:
    """Each step reduces a loss, which is read at once, and three buckets, for which the optimizer
    waits in the end; the calls of buckets return at once.

    Args:
        device_ms: how long devices, which hosts run ahead of, take for a step; 0: there are none.
    """
    random, clock, done = np.random.default_rng(1), np.zeros(RANKS), 0.0
    rows: list[tuple[object, ...]] = []

    def work(step: int, usual_ms: float) -> Floats:
        return np.array([usual_ms * slow(rank, step) * random.normal(1, 0.05)
                         for rank in range(RANKS)])  # fmt: skip

    def call(step: int, seq: int) -> None:
        rows.extend((rank, step, "dp-0", seq, "AllReduce", -1, START + int(clock[rank] * MS))
                    for rank in range(RANKS))  # fmt: skip

    for step in range(STEPS):
        clock += work(step, FORWARD_MS)
        call(step, step * (BUCKETS + 1))
        if not device_ms:
            clock[:] = clock.max() + TRANSFER_MS
        for bucket in range(BUCKETS):
            clock += work(step, BACKWARD_MS)
            call(step, step * (BUCKETS + 1) + bucket + 1)
        done = max(done + device_ms, clock.max() + TRANSFER_MS)
        clock[:] = done + random.normal(0, 0.01, RANKS)
    everybody = tuple(range(RANKS))
    job = Job("calls", RANKS, (Host("a", everybody),), {}, (ProcessGroup("dp-0", "dp", everybody),))
    return Window(job, {"comm_ops": a_table("rank step group seq op peer enqueue_ns", rows)})


def waited_ms(window: Window) -> Floats:
    """What ranks waited per step, by the inferred waits: `[operator of a step, rank]`."""
    cleaned, notes = clean(window)
    assert BY_SPREAD in notes
    comm = cleaned.tables["comm_ops"]
    waited = np.where(comm.ints("blocked_ns") == NULL, 0, comm.ints("blocked_ns")) / MS
    found = np.zeros((BUCKETS + 1, RANKS))
    np.add.at(found, (comm.ints("seq") % (BUCKETS + 1), comm.ints("rank")), waited / STEPS)
    return found


def test_ranks_wait_for_the_loss_and_for_the_last_bucket() -> None:
    waited = waited_ms(a_log(slow=lambda rank, step: 1.5 if rank == 3 else 1.0))
    assert (waited[1:BUCKETS] == 0).all()
    others = np.delete(waited, 3, axis=1)
    assert others[0] == pytest.approx(0.5 * FORWARD_MS, abs=3)
    assert others[BUCKETS] == pytest.approx(0.5 * BUCKETS * BACKWARD_MS, abs=3)
    assert waited[:, 3].max() < 1


def test_the_slow_rank_is_named_from_the_first_step_or_later() -> None:
    for slow in (lambda rank, step: 1.5 if rank == 3 else 1.0,
                 lambda rank, step: 1.5 if rank == 3 and step >= 30 else 1.0):  # fmt: skip
        (verdict,) = diagnose(a_log(slow)).verdicts
        assert verdict.ranks == (3,)


def test_nobody_is_accused_in_a_healthy_job() -> None:
    assert diagnose(a_log()).verdicts == ()


def test_ranks_that_wait_for_their_devices_wait_for_nobody() -> None:
    """A rank whose host is late costs nothing while devices have work: steps come at their pace."""
    log = a_log(slow=lambda rank, step: 1.5 if rank == 3 else 1.0, device_ms=200.0)
    assert diagnose(log).verdicts == ()


def test_a_host_that_always_seems_late_may_have_another_clock() -> None:
    """Calls do not tell by how much clocks differ; a rank that is later than its neighbours does
    not depend on them."""
    log = a_log()
    comm = log.tables["comm_ops"]
    ahead = np.where(comm.ints("rank") < 4, 0, 8 * MS)
    comm = comm.with_column("enqueue_ns", comm.ints("enqueue_ns") + ahead)
    hosts = (Host("a", (0, 1, 2, 3)), Host("b", (4, 5, 6, 7)))
    apart = Window(replace(log.job, hosts=hosts), {"comm_ops": comm})
    found = diagnose(apart)
    assert all(verdict.is_suspect for verdict in found.verdicts)
    assert found.state != "healthy"

    log = a_log(slow=lambda rank, step: 1.5 if rank == 3 else 1.0)
    apart = Window(replace(log.job, hosts=hosts), log.tables)
    assert [one.ranks for one in diagnose(apart).verdicts if not one.is_suspect] == [(3,)]


def test_steps_are_counted_where_calls_have_no_step_numbers() -> None:
    """Also if each step calls the same operator four times, with equal bytes."""
    log = a_log(slow=lambda rank, step: 1.5 if rank == 3 else 1.0)
    comm = log.tables["comm_ops"]
    kept = {name: column for name, column in comm.columns.items() if name != "step"}
    counted, _ = clean(Window(log.job, {"comm_ops": Table(kept)}))
    step = counted.tables["comm_ops"].ints("step")
    assert np.unique(step).size == pytest.approx(STEPS, abs=1)
    assert (np.bincount(step)[1:-1] == RANKS * (BUCKETS + 1)).all()
    (verdict,) = diagnose(Window(log.job, {"comm_ops": Table(kept)})).verdicts
    assert verdict.ranks == (3,)


def test_calls_that_do_not_repeat_are_no_steps_and_no_healthy_job() -> None:
    log = a_log()
    comm = log.tables["comm_ops"].take(log.tables["comm_ops"].ints("step") < 2)
    few = {name: column for name, column in comm.columns.items() if name != "step"}
    found = diagnose(Window(log.job, {"comm_ops": Table(few)}))
    assert (found.state, found.verdicts) == ("unknown", ())

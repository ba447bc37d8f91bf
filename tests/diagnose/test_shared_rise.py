"""Steps of all ranks that become longer without a function to blame: code, or the network."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER, Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, STEPS, SINCE = 8, 80, 40


def played(passes: float = 1.0, transfer: float = 1.0, optimizer: float = 1.0) -> Window:
    """From step 40 on parts of a step take so many times as long on all."""
    random = np.random.default_rng(2)
    phases, comm, steps, now = [], [], [], START
    for step in range(STEPS):
        factors = (passes, transfer, optimizer) if step >= SINCE else (1.0, 1.0, 1.0)
        work = random.normal(1.0, 0.02, (3, RANKS)) * MS
        forward, backward = work[0] * 20 * factors[0], work[1] * 40 * factors[0]
        met = now + (forward + backward).astype(np.int64)
        left = int(met.max()) + int(30 * factors[1] * MS)
        tail = (work[2] * 5 * factors[2]).astype(np.int64)
        end = left + int(tail.max())
        for rank in range(RANKS):
            middle = now + int(forward[rank])
            phases += [(rank, step, FORWARD, now, middle - now),
                       (rank, step, BACKWARD, middle, int(met[rank]) - middle),
                       (rank, step, OPTIMIZER, left, int(tail[rank]))]  # fmt: skip
            comm.append(
                (rank, step, "dp-0", step, "AllReduce", -1, int(met[rank]), int(met[rank]), left)
            )
            steps.append((rank, step, now, end - now))
        now = end
    hosts = (Host("a", tuple(range(RANKS))),)
    job = Job("shared", RANKS, hosts, groups=(ProcessGroup("dp-0", "dp", tuple(range(RANKS))),))
    return Window(job, {
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", comm),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


def test_passes_that_grow_while_the_optimizer_does_not_are_code() -> None:
    (verdict,) = diagnose(played(passes=1.5)).verdicts
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("code", (), ())
    assert 0.5 <= verdict.confidence <= 0.6
    assert verdict.steps is not None and abs(verdict.steps[0] - SINCE) <= 2


def test_where_everything_grows_the_machines_may_be_busy() -> None:
    found = diagnose(played(passes=1.5, transfer=1.5, optimizer=1.5)).verdicts
    assert [one for one in found if not one.is_suspect] == []


def test_data_that_moves_more_slowly_while_computing_stays_is_the_network() -> None:
    (verdict,) = diagnose(played(transfer=2.5)).verdicts
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert verdict.steps is not None and abs(verdict.steps[0] - SINCE) <= 2

"""Parameter servers wait for their workers between phases, and nobody recorded in what."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import DATA_LOAD, Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

WORKERS, SERVERS, STEPS, SLOW = 6, 2, 60, 1
RANKS = WORKERS + SERVERS
GAP = MS // 50
"""Between two phases."""


def served(load_ms: float) -> Window:
    """Workers load and compute; servers wait for the last of them, and update. Calls were recorded
    that return at once."""
    random, now = np.random.default_rng(1), START
    phases: list[tuple[object, ...]] = []
    steps, calls = [], []
    for step in range(STEPS):
        load, work = random.normal(2.0, 0.05, WORKERS), random.normal(80.0, 0.8, WORKERS)
        load[SLOW] += load_ms
        done = now + ((load + work) * MS).astype(np.int64)
        last, end = int(done.max()), int(done.max()) + 10 * MS
        for rank in range(WORKERS):
            begun = now + int(load[rank] * MS)
            phases.append((rank, step, DATA_LOAD, now, begun - now))
            phases.append((rank, step, "compute", begun + GAP, int(done[rank]) - begun - GAP))
            calls.append((rank, step, "ps", step, "Send", WORKERS, int(done[rank])))
        phases += [(rank, step, "update", last, 9 * MS) for rank in range(WORKERS, RANKS)]
        calls += [(rank, step, "ps", step, "Send", 0, last) for rank in range(WORKERS, RANKS)]
        steps += [(rank, step, now, end - now) for rank in range(RANKS)]
        now = end
    hosts = tuple(Host(f"h{at}", (2 * at, 2 * at + 1)) for at in range(RANKS // 2))
    job = Job("served", RANKS, hosts, groups=(ProcessGroup("ps", "world", tuple(range(RANKS))),))
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns", calls),
    })  # fmt: skip


def test_a_worker_costs_what_its_servers_wait_for_it() -> None:
    (found,) = diagnose(served(load_ms=60.0)).verdicts
    assert (found.ranks, found.cause) == ((SLOW,), "data_loading")
    assert found.lost_fraction == pytest.approx(60 / 152, abs=0.05)


def test_servers_that_wait_are_no_fault() -> None:
    assert diagnose(served(load_ms=0.0)).accused == ()

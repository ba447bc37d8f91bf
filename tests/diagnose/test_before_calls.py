"""Hosts that call at once what their devices do next: what comes before the call is the host's."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, STEPS, SLOW = 8, 60, 3
HOSTS = tuple(Host(f"h{at}", tuple(range(4 * at, 4 * at + 4))) for at in range(2))


def operators_alone(host_ms: float, device_ms: float) -> Window:
    """One reduction per step; hosts call it 1 ms after the last one, devices need 100 ms more.

    Args:
        host_ms, device_ms: how much later one rank's host calls, and how much slower its device is.
    """
    random = np.random.default_rng(0)
    rows, now = [], np.full(RANKS, START, np.int64)
    for step in range(STEPS):
        before, after = random.normal(1.0, 0.05, RANKS), random.normal(100.0, 0.5, RANKS)
        before[SLOW] += host_ms
        after[SLOW] += device_ms
        called = now + (before * MS).astype(np.int64)
        begun = called + (after * MS).astype(np.int64)
        now = np.full(RANKS, begun.max() + 5 * MS)
        rows += [(rank, step, "dp-0", step, "AllReduce", -1, int(called[rank]), int(begun[rank]),
                  int(now[rank])) for rank in range(RANKS)]  # fmt: skip
    job = Job("calls", RANKS, HOSTS, groups=(ProcessGroup("dp-0", "dp", tuple(range(RANKS))),))
    names = "rank step group seq op peer enqueue_ns start_ns end_ns"
    return Window(job, {"comm_ops": a_table(names, rows)})


@pytest.mark.parametrize(("host_ms", "device_ms", "cause"), [(40, 0, "host"), (0, 40, "compute")])
def test_a_rank_that_calls_late_has_a_late_host_however_far_it_runs_ahead_then(
    host_ms: float, device_ms: float, cause: str
) -> None:
    (verdict,) = diagnose(operators_alone(host_ms, device_ms)).verdicts
    assert (verdict.ranks, verdict.cause) == ((SLOW,), cause)

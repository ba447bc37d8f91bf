"""Operators that are under way at once: who is late for all of them is late once."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.views.arrivals import collect_arrivals
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Host, Job
from stepscope.window import Window

from .jobs import MS, START, a_table

STEP_MS = 100


def called(*calls_ms: tuple[float, float]) -> Window:
    """Two ranks, and when in each step each of them calls each operator; it ends a moment later."""
    comm, steps = [], []
    for step in range(3):
        begin = START + step * STEP_MS * MS
        for rank in range(2):
            steps.append((rank, step, begin, STEP_MS * MS))
            comm += [(rank, step, "dp-0", step * len(calls_ms) + seq, "AllReduce",
                      begin + int(pair[rank] * MS), begin + int((max(pair) + 1) * MS))
                     for seq, pair in enumerate(calls_ms)]  # fmt: skip
    return Window(Job("buckets", 2, (Host("host-000", (0, 1)),)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "comm_ops": a_table("rank step group seq op enqueue_ns end_ns", comm),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("calls_ms", "waited_ms"),
    [
        ([(10, 40), (20, 50), (30, 60)], 30),  # buckets of a pass: the first is still under way
        ([(10, 40), (41, 46), (60, 60)], 35),  # each call waits for the one before
    ],
)
def test_waiting_for_a_rank_counts_once(
    calls_ms: list[tuple[float, float]], waited_ms: float
) -> None:
    window = called(*calls_ms)
    arrivals = collect_arrivals(window, timeline(window))
    assert arrivals is not None
    expected = [waited_ms * MS] * 3
    assert arrivals.lag_of(np.array([False, True]), 3).tolist() == expected
    assert arrivals.alone_in(np.arange(9), 3).tolist() == expected

"""Parameters are gathered while passes run: waiting for them is no rank's own time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.views.own_time import own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table


def a_pass(stood_ms: float, timed_ms: float) -> Window:
    """Two ranks, each with a pass of 100 ms, in which rank 0 stands for rank 1's parameters."""
    step = [(rank, 0, START, 120 * MS) for rank in (0, 1)]
    waited = (timed_ms, 0.0)
    phases = [(rank, 0, "forward-compute", START, 100 * MS, int(waited[rank] * MS))
              for rank in (0, 1)]  # fmt: skip
    end = START + 60 * MS
    comm = [(rank, 0, "dp-0", 0, "AllGather", -1, START, end - 50 * MS, end, int(stood * MS))
            for rank, stood in ((0, stood_ms), (1, 0.0))]  # fmt: skip
    return Window(Job("sharded", 2, (), {}, (ProcessGroup("dp-0", "dp", (0, 1)),)), {
        "steps": a_table("rank step start_ns duration_ns", step),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
        "comm_ops": a_table(
            "rank step group seq op peer enqueue_ns start_ns end_ns blocked_ns", comm),
    })  # fmt: skip


@pytest.mark.parametrize(("stood", "timed", "own"), [(40, 0, 60), (40, 40, 60), (0, 0, 100)])
def test_a_pass_is_own_but_for_the_wait_for_parameters(
    stood: float, timed: float, own: float
) -> None:
    """Whether who timed the pass left the wait out or not: it counts once."""
    window = a_pass(stood, timed)
    found = own_time(window, timeline(window))
    forward = found.own[found.phases.index("forward-compute")]
    assert np.round(forward[:, 0] / MS).tolist() == [own, 100]


def test_the_least_of_all_ranks_outside_of_gathers_is_what_all_compute() -> None:
    """A recorder that only says that passes may wait. Both ranks get the same: rank 1 gathers for
    10 ms and rank 0 for 50 ms, and nobody knows how long it waited there."""
    window = a_pass(0, 0)
    rows = [(rank, 0, "forward-compute", START, 100 * MS, 1) for rank in (0, 1)]
    gathers = [(rank, 0, "dp-0", 0, "AllGather", -1, START, begun, START + 60 * MS)
               for rank, begun in ((0, START + 10 * MS), (1, START + 50 * MS))]  # fmt: skip
    window = replace(window, tables={
        **window.tables,
        "phases": a_table("rank step phase start_ns duration_ns waits", rows),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", gathers),
    })  # fmt: skip
    found = own_time(window, timeline(window))
    forward = found.own[found.phases.index("forward-compute")]
    assert np.round(forward[:, 0] / MS).tolist() == [50, 50]
    assert found.hidden, "which is not the own time of either"

"""Loading that is timed on the host, in steps of which the one before was not recorded."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.account.waste import left_of_steps, stretch
from stepscope.diagnose.observed import Observed
from stepscope.trace import DATA_LOAD, Host, Job
from stepscope.window import Window

from .jobs import MS, START, a_table


def a_job(load_ms: int) -> Observed:
    """Every fourth step of 100 ms was recorded; its device works for 80 ms, one step later."""
    phases, steps = [], []
    for step in range(0, 80, 4):
        at = START + step * 100 * MS
        for rank in range(4):
            steps.append((rank, step, at, 100 * MS))
            phases.append((rank, step, DATA_LOAD, at, load_ms * MS))
            phases.append((rank, step, "forward", at + 100 * MS, 80 * MS))
    hosts = (Host("h", (0, 1, 2, 3)),)
    return Observed(Window(Job("sampled", 4, hosts), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
    }))  # fmt: skip


@pytest.mark.parametrize("load_ms", [10, 90])
def test_no_more_is_lost_to_loading_than_the_work_of_the_step_leaves(load_ms: int) -> None:
    left = left_of_steps(a_job(load_ms))
    assert left is not None and np.allclose(left, 20 * MS)


def test_no_step_loses_more_than_it_lasts() -> None:
    """Hosts that run ahead take 10 ms for steps in which one of them loads for 160 ms."""
    job = a_job(10)
    part = stretch(job, np.full(len(job.line.steps), 160.0 * 100 * MS), 0.05)
    assert part is not None and part.loss == 1.0

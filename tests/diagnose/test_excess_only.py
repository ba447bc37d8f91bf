"""Phases of which only the excess over peers is known: waiting hides what the peers do."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

STEPS, RANKS, SLOW = 60, 8, 5
GAP = MS // 20
"""Between two phases."""


def logged(factor: float) -> Window:
    """Rows as a training framework logs them, without waiting: tensor-parallel pairs meet in
    passes, all meet in the reduction, and rank 5 takes so many times as long in the optimizer."""
    random = np.random.default_rng(6)
    rows, steps = [], []
    begin = np.full(RANKS, START, np.int64)
    for step in range(STEPS):
        work = random.normal(1.0, 0.02, (2, RANKS)) * MS
        own = np.asarray(begin + 80 * work[0], np.int64)
        passed = np.repeat(own.reshape(-1, 2).max(axis=1), 2)
        met = np.full(RANKS, int(passed.max()) + 20 * MS)
        inner = 30 * work[1]
        inner[SLOW] *= factor
        done = np.asarray(met + GAP + inner, np.int64)
        for rank in range(RANKS):
            ends = (("forward-backward", begin[rank], passed[rank]),
                    ("grads-all-reduce", passed[rank] + GAP, met[rank]),
                    ("optimizer-inner-step", met[rank] + GAP, done[rank]))  # fmt: skip
            rows += [
                (rank, step, name, int(first), int(last - first)) for name, first, last in ends
            ]
            steps.append((rank, step, int(begin[rank]), int(done[rank] - begin[rank])))
        begin = done + GAP
    groups = (*(ProcessGroup(f"tp-{at}", "tp", (2 * at, 2 * at + 1)) for at in range(RANKS // 2)),
              ProcessGroup("dp-0", "dp", tuple(range(0, RANKS, 2))),
              ProcessGroup("dp-1", "dp", tuple(range(1, RANKS, 2))))  # fmt: skip
    job = Job("logged", RANKS, (Host("a", tuple(range(RANKS))),), groups=groups)
    return Window(job, {
        "phases": a_table("rank step phase start_ns duration_ns", rows),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_the_ratio_is_that_of_durations(factor: float) -> None:
    (verdict,) = diagnose(logged(factor)).verdicts
    assert (verdict.ranks, verdict.phase) == ((SLOW,), "optimizer-inner-step")
    assert verdict.slowdown == pytest.approx(factor, rel=0.1)
    assert "more than" not in verdict.summary
    assert "at least" in verdict.evidence[0].detail

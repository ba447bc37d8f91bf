"""A rank of a pipeline that alone begins its steps late is late by itself."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

STAGES, REPLICAS, STEPS, WORK_MS, LATE_MS = 2, 4, 100, 100, 200
RANKS = STAGES * REPLICAS
EVERY = 8


def a_pipeline(*late: int) -> Window:
    """Passes contain waiting that nobody marked, and transfers between stages were not recorded.

    Args:
        late: ranks that stand still for a while before the first pass of every eighth step.
    """
    random, clock = np.random.default_rng(0), START
    steps: list[tuple[object, ...]] = []
    phases: list[tuple[object, ...]] = []
    for step in range(STEPS):
        stalls = np.zeros((STAGES, REPLICAS))
        for rank in late if step % EVERY == 0 else ():
            stalls[divmod(rank, REPLICAS)] = LATE_MS
        lead = 4 + stalls + 0.2 * random.random(stalls.shape)
        lead[1] = np.maximum(lead[1], lead[0] + 8)
        lasts = 3 * WORK_MS + float(lead.max())
        for rank in range(RANKS):
            begin = clock + int(lead[divmod(rank, REPLICAS)] * MS)
            end = clock + int((lasts - 5) * MS)
            steps.append((rank, step, clock, int(lasts * MS)))
            phases.append((rank, step, "forward-compute", begin, WORK_MS * MS, -1))
            passed = begin + (WORK_MS + 20) * MS
            phases.append((rank, step, "backward-compute", passed, end - passed, -1))
            phases.append((rank, step, "optimizer", end, 4 * MS, -1))
        clock += int(lasts * MS)
    groups = (
        *(ProcessGroup(f"pp-{at}", "pp", (at, at + REPLICAS)) for at in range(REPLICAS)),
        *(ProcessGroup(f"dp-{at}", "dp", tuple(range(at * REPLICAS, (at + 1) * REPLICAS)))
          for at in range(STAGES)),
    )  # fmt: skip
    job = Job("a-job", RANKS, (Host("host-000", tuple(range(RANKS))),),
              {"pp": STAGES, "dp": REPLICAS}, groups)  # fmt: skip
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns microbatch", phases),
    })  # fmt: skip


def accused(window: Window) -> list[tuple[int, ...]]:
    return [one.ranks for one in diagnose(window).verdicts if one.ranks]


def test_a_rank_of_the_last_stage_that_alone_begins_late_is_named() -> None:
    assert accused(a_pipeline(5)) == [(5,)]


def test_a_rank_that_makes_its_next_stage_late_is_named_alone() -> None:
    assert accused(a_pipeline(1)) == [(1,)]


def test_where_all_of_a_stage_begin_late_together_nobody_is() -> None:
    assert not accused(a_pipeline(4, 5, 6, 7))


def test_where_nobody_is_late_nobody_is_named() -> None:
    assert not accused(a_pipeline())

"""Islands of replicas that train alone and average their models in every eighth step (DiLoCo)."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window

from .jobs import MS, START, a_table

RANKS, SIZE, STEPS, EVERY = 32, 8, 96, 8


def a_job_of_islands(slow: int | None = None, lost: tuple[int, int] | None = None) -> Window:
    """One island may take 1.5 times as long, and one row of the average may be lost."""
    random = np.random.default_rng(4)
    now, rows = np.zeros(RANKS), list[tuple[object, ...]]()
    island = np.arange(RANKS) // SIZE

    def spend(step: int, phase: str, ms: Floats) -> None:
        rows.extend((rank, step, phase, int(START + now[rank] * MS), int(ms[rank] * MS), waits)
                    for rank, waits in enumerate([int("all_reduce" in phase)] * RANKS)
                    if (rank, step) != lost or phase != "outer_all_reduce")  # fmt: skip
        now[:] = now + ms

    for step in range(STEPS):
        times = np.where(island == slow, 1.5, 1.0) * np.exp(random.normal(0, 0.01, RANKS))
        spend(step, "forward", 40 * times)
        spend(step, "backward", 80 * times)
        last = np.array([now[island == one].max() for one in island])
        spend(step, "inner_all_reduce", last - now + 5)
        if step % EVERY == EVERY - 1:
            spend(step, "outer_all_reduce", now.max() - now + 300)
    groups = [ProcessGroup("outer", "other", tuple(range(RANKS)))]
    groups += [ProcessGroup(f"inner-{one}", "dp", tuple(range(one * SIZE, (one + 1) * SIZE)))
               for one in range(RANKS // SIZE)]  # fmt: skip
    table = a_table("rank step phase start_ns duration_ns waits", rows)
    hosts = tuple(Host(one.id, one.ranks) for one in groups[1:])
    return Window(Job("islands", RANKS, hosts=hosts, groups=tuple(groups)), {"phases": table})


def test_models_that_are_averaged_now_and_then_lose_nothing() -> None:
    found = diagnose(a_job_of_islands())
    assert (found.state, found.verdicts) == ("healthy", ())


def test_an_island_that_computes_longer_than_the_others_is_named() -> None:
    (one,) = diagnose(a_job_of_islands(slow=1)).verdicts
    assert one.ranks == tuple(range(SIZE, 2 * SIZE))
    assert one.lost_fraction is not None and 0.15 < one.lost_fraction < 0.4


def test_a_lost_row_of_an_exchange_is_no_time_of_its_rank() -> None:
    assert diagnose(a_job_of_islands(lost=(9, 47))).verdicts == ()

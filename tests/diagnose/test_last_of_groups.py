"""Devices that compute while the next parameters are gathered: the last of a group seems slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, SIZE, STEPS, LAYERS = 16, 4, 60, 8
GROUPS = tuple(ProcessGroup(f"dp-{at}", "dp", tuple(range(SIZE * at, SIZE * (at + 1))))
               for at in range(RANKS // SIZE))  # fmt: skip
HOSTS = tuple(Host(f"h{at}", group.ranks) for at, group in enumerate(GROUPS))


def gathered(last: tuple[int, ...]) -> Window:
    """All but the last of each group enter an operator at once, and compute beneath it."""
    random, rows, now = np.random.default_rng(6), [], START
    for step in range(STEPS):
        for layer in range(LAYERS):
            end = now + int(random.normal(20, 0.2) * MS)
            for group in GROUPS:
                for rank in group.ranks:
                    since = end - 2 * MS if rank in last else now + 13 * MS
                    since += int(abs(random.normal(0, 0.3)) * MS)
                    rows.append((rank, step, group.id, step * LAYERS + layer, "AllGather", -1,
                                 since, since, end))  # fmt: skip
            now = end
    names = "rank step group seq op peer enqueue_ns start_ns end_ns"
    return Window(Job("gathers", RANKS, HOSTS, groups=GROUPS), {"comm_ops": a_table(names, rows)})


def test_where_every_group_has_a_slow_rank_they_are_only_the_last_ones() -> None:
    found = diagnose(gathered(last=(1, 6, 8, 15))).verdicts
    assert found and all(one.is_suspect for one in found)


def test_ranks_of_one_host_are_not_there_by_being_last() -> None:
    across = tuple(Host(f"h{at}", tuple(range(at, RANKS, SIZE))) for at in range(SIZE))
    window = gathered(last=(1, 5, 9, 13))
    found = diagnose(replace(window, job=replace(window.job, hosts=across))).verdicts
    assert [one.hosts for one in found if not one.is_suspect] == [("h1",)]

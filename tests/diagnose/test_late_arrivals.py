"""Ranks that stand still now and then within a pass, while others wait in the middle of theirs."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, STEPS, LAYERS = 8, 120, 4
EVERYBODY = tuple(range(RANKS))


def a_sharded_job(who: tuple[int, ...]) -> Window:
    """Gathers within passes, on a stream of their own; one of `who` stalls in a third of the steps,
    for a time with a heavy tail, before any of them."""
    random, clock = np.random.default_rng(4), np.zeros(RANKS)
    steps: list[tuple[object, ...]] = []
    phases: list[tuple[object, ...]] = []
    ops: list[tuple[object, ...]] = []
    seq = 0
    for step in range(STEPS):
        begin = clock.copy()
        stalls = np.zeros((2 * LAYERS, RANKS))
        if random.random() < 1 / 3:
            stalls[random.integers(LAYERS), random.choice(who)] = 40 * (1 + random.pareto(2))
        clock = clock + random.normal(20, 0.5, RANKS)
        bounds = [begin, clock]
        for at, op in enumerate(["AllGather"] * LAYERS + ["ReduceScatter"] * LAYERS):
            clock = clock + random.normal(20, 0.5, RANKS) + stalls[at]
            end = float(clock.max()) + 5
            ops += [(rank, step, "dp-0", seq, op, -1, 1 << 20, _ns(clock[rank]), _ns(clock[rank]),
                     _ns(end)) for rank in EVERYBODY]  # fmt: skip
            clock, seq = np.full(RANKS, end), seq + 1
            if at % LAYERS == LAYERS - 1:
                bounds.append(clock)
        clock = clock + random.normal(10, 0.2, RANKS)
        bounds.append(clock)
        names = "data-load", "forward-compute", "backward-compute", "optimizer"
        for name, since, until in zip(names, bounds, bounds[1:], strict=False):
            phases += [(rank, step, name, _ns(since[rank]), int((until - since)[rank] * MS),
                        int(name.endswith("compute"))) for rank in EVERYBODY]  # fmt: skip
        steps += [(rank, step, _ns(begin[rank]), int((clock - begin)[rank] * MS))
                  for rank in EVERYBODY]  # fmt: skip
    hosts = Host("a", EVERYBODY[:4]), Host("b", EVERYBODY[4:])
    job = Job("sharded", RANKS, hosts, groups=(ProcessGroup("dp-0", "dp", EVERYBODY),))
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns waits", phases),
        "comm_ops": a_table("rank step group seq op peer bytes enqueue_ns start_ns end_ns", ops),
    })  # fmt: skip


def _ns(ms: float) -> int:
    return START + int(ms * MS)


def test_a_rank_that_stalls_at_times_is_named_by_when_it_arrives() -> None:
    (one,) = diagnose(a_sharded_job((5,))).verdicts
    assert (one.ranks, one.phase) == ((5,), "forward-compute")
    assert one.confidence > 0.5 and 0.05 < (one.lost_fraction or 0) < 0.25


def test_stalls_of_a_different_rank_each_time_name_none() -> None:
    assert all(not one.ranks for one in diagnose(a_sharded_job(EVERYBODY)).verdicts)

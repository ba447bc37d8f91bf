"""Data-parallel steps in which the transfer of each bucket, and the tail of backward, are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

HANDED_OVER = (40, 60, 80)
"""Ms of a step after which buckets are handed over; the last one when backward is over."""
OPTIMIZER_MS = 10

Row = tuple[object, ...]


def bucket_job(
    transfer_ms: Callable[[int, int], float], tail_ms: tuple[float, ...], steps: int = 60
) -> Window:
    """One step after another: `forward`, `backward`, and the optimizer, which waits for all
    buckets.

    Args:
        transfer_ms: of a step and a bucket; buckets move beside backward, one by one.
        tail_ms: how long each rank still computes after it handed over its last bucket.
    """
    random, ranks = np.random.default_rng(0), len(tail_ms)
    begin, free = np.full(ranks, float(START)), 0.0
    rows: list[Row] = []
    comm: list[Row] = []
    phases: list[Row] = []
    for step in range(steps):
        work = random.normal(1.0, 0.01, ranks)
        for bucket, at in enumerate(HANDED_OVER):
            arrive = begin + at * MS * work
            free = max(free, float(arrive.max())) + transfer_ms(step, bucket) * MS
            comm += [
                (
                    rank,
                    step,
                    "dp",
                    step * len(HANDED_OVER) + bucket,
                    "AllReduce",
                    -1,
                    int(arrive[rank]),
                    int(arrive[rank]),
                    int(free),
                )
                for rank in range(ranks)
            ]
        computed = begin + (HANDED_OVER[-1] + np.array(tail_ms)) * MS * work
        waited = np.maximum(free - computed, 0.0)
        done = computed + waited + OPTIMIZER_MS * MS * work
        for rank in range(ranks):
            forward = int(30 * MS * work[rank])
            at = int(begin[rank])
            phases += [
                (rank, step, "forward-compute", at, forward, 0),
                (rank, step, "backward-compute", at + forward,
                 int(computed[rank] + waited[rank]) - at - forward, int(waited[rank])),
                (rank, step, "optimizer", int(computed[rank] + waited[rank]),
                 int(done[rank] - computed[rank] - waited[rank]), 0),
            ]  # fmt: skip
            rows.append((rank, step, at, int(done[rank]) - at))
        begin = done
    hosts = (Host("host-0", tuple(range(ranks - 2))), Host("host-1", (ranks - 2, ranks - 1)))
    group = ProcessGroup("dp", "dp", tuple(range(ranks)))
    return Window(Job("buckets", ranks, hosts, {}, (group,)), {
        "steps": a_table("rank step start_ns duration_ns", rows),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", comm),
    })  # fmt: skip


def lasts_ns(window: Window) -> float:
    """What a usual step takes."""
    return stats.median(window.tables["steps"].floats("duration_ns"))

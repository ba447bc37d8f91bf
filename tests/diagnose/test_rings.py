"""Rings in which ranks send to their neighbours: who waits there for a slow one is late with it."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RING, RANKS, STEPS, SLOW, SINCE = 4, 8, 60, 2, 24
TURNS = 4
"""Of a ring in each step: a part of the work, then an exchange with the neighbour."""


def ring_job(slow: float) -> Window:
    """Two rings, and one all-reduce of everybody at the end of a step; operators alone."""
    random = np.random.default_rng(7)
    rows, steps, clock = [], [], np.full(RANKS, float(START))
    for step in range(STEPS):
        begun = clock.copy()
        for turn in range(TURNS):
            took = 20 * MS * random.normal(1.0, 0.01, RANKS)
            took[SLOW] *= slow if step >= SINCE else 1.0
            clock = clock + took
            ended = clock.copy()
            for rank in range(RANKS):
                ring = rank // RING
                after, before = (ring * RING + (rank + by) % RING for by in (1, RING - 1))
                ended[rank] = max(clock[rank], clock[before]) + 2 * MS
                sent = max(clock[rank], clock[after]) + 2 * MS
                number = (step * TURNS + turn) * 2
                for seq, op, peer, end in ((number, "Send", after, sent),
                                           (number + 1, "Recv", before, ended[rank])):  # fmt: skip
                    rows.append(
                        (rank, step, f"cp-{ring}", seq, op, peer, int(clock[rank]), int(end))
                    )
            clock = ended
        end = clock.max() + 4 * MS
        rows += [(rank, step, "dp-0", step, "AllReduce", -1, int(clock[rank]), int(end))
                 for rank in range(RANKS)]  # fmt: skip
        steps += [(rank, step, int(begun[rank]), int(end - begun[rank])) for rank in range(RANKS)]
        clock = np.full(RANKS, end)
    whole = tuple(range(RANKS))
    groups = (ProcessGroup("cp-0", "cp", whole[:RING]), ProcessGroup("cp-1", "cp", whole[RING:]),
              ProcessGroup("dp-0", "dp", whole))  # fmt: skip
    names = "rank step group seq op peer start_ns end_ns"
    comm = a_table(names, rows)
    return Window(Job("rings", RANKS, (Host("a", whole),), groups=groups), {
        "comm_ops": comm.with_column("enqueue_ns", comm.ints("start_ns")),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


def test_a_slow_rank_costs_what_its_whole_ring_is_late() -> None:
    """Its neighbours come to the all-reduce nearly as late as it does."""
    (verdict,) = diagnose(ring_job(slow=1.6)).verdicts
    assert verdict.ranks == (SLOW,)
    usual = TURNS * 22 + 4
    assert verdict.lost_fraction == pytest.approx(1 - usual / (usual + TURNS * 12), abs=0.05)


def test_healthy_rings_accuse_nobody() -> None:
    assert diagnose(ring_job(slow=1.0)).verdicts == ()


SLOWER = 1.5


def overlapped(slow: float) -> Window:
    """The same rings, in which ranks compute beside their sends and receives; a device timed their
    passes, and nobody how long they waited."""
    random = np.random.default_rng(5)
    comm, phases, steps, clock = [], [], [], np.full(RANKS, float(START))
    before = [rank // RING * RING + (rank + RING - 1) % RING for rank in range(RANKS)]
    for step in range(STEPS):
        begun = clock.copy()
        for turn in range(TURNS):
            took = 20 * MS * random.normal(1.0, 0.01, RANKS)
            took[SLOW] *= slow if step >= SINCE else 1.0
            came = np.maximum(clock, clock[before]) + 2 * MS
            for rank in range(RANKS):
                number = 2 * (step * TURNS + turn)
                to = before.index(rank)
                at, group = int(clock[rank]), f"cp-{rank // RING}"
                comm += [
                    (rank, step, group, number, "Send", to, at, int(came[to])),
                    (rank, step, group, number + 1, "Recv", before[rank], at, int(came[rank])),
                ]
            clock = np.maximum(clock + took, came)
        end = clock.max() + 4 * MS
        for rank in range(RANKS):
            took_ns = int(clock[rank] - begun[rank])
            comm.append((rank, step, "dp-0", step, "AllReduce", -1, int(clock[rank]), int(end)))
            phases.append((rank, step, "forward-compute", int(begun[rank]), took_ns, 1))
            steps.append((rank, step, int(begun[rank]), int(end - begun[rank])))
        clock = np.full(RANKS, end)
    names = "rank step group seq op peer start_ns end_ns"
    table = a_table(names, comm)
    return Window(ring_job(1.0).job, {
        "comm_ops": table.with_column("enqueue_ns", table.ints("start_ns")),
        "phases": a_table("rank step phase start_ns duration_ns waits", phases),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


def test_who_computes_beside_a_receive_does_not_wait_in_it() -> None:
    assert diagnose(overlapped(1.0)).verdicts == ()
    own = Observed(overlapped(SLOWER)).own.of("forward-compute")
    late, others = own[SLOW, SINCE:], np.delete(own, SLOW, axis=0)[:, SINCE:]
    assert np.median(late) == pytest.approx(TURNS * 20 * MS * SLOWER, rel=0.1)
    assert np.median(others) == pytest.approx(TURNS * 20 * MS, rel=0.1)


def test_a_rank_that_is_slow_beside_its_receives_is_named_alone() -> None:
    (verdict,) = diagnose(overlapped(SLOWER)).verdicts
    assert verdict.ranks == (SLOW,)
    usual = TURNS * 20 + 6
    assert verdict.lost_fraction == pytest.approx(1 - usual / (usual + TURNS * 10), abs=0.06)

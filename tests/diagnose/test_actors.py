"""A learner that steps an optimizer, and actors that only call operators."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import Window

from .jobs import MS, START, a_table

UPDATES = 3
"""Optimizer steps per rollout."""


def learning(rounds: int, slow: int | None = None) -> Window:
    """Weights go out, rollouts come back, and the learner makes three updates of each."""
    random = np.random.default_rng(1)
    phases, steps, comm = [], [], []
    now, step, began = START, 0, START
    free = np.full(4, START)
    for number in range(rounds):
        acting = random.normal(40, 1, 4) + 30 * (np.arange(4) == slow)
        done = now + ((1 + acting) * MS).astype(np.int64)
        last = int(done[1:].max()) + MS // 10
        waited = last - now - MS
        for rank in range(4):
            at, free[0] = 0 if rank else step, now
            left = [last, int(done[rank]) + MS // 10][rank > 0]
            back, blocked = (int(done[rank]), 0) if rank else (now + MS, waited)
            called = int(free[rank])
            comm += [
                (rank, at, "world-0", 2 * number, "Broadcast", called, called, now + MS,
                 now + MS - called),
                (rank, at, "world-0", 2 * number + 1, "Gather", back, back, left, blocked),
            ]  # fmt: skip
            free[rank] = left
        now = last
        for update in range(UPDATES):
            begin = now - (waited if update == 0 else 0)
            for name, lasted in (("forward-compute", 6), ("backward-compute", 2), ("optimizer", 1)):
                first = update == 0 and name == "forward-compute"
                phases.append(
                    (
                        0,
                        step,
                        name,
                        -1,
                        begin if first else now,
                        lasted * MS + (waited if first else 0),
                        1,
                        waited if first else 0,
                    )
                )
                now += lasted * MS
            steps.append((0, step, began, now - began))
            began, step = now, step + 1
    columns = "group seq op enqueue_ns start_ns end_ns blocked_ns"
    return Window(Job("rl", 4, (Host("host-000", tuple(range(4))),)), {
        "phases": a_table("rank step phase microbatch start_ns duration_ns waits wait_ns", phases),
        "steps": a_table("rank step start_ns duration_ns", steps),
        "comm_ops": a_table(f"rank step {columns}", comm),
    })  # fmt: skip


def test_a_slow_actor_is_compared_with_the_other_actors() -> None:
    (verdict,) = diagnose(learning(80, slow=2)).verdicts
    assert verdict.ranks == (2,)
    assert verdict.lost_fraction == pytest.approx(30 / 98, abs=0.05)


def test_waiting_for_actors_is_no_loss_of_every_third_update() -> None:
    diagnosis = diagnose(learning(80))
    assert diagnosis.verdicts == ()
    assert diagnosis.steps == (0, 80)

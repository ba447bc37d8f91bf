"""A loader that runs ahead: its phase of the next step begins before this step has ended."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.waste.shared_loading import _by_chance
from stepscope.diagnose.run import diagnose
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, STEPS, SINCE, AHEAD = 8, 60, 40, 100
PARTS = (("avant", 300), ("arrière", 600), ("réduction", 40), ("mise à jour", 50))


def a_run(longer_ms: float) -> Window:
    """All ranks load for 200 ms, and longer since a step; the slowest of them is waited for."""
    random, phases, steps = np.random.default_rng(4), [], []
    begins = np.full(RANKS, START)
    for step in range(STEPS):
        more = (step >= SINCE) * longer_ms * random.uniform(0.9, 1.6, RANKS)
        loads = ((200 + more) * random.normal(1, 0.01, RANKS) * MS).astype(np.int64)
        at = int((begins + loads).max()) + 500 * MS
        next_begins = np.zeros(RANKS, np.int64)
        for rank in range(RANKS):
            phases.append((rank, step, "chargement", -1, int(begins[rank]), int(loads[rank])))
            now = at
            for name, ms in PARTS:
                took = int(ms * random.normal(1, 0.005) * MS)
                phases.append((rank, step, name, -1, now, took))
                now += took
            next_begins[rank] = now - AHEAD * MS
            steps.append((rank, step, int(begins[rank]), int(next_begins[rank] - begins[rank])))
        begins = next_begins
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase microbatch start_ns duration_ns", phases),
    }
    groups = (ProcessGroup("dp-0", "dp", tuple(range(RANKS))),)
    return Window(Job("ahead", RANKS, groups=groups), tables)


def test_a_rise_in_it_is_named_by_its_phase() -> None:
    (verdict,) = diagnose(a_run(400)).verdicts
    assert (verdict.ranks, verdict.phase, verdict.cause) == ((), "chargement", "data_loading")
    assert verdict.steps is not None and verdict.steps[0] == SINCE


def test_a_loader_that_runs_ahead_is_healthy() -> None:
    assert diagnose(a_run(0)).verdicts == ()


def test_a_slow_worker_is_late_in_every_second_step_and_takes_no_turns() -> None:
    """In the steps between, where nobody waits, the other rank's batch is last by milliseconds."""
    one_worker = np.array([[4.0, 4.0] * 40, [370.0, 1.0] * 40])
    in_turns = np.array([[370.0, 1.0] * 40, [4.0, 370.0] * 40])
    assert not _by_chance(one_worker) and _by_chance(in_turns)

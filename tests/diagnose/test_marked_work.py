"""Which phase makes a rank slow, where the recorder marks what waits and knows only calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, ProcessGroup
from stepscope.window import Window
from tests.diagnose.jobs import MS, Fault, a_job
from tests.diagnose.recorder import BACKWARD, FORWARD, RANKS, Recorder, end_step

STEPS, SINCE, SLOW = 120, 40, 5


def a_starving_loader() -> tuple[Window, float]:
    """A loader that is late in most steps, by changing times, and what it costs. Gradients are
    exchanged while backward computes; only what follows it waits."""
    rng, played = np.random.default_rng(5), Recorder()
    late_ms = np.where(np.arange(STEPS) >= SINCE, rng.uniform(5, 95, STEPS), 0.0)
    late_ms[rng.random(STEPS) < 0.4] = 0.0
    for step in range(STEPS):
        begun = [*played.clock]
        for rank in range(RANKS):
            load = rng.normal(2, 0.05) + late_ms[step] * (rank == SLOW)
            played.spend(rank, step, "data-load", load * MS)
            played.spend(rank, step, FORWARD, rng.normal(60, 0.5) * MS)
            lasts = rng.normal(200, 2) * MS
            begin = played.clock[rank]
            played.clock[rank] += lasts / 2
            played.call(rank, step)
            played.clock[rank] = begin
            played.spend(rank, step, BACKWARD, lasts)
        played.meet(range(RANKS), step, at_once=False)
        end_step(played, step, begun, rng)
    usual_ms = 60 + 200 + 2 + 2 + 3
    lost = late_ms[SINCE:].mean() / (usual_ms + late_ms[SINCE:].mean())
    group = ProcessGroup("dp-0", "dp", tuple(range(RANKS)))
    return played.window([group], marked=True), float(lost)


def test_a_late_loader_is_not_called_a_slow_backward_pass() -> None:
    """No call within a phase that does not wait can have waited, however late others called."""
    job, lost = a_starving_loader()
    (verdict,) = diagnose(job).verdicts
    assert (verdict.ranks, verdict.cause, verdict.phase) == ((SLOW,), "data_loading", "data-load")
    assert verdict.lost_fraction is not None
    assert abs(verdict.lost_fraction - lost) < 0.04


def test_loaders_of_one_host_that_are_late_in_turns_are_one_verdict() -> None:
    """Two ranks of a host, each for a third of the time: what they read from is the reason."""
    job = a_job(8, 200, 0.01, stacks=False, faults=[
        Fault((4,), "data-load", 80, 120, ms=60.0), Fault((5,), "data-load", 120, 160, ms=60.0),
    ])  # fmt: skip
    hosts = (Host("h0", (0, 1, 2, 3)), Host("h1", (4, 5, 6, 7)))
    (verdict,) = diagnose(replace(job, job=replace(job.job, hosts=hosts))).verdicts
    assert (verdict.ranks, verdict.cause, verdict.steps) == ((4, 5), "data_loading", (80, 159))
    assert abs((verdict.lost_fraction or 0.0) - 60 / 150) < 0.05
    assert "take 60 ms longer than their peers to load data" in verdict.summary

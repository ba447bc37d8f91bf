"""A rank that stands still now and then between two of its phases, known from few tables."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.trace import ProcessGroup
from stepscope.window import Window
from tests.diagnose.jobs import MS
from tests.diagnose.recorder import BACKWARD, FORWARD, RANKS, Recorder, end_step

STEPS, SINCE, EVERY, STALL_MS = 160, 60, 9, 300.0
SLOW = 5
STAGES = 2
REPLICAS = RANKS // STAGES


def stalls(step: int) -> bool:
    return step >= SINCE and (step - SINCE) % EVERY == 0


def replicas(slow: int | None = SLOW) -> Window:
    """Data-parallel ranks, of which one stands still before some of its forward passes; phases say
    which of them wait, and of operators only the calls are known."""
    rng, played = np.random.default_rng(3), Recorder()
    for step in range(STEPS):
        begun = [*played.clock]
        for rank in range(RANKS):
            played.spend(rank, step, "data-load", rng.normal(1, 0.05) * MS)
            played.clock[rank] += STALL_MS * MS * (rank == slow and stalls(step))
            played.spend(rank, step, FORWARD, rng.normal(20, 0.2) * MS)
            played.spend(rank, step, BACKWARD, rng.normal(40, 0.4) * MS)
        played.meet(range(RANKS), step)
        end_step(played, step, begun, rng)
    return played.window([ProcessGroup("dp-0", "dp", tuple(range(RANKS)))], marked=True)


def pipelines(slow: int | None = SLOW) -> Window:
    """Two stages, which receive in phases of their own; nothing says that these wait."""
    rng, played = np.random.default_rng(3), Recorder()
    for step in range(STEPS):
        begun = [*played.clock]
        for first in range(REPLICAS):
            pipeline(played, step, first, first + REPLICAS, slow, rng)
        for stage in range(STAGES):
            played.meet(range(stage * REPLICAS, (stage + 1) * REPLICAS), step)
        end_step(played, step, begun, rng)
    dp = [ProcessGroup(f"dp-{at}", "dp", tuple(range(at * REPLICAS, (at + 1) * REPLICAS)))
          for at in range(STAGES)]  # fmt: skip
    pp = [ProcessGroup(f"pp-{at}", "pp", (at, at + REPLICAS)) for at in range(REPLICAS)]
    return played.window([*dp, *pp], marked=False)


def pipeline(
    played: Recorder, step: int, first: int, last: int, slow: int | None, rng: np.random.Generator
) -> None:
    for rank in (first, last):
        played.spend(rank, step, "data-load", rng.normal(1, 0.05) * MS)
        played.clock[rank] += STALL_MS * MS * (rank == slow and stalls(step))
    sent = []
    for _ in range(3):
        played.spend(first, step, FORWARD, rng.normal(10, 0.1) * MS)
        sent.append(played.clock[first])
    for at in range(3):
        played.wait(last, step, "pp-recv", sent[at])
        played.spend(last, step, FORWARD, rng.normal(10, 0.1) * MS)
        played.spend(last, step, BACKWARD, rng.normal(20, 0.2) * MS)
        played.wait(first, step, "pp-recv", played.clock[last])
        played.spend(first, step, BACKWARD, rng.normal(20, 0.2) * MS)


LAST = REPLICAS + SLOW


@pytest.mark.parametrize(
    ("job", "rank"), [(replicas(), SLOW), (pipelines(), SLOW), (pipelines(slow=LAST), LAST)]
)
def test_the_rank_that_stands_still_between_two_phases_is_named(job: Window, rank: int) -> None:
    (verdict,) = diagnose(job).verdicts
    assert verdict.ranks == (rank,)
    usual_ms, stalled_ms = steps_of(job)
    share = (stalled_ms - usual_ms) / (stalled_ms + (EVERY - 1) * usual_ms)
    assert verdict.lost_fraction == pytest.approx(share, abs=0.03)


def test_what_comes_back_regularly_is_said_to_be_its_own() -> None:
    (period,) = diagnose(replicas()).periods
    assert (period.every, period.ranks) == (EVERY, (SLOW,))


@pytest.mark.parametrize("job", [replicas(slow=None), pipelines(slow=None)])
def test_nobody_is_named_where_nobody_stands_still(job: Window) -> None:
    assert diagnose(job).verdicts == ()


def steps_of(job: Window) -> tuple[float, float]:
    """How long a usual step and the first stalled one take, in ms."""
    steps = job.tables["steps"]
    lasted, step = steps.ints("duration_ns") / MS, steps.ints("step")
    return float(np.median(lasted)), float(lasted[step == SINCE].max())

"""Ranks that collect garbage in turns, in too few steps to shift any median."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.ranks.in_turns import lengthening
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, Fault, a_job, a_table

STEPS = 120
TURNS = [11, 18, 27, 31, 45, 53, 58, 66, 73, 77, 89, 96, 104, 109]


def verdicts(faults: list[Fault]) -> tuple[Verdict, ...]:
    return diagnose(a_job(ranks=8, steps=STEPS, noise=0.01, faults=faults)).verdicts


def by_turns(ranks: int, ms: float, gc: bool = True) -> list[Fault]:
    return [Fault((at % ranks,), "forward-compute", step, step + 1, ms=ms, gc=gc)
            for at, step in enumerate(TURNS)]  # fmt: skip


def test_pauses_in_turns_cost_what_steps_take_longer() -> None:
    (one,) = verdicts(by_turns(8, 150))
    assert (one.cause, one.ranks) == ("gc", ())
    assert [seen.method for seen in one.evidence] == ["gc-turns"]
    assert "in turns" in one.summary
    assert one.lost_fraction is not None and 0.1 <= one.lost_fraction <= 0.25


def test_rare_short_ones_are_healthy() -> None:
    assert not verdicts(by_turns(8, 7))


def test_stalls_that_are_no_collections_are_none() -> None:
    assert not [one for one in verdicts(by_turns(8, 150, gc=False)) if one.cause == "gc"]


def test_what_one_rank_does_is_its_own() -> None:
    assert not [one for one in verdicts(by_turns(1, 150)) if one.cause == "gc" and not one.ranks]


def test_where_some_rank_pauses_in_every_step_the_cost_is_what_steps_vary_with() -> None:
    """A hundred ranks that collect every hundredth step each leave no step without a pause."""
    every = [Fault((step % 8,), "forward-compute", step, step + 1, ms=30 + 7 * (step % 11), gc=True)
             for step in range(STEPS)]  # fmt: skip
    (one,) = verdicts(every)
    assert (one.cause, one.ranks) == ("gc", ())
    assert one.lost_fraction is not None and 0.3 <= one.lost_fraction <= 0.5


def on_devices(idle_ms: float) -> Window:
    """In every step another rank of eight collects for 30 ms, and its device idles so long; how
    long a step takes depends on its batch, and not on which of these pauses is the longest."""
    random, kernels, steps, pauses = np.random.default_rng(3), [], [], []
    now = START
    for step in range(60):
        work = random.uniform(60, 90) * random.normal(1, 0.01, 8)
        idle = np.where(np.arange(8) == step % 8, idle_ms, 0.1)
        done = now + ((work + idle + 20) * MS).astype(np.int64)
        end = int(done.max()) + 10 * MS
        for rank in range(8):
            kernels += [
                (rank, step, "gemm", 7, now, int(work[rank] * MS)),
                (rank, step, "flash_attn", 7, int(done[rank]) - 20 * MS, 20 * MS),
                (rank, step, "ncclDevKernel_AllReduce", 9, int(done[rank]), end - int(done[rank])),
            ]
            steps.append((rank, step, now, end - now))
        pauses.append((step % 8, step, "gc", now + 30 * MS, int(random.uniform(29, 31) * MS)))
        now = end
    job = Job("devices", 8, groups=(ProcessGroup("dp-0", "dp", tuple(range(8))),))
    return Window(job, {
        "kernels": a_table("rank step kernel stream start_ns duration_ns", kernels),
        "steps": a_table("rank step start_ns duration_ns", steps),
        "pauses": a_table("rank step kind start_ns duration_ns", pauses),
    })  # fmt: skip


def test_pauses_of_every_step_cost_what_devices_idle_beyond_their_peers() -> None:
    (one,) = diagnose(on_devices(idle_ms=30)).verdicts
    assert (one.cause, one.ranks) == ("gc", ())
    assert one.lost_fraction is not None and 0.15 <= one.lost_fraction <= 0.25


def test_pauses_of_hosts_that_run_ahead_of_their_devices_cost_nothing() -> None:
    assert diagnose(on_devices(idle_ms=0.1)).verdicts == ()


def test_long_steps_of_another_reason_do_not_hide_what_pauses_of_one_length_cost() -> None:
    """With hundreds of ranks the longest pause of each step lasts about as long as any."""
    random = np.random.default_rng(3)
    pauses = 124 + random.normal(size=40)
    pauses[[5, 22]] -= 16
    steps = 400 + pauses + random.normal(size=40)
    steps[[9, 30]] += 70
    assert lengthening(steps, pauses) > 0.8
    assert lengthening(random.permutation(steps), pauses) == 0.0

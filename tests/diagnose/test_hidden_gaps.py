"""Jobs of which only operators on devices were recorded: work that hides behind them."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import OwnTime, own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window

from .jobs import MS as ONE_MS
from .jobs import START, a_table

MS = 10 * ONE_MS
"""Steps of a second: what lasts for less than a second in all is no fault."""

RANKS, STEPS, BUCKETS, SLOW = 16, 30, 4, 5
ALL = tuple(range(RANKS))
HOSTS = tuple(Host(f"h{at}", ALL[4 * at : 4 * at + 4]) for at in range(4))


def replicas(compute: Floats, loading: Floats) -> Window:
    """Gradients are reduced in four buckets, one after another, beside the backward pass.

    Args:
        compute, loading: `[rank, step]`, how many times one second each rank computes, and 10 ms.
    """
    rows, now, free = [], np.zeros(RANKS), 0.0
    for step in range(STEPS):
        now = now + loading[:, step] + 40 * compute[:, step]
        for bucket in range(BUCKETS):
            now = now + 15 * compute[:, step]
            start = np.maximum(now, free)
            free = float(start.max()) + 5
            rows += [(rank, step, "dp", BUCKETS * step + bucket, "AllReduce",
                      START + int(start[rank] * MS), START + int(free * MS))
                     for rank in ALL]  # fmt: skip
        now = np.full(RANKS, free)
    job = Job("replicas", RANKS, HOSTS, groups=(ProcessGroup("dp", "dp", ALL),))
    return Window(job, {"comm_ops": a_table("rank step group seq op start_ns end_ns", rows)})


def noise() -> Floats:
    return np.exp(np.random.default_rng(1).normal(0, 0.01, (RANKS, STEPS)))


def slow_by(times: float, since: int = 0) -> Floats:
    found = noise()
    found[SLOW, since:] *= times
    return found


NOTHING = np.full((RANKS, STEPS), 1.0)


def own_of(window: Window) -> OwnTime:
    window, _ = clean(window)
    return own_time(window, timeline(window))


def test_a_slow_rank_is_slow_by_what_it_takes_and_not_by_what_others_hide() -> None:
    """The others have reduced their first bucket long before its last member: nothing lies between
    their buckets. Without them it seems to take twice as long."""
    own = np.median(own_of(replicas(slow_by(1.5), NOTHING)).total[:, 5:], axis=1)
    assert 1.4 < own[SLOW] / np.median(own) < 1.6


def test_it_costs_what_the_steps_without_it_would_save() -> None:
    (verdict,) = diagnose(replicas(slow_by(1.5), NOTHING)).verdicts
    assert verdict.ranks == (SLOW,)
    assert verdict.lost_fraction is not None
    assert abs(verdict.lost_fraction - 1 / 3) < 0.1


def test_the_cause_is_known_if_it_is_slow_in_several_gaps_that_others_have() -> None:
    (verdict,) = diagnose(replicas(slow_by(1.5, 12), NOTHING)).verdicts
    assert (verdict.ranks, verdict.cause) == ((SLOW,), "compute")


def test_the_cause_of_time_before_one_operator_is_unknown() -> None:
    loading = NOTHING.copy()
    loading[SLOW, 12:] += 60
    (verdict,) = diagnose(replicas(noise(), loading)).verdicts
    assert (verdict.ranks, verdict.cause) == ((SLOW,), "unknown")
    assert "computes" not in verdict.summary


def test_equally_fast_replicas_are_healthy() -> None:
    assert not diagnose(replicas(noise(), NOTHING)).verdicts


def context_parallel(compute: Floats) -> Window:
    """Two groups of eight, which meet in four operators within each backward pass and reduce
    gradients of all ranks beside it after each."""
    groups = [np.array(ALL[:8]), np.array(ALL[8:])]
    rows, now, free = [], np.zeros(RANKS), 0.0
    for step in range(STEPS):
        for layer in range(4):
            for at, group in enumerate(groups):
                ready = now[group] + 20 * compute[group, step]
                now[group] = ready.max() + 2
                rows += [(rank, step, f"cp-{at}", 4 * step + layer, "AllGather",
                          START + int(begin * MS), START + int(now[rank] * MS))
                         for rank, begin in zip(group.tolist(), ready, strict=True)]  # fmt: skip
            start = np.maximum(now + 0.5, free)
            free = float(start.max()) + 3
            rows += [(rank, step, "dp", 4 * step + layer, "ReduceScatter",
                      START + int(start[rank] * MS), START + int(free * MS))
                     for rank in ALL]  # fmt: skip
        now = np.full(RANKS, free)
    known = (ProcessGroup("cp-0", "cp", ALL[:8]), ProcessGroup("cp-1", "cp", ALL[8:]))
    job = Job("cp", RANKS, HOSTS, groups=(*known, ProcessGroup("dp", "dp", ALL)))
    return Window(job, {"comm_ops": a_table("rank step group seq op start_ns end_ns", rows)})


def test_those_that_wait_for_the_slow_rank_within_passes_are_no_slower_than_others() -> None:
    (verdict,) = diagnose(context_parallel(slow_by(1.5))).verdicts
    assert verdict.ranks == (SLOW,)
    own = np.median(own_of(context_parallel(slow_by(1.5))).total[:, 5:], axis=1)
    assert abs(own[0] / own[12] - 1) < 0.05

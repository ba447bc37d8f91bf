"""Steps of several kinds in turns: rollouts before every third update, say."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.cycle import find_cycle
from stepscope.trace import Host, Job
from stepscope.window import Window

from .jobs import MS, START, Fault, a_job, a_table

PAIR = (0, 1)
STEPS = 240
ROLLOUT = Fault(PAIR, "forward-compute", 0, ms=120, every=3)


def test_steps_that_come_in_a_cycle_are_of_as_many_kinds() -> None:
    steps, random = np.arange(120), np.random.default_rng(1)
    own = np.exp(0.3 * random.normal(size=120)) * np.where(steps % 3 == 1, 9.0, 1.0)
    assert find_cycle(own, steps, 5).length == 3
    assert find_cycle(random.permutation(own), steps, 5).length == 1
    assert find_cycle(own[:15], steps[:15], 5).length == 1


def test_work_of_all_ranks_in_every_third_step_is_no_loss() -> None:
    found = diagnose(a_job(2, STEPS, faults=[ROLLOUT], stacks=False))
    assert (found.state, found.verdicts, found.periods) == ("healthy", (), ())
    assert found.ledger is not None and found.ledger.unexplained_fraction < 0.05


@pytest.mark.parametrize("noise", [0.03, 0.2])
def test_a_rank_that_is_slow_in_one_kind_of_steps_alone_is_named_in_these(noise: float) -> None:
    slow = Fault((1,), "forward-compute", 0, ms=90, every=3)
    (one,) = diagnose(a_job(2, STEPS, noise, faults=[ROLLOUT, slow], stacks=False)).verdicts
    assert (one.ranks, one.phase) == ((1,), "forward-compute")
    assert f"in {(STEPS - 5) // 3} of " in one.summary


def test_few_steps_of_each_kind_hide_nobody_who_is_slow_in_all_of_them() -> None:
    """A model is averaged in every fifth step, and half of the ranks are twice as slow."""
    half = tuple(range(8))
    average = Fault(tuple(range(16)), "optimizer", 0, ms=300, every=5)
    slow = Fault(half, "backward-compute", 0, times=2.0)
    found = diagnose(a_job(16, 85, faults=[average, slow], stacks=False)).verdicts
    assert {rank for one in found for rank in one.ranks} == set(half)
    assert sum(one.lost_fraction or 0.0 for one in found) > 0.15


def test_models_that_are_averaged_beside_all_phases_come_in_a_cycle() -> None:
    """Local SGD: both ranks train alone, and exchange all parameters in every eighth step."""
    random = np.random.default_rng(3)
    steps, phases, comm, clock = [], [], [], np.full(2, START)
    for step in range(200):
        own = (10 * MS * np.exp(0.1 * random.normal(size=2))).astype(np.int64)
        averages = step % 8 == 7
        end = clock + own
        if averages:
            end = np.full(2, end.max() + 40 * MS)
            calls = clock + own
            comm += [(r, step, "dp-0", step // 8, "AllReduce", calls[r], end[r]) for r in PAIR]
        for r in PAIR:
            steps.append((r, step, clock[r], end[r] - clock[r]))
            phases.append((r, step, "forward-compute", clock[r], own[r], 0))
        clock = end
    found = diagnose(Window(Job("local", 2, (Host("h", PAIR),)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
        "comm_ops": a_table("rank step group seq op enqueue_ns end_ns", comm),
    }))  # fmt: skip
    assert found.verdicts == () and found.periods == ()


def test_steps_in_which_ranks_reduce_more_are_of_another_kind_however_few() -> None:
    """Too few of them for chance to be excluded by their lengths; in all others ranks reduce their
    losses, or the gradients of an island."""
    steps, own = np.arange(40), np.ones(40)
    averaged = steps % 13 == 12
    own[averaged] = 3.0
    assert find_cycle(own, steps, 4).length == 1
    for others in (0.0, 4.0, 5e8):
        found = find_cycle(own, steps, 4, np.where(averaged, 1e9, others))
        assert found.kind.tolist() == averaged.astype(int).tolist()
    for unlike in (np.isin(steps, (5, 6, 30)), steps >= 0, steps < 0, steps < 12):
        assert find_cycle(own, steps, 4, np.where(unlike, 1e9, 0.0)).length == 1

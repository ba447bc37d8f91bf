"""What each of several culprits costs, and what the steps beside them show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.account.model import unknown_excess_ns
from stepscope.diagnose.decide import cost
from stepscope.diagnose.decide.measured_rise import measured_ns
from stepscope.diagnose.detect.profiled import common_patterns
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.own_time import OwnTime
from stepscope.diagnose.views.work_size import WorkSize
from stepscope.window import Floats, Table

from .jobs import MS

STEPS = 60


def a_suspect(row: int, excess_ms: float, first: int = 0, stop: int = STEPS) -> Suspect:
    return Suspect(
        row, "forward-compute", ("forward-compute",), first, stop, 0.5, 20.0, 5.0,
        excess_ms * MS, 1.5, 1,
    )  # fmt: skip


def a_job_of(period_ms: Floats) -> Any:
    line = SimpleNamespace(job_period_ns=period_ms * MS, steps=np.arange(STEPS), warm_up=0,
                           ranks=np.arange(8))  # fmt: skip
    window = SimpleNamespace(job=SimpleNamespace(groups_of_kind=lambda *_: (), parallelism={}),
                             table=lambda _: None)  # fmt: skip
    own = SimpleNamespace(phases=(), hidden=False, hidden_phases=frozenset())
    return SimpleNamespace(line=line, window=window, breakdown=None, own=own,
                           work=WorkSize(np.ones(STEPS), 1, 0))  # fmt: skip


class Healing:
    """A job whose steps get shorter by what was found for each set of healed ranks."""

    def __init__(self, won_ms: dict[frozenset[int], float]) -> None:
        self.job = a_job_of(np.full(STEPS, 400.0))
        self.won_ms = won_ms
        self.rows = frozenset().union(*won_ms)
        self.paused = np.zeros(STEPS)

    def of(self, one: Suspect) -> frozenset[int]:
        return frozenset((one.row,))

    def but(self, one: Suspect) -> frozenset[int]:
        return self.rows - {one.row}

    def lost_ns(self, healed: frozenset[int]) -> Floats:
        return np.full(STEPS, self.won_ms[healed] * MS)

    def judged(self, one: Suspect) -> slice:
        return slice(None)

    def replays(self, one: Suspect) -> bool:
        return False


def shares(won_ms: dict[frozenset[int], float], suspects: list[Suspect]) -> list[float]:
    healing: Any = Healing(won_ms)
    lost = healing.lost_ns(healing.rows)
    return [round(cost._lost_by(healing, one, suspects, lost, None), 4) for one in suspects]


def test_who_is_slow_behind_a_slower_one_costs_what_it_adds() -> None:
    won = {frozenset((1,)): 52.0, frozenset((2,)): 0.0, frozenset((1, 2)): 53.0}
    assert shares(won, [a_suspect(1, 100), a_suspect(2, 50)]) == [0.13, 0.0025]


def test_two_that_are_equally_slow_share_what_both_cost() -> None:
    won = {frozenset((1,)): 0.0, frozenset((2,)): 0.0, frozenset((1, 2)): 80.0}
    assert shares(won, [a_suspect(1, 80), a_suspect(2, 80)]) == [0.1, 0.1]


def test_another_that_is_slow_all_the_time_does_not_hide_what_steps_took_before() -> None:
    """Loading takes 1,150 ms, and steps rise from 880 to 1,650: no more than that comes back."""
    job = a_job_of(np.where(np.arange(STEPS) < 30, 880.0, 1650.0))
    loader, always = a_suspect(0, 1150, 30), a_suspect(5, 4)
    healing: Any = SimpleNamespace(job=job, paused=np.zeros(STEPS))
    _, most_ns = measured_ns(healing.job, healing.paused, loader, [loader, always])
    assert most_ns == pytest.approx(770 * MS)


def test_another_that_was_slow_before_does_not_hide_that_steps_rose() -> None:
    """Without its steps none are left to compare with; with them the rise is at least as much."""
    job = a_job_of(np.where(np.arange(STEPS) < 30, 370.0, 450.0))
    slower, before = a_suspect(2, 120, 30), replace(a_suspect(0, 10), stop=30)
    healing: Any = SimpleNamespace(job=job, paused=np.zeros(STEPS))
    least_ns, most_ns = measured_ns(healing.job, healing.paused, slower, [slower, before])
    assert least_ns == pytest.approx(80 * MS) and most_ns == np.inf


def test_a_replay_counts_where_few_steps_show_what_is_usual() -> None:
    """Of three steps all are long; healing the rank in one of them makes it 60 ms shorter."""
    job = a_job_of(np.full(STEPS, 400.0))
    job.line = SimpleNamespace(
        job_period_ns=np.array([410.0, 400.0, 400.0]) * MS, steps=np.arange(3), warm_up=0
    )
    job.cycle, job.total = SimpleNamespace(length=1), np.zeros((2, 3))
    one = replace(a_suspect(1, 100, 0, 1), spikes=(0,), alone=True)
    healing: Any = Healing({frozenset((1,)): 60.0})
    healing.job, healing.replays, healing.judged = job, lambda _: True, lambda _: np.arange(3)
    lost = cost._lost_by_spikes(healing, one, [one], None)
    assert lost == pytest.approx(60 / 1210)


def test_loading_holds_a_step_also_while_communication_was_launched_before() -> None:
    """Half of the ranks load for 300 of 400 ms; their devices compute for 80 ms."""
    steps = [(rank, step, 80 * MS) for rank in (0, 1) for step in range(4)]
    names, row = np.array([one[0] for one in steps]), np.array([one[1] for one in steps])
    own = np.full((1, 2, 4), 300.0 * MS)
    table = Table({"rank": names, "step": row, "compute_ns": np.array([one[2] for one in steps])})
    line = SimpleNamespace(
        ranks=np.arange(2), steps=np.arange(4), warm_up=0, period_ns=np.full((2, 4), 400.0 * MS),
        job_period_ns=np.full(4, 400.0 * MS), shape=(2, 4),
        places=lambda table: (table.ints("rank"), table.ints("step")),
    )  # fmt: skip
    job: Any = SimpleNamespace(line=line, breakdown=SimpleNamespace(steps=table),
                               own=OwnTime(("data-load",), own, own))  # fmt: skip
    window: Any = SimpleNamespace(steps=(0, 3))
    assert common_patterns._held_by_loading(job, window) == pytest.approx(0.75)


def test_ranks_that_are_slow_together_cost_no_more_than_steps_got_longer() -> None:
    """Eight ranks of a host, of which a model says that steps would be 240 ms shorter."""
    period = np.where(np.arange(STEPS) < 30, 380.0, 400.0)
    suspects = [a_suspect(row, 30, first=30) for row in range(8)]
    healing: Any = Healing({frozenset((row,)): 0.0 for row in range(8)} | {
        frozenset(range(8)): 240.0, **{frozenset(range(8)) - {row}: 0.0 for row in range(8)}
    })  # fmt: skip
    healing.job = a_job_of(period)
    lost = healing.lost_ns(healing.rows)
    whole = sum(cost._lost_by(healing, one, suspects, lost, None) for one in suspects)
    assert whole == pytest.approx(20 / 400, abs=0.01)


@pytest.mark.parametrize(("first", "excess_ms"), [(30, 200.0), (20, 0.0)])
def test_a_rank_of_which_little_is_known_may_cost_what_steps_got_longer_with_it(
    first: int, excess_ms: float
) -> None:
    """Its optimizer takes 1.5 times as long; the passes are hidden behind transfers."""
    job = a_job_of(np.where(np.arange(STEPS) < 30, 400.0, 500.0))
    job.total = np.full((4, STEPS), 50.0 * MS)
    slow = a_suspect(1, 8, first)
    assert unknown_excess_ns(job, slow, 400.0 * MS) == excess_ms * MS
    loading = replace(slow, phase="data-load", phases=("data-load",))
    assert unknown_excess_ns(job, loading, 400.0 * MS) == 0.0, "nobody loads in the rest"


def test_spikes_of_a_rank_that_is_behind_a_slower_one_add_nothing() -> None:
    """Its steps are longer where the slower one takes longest, which hides less of its own work."""
    slow = a_suspect(3, 50)
    victim = replace(a_suspect(1, 20), spikes=(7, 12))
    phase = "forward-compute"
    saved = {(3, phase): np.full(STEPS, 50.0), (1, phase): np.full(STEPS, 20.0)}
    healing = cost._Healing(a_job_of(np.full(STEPS, 100.0)), saved, np.zeros(STEPS))
    both = [slow, victim]
    assert cost._beyond_others_ns(healing, victim, both) == 0.0
    saved[1, phase][12] = 80.0
    assert cost._beyond_others_ns(healing, victim, both) == 30.0, "there it is the slower one"
    assert cost._beyond_others_ns(healing, victim, [victim]) == np.inf


def test_of_many_ranks_hardly_any_step_of_a_slow_one_is_slow_by_chance() -> None:
    """In half of 60 steps it loses 100 ms, and in each tenth of these 1,000 ms."""
    lost = np.where(np.arange(STEPS) % 2 == 0, 100.0, 0.0)
    lost[::20] = 1000.0
    always = a_suspect(0, 100)
    few, many = (a_job_of(np.full(STEPS, 400.0)) for _ in range(2))
    few.line.ranks, many.line.ranks = np.arange(4), np.arange(64)
    assert cost._sum(many, always, lost) == pytest.approx(lost.sum())
    assert cost._sum(few, always, lost) < 0.6 * lost.sum()

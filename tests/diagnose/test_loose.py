"""Jobs whose ranks do not meet in every step: who is slow there, and what it costs."""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.window import Floats

from .jobs import MS, Fault, a_job, without
from .loose import SERVER, elastic, local_sgd, workers

Phases = dict[str, Floats]


def only(found: Diagnosis) -> Verdict:
    (one,) = found.verdicts
    return one


def test_a_rank_that_holds_up_each_rare_meeting_is_named() -> None:
    found = diagnose(local_sgd(4_000, "cpu_offload (outer.py:51)"))
    one = only(found)
    assert (one.ranks, one.is_suspect) == ((0,), False)
    assert "cpu_offload (outer.py:51)" in one.summary
    assert found.ledger is not None
    assert sum(entry.fraction for entry in found.ledger.lost) == pytest.approx(0.65, abs=0.05)


def test_the_first_rank_is_not_accused_of_saving_between_two_phases() -> None:
    found = diagnose(local_sgd(4_000, "save (torch/serialization.py:9)"))
    assert not any(one.ranks for one in found.verdicts)


@pytest.mark.parametrize("late_ms", [0.0, 100.0])
def test_meeting_seldom_is_healthy_and_so_is_a_short_duty_before_it(late_ms: float) -> None:
    assert diagnose(local_sgd(late_ms, "log (outer.py:60)")).state == "healthy"


def slow_device(own: Phases) -> None:
    for phase in ("forward-compute", "backward-compute"):
        own[phase][5] *= 2.0


def late_loader(own: Phases) -> None:
    own["data-load"][5, 30:] = 100 * MS


@pytest.mark.parametrize(
    ("fault", "since", "of_its_own"), [(slow_device, 5, 80 / 181), (late_loader, 30, 99 / 200)]
)
def test_a_worker_that_nobody_waits_for_costs_its_own_steps(
    fault: object, since: int, of_its_own: float
) -> None:
    found = diagnose(workers(fault))  # type: ignore[arg-type]
    one = only(found)
    assert (one.ranks, one.is_suspect, one.victims) == ((5,), False, 0)
    assert one.steps is not None
    assert abs(one.steps[0] - since) <= 1
    assert one.lost_fraction == pytest.approx(of_its_own / 16, rel=0.1)
    assert "ranks do not wait for each other" in one.evidence[0].detail


def test_what_is_needed_is_no_less_than_what_healthy_workers_take() -> None:
    ledger = diagnose(workers(slow_device)).ledger
    assert ledger is not None
    assert ledger.needed_ns == pytest.approx(101.2 * MS, rel=0.01)
    assert ledger.step_ns == pytest.approx(16 / (15 / 101.2 + 1 / 181.2) * MS, rel=0.01)
    assert ledger.unexplained_fraction < 0.01


def a_little_slower(own: Phases) -> None:
    own["backward-compute"][5] *= 1.1


@pytest.mark.parametrize("fault", [lambda _: None, a_little_slower])
def test_workers_of_about_one_speed_are_healthy(fault: object) -> None:
    assert diagnose(workers(fault)).state == "healthy"  # type: ignore[arg-type]


def test_ranks_that_meet_are_never_steps_apart() -> None:
    slow = a_job(faults=[Fault((2,), "backward-compute", 20, ms=50)])
    assert not Observed(without(slow, "comm_ops")).asynchronous
    paused = a_job(faults=[Fault((2,), "backward-compute", 197, ms=20_000)])
    assert not Observed(without(paused, "comm_ops")).asynchronous
    assert Observed(workers(slow_device)).asynchronous
    assert not Observed(workers()).asynchronous


def slow_server(own: Phases) -> None:
    for phase in SERVER:
        own[phase][:, 40:] *= 20


def test_a_slow_server_shows_in_the_phases_in_which_all_ranks_take_longer() -> None:
    found = diagnose(workers(slow_server))
    one = only(found)
    assert (found.state, one.ranks, one.cause, one.steps) == ("regression", (), "unknown", (40, 89))
    assert "pull-weights" in one.summary and "push-gradients" in one.summary
    assert "48 % of the rise is in pull-weights" in one.evidence[0].detail
    assert one.lost_fraction == pytest.approx(380 / 481, abs=0.03)
    assert "parameter server" in one.advice


def test_phases_of_waiting_are_not_named_where_one_rank_does_not_wait() -> None:
    def victims(own: Phases) -> None:
        for rank in range(15):
            own[SERVER[0]][rank, 40:] *= 20

    assert not any(one.phase in SERVER for one in diagnose(workers(victims)).verdicts)


def test_restarts_of_an_elastic_job_are_told_and_accuse_nobody() -> None:
    found = diagnose(elastic((2, 3), 30, 60, 5_000))
    one = only(found)
    assert (one.ranks, one.is_suspect, found.accused) == ((), True, ())
    assert "ranks 2 and 3 left the job at step 30 and joined it at step 60" in one.summary
    assert "2 restarts take 5.0 s each" in one.summary
    assert one.lost_fraction == pytest.approx(10 / (10 + 85 * 0.083), abs=0.03)
    assert found.ledger is not None
    assert found.ledger.unexplained_fraction < 0.05


def test_ranks_that_nobody_recorded_for_a_while_cost_nothing() -> None:
    assert diagnose(elastic((2, 3), 30, 60, 0)).verdicts == ()

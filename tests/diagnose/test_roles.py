"""Jobs whose ranks do different things by design: peers are those that do the same."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.roles import roles
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window
from tests.diagnose.jobs import MS, Fault, a_job, a_table, both, put, without
from tests.diagnose.roles import GENERATE, SCORE, TRAIN, a_job_of_roles


def step_ns(slow: dict[int, float]) -> float:
    return float(np.median(Observed(a_job_of_roles(slow)).line.job_period_ns[5:]))


def test_ranks_that_run_the_same_phases_have_one_role() -> None:
    found = [tuple(rows.tolist()) for rows in roles(a_job_of_roles(steps=3))]
    assert sorted(found) == [TRAIN, GENERATE, SCORE]


def test_operators_show_roles_where_no_phases_were_recorded() -> None:
    found = [tuple(rows.tolist()) for rows in roles(without(a_job_of_roles(steps=3), "phases"))]
    assert sorted(found) == [TRAIN, GENERATE, SCORE]


@pytest.mark.parametrize("measured", [True, False])
def test_roles_that_wait_for_each_other_by_design_are_no_fault(measured: bool) -> None:
    found = diagnose(a_job_of_roles(measured=measured))
    assert (found.state, found.verdicts) == ("healthy", ())


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    ("rank", "phase"),
    [(GENERATE[3], "rollout"), (SCORE[1], "scoring"), (TRAIN[2], "backward-compute")],
)
def test_a_slow_rank_of_each_role_costs_what_all_roles_lose(
    rank: int, phase: str, measured: bool
) -> None:
    slow = {rank: 1.8}
    (verdict,) = diagnose(a_job_of_roles(slow, measured=measured)).verdicts
    assert verdict.ranks == (rank,)
    assert verdict.lost_fraction == pytest.approx(1 - step_ns({}) / step_ns(slow), abs=0.04)
    if measured:
        assert verdict.phase == phase


def test_of_faults_in_two_roles_both_are_named() -> None:
    slow = {GENERATE[0]: 1.6, TRAIN[1]: 1.5}
    found = diagnose(a_job_of_roles(slow))
    assert {rank for one in found.verdicts for rank in one.ranks} == set(slow)
    lost = sum(one.lost_fraction or 0.0 for one in found.verdicts)
    assert lost == pytest.approx(1 - step_ns({}) / step_ns(slow), abs=0.05)


def test_roles_that_wait_for_nobody_known_are_not_called_healthy() -> None:
    found = diagnose(without(a_job_of_roles(), "comm_ops"))
    assert found.state == "unknown" and "for whom" in found.unaccounted


EVALUATES = (0, 1, 2, 3)
EVERY, LASTS_MS = 20, 400.0


def with_evaluation(ranks: tuple[int, ...]) -> Window:
    """Some of eight ranks evaluate behind the optimizer in every twentieth step."""
    fault = Fault(ranks, "optimizer", start=EVERY, ms=LASTS_MS, every=EVERY)
    window = a_job(ranks=8, faults=[fault], stacks=False)
    phases, lasts = window.tables["phases"], int(LASTS_MS * MS)
    rank, step = phases.ints("rank"), phases.ints("step")
    there = np.isin(rank, ranks) & (step % EVERY == 0) & (step > 0)
    there &= phases.strings("phase").equals("optimizer")
    lasted = phases.ints("duration_ns") - np.where(there, lasts, 0)
    ends = (phases.ints("start_ns") + lasted)[there]
    rows = [(*at, "evaluation", end, lasts, 0, lasts)
            for *at, end in zip(rank[there], step[there], ends, strict=True)]  # fmt: skip
    evaluation = a_table("rank step phase start_ns duration_ns wait_ns cpu_ns", rows)
    return put(window, phases=both(phases.with_column("duration_ns", lasted), evaluation))


def test_of_work_by_design_of_some_ranks_only_its_cost_is_said() -> None:
    found = diagnose(with_evaluation(EVALUATES))
    assert all((one.ranks, one.phase) == ((), "evaluation") for one in found.verdicts)
    assert all(window.kind != "jitter" for window in found.windows)


def test_ranks_that_evaluate_together_are_compared_with_each_other() -> None:
    groups = Observed(with_evaluation(EVALUATES)).groups(None)
    assert sorted(tuple(rows.tolist()) for rows in groups) == [EVALUATES, (4, 5, 6, 7)]


def test_a_rank_that_is_alone_with_a_phase_keeps_its_peers() -> None:
    (rows,) = Observed(with_evaluation((2,))).groups(None)
    assert rows.tolist() == [*range(8)]


def test_ranks_that_share_most_operators_have_two_roles_if_only_some_train() -> None:
    """Actors gather and receive weights with the learners, who also reduce gradients."""
    groups = (ProcessGroup("all", "world", tuple(range(6))), ProcessGroup("grads", "dp", (3, 4, 5)))
    rows = [(rank, step, name, step, op, -1, step * 100 * MS, step * 100 * MS + MS)
            for step in range(9) for name, op, ranks in (
                ("all", "AllGather", range(6)), ("all", "Broadcast", range(6)),
                ("grads", "AllReduce", range(3, 6))) for rank in ranks]  # fmt: skip
    comm = a_table("rank step group seq op peer enqueue_ns end_ns", rows)
    found = roles(Window(Job("actors", 6, groups=groups), {"comm_ops": comm}))
    assert [rows.tolist() for rows in found] == [[3, 4, 5], [0, 1, 2]]

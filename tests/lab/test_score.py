"""What counts as right: exact culprits, an accepted cause, the measured loss, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from lab.score import judge, judge_each, true_loss

TIMES = dict.fromkeys(range(50), 100) | dict.fromkeys(range(50, 100), 150)
"""Steps of 100 ns, from step 50 on of 150."""


def fault(ranks: list[int], **other: Any) -> dict[str, Any]:
    window = {"first": 50, "last": None}
    causes = ["compute", "host"]
    return {"kind": "slowdown", "ranks": [ranks], "causes": causes, "when": window} | other


def truth(*faults: dict[str, Any]) -> dict[str, Any]:
    return {"faults": list(faults), "lost_each": [1 / 3] * len(faults)}


def verdict(ranks: list[int], **other: Any) -> dict[str, Any]:
    return {
        "kind": "slowdown", "cause": "compute", "ranks": ranks, "confidence": 0.9,
        "steps": [50, 99], "lost_fraction": 0.33,
    } | other  # fmt: skip


def test_the_right_rank_for_the_right_reason_passes() -> None:
    score = judge(truth(fault([3])), [verdict([3])], TIMES)
    assert (score.passed, score.culprit, score.cause, score.lost) == (True, True, True, True)


def test_a_neighbour_accused_with_it_is_wrong() -> None:
    score = judge(truth(fault([3])), [verdict([2, 3])], TIMES)
    assert not score.culprit
    assert score.accused == 1


def test_another_cause_is_wrong_but_the_culprit_is_right() -> None:
    score = judge(truth(fault([3])), [verdict([3], cause="network")], TIMES)
    assert score.culprit
    assert not score.cause
    assert not score.passed


def test_a_suspect_neither_finds_nor_accuses() -> None:
    assert not judge(truth(fault([3])), [verdict([3], confidence=0.4)], TIMES).culprit
    assert judge(truth(fault([3])), [verdict([3]), verdict([5], confidence=0.4)], TIMES).passed


def test_a_remark_about_unequal_work_accuses_no_machine() -> None:
    said = [verdict([3]), verdict([5], cause="load_imbalance")]
    assert judge(truth(fault([3])), said, TIMES).passed


def test_what_is_everybodys_must_be_said_of_nobody() -> None:
    everybody = fault([], causes=["code"])
    assert judge(truth(everybody), [verdict([], cause="code")], TIMES).passed
    assert not judge(truth(everybody), [verdict([1], cause="code")], TIMES).culprit


def test_any_of_several_accepted_sets_is_right() -> None:
    either = fault([0, 1]) | {"ranks": [[0, 1], [2, 3]]}
    assert judge(truth(either), [verdict([2, 3])], TIMES).culprit
    assert not judge(truth(either), [verdict([0, 1, 2])], TIMES).culprit


def test_both_of_a_pair_must_be_named() -> None:
    pair = truth(fault([1]), fault([6], causes=["gc"]))
    assert not judge(pair, [verdict([1])], TIMES).culprit
    assert judge(pair, [verdict([1]), verdict([6], cause="gc")], TIMES).passed


def test_of_a_host_and_one_of_its_ranks_each_has_its_own_cause() -> None:
    both = truth(fault([1], causes=["data_loading"]), fault([0, 1], causes=["network"]))
    said = [verdict([0, 1], cause="network"), verdict([1], cause="data_loading")]
    assert judge(both, said, TIMES).passed
    assert not judge(both, [said[0], verdict([1], cause="network")], TIMES).passed


def test_losses_of_one_time_are_added_up() -> None:
    pair = truth(fault([1]), fault([], causes=["network"]))
    said = [verdict([1], lost_fraction=0.2), verdict([], cause="network", lost_fraction=0.13)]
    assert judge(pair, said, TIMES).lost


def test_loss_is_judged_over_the_steps_that_the_verdict_names() -> None:
    known = truth(fault([3]))
    assert true_loss(known, (50, 99), TIMES) == pytest.approx(1 / 3)
    assert true_loss(known, (0, 99), TIMES) == pytest.approx(0.2)
    assert judge(known, [verdict([3], steps=[0, 99], lost_fraction=0.2)], TIMES).lost
    assert not judge(known, [verdict([3], lost_fraction=0.1)], TIMES).lost


def test_a_hang_must_be_called_one() -> None:
    hang = fault([3], kind="hang", causes=["host"])
    assert judge(truth(hang), [verdict([3], kind="mismatch", cause="host")], TIMES).culprit
    assert not judge(truth(hang), [verdict([3], cause="host")], TIMES).culprit


def test_a_healthy_job_passes_only_if_nothing_is_said() -> None:
    assert judge(truth(), [], TIMES).passed
    assert judge(truth(), [verdict([3, 4])], TIMES).accused == 2
    suspected = judge(truth(), [verdict([3], confidence=0.3)], TIMES)
    assert not suspected.passed
    assert not suspected.accused


def test_a_verdict_is_right_for_itself_if_ranks_and_cause_are() -> None:
    said = judge_each(truth(fault([3])), [verdict([3]), verdict([4])])
    assert [one.right for one in said] == [True, False]

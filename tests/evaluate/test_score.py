"""What counts as right: hand-made truths and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.evaluate.score import is_right, score
from stepscope.simulate import FaultTruth
from stepscope.trace import ProcessGroup
from tests.evaluate.jobs import JOB, a_diagnosis, a_fault, a_truth, a_verdict

SPINE = a_fault((), cause="network", devices=(("switch", "spine-0"),))
LEAF = a_fault(tuple(range(8)), cause="network", devices=(("switch", "leaf-0"),))
HOST = a_fault((4, 5, 6, 7), cause="contention", devices=(("cpu", "h1/cpu"),))
HANG = a_fault(kind="hang", slowdown=None)


@pytest.mark.parametrize(
    ("fault", "verdict", "found"),
    [
        (a_fault((3,)), a_verdict(3), True),
        (a_fault((3,)), a_verdict(4), False),
        (a_fault((3,)), a_verdict(3, 4), False),
        (a_fault((3, 9)), a_verdict(9), True),
        (a_fault((3,), devices=(("gpu", "h0/gpu-3"),)), a_verdict(device="h0/gpu-3"), True),
        (HOST, a_verdict(4, 5), True),
        (HOST, a_verdict(4), False),
        (LEAF, a_verdict(0, 1, 2, 3), True),
        (LEAF, a_verdict(0), False),
        (a_fault((), cause="gc"), a_verdict(), True),
        (a_fault((), cause="gc"), a_verdict(5), False),
        (SPINE, a_verdict(), False),
        (SPINE, a_verdict(device="spine-0"), True),
        (HANG, a_verdict(3, kind="hang"), True),
        (HANG, a_verdict(3), False),
        (a_fault((3,)), a_verdict(3, kind="hang"), False),
    ],
)
def test_a_culprit_is_found_by_who_is_named(
    fault: FaultTruth, verdict: Verdict, found: bool
) -> None:
    assert score(a_truth(fault), JOB, a_diagnosis(verdict)).found is found


def test_where_the_paper_named_a_group_the_group_is_right() -> None:
    job = replace(JOB, groups=(ProcessGroup("edp-3", "edp", (3, 7, 11)),))
    fault = a_fault((3, 7), cause="network", group="edp-3")
    right = replace(a_verdict(3, 7, 11, cause="network"), group="edp-3")
    one = score(a_truth(fault), job, a_diagnosis(right))
    assert (one.found, one.complete, one.accused) == (True, True, 0)
    assert score(a_truth(fault), job, a_diagnosis(replace(right, ranks=()))).found
    assert not score(a_truth(fault), job, a_diagnosis(replace(right, group="edp-2"))).found


def test_only_the_first_verdict_counts_as_first() -> None:
    one = score(a_truth(a_fault((3,))), JOB, a_diagnosis(a_verdict(8), a_verdict(3)))
    assert (one.found, one.complete, one.accused) == (False, True, 1)


def test_two_culprits_need_two_verdicts() -> None:
    truth = a_truth(a_fault((3,)), a_fault((9,), cause="gc"))
    half = score(truth, JOB, a_diagnosis(a_verdict(9, cause="gc")))
    assert (half.found, half.complete, half.cause) == (True, False, True)
    assert score(truth, JOB, a_diagnosis(a_verdict(9), a_verdict(3))).complete


def test_of_two_faults_in_one_place_the_one_whose_cause_is_told_is_meant() -> None:
    truth = a_truth(HOST, replace(HOST, cause="host"))
    told = [score(truth, JOB, a_diagnosis(a_verdict(4, 5, cause=cause))).cause
            for cause in ("contention", "host", "gc")]  # fmt: skip
    assert told == [True, True, False]


def test_silence_about_a_costly_fault_is_wrong() -> None:
    one = score(a_truth(a_fault(devices=(("gpu", "h0/gpu-3"),))), JOB, a_diagnosis())
    assert (one.found, one.complete, one.cause, one.device) == (False, False, False, False)


def test_silence_about_what_costs_nothing_is_right_and_a_verdict_an_alarm() -> None:
    """Each step with it ended late, and the next one made up for that."""
    truth = a_truth(a_fault(slowdown=1.2, lost_fraction=0.01))
    assert score(truth, JOB, a_diagnosis()).found is None
    assert score(truth, JOB, a_diagnosis(a_verdict(8))).alarms == 1


def test_a_fault_that_never_came_is_none() -> None:
    assert not score(a_truth(a_fault(steps=None)), JOB, a_diagnosis()).costly


def test_every_verdict_on_a_healthy_job_is_an_alarm() -> None:
    one = score(a_truth(), JOB, a_diagnosis(a_verdict(1), a_verdict(2, kind="hang")))
    assert (one.alarms, one.accused, one.said_hang, one.hangs) == (2, 2, True, False)


def test_a_device_is_asked_for_only_where_there_is_one() -> None:
    assert score(a_truth(a_fault()), JOB, a_diagnosis(a_verdict(3))).device is None
    gpu = a_fault(devices=(("gpu", "h0/gpu-3"),))
    assert score(a_truth(gpu), JOB, a_diagnosis(a_verdict(3))).device is False
    assert score(a_truth(gpu), JOB, a_diagnosis(a_verdict(3, device="h0/gpu-3"))).device is True


def test_a_hang_is_found_by_its_rank() -> None:
    right = score(a_truth(HANG), JOB, a_diagnosis(a_verdict(3, kind="hang")))
    wrong = score(a_truth(HANG), JOB, a_diagnosis(a_verdict(kind="hang")))
    assert (right.said_hang, right.found_hang) == (True, True)
    assert (wrong.said_hang, wrong.found_hang) == (True, False)


def a_suspect(*ranks: int) -> Verdict:
    return replace(a_verdict(*ranks), confidence=0.49)


def test_a_suspect_neither_finds_nor_accuses() -> None:
    one = score(a_truth(a_fault((3,))), JOB, a_diagnosis(a_suspect(8), a_suspect(3)))
    assert (one.found, one.accused, one.suspects, one.suspected) == (False, 0, 2, False)
    one = score(a_truth(a_fault((3,))), JOB, a_diagnosis(a_suspect(3), a_verdict(3)))
    assert (one.found, one.accused, one.suspects, one.suspected) == (True, 0, 1, True)
    assert score(a_truth(), JOB, a_diagnosis(a_suspect(8))).alarms == 0


def test_a_culprit_that_nobody_recorded_may_stay_unnamed() -> None:
    job, truth = replace(JOB, recorded_ranks=(0, 2, 4, 6)), a_truth(a_fault((3,)))
    assert score(truth, job, a_diagnosis(a_verdict())).found
    assert score(truth, job, a_diagnosis(a_verdict(3))).found
    wrong = score(truth, job, a_diagnosis(a_verdict(2)))
    assert (wrong.found, wrong.accused) == (False, 1)


def test_of_a_shared_device_only_recorded_ranks_can_be_named() -> None:
    half = replace(JOB, recorded_ranks=(4, 12))
    assert not score(a_truth(HOST), JOB, a_diagnosis(a_verdict(4))).found
    one = score(a_truth(HOST), half, a_diagnosis(a_verdict(4)))
    assert (one.found, one.complete) == (True, True)


def test_a_verdict_about_a_cheap_fault_is_right_all_the_same() -> None:
    cheap = a_truth(a_fault((3,), lost_fraction=0.01))
    assert is_right(cheap, JOB, a_verdict(3)) and not is_right(cheap, JOB, a_verdict(4))
    assert not is_right(a_truth(a_fault((3,), steps=None)), JOB, a_verdict(3))


def test_a_verdict_that_names_nobody_is_right_about_what_it_says() -> None:
    """It is no culprit found, but what it states with its confidence is true."""
    link, tp = a_truth(a_fault((3,), cause="network")), ProcessGroup("tp-0", "tp", (2, 3))
    grouped = replace(JOB, groups=(tp, ProcessGroup("tp-1", "tp", (4, 5))))
    nobody = a_verdict(cause="network")
    assert is_right(link, JOB, nobody) and not score(link, JOB, a_diagnosis(nobody)).found
    assert not is_right(link, JOB, a_verdict(cause="code"))
    assert is_right(link, grouped, replace(nobody, group="tp-0"))
    assert not is_right(link, grouped, replace(nobody, group="tp-1"))
    assert is_right(a_truth(HANG), JOB, a_verdict(kind="hang"))


def test_what_a_job_loses_by_its_own_nature_is_no_false_alarm_and_no_miss() -> None:
    uneven = a_fault((), cause="load_imbalance", lost_fraction=0.2)
    varied = replace(a_truth(), inherent=(uneven,))
    said = a_verdict(cause="load_imbalance")
    assert score(varied, JOB, a_diagnosis(said)).alarms == 0
    assert is_right(varied, JOB, said)
    assert score(varied, JOB, a_diagnosis()).alarms == 0
    assert score(a_truth(), JOB, a_diagnosis(said)).alarms == 1
    assert score(varied, JOB, a_diagnosis(a_verdict(cause="data_load"))).alarms == 1


def test_a_fault_is_found_behind_what_the_job_loses_by_its_own_nature() -> None:
    uneven = a_fault((), cause="load_imbalance", lost_fraction=0.2)
    truth = replace(a_truth(a_fault((3,))), inherent=(uneven,))
    said = a_diagnosis(a_verdict(cause="load_imbalance"), a_verdict(3))
    assert score(truth, JOB, said).found

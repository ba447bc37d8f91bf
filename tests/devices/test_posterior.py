"""The arithmetic of the device ledger, worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stepscope.devices import Standing, Used, standings
from stepscope.devices.constants import (
    DRAIN,
    HALF_LIFE_DAYS,
    LEAST,
    LEAST_OF_A_JOB,
    MOST_OF_A_JOB,
    PRIOR,
    blamed_log_odds,
    healthy_log_odds,
)
from stepscope.devices.evidence import JobEvidence
from tests.devices.jobs import CABLE, CPU, DAY_NS, GPU, HOST, NIC, OTHER, T0, a_job, blame

PRIOR_ODDS = 1 / 99
ONE = 0.5 / (0.95 * 0.01 + 0.05 * 0.99)
"""The likelihood ratio of the most certain verdict: 0.5 / 0.059 = 8.47."""


def after(jobs: list[JobEvidence], days: float = 0.0) -> dict[Used, Standing]:
    """All devices some days after the last job."""
    found = standings(jobs, jobs[-1].until_ns + int(days * DAY_NS))
    return {one.device: one for one in found}


def probability(odds: float) -> float:
    return odds / (1 + odds)


def test_what_one_verdict_says() -> None:
    assert math.exp(blamed_log_odds(0.96)) == pytest.approx(ONE) == pytest.approx(8.47, abs=0.01)
    assert math.exp(blamed_log_odds(0.7)) == pytest.approx(0.5 / (0.7 * 0.01 + 0.3 * 0.99))
    assert math.exp(blamed_log_odds(0.95, 3)) == pytest.approx(0.5 / (0.95 * 0.03 + 0.05 * 0.97))
    assert blamed_log_odds(0.5) == pytest.approx(0.0)
    assert blamed_log_odds(0.1) == 0.0, "a suspect is not cleared by being suspected"


def test_what_a_good_run_says() -> None:
    assert math.exp(healthy_log_odds(1e9)) == pytest.approx(0.5 / 0.99), "half of the odds"
    assert math.exp(healthy_log_odds(300)) == pytest.approx(0.75 / 0.995), "half is seen by then"
    assert math.exp(healthy_log_odds(1e9, 0.25)) == pytest.approx(0.75 / 0.995), "of a cable"
    assert healthy_log_odds(0) == 0.0
    assert healthy_log_odds(1e9) == pytest.approx(LEAST_OF_A_JOB)


def test_one_job_never_drains_and_three_do() -> None:
    bad = [a_job(f"job-{at}", 0, blame(1.0, (GPU, 1.0))) for at in range(3)]
    assert after(bad[:1])[GPU].probability == pytest.approx(probability(PRIOR_ODDS * ONE))
    assert after(bad[:1])[GPU].advice == "watch"
    assert after(bad[:2])[GPU].probability < DRAIN
    three = after(bad)[GPU]
    assert three.probability == pytest.approx(probability(PRIOR_ODDS * ONE**3))
    assert (three.advice, three.bad, three.used) == ("drain", 3, 3)


def test_a_device_that_was_bad_in_three_jobs_is_first_in_the_fourth() -> None:
    jobs = [a_job(f"job-{at}", at, blame(0.96, (GPU, 0.96), (HOST, 0.04)), healthy=(OTHER, NIC))
            for at in range(3)]  # fmt: skip
    beside = blame(0.96, (OTHER, 0.96), (HOST, 0.04))
    for fourth in (a_job("job-3", 3, healthy=(GPU, OTHER)), a_job("job-3", 3, beside)):
        worst = standings([*jobs, fourth], T0 + 3 * DAY_NS)[0]
        assert (worst.device, worst.bad, worst.advice) == (GPU, 3, "drain")


def test_evidence_decays_by_half_in_two_weeks() -> None:
    jobs = [a_job("a", 0, blame(1.0, (GPU, 1.0))), a_job("b", 14, blame(1.0, (GPU, 1.0)))]
    assert HALF_LIFE_DAYS == 14
    assert after(jobs)[GPU].log_odds == pytest.approx(1.5 * math.log(ONE))
    assert after(jobs, 14)[GPU].log_odds == pytest.approx(0.75 * math.log(ONE))
    assert after(jobs, 1000)[GPU].probability == pytest.approx(PRIOR), "all is forgotten"


def test_a_clock_ahead_of_ours_is_no_advantage() -> None:
    job = a_job("a", 5, blame(1.0, (GPU, 1.0)))
    assert standings([job], T0)[0].log_odds == pytest.approx(math.log(ONE))


def test_a_long_healthy_past_does_not_hide_a_device_that_becomes_bad() -> None:
    jobs = [a_job(f"good-{at}", 0, healthy=(GPU,)) for at in range(200)]
    assert after(jobs)[GPU].log_odds == LEAST
    jobs += [a_job(f"bad-{at}", 0, blame(1.0, (GPU, 1.0))) for at in range(3)]
    assert after(jobs)[GPU].probability == pytest.approx(probability(PRIOR_ODDS / 3 * ONE**3))
    assert after(jobs)[GPU].advice == "drain"


def test_seven_healthy_jobs_clear_a_device_that_was_repaired() -> None:
    jobs = [a_job(f"bad-{at}", 0, blame(1.0, (GPU, 1.0))) for at in range(50)]
    assert after(jobs)[GPU].probability == pytest.approx(0.99)
    jobs += [a_job(f"good-{at}", 0, healthy=(GPU,)) for at in range(7)]
    assert after(jobs[:-1])[GPU].advice == "drain"
    assert after(jobs)[GPU].advice == "watch"


def test_mediocre_confidence_takes_more_jobs() -> None:
    jobs = [a_job(f"job-{at}", 0, blame(0.7, (GPU, 1.0))) for at in range(10)]
    drained = [after(jobs[:n])[GPU].advice == "drain" for n in range(1, 11)]
    assert drained.index(True) + 1 == 10  # 10 times 0.50 is the first above 4.6


def test_several_verdicts_of_one_job_count_once() -> None:
    job = a_job("a", 0, blame(1.0, (GPU, 1.0)), blame(0.8, (GPU, 1.0)))
    assert after([job])[GPU].log_odds == pytest.approx(MOST_OF_A_JOB)
    assert after([job])[GPU].bad == 1


def test_devices_that_are_always_suspected_together_share_the_blame() -> None:
    jobs = [a_job(f"job-{at}", 0, blame(0.97, (CABLE, 0.7), (NIC, 0.3), cause="network"))
            for at in range(4)]  # fmt: skip
    found, two = after(jobs), 0.5 / (0.95 * 0.02 + 0.05 * 0.98)
    place = probability(PRIOR_ODDS * two**4)
    assert found[CABLE].probability == pytest.approx(PRIOR + (place - PRIOR) * 0.7)
    assert found[NIC].probability == pytest.approx(PRIOR + (place - PRIOR) * 0.3)
    assert (found[CABLE].bad, found[NIC].bad) == (4, 0)


def test_what_the_suspects_of_several_jobs_have_in_common_explains_them() -> None:
    others = [Used("nic", f"host-{at}/nic-0") for at in range(2, 6)]
    jobs = [a_job(f"job-{at}", 0, blame(0.97, (NIC, 0.5), (other, 0.5))) for at, other in
            enumerate(others)]  # fmt: skip
    found = after(jobs)
    assert found[NIC].advice == "drain"
    assert all(found[other].advice == "fine" for other in others)


def test_a_host_is_blamed_if_its_devices_take_turns() -> None:
    gpus = [Used("gpu", f"host-0/gpu-{at}") for at in range(4)]
    turns = after([a_job(f"job-{at}", 0, blame(1.0, (gpu, 0.96), (HOST, 0.04)))
                   for at, gpu in enumerate(gpus)])  # fmt: skip
    assert turns[HOST].advice == "drain"
    assert not any(turns[gpu].advice == "drain" for gpu in gpus)
    same = after([a_job(f"job-{at}", 0, blame(1.0, (gpus[0], 0.96), (HOST, 0.04)))
                  for at in range(4)])  # fmt: skip
    assert same[gpus[0]].advice == "drain"
    assert same[HOST].advice == "fine"


def test_a_job_that_says_nothing_about_a_device_used_it_all_the_same() -> None:
    jobs = [a_job("a", 0, blame(1.0, (GPU, 1.0))), replace(a_job("b", 14), unjudged=(GPU,))]
    one = after(jobs)[GPU]
    assert one.log_odds == pytest.approx(0.5 * math.log(ONE))
    assert (one.used, one.bad, one.last_used_ns) == (2, 1, T0 + 14 * DAY_NS)


def test_the_worst_come_first_and_devices_keep_their_newest_name() -> None:
    moved = Used("gpu", "host-9/gpu-0", GPU.id)
    jobs = [a_job("a", 0, healthy=(CPU, GPU)), a_job("b", 1, blame(1.0, (moved, 1.0)))]
    found = standings(jobs, T0 + DAY_NS)
    assert [(one.device.name, one.used) for one in found] == [
        ("host-9/gpu-0", 2),
        ("host-0/cpu", 1),
    ]
    assert found[0].causes == {"compute": 1}
    assert (found[0].last_bad_ns, found[1].last_bad_ns) == (T0 + DAY_NS, None)

"""A port that goes down on the host of a slow device is not what is wrong (ARGUS, section 9.5)."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.window import Strings, Table, Window

from .jobs import Fault, a_job, put

CULPRIT, ONSET = 2, 40


def with_event(job: Window, metric: str, rank: int) -> Window:
    """A counter that is above zero on one rank from the onset on."""
    steps, hardware = job.tables["steps"], job.tables["hardware"]
    since = int(steps.ints("start_ns")[steps.ints("step") == ONSET].min())
    mine = hardware.strings("metric").equals("proc_stopped") & (hardware.ints("rank") == rank)
    metrics = [
        metric if hit else one
        for hit, one in zip(
            mine, (hardware.strings("metric")[at] for at in range(len(hardware))), strict=True
        )
    ]
    rose = mine & (hardware.ints("ts_ns") >= since)
    value = np.where(mine, rose.astype(np.float64), hardware.floats("value"))
    columns = {**hardware.columns, "metric": Strings.of(metrics), "value": value}
    return put(job, hardware=Table(columns))


def the_verdict(job: Window) -> Verdict:
    (verdict,) = diagnose(job).verdicts
    assert verdict.ranks == (CULPRIT,)
    return verdict


def slow_job() -> Window:
    slow = Fault((CULPRIT,), "backward-compute", ONSET, times=1.8)
    return a_job(ranks=12, steps=90, faults=[slow])


def symptoms(verdict: Verdict) -> list[str]:
    return [one.detail for one in verdict.evidence if one.method == "symptoms"]


def test_a_port_that_goes_down_beside_slow_computing_is_no_cause() -> None:
    verdict = the_verdict(with_event(slow_job(), "nic_port_down", CULPRIT))
    (detail,) = symptoms(verdict)
    assert "nic_port_down" in detail
    assert verdict.advice.endswith("nic_port_down on its hosts is not the cause")
    assert verdict.cause != "network"


def test_other_counters_are_no_alarms_of_the_network() -> None:
    assert not symptoms(the_verdict(with_event(slow_job(), "ecc_dbe_errors", CULPRIT)))


def test_without_an_event_nothing_is_said() -> None:
    assert not symptoms(the_verdict(slow_job()))

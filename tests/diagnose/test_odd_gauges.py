"""Jobs of which only steps and gauges were recorded: a device that its gauges single out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.network.counters import raised_counters
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import Window

from .jobs import MS, START, a_table

HOSTS, EACH, STEPS, MS_PER_STEP, SINCE = 4, 4, 80, 1000, 40
RANKS = HOSTS * EACH
Gauge = Callable[[int, int], tuple[str, float]]
"""By rank and step: the metric, and its value."""


def the_hosts() -> tuple[Host, ...]:
    at = range(EACH)
    return tuple(
        Host(f"h{host}", tuple(host * EACH + one for one in at),
             tuple(f"nic-{one}" for one in at), tuple(f"gpu-{one}" for one in at))
        for host in range(HOSTS)
    )  # fmt: skip


def a_run(gauge: Gauge, rise: float = 1.0, every: int = 1) -> Diagnosis:
    return diagnose(gauged(gauge, rise, every))


def gauged(gauge: Gauge, rise: float = 1.0, every: int = 1) -> Window:
    """Steps of one length for all ranks, longer by `rise` since a step, all or every few of them;
    each rank has a gauge."""
    random, steps, samples, now = np.random.default_rng(0), [], [], START
    for step in range(STEPS):
        longer = step >= SINCE and (step - SINCE) % every == 0
        took = MS_PER_STEP * (rise if longer else 1.0) * random.normal(1, 0.005)
        for rank in range(RANKS):
            steps.append((rank, step, now, int(took * MS)))
            metric, value = gauge(rank, step)
            name = f"{metric}.nic-{rank % EACH}" if metric.startswith("nic") else metric
            at = -1 if metric.startswith("nic") else rank
            samples.append((at, f"h{rank // EACH}", name, now + MS, value))
        now += int(took * MS)
    tables = {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "hardware": a_table("rank host metric ts_ns value", samples),
    }
    return Window(Job("gauges", RANKS, hosts=the_hosts()), tables)


def clocks(*low: int, at: float = 1500.0) -> Gauge:
    return lambda rank, step: ("sm_clock_mhz", at if rank in low else 1980.0 - rank % 3)


def errors(rank: int, since: int) -> Gauge:
    return lambda one, step: ("nic_errors", 300.0 if one == rank and step >= since else 0.0)


@pytest.mark.parametrize("low", [(5,), (8, 9, 10, 11)])
def test_a_device_or_a_host_at_a_low_clock_is_a_suspect(low: tuple[int, ...]) -> None:
    (verdict,) = a_run(clocks(*low)).verdicts
    assert (verdict.ranks, verdict.cause, verdict.is_suspect) == (low, "compute", True)


def test_devices_here_and_there_are_not_one_fault() -> None:
    assert a_run(clocks(1, 6, 11)).verdicts == ()


def test_clocks_differ_by_a_little_everywhere() -> None:
    assert a_run(clocks(5, at=1930.0)).verdicts == ()


def test_an_adapter_whose_errors_begin_with_the_long_steps_is_a_suspect() -> None:
    found = a_run(errors(6, SINCE), rise=1.4)
    (verdict,) = found.verdicts
    assert (verdict.ranks, verdict.cause, verdict.is_suspect) == ((6,), "network", True)
    assert [one.name for one in verdict.devices] == ["h1/nic-2"]
    assert verdict.lost_fraction == pytest.approx(0.17, abs=0.03)


def test_an_adapter_whose_errors_come_with_every_long_step_is_suspected_beside_their_period() -> (
    None
):
    """That steps are long is sure, and that the adapter is why is not."""

    def now_and_then(rank: int, step: int) -> tuple[str, float]:
        return "nic_errors", 300.0 * (rank == 6 and step >= SINCE and (step - SINCE) % 4 == 0)

    (alone,) = a_run(lambda *_: ("nic_errors", 0.0), 3.0, every=4).verdicts
    assert "every 4 steps" in alone.summary and not alone.ranks and not alone.is_suspect
    lost, suspect = a_run(now_and_then, rise=3.0, every=4).verdicts
    assert (lost.ranks, lost.is_suspect) == ((), False)
    assert (suspect.ranks, suspect.is_suspect) == ((6,), True)


@pytest.mark.parametrize(("since", "rise"), [(SINCE, 1.0), (0, 1.4), (15, 1.4)])
def test_errors_are_none_without_lost_time_or_at_other_times(since: int, rise: float) -> None:
    assert not any(one.ranks for one in a_run(errors(6, since), rise).verdicts)


def test_errors_before_the_judged_steps_do_not_acquit_an_adapter_that_is_always_slow() -> None:
    """Who is slow from the first step on counts errors while the job warms up as well."""
    job = Observed(gauged(errors(5, since=0)))
    judged = np.arange(STEPS) >= job.line.warm_up
    assert job.line.warm_up > 0
    (found,) = raised_counters(job, judged)
    assert (found.metric, np.flatnonzero(found.rows).tolist()) == ("nic_errors", [5])
    assert raised_counters(job, judged & (np.arange(STEPS) >= SINCE)) == []


def test_what_an_adapter_says_more_than_is_found_among_the_candidates() -> None:
    found = a_run(errors(6, SINCE), rise=2.5)
    assert [one.ranks for one in found.verdicts] == [(6,)]
    assert any("names a device" in decision.says
               for candidate in found.candidates for decision in candidate.decisions)  # fmt: skip

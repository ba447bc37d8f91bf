"""Hosts whose ranks may use little processor time: who is named, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from stepscope.diagnose.decide.starved import waiting_for_starved, with_measured_loss
from stepscope.diagnose.finding import Evidence, Finding, Slowdown, SlowLink, Verdict
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host
from stepscope.window import Floats, Strings, Window

from .bucket_jobs import bucket_job, lasts_ns
from .jobs import Fault, a_job, a_table, put, with_samples


def on_two_hosts(window: Window, *throttled: int) -> Window:
    """Ranks 0 and 1, and ranks 2 and 3, share a host; a quota stops some ranks half of the time."""
    hosts = (Host("host-000", (0, 1)), Host("host-001", (2, 3)))
    window = replace(window, job=replace(window.job, hosts=hosts))
    hardware = window.tables["hardware"]
    metrics = hardware.strings("metric")
    renamed = tuple("cpu_throttled" if one == "run_delay" else one for one in metrics.values)
    window = put(window, hardware=hardware.with_column("metric", Strings(metrics.codes, renamed)))
    return with_samples(window, "cpu_throttled", lambda rank, _: 0.5 * (rank in throttled))


def the_verdict(window: Window) -> Verdict:
    (verdict,) = diagnose(window).verdicts
    return verdict


def test_a_quota_is_said_to_be_one_and_what_to_do() -> None:
    slow = Fault((2, 3), None, 50, times=1.6, computes=False)
    verdict = the_verdict(on_two_hosts(a_job(faults=[slow]), 2, 3))
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("host", (2, 3), ("host-001",))
    assert "a quota limits their processor time" in verdict.summary
    assert "cpu.max" in verdict.advice
    assert "cpu-quota" in {one.method for one in verdict.evidence}


def test_the_host_is_named_with_all_ranks_that_the_quota_stops() -> None:
    slow = Fault((2,), None, 50, times=1.6, computes=False)
    assert the_verdict(on_two_hosts(a_job(faults=[slow]), 2, 3)).ranks == (2, 3)


def test_its_ranks_may_be_late_in_turns() -> None:
    first = Fault((2,), None, 50, 110, times=1.6, computes=False)
    second = Fault((3,), None, 110, times=1.6, computes=False)
    verdict = the_verdict(on_two_hosts(a_job(faults=[first, second]), 2, 3))
    assert (verdict.ranks, verdict.cause) == ((2, 3), "host")
    assert verdict.steps is not None and verdict.steps[0] < 60 and verdict.steps[1] == 199


def test_a_quota_that_stops_all_ranks_alike_explains_no_slow_one() -> None:
    slow = Fault((2,), None, 50, times=1.6)
    verdict = the_verdict(on_two_hosts(a_job(faults=[slow]), 0, 1, 2, 3))
    assert verdict.ranks == (2,)
    assert "quota" not in verdict.summary


def observed() -> Observed:
    """Steps 60 to 109 take twice as long, because of ranks 2 and 3."""
    longer = Fault((2, 3), None, 60, 110, times=2.0)
    return Observed(on_two_hosts(a_job(noise=0.02, faults=[longer])))


def starved(*ranks: int, **changed: object) -> Slowdown:
    found = Slowdown("argus-l2", "host", "", ranks=ranks, steps=(60, 109), lost_fraction=0.1)
    return replace(found, **changed)  # type: ignore[arg-type]


def test_what_a_starved_host_costs_is_measured_where_other_steps_show_it() -> None:
    (found,) = with_measured_loss(observed(), [starved(2, 3)])
    assert found.lost_fraction == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("stopped", "costs"), [(0.5, 0.2), (0.15, 0.15), (0.0, 0.1)])
def test_a_quota_from_the_first_step_on_costs_what_steps_exceed_the_fastest(
    stopped: float, costs: float
) -> None:
    """A quarter of the steps takes twice as long; no longer than the host is stopped is lost."""
    shown = Evidence("cpu-quota", "", {"throttled": stopped})
    (found,) = with_measured_loss(observed(), [starved(2, 3, steps=(0, 199), supporting=(shown,))])
    assert found.lost_fraction == pytest.approx(costs, abs=0.03)


@pytest.mark.parametrize(("is_held", "throttled"), [
    (lambda step, at: (step + at) % 3 > 0, 0.8),
    (lambda step, at: step % 12 > 0, 0.95),
])  # fmt: skip
def test_where_hardly_a_step_is_without_it_the_fastest_transfers_show_what_it_costs(
    is_held: Callable[[int, int], bool], throttled: float
) -> None:
    """All transfers but one in three, or twelve, take 40 ms longer: a quota stops a host."""

    def job(more_ms: float) -> Window:
        return bucket_job(lambda step, at: 5 + more_ms * is_held(step, at), (0.0,) * 4)

    stopped, usual = job(40.0), job(0.0)
    shown = Evidence("cpu-quota", "", {"throttled": throttled})
    slow = starved(2, 3, steps=(0, 59), lost_fraction=0.02, supporting=(shown,))
    (found,) = with_measured_loss(Observed(stopped), [slow])
    costs = 1 - lasts_ns(usual) / lasts_ns(stopped)
    assert found.lost_fraction == pytest.approx(0.02 + costs, abs=0.05)


@pytest.mark.parametrize("waits", [0.9, 0.22, 0.02])
def test_transfers_cost_no_more_than_the_threads_that_move_them_wait(waits: float) -> None:
    """Other processes run from the first step on, so a third of the transfers are fast, no step."""

    def job(more_ms: float) -> Window:
        return bucket_job(lambda step, at: 5 + more_ms * ((step + at) % 3 > 0), (0.0,) * 4)

    crowded, usual = job(40.0), job(0.0)
    ranks, begins = (crowded.tables["steps"].ints(one) for one in ("rank", "start_ns"))
    rows = [(rank, "host-0", "comm_run_delay", at, waits if rank == 3 else 0.02)
            for rank, at in zip(ranks, begins, strict=True)]  # fmt: skip
    window = put(crowded, hardware=a_table("rank host metric ts_ns value", rows))
    slow = starved(2, 3, cause="contention", steps=(0, 59), lost_fraction=0.03)
    (found,) = with_measured_loss(Observed(window), [slow])
    longer = 1 - lasts_ns(usual) / lasts_ns(crowded)
    assert found.lost_fraction == pytest.approx(0.03 + min(longer, waits - 0.02), abs=0.05)


@pytest.mark.parametrize("waits", [0.9, 0.02])
def test_transfers_that_wait_for_a_processor_are_no_slow_link(waits: float) -> None:
    """In a ring the next host seems to be slow, or all of them; costs beyond what is waited are."""
    job = bucket_job(lambda step, at: 5.0, (0.0,) * 4)
    ranks, begins = (job.tables["steps"].ints(one) for one in ("rank", "start_ns"))
    rows = [(rank, "host-0", "comm_run_delay", at, waits if rank == 3 else 0.02)
            for rank, at in zip(ranks, begins, strict=True)]  # fmt: skip
    window = put(job, hardware=a_table("rank host metric ts_ns value", rows))
    host = starved(2, 3, cause="contention", steps=(20, 59), lost_fraction=0.2)
    links = [SlowLink("slow-transfers", "network", "", who, steps=(22, 59), lost_fraction=0.3)
             for who in ((0, 1), ())]  # fmt: skip
    before = replace(links[0], steps=(0, 30))
    dear = replace(links[0], lost_fraction=0.95)
    found = waiting_for_starved(Observed(window), [*links, before, dear], [host])
    assert found == ([(link, host) for link in links] if waits > 0.5 else [])
    compute = starved(2, 3, cause="compute", steps=(20, 59))
    assert waiting_for_starved(Observed(window), links, [compute]) == []


def test_a_quota_that_shows_in_single_steps_stops_its_host_in_the_others_too() -> None:
    shown = Evidence("cpu-quota", "", {"throttled": 0.5})
    seldom = starved(2, 3, steps=(70, 90), spikes=2, lost_fraction=0.02)
    (found,) = with_measured_loss(observed(), [replace(seldom, supporting=(shown,))])
    assert found.lost_fraction == pytest.approx(0.2, abs=0.03)
    assert with_measured_loss(observed(), [seldom]) == [seldom], "without a quota these may be all"


@pytest.mark.parametrize(
    "findings",
    [
        [starved(2)],
        [starved(2, 3, cause="compute")],
        [starved(2, 3), Finding("slow-link", "network", "", steps=(80, 120))],
        [starved(2, 3, steps=(5, 199))],
        [starved(2, 3, lost_fraction=0.6)],
    ],
)
def test_other_costs_stay_as_they_are(findings: list[Finding]) -> None:
    """One rank, its device, beside something else, in all steps, or more than was measured."""
    assert with_measured_loss(observed(), findings) == findings


def longer(first: int, stop: int) -> Callable[[Floats], Floats]:
    """Forward passes of all ranks take 25 ms longer in some steps."""

    def in_these(own: Floats) -> Floats:
        found = own.copy()
        found[1, :, first:stop] += 25e6
        return found

    return in_these


def test_a_quota_is_named_where_no_rank_stands_out() -> None:
    """As in pipelines: who waits for whom changes, and only the job's steps are longer."""

    window = on_two_hosts(a_job(noise=0.02, edit=longer(60, 140), stacks=False))
    begin, end = (steps_at(window, step) for step in (60, 140))
    stopped = with_samples(window, "cpu_throttled", lambda rank, at: (
        0.4 if rank in (2, 3) and begin <= at < end else 0.0))  # fmt: skip
    first = diagnose(stopped).verdicts[0]
    assert (first.ranks, first.cause, first.hosts) == ((2, 3), "host", ("host-001",))
    assert first.steps is not None and abs(first.steps[0] - 60) <= 10
    assert first.lost_fraction == pytest.approx(25 / 113, abs=0.06)
    assert "a quota of processor time stops ranks 2 and 3" in first.summary
    assert "cpu.max" in first.advice

    shorter = with_samples(window, "cpu_throttled", lambda rank, at: (
        0.4 if rank in (2, 3) and not begin <= at < end else 0.0))  # fmt: skip
    assert all(one.ranks == () for one in diagnose(shorter).verdicts), "it costs nothing"


def test_a_quota_that_shows_in_few_steps_of_one_rank_explains_the_longer_ones() -> None:
    """Its host is slow in its part of every transfer, and only now and then by its own time."""
    late = [Fault((2,), None, at, at + 1, times=1.8, computes=False) for at in range(62, 140, 4)]
    window = on_two_hosts(a_job(noise=0.02, edit=longer(60, 140), faults=late, stacks=False))
    begin, end = (steps_at(window, step) for step in (60, 140))
    stopped = with_samples(window, "cpu_throttled", lambda rank, at: (
        0.4 if rank in (2, 3) and begin <= at < end else 0.0))  # fmt: skip
    verdict = diagnose(stopped).verdicts[0]
    assert (verdict.ranks, verdict.cause) == ((2, 3), "host")
    assert verdict.steps is not None and abs(verdict.steps[0] - 60) <= 10
    assert verdict.lost_fraction == pytest.approx(0.31, abs=0.06)


@pytest.mark.parametrize(("taken", "cause"), [(0.0, "host"), (1.5, "contention")])
def test_a_host_whose_ranks_wait_for_a_processor_while_steps_are_longer(
    taken: float, cause: str
) -> None:
    """Passes take longer on all ranks, for nothing tells waiting for others from working."""

    window = a_job(noise=0.02, edit=longer(60, 140))
    window = replace(window, job=on_two_hosts(window).job)
    begin, end = (steps_at(window, step) for step in (60, 140))

    def crowded(share: float) -> Window:
        waits = with_samples(window, "run_delay", lambda rank, at: (
            share if rank in (2, 3) and begin <= at < end else 0.02))  # fmt: skip
        return with_samples(waits, "stranger_cpu_util", lambda rank, at: (
            taken if rank in (2, 3) else 0.0))  # fmt: skip

    named = [one for one in diagnose(crowded(0.4)).verdicts if one.ranks]
    assert [(one.ranks, one.cause) for one in named] == [((2, 3), cause)]
    assert "ranks 2 and 3 wait for a processor for " in named[0].summary
    assert not [one for one in diagnose(crowded(0.08)).verdicts if one.ranks]


def test_where_all_hosts_wait_for_processors_none_is_named_for_a_second_of_more() -> None:
    """More busy threads than processors: now one host waits more, now the other; steps vary."""

    window = a_job(noise=0.02, edit=longer(100, 120))
    window = replace(window, job=on_two_hosts(window).job)
    begin, end = (steps_at(window, step) for step in (100, 120))
    chunk = (end - begin) // 10

    def waits(rank: int, at: int) -> float:
        now_and_then = Random(f"{rank // 2} {at // chunk}").uniform(0.08, 0.32)
        return now_and_then if not begin <= at < end else 0.3 if rank in (2, 3) else 0.14

    job = Observed(with_samples(window, "run_delay", waits))
    beyond = job.hardware("run_delay", 100, 120)
    assert beyond[2:].min() - beyond[:2].max() > 0.1, "so much does the one wait beyond the other"
    assert not [one for one in diagnose(job.window).verdicts if one.ranks]


def steps_at(window: Window, step: int) -> int:
    """When a step begins."""
    steps = window.tables["steps"]
    return int(steps.ints("start_ns")[steps.ints("step") == step].min())

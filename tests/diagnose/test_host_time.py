"""Hosts that are late: what counts is how long a host works, not how long its device waits."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.decide.late import with_cause
from stepscope.diagnose.detect.hosts.host_time import most_lost
from stepscope.diagnose.detect.hosts.slow_hosts import SlowHosts
from stepscope.diagnose.finding import Slowdown, Verdict
from stepscope.diagnose.method import SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.window import Floats, Strings, Table, Window, joined

from .jobs import MS, put
from .traces import Piece, a_trace

RANKS, STEPS, LATE = 8, 5, 2
USUAL_MS = 6.0


def launching(late: Window, hosts_ms: Floats) -> Window:
    """The same trace, of hosts that work for so long on each step, `[rank]` or `[rank, step]`."""
    steps = late.tables["steps"]
    rank, step = steps.ints("rank"), steps.ints("step")
    hosts_ms = np.broadcast_to(hosts_ms.reshape(RANKS, -1), (RANKS, STEPS))
    return put(late, steps=steps.with_column("host_ns", (hosts_ms[rank, step] * MS).astype(int)))


def hosts(late_ms: float) -> Floats:
    """Of ranks that differ by a percent, and of the late one."""
    times = USUAL_MS * (1 + 0.01 * np.sin(np.arange(RANKS)))
    times[LATE] = late_ms
    return times


def waits_for_one() -> Window:
    """The device of one rank waits 4 ms for its host in each step, and all others wait for it."""
    return a_trace(
        lambda rank, step: [Piece("gemm", 2.0), Piece("gemm", 1.0, 4.0 if rank == LATE else 0.0)],
        RANKS, STEPS,
    )  # fmt: skip


def accused(window: Window) -> list[Verdict]:
    return [one for one in diagnose(window).verdicts if not one.is_suspect]


def test_a_host_that_takes_longer_than_others_is_late() -> None:
    (verdict,) = accused(launching(waits_for_one(), hosts(USUAL_MS + 4)))
    assert (verdict.ranks, verdict.cause) == ((LATE,), "host")


def test_a_host_that_is_late_because_it_loads_data_is_said_to_load() -> None:
    """Its loader is called while its device still computes, and ends too late for it."""
    late = launching(waits_for_one(), hosts(USUAL_MS + 4))
    steps = late.tables["steps"]
    loading = Table({
        "rank": steps.ints("rank"), "step": steps.ints("step"), "start_ns": steps.ints("start_ns"),
        "duration_ns": np.where(steps.ints("rank") == LATE, 4 * MS, MS // 10).astype(np.int64),
        "wait_ns": np.zeros(len(steps), np.int64),
        "phase": Strings(np.zeros(len(steps), np.int32), ("data-load",)),
    })  # fmt: skip
    job = Observed(put(late, phases=joined([late.tables["phases"], loading])))
    (found,) = SlowHosts().detect(job, SoFar())
    assert (found.ranks, found.cause, found.phase) == ((LATE,), "data_loading", "data-load")


def test_who_only_began_last_is_nobodys_obstacle() -> None:
    """Its device waits for its host in every step, and all others for it; but their hosts take as
    long, and are ahead only because they began earlier."""
    assert accused(launching(waits_for_one(), hosts(USUAL_MS))) == []


def test_it_costs_no_more_than_its_host_takes_longer() -> None:
    job = Observed(launching(waits_for_one(), hosts(USUAL_MS + 1)))
    everything = np.arange(STEPS)
    lost = most_lost(job, LATE, everything, job.line.job_period_ns)
    assert lost == pytest.approx(1 / np.mean(job.line.job_period_ns / MS), rel=0.05)


def test_hosts_that_stall_now_and_then_are_not_slow() -> None:
    """In five steps the late one stalls twice; of the others some do once, and some never."""
    times = np.full((RANKS, STEPS), USUAL_MS)
    times[[0, 3, 5, 7, LATE, LATE], [1, 0, 3, 2, 0, 4]] += 1.0
    job = Observed(launching(waits_for_one(), times))
    assert most_lost(job, LATE, np.arange(STEPS), job.line.job_period_ns) == 0.0


def test_a_pause_in_one_step_has_to_cost_a_tenth() -> None:
    """Half a step is lost to it, and all steps together are 5 or 50 times as long."""
    times = np.broadcast_to(hosts(USUAL_MS)[:, None], (RANKS, STEPS)).copy()
    times[LATE, 3] += 5.0
    job = Observed(launching(waits_for_one(), times))
    part, period_ns = np.arange(STEPS), job.line.job_period_ns
    assert most_lost(job, LATE, part, period_ns) == pytest.approx(0.1, abs=0.02)
    assert most_lost(job, LATE, part, 10 * period_ns) == 0.0


def test_two_late_hosts_cost_no_more_together_than_one() -> None:
    both = a_trace(
        lambda rank, step: [Piece("gemm", 2.0), Piece("gemm", 1.0, 4.0 if rank in (2, 5) else 0)],
        RANKS, STEPS,
    )  # fmt: skip
    times = hosts(USUAL_MS + 4)
    times[5] = times[LATE]
    found = accused(launching(both, times))
    assert {rank for one in found for rank in one.ranks} == {2, 5}
    assert sum(one.lost_fraction or 0.0 for one in found) == pytest.approx(0.42, abs=0.04)


def in_turns() -> Window:
    """Devices wait for their hosts in turns: the others are ahead by then."""
    return a_trace(
        lambda rank, step: [Piece("gemm", 2.0, 1.0 + (3 * rank + 5 * step) % 4)], RANKS, STEPS,
    )  # fmt: skip


def test_a_slow_host_is_found_where_devices_of_equal_hosts_wait_for_different_times() -> None:
    (verdict,) = accused(launching(in_turns(), hosts(2 * USUAL_MS)))
    assert (verdict.ranks, verdict.cause) == ((LATE,), "host")
    assert not any(one.ranks for one in accused(launching(in_turns(), hosts(USUAL_MS))))


def test_a_slow_host_for_which_its_device_never_waits_costs_nothing() -> None:
    ahead = a_trace(lambda rank, step: [Piece("gemm", 9.0)], RANKS, STEPS)
    assert accused(launching(ahead, hosts(2 * USUAL_MS))) == []


def test_without_hosts_of_others_nothing_limits_the_cost() -> None:
    job = Observed(waits_for_one())
    assert most_lost(job, LATE, np.arange(STEPS), job.line.job_period_ns) is None


def test_loading_holds_all_ranks_though_one_is_always_last() -> None:
    """Each host loads for 4 ms of each step; all but the last one do so while they are ahead."""
    window = a_trace(
        lambda rank, step: [Piece("gemm", 3.0, 4.0 if rank == LATE else 0.0)], RANKS, STEPS
    )
    steps, phases = window.tables["steps"], window.tables["phases"]
    begin = steps.ints("start_ns") - np.where(steps.ints("rank") == LATE, 0, 4 * MS)
    loads = Table({
        **{name: steps.ints(name) for name in ("rank", "step")}, "start_ns": begin,
        "phase": Strings.of(["data-load"] * len(steps)),
        "duration_ns": np.full(len(steps), 4 * MS), "wait_ns": np.zeros(len(steps), np.int64),
    })  # fmt: skip
    late_ns = np.where(phases.ints("rank") == LATE, 4 * MS, 0)
    phases = phases.with_column("start_ns", phases.ints("start_ns") + late_ns)
    phases = phases.with_column("duration_ns", phases.ints("duration_ns") - late_ns)
    window = put(window, phases=joined([phases, loads]))
    (verdict,) = accused(launching(window, hosts(USUAL_MS)))
    assert (verdict.ranks, verdict.cause) == ((), "data_loading")
    assert verdict.lost_fraction == pytest.approx(0.4, abs=0.1)


def late_together(window: Window, hosts_ms: Floats) -> Slowdown:
    """Two ranks for which all others wait, for a fifth of their time."""
    found = Slowdown("late-alone", "host", "", (2, 3), steps=(0, 4), lost_of=(0, 4), slowdown=1.2,
                     lost_fraction=0.2)  # fmt: skip
    return with_cause(Observed(launching(window, hosts_ms)), found, ())


def test_ranks_of_a_host_that_are_late_together_cost_what_their_host_takes_longer() -> None:
    waits = a_trace(
        lambda rank, step: [Piece("gemm", 2.0), Piece("gemm", 1.0, 4.0 if rank in (2, 3) else 0)],
        RANKS, STEPS,
    )  # fmt: skip
    usual, slow = hosts(USUAL_MS), hosts(2 * USUAL_MS)
    slow[3] = slow[2]
    assert late_together(waits, usual).lost_fraction == 0.0
    assert late_together(waits, slow).lost_fraction == 0.2


def test_devices_that_do_not_wait_for_their_host_are_late_for_another_reason() -> None:
    """Data moves slowly between them, so that they come late to what they do with all others."""
    computes = a_trace(lambda rank, step: [Piece("gemm", 9.0)], RANKS, STEPS)
    assert late_together(computes, hosts(USUAL_MS)).cause == "unknown"

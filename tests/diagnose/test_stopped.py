"""Processes that were stopped for a while and went on: nothing but their state shows it."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.window import Window

from .jobs import MS, Fault, a_job, put, with_samples

AT, SECONDS, CULPRIT = 60, 8, 2


def begin_ns(job: Window, step: int) -> int:
    steps = job.tables["steps"]
    return int(steps.ints("start_ns")[steps.ints("step") == step].min())


def a_long_step() -> Window:
    """Step 60 takes eight seconds on all ranks, and no rank has own time beyond the others'."""
    whom = (0, 1, 2, 3)
    return a_job(faults=[Fault(whom, "backward-compute", AT, AT + 1, ms=SECONDS * 1000)],
                 stacks=False)  # fmt: skip


def stopped(job: Window, *ranks: int, seconds: float = SECONDS) -> Window:
    """All samples from step 60 on find these ranks stopped, until they go on."""
    begin = begin_ns(job, AT)
    end = begin + int(seconds * 1000 * MS)
    return with_samples(job, "proc_stopped", lambda rank, time: (
        rank in ranks and begin <= time < end))  # fmt: skip


def test_a_rank_that_was_stopped_is_named_after_it_went_on() -> None:
    (verdict,) = diagnose(stopped(a_long_step(), CULPRIT)).verdicts
    assert (verdict.ranks, verdict.cause, verdict.kind) == ((CULPRIT,), "host", "slowdown")
    assert verdict.summary.startswith("rank 2 stood still for ")
    assert verdict.summary.endswith("s in step 60: its process was stopped, and went on")
    assert verdict.steps == (AT, AT) and verdict.devices == ()
    assert verdict.time_ns is not None
    assert SECONDS - 2 <= (verdict.time_ns[1] - verdict.time_ns[0]) / 1e9 <= SECONDS + 2
    assert 0.25 < (verdict.lost_fraction or 0) < 0.4
    assert "who stopped and continued rank 2" in verdict.advice


def test_without_a_stop_the_same_step_accuses_nobody() -> None:
    assert not [one for one in diagnose(stopped(a_long_step())).verdicts if one.ranks]


def test_a_job_that_was_suspended_as_a_whole_accuses_no_rank() -> None:
    (verdict,) = diagnose(stopped(a_long_step(), 0, 1, 2, 3)).verdicts
    assert verdict.ranks == ()
    assert "all ranks stood still" in verdict.summary
    assert "who stopped and continued the ranks" in verdict.advice


def test_a_rank_whose_own_time_shows_the_stop_is_said_to_have_been_stopped() -> None:
    job = a_job(faults=[Fault((CULPRIT,), "backward-compute", AT, AT + 1, ms=SECONDS * 1000,
                              computes=False)], stacks=False)  # fmt: skip
    (verdict,) = diagnose(stopped(job, CULPRIT)).verdicts
    assert (verdict.ranks, verdict.cause) == ((CULPRIT,), "host")
    assert "its process was stopped" in verdict.summary
    assert verdict.devices == ()


def test_what_a_stop_costs_is_not_lost_twice() -> None:
    """All ranks take longer now and then, too: that is a loss of its own."""
    hiccups = [Fault((0, 1, 2, 3), "forward-compute", at, at + 1, ms=4_000)
               for at in (25, 37, 78, 90, 107)]  # fmt: skip
    stall = Fault((0, 1, 2, 3), "backward-compute", AT, AT + 1, ms=SECONDS * 1000)
    verdicts = diagnose(stopped(a_job(faults=[*hiccups, stall], stacks=False), CULPRIT)).verdicts
    stop, other = sorted(verdicts, key=lambda one: not one.ranks)
    assert (stop.ranks, other.ranks) == ((CULPRIT,), ())
    assert (other.lost_fraction or 0) / (stop.lost_fraction or 1) < 3


def test_a_single_look_that_found_it_stopped_is_no_stop() -> None:
    """A debugger, or py-spy, stops a process for a moment."""
    job = a_long_step()
    hardware = stopped(job, CULPRIT).tables["hardware"]
    hit = hardware.strings("metric").equals("proc_stopped") & (hardware.floats("value") > 0)
    value = np.where(np.cumsum(hit) == 1, hardware.floats("value"), 0.0)
    value = np.where(hardware.strings("metric").equals("proc_stopped"), value,
                     hardware.floats("value"))  # fmt: skip
    found = diagnose(put(job, hardware=hardware.with_column("value", value)))
    assert not [one for one in found.verdicts if one.ranks]

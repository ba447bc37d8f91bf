"""Phases of which nobody said that they contain waiting, and which end with an operator: backward
of DDP lasts until the gradients of the slowest rank are there."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.numeric.stats import column_median
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.hidden_work import late_within
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, Fault, a_job, a_table

RANKS = tuple(range(8))
BUCKETS = 4


def a_ddp_job(backward_ms: int = 40, slow_from: int = 0, steps: int = 60) -> Window:
    """Rank 3 computes 1.5 times as long; the others wait for its gradients at the end of their
    backward."""
    rows, calls, ends, clock = [], [], [], START
    for step in range(steps):
        times = [1.5 if rank == 3 and step >= slow_from else 1.0 for rank in RANKS]
        passes = [clock + int(each * 20 * MS) for each in times]
        arrive = [[begin + int(each * backward_ms * MS) * (at + 1) // BUCKETS
                   for begin, each in zip(passes, times, strict=True)]
                  for at in range(BUCKETS)]  # fmt: skip
        end = 0
        for at, times_ns in enumerate(arrive):
            end, free = max(*times_ns, end) + 2 * MS, end
            calls += [(rank, step, step * BUCKETS + at, max(time, free), end)
                      for rank, time in enumerate(times_ns)]  # fmt: skip
        for rank, begin in enumerate(passes):
            rows += [(rank, step, "fwd", clock, begin - clock),
                     (rank, step, "bwd", begin, end - begin),
                     (rank, step, "optim", end + MS, 5 * MS)]  # fmt: skip
        ends += [(rank, step, clock, end + 6 * MS - clock) for rank in RANKS]
        clock = end + 6 * MS
    job = Job("ddp", 8, (Host("h", RANKS),), groups=(ProcessGroup("dp-0", "dp", RANKS),))
    comm = a_table("rank step seq start_ns end_ns", calls)
    told = [("dp-0", "AllReduce", -1, call[3]) for call in calls]
    named = a_table("group op peer enqueue_ns", told)
    for name in ("group", "op"):
        comm = comm.with_column(name, named.strings(name))
    for name in ("peer", "enqueue_ns"):
        comm = comm.with_column(name, named.ints(name))
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", ends),
        "phases": a_table("rank step phase start_ns duration_ns", rows),
        "comm_ops": comm,
    })  # fmt: skip


def test_what_others_wait_in_their_backward_is_no_code_that_became_slower() -> None:
    (one,) = diagnose(a_ddp_job(slow_from=30)).verdicts
    assert (one.cause, one.ranks, one.steps) == ("compute", (3,), (30, 59))
    assert one.lost_fraction == pytest.approx(30 / 98, abs=0.05)


def test_a_phase_that_ends_with_an_operator_has_no_own_time() -> None:
    job = Observed(a_ddp_job())
    assert job.own.hidden_phases == {"bwd"}
    assert np.nanmedian(job.own.of("bwd")[0]) < 10 * MS


def test_sums_of_gradients_make_nobody_late_anew() -> None:
    """Nobody stops for them, so that the others are ahead by more at each."""
    window = a_ddp_job(backward_ms=400)
    line = timeline(window)
    rows = phase_rows(window, line)
    assert rows is not None
    late = late_within(window, rows, ["bwd"])["bwd"]
    assert 100 < np.median(late[3]) / MS < 200
    assert not column_median(late).any()


def test_what_is_healed_is_the_most_that_comes_back() -> None:
    slow = Fault((5,), None, 0, times=1.3)
    (one,) = diagnose(a_job(8, 60, noise=0.01, faults=[slow])).verdicts
    assert one.lost_fraction == pytest.approx(0.3 * 86 / (1.3 * 86 + 2), abs=0.03)

"""Hosts that call operators ahead of their devices: whose call is last is not who is late."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import SlowLink
from stepscope.diagnose.run import diagnose
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER, Host, Job, ProcessGroup
from stepscope.window import Strings, Window

from .jobs import MS, START, a_table

RANKS, STEPS, LATE_HOST, SLOW = 8, 120, 5, 2


def called(ahead: bool, slow: float = 1.0, within: bool = False) -> Window:
    """Calls of one collective per step, not when it started: soon after the step began, or when its
    data was there. The calls of one host are always last, the device of another is slow.

    Args:
        within: ranks wait for their gradients at the end of backward, and it was measured how long.
    """
    random = np.random.default_rng(4)
    phases, comm, steps, now = [], [], [], START
    for step in range(STEPS):
        took = random.normal(1.0, 0.005, RANKS)
        took[SLOW] *= slow
        passes = (took[:, None] * (30 * MS, 60 * MS)).astype(np.int64)
        met = now + passes.sum(axis=1)
        left = int(met.max()) + 10 * MS
        for rank, (forward, backward) in enumerate(passes.tolist()):
            waits = left - int(met[rank])
            phases += [(rank, step, FORWARD, now, forward, 0, 0),
                       (rank, step, BACKWARD, now + forward, backward + within * waits,
                        int(within), within * waits),
                       (rank, step, OPTIMIZER, left, 5 * MS, 0, 0)]  # fmt: skip
            if not within:
                phases += [(rank, step, "dp-allreduce", int(met[rank]), waits, 1, waits)]
            early = now + MS + 20 * MS * (rank == LATE_HOST)
            comm.append((rank, step, step, early if ahead else int(met[rank])))
            steps.append((rank, step, now, left + 5 * MS - now))
        now = left + 5 * MS
    table = a_table("rank step seq enqueue_ns", comm)
    for name, text in (("group", "dp-0"), ("op", "AllReduce")):
        table = table.with_column(name, Strings.of([text] * len(table)))
    whole = tuple(range(RANKS))
    job = Job("ahead", RANKS, (Host("a", whole),), groups=(ProcessGroup("dp-0", "dp", whole),))
    return Window(job, {
        "phases": a_table("rank step phase start_ns duration_ns waits wait_ns", phases),
        "comm_ops": table,
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_slow_device_is_named_whenever_hosts_call(ahead: bool, within: bool) -> None:
    diagnosis = diagnose(called(ahead, slow=1.07, within=within))
    (verdict,) = diagnosis.verdicts
    assert verdict.ranks == (SLOW,)
    assert verdict.lost_fraction == pytest.approx(0.055, abs=0.015)
    assert all(one.rank != LATE_HOST for one in diagnosis.last_arrivals)


def test_a_host_that_calls_last_ahead_of_its_device_delays_nobody() -> None:
    diagnosis = diagnose(called(ahead=True))
    assert (diagnosis.verdicts, diagnosis.last_arrivals) == ((), ())


@pytest.mark.parametrize(("lost", "enough"), [(0.002, False), (0.012, True)])
def test_a_link_that_is_slow_in_few_steps_costs_enough_of_all_of_them(
    lost: float, enough: bool
) -> None:
    link = SlowLink("slow-link", "network", "", lost_fraction=lost, step_share=0.04)
    assert link.costs_enough == enough

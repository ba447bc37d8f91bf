"""`--explain`: what was measured of a rank that arrives last, and is not named."""

from __future__ import annotations

from stepscope.diagnose.decide.candidates import why_not
from stepscope.diagnose.finding import Decision
from stepscope.diagnose.observed import Observed
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, Fault, a_job, a_table


def followed_back(window: Window, rank: int) -> Decision:
    found = [one for one in why_not(Observed(window), rank).decisions
             if one.rule == "explained-backwards"]  # fmt: skip
    return found[0]


def test_own_work_that_takes_longer_explains_why_a_rank_is_late() -> None:
    slow = Fault((2,), "optimizer", 0, ms=50.0, every=4)
    decision = followed_back(a_job(noise=0.02, faults=[slow]), 2)
    assert decision.fired
    assert "above the median of the others, which explains this" in decision.says


def test_in_a_healthy_job_nothing_explains_who_happens_to_be_last() -> None:
    says = [followed_back(a_job(), rank).says for rank in range(4)]
    assert all("which made it late" not in one for one in says)


def test_a_rank_whose_partner_is_slow_is_late_because_it_waited() -> None:
    """Rank 1 waits 30 ms for rank 0 in their group, and then ranks 2 and 3 wait for rank 1."""
    steps: list[tuple[object, ...]] = []
    comm: list[tuple[object, ...]] = []
    for step in range(20):
        now = START + step * 100 * MS
        steps += [(rank, step, now, 100 * MS) for rank in range(4)]
        pair, met = now + 50 * MS, now + 51 * MS
        for rank, group, arrives, end in (
            (0, "tp-0", pair, pair), (1, "tp-0", pair - 30 * MS, pair), (1, "dp-0", met, met),
            (2, "dp-0", met - 30 * MS, met), (3, "dp-0", met - 31 * MS, met),
        ):  # fmt: skip
            comm.append((rank, step, group, step, "AllReduce", arrives, arrives, end + MS))
    groups = (ProcessGroup("tp-0", "tp", (0, 1)), ProcessGroup("dp-0", "dp", (1, 2, 3)))
    window = Window(Job("a-trace", 4, groups=groups), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "comm_ops": a_table("rank step group seq op enqueue_ns start_ns end_ns", comm),
    })  # fmt: skip
    assert "which made it late" in followed_back(window, 1).says

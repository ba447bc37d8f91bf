"""What slow transfers cost, by a replay of the steps at their usual speed."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.graph.step_graph import step_graph
from stepscope.diagnose.network.delay import Delay, healed_ns, lost_per_step
from stepscope.diagnose.network.edges import Ends, find_places
from stepscope.diagnose.observed import Observed
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

STEPS, SLOW, FAST, SYNC = 10, 40, 10, 5
GROUPS = (ProcessGroup("a", "tp", (0, 1)), ProcessGroup("b", "tp", (2, 3)),
          ProcessGroup("all", "dp", (0, 1, 2, 3)))  # fmt: skip


def a_job(work: int, noted_ns: int = 0) -> Observed:
    """Data moves in pairs, slowly in the first; the other pair works on; then all exchange.

    Args:
        noted_ns: how much later than it was an end is noted.
    """
    rows, steps, now = [], [], 0
    for step in range(STEPS):
        ready = max(SLOW, FAST + work)
        for group, took in ((GROUPS[0], SLOW), (GROUPS[1], FAST)):
            for rank in group.ranks:
                rows.append((rank, step, group.id, step, "AllReduce", -1, now, now + took))
                arrives = now + took + (work if group.id == "b" else 0)
                rows.append((rank, step, "all", step, "AllReduce", -1, arrives, now + ready + SYNC))
        steps += [(rank, step, START + now * MS, (ready + SYNC) * MS) for rank in range(4)]
        now += ready + SYNC
    timed = [(*row[:6], START, START + row[6] * MS, START + row[7] * MS + noted_ns)
             for row in rows]  # fmt: skip
    comm = a_table("rank step group seq op peer enqueue_ns start_ns end_ns", timed)
    spans = a_table("rank step start_ns duration_ns", steps)
    return Observed(Window(Job("job", 4, groups=GROUPS), {"comm_ops": comm, "steps": spans}))


@pytest.mark.parametrize(("work", "lost"), [(0, SLOW - FAST), (20, 10), (40, 0)])
def test_what_the_work_of_others_hides_costs_nothing(work: int, lost: int) -> None:
    job = a_job(work)
    names = job.window.tables["comm_ops"].strings("group").values
    nobody = np.full(1, -1)
    places, _ = find_places(job.window, names, Ends(np.array([names.index("a")]), nobody, nobody))
    shorter = np.zeros((1, STEPS))
    shorter[0, 5:] = 1 - FAST / SLOW
    assert healed_ns(job, places, shorter) == pytest.approx(lost * MS, abs=MS / 10)


def test_an_end_that_is_noted_a_moment_late_is_waited_for_all_the_same() -> None:
    """Else what follows it seems to be reached by work alone, and healing it wins nothing."""
    job = a_job(0, noted_ns=9_000)
    graph = step_graph(job.window, job.line, np.arange(5, STEPS))
    assert graph is not None
    exchanges = graph.comm.strings("group").equals("all")
    assert (graph.since_ns == graph.end_ns[graph.before])[exchanges].all()


def calm_and_slow(calm: int) -> tuple[np.ndarray, np.ndarray]:
    slow = np.arange(10) >= calm
    return np.where(slow, 200.0, 100.0), slow


@pytest.mark.parametrize(("calm", "cost"), [(3, 100.0), (2, 60.0)])
def test_three_calm_steps_show_the_usual_time(calm: int, cost: float) -> None:
    period, slow = calm_and_slow(calm)
    assert lost_per_step(Delay(60.0, 30.0), period, slow, ~slow, False) == cost


@pytest.mark.parametrize(("shared", "cost"), [(True, 60.0), (False, 100.0)])
def test_delays_that_add_up_along_a_pipeline_explain_a_rise(shared: bool, cost: float) -> None:
    period, slow = calm_and_slow(5)
    delay = Delay(what_if_ns=60.0, longest_ns=30.0)
    assert lost_per_step(delay, period, slow, ~slow, shared) == cost


@pytest.mark.parametrize(("together", "cost"), [(20.0, 6.0), (60.0, 100.0)])
def test_a_slow_network_explains_no_more_than_all_its_transfers(
    together: float, cost: float
) -> None:
    period, slow = calm_and_slow(5)
    assert lost_per_step(Delay(6.0, 3.0), period, slow, ~slow, False, together) == cost

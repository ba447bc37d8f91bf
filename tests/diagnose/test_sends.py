"""Sends between stages: their receives wait for them, whatever was noted of their ends."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.graph.replay import Replay
from stepscope.diagnose.graph.step_graph import StepGraph, step_graph
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Job, ProcessGroup
from stepscope.window import NULL, Window

from .jobs import MS, START, a_table


def passed_on(called_ms: int, state: str | None = None) -> StepGraph:
    """Rank 0 computes for 100 ms and sends; rank 1 waits for it, and computes for 8 ms."""
    done = () if state is None else (state,)
    rows = [(0, 0, "pp-0", 0, "Send", 1, START + called_ms * MS, NULL, *done),
            (1, 0, "pp-0", 0, "Recv", 0, START, START + 102 * MS, *done)]  # fmt: skip
    columns = "rank step group seq op peer enqueue_ns end_ns" + " state" * len(done)
    steps = [(0, 0, START, 100 * MS), (1, 0, START, 110 * MS)]
    phases = [(0, 0, "forward-compute", START, 100 * MS),
              (1, 0, "forward-compute", START + 102 * MS, 8 * MS)]  # fmt: skip
    window = Window(Job("two", 2, (), {}, (ProcessGroup("pp-0", "pp", (0, 1)),)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "comm_ops": a_table(columns, rows),
    })  # fmt: skip
    graph = step_graph(window, timeline(window), np.array([0]))
    assert graph is not None
    return graph


def finished_ms(graph: StepGraph, saved_ms: int) -> list[float]:
    """When both ranks finish if rank 0 computes for so much less."""
    less = np.where(graph.lane == 0, saved_ms * MS, 0)
    done = Replay.of(graph).finish_ns(less, np.array([saved_ms * MS, 0]))
    return [float(one) for one in (done - START) / MS]


@pytest.mark.parametrize("state", [None, "done"])
def test_a_send_without_an_end_holds_up_its_receive(state: str | None) -> None:
    graph = passed_on(100, state)
    assert finished_ms(graph, 0) == [100, 110]
    assert finished_ms(graph, 60) == [40, 50]


def test_a_call_recorded_later_than_the_data_arrived_is_a_matter_of_clocks() -> None:
    """By the clocks of two hosts the send was called 3 ms after its receive had ended."""
    graph = passed_on(105)
    assert finished_ms(graph, 0) == [100, 110]
    assert finished_ms(graph, 60) == [40, 50]


def test_sends_in_both_directions_that_nobody_waits_for_are_replayed() -> None:
    """Two microbatches through two stages: what each sends waits at the other for its receive, and
    by operators the second batch forward and the first gradient would follow each other."""
    calls = [(0, 0, "Send", 1, 10, 10), (0, 1, "Send", 1, 20, 20), (0, 0, "Recv", 1, 20, 35),
             (0, 1, "Recv", 1, 35, 60), (1, 0, "Recv", 0, 0, 10), (1, 0, "Send", 0, 35, 35),
             (1, 1, "Recv", 0, 35, 36), (1, 1, "Send", 0, 60, 60)]  # fmt: skip
    rows = [(rank, 0, "pp-0", seq + 2 * (rank == (op == "Send")), op, peer, START + called * MS,
             START + called * MS, START + end * MS)
            for rank, seq, op, peer, called, end in calls]  # fmt: skip
    window = Window(Job("two", 2, (), {}, (ProcessGroup("pp-0", "pp", (0, 1)),)), {
        "steps": a_table("rank step start_ns duration_ns",
                         [(rank, 0, START, 70 * MS) for rank in (0, 1)]),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", rows),
    })  # fmt: skip
    graph = step_graph(window, timeline(window), np.array([0]))
    assert graph is not None
    replay = Replay.of(graph)
    nothing = np.zeros(graph.op.size, np.int64)
    assert replay.replayed == 1
    assert (replay.finish_ns(nothing, np.zeros(2, np.int64)) == graph.finish_ns).all()


def test_what_one_rank_does_in_its_next_step_begins_sooner_if_its_step_is_shorter() -> None:
    """Rank 1 computes for 60 ms, and averages gradients; then its step ends. Then both average
    the loss, which is in the step of rank 0 and in the next one of rank 1, and stand still for
    20 ms."""
    calls = [(0, 0, "grads", 0, 10, 60), (1, 0, "grads", 0, 60, 60), (0, 0, "loss", 0, 60, 62),
             (1, 1, "loss", 0, 61, 62), (0, 1, "grads", 1, 92, 142),
             (1, 1, "grads", 1, 142, 142)]  # fmt: skip
    rows = [(rank, step, group, seq, "AllReduce", -1, START + begin * MS, START + end * MS)
            for rank, step, group, seq, begin, end in calls]  # fmt: skip
    groups = tuple(ProcessGroup(name, "dp", (0, 1)) for name in ("grads", "loss"))
    steps = [(0, 0, 0, 82), (0, 1, 82, 62), (1, 0, 0, 61), (1, 1, 61, 82)]
    window = Window(Job("two", 2, (), {}, groups), {
        "steps": a_table("rank step start_ns duration_ns",
                         [(rank, step, START + at * MS, ms * MS) for rank, step, at, ms in steps]),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns end_ns", rows),
    })  # fmt: skip
    graph = step_graph(window, timeline(window), np.array([0, 1]))
    assert graph is not None
    less = np.where((graph.lane >= 2) & (graph.since_ns != graph.arrive_ns), 30 * MS, 0)
    done = Replay.of(graph).finish_ns(less, np.array([0, 0, 30, 30]) * MS)
    assert ((done - START) / MS).tolist() == [52, 114, 31, 113]


def test_a_receive_that_was_posted_ahead_holds_up_only_who_waits_for_it() -> None:
    """Rank 1 computes its first microbatch from 10 to 60, and the input of the second comes at 55,
    so that it goes on at once. If the input comes at 15, nothing ends earlier."""
    calls = [(0, 0, "Send", 1, 0, 9, 10), (0, 1, "Send", 1, 1, 54, 55),
             (1, 0, "Recv", 0, 0, 0, 10), (1, 0, "Send", 0, 1, 60, 61),
             (1, 1, "Recv", 0, 2, 10, 55), (1, 1, "Send", 0, 3, 90, 91),
             (0, 0, "Recv", 1, 2, 55, 61), (0, 1, "Recv", 1, 3, 61, 91)]  # fmt: skip
    rows = [(rank, 0, "pp-0", seq + 2 * (rank == (op == "Send")), op, peer,
             *(START + one * MS for one in times))
            for rank, seq, op, peer, *times in calls]  # fmt: skip
    window = Window(Job("two", 2, (), {}, (ProcessGroup("pp-0", "pp", (0, 1)),)), {
        "steps": a_table("rank step start_ns duration_ns",
                         [(rank, 0, START, 91 * MS) for rank in (0, 1)]),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", rows),
    })  # fmt: skip
    graph = step_graph(window, timeline(window), np.array([0]))
    assert graph is not None
    work_ms = (graph.arrive_ns - graph.since_ns) / MS
    assert work_ms[3] == 50
    sooner = np.where(np.arange(graph.op.size) == 1, 40 * MS, 0)
    done = Replay.of(graph).finish_ns(sooner, np.zeros(2, np.int64))
    assert list((done - START) / MS) == [91, 91]

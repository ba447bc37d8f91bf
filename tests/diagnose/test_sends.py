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

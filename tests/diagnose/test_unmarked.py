"""Waiting that nobody marked: operators and groups tell what was waiting, and what was work."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import OwnTime, own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER, Host, Job, ProcessGroup
from stepscope.window import Table, Window

from .jobs import MS, START, a_table

STEPS, STEP_MS = 12, 300


def own(window: Window, phase: str) -> list[float]:
    """Median own time of each rank in a phase, in ms."""
    found: OwnTime = own_time(window, timeline(window))
    values = found.own[found.phases.index(phase)]
    return [round(float(one) / MS, 3) for one in np.median(values, axis=1)]


def steps(ranks: int) -> Table:
    rows = [(rank, step, START + step * STEP_MS * MS, STEP_MS * MS)
            for step in range(STEPS) for rank in range(ranks)]  # fmt: skip
    return a_table("rank step start_ns duration_ns", rows)


def a_pipeline(microbatch: int) -> Window:
    """Two stages. Rank 1 calls its next receive while it computes forward for 100 ms."""
    job = Job("ahead", 2, (Host("h", (0, 1)),), groups=(ProcessGroup("pp-0", "pp", (0, 1)),))
    phases, operators = [], []
    for step in range(STEPS):
        at = START + step * STEP_MS * MS
        phases += [(rank, step, FORWARD, microbatch, at + 100 * MS, 100 * MS) for rank in (0, 1)]
        operators.append((1, step, "pp-0", step, "Recv", 0, at + 110 * MS, at + 190 * MS))
        operators.append((0, step, "pp-0", step, "Send", 1, at + 189 * MS, at + 190 * MS))
    return Window(job, {
        "steps": steps(2),
        "phases": a_table("rank step phase microbatch start_ns duration_ns", phases),
        "comm_ops": a_table("rank step group seq op peer start_ns end_ns",
                            operators).with_column("enqueue_ns", np.zeros(2 * STEPS, np.int64)),
    })  # fmt: skip


def test_a_receive_called_ahead_is_no_waiting_within_a_pass() -> None:
    assert own(a_pipeline(microbatch=0), FORWARD) == [100, 100]


def test_a_receive_within_all_passes_together_may_be_waiting() -> None:
    assert own(a_pipeline(microbatch=-1), FORWARD) == [99, 20]


def foreign_passes(**lengths: int) -> Window:
    """Phases under names of another program, each in the middle of the ones before it."""
    rows = [(rank, step, name, START + (step * STEP_MS + 145 - length // 2) * MS, length * MS)
            for step in range(STEPS) for rank in (0, 1)
            for name, length in lengths.items()]  # fmt: skip
    return Window(Job("foreign", 2), {
        "steps": steps(2), "phases": a_table("rank step phase start_ns duration_ns", rows),
    })  # fmt: skip


def test_what_is_nested_in_a_pass_of_another_name_does_not_count_twice() -> None:
    window = foreign_passes(model_fwd=200, ffn=100, gelu=50)
    found = own_time(window, timeline(window))
    assert [one for one in found.phases if one in ("model_fwd", "ffn", "gelu")] == ["model_fwd"]


def test_a_phase_around_the_whole_step_is_the_step_and_hides_no_phase() -> None:
    window = foreign_passes(train_step=290, model_fwd=200)
    found = own_time(window, timeline(window)).phases
    assert "model_fwd" in found and "train_step" not in found


@pytest.mark.parametrize("name", ["exchange_1", "grad_sync", "comm"])
def test_communication_under_another_name_is_no_own_time(name: str) -> None:
    window = foreign_passes(model_fwd=100, **{name: 40})
    assert name not in own_time(window, timeline(window)).phases


def sharded(gathers: int, **known: int) -> Window:
    """Two ranks with forward and backward, whose marked waiting does not include gathers."""
    job = Job("fsdp", 2, (Host("h", (0, 1)),), groups=(ProcessGroup("dp-0", "dp", (0, 1)),))
    phases, operators = [], []
    for step in range(STEPS):
        at = START + step * STEP_MS * MS
        for rank in (0, 1):
            phases += [(rank, step, FORWARD, at, 90 * MS, 0),
                       (rank, step, BACKWARD, at + 100 * MS, 190 * MS, 0)]  # fmt: skip
            operators += [(rank, step, "dp-0", step * gathers + one, "AllGather", at,
                           *known.values()) for one in range(gathers)]  # fmt: skip
    columns = " ".join(("rank step group seq op enqueue_ns", *known))
    return Window(job, {
        "steps": steps(2), "comm_ops": a_table(columns, operators),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
    })  # fmt: skip


@pytest.mark.parametrize(("window", "known"), [
    (sharded(gathers=2), False), (sharded(gathers=1), True),
    (sharded(gathers=2, blocked_ns=5), True),
])  # fmt: skip
def test_passes_that_gather_parameters_for_an_unknown_time_are_left_out(
    window: Window, known: bool
) -> None:
    assert (BACKWARD in own_time(window, timeline(window)).phases) is known


def timed_by_hosts(launch_ms: dict[int, int], ranks: int = 4, **said: int) -> Window:
    """A host launches both passes and waits in the optimizer until the slowest of all is done; a
    recorder says what waits in the phases."""
    noise = np.random.default_rng(0).normal(size=(ranks, STEPS))
    passes, slow_ms = (FORWARD, BACKWARD), max(launch_ms.values())
    rows = []
    for rank in range(ranks):
        for step in range(STEPS):
            at, ms = START + step * STEP_MS * MS, launch_ms.get(rank, 30)
            each = int((ms + noise[rank, step]) * MS)
            left = 2 * slow_ms * MS + 20 * MS - 2 * each
            lasted = {**dict.fromkeys(passes, each), OPTIMIZER: left}
            for name, took in lasted.items():
                rows.append((rank, step, name, said.get(name, 0), at, took))
                at += took
    phases = a_table("rank step phase waits start_ns duration_ns", rows)
    return Window(Job("timers", ranks), {"steps": steps(ranks), "phases": phases})


def test_a_column_that_says_that_nobody_waits_where_all_leave_together_was_not_filled_in() -> None:
    wrong = own(timed_by_hosts({2: 60}), OPTIMIZER)
    assert max(wrong) - min(wrong) < 5, "the victims wait 60 ms longer, and do not work so long"


def test_what_a_recorder_says_of_any_waiting_is_believed() -> None:
    told = own(timed_by_hosts({2: 60}, **{BACKWARD: 1}), OPTIMIZER)
    assert max(told) - min(told) > 50


def test_what_timers_of_hosts_show_is_not_called_computing() -> None:
    (verdict,) = diagnose(timed_by_hosts({2: 60})).verdicts
    assert verdict.ranks == (2,)
    assert verdict.summary.startswith("rank 2 is ")

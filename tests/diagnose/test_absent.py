"""Jobs of which only some ranks were recorded, while another one may be the culprit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.report.html import render_html
from stepscope.report.json import to_json
from stepscope.report.text import render_text
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, Fault, a_job, a_table
from .traces import Piece, a_trace

ALL = (0, 1, 2, 3)
LAST = "the last one to arrive may not have been recorded"
SLOW = Fault((3,), "backward-compute", 0, ms=60.0)
LOADING = Fault((0, 1), DATA_LOAD, 0, ms=25.0)


def only(window: Window, *ranks: int) -> Window:
    tables = {name: table.take(np.isin(table.ints("rank"), ranks))
              for name, table in window.tables.items()}  # fmt: skip
    return Window(replace(window.job, recorded_ranks=ranks), tables)


def test_ranks_that_wait_for_an_unrecorded_one_are_not_accused() -> None:
    diagnosis = diagnose(only(a_job(noise=0.02, faults=[SLOW, LOADING]), 0, 1))
    assert diagnosis.verdicts, "25 ms of loading would be a verdict about all ranks"
    assert all(one.is_suspect for one in diagnosis.verdicts)
    assert diagnosis.unrecorded.startswith("2 of 4 ranks were recorded; missing 2 and 3")
    assert LAST in diagnosis.unrecorded


def test_a_recorded_rank_that_waits_less_than_another_is_not_accused() -> None:
    """Rank 1 is 20 ms later than rank 0, and 40 ms earlier than rank 3."""
    slower = Fault((1,), "backward-compute", 0, ms=20.0)
    diagnosis = diagnose(only(a_job(noise=0.02, faults=[SLOW, slower]), 0, 1))
    assert diagnosis.accused == ()
    assert LAST in diagnosis.unrecorded


def test_where_nothing_else_was_found_the_job_is_not_called_healthy() -> None:
    diagnosis = diagnose(only(a_job(noise=0.02, faults=[SLOW]), 0, 1))
    assert (diagnosis.outcome, diagnosis.verdicts) == ("unknown", ())
    assert LAST in diagnosis.unaccounted


def test_a_rank_that_is_late_in_all_collectives_alike_may_be_missing() -> None:
    """None of them shows how long data moves without waiting for rank 3, and a slow network would
    take as long."""
    late = a_trace(lambda rank, step: [Piece("gemm", 6.0 if rank == 3 else 3.0)], steps=8)
    diagnosis = diagnose(only(late, 0, 1))
    assert (diagnosis.outcome, diagnosis.verdicts) == ("unknown", ())
    assert "whether data moves then or they wait is unknown" in diagnosis.unaccounted


@pytest.mark.parametrize("recorded", [(0, 3), (0, 1, 2)], ids=["the culprit", "all but a good one"])
def test_a_recorded_culprit_stays_one(recorded: tuple[int, ...]) -> None:
    slow = replace(SLOW, ranks=(recorded[-1],))
    diagnosis = diagnose(only(a_job(noise=0.02, faults=[slow]), *recorded))
    (verdict,) = diagnosis.accused
    assert verdict.ranks == slow.ranks
    assert LAST not in diagnosis.unrecorded


def test_what_all_recorded_ranks_do_is_said_of_these() -> None:
    loading = replace(LOADING, ranks=ALL)
    diagnosis = diagnose(only(a_job(noise=0.02, faults=[loading]), 0, 1, 2))
    (verdict,) = diagnosis.accused
    assert verdict.summary.startswith("all recorded ranks spend")
    assert diagnosis.candidates[0].who == "all recorded ranks"


@pytest.mark.parametrize(("world", "outcome"), [(8, "unknown"), (4, "healthy")])
def test_a_gap_that_all_recorded_ranks_have_may_be_waiting_for_another(
    world: int, outcome: str
) -> None:
    """Before the optimizer all wait for a norm to which every rank of the job adds its part."""
    random, steps, phases = np.random.default_rng(3), [], []
    for step in range(60):
        for rank in ALL:
            at = START + step * 125 * MS
            steps.append((rank, step, at, 125 * MS))
            for name, begin, ms in ((FORWARD, 0, 30), (BACKWARD, 30, 50), (OPTIMIZER, 119, 5)):
                took = int(ms * random.normal(1, 0.01) * MS)
                phases.append((rank, step, name, at + begin * MS, took))
    job = Job("absent", world, groups=(ProcessGroup("dp-0", "dp", tuple(range(world))),),
              recorded_ranks=None if world == 4 else ALL)  # fmt: skip
    diagnosis = diagnose(Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
    }))  # fmt: skip
    assert (diagnosis.outcome, diagnosis.verdicts) == (outcome, ())
    assert ("in no phase" in diagnosis.unaccounted) == (outcome == "unknown")


def test_reports_say_which_ranks_were_recorded() -> None:
    said = "1 of 4 ranks was recorded; missing 0, 1 and 3"
    diagnosis = diagnose(only(a_job(), 2))
    assert said in render_text(diagnosis, 120)
    assert said in render_html(diagnosis)
    assert to_json(diagnosis)["unrecorded"].startswith(said)
    assert diagnose(a_job()).unrecorded == ""


def test_gauges_of_ranks_that_nobody_recorded_hide_no_waiting_for_them() -> None:
    window = only(a_job(noise=0.02, faults=[SLOW]), 0, 1)
    clock = a_table("rank host metric ts_ns value", [(3, "h", "sm_clock_mhz", START, 1980.0)])
    window = Window(window.job, {**window.tables, "hardware": clock})
    assert LAST in diagnose(window).unaccounted

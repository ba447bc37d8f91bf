"""A rank that makes all others wait is a loss, also where nothing shows why."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.run import diagnose
from stepscope.window import Table, Window

from .jobs import Fault, a_job, put


def without_marks(job: Window) -> Window:
    """As recorded where a thread trains that nobody follows: steps and calls, and no phase but the
    optimizer's, so that waiting looks like work."""
    phases = job.tables["phases"]
    kept: Table = phases.take(phases.strings("phase").equals("optimizer"))
    return put(job, phases=kept.with_column("wait_ns", np.zeros(len(kept), np.int64)))


def test_a_rank_that_is_always_last_is_not_healthy() -> None:
    late = a_job(
        ranks=2, steps=60, stacks=False, faults=[Fault((1,), "forward-compute", 0, ms=40.0)]
    )
    diagnosis = diagnose(without_marks(late))
    named = [one.ranks for one in diagnosis.verdicts]
    assert named == [(1,)] or (diagnosis.state == "unknown" and "rank 1" in diagnosis.unaccounted)


def test_lateness_in_turns_is_noise() -> None:
    diagnosis = diagnose(without_marks(a_job(ranks=2, steps=60, stacks=False, noise=0.1)))
    assert "arrives last" not in diagnosis.unaccounted

"""What the diagnosis says of jobs that became slower, and of ranks that did not profile."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.published.eroica_detect import first_degraded
from stepscope.diagnose.overview.recorders import MOST_SHOWN, not_recorded
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.trace import Job
from stepscope.window import Floats, Window

from .jobs import START, a_table


def series(ratio: float, count: int = 300) -> Floats:
    noise = np.exp(0.01 * np.random.default_rng(0).normal(size=count))
    return 1e9 * np.where(np.arange(count) < 150, noise, ratio * noise)


def test_published_by_the_mean_of_fifty() -> None:
    found = first_degraded(series(1.1))
    assert found is not None and 170 < found[0] < 185, "when half of the fifty are slower"
    assert first_degraded(series(1.04)) is None


def test_published_leaves_out_what_is_unknown() -> None:
    durations = series(1.1)
    durations[::3] = np.nan
    assert first_degraded(durations) is not None


def test_published_runs_by_name_only() -> None:
    slower = series(1.3).astype(np.int64)
    ends = START + np.cumsum(slower)
    steps = a_table("rank step start_ns duration_ns", [
        (rank, step, int(ends[step] - slower[step]), int(slower[step]))
        for rank in (0, 1) for step in range(300)
    ])  # fmt: skip
    job = Window(Job("slower", 2), {"steps": steps})
    named = diagnose(job, Settings(methods=("eroica-detect-published",)))
    assert named.state == "regression"


def test_ranks_that_did_not_profile_are_listed_by_their_reason() -> None:
    rows = [(rank, "w", "the rank did not reply") for rank in range(10)]
    rows += [(10, "w", None), (11, "w", "another profiler is active")]  # type: ignore[list-item]
    table = a_table("rank window trouble", rows)
    found = list(not_recorded(Window(Job("j", 12), {"profiles": table})))
    assert [(one.method, one.why) for one in found] == [
        ("profile w of rank 11", "another profiler is active"),
        ("profile w of ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more", "the rank did not reply"),
    ]
    assert MOST_SHOWN == 8

"""A rank that stalls for seconds, found by the longest kernels of a minute alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.detect.kernels.stall import stalled
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.window import Floats, Table, Window

from .jobs import MS
from .kernel_jobs import a_job_of_kernels, healthy, modes_of

SECOND = 1000 * MS
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
HOSTS = [np.arange(0, 4), np.arange(4, 8)]


def waits(windows: int = 3, ranks: int = 8, usual_ns: float = 300.0 * MS) -> Floats:
    """The longest wait of each rank and window, as inputs of any length spread it."""
    return healthy(ranks, windows, noise=0.2, usual_ns=usual_ns)


def a_job(longest: Floats, own: dict[tuple[int, int], float] | None = None) -> Window:
    """Summaries of one kernel that waits and of one that computes, with their longest executions.

    Args:
        own: the longest execution of the second, where it is not like the others, by rank and
            window.
    """
    ranks = len(longest)
    modes = modes_of(NCCL, np.full(longest.shape, 5.0 * MS))
    modes += modes_of("flash_bwd_kernel", np.full(longest.shape, 4.0 * MS))
    window = a_job_of_kernels(modes, ranks, per_host=4)
    table = window.tables["kernel_summaries"]
    gemm = np.full(longest.shape, 5.0 * MS)
    for at, lasted in (own or {}).items():
        gemm[at] = lasted
    most = np.concatenate((longest.ravel(), gemm.ravel())).astype(np.int64)
    kept = Table({**table.columns, "max_ns": most})
    return replace(window, tables={"kernel_summaries": kept})


def said(window: Window) -> list[Verdict]:
    return list(diagnose(window).verdicts)


def test_the_only_rank_that_does_not_wait_is_waited_for() -> None:
    longest = waits()
    longest[np.arange(8) != 5, 1] += 6.0 * SECOND
    (found,) = stalled(longest, HOSTS)
    assert found.rows == (5,) and found.windows == (1,)
    assert found.waited_ns[0] == pytest.approx(6.0 * SECOND, rel=0.1)


def test_a_host_stands_still_as_a_whole() -> None:
    longest = waits()
    longest[:4, 2] += 3.0 * SECOND
    (found,) = stalled(longest, HOSTS)
    assert found.rows == (4, 5, 6, 7)


def test_two_that_stall_in_one_minute_wait_for_each_other() -> None:
    longest = waits() + 6.0 * SECOND
    assert stalled(longest, HOSTS) == []


def test_where_waits_differ_by_seconds_the_least_is_no_culprit() -> None:
    """Steps of a minute: inputs of any length alone make some wait seconds longer."""
    assert stalled(waits(windows=500, usual_ns=20.0 * SECOND), HOSTS) == []


@pytest.mark.parametrize("row", [0, 7])
def test_a_rank_that_saves_for_the_others_is_not_accused(row: int) -> None:
    longest = waits()
    longest[np.arange(8) != row] += 6.0 * SECOND
    assert stalled(longest, HOSTS) == []


def test_a_rank_that_compiles_now_and_then_is_named_by_summaries_alone() -> None:
    """Case 4 of ARGUS: its device is idle, and no kernel of its own takes longer."""
    longest = waits()
    longest[np.arange(8) != 5, 1:] += 4.0 * SECOND
    (verdict,) = said(a_job(longest))
    assert verdict.ranks == (5,) and verdict.cause == "host"
    assert verdict.summary.startswith("rank 5 stalls at times: all others waited")


def test_a_kernel_that_took_forty_times_as_long_explains_it() -> None:
    longest = waits()
    longest[np.arange(8) != 5, 1:] += 4.0 * SECOND
    (verdict,) = said(a_job(longest, own={(5, 1): 3.9 * SECOND, (5, 2): 4.1 * SECOND}))
    assert verdict.cause == "compute" and verdict.kernels == ("flash_bwd_kernel",)


def test_what_costs_little_deserves_no_verdict() -> None:
    longest = waits()
    longest[np.arange(8) != 5, 1] += 2.0 * SECOND
    assert said(a_job(longest)) == []

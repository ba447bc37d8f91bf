"""Processes that are no more while others wait for them, and jobs that were ended on purpose."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from stepscope.diagnose.detect.stuck.vanished import find_vanished
from stepscope.diagnose.operators.standstill import waits_for_ranks
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.window import Window

from .jobs import START, a_table, put
from .test_circle import HUNG, WORLD, a_job, averaged
from .test_hang import SECOND, the_hang
from .test_vanished import KILLED, NORMAL, OUT_OF_MEMORY, TERMINATED, exits

PINNED = (
    "train (train.py:4);__next__ (dataloader.py:708);get (queue.py:180);wait (threading.py:331)"
)
LOCKED = "train (train.py:9);log (metrics.py:88);acquire (threading.py:164)"
DEVICE = "train (train.py:5);item (train.py:6);synchronize (streams.py:92)"
ENDLESS = 10.0**6


def a_hang(
    absent: Mapping[int, str], sampled_s: Mapping[int, float] | None = None, entered: int = 0
) -> Window:
    """A minute in which ranks wait in the first call of a step, and some never made it.

    Args:
        absent: the stacks of ranks that never made it.
        sampled_s: how long these processes were sampled, in seconds of the job.
        entered: how many of the absent made that call nevertheless.
    """
    rows = [row for step in range(HUNG) for rank in range(4) for row in averaged(rank, step)]
    called = [rank for rank in range(4) if rank not in [*absent][entered:]]
    rows += [row for rank in called for row in averaged(rank, HUNG, "g", ended=False)]
    until = {rank: (sampled_s or {}).get(rank, ENDLESS) for rank in range(4)}
    cores = [
        (rank, "h0", "cpu_util", START + second * SECOND, 0.01)
        for rank in range(4)
        for second in range(HUNG + 60)
        if second <= until[rank]
    ]
    stacks = [(rank, "MainThread", START + HUNG * SECOND, SECOND, absent.get(rank, DEVICE))
              for rank in range(4)]  # fmt: skip
    return put(
        a_job(rows, WORLD),
        hardware=a_table("rank host metric ts_ns value", cores),
        stacks=a_table("rank thread start_ns duration_ns frames", stacks),
    )


@pytest.mark.parametrize("other", [PINNED, LOCKED])
def test_two_ranks_that_load_data_do_not_wait_for_one_another(other: str) -> None:
    """What ends their stacks is called `wait`, as what waits for other ranks is."""
    verdict = the_hang(diagnose(a_hang({1: PINNED, 2: other})))
    assert (verdict.ranks, verdict.cause) == ((1, 2), "data_loading")
    assert "they use no CPU time" in verdict.summary


def test_what_waits_for_ranks() -> None:
    assert waits_for_ranks(["all_reduce (distributed_c10d.py:7)"])
    assert not waits_for_ranks(PINNED.split(";"))
    assert not waits_for_ranks(["flush (log.py:3)", "wait (/usr/lib/python3.11/threading.py:331)"])


@pytest.mark.parametrize("entered", [0, 1])
def test_a_process_that_was_killed_is_named_while_the_others_wait(entered: int) -> None:
    """For a minute, until a watchdog fires; also if it had made the call."""
    job = exits(a_hang({2: DEVICE}, {2: HUNG}, entered), (2, 300, OUT_OF_MEMORY))
    verdict = the_hang(diagnose(job))
    assert (verdict.ranks, verdict.cause, verdict.ended) == ((2,), "host", "out of memory")
    assert find_vanished(job) is not None


def test_a_process_that_was_killed_because_it_hung_did_hang() -> None:
    """It slept in its loader; after 40 s somebody killed it, and the others still wait."""
    job = exits(a_hang({2: PINNED}, {2: HUNG + 40}), (2, 40_000, KILLED))
    assert the_hang(diagnose(job)).cause == "data_loading"


@pytest.mark.parametrize("entered", [0, 1])
def test_a_process_that_nobody_samples_any_more_is_gone(entered: int) -> None:
    """Its last stack, of the step before, does not show where it is now."""
    verdict = the_hang(diagnose(a_hang({2: DEVICE}, {2: HUNG}, entered)))
    assert (verdict.ranks, verdict.cause) == ((2,), "unknown")
    assert "its process is gone" in verdict.summary


def test_a_process_that_ended_by_itself_left_the_others_waiting() -> None:
    """It had fewer batches than they, and is not to be looked for in a kernel."""
    job = exits(a_hang({2: DEVICE}, {2: HUNG}), (2, 100, NORMAL))
    verdict = the_hang(diagnose(job))
    assert (verdict.ranks, verdict.cause) == ((2,), "code")
    assert "its process has ended" in verdict.summary


def test_who_ends_because_another_had_ended_is_not_accused() -> None:
    others = [(rank, 50_000, {"signal": int(signal.SIGABRT)}) for rank in (0, 1, 3)]
    job = exits(a_hang({2: DEVICE}, {2: HUNG}), (2, 100, NORMAL), *others)
    assert the_hang(diagnose(job)).ranks == (2,)


def test_samples_that_all_end_do_not_show_who_is_gone() -> None:
    found = find_hang(a_hang({2: LOCKED}, dict.fromkeys(range(4), HUNG)))
    assert found is None or "gone" not in found.verdicts[0].summary


@pytest.mark.parametrize("entered", [0, 1])
def test_a_job_that_was_ended_on_purpose_does_not_hang(entered: int) -> None:
    """Its processor looks on for a minute."""
    ends = [(rank, 300 + 50 * rank, TERMINATED) for rank in range(4)]
    job = exits(a_hang({2: DEVICE}, dict.fromkeys(range(4), HUNG), entered), *ends)
    assert diagnose(job).verdicts == ()

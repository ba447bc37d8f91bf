"""Jobs that hung and were then ended: by a signal to all ranks at once, or one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.run import find_hang
from stepscope.window import Window

from .jobs import put, with_samples, without
from .test_hang import CULPRIT, SECOND, a_stuck_job, joined, missed_ns, the_hang

LONG = 40.0


def ended(job: Window, **ends: float) -> Window:
    """`r1=15.0`: from 15 s after the others began to wait, rank 1 is sampled as stopped or dead."""
    since = missed_ns(job)
    at = {int(name[1:]): since + int(second * SECOND) for name, second in ends.items()}
    return with_samples(job, "proc_stopped", lambda rank, time: time > at.get(rank, 2**62))


def silent(job: Window, rank: int, second: float) -> Window:
    """No sample of a rank later than this: its processor had ended."""
    hardware, limit = job.tables["hardware"], missed_ns(job) + int(second * SECOND)
    kept = (hardware.ints("rank") != rank) | (hardware.ints("ts_ns") <= limit)
    return put(job, hardware=hardware.take(kept))


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param({"r0": 15, "r1": 15, "r3": 15}, id="at once"),
        pytest.param({"r0": 15, "r1": 18, "r3": 21}, id="one by one"),
        pytest.param({"r0": 15, "r1": 15}, id="last death not sampled"),
        pytest.param({"r3": 12}, id="one victim first"),
    ],
)
def test_a_rank_that_stopped_before_the_end_stays_the_culprit(ends: dict[str, float]) -> None:
    verdict = the_hang(find_hang(ended(a_stuck_job(LONG), r2=0, **ends)))
    assert (verdict.ranks, verdict.cause) == ((CULPRIT,), "host")


@pytest.mark.parametrize("last", [15.0, 16.0, 22.0])
@pytest.mark.parametrize("culprit", [14.0, 15.0, 19.0, None])
def test_a_rank_that_did_not_move_on_stays_the_culprit(culprit: float | None, last: float) -> None:
    """It was idle before the end, and ended like the others: that is not its cause."""
    ends = {"r0": 15.0, "r1": 15.0, "r3": last, **({} if culprit is None else {"r2": culprit})}
    job = ended(a_stuck_job(LONG, cores=0.0), **ends)
    verdict = the_hang(find_hang(silent(job, 3, 15.0)))
    assert (verdict.ranks, verdict.cause) == ((CULPRIT,), "code")


def test_a_rank_that_stopped_when_all_had_entered_is_named_though_the_others_end_later() -> None:
    job = a_stuck_job(LONG)
    comm = job.tables["comm_ops"]
    first = int(comm.ints("seq").max()) - 1
    one = comm.take(comm.ints("seq") == first)
    row = one.take(np.array([0])).with_column("rank", np.array([CULPRIT]))
    entered = put(job, comm_ops=joined(comm.take(comm.ints("seq") <= first), row))
    verdict = the_hang(find_hang(ended(entered, r2=1, r0=9, r1=12, r3=14)))
    assert (verdict.ranks, verdict.cause) == ((CULPRIT,), "host")


@pytest.mark.parametrize("spread_s", [0.0, 0.9])
def test_a_job_that_was_ended_while_one_rank_was_late_did_not_hang(spread_s: float) -> None:
    """The one sampled last is not alive for that; neither is the one without a last sample."""
    job = ended(a_stuck_job(3), r0=1, r2=1, r1=1 + spread_s)
    assert find_hang(silent(job, 3, 1.0)) is None


def test_a_long_checkpoint_that_was_ended_is_no_hang() -> None:
    job = a_stuck_job(LONG, function="save_checkpoint (train.py:70)")
    assert find_hang(ended(job, r0=30, r1=30, r2=30, r3=30)) is None


def test_ranks_that_stop_together_are_culprits_together() -> None:
    """A host was frozen: rank 3 in an operator, rank 2 before it."""
    job = ended(a_stuck_job(LONG), r2=2, r3=2.5)
    assert the_hang(find_hang(job)).ranks == (2, 3)


@pytest.mark.parametrize("host_is_sampled", [True, False])
def test_samples_that_end_with_a_hang_are_no_sign_of_life(host_is_sampled: bool) -> None:
    """A recorder that was cut off reads nothing more; one that goes on would see the processes."""
    job = a_stuck_job(seconds=40)
    cut = missed_ns(job) + SECOND // 10
    hardware = job.tables["hardware"]
    kept = hardware.ints("ts_ns") < cut
    if host_is_sampled:
        kept |= hardware.ints("rank") < 0
    known = replace(job.job, observed_until_ns=cut + 40 * SECOND)
    cut_off = without(replace(put(job, hardware=hardware.take(kept)), job=known), "stacks")
    assert (find_hang(cut_off) is None) == host_is_sampled

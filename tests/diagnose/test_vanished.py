"""Ranks whose processes ended: who was first, and when nobody is to blame."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.window import NULL, Strings, Table, Window

from .jobs import MS, a_job, a_table, both, put
from .test_hang import a_stuck_job, stopped

RESET = "RuntimeError: [pair.cc:537] Read error [10.0.0.1]:1: Connection reset by peer"
KILLED = {"signal": int(signal.SIGKILL)}
OUT_OF_MEMORY = {**KILLED, "reason": "out of memory", "detail": "Out of memory: Killed process 7"}
RAISED = {"status": 1, "announced": True, "reason": "exception", "detail": "ValueError: no"}
LOST_ITS_PEER = {**RAISED, "detail": RESET}
TERMINATED = {"signal": int(signal.SIGTERM)}
INTERRUPTED = {
    **RAISED,
    "status": None,
    "signal": int(signal.SIGINT),
    "detail": "KeyboardInterrupt",
}
NORMAL = {"status": 0, "announced": True}
UNKNOWN: dict[str, Any] = {}


def exits(job: Window, *ends: tuple[int, int, dict[str, Any]]) -> Window:
    """The job, with (rank, ms after the last step, how) of each process that ended."""
    last = _end(job)
    rows = []
    for rank, ms, how in ends:
        numbers = [NULL if how.get(name) is None else how[name] for name in ("status", "signal")]
        rows.append([rank, 100 + rank, last + ms * MS, *numbers, how.get("announced", False)])
    table = a_table("rank pid ts_ns status signal announced", rows)
    texts = {name: Strings.of([how.get(name) for _, _, how in ends])
             for name in ("reason", "detail", "host", "frames")}  # fmt: skip
    return put(job, exits=Table({**table.columns, **texts}))


def _end(job: Window) -> int:
    steps = job.tables["steps"]
    return int((steps.ints("start_ns") + steps.ints("duration_ns")).max())


def the_verdict(job: Window) -> Verdict:
    (verdict,) = diagnose(job).verdicts
    quick = find_hang(job)
    assert quick is not None
    assert quick.verdicts[0].summary == verdict.summary
    assert (verdict.kind, verdict.confidence > 0.5) == ("hang", True)
    return verdict


JOB = a_job(steps=40, noise=0.05)


@pytest.mark.parametrize(
    ("how", "cause", "says"),
    [
        (OUT_OF_MEMORY, "host", "rank 3 was killed (SIGKILL, out of memory) in step 40"),
        (KILLED, "unknown", "rank 3 was killed (SIGKILL) in step 40"),
        ({"signal": 11}, "unknown", "rank 3 crashed (SIGSEGV) in step 40"),
        (RAISED, "code", "rank 3 ended with an exception (ValueError) in step 40"),
        ({"status": 7}, "code", "rank 3 exited with status 7 in step 40"),
        ({"status": 137}, "unknown", "rank 3 was killed (SIGKILL) in step 40"),
    ],
)
def test_the_first_to_end_is_named(how: dict[str, Any], cause: str, says: str) -> None:
    """The launcher then terminates the others."""
    ends = [(rank, 300, TERMINATED) for rank in (0, 1, 2)]
    verdict = the_verdict(exits(JOB, (3, 100, how), *ends))
    assert (verdict.ranks, verdict.cause, verdict.victims) == ((3,), cause, 3)
    assert verdict.summary == f"{says}; the others were terminated"


FRAMES = "<module> (train.py:9);check (train.py:5)"
FAILED = {**RAISED, "frames": FRAMES}


def test_ranks_that_all_fail_alike_have_a_common_cause() -> None:
    """The same line raises the same exception everywhere; whoever is first has no part in it."""
    ends = [(rank, 100 + rank, FAILED) for rank in range(4)]
    verdict = the_verdict(exits(JOB, *ends))
    assert (verdict.ranks, verdict.victims, verdict.cause) == ((), 0, "code")
    assert verdict.summary == (
        "all ranks ended with an exception (ValueError) in step 40, 3.0 ms apart and in the same "
        "place"
    )
    assert verdict.function == "check (train.py:5)"
    assert "failed alike" in verdict.advice


def test_some_ranks_that_fail_alike_are_named_together() -> None:
    ends: list[tuple[int, int, dict[str, Any]]] = [
        (3, 100, FAILED), (1, 104, FAILED), (0, 300, TERMINATED), (2, 300, TERMINATED),
    ]  # fmt: skip
    verdict = the_verdict(exits(JOB, *ends))
    assert (verdict.ranks, verdict.victims) == ((1, 3), 2)


@pytest.mark.parametrize(
    "other",
    [
        {**FAILED, "detail": "KeyError: 7"},
        {**FAILED, "frames": "<module> (train.py:9);check (train.py:6)"},
        {**FAILED, "frames": "<module> (train.py:9);all_reduce (torch/distributed/c10d.py:7)"},
    ],
)
def test_other_exceptions_follow_from_the_first(other: dict[str, Any]) -> None:
    verdict = the_verdict(exits(JOB, (3, 100, FAILED), (1, 104, other)))
    assert verdict.ranks == (3,)


def test_the_same_exception_within_communication_is_nobodys_own() -> None:
    inside = {**RAISED, "frames": "<module> (train.py:9);send (torch/distributed/c10d.py:7)"}
    assert the_verdict(exits(JOB, (3, 100, inside), (1, 104, inside))).ranks == (3,)


def test_an_exception_was_raised_where_its_traceback_says() -> None:
    """And not where the rank was sampled last: in the collective of the step before."""
    frames = "<module> (train.py:9);check (train.py:5);loads (/usr/lib/python3.11/json/x.py:7)"
    verdict = the_verdict(exits(JOB, (3, 100, {**RAISED, "frames": frames})))
    assert verdict.function == "check (train.py:5)"
    assert verdict.stack == tuple(frames.split(";"))


def test_without_its_traceback_no_function_is_named() -> None:
    assert the_verdict(exits(JOB, (3, 100, RAISED))).function is None


def test_who_aborts_inside_of_communication_is_only_suspected() -> None:
    """What the library complains of may be what another rank called."""
    job = put(JOB, stacks=a_table("rank start_ns duration_ns thread frames", [
        (3, _end(JOB), MS, "MainThread", "<module> (train.py:9);all_reduce (distributed_c10d.py:7)")
    ]))  # fmt: skip
    (verdict,) = diagnose(exits(job, (3, 100, {"signal": 6}), (0, 300, TERMINATED))).verdicts
    assert (verdict.ranks, verdict.ended, verdict.is_suspect) == ((3,), "aborted", True)
    assert "device" not in verdict.advice


def test_memory_belongs_to_the_host() -> None:
    verdict = the_verdict(exits(JOB, (3, 100, OUT_OF_MEMORY), (0, 300, TERMINATED)))
    (host,) = verdict.hosts
    assert [(device.type, device.name) for device in verdict.devices] == [("host", host)]


def test_ranks_that_lost_their_peer_are_victims_even_if_they_seem_to_be_first() -> None:
    """Freeing the memory of a killed process takes longer than an exception of its peer."""
    others = [(rank, 90, LOST_ITS_PEER) for rank in (0, 1, 2)]
    assert the_verdict(exits(JOB, (3, 100, KILLED), *others)).ranks == (3,)


def test_a_rank_that_ends_normally_while_the_others_need_it_left_too_early() -> None:
    """Its loop had fewer batches. The others failed, but for no reason of their own."""
    others: list[tuple[int, int, dict[str, Any]]] = [
        (0, 700, LOST_ITS_PEER), (1, 701, TERMINATED), (2, 701, LOST_ITS_PEER),
    ]  # fmt: skip
    verdict = the_verdict(exits(JOB, (3, 100, NORMAL), *others))
    assert (verdict.ranks, verdict.cause, verdict.ended) == ((3,), "code", "left")
    assert "ended normally while the others went on in step 40" in verdict.summary


def test_a_job_whose_ranks_end_one_by_one_is_done() -> None:
    ends: list[tuple[int, int, dict[str, Any]]] = [
        (0, 100, NORMAL), (1, 900, NORMAL), (2, 901, INTERRUPTED), (3, 902, TERMINATED),
    ]  # fmt: skip
    assert diagnose(exits(JOB, *ends)).verdicts == ()


def test_a_rank_that_vanished_is_named_while_the_others_still_wait() -> None:
    verdict = the_verdict(exits(JOB, (3, 100, KILLED)))
    assert verdict.summary == "rank 3 was killed (SIGKILL) in step 40; 3 other ranks did not end"


@pytest.mark.parametrize("how", [NORMAL, TERMINATED, INTERRUPTED, KILLED, UNKNOWN])
def test_a_job_that_ended_as_a_whole_accuses_nobody(how: dict[str, Any]) -> None:
    """Normally, by Ctrl-C, or by the scheduler."""
    ended = exits(JOB, *((rank, 100 + rank, how) for rank in range(4)))
    assert diagnose(ended).verdicts == ()


def test_a_process_without_a_trace_is_named_if_the_others_outlived_it() -> None:
    others = [(rank, 5000, TERMINATED) for rank in (0, 1, 2)]
    verdict = the_verdict(exits(JOB, (3, 100, UNKNOWN), *others))
    assert verdict.ranks == (3,)
    assert verdict.confidence < 0.97


def test_a_process_without_a_trace_did_no_harm_if_the_others_ended_normally() -> None:
    others = [(0, 5000, NORMAL), (1, 5000, NORMAL), (2, 101, UNKNOWN)]
    assert diagnose(exits(JOB, (3, 100, UNKNOWN), *others)).verdicts == ()


def test_a_rank_that_was_started_again_has_not_vanished() -> None:
    again = exits(JOB, (3, -1000, KILLED))
    assert diagnose(again).verdicts == ()


def test_who_kills_a_job_that_hangs_is_not_its_fault() -> None:
    """The rank on which the others waited is, not the one whose watchdog aborted first."""
    hangs = a_stuck_job(seconds=20)
    killed = exits(hangs, *((rank, 100_000 + rank, {"signal": 6}) for rank in (0, 1)))
    (verdict,) = diagnose(killed).verdicts
    assert (verdict.ranks, verdict.summary.split()[2]) == ((2,), "hangs:")


def test_the_end_of_a_process_explains_the_hang_that_it_causes() -> None:
    killed = exits(stopped(a_stuck_job(seconds=2.5)), (2, 1, KILLED))
    assert the_verdict(killed).ended == "killed"


def test_where_a_rank_hangs_is_not_where_ctrl_c_found_it() -> None:
    """Passes of the others end with the job, and the rank cleans up before it ends as well."""
    hangs = a_stuck_job(seconds=40, function="bump (train.py:20)")
    last = int(hangs.tables["stacks"].ints("start_ns").max())
    stacks, phases = hangs.tables["stacks"], hangs.tables["phases"]
    lasted = last + 300 * MS - phases.ints("start_ns")[-1:]
    late = phases.take(np.array([len(phases) - 1])).with_column("duration_ns", lasted)
    left = a_table("rank thread start_ns duration_ns frames active", [
        (2, "MainThread", last + 150 * MS, MS, "_del_library (torch/library.py:665)", 1)
    ])  # fmt: skip
    job = put(hangs, stacks=both(stacks, left), phases=both(phases, late))
    gap = (last - _end(job)) // MS
    killed = exits(job, *((rank, gap + 200 + rank, INTERRUPTED) for rank in (2, 0, 1, 3)))
    (verdict,) = diagnose(killed).verdicts
    assert (verdict.ranks, verdict.function) == ((2,), "bump (train.py:20)")

"""Members of a group whose calls do not match, and processes that end because of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stepscope.diagnose.detect.stuck.mismatch import find_mismatch
from stepscope.diagnose.finding import Stuck
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.report.story import costs
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Strings, Table, Window

from .jobs import MS, START, a_table
from .test_vanished import RAISED, RESET, TERMINATED

SIZES = "gloo::EnforceNotMet: Received data size doesn't match expected size. Is there a mismatch?"
ABORTED = {"signal": 6}
Call = tuple[str, int]
A, B, NEW = ("AllReduce", 4000), ("AllReduce", 128), ("AllReduce", 4)


End = tuple[int, Mapping[str, Any]]


def a_job_of(calls: Mapping[int, Sequence[Call]], ends: Sequence[End] = ()) -> Window:
    """Calls of each rank in a group of all, one a millisecond; the last one of each is open."""
    rows = [
        (rank, 0, "world-0", at, op, 1 - rank, size, START + at * MS,
         START + at * MS + MS // 2, "done" if at + 1 < len(own) else "started")
        for rank, own in calls.items() for at, (op, size) in enumerate(own)
    ]  # fmt: skip
    names = "rank step group seq op peer bytes enqueue_ns end_ns state"
    tables = {"comm_ops": a_table(names, rows)}
    if ends:
        tables["exits"] = _exits(ends, START + 1000 * MS)
    return Window(Job("job", len(calls), (Host("h", tuple(calls)),)), tables)


def _exits(ends: Sequence[End], at_ns: int) -> Table:
    rows = [(rank, 100 + rank, at_ns + at * MS, how.get("status") or -(2**63),
             how.get("signal") or -(2**63), how.get("announced", False))
            for at, (rank, how) in enumerate(ends)]  # fmt: skip
    table = a_table("rank pid ts_ns status signal announced", rows)
    texts = {name: Strings.of([how.get(name) for _, how in ends])
             for name in ("reason", "detail", "host")}  # fmt: skip
    return Table({**table.columns, **texts})


def found(window: Window) -> Stuck:
    one = find_mismatch(window)
    assert one is not None
    return one


def test_with_two_ranks_the_one_that_left_out_a_call_is_named() -> None:
    """It calls A after A, which nobody ever did; the other one calls B as always."""
    job = a_job_of({0: [A, B] * 10, 1: [*[A, B] * 9, A, A]})
    assert (found(job).ranks, found(job).unfinished) == ((1,), True)


def test_a_call_that_is_new_may_be_a_plan_that_the_other_forgot() -> None:
    job = a_job_of({0: [A, B] * 10, 1: [*[A, B] * 9, A, NEW]})
    assert found(job).ranks == ()


def test_an_open_receive_of_another_size_than_the_send() -> None:
    sends, receives = [("Send", 4000)] * 10, [*[("Recv", 4000)] * 9, ("Recv", 16)]
    one = found(a_job_of({0: sends, 1: receives}))
    assert one.ranks == ()
    assert "rank 1 called Recv of 16 bytes, rank 0 called Send of 4000 bytes" in one.detail


def test_receives_that_were_numbered_otherwise_are_no_mismatch() -> None:
    sends = [("Send", 4000 + at) for at in range(10)]
    assert find_mismatch(a_job_of({0: sends, 1: [("Recv", 4001 + at) for at in range(10)]})) is None


PAIRS = tuple(ProcessGroup(f"tp-{at}", "tp", (2 * at, 2 * at + 1)) for at in range(3))


def pairs(odd: Call, in_others: Sequence[Call] = (), waits_s: int = 0) -> Window:
    """Three tensor groups of two, of which rank 1 calls something else in its last step; they wait
    in it, or go on."""
    rows = [
        (rank, at // 2, f"tp-{rank // 2}", at, op, -1, size, START + at * 1000 * MS,
         NULL if waits_s and at == 19 else START + at * 1000 * MS + MS)
        for rank in range(6) for at in range(20)
        for op, size in [odd if (rank, at) == (1, 19) else _usual(rank, at, in_others)]
    ]  # fmt: skip
    comm = a_table("rank step group seq op peer bytes enqueue_ns end_ns", rows)
    steps = a_table("rank step start_ns duration_ns", [
        (rank, step, START + step * 2000 * MS, 2000 * MS) for rank in range(6) for step in range(9)
    ])  # fmt: skip
    job = Job("job", 6, (Host("h", tuple(range(6))),), groups=PAIRS,
              observed_until_ns=START + (19 + waits_s) * 1000 * MS)  # fmt: skip
    return Window(job, {"comm_ops": comm, "steps": steps})


def _usual(rank: int, at: int, in_others: Sequence[Call]) -> Call:
    return in_others[at] if in_others and rank > 1 else (A, B)[at % 2]


def test_of_a_pair_the_rank_is_named_that_differs_from_all_equal_groups() -> None:
    """What it called is new to everybody, so its own past shows nothing."""
    assert found(pairs(NEW)).ranks == (1,)


def test_groups_with_another_program_say_nothing_of_a_pair() -> None:
    assert found(pairs(NEW, [*[A, A] * 9, A, B])).ranks == ()


def test_a_job_that_stands_still_because_of_a_mismatch_hangs() -> None:
    diagnosis = diagnose(pairs(NEW, waits_s=90))
    (verdict,) = diagnosis.verdicts
    assert (diagnosis.state, verdict.kind, verdict.ranks) == ("hang", "mismatch", (1,))
    assert costs(verdict)[:2] == ["no progress for 90.0 s", "5 ranks wait for it"]


def test_a_job_that_went_on_after_a_mismatch_does_not_hang() -> None:
    diagnosis = diagnose(pairs(NEW))
    assert (diagnosis.state == "hang", costs(diagnosis.verdicts[0])[0]) == (
        False,
        "1 rank waits for it",
    )


SKIPPED = {0: [A, B] * 10, 1: [*[A, B] * 9, A, A], 2: [A, B] * 10}


@pytest.mark.parametrize(
    "how",
    [ABORTED, {**ABORTED, "announced": True, "reason": "exception", "detail": SIZES}],
)
def test_who_aborts_because_of_a_mismatch_is_its_victim(how: dict[str, object]) -> None:
    lost_peer = {**RAISED, "detail": RESET}
    job = a_job_of(SKIPPED, [(0, how), (1, lost_peer), (2, lost_peer)])
    for verdict in (*diagnose(job).verdicts, *(find_hang(job) or diagnose(job)).verdicts):
        assert (verdict.kind, verdict.ranks, verdict.cause) == ("mismatch", (1,), "code")
        assert "memory" not in verdict.advice


def test_a_mismatch_of_which_only_the_message_is_left_names_nobody() -> None:
    said = {**ABORTED, "announced": True, "reason": "exception", "detail": SIZES}
    job = a_job_of({0: [A, B] * 10, 1: [A, B] * 10}, [(0, said), (1, TERMINATED)])
    (verdict,) = diagnose(job).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("mismatch", (), "code")
